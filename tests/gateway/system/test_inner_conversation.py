"""The inner conversation: what is pending everywhere is weighed in one place, and answered by each
room's own turn."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import ModelRequest, StreamChunk, TextPart
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from agent.prompts import load_prompt
from agent.tools import read_call
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import send_control_request
from gateway.core.facts import REPEATED_TURN, Judgement, NoteWritten, RoomAttended, TurnRecord
from gateway.core.process_files import (
    GatewayNotRunning,
    socket_path,
)
from gateway.runtime.turn import NEXT_STEP
from gateway.store import Store
from reverie.testing.gateway import UNHURRIED, Gateway, running

QUICK: dict[str, Any] = {
    "dmn": {"resting": 0.05, "foraging": 0.05, "working": 0.05, "engaged": 0.05, "dream_every": 0},
    "attention": {
        "coalesce": 0,
        "rules": [{"type": "*.room.*", "keyword": "outage", "urgency": "normal"}],
    },
    "access": {"dm": "open", "roles": {"owner": ["console:olga"]}},
}
LOBBY = "console/lobby"
PENDING = rf'## "lobby" ({LOBBY})'
REST = ScriptRule(match=".", calls=(("yield_to_user", "{}"),))


def attends(*rooms: str, reason: str = "of help") -> ScriptRule:
    calls = tuple(("attend", json.dumps({"room": room, "reason": reason})) for room in rooms)
    return ScriptRule(match=rf"## .*{rooms[0]}\)\n", calls=(*calls, ("yield_to_user", "{}")))


async def ended(gateway: Gateway, count: int, *, place: str = "agent/reverie") -> list[TurnRecord]:
    """The turns of a conversation, once there are so many."""
    async with asyncio.timeout(120):
        while True:
            async with await Store.open_readonly(gateway.path) as reader:
                found = [
                    one.fact
                    for one in await reader.entries(kinds=["turn_ended"])
                    if one.conversation == place
                ]
            turns = [fact for fact in found if isinstance(fact, TurnRecord)]
            if len(turns) >= count:
                return turns
            await asyncio.sleep(0.01)


async def order(
    gateway: Gateway,
    *words: str,
) -> ControlResponse:
    """As the command line does, once the gateway listens."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(GatewayNotRunning):
                return await send_control_request(
                    socket_path(gateway.path), CommandRequest(words=("dmn", *words), by="test")
                )
            await asyncio.sleep(0.01)


def heard(gateway: Gateway, request: int = -1) -> str:
    said = gateway.scripted.requests[request].conversation
    return "\n".join(part.text for one in said for part in one.parts if isinstance(part, TextPart))


async def test_a_lifted_room_is_attended_and_answers_from_its_own_view(tmp_path: Path) -> None:
    rules = (
        attends(LOBBY, reason="bob needs somebody"),
        ScriptRule(match="hello", reply="hi ann"),
        ScriptRule(match="who is on it", reply="me"),
        ScriptRule(match="there is an outage", reply="I am on it"),
    )
    async with running(tmp_path, Script(rules=rules), **QUICK) as gateway:
        await gateway.ask("reverie, hello", sender="ann", room="lobby")
        await gateway.say("lovely day", sender="ann", room="lobby")
        await gateway.ask("there is an outage", sender="bob", room="lobby")
        (looked,) = await ended(gateway, 1)
        await gateway.ask("reverie, who is on it?", sender="bob", room="lobby")
    assert gateway.sent("lobby") == ["hi ann", "I am on it", "me"]
    assert looked.heard.startswith(PENDING)
    assert looked.heard.count("(overheard)") == 2
    assert (looked.cause, looked.outcome, looked.autonomous, looked.requests) == (
        "digest",
        "yielded",
        True,
        1,
    )
    assert [read_call(call)[0] for step in looked.steps for call in step.calls] == [
        "attend",
        "yield_to_user",
    ]
    _, spoken, answered = await ended(gateway, 3, place=LOBBY)
    assert (spoken.cause, spoken.autonomous, spoken.within, spoken.text) == (
        "attended",
        True,
        None,
        "I am on it",
    )
    assert set(looked.covers) < set(spoken.covers)  # and the notice
    assert answered.heard.count("\n") == 0  # what was dealt with is history, not news
    before, mine, after = [one for one in gateway.scripted.requests if one.conversation_id == LOBBY]
    assert (
        mine.conversation[: len(before.conversation)] == before.conversation
    )  # the room's own cached view
    assert (mine.blocks, mine.tools) == (before.blocks, before.tools) == (after.blocks, after.tools)
    assert spoken.heard.endswith('(you decided to look at this room: "bob needs somebody")')
    (attended,) = await gateway.facts("attended")
    assert isinstance(attended, RoomAttended)
    assert (attended.turn, attended.reason) == (looked.turn, "bob needs somebody")


