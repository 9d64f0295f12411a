"""Calls that need an admin's word, from the notice to the verdict."""

import asyncio
import contextlib
import json
import re
from pathlib import Path

import pytest

from gateway.core.events import Address, RoomId
from gateway.core.facts import ApprovalRequested, ToolRefused
from gateway.core.identity import Role
from gateway.core.permissions import ALLOW_ADMINS
from gateway.tools.approvals import MAX_PENDING, MAX_PENDING_PER_CONVERSATION
from tests.kits.approvals import DONE, GUS, HERE, LOBBY, MIA, ROOT, TIMEOUT_S, house, story


@story
async def test_a_guests_words_beside_an_admins_need_a_word(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS, written='{"command": "make"}')
        (asked,) = await it.asked()
        assert (asked.tool, asked.arguments, asked.asked_by) == ("bash", '{"command": "make"}', ("root", "gus"))
        assert (asked.until - it.clock.now()).total_seconds() == TIMEOUT_S
        (notice,) = it.shown
        assert (notice.to, notice.style) == (LOBBY, "notice")
        assert "Asked by `root` (admin), `gus` (guest)" in notice.body
        assert f"`!approve {asked.approval}`" in notice.body
        assert f"`!deny {asked.approval}`" in notice.body
        assert not it.ran
        answer = await it.say(f"!approve {asked.approval}")
        assert answer == "Approved: this call of `bash` is carried out."
        assert (await call).text == DONE
        assert it.ran == ["make"]
        assert await it.verdicts() == [("bash", "once", "here:root")]
        it.call(ROOT, GUS, written='{"command": "make"}')
        await it.asked(2)


