"""Rooms are opened by an admin, whoever asked for them."""

from dataclasses import replace
from pathlib import Path

from gateway.access.policy import decide
from gateway.core.events import Address, DeliveryReport, EventId, PostKey, RoomId, ThreadId
from gateway.core.facts import CodeIssued, PostQueued, RoomAccessChanged
from gateway.store import NewEntry
from tests.kits.access import (
    ADMIN,
    DC,
    EVE,
    IRC,
    LOBBY,
    MASK,
    OWNER,
    POLICY,
    TG,
    Town,
    alone,
    code,
    somebody,
    story,
    town,
)

OFFICE = Address(channel=IRC, room=RoomId("#office"))
GROUP = Address(channel=TG, room=RoomId("-100"))


def heard(it: Town, at: Address) -> bool:
    return decide(it.policy, it.message(at.channel, somebody("account:zoe"), at)).allowed


@story
async def test_who_speaks_to_the_agent_in_another_room_is_told_how_it_is_opened(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        event = it.message(TG, EVE, GROUP)
        post = await it.hear(event)
        assert post is not None
        assert (post.to, post.reply_to, post.style) == (GROUP, event.id, "notice")
        assert "`Eve` asked for it" in post.text
        assert f"`/room approve {code(post)}`" in post.text
        assert await it.hear(it.message(TG, somebody("5"), GROUP)) is None
        assert await it.hear(it.message(TG, EVE, GROUP, kind="room")) is None
        assert not heard(it, GROUP)
        listed = (await it.ask(DC, ADMIN, "room list")).text
        assert "`telegram.main:666` (`Eve`) for `telegram.main/-100`, since" in listed
        assert code(post) not in listed
        answer = await it.ask(DC, ADMIN, "room approve", code=code(post))
        assert answer.text == "Open: `telegram.main/-100`. `telegram.main:666` (`Eve`) had asked for it."
        assert heard(it, GROUP)
        assert heard(it, replace(GROUP, thread=ThreadId("7")))
        assert [(one.post.to, one.post.text) for one in it.posted] == [(GROUP, "This room is open for me now.")]
        assert it.roster.approved_rooms(TG) == [GROUP]
        assert it.joined == [GROUP]
    async with town(tmp_path, clock=it.clock) as it:
        assert heard(it, GROUP)
        assert it.roster.approved_rooms(TG) == [GROUP]
        assert it.roster.approved_rooms(IRC) == []


@story
async def test_who_invites_where_we_are_not_is_told_alone(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        zoe = somebody("account:zoe", "zoe")
        post = await it.hear(it.invite(IRC, zoe, "#office"))
        assert post is not None
        assert (post.to, post.reply_to) == (alone(IRC, zoe), None)
        assert "`#office` is not open for me yet, so I do not come" in post.text
        assert f"`!room approve {code(post)}`" in post.text
        assert await it.hear(it.invite(IRC, MASK, "#office")) is None
        answer = await it.ask(TG, OWNER, "room approve", code=code(post))
        assert answer.text == "Open: `irc.libera/#office`. `irc.libera:account:zoe` had asked for it."
        assert it.joined == [OFFICE]
        (letter,) = it.posted
        assert (letter.post.to, letter.post.text) == (alone(IRC, zoe), "`irc.libera/#office` is open for me now.")


@story
async def test_an_invitation_into_a_room_where_we_are_is_answered_there_with_its_title(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        post = await it.hear(it.invite(TG, EVE, "-100", "Cats `and` dogs"))
        assert post is not None
        assert (post.to, post.reply_to) == (GROUP, None)
        (given,) = await it.facts("code_given")
        assert isinstance(given, CodeIssued)
        assert (given.about, given.person, given.room) == ("Cats `and` dogs", "telegram.main:666", GROUP)
        answer = await it.ask(TG, OWNER, "room approve", code=code(post))
        assert "`Cats \\u0060and\\u0060 dogs` (`telegram.main/-100`)" in answer.text
        listed = (await it.ask(TG, OWNER, "room list")).text
        assert "`Cats \\u0060and\\u0060 dogs` (`telegram.main/-100`), approved by `telegram.main:1`" in listed
        assert "`irc.libera/#lobby`, by the configuration" in listed


@story
async def test_an_admin_opens_the_room_where_they_say_it(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        asked = await it.hear(it.message(TG, EVE, GROUP))
        assert asked is not None
        answer = await it.ask(TG, ADMIN, "room approve", at=replace(GROUP, thread=ThreadId("4")))
        assert answer.ok
        assert heard(it, GROUP)
        assert not it.roster.pending_requests("room")
        assert not (await it.ask(TG, ADMIN, "room approve", code=code(asked))).ok
        again = await it.ask(TG, ADMIN, "room approve", at=GROUP)
        assert (again.ok, again.text) == (False, "This room is open for me already.")
        alone_ = await it.ask(TG, ADMIN, "room approve")
        assert (alone_.ok, alone_.text[:18]) == (False, "Say it in the room")
        unasked = replace(GROUP, room=RoomId("-7"))
        assert (await it.ask(TG, ADMIN, "room approve", at=unasked)).text == "Open: `telegram.main/-7`."


@story
async def test_a_code_of_a_room_lets_in_nobody_and_one_of_a_person_opens_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        room, person = await it.hear(it.message(TG, EVE, GROUP)), await it.hear(it.message(TG, EVE))
        assert room is not None
        assert person is not None
        assert not (await it.ask(TG, OWNER, "pair approve", code=code(room))).ok
        assert not (await it.ask(TG, OWNER, "room approve", code=code(person))).ok
        assert not await it.facts("role_given", "room_opened")


@story
async def test_a_room_that_is_closed_is_left_once_that_was_said_there(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.ask(TG, OWNER, "room approve", at=GROUP)
        event = it.command(TG, OWNER, "room revoke", GROUP)
        answer = await it.decided(event, "room revoke")
        assert answer.text == "Not approved any more: `telegram.main/-100`. I leave it, where I can by myself."
        assert answer.effect is not None
        asked = NewEntry(fact=event, at=it.clock.now(), conversation=GROUP.conversation)
        said = await it.hear(it.message(DC, EVE))
        assert said is not None
        post = replace(said, to=GROUP)
        queued = NewEntry(fact=PostQueued(post=replace(post, key=PostKey("k"))), at=it.clock.now(), cause=asked)
        await it.store.append([asked, *answer.effect.entries(asked), queued])
        assert not heard(it, GROUP)
        assert it.left == []
        told = DeliveryReport(
            id=EventId("d"), at=GROUP, post=PostKey("k"), state="failed", reason="", sent=it.clock.now()
        )
        await it.store.append([NewEntry(fact=told, at=it.clock.now())])
        assert it.left == [GROUP]
        assert it.roster.approved_rooms(TG) == []
        assert not (await it.ask(TG, OWNER, "room revoke", room="-100")).ok


@story
async def test_a_room_is_closed_from_elsewhere_by_its_id(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        for written in ("irc.libera/#office", "IRC.libera/#OFFICE"):
            post = await it.hear(it.invite(IRC, EVE, "#office"))
            it.clock.advance(3_600)
            post = post or await it.hear(it.invite(IRC, EVE, "#office"))
            post = await it.hear(it.invite(IRC, EVE, "#office")) or post
            assert post is not None
            assert (await it.ask(TG, OWNER, "room approve", code=code(post))).ok
            assert (await it.ask(TG, OWNER, "room revoke", room=written)).ok
        assert it.left == [OFFICE, OFFICE]
        missing = await it.ask(TG, OWNER, "room revoke", room="#lobby")
        assert missing.text == "`#lobby` was not approved. What the configuration opens is closed only there."
        assert not (await it.ask(TG, OWNER, "room revoke")).ok


@story
async def test_what_the_configuration_opens_is_not_left(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, open_rooms={})) as it:
        opened = RoomAccessChanged(room=LOBBY, open=True, by="x")
        await it.store.append([NewEntry(fact=opened, at=it.clock.now())])
    async with town(tmp_path, clock=it.clock) as it:
        answer = await it.ask(TG, OWNER, "room revoke", room=LOBBY.conversation)
        assert answer.text.endswith("The configuration opens it all the same.")
        assert it.left == []


@story
async def test_where_rooms_are_listed_only_nobody_is_told_anything(tmp_path: Path) -> None:
    async with town(tmp_path, replace(POLICY, room_policy="listed")) as it:
        assert await it.hear(it.message(TG, EVE, GROUP)) is None
        assert await it.hear(it.invite(IRC, EVE, "#office")) is None
