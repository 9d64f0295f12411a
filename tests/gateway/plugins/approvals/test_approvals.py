"""Calls that need an admin's approval: from the notice to the verdict, where it is shown, and
across crashes."""

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.core.clock import ManualClock
from gateway.core.events import Address, RoomId
from gateway.core.facts import PostQueued, ToolRefused
from gateway.core.permissions import ToolPermit
from gateway.plugins.approvals import (
    MAX_PENDING,
    MAX_PENDING_PER_CONVERSATION,
    UNDECIDED,
    ApprovalEnded,
    ApprovalRequested,
)
from gateway.store import NewEntry, Store, rebuild
from reverie.testing.channels import story
from tests.gateway.system.crash.cut_kit import Steps, cutting
from tests.kits.approvals import (
    DONE,
    GUS,
    HERE,
    INNER,
    LOBBY,
    MIA,
    OFFICE,
    ROOT,
    TIMEOUT_S,
    House,
    asker,
    given_by,
    house,
)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        yield made


async def test_a_guests_words_beside_an_admins_need_a_word(it: House) -> None:
    call, asked = await it.asking(ROOT, GUS, written='{"command": "make"}')
    assert (asked.tool, asked.arguments) == ("bash", '{"command": "make"}')
    assert [one.id for one in asked.askers] == ["root", "gus"]
    assert (asked.until - it.clock.now()).total_seconds() == TIMEOUT_S
    (notice,) = it.shown
    assert (notice.to, notice.style) == (LOBBY, "notice")
    assert "Asked by `root` (admin), `gus` (guest)" in notice.body
    assert f"`!approve {asked.approval}`" in notice.body
    assert f"`!deny {asked.approval}`" in notice.body
    assert not it.ran
    assert notice.body.count("\n") == 2, (
        "three lines: who asks for what, whose words it rests on, until when"
    )
    answer = await it.say(f"!approve {asked.approval}")
    assert answer == "Approved: I run this call of `bash`."
    assert (await call).text == DONE
    assert it.ran == ["make"]
    assert await it.verdicts() == [("bash", "once", "here:root")]
    it.call(ROOT, GUS, written='{"command": "make"}')
    await it.asked(2)


async def test_what_an_admin_denies_is_not_done_nor_asked_again_in_the_turn(it: House) -> None:
    call, asked = await it.asking(ROOT, GUS)
    assert await it.say(f"!deny {asked.approval}") == "Denied: I do not run `bash`."
    result = await call
    assert (result.is_error, it.ran) == (True, [])
    assert result.text == (
        "Not done, because an admin was asked and denied this call of bash: do not try it "
        "again, but say what it would have been for."
    )
    assert (await it.call(ROOT, GUS)).text == result.text
    assert await it.verdicts() == [("bash", "denied", "here:root")]
    it.call(ROOT, GUS, turn="t2")
    await it.asked(2)


async def test_silence_is_no(it: House) -> None:
    call, asked = await it.asking(ROOT, GUS)
    await it.sleeping()
    it.clock.advance(TIMEOUT_S - 1)
    assert "`bash`" in await it.say("!approve")
    it.clock.advance(1)
    assert "no admin approved this call of bash within 1 min" in (await call).text
    assert await it.verdicts() == [("bash", "expired", "")]
    late = await it.say(f"!approve {asked.approval}")
    assert late == f"Too late: nobody answered `{asked.approval}` in time."
    assert not it.ran


@pytest.mark.parametrize("is_asked", [True, False])
async def test_a_call_that_is_cancelled_waits_for_nobody(it: House, is_asked: bool) -> None:
    """Also while it is being asked for."""
    call = it.call(ROOT, GUS)
    if is_asked:
        await it.asked()
    while not it.approvals._waiting:
        await asyncio.sleep(0)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await it.approvals.stop()
    (asked,) = await it.log("approval_asked")
    assert isinstance(asked, ApprovalRequested)
    assert await it.verdicts() == [("bash", "dropped", "")]
    assert await it.store.rows(UNDECIDED) == []
    late = await it.say(f"!approve {asked.approval}")
    assert late == f"Too late: nobody needs `{asked.approval}` any more."
    assert not it.ran


