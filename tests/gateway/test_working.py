"""A task is gone on with, without being asked, until the agent rests or the guards say that it is enough."""

from pathlib import Path

from agent.models.scripted import Rule, Script
from agent.prompts import prompt
from tests.channels.kit import story
from tests.gateway.kit import running
from tests.gateway.test_inner import LOBBY, QUICK, ended

POST = ("send_message", f'{{"address":"{LOBBY}","text":"step"}}')


def test_a_turn_that_used_tools_goes_on_by_itself_until_it_yields(tmp_path: Path) -> None:
    @story
    async def told() -> None:
        rules = (
            Rule(match="do it", calls=(POST,)),
            Rule(match=r"It is posted\.", reply="one step is done"),
            Rule(match="middle of something", calls=(POST, ("yield_to_user", "{}"))),
        )
        async with running(tmp_path, Script(rules=rules), **QUICK) as gateway:
            await gateway.console.say("do it", sender="olga")
            asked, went_on = await ended(gateway, 2, place="console/olga")
            await gateway.screen.until(3)
        assert (asked.cause, asked.autonomous, asked.text) == ("addressed", False, "one step is done")
        assert (went_on.cause, went_on.autonomous, went_on.outcome) == ("continued", True, "yielded")
        assert gateway.scripted.requests[-1].now == prompt("working")
        assert gateway.screen.said("lobby") == ["step", "step"]
        assert gateway.screen.said("olga") == ["one step is done"]

    told()


def test_writing_something_down_is_no_task(tmp_path: Path) -> None:
    @story
    async def told() -> None:
        note = ("journal", '{"title":"","text":"olga likes tea"}')
        rules = (Rule(match="I like tea", calls=(note,)), Rule(match="journal", reply="noted"))
        settings = {**QUICK, "dmn": {**QUICK["dmn"], "forage": True}}
        async with running(tmp_path, Script(rules=rules), **settings) as gateway:
            await gateway.console.say("I like tea", sender="olga")
            await gateway.screen.until(1)
            await gateway.console.say("hello", sender="ann")
            await gateway.screen.until(2)
            assert len(await ended(gateway, 1, place="console/olga")) == 1

    told()


def test_a_task_without_end_is_stopped_by_the_guard_and_a_persons_word_starts_it_again(tmp_path: Path) -> None:
    @story
    async def told() -> None:
        rules = (Rule(match="do it|middle of something", calls=(POST,)), Rule(match="posted", reply="more to come"))
        settings = {**QUICK, "dmn": {**QUICK["dmn"], "max_autonomous_turns": 3}}
        async with running(tmp_path, Script(rules=rules), **settings) as gateway:
            await gateway.console.say("do it", sender="olga")
            first = await ended(gateway, 4, place="console/olga")
            assert [turn.autonomous for turn in first] == [False, True, True, True]
            await gateway.console.say("do it", sender="olga")
            again = await ended(gateway, 8, place="console/olga")
            assert [turn.autonomous for turn in again[4:]] == [False, True, True, True]

    told()