class Waiting(ScriptedModel):
    """One that never answers in the lobby."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, clock=SystemClock())

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        async for chunk in super().stream(request):
            if request.conversation_id == LOBBY:
                await asyncio.Event().wait()
            yield chunk


async def test_what_was_attended_before_a_stop_is_answered_once_after_it(tmp_path: Path) -> None:
    rules = (attends(LOBBY), ScriptRule(match="outage", reply="I am on it"), REST)
    async with running(tmp_path, Waiting(Script(rules=rules)), **QUICK) as gateway:
        await gateway.say("an outage", sender="bob", room="lobby")
        await gateway.asked(2)
        assert len(await gateway.facts("attended")) == 1
    async with running(tmp_path, Script(rules=rules), **QUICK) as again:
        await ended(again, 1, place=LOBBY)
        await order(again, "status")
    turns = [one for one in await ended(again, 1, place=LOBBY) if one.outcome != "interrupted"]
    assert [(one.cause, one.text) for one in turns] == [("attended", "I am on it")]
    assert gateway.sent("lobby") + again.sent("lobby") == ["I am on it"]
    assert len(await again.facts("attended")) == 1


async def test_closed_rooms_are_weighed_and_what_is_made_of_them_keeps_to_them(
    tmp_path: Path,
) -> None:
    """The digest shows rooms that not everybody can read; a note of that look is for no other
    room."""

    note = ("remember", json.dumps({"text": "the payroll is marzipan"}))
    look = ScriptRule(match="console/staff", calls=(note, ("yield_to_user", "{}")))
    ask = ScriptRule(match="what of", calls=(("recall", json.dumps({"query": "payroll"})),))
    bindings = [{"match": {"room": "staff"}}, {"private": False}]
    settings = {**QUICK, "agents": [{"id": "reverie", "bindings": bindings}]}
    settings["access"] = {
        **QUICK["access"],
        "roles": {"owner": ["console:olga", "console:bob"]},
    }
    script = Script(rules=(look, ask, REST))
    async with running(tmp_path, script, rooms=["lobby", "staff"], **settings) as gateway:
        await gateway.say("an outage of the payroll", sender="bob", room="staff")
        (turn,) = await ended(gateway, 1)
        await gateway.say("reverie, what of the payroll?", sender="bob", room="lobby")
        (asked,) = await ended(gateway, 1, place=LOBBY)
    assert "an outage of the payroll" in turn.heard
    assert turn.label is not None
    assert (turn.label.integrity, turn.label.readers) == ("owner", ("console/staff",))
    (noted,) = await gateway.facts("noted")
    assert isinstance(noted, NoteWritten)
    assert noted.scope == "agent/reverie"
    assert "marzipan" not in repr(asked.steps)


async def test_by_itself_it_attends_only_what_it_was_shown_and_posts_nothing(
    tmp_path: Path,
) -> None:
    wrong = ("console/cellar", "nowhere", "nowhere/x", "console/ann", "agent/reverie")
    calls = tuple(("attend", json.dumps({"room": place})) for place in wrong)
    post = ("send_message", json.dumps({"address": LOBBY, "text": "psst"}))
    rules = (
        ScriptRule(match=LOBBY, calls=(*calls, post)),
        ScriptRule(match="hello", reply="hi"),
        REST,
    )
    async with running(tmp_path, Script(rules=rules), **QUICK) as gateway:
        await gateway.say("hello", sender="ann")
        await gateway.say("an outage", sender="bob", room="lobby")
        (turn,) = await ended(gateway, 1)
    results = [
        call
        for step in turn.steps
        for call in step.calls
        if read_call(call)[0] in ("attend", "send_message")
    ]
    assert len(results) == len(wrong) + 1
    assert all(call.error for call in results)
    assert gateway.sent("ann") == ["hi"]
    assert not gateway.sent("cellar") + gateway.sent("lobby")


async def test_one_look_covers_many_rooms_and_lines(tmp_path: Path) -> None:
    rooms = [f"room{number}" for number in range(12)]
    async with running(tmp_path, Script(rules=(REST,)), rooms=rooms, **QUICK) as gateway:
        await order(gateway, "off")
        for number in range(5):
            for room in rooms:
                await gateway.say(f"outage {number}", sender="bob", room=room)
        await order(gateway, "wake")
        first, second = await ended(gateway, 2)
    assert first.heard.count("(console/room") == 8
    assert "(4 more rooms wait)" in first.heard
    assert second.heard.count("(console/room") == 4
    assert len(first.covers) + len(second.covers) == 60
    judged = [fact for fact in await gateway.facts("judged") if isinstance(fact, Judgement)]
    assert {fact.fate for fact in judged if ".room." in fact.type} == {"due"}


# A task is gone on with, without being asked, until the agent rests or the guards say that it is
# enough.

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