async def test_the_same_call_twice_in_a_turn_is_asked_for_once(it: House) -> None:
    first = it.call(ROOT, GUS, written='{"command":"ls"}')
    second = it.call(ROOT, GUS, written='{ "command" : "ls" }')
    (asked,) = await it.asked()
    third = it.call(ROOT, GUS, written='{"command":"ls"}')
    second.cancel()
    await it.say(f"!approve {asked.approval}")
    assert [(await one).text for one in (first, third)] == [DONE, DONE]
    assert len(await it.log("approval_asked")) == len(await it.log("approval_ended")) == 1


async def test_several_wait_at_once_and_each_has_its_own_verdict(it: House) -> None:
    calls = [
        it.call(ROOT, GUS, written=json.dumps({"command": str(number)})) for number in range(3)
    ]
    names = [asked.approval for asked in sorted(await it.asked(3), key=lambda one: one.arguments)]
    await it.say(f"!approve {names[2]}")
    await it.say(f"!deny {names[0]}")
    assert (await calls[2]).text == DONE
    assert "denied" in (await calls[0]).text
    assert not calls[1].done()
    await it.sleeping()
    it.clock.advance(TIMEOUT_S)
    assert "within 1 min" in (await calls[1]).text
    assert it.ran == ["2"]


async def test_too_many_are_refused(it: House) -> None:
    for number in range(MAX_PENDING):
        room = Address(channel=HERE, room=RoomId(f"r{number // MAX_PENDING_PER_CONVERSATION}"))
        it.call(ROOT, GUS, turn=f"t{number}", at=room)
    await it.asked(MAX_PENDING)
    for name in ("r0", "r9"):
        refused = await it.call(ROOT, GUS, turn="more", at=Address(channel=HERE, room=RoomId(name)))
        assert "too many other calls wait for an admin" in refused.text
    assert len(await it.log("tool_refused")) == 2
    denied = await it.say("!deny all", at=Address(channel=HERE, room=RoomId("r0")))
    assert denied.split("\n") == ["Denied: I do not run `bash`."] * MAX_PENDING_PER_CONVERSATION
    assert len(await it.store.rows(UNDECIDED)) == MAX_PENDING - MAX_PENDING_PER_CONVERSATION
    assert "Nothing waits" in await it.say("!deny all", at=Address(channel=HERE, room=RoomId("r0")))
    it.call(ROOT, GUS, turn="again", at=Address(channel=HERE, room=RoomId("r0")))
    await it.asked(MAX_PENDING + 1)


async def test_what_is_cut_off_while_all_is_denied_can_still_be_decided(it: House) -> None:
    for number in range(2):
        it.call(ROOT, GUS, turn=f"t{number}")
    first, second = await it.asked(2)
    steps = 0
    while True:
        denying = asyncio.create_task(it.approvals.handle_deny(given_by("admin"), "all"))
        steps += 10
        for _ in range(steps):
            await asyncio.sleep(0)
        is_cut = denying.cancel()
        await asyncio.wait([denying])
        if not is_cut:
            denying.result().settle(None)
            break
    for one in (first, second):
        assert await it.say(f"!deny {one.approval}") == "Denied: I do not run `bash`."


async def test_a_long_call_is_shown_whole_with_the_harm_in_its_middle(it: House) -> None:
    command = "echo hello; " * 60 + "rm -rf . ; " + "echo hello; " * 60
    call, asked = await it.asking(ROOT, GUS, written=json.dumps({"command": command}))
    assert f"`!show {asked.approval}`" in it.shown[0].body
    assert f"`!approve {asked.approval}`" not in it.shown[0].body
    shown = await it.say(f"!show {asked.approval}")
    assert "rm -rf ." in shown
    assert (
        "".join(re.findall("^`(.*)`$", shown.partition("\n")[2], re.MULTILINE))
        == asked.arguments
        == json.dumps({"command": command})
    )
    await it.say(f"!approve {asked.approval}")
    assert (await call).text == DONE
    assert it.ran == [command]


async def test_what_is_too_long_to_be_shown_is_refused_with_a_word_to_the_model(
    it: House,
) -> None:
    told = await it.call(ROOT, GUS, written=json.dumps({"command": "x" * 4_000}))
    assert "an admin can approve only what they are shown whole, at most 3000 bytes" in told.text
    assert told.text.endswith("Do it in smaller calls.")
    assert not it.shown
    assert len(await it.log("tool_refused")) == 1
    assert not await it.log("approval_asked")


