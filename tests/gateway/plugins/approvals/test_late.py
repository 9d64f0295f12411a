"""Calls whose turn goes on before an admin has decided: carried out once, when that is approved."""

import asyncio
import json
from pathlib import Path

import pytest

from gateway.core.events import TaskFinished
from gateway.core.facts import TurnRecord
from gateway.plugins.approvals import PATIENCE_S, ApprovalEnded, ApprovalRequested
from gateway.store import NewEntry, Store
from reverie.testing.gateway import UNHURRIED, Gateway, Script, ScriptRule, settings
from tests.kits.approvals import GUS, ROOT, house

LAMP = "the lamp is on"


def build(folder: Path) -> Gateway:
    """A room where an admin is asked about each command."""
    command = json.dumps({"command": f"echo {LAMP}"})
    script = Script(
        rules=(
            ScriptRule(match="light the lamp", calls=(("bash", command),)),
            ScriptRule(match="how are you", reply="Fine, and that waits for an approval."),
            ScriptRule(match='call ended: "bash', reply="The lamp burns."),
            ScriptRule(match='call failed: "bash', reply="I may not light it."),
            ScriptRule(match="", reply="Never mind."),
        )
    )
    tools = {
        "bash": {"sandbox": "off"},
        "rules": [{"tool": "bash", "role": "guest", "approval": "always"}],
    }
    access = {"dm": "open", "rates": UNHURRIED, "roles": {"admin": ["console:root"]}}
    return Gateway(settings(folder, tools=tools, access=access), script)


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


async def test_what_is_denied_late_is_told_and_not_done(tmp_path: Path) -> None:
    async with build(tmp_path) as it:
        name = await ask_and_speak(it)
        await it.ask(f"!deny {name}", room="lobby", sender="root")
        await it.until(lambda: "I may not light it." in it.sent("lobby"))
    assert (await count_begun(it), await verdicts(it)) == (0, ["denied"])


async def test_the_same_call_is_not_asked_for_again_while_it_waits(tmp_path: Path) -> None:
    async with build(tmp_path) as it:
        await ask_and_speak(it)
        assert await it.ask("@reverie light the lamp", room="lobby", sender="gus") == "Never mind."
        assert len(await it.facts("approval_asked")) == 1


async def test_who_is_blocked_meanwhile_gets_nothing_done(tmp_path: Path) -> None:
    async with build(tmp_path) as it:
        name = await ask_and_speak(it)
        await it.ask("!block console:ann", room="lobby", sender="root")
        await it.ask(f"!approve {name}", room="lobby", sender="root")
        await it.until(lambda: "I may not light it." in it.sent("lobby"))
    assert await count_begun(it) == 0


async def test_a_verdict_whose_call_was_cut_is_told_as_uncertain(tmp_path: Path) -> None:
    """The process dies between the verdict and the end of the call: it is not carried out again."""
    it = build(tmp_path)
    it.start()
    name = await ask_and_speak(it)
    await it.took(1)
    await it.kill()
    (asked,) = await it.entries("approval_asked")
    async with await Store.open(it.path, it.clock) as store:
        fact = ApprovalEnded(
            approval=name, agent="reverie", tool="bash", verdict="once", by="console:root"
        )
        key = f"approval:{name}:ended"
        entry = NewEntry(
            fact=fact, at=it.clock.now(), conversation=asked.conversation, key=key, cause=asked.seq
        )
        await store.append([entry])
    for _ in range(2):
        it.start()
        await it.until(lambda: "I may not light it." in it.sent("lobby"))
        await it.end()
    (told,) = [one for one in await it.facts("finished") if isinstance(one, TaskFinished)]
    assert not told.ok
    assert "look what it has done" in told.text
    assert await count_begun(it) == 0


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
