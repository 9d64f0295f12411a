"""`/stop`: the running turn ends, nothing more of it is posted, and it is not resumed by itself."""

import json
from pathlib import Path

import pytest

from agent.prompt import NOTHING_NEW
from gateway.runtime.agents import ALREADY_STOPPING, LEFT_UNANSWERED, NOTHING_RUNNING, STOPPING
from gateway.stream.trace import EventOutcome, compute_outcomes, explain_event
from tests.kits.model_choice import ANN, Gate, configured, serving, story
from tests.servers.model_api import Answer, ModelApi

BASH = {"bash": {"sandbox": "off"}}


async def nothing_more(gate: Gate, api: ModelApi, *, asked: int, posts: int = 0) -> None:
    """No more than these was posted, and no request was made again, also not by the next tick."""
    await gate.calm()
    gate.gateway.agents.agents[0].tick()
    await gate.calm()
    assert len(api.seen) == asked
    assert len(await gate.facts("post")) == posts
    assert not api.violations


@story
async def test_what_streams_ends_and_is_not_answered_again(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="a very long story indeed, which goes on", silent_after=3))
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("tell me a story", sender="ann")
            await gate.until(lambda: bool(api.seen))
            assert (await gate.command("stop")).text == STOPPING
            await gate.until(lambda: api.seen[0].hung_up)
            await nothing_more(gate, api, asked=1)
            first, *rest = await gate.turns()
            assert (first.outcome, first.reason) == ("yielded", "console:ann had it left off")
            assert "tell me a story" in first.heard
            assert not rest or (rest[0].outcome, rest[0].heard, rest[0].covers) == ("yielded", "", ())
            await gate.console.receive_message("something else", sender="ann")
            await gate.screen.until(1)
            told = json.dumps(api.seen[1].body["messages"])
            assert told.index("tell me a story") < told.index("something else")


def written(folder: Path) -> list[Path]:
    """Return the agent's file `pid`."""
    return [*folder.rglob("files/pid")]


@story
async def test_a_tool_is_killed_and_what_it_did_until_then_is_known(tmp_path: Path) -> None:
    async with ModelApi() as api:
        command = "echo $$ > pid; sleep 1000"
        api.then(Answer(text="Let me see.", calls=(("c1", "bash", json.dumps({"command": command})),)))
        async with serving(configured(tmp_path, api, tools=BASH)) as gate:
            await gate.console.receive_message("work", sender="ann")
            await gate.until(lambda: any(one.read_text().endswith("\n") for one in written(tmp_path)))
            (pid,) = written(tmp_path)
            running = Path("/proc") / pid.read_text().strip()
            assert running.exists()
            assert (await gate.command("stop")).text == STOPPING
            await gate.until(lambda: not running.exists())
            await nothing_more(gate, api, asked=1)
            word, turn = await gate.turns()
            assert (len(word.covers), word.requests, turn.requests) == (1, 0, 1)
            assert (turn.outcome, turn.covers, len(turn.steps)) == ("yielded", (), 1)
            assert turn.senders == word.senders == ("ann",)  # who asked for it bears what it cost
            assert "Interrupted" in turn.steps[0].calls[0].result
            await gate.console.receive_message("what did you do?", sender="ann")
            await gate.screen.until(1)
            assert "sleep 1000" in json.dumps(api.seen[1].body["messages"])
            assert NOTHING_NEW in json.dumps(api.seen[1].body["messages"])


@story
async def test_between_two_tries_it_asks_no_more(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.default = lambda _: Answer(status=429, headers={"retry-after": "30"})
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("hello", sender="ann")
            await gate.until(lambda: bool(api.seen))
            assert (await gate.command("stop")).text == STOPPING
            await nothing_more(gate, api, asked=1)


@story
async def test_what_waits_for_an_approval_is_dropped(tmp_path: Path) -> None:
    async with ModelApi() as api:
        arguments = json.dumps({"command": f"touch {tmp_path}/done"})
        api.then(Answer(calls=(("c1", "bash", arguments),)))
        made = configured(tmp_path, api, tools={**BASH, "rules": [{"tool": "bash", "approval": "always"}]})
        async with serving(made) as gate:
            await gate.console.receive_message("work", sender="ann")
            await gate.screen.until(1)  # it asks for leave
            assert (await gate.command("stop")).text == STOPPING
            await gate.calm()
            await gate.until(lambda: not gate.gateway.approvals.pending)
            await nothing_more(gate, api, asked=1, posts=len(gate.screen.parts))
            assert not (tmp_path / "done").exists()


@story
async def test_where_nothing_runs_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    async with ModelApi() as api, serving(configured(tmp_path, api)) as gate:
        await gate.console.receive_message("hello", sender="ann")
        await gate.screen.until(1)
        await gate.calm()
        for _ in range(2):
            answer = await gate.command("stop")
            assert (answer.text, answer.ok) == (NOTHING_RUNNING, False)
        assert len(await gate.turns()) == 1
        await gate.console.receive_message("and now?", sender="ann")  # its door is open
        await gate.screen.until(2)


@story
async def test_twice_is_once(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="x" * 100, silent_after=3))
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("hello", sender="ann")
            await gate.until(lambda: bool(api.seen))
            first, second = await gate.command("stop"), await gate.command("stop")
            assert (first.text, second.text) in ((STOPPING, ALREADY_STOPPING), (STOPPING, NOTHING_RUNNING))
            await nothing_more(gate, api, asked=1)
            assert sum(bool(turn.covers) for turn in await gate.turns()) == 1