async def test_what_was_not_shown_whole_cannot_be_approved(it: House) -> None:
    it.refuses = lambda part: "May `reverie`" in part.body
    told = await it.call(ROOT, GUS)
    assert "nobody waits for this call of bash any more" in told.text
    (asked,) = [
        fact for fact in await it.log("approval_asked") if isinstance(fact, ApprovalRequested)
    ]
    assert "any more" in await it.say(f"!approve {asked.approval}")
    assert it.ran == []


ALWAYS = ToolPermit(role="admin", approval="always")


async def test_where_nobody_could_ever_approve_it_is_refused_at_once(it: House) -> None:
    await it.say("!version", "mia", Address(channel=HERE, room=RoomId("mia")))
    direct = Address(channel=HERE, room=RoomId("mia"))
    await it.consoles[HERE].receive_message("hello", sender="mia")
    for at, askers, why in [
        (INNER, (), "nobody can be asked here"),
        (direct, (MIA,), "nobody who may approve it is here"),
    ]:
        permit = ToolPermit(role="member", approval="always")
        result = await it.call(*askers, at=at, permit=permit)
        assert why in result.text
        assert "Nothing was done" in result.text
    refused = [one for one in await it.log("tool_refused") if isinstance(one, ToolRefused)]
    assert [(one.tool, one.role) for one in refused] == [("bash", "member")] * 2
    assert not await it.log("approval_asked")


async def test_with_an_admin_alone_it_is_asked_there(it: House) -> None:
    direct = Address(channel=HERE, room=RoomId("root"))
    await it.consoles[HERE].receive_message("hello", sender="root")
    call, asked = await it.asking(ROOT, at=direct, permit=ALWAYS)
    await it.say(f"!approve {asked.approval}", at=direct)
    assert (await call).text == DONE


@story
async def test_a_platform_without_admins_has_nobody_to_ask(tmp_path: Path) -> None:
    async with house(tmp_path, access={"dm": "open", "roles": {"owner": ["here:olga"]}}) as it:
        result = await it.call(GUS, at=OFFICE, permit=ToolPermit(approval="always"))
        assert "nobody at there may approve it" in result.text
        it.call(asker("olga", "owner"), ROOT, permit=ToolPermit(role="owner"))
        await it.asked()


async def test_what_takes_an_owner_is_approved_by_an_owner(it: House) -> None:
    call, asked = await it.asking(asker("olga", "owner"), ROOT, permit=ToolPermit(role="owner"))
    assert (
        await it.say(f"!approve {asked.approval}", "rick")
        == "`bash` needs the role owner. Only somebody with that role can approve it."
    )
    assert not call.done()
    await it.say(f"!approve {asked.approval}", "olga")
    assert (await call).text == DONE


@story
async def test_an_approvals_room_is_asked_wherever_the_turn_is(tmp_path: Path) -> None:
    async with house(tmp_path, approvals={"room": OFFICE.conversation, "timeout": 30}) as it:
        inside, asked = await it.asking(
            at=INNER, permit=ToolPermit(role="member", approval="always")
        )
        assert asked.room == OFFICE.conversation
        assert (
            "May `reverie` use `bash` in `agent/reverie`? Nobody asked for it" in it.shown[-1].body
        )
        assert it.shown[-1].to == OFFICE
        assert "There is no request" in await it.say(f"!approve {asked.approval}", at=LOBBY)
        await it.say(f"!approve {asked.approval}", at=OFFICE)
        assert (await inside).text == DONE


async def test_who_asked_while_nobody_vouched_for_them_does_not_approve_it_themselves(
    it: House,
) -> None:
    call, asked = await it.asking(asker("root", "member"), asker("rick", "admin"))
    said = await it.say(f"!approve {asked.approval}")
    assert said == "You asked for this without the right to do it. Somebody else must approve it."
    assert not call.done()
    await it.say(f"!approve {asked.approval}", "rick")
    assert (await call).text == DONE


@story
async def test_somebody_elsewhere_with_the_id_of_who_asked_is_somebody_else(tmp_path: Path) -> None:
    async with house(tmp_path, approvals={"room": OFFICE.conversation}) as it:
        call, asked = await it.asking(asker("root", "member"), asker("rick", "admin"))
        await it.say(f"!approve {asked.approval}", at=OFFICE)
        assert (await call).text == DONE


async def test_who_asked_without_the_right_to_it_may_still_say_no(it: House) -> None:
    call, asked = await it.asking(asker("root", "member"), asker("rick", "admin"))
    assert "Denied" in await it.say(f"!deny {asked.approval}")
    assert (await call).is_error


