"""Intentions that wait for talk in a room: fired where they were made, by the line that they await.

One that waits for a time is a reminder of the agent to itself: `gateway.context.reminders` keeps
all of them. The line fires an `Alarm` in the place where the intention was made, in one transaction
with itself, so nothing is lost or fired twice. The inner conversation sees rooms in its digest: for
one of its intentions the line becomes a normal notification.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gateway.access.policy import list_open_rooms
from gateway.context.reminders import to_row
from gateway.core.clock import Clock
from gateway.core.events import Address, Alarm, ConversationId, EventId, Message, room_of
from gateway.core.facts import (
    NORMAL,
    Judgement,
    ReminderEnded,
    ReminderSet,
    dedup_key,
    inner_conversation,
    is_inner,
)
from gateway.core.identity import AccessPolicy, role_of
from gateway.core.labels import readers_of
from gateway.store import LogEntry, NewEntry, PendingReminder, Store, StoreReader
from gateway.stream.internal import InternalIntake
from gateway.stream.routing import Bindings, PrivacyCache

REST_S: Final = 300.0
"""Time before the same intention is fired again."""
MAX_UNREAD: Final = 50
"""Unread entries of a place that are searched for an alarm of the same intention."""


def awaits(one: PendingReminder, line: Message) -> bool:
    """Return whether an intention waits for this line of a room."""
    is_meant = bool(one.on) and one.on in (line.at.conversation, room_of(line.at.conversation))
    return is_meant and one.word.casefold() in line.text.casefold()


async def has_open_work(reader: StoreReader, agent: str, place: ConversationId) -> bool:
    """Return whether the agent has begun something there that has neither a time nor an event to
    wait for. Raises StoreError.
    """
    where = ConversationId("") if is_inner(place) else place
    return any(
        one.agent == agent and one.intended and not (one.schedule or one.on)
        for one in await reader.pending_reminders(where)
    )


class IntentionWatch:
    """Open intentions that wait for talk. Call `load` before the first line."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        bindings: Bindings,
        places: PrivacyCache,
        access_policy: AccessPolicy,
        internal: InternalIntake,
    ) -> None:
        self._store, self._clock = store, clock
        self._bindings, self._places = bindings, places
        self._access_policy, self._internal = access_policy, internal
        self._open = dict[str, PendingReminder]()
        self._fired = dict[str, datetime]()
        """When each was fired last by this process."""
        store.subscribe(self._on_appended, ReminderSet, ReminderEnded)

    async def load(self) -> None:
        """Read the open ones. Raises StoreError."""
        self._add(await self._store.pending_reminders())

    def _add(self, rows: Iterable[PendingReminder]) -> None:
        self._open |= {one.id: one for one in rows if one.on}

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ReminderSet):
                self._add([to_row(entry.fact)])
            elif isinstance(entry.fact, ReminderEnded):
                self._open.pop(entry.fact.reminder, None)
                self._fired.pop(entry.fact.reminder, None)

    async def find_rooms(self, written: str, agent: str, at: Address) -> list[Address]:
        """Return the rooms of that title or address that the agent may watch from there."""
        known, places = [at, *list_open_rooms(self._access_policy)], self._places
        return [
            one
            for one in places.titles.find_places(written, known)
            if (one in known or await places.is_direct(one.conversation) is not None)
            and await self._may_watch(agent, at.conversation, one)
        ]

    async def _may_watch(self, agent: str, place: ConversationId, room: Address) -> bool:
        """Return whether the agent hears that room, and everybody in the place may read it. By
        itself it may watch the rooms of its digests.
        """
        bound, where = self._bindings.find(room), room.conversation
        is_heard = bound.agent == agent and bound.listen in ("ambient", "all")
        if not is_heard or await self._places.is_direct(where):
            return False
        if is_inner(place):
            return not await self._places.is_private(where)
        newest = await self._places.newest_message(place)
        is_owner = (
            newest is not None
            and newest.kind == "direct"
            and newest.sender.verified
            and role_of(self._access_policy, newest.at, newest.sender) == "owner"
        )
        visibility = await self._places.visibility(place, everything=is_owner)
        return visibility.can_see(await self._places.scope(where))

    async def judge(
        self, line: Message, judged: Judgement, entry: NewEntry
    ) -> tuple[Judgement, list[NewEntry]]:
        """Return the judgement of a line that was judged so, and the alarms that it causes. `entry`
        is the line's. Raises StoreError.
        """
        alarms = list[NewEntry]()
        if line.kind != "room" or line.history or judged.fate not in ("context", "due"):
            return judged, alarms
        for one in [*self._open.values()]:
            if not awaits(one, line) or not await self._is_due(one, line.at):
                continue
            self._fired[one.id] = self._clock.now()
            if one.conversation is not None:
                alarms += await self._build_alarm(one, one.conversation, line, entry)
            elif judged.urgency < NORMAL:
                rule = f"intention {one.id}"
                judged = replace(judged, urgency=NORMAL, fate="due", rule=rule)
        return judged, alarms

    async def _is_due(self, one: PendingReminder, room: Address) -> bool:
        fired, now, place = self._fired.get(one.id), self._clock.now(), one.conversation
        if now >= one.due or (fired is not None and (now - fired).total_seconds() < REST_S):
            return False
        unread = (
            (await self._store.unread_entries(place, most=MAX_UNREAD)).messages
            if place is not None
            else ()
        )
        waits = any(isinstance(e.fact, Alarm) and e.fact.reminder == one.id for e in unread)
        return not waits and await self._may_watch(
            one.agent, place or inner_conversation(one.agent), room
        )

    async def _build_alarm(
        self, one: PendingReminder, place: ConversationId, line: Message, cause: NewEntry
    ) -> list[NewEntry]:
        now, room, titles = self._clock.now(), line.at.conversation, self._places.titles
        await titles.load([room])
        alarm = Alarm(
            id=EventId(f"{one.id}:{dedup_key(line)}"),  # the same where the line is reported again
            text=one.text,
            sent=now,
            at=Address.parse(place),
            agent=one.agent,
            reminder=one.id,
            asked_by=one.asked_by,
            next=one.due,
            intended=True,
            source=titles.trusted_label(room),
            readers=readers_of(await self._places.scope(room)),
        )
        fired = NewEntry(fact=alarm, at=now, conversation=place, key=dedup_key(alarm), cause=cause)
        judged = self._internal.judge(alarm)
        return [fired, NewEntry(fact=judged, at=now, conversation=place, cause=fired)]
