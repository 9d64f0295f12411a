"""Whose rights a turn has that acts upon words told to turns before it, or upon a reminder."""

import asyncio
from dataclasses import replace
from pathlib import Path

from gateway.context.digest import Digest
from gateway.core.events import Alarm, EventId, Message, MessageId, Sender, SenderId
from gateway.core.facts import NORMAL, URGENT, ReminderSet, Seq
from gateway.core.trust import TrustLabel
from gateway.store import NewEntry
from tests.kits.scripted_turn import Say
from tests.kits.turns import INNER, ROOM, WHEN, Desk, at_desk

LOOK = Say(calls=(("c", "look_up"),))
ALARM = Alarm(
    id=EventId("r1:1"), text="Tidy up.", sent=WHEN, at=ROOM, agent="ana", reminder="r1", asked_by="gus", due=WHEN
)


def who(desk: Desk) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """Of the newest turn: who asks, who was overheard, and the roles of who had reminders set."""
    where = desk.where[-1]
    return [asker.id for asker in where.requesters], where.overheard_roles, where.reminder_roles


async def reminder(desk: Desk, role: str, *, by: str = "gus", alarm: Alarm = ALARM) -> None:
    set_ = ReminderSet(
        reminder="r1", agent="ana", at=ROOM, text="", by=SenderId(by), asked_by=by, schedule="", due=WHEN, role=role
    )
    await desk.store.append([NewEntry(fact=set_, at=WHEN, conversation=ROOM.conversation, key="reminded:r1")])
    await desk.tell(replace(alarm, asked_by=by), ROOM.conversation, NORMAL)


def test_what_goes_on_after_a_reminder_is_not_what_somebody_asked_for_before_it(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("olga", "hello")
        await desk.take()
        await reminder(desk, "guest")
        await desk.take(autonomous=True)
        assert who(desk) == ([], (), ("guest",))
        await desk.take(autonomous=True, continuing=True)
        assert who(desk) == ([], (), ("guest",))
        await desk.say("mia", "well", kind="room", urgency=NORMAL)
        await desk.take(autonomous=True)
        assert who(desk) == ([], ("guest",), ())
        await desk.take(autonomous=True, continuing=True)
        assert who(desk) == ([], ("guest",), ())

    at_desk(tmp_path, story, Say(text="Hi."))


def test_what_goes_on_is_whose_it_was_with_all_who_were_heard_since(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("gus", "somebody should tidy up", kind="room")
        await desk.say("olga", "hello")
        await desk.take()
        await desk.take(autonomous=True, continuing=True)
        assert who(desk) == (["olga"], ("guest",), ())
        await desk.say("mia", "and me?")
        await desk.take(autonomous=True, continuing=True)
        assert who(desk)[0] == ["olga", "mia"]
        await desk.take(autonomous=True, continuing=True)
        assert who(desk) == (["olga", "mia"], ("guest",), ())
        await desk.say("olga", "thanks")
        await desk.take()
        await desk.take(autonomous=True, continuing=True)
        assert who(desk) == (["olga"], (), ())

    at_desk(tmp_path, story, Say(text="Hi."))


def test_text_from_outside_stays_for_as_long_as_it_is_in_view(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        async def fetch() -> None:
            desk.where[-1].trust.foreign = "web_fetch"

        desk.drawer.meanwhile = fetch
        await desk.say("olga", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        assert ended.foreign == "web_fetch"
        await desk.take(autonomous=True, continuing=True)
        assert desk.where[-1].trust.foreign == "web_fetch"
        await desk.say("olga", "thanks")
        await desk.take()
        assert desk.where[-1].trust.foreign == "web_fetch"
        assert (await desk.ended())[-1].foreign == "web_fetch"

    at_desk(tmp_path, story, LOOK, Say(text="Hi."), Say(text="So."), Say(text="Yes."))


def test_who_was_interrupted_is_answered_with_their_own_rights(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("gus", "tidy up")
        turn = asyncio.ensure_future(desk.take())
        await desk.model.asked.wait()
        desk.lane.interrupt()
        assert (await turn).was_interrupted
        await desk.say("olga", "hello")
        await desk.take()
        assert who(desk) == (["gus", "olga"], (), ())
        await desk.say("olga", "thanks")
        await desk.take()
        assert who(desk) == (["olga"], (), ())

    at_desk(tmp_path, story, Say(waits=True), Say(text="Hi."))


def test_words_that_nobody_vouches_for_are_apart_from_those_of_the_same_id(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        for number, verified in enumerate((True, False, True)):
            sender = Sender(id=SenderId("olga"), name="olga", verified=verified)
            said = Message(id=MessageId(f"v{number}"), at=ROOM, sender=sender, text="hello", sent=WHEN, kind="mention")
            await desk.tell(said, ROOM.conversation, URGENT)
        await desk.take()
        assert [(asker.id, asker.verified) for asker in desk.where[-1].requesters] == [("olga", True), ("olga", False)]

    at_desk(tmp_path, story)


def test_who_speaks_to_the_agent_asks_also_where_its_turn_began_by_itself(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("mia", "well", kind="room", urgency=NORMAL)
        await desk.say("gus", "tidy up")
        await desk.take(autonomous=True)
        assert who(desk) == (["gus"], ("guest",), ())

    at_desk(tmp_path, story)


def test_a_reminder_has_the_rights_of_those_whose_idea_it_was(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await reminder(desk, "", by="")
        await desk.take(autonomous=True)
        assert who(desk) == ([], (), ())
        await desk.tell(replace(ALARM, id=EventId("r2:1"), reminder="r2"), ROOM.conversation, NORMAL)
        await desk.take(autonomous=True)
        assert who(desk) == ([], (), ("guest",))  # of an earlier version, or gone: anybody's

    at_desk(tmp_path, story)


def test_a_digest_tells_whose_words_it_holds(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        said = await desk.say("gus", "tidy up", kind="room", urgency=NORMAL)
        (seq,) = await desk.unread()
        desk.digest = Digest(text=said.text, covers=(Seq(seq),), senders=(SenderId("gus"),), label=TrustLabel("guest"))
        await desk.take(INNER, autonomous=True)
        assert who(desk) == ([], ("guest",), ())
        desk.digest = None
        await desk.take(INNER, autonomous=True, continuing=True)
        assert who(desk) == ([], ("guest",), ())

    at_desk(tmp_path, story)