@story
async def test_an_id_that_was_used_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def choice(alphabet: str) -> str:
        drawn.append(alphabet)
        return alphabet[0] if len(drawn) <= 4 * 8 else alphabet[len(drawn) % 7]

    monkeypatch.setattr(secrets, "choice", choice)
    async with house(tmp_path) as it:
        for number in range(3):
            it.call(ROOT, GUS, turn=f"t{number}")
        names = [one.approval for one in await it.asked(3)]
        assert len(set(names)) == 3
        assert len(await it.log("post")) == 3, "none is asked for twice"


async def test_what_is_decided_just_as_its_time_ends_is_what_the_log_says(it: House) -> None:
    """A word that is being written down when the time is over counts; one that could not be written
    does not."""
    call, asked = await it.asking(ROOT, GUS)
    await it.sleeping()
    change = await it.approvals.decide(given_by("admin"), asked.approval, approved=True)
    assert (
        "is deciding about it now"
        in (await it.approvals.decide(given_by("admin"), asked.approval, approved=False)).answer
    )
    it.clock.advance(TIMEOUT_S)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not call.done()
    change.settle(None)
    assert "within 1 min" in (await call).text
    assert await it.verdicts() == [("bash", "expired", "")]


async def test_a_word_that_was_written_though_nobody_was_told_so_counts(it: House) -> None:
    call, asked = await it.asking(ROOT, GUS)
    await it.sleeping()
    change = await it.approvals.decide(given_by("admin"), asked.approval, approved=True)
    (made,) = change.facts
    await it.store.append(
        [NewEntry(fact=made.fact, at=it.clock.now(), conversation=made.place, key=made.key)]
    )
    change.settle(None)
    it.clock.advance(TIMEOUT_S)
    assert (await call).text == DONE
    assert await it.verdicts() == [("bash", "once", "here:root")]


@story
async def test_a_crash_between_asking_and_answering_leaves_nobody_waiting(tmp_path: Path) -> None:
    """After each durable step: what was asked is over, it is asked once at most, and a word comes
    too late."""
    verdicts = set[str]()
    for cut in range(1, 9):
        folder, clock, steps = tmp_path / str(cut), ManualClock(), Steps([cut])
        folder.mkdir()
        await _cut(folder, clock, steps)
        async with house(folder, clock=clock) as it:
            assert await it.store.rows(UNDECIDED) == []
            for one in await it.log("approval_asked"):
                assert isinstance(one, ApprovalRequested)
                assert "Too late" in await it.say(f"!approve {one.approval}")
            ended = [
                one for one in await it.log("approval_ended") if isinstance(one, ApprovalEnded)
            ]
            assert len(ended) == len(await it.log("approval_asked"))
            verdicts |= {one.verdict for one in ended}
            posts = [one.post.text for one in await it.log("post") if isinstance(one, PostQueued)]
            assert sum("May `reverie`" in text for text in posts) <= 1
        assert await rebuild(folder / "reverie.db") == []
    assert verdicts == {"dropped", "once"}, "it was cut before the word was durable, and behind it"


async def _cut(folder: Path, clock: ManualClock, steps: Steps) -> None:
    store = await cutting(steps).open(folder / "reverie.db", clock)
    it = House(store, clock, folder)

    async def tell() -> None:
        await it.__aenter__()
        it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.say(f"!approve {asked.approval}")
        await asyncio.Event().wait()

    telling = asyncio.ensure_future(tell())
    await steps.cut.wait()
    telling.cancel()
    steps.dead.set()
    await it.kill()
    for one in it.approvals._waiting:
        one.task.cancel()
    await Store.close(store)


async def test_verdicts_are_counted_and_calls_that_wait(it: House) -> None:
    metrics = it.approvals.metrics
    assert isinstance(metrics, CollectorRegistry)
    answered, denied = it.call(ROOT, GUS), it.call(ROOT, GUS, tool="web_fetch", turn="t2")
    first, second = await it.asked(2)
    assert metrics.get_sample_value("reverie_tool_approvals_waiting") == 2
    await it.say(f"!approve {first.approval}")
    await it.say(f"!deny {second.approval}")
    await asyncio.gather(answered, denied)
    assert metrics.get_sample_value("reverie_tool_approvals_waiting") == 0
    for tool, verdict in (("bash", "once"), ("web_fetch", "denied")):
        counted = {"tool": tool, "verdict": verdict}
        assert metrics.get_sample_value("reverie_tool_approvals_total", counted) == 1
