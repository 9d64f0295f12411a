"""Where an admin is asked for a word, and how long it holds."""

from pathlib import Path

from gateway.core.clock import ManualClock
from gateway.core.events import Address, RoomId
from gateway.core.facts import Seq, ToolRefused, ViewFolded
from gateway.core.permissions import ToolPermit
from gateway.store import NewEntry, rebuild
from tests.kits.approvals import DONE, GUS, HERE, INNER, LOBBY, MIA, OFFICE, ROOT, asker, house, story

ALWAYS = ToolPermit(role="admin", approval="always")


@story
async def test_what_is_approved_for_the_session_holds_until_it_begins_afresh(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        answer = await it.say(f"!approve {asked.approval} session")
        covered = "that rests on words of admins and above alone, and this same call beside words of guests and above"
        assert covered in it.shown[0].body
        assert f"for `bash` here each call of it there, whatever its arguments, {covered}, until" in answer
        assert (await call).text == DONE
        assert (await it.call(ROOT, GUS, turn="t2")).text == DONE
        assert (await it.call(ROOT, written='{"command": "other"}', turn="t2", permit=ALWAYS)).text == DONE
        it.call(ROOT, GUS, turn="t3", tool="write_file")
        await it.asked(2)
        it.call(ROOT, GUS, turn="t3", at=OFFICE)
        await it.asked(3)
        assert await it.store.approvals() == []
        fold = ViewFolded(start=Seq(99), reason="root asked for a fresh view", kinds=("new",))
        await it.store.append([NewEntry(fact=fold, at=it.clock.now(), conversation=LOBBY.conversation)])
        it.call(ROOT, GUS, turn="t4")
        await it.asked(4)


@story
async def test_what_was_approved_for_one_call_covers_no_other_beside_weaker_words(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS, written='{"command": "ls"}')
        (asked,) = await it.asked()
        await it.say(f"!approve {asked.approval} always")
        assert (await call).text == DONE
        for count, (askers, foreign) in enumerate((((ROOT, GUS), ""), ((ROOT,), "web_fetch")), 2):
            it.call(*askers, written='{"command": "rm -rf ."}', turn=f"t{count}", foreign=foreign, permit=ALWAYS)
            await it.asked(count)
        assert it.ran == ["ls"]


@story
async def test_a_fold_takes_nothing_back(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.say(f"!approve {asked.approval} session")
        await call
        fold = ViewFolded(start=Seq(9), reason="size", kinds=("trim",))
        await it.store.append([NewEntry(fact=fold, at=it.clock.now(), conversation=LOBBY.conversation)])
        assert (await it.call(ROOT, GUS, turn="t2")).text == DONE


@story
async def test_who_asks_for_a_fresh_view_takes_back_also_where_nothing_was_in_view(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.say(f"!approve {asked.approval} session")
        await call
        assert "fresh already" in await it.say("!new")
        it.call(ROOT, GUS, turn="t2")
        await it.asked(2)


@story
async def test_what_is_approved_for_good_outlives_the_process_until_it_is_taken_back(tmp_path: Path) -> None:
    clock = ManualClock()
    async with house(tmp_path, clock=clock) as it:
        call = it.call(ROOT, GUS, written='{"command": "rm"}')
        (asked,) = await it.asked()
        assert "for good" in await it.say(f"!approve {asked.approval} always")
        assert (await call).text == DONE
    async with house(tmp_path, clock=clock) as it:
        assert (await it.call(ROOT, GUS, turn="t2", written='{"command": "rm"}')).text == DONE
        assert it.ran == ["rm"]
        assert await it.say("!revoke bash") == "Approved no more: `bash` in `here/lobby`."
        it.call(ROOT, GUS, turn="t3")
        await it.asked()
        assert "is not approved here for longer" in await it.say("!revoke bash")
    assert await rebuild(tmp_path / "reverie.db") == [], "every table is what the log says"


@story
async def test_what_waits_for_the_same_tool_is_let_go_with_it(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        first, second = it.call(ROOT, GUS), it.call(ROOT, GUS, turn="t2")
        other = it.call(ROOT, GUS, tool="write_file")
        asked, *_ = await it.asked(3)
        await it.say(f"!approve {asked.approval} always")
        assert [(await one).text for one in (first, second)] == [DONE, DONE]
        assert await it.verdicts() == [("bash", "always", "here:root"), ("bash", "once", "here:root")]
        assert not other.done()


@story
async def test_where_nobody_could_ever_approve_it_is_refused_at_once(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
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


@story
async def test_with_an_admin_alone_it_is_asked_there(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        direct = Address(channel=HERE, room=RoomId("root"))
        await it.consoles[HERE].receive_message("hello", sender="root")
        call = it.call(ROOT, at=direct, permit=ALWAYS)
        (asked,) = await it.asked()
        await it.say(f"!approve {asked.approval}", at=direct)
        assert (await call).text == DONE


@story
async def test_a_platform_without_admins_has_nobody_to_ask(tmp_path: Path) -> None:
    async with house(tmp_path, access={"dm": "open", "roles": {"owner": ["here:olga"]}}) as it:
        result = await it.call(GUS, at=OFFICE, permit=ToolPermit(approval="always"))
        assert "nobody at there may approve it" in result.text
        owners = ToolPermit(role="owner")
        it.call(asker("olga", "owner"), ROOT, permit=owners)
        await it.asked()


@story
async def test_what_takes_an_owner_is_approved_by_an_owner(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(asker("olga", "owner"), ROOT, permit=ToolPermit(role="owner"))
        (asked,) = await it.asked()
        assert await it.say(f"!approve {asked.approval}", "rick") == "`bash` is for the role owner: so is approving it."
        assert not call.done()
        await it.say(f"!approve {asked.approval}", "olga")
        assert (await call).text == DONE


@story
async def test_an_approvals_room_is_asked_wherever_the_turn_is(tmp_path: Path) -> None:
    async with house(tmp_path, approvals={"room": OFFICE.conversation, "timeout": 30}) as it:
        inside = it.call(at=INNER, permit=ToolPermit(role="member", approval="always"))
        (asked,) = await it.asked()
        assert asked.room == OFFICE.conversation
        assert "May `reverie` use `bash` in `agent/reverie`? Nobody asked for it" in it.shown[-1].body
        assert it.shown[-1].to == OFFICE
        assert "No approval" in await it.say(f"!approve {asked.approval}", at=LOBBY)
        answer = await it.say(f"!approve {asked.approval} always", at=OFFICE)
        assert "for `bash` in `agent/reverie` each call of it there, whatever its arguments, that rests" in answer
        assert (await inside).text == DONE
        assert await it.store.approvals() == [("reverie", "bash", INNER.conversation)]
        assert (await it.call(at=INNER, turn="t2", permit=ToolPermit(role="member", approval="always"))).text == DONE
        assert "`agent/reverie`, for good" in await it.say("!approve", at=OFFICE)
        assert await it.say("!revoke bash", at=OFFICE) == "Approved no more: `bash` in `agent/reverie`."
        assert await it.store.approvals() == []


@story
async def test_who_asked_while_nobody_vouched_for_them_does_not_approve_it_themselves(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(asker("root", "member"), asker("rick", "admin"))
        (asked,) = await it.asked()
        said = await it.say(f"!approve {asked.approval}")
        assert said == "You asked for it without the right to: somebody else has to approve it."
        assert not call.done()
        await it.say(f"!approve {asked.approval}", "rick")
        assert (await call).text == DONE


@story
async def test_who_asked_without_the_right_to_it_may_still_say_no(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(asker("root", "member"), asker("rick", "admin"))
        (asked,) = await it.asked()
        assert "Denied" in await it.say(f"!deny {asked.approval}")
        assert (await call).is_error