@story
async def test_what_an_admin_denies_is_not_done_nor_asked_again_in_the_turn(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        assert await it.say(f"!deny {asked.approval}") == "Denied: `bash` is not carried out."
        result = await call
        assert (result.is_error, it.ran) == (True, [])
        assert result.text == (
            "Not done, because an admin was asked and denied this call of bash: do not try it again, "
            "but say what it would have been for."
        )
        assert (await it.call(ROOT, GUS)).text == result.text
        assert await it.verdicts() == [("bash", "denied", "here:root")]
        it.call(ROOT, GUS, turn="t2")
        await it.asked(2)


@story
async def test_silence_is_no(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.sleeping()
        it.clock.advance(TIMEOUT_S - 1)
        assert "`bash`" in await it.say("!approve")
        it.clock.advance(1)
        assert "no admin approved this call of bash within 2 min" in (await call).text
        assert await it.verdicts() == [("bash", "expired", "")]
        late = await it.say(f"!approve {asked.approval}")
        assert late == f"Too late: `{asked.approval}` is over: nobody said anything in time."
        assert not it.ran


@story
async def test_a_call_that_is_cancelled_waits_for_nobody(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await it.approvals.close()
        assert await it.verdicts() == [("bash", "dropped", "")]
        late = await it.say(f"!approve {asked.approval}")
        assert late == f"Too late: `{asked.approval}` is over: nobody waits for it any more."
        assert (not it.ran, it.approvals.pending) == (True, [])


@story
async def test_a_call_that_is_cancelled_while_it_is_asked_for_is_over_too(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        while not it.approvals._pending:
            await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await it.approvals.close()
        assert len(await it.log("approval_asked")) == 1
        assert await it.verdicts() == [("bash", "dropped", "")]
        assert await it.store.undecided() == []


@story
async def test_the_same_call_twice_in_a_turn_is_asked_for_once(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        first = it.call(ROOT, GUS, written='{"command":"ls"}')
        second = it.call(ROOT, GUS, written='{ "command" : "ls" }')
        (asked,) = await it.asked()
        third = it.call(ROOT, GUS, written='{"command":"ls"}')
        second.cancel()
        await it.say(f"!approve {asked.approval}")
        assert [(await one).text for one in (first, third)] == [DONE, DONE]
        assert len(await it.log("approval_asked")) == len(await it.log("approval_ended")) == 1


@story
async def test_several_wait_at_once_and_each_has_its_own_verdict(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        calls = [it.call(ROOT, GUS, written=json.dumps({"command": str(number)})) for number in range(3)]
        names = [asked.approval for asked in sorted(await it.asked(3), key=lambda one: one.arguments)]
        await it.say(f"!approve {names[2]}")
        await it.say(f"!deny {names[0]}")
        assert (await calls[2]).text == DONE
        assert "denied" in (await calls[0]).text
        assert not calls[1].done()
        await it.sleeping()
        it.clock.advance(TIMEOUT_S)
        assert "within 2 min" in (await calls[1]).text
        assert it.ran == ["2"]


@story
async def test_too_many_are_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        for number in range(MAX_PENDING):
            room = Address(channel=HERE, room=RoomId(f"r{number // MAX_PENDING_PER_CONVERSATION}"))
            it.call(ROOT, GUS, turn=f"t{number}", at=room)
        await it.asked(MAX_PENDING)
        for name in ("r0", "r9"):
            refused = await it.call(ROOT, GUS, turn="more", at=Address(channel=HERE, room=RoomId(name)))
            assert "too many other calls wait for an approval" in refused.text
        assert [one.rule[-45:] for one in await it.log("tool_refused") if isinstance(one, ToolRefused)] == [
            ", and too many other calls wait for an approval"[-45:]
        ] * 2
        assert await it.store.undecided() != []


@story
async def test_a_long_call_is_shown_whole_with_the_harm_in_its_middle(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        command = "echo hello; " * 60 + "rm -rf . ; " + "echo hello; " * 60
        call = it.call(ROOT, GUS, written=json.dumps({"command": command}))
        (asked,) = await it.asked()
        shown = it.shown[0].body
        assert "rm -rf ." in shown
        assert (
            "".join(re.findall("^`(.*)`$", shown, re.MULTILINE)) == asked.arguments == json.dumps({"command": command})
        )
        await it.say(f"!approve {asked.approval}")
        assert (await call).text == DONE
        assert it.ran == [command]


@story
async def test_what_is_too_long_to_be_shown_is_refused_with_a_word_to_the_model(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        told = await it.call(ROOT, GUS, written=json.dumps({"command": "x" * 4_000}))
        assert "an admin can approve only what they are shown whole, at most 3000 bytes" in told.text
        assert told.text.endswith("Do it in smaller calls.")
        assert not it.shown
        assert len(await it.log("tool_refused")) == 1
        assert not await it.log("approval_asked")


@story
async def test_what_was_not_shown_whole_cannot_be_approved(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        it.refuses = lambda part: "May `reverie`" in part.body
        call = it.call(ROOT, GUS)
        told = await call
        assert "nobody waits for this call of bash any more" in told.text
        (asked,) = [fact for fact in await it.log("approval_asked") if isinstance(fact, ApprovalRequested)]
        assert "is over" in await it.say(f"!approve {asked.approval}")
        assert it.ran == []


@pytest.mark.parametrize("change", [{"here:root": "blocked"}, {}], ids=["blocked", "cleared"])
def test_who_loses_a_role_while_it_waits_gets_nothing_done(tmp_path: Path, change: dict[str, Role]) -> None:
    @story
    async def waiting() -> None:
        async with house(tmp_path) as it:
            call = it.call(ROOT, GUS)
            (asked,) = await it.asked()
            it.give_roles({"here:olga": "owner", "here:rick": "admin", **change})
            await it.say(f"!approve {asked.approval}", "rick")
            assert (await call).text.startswith("Refused: bash is for the role admin and above")
            assert it.ran == []

    waiting()


@pytest.mark.parametrize("change", [{"here:root": "blocked"}, {"here:root": "member"}, {}])
def test_roles_are_looked_up_again_at_each_call(tmp_path: Path, change: dict[str, Role]) -> None:
    @story
    async def calling() -> None:
        async with house(tmp_path) as it:
            assert (await it.call(ROOT)).text == DONE
            it.give_roles(change)
            assert (await it.call(ROOT)).text.startswith("Refused: bash is for the role admin and above")
            it.give_roles({"here:root": "owner", "here:mia": "admin"})
            told = await it.call(MIA, permit=ALLOW_ADMINS)
            assert told.text.startswith("Refused"), "what was said as a member stays that"

    calling()
