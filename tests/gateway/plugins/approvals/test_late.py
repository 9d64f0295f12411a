"""Calls whose turn goes on before an admin has decided: carried out once, when that is approved."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agent.models.base import Model, ModelBusy, ModelRequest, StreamChunk
from agent.models.scripted import ScriptedModel
from gateway.core.clock import Clock, ManualClock, SystemClock
from gateway.core.events import TaskFinished
from gateway.core.facts import TurnId, TurnRecord
from gateway.core.labels import OUTSIDE_LABEL
from gateway.plugins.approvals import (
    PATIENCE_S,
    UNDECIDED,
    ApprovalEnded,
    ApprovalRequested,
)
from gateway.store import NewEntry, Store
from reverie.testing.gateway import UNHURRIED, Gateway, Script, ScriptRule, settings
from tests.kits.approvals import GUS, LOBBY, ROOT, House, given_by, house
from tests.kits.store import NOW, turn

LAMP = "the lamp is on"


def script(command: str = f"echo {LAMP}") -> Script:
    return Script(
        rules=(
            ScriptRule(match="light the lamp", calls=(("bash", json.dumps({"command": command})),)),
            ScriptRule(match="how are you", reply="Fine, and that waits for an approval."),
            ScriptRule(match='call ended: "bash', reply="The lamp burns."),
            ScriptRule(match='call failed: "bash', reply="I may not light it."),
            ScriptRule(match="", reply="Never mind."),
        )
    )


def build(folder: Path, model: Model | Script | None = None, clock: Clock | None = None) -> Gateway:
    """A room where an admin is asked about each command."""
    tools = {
        "bash": {"sandbox": "off"},
        "rules": [{"tool": "bash", "role": "guest", "approval": "always"}],
    }
    access = {"dm": "open", "rates": UNHURRIED, "roles": {"admin": ["console:root"]}}
    agents = [{"id": "reverie", "bindings": [{"private": False}]}, {"id": "mira"}]
    return Gateway(
        settings(folder, tools=tools, access=access, agents=agents), model or script(), clock=clock
    )


async def ask_and_speak(it: Gateway) -> str:
    """Somebody asks for the call, and somebody else speaks to the agent. The id of the request."""
    await it.say("@reverie light the lamp", room="lobby", sender="ann")
    await it.until(lambda: len(it.sent("lobby")) == 1)
    answer = await it.ask("@reverie how are you?", room="lobby", sender="gus")
    assert "waits for an approval" in answer
    (asked,) = await it.facts("approval_asked")
    assert isinstance(asked, ApprovalRequested)
    return asked.approval


async def verdicts(it: Gateway) -> list[str]:
    return [
        one.verdict for one in await it.facts("approval_ended") if isinstance(one, ApprovalEnded)
    ]


async def count_begun(it: Gateway) -> int:
    return len(await it.facts("tool_begun"))


@pytest.mark.parametrize("how", ["stays", "ends", "dies"])
async def test_a_room_is_answered_while_a_call_waits_and_the_call_is_carried_out_once_approved(
    tmp_path: Path, how: str
) -> None:
    it = build(tmp_path)
    it.start()
    name = await ask_and_speak(it)
    await it.took(1)
    if how != "stays":
        await (it.end() if how == "ends" else it.kill())
        it.start()
    assert await count_begun(it) == 0
    answer = await it.ask(f"!approve {name}", room="lobby", sender="root")
    assert answer == "Approved: I run this call of `bash`."
    await it.until(lambda: "The lamp burns." in it.sent("lobby"))
    await it.end()
    it.start()
    assert "Too late" in await it.ask(f"!approve {name}", room="lobby", sender="root")
    await it.end()
    assert (await count_begun(it), await verdicts(it)) == (1, ["once"])
    (told,) = [one for one in await it.facts("finished") if isinstance(one, TaskFinished)]
    assert told.ok
    assert LAMP in told.text
    last = [one for one in await it.facts("turn_ended") if isinstance(one, TurnRecord)][-1]
    assert not last.steps, "it needs no second call"


class Away(ScriptedModel):
    """One that does not answer the next `away` requests."""

    away = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if self.away:
            self.away -= 1
            self.requests.append(request)
            raise ModelBusy("it is down")
        async for chunk in super().stream(request):
            yield chunk


async def test_a_result_is_told_once_a_model_answers_again_though_nobody_speaks(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    model = Away(script(), clock=SystemClock())
    async with build(tmp_path, model, clock) as it:
        name = await ask_and_speak(it)
        await it.ask("!quiet 3h", room="lobby", sender="root")
        shown, model.away = len(it.sent("lobby")), 4
        await it.ask(f"!approve {name}", room="lobby", sender="root")
        began = clock.now()
        await it.until(lambda: "The lamp burns." in it.sent("lobby"), step_s=1.0)
        assert clock.now() - began < timedelta(minutes=10)
        assert len(it.sent("lobby")) == shown + 2, "the answer to the command, and the result"
    assert "do your work without a word" not in str(model.requests)


@pytest.mark.parametrize(
    ("before", "word", "verdict"),
    [
        ("", "deny", "denied"),
        ("", "", "expired"),
        ("block console:ann", "approve", "once"),
        ("persona here mira", "approve", "once"),
    ],
    ids=["denied", "nobody answers", "who asked is blocked", "another agent is there"],
)
async def test_what_is_not_carried_out_is_told_where_it_was_asked(
    tmp_path: Path, before: str, word: str, verdict: str
) -> None:
    clock = ManualClock()
    async with build(tmp_path, clock=clock) as it:
        name = await ask_and_speak(it)
        for words in filter(None, (before, word and f"{word} {name}")):
            await it.ask(f"!{words}", room="lobby", sender="root")
        clock.advance(0 if word else 12 * 3_600)
        await it.until(lambda: "I may not light it." in it.sent("lobby"), step_s=0.1)
    assert (await count_begun(it), await verdicts(it)) == (0, [verdict])


async def test_an_approved_call_that_the_end_of_the_gateway_cuts_is_told_once(
    tmp_path: Path,
) -> None:
    it = build(tmp_path, script("echo $$ > number; sleep 600"))
    it.start()
    name = await ask_and_speak(it)
    await it.took(1)
    await it.ask(f"!approve {name}", room="lobby", sender="root")
    while not (found := [*tmp_path.rglob("number")]) or not found[0].read_text().strip():
        await asyncio.sleep(0)
    await it.end()
    assert not Path("/proc", found[0].read_text().strip()).exists(), "it goes on"
    for _ in range(2):
        it.start()
        await it.until(lambda: "I may not light it." in it.sent("lobby"))
        await it.end()
    (told,) = [one for one in await it.facts("finished") if isinstance(one, TaskFinished)]
    assert "look what it has done" in told.text
    assert await count_begun(it) == 1


async def test_a_call_whose_turn_is_stopped_after_it_went_on_waits_no_longer(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, approvals={"timeout": 3_600}) as it:
        call, _ = await it.asking(ROOT, GUS)
        await it.sleeping()
        it.clock.advance(PATIENCE_S)
        assert "waits for an admin" in (await call).text
        entry = turn(LOBBY.conversation)
        assert isinstance(entry.fact, TurnRecord)
        stopped = replace(entry.fact, turn=TurnId("t1"), outcome="yielded", reason="by root")
        await it.store.append([replace(entry, fact=stopped)])
        while not await it.verdicts():
            await asyncio.sleep(0)
        assert await it.verdicts() == [("bash", "dropped", "")]


async def test_a_turn_that_is_stopped_while_an_admin_approves_gets_nothing_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path) as it:
        call, asked = await it.asking(ROOT, GUS)
        decided = await it.approvals.decide(given_by("admin"), asked.approval, approved=True)
        call.cancel()
        await asyncio.wait({call})
        (made,) = decided.facts
        await it.store.append(
            [NewEntry(fact=made.fact, at=it.clock.now(), conversation=made.place, key=made.key)]
        )
        decided.settle(None)
        await it.say("!approve")
        assert await it.verdicts() == [("bash", "once", "here:root")]
    assert not it.ran
    assert not [one for one in caplog.records if one.levelname == "ERROR"], "nobody has it done"


async def test_a_turn_waits_for_two_minutes_and_goes_on(tmp_path: Path) -> None:
    async with house(tmp_path, approvals={"timeout": 3_600}) as it:
        call, asked = await it.asking(ROOT, GUS)
        await it.sleeping()
        it.clock.advance(PATIENCE_S)
        assert "waits for an admin" in (await call).text
        assert not await it.verdicts()
        again = await it.call(ROOT, GUS, turn="t2")
        assert "waits for an admin" in again.text
        assert await it.log("approval_asked") == [asked]
        it.clock.advance(3_600)
        while not await it.verdicts():
            await asyncio.sleep(0)
        assert await it.verdicts() == [("bash", "expired", "")]
        assert not it.ran


class DecidedMeanwhile(Store):
    """Another process decides once the open requests are read."""

    async def rows(self, sql: str, *params: str | int | None) -> list[Any]:
        found = await super().rows(sql, *params)
        if sql == UNDECIDED and found:
            fact = ApprovalEnded(
                approval="k7qd", agent="reverie", tool="bash", verdict="denied", by="here:root"
            )
            key = "approval:k7qd:ended"
            await self.append(
                [NewEntry(fact=fact, at=NOW, conversation=LOBBY.conversation, key=key)]
            )
        return found


async def test_a_verdict_of_another_process_while_this_one_takes_over_is_not_waited_for(
    tmp_path: Path,
) -> None:
    clock, ended = ManualClock(), turn(LOBBY.conversation)
    asked = ApprovalRequested(
        approval="k7qd",
        agent="reverie",
        tool="bash",
        arguments="{}",
        turn=TurnId("t"),
        room=LOBBY.conversation,
        until=clock.now() + timedelta(hours=1),
        label=OUTSIDE_LABEL,
        rule="",
    )
    async with await DecidedMeanwhile.open(tmp_path / "reverie.db", clock) as store:
        await store.append([replace(ended, fact=asked, key="approval:k7qd")])
        await store.append([replace(ended, key="turn:t")])
        async with House(store, clock, tmp_path) as it:
            metrics = it.approvals.metrics
            assert isinstance(metrics, CollectorRegistry)
            while metrics.get_sample_value("reverie_tool_approvals_waiting"):
                await asyncio.sleep(0)
