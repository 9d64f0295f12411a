"""A task is gone on with, without being asked, until the agent rests or the guards say that it is
enough."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from agent.prompts import load_prompt
from gateway.core.clock import ManualClock
from gateway.core.facts import REPEATED_TURN
from gateway.runtime.turn import NEXT_STEP
from reverie.testing.gateway import UNHURRIED, Gateway, running
from tests.gateway.system.test_inner_conversation import LOBBY, QUICK, ended

POST = ("send_message", f'{{"address":"{LOBBY}","text":"step"}}')


GO_ON = ("continue_task", '{"next":"post \\"it\\" again"}')


async def test_a_turn_that_says_so_goes_on_by_itself_until_it_yields(tmp_path: Path) -> None:
    rules = (
        ScriptRule(match="do it", calls=(POST, GO_ON)),
        ScriptRule(match=r"It is posted\.", reply="one step is done"),
        ScriptRule(match="next step of your task", calls=(POST, ("yield_to_user", "{}"))),
    )
    async with running(tmp_path, Script(rules=rules), **QUICK) as gateway:
        await gateway.say("do it", sender="olga")
        asked, went_on = await ended(gateway, 2, place="console/olga")
        await gateway.screen.until(3)
    assert (asked.cause, asked.autonomous, asked.text) == (
        "addressed",
        False,
        "one step is done",
    )
    assert (went_on.cause, went_on.autonomous, went_on.outcome) == (
        "continued",
        True,
        "yielded",
    )
    meant = NEXT_STEP.format(step="post 'it' again")
    assert gateway.scripted.requests[-1].now == f"{load_prompt('working')}\n{meant}"
    assert len(gateway.scripted.requests) == 3
    assert gateway.sent("lobby") == ["step", "step"]
    assert gateway.sent("olga") == ["one step is done"]


async def test_a_task_that_only_repeats_itself_ends_after_the_third_time(tmp_path: Path) -> None:
    clock = ManualClock()
    repeats = ScriptRule(match="do it|next step of your task", calls=(POST, GO_ON))
    rules = (repeats, ScriptRule(match="posted", reply="more to come"))
    async with running(tmp_path, Script(rules=rules), clock=clock, **PACED) as gateway:
        for number in (1, 2):  # a person's word begins it again
            await gateway.say("do it", sender="olga")
            count = 4 * number + 1  # and the owner is told, once a day
            await gateway.until(lambda: len(gateway.sent("olga")) == count, step_s=0.1)  # noqa: B023 - awaited here
            await gateway.advance(60)
            assert len(gateway.sent("olga")) == count
        turns = await ended(gateway, 8, place="console/olga")
        assert [turn.autonomous for turn in turns] == [False, True, True, True] * 2
        assert [turn.reason for turn in turns] == ["", "", "", REPEATED_TURN] * 2
        (told,) = [text for text in gateway.sent("olga") if text != "more to come"]
        assert told.startswith("reverie did the same three times in a row in ")


RESTS = ScriptRule(match="next step of your task", calls=(("yield_to_user", "{}"),))
"""Whatever is said: it does what the guidance says."""
CHAT_COMMANDS = ScriptRule(match="two plus two", reply="four")


def job(name: str, **arguments: object) -> tuple[ScriptRule, ...]:
    return (
        ScriptRule(match="the job", calls=((name, json.dumps(arguments)),)),
        ScriptRule(match=".", reply="one"),
    )


WROTE = job("write_file", path="a.txt", text="x")
PACED: dict[str, Any] = {
    "access": {"dm": "open", "rates": UNHURRIED, "roles": {"owner": ["console:olga"]}},
    "attention": {},
}
"""As the DMN and the coalescing window are by default."""


async def first_job(gateway: Gateway, room: str | None) -> None:
    await gateway.say("reverie: the job", sender="olga", room=room)
    await gateway.until(lambda: len(gateway.screen.parts) == 1, step_s=0.1)


@pytest.mark.parametrize("delay_s", [0, 0.6, 1.3, 1.6, 2.0, 2.4, 2.8, 3.0, 3.4, 4.0])
@pytest.mark.parametrize(("sender", "room"), [("olga", None), ("bob", "lobby")])
async def test_what_is_asked_right_after_a_task_is_answered(
    tmp_path: Path, delay_s: float, sender: str, room: str | None
) -> None:
    clock, rules = ManualClock(), (RESTS, CHAT_COMMANDS, *WROTE)
    async with running(tmp_path, Script(rules=rules), clock=clock, **PACED) as gateway:
        await first_job(gateway, room)
        await gateway.advance(delay_s)
        await gateway.say("reverie: what is two plus two?", sender=sender, room=room)
        await gateway.until(lambda: len(gateway.screen.parts) == 2, step_s=0.1)
        await gateway.advance(8)
        assert gateway.sent(room or sender)[1:] == ["four"]
        turns = await gateway.turns()
        (answering,) = [one for one in turns if "two plus two" in one.heard]
        assert (answering.cause, answering.autonomous, answering.outcome) == (
            "addressed",
            False,
            "replied",
        )
