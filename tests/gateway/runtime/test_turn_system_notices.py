"""Turns that are told of what nobody said, on a real store."""

import asyncio
from dataclasses import replace
from pathlib import Path

from gateway.core.events import (
    Alarm,
    DeliveryReport,
    EventId,
    MessageId,
    Post,
    PostKey,
    ReactionChanged,
    Sender,
    SenderId,
)
from gateway.core.facts import LOW, NORMAL, PartSendEnded, PostQueued
from gateway.store import NewEntry, rebuild
from tests.kits.turns import ROOM, WHEN, Desk, at_desk

PLACE = ROOM.conversation
ALARM = Alarm(id=EventId("a"), text="water the beans", sent=WHEN, at=ROOM, agent="ana", asked_by="cat")
ANN = Sender(id=SenderId("ann"), name="ann")
REACTED = ReactionChanged(
    id=EventId("r"), at=ROOM, sender=ANN, message=MessageId("ours"), reaction="+", added=True, sent=WHEN
)


async def posted(desk: Desk) -> None:
    """The answer that a turn gave is shown by the platform."""
    (turn,) = await desk.store.entries(kinds=["turn_ended"])
    post = Post(key=PostKey("p"), to=ROOM, text="Dig first.")
    part = PartSendEnded(post=post.key, part=0, state="sent", reason="", ids=(MessageId("ours"),))
    queued = NewEntry(fact=PostQueued(post=post), at=WHEN, conversation=PLACE, key="post:p", cause=turn.seq)
    await desk.store.append([queued, NewEntry(fact=part, at=WHEN, conversation=PLACE)])


def test_a_reminder_makes_a_turn_in_its_place_that_nobody_asked_for(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.tell(ALARM, PLACE, NORMAL)
        await desk.take(autonomous=True)
        (ended,) = await desk.ended()
        assert (ended.cause, ended.senders, ended.outcome) == ("alarm", ("",), "replied")
        assert ended.heard == '[2026-11-21 12:00] (reminder that cat asked for: "water the beans")'
        (post,) = desk.posts
        assert post.post.reply_to is None
        assert await desk.unread() == []

    at_desk(tmp_path, story)


def test_a_reminder_beside_a_question_lends_nobody_a_voice(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.tell(ALARM, PLACE, NORMAL)
        await desk.say("ann", "hello")
        await desk.tell(replace(ALARM, id=EventId("b"), asked_by="ann (owner)"), PLACE, NORMAL)
        await desk.take()
        (ended,) = await desk.ended()
        assert (len(ended.covers), ended.senders) == (3, ("", "ann", ""))
        assert [[asker.id for asker in where.requesters] for where in desk.where] == [["ann"]]
        assert desk.posts[0].post.reply_to == "m1"

    at_desk(tmp_path, story)


def test_what_only_reports_costs_no_request_and_is_told_with_the_next_words(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "how?")
        await desk.take()
        await posted(desk)
        failed = DeliveryReport(id=EventId("p"), at=ROOM, post=PostKey("p"), state="uncertain", reason="cut", sent=WHEN)
        await desk.tell(REACTED, PLACE, LOW)
        await desk.tell(failed, PLACE, LOW)
        await desk.take(autonomous=True)
        assert len(desk.model.requests) == 1
        await desk.tell(replace(REACTED, id=EventId("r2"), reaction="-"), PLACE, LOW)
        await desk.say("ann", "thanks")
        await desk.take()
        _, reports, last = await desk.ended()
        assert (reports.outcome, reports.requests, len(reports.covers)) == ("silent", 0, 2)
        assert desk.told().splitlines() == [
            '[2026-11-21 12:00] (ann reacted with + to your message: "Dig first.")',
            (
                '[2026-11-21 12:00] (your message "Dig first." may or may not have been delivered '
                '(whoever waited for it may say "again" to see it once more; do not repeat it unasked): "cut")'
            ),
            '[2026-11-21 12:00] (ann reacted with - to your message: "Dig first.")',
            "[2026-11-21 12:00] ann (guest): thanks",
        ]
        assert last.senders == ("", "ann")

    at_desk(tmp_path, story)


def test_sixty_reminders_are_told_in_two_turns(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "how?")
        for number in range(60):
            await desk.tell(replace(ALARM, id=EventId(f"a{number}")), PLACE, NORMAL)
        await desk.take()
        (ended,) = await desk.ended()
        assert len(ended.covers) == 50, "the rest is for the next turn"
        assert len(await desk.unread()) == 11

    at_desk(tmp_path, story)
    assert asyncio.run(rebuild(tmp_path / "reverie.db")) == []