@story
async def test_what_was_said_meanwhile_is_heard_and_not_answered(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="x" * 100, silent_after=3))
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("one", sender="ann")
            await gate.until(lambda: bool(api.seen))
            await gate.console.receive_message("two", sender="ann")
            assert (await gate.command("stop")).text == STOPPING
            await nothing_more(gate, api, asked=1)
            await gate.console.receive_message("three", sender="ann")
            await gate.screen.until(1)
            told = json.dumps(api.seen[1].body["messages"])
            assert [told.count(f"(owner): {word}") for word in ("one", "two", "three")] == [1, 1, 1]


@story
async def test_what_was_said_behind_the_word_is_answered(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="x" * 100, silent_after=3))
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("one", sender="ann")
            await gate.until(lambda: bool(api.seen))
            _, go_on = await gate.begin("stop")
            await gate.console.receive_message("two", sender="ann")  # behind the word, and before it is durable
            await go_on(durable=True)
            await gate.screen.until(1)
            told = json.dumps(api.seen[1].body["messages"])
            assert [told.count(f"(owner): {word}") for word in ("one", "two")] == [1, 1]
            assert len(gate.screen.parts) == 1


@story
async def test_what_is_not_begun_yet_is_not_begun(tmp_path: Path) -> None:
    async with ModelApi() as api, serving(configured(tmp_path, api, attention={"coalesce": "300ms"})) as gate:
        await gate.console.receive_message("hello", sender="ann")
        assert (await gate.command("stop")).text == LEFT_UNANSWERED
        await gate.until(lambda: not gate.gateway.inbox.is_waiting(ANN.conversation))
        await nothing_more(gate, api, asked=0)
        (turn,) = await gate.turns()
        assert (turn.outcome, turn.requests, len(turn.covers)) == ("yielded", 0, 1)


@story
async def test_a_word_that_is_not_durable_stops_nothing(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="an answer", delay_s=0.3))
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("hello", sender="ann")
            await gate.until(lambda: bool(api.seen))
            await gate.command("stop", cut="before")
            await gate.screen.until(1)
            assert gate.screen.parts[0].body == "an answer"


@pytest.mark.parametrize("durable", [True, False])
@story
async def test_an_answer_that_comes_while_it_is_decided_waits_for_that(tmp_path: Path, durable: bool) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="an answer", delay_s=0.1))
        async with serving(configured(tmp_path, api)) as gate:
            loop = gate.gateway.agents.agents[0]
            await gate.console.receive_message("hello", sender="ann")
            await gate.until(lambda: bool(api.seen))
            answer, go_on = await gate.begin("stop")
            await api.seen[0].finished.wait()
            lane = loop.turn_handle(ANN.conversation)
            assert lane is not None
            await gate.until(lambda: lane._task is None)  # the model has answered
            assert await gate.turns() == []
            await go_on(durable)
            if durable:
                assert answer.text == STOPPING
                await nothing_more(gate, api, asked=1)
            else:
                await gate.screen.until(1)
                assert [one.outcome for one in await gate.turns()] == ["replied"]


@story
async def test_a_crash_behind_the_word_leaves_nothing_to_answer(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(text="x" * 100, silent_after=3))
        made = configured(tmp_path, api)
        async with serving(made) as gate:
            await gate.console.receive_message("hello", sender="ann")
            await gate.until(lambda: bool(api.seen))
            await gate.command("stop", cut="behind")
            # All that the dead process would still have written is the end of its turn: a stop that parks writes none.
        async with serving(made) as gate:
            await nothing_more(gate, api, asked=1)
            log = await gate.log()
            heard = next(one for one in log if one.fact.kind == "direct")
            assert compute_outcomes(log)[heard.seq] is EventOutcome.YIELDED
            story_ = await explain_event(gate.store, heard.seq)
            assert story_ is not None
            assert "had it left off" in "\n".join(story_)


@story
async def test_what_goes_on_by_itself_is_left_off(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.then(Answer(calls=(("c1", "bash", json.dumps({"command": "true"})),)), Answer(text="half of it"))
        async with serving(configured(tmp_path, api, tools=BASH)) as gate:
            await gate.console.receive_message("work", sender="ann")
            await gate.screen.until(1)
            loop = gate.gateway.agents.agents[0]
            await gate.until(lambda: not loop.state.running)
            assert loop.state.continuing == (ANN.conversation,)
            assert (await gate.command("stop")).text == LEFT_UNANSWERED
            await nothing_more(gate, api, asked=2, posts=1)
