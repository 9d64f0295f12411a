"""Missed messages, requested from the server's history, and the emitting of each event once and in
order.

https://ircv3.net/specs/extensions/chathistory. One request at a time, oldest page first. Live
messages of a place whose history is still being requested are held back until that is complete, so
that they are emitted in order. A PING behind each request detects a server without an answer: it
answers in order.
"""

import hashlib
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal

from channels.aio import BackpressureBuffer, RoomSignals, with_timeout
from channels.base import Emit
from channels.irc.connection import IrcConnection
from channels.irc.inbound import IrcEvent, IrcLineContext, sent_at, to_notifications
from channels.irc.outgoing import IrcOutgoing
from channels.irc.state import Batch, Changes
from channels.irc.wire import NO_TAGS, IrcLine, format_line, is_from_bip, is_from_bouncer
from channels.text import get_datetime
from gateway.core.clock import Clock, new_id
from gateway.core.events import (
    ConnectionChanged,
    Message,
    Notification,
)
from gateway.core.ratelimit import LruDict

_OVERLAP: Final = timedelta(seconds=5)
"""Clocks of one network differ by seconds; repeated messages are recognised by their id."""


class LastingState:
    """State of an account that outlives connections; its cursor outlives the process."""

    def __init__(self, cursor: str | None) -> None:
        self.own_message_ids = LruDict[str, None](2_048)
        self.emitted_ids = LruDict[str, None](8_192)
        """Emitted events, by place and id."""
        self.barred_rooms: dict[str, str] = {}
        """Folded rooms that we must not join by ourselves: because of what, if we were thrown out;
        empty if we were told to leave."""
        self.pace = 1.0
        """Share of the configured pace that is used: each kill for flooding halves it."""
        self.rights = RoomSignals()
        """Notified with a room, in lower case, when what we may do there may have changed."""
        self._newest = get_datetime({"cursor": cursor}, "cursor", needs_zone=True)
        """Time of the newest emitted event; None: unknown."""
        self.gap_from: datetime | None = None
        """Time after which some messages that we missed are not emitted yet. None: there are
        none."""

    @property
    def complete_until(self) -> datetime | None:
        """Time up to which all messages are emitted; None: unknown."""
        return self.gap_from or self._newest

    @property
    def cursor(self) -> str | None:
        until = self.complete_until
        return until.isoformat(timespec="milliseconds") if until is not None else None

    def record_time(self, sent: datetime, now: datetime) -> None:
        """Record that an event with this server time was emitted. A server clock that is ahead is
        not trusted.
        """
        sent = min(sent, now)
        self._newest = sent if self._newest is None else max(self._newest, sent)

    def missing_since(self, now: datetime, age_s: float) -> datetime | None:
        """Return the time from which messages may be missing; None: unknown."""
        until = self.complete_until
        return until and max(until - _OVERLAP, now - timedelta(seconds=age_s))


_PAGE_LINES: Final = 100
_MAX_PAGES: Final = 100
HISTORY_AGE_S: Final = 3600.0
_MAX_TARGETS: Final = 50
_MAX_HELD: Final = 1_000
DIRECT_PLACE: Final = "\0people"
"""Place of all direct messages, until the people with new messages are known."""
PING_PREFIX: Final = "history-"
HISTORY_CAPS: Final = frozenset({"batch", "draft/chathistory", "server-time"})


def _format_time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_LIVE_WINDOW: Final = timedelta(seconds=60)
"""Older messages from before the connection are not live: a bouncer plays them back."""
_MAX_SKEW: Final = timedelta(seconds=30)
"""Smaller clock errors do no harm."""
_ID_PREFIX: Final = "local-"
"""Prefix of the ids of messages that the server gives none."""


STUCK_TIMEOUT_S = 15.0
"""Seconds without progress after which reading resumes: a server would soon close a connection that
nobody reads."""
MAX_HELD = 8192
"""Limit of the queue while reading goes on although nothing is emitted."""


class IrcNotificationQueue(BackpressureBuffer[tuple[Notification | None, str | None]]):
    """Notifications to emit, each with the cursor that becomes durable with it.

    IRC sends nothing twice. So while nothing can be emitted (the log cannot be written) reading
    goes on, and past `MAX_HELD` the oldest items are dropped: room messages first, then messages
    addressed to us.
    """

    def __init__(self) -> None:
        super().__init__()
        self.connection: IrcConnection | None = None
        """The connection that is read. None: there is none."""
        self.dropped_count = 0

    def set_paused(self, paused: bool) -> None:
        transport = self.connection.transport if self.connection else None
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if paused else transport.resume_reading)()

    def put_notification(
        self, notification: Notification | None, cursor: str | None = None
    ) -> None:
        """Append a notification. Without one, the cursor becomes durable by itself."""
        self.put((notification, cursor))
        if len(self._items) > MAX_HELD:
            self._drop_oldest(MAX_HELD // 8)

    async def resume_when_stuck(self, clock: Clock) -> None:
        """Resume reading if nothing is taken for long. Ends only by cancellation."""
        while True:
            await self.wait_until_full()
            try:
                await with_timeout(clock, STUCK_TIMEOUT_S, self.wait_for_room())
            except TimeoutError:
                self._capacity = float("inf")  # until it is drained
                self._signal_room()

    def _drop_oldest(self, count: int) -> None:
        items = [item for item in self._items if not isinstance(item[0], ConnectionChanged)]
        items.sort(key=lambda item: isinstance(item[0], Message) and item[0].kind != "room")
        dropped = items[:count]  # the sort is stable: the oldest
        self.dropped_count += sum(isinstance(event, Message) for event, _ in dropped)
        identities = set(map(id, dropped))
        self.filter_pending(lambda item: id(item) not in identities)

    async def run(self, emit: Emit) -> None:
        """Emit in order, in batches. Ends only by cancellation or by an error of `emit`."""
        while True:
            items = await self.get_batch(256)
            batch = [notification for notification, _ in items if notification is not None]
            cursor = next(
                (position for _, position in reversed(items) if position is not None), None
            )
            if batch or cursor is not None:
                await emit(batch, cursor=cursor)


class IrcEmitter:
    """Emitter of one connection: each event once, and in a room old events before new ones. Places
    are folded.
    """

    def __init__(
        self,
        context: IrcLineContext,
        lasting: LastingState,
        inbox: IrcNotificationQueue,
        outgoing: IrcOutgoing,
        clock: Clock,
    ) -> None:
        self._context, self._lasting, self._inbox = context, lasting, inbox
        self._outgoing, self._clock = outgoing, clock
        self._isupport = context.state.isupport
        self.has_history = False
        """The server keeps a history, so the cursor is worth storing."""
        self._places: deque[str] = deque()
        """Places whose history is incomplete, the current one first."""
        self._since = ""
        """Reference to the time from which messages are missing; empty: not known yet."""
        self._pages = self._number = 0
        self._last = ""
        self._held: list[tuple[set[str], Message]] = []
        """Held messages, each with the places it waits for; any of them holds it."""
        self._skew = timedelta()
        """Time by which the server's clock is ahead of ours."""
        self._begun = clock.now()
        self._made_ids = map(f"{_ID_PREFIX}{new_id(self._begun)}-{{}}".format, itertools.count())
        self._id_counts = LruDict[str, int](8_192)
        """Number of equal messages without an id on this connection, by generated name."""
        # Without a cursor it is unknown what is missing; a gap that is not filled yet stays one.
        lasting.gap_from = lasting.complete_until

    def emit_line(self, told: Changes) -> None:
        """Emit the events of a live line.

        One that was said while we were connected is live however late it is read: this process may
        have been stopped, or the network slow.
        """
        now, line = self._clock.now(), told.line
        sent = sent_at(line, now)
        is_early = "time" in line.tags and sent - self._skew < self._begun - _LIVE_WINDOW
        is_old = is_early or is_from_bip(line)
        read_at = now if is_old else sent  # lines arrive in order, so people are as they were then
        fresh_id = partial(self._event_id, line, is_old=is_old)
        for notification in to_notifications(told, self._context, read_at, fresh_id):
            # Membership events must not wait: access depends on who is in a room.
            if not isinstance(notification, Message):
                if not (is_old and line.command == "INVITE"):
                    self._emit(notification, now)
            elif is_old:  # history, which addresses nobody
                kind: Literal["direct", "room"] = (
                    "direct" if notification.kind == "direct" else "room"
                )
                self._emit(replace(notification, kind=kind, history=True), now)
            elif not self._places or not self._hold(notification):
                self._emit(notification, now)
            elif len(self._held) > _MAX_HELD:
                self._emit_released(now)

    def _hold(self, message: Message) -> bool:
        """Hold the message until its place is complete; False: emit it now."""
        direct = message.kind == "direct"
        place = self._isupport.fold(message.sender.name if direct else message.at.room)
        waits = {place, DIRECT_PLACE} if direct else {place}
        if waits.isdisjoint(self._places):
            return False
        self._held.append((waits, message))
        return True

    def sync_clock(self, line: IrcLine) -> None:
        """Learn the clock difference from a line that the server surely sends at this moment."""
        if "time" in line.tags:
            now = self._clock.now()
            self._skew = sent_at(line, now) - now

    def _event_id(self, line: IrcLine, *, is_old: bool) -> str:
        """Return an id for a line without one: equal for every playback of it, and for no other
        line.

        Equal words at an equal time are two messages, unless they are played back.
        """
        if line.command != "PRIVMSG" or "time" not in line.tags:
            return next(self._made_ids)
        words = "\0".join((line.tags["time"], line.source, *line.params))
        name = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:26]
        count = 1 if is_old else self._id_counts.get(name, 0) + 1
        self._id_counts.put(name, count)
        return f"{_ID_PREFIX}{name}" + (f"-{count}" if count > 1 else "")

    def _emit(self, notification: IrcEvent, now: datetime) -> None:
        if isinstance(notification, Message):
            if (name := f"{notification.at.room} {notification.id}") in self._lasting.emitted_ids:
                return
            self._lasting.emitted_ids.put(name, None)
        self._lasting.record_time(notification.sent, now)
        if abs(self._skew) > _MAX_SKEW:
            # Readers compare it with our clock, and an event cannot be in the future.
            notification = replace(notification, sent=min(notification.sent - self._skew, now))
        is_complete = self.has_history and self._lasting.gap_from is None
        self._inbox.put_notification(notification, self._lasting.cursor if is_complete else None)

    def record_time(self, line: IrcLine) -> None:
        """Advance the cursor by a line that is not emitted."""
        now = self._clock.now()
        self._lasting.record_time(sent_at(line, now), now)

    def hold_rooms(self, rooms: Iterable[str]) -> None:
        """Hold back live messages of these rooms, which we are about to join, and direct ones,
        until the missed ones are emitted.
        """
        if self.has_history and self._lasting.gap_from is not None:
            self._places = deque([*dict.fromkeys(map(self._isupport.fold, rooms)), DIRECT_PLACE])

    def request_history(self, rooms: Sequence[str]) -> None:
        """Request the messages of these rooms, and direct messages, that we missed."""
        now = self._clock.now()
        is_missing = self.has_history and self._lasting.gap_from is not None
        since = self._lasting.missing_since(now, HISTORY_AGE_S) if is_missing else None
        self._places.clear()
        if since is not None:
            self._since = f"timestamp={_format_time(since)}"
            self.hold_rooms(rooms)
            self._request_first_page()
        self._emit_released(now)

    def emit_history(self, page: Batch) -> None:
        """Emit an answer of the history, and request the next one."""
        lists_people = page.kind == "draft/chathistory-targets"
        place = DIRECT_PLACE if lists_people else self._isupport.fold(page.target)
        if not self._places or self._places[0] != place:
            return
        if lists_people:
            self._add_people(page)
            self._request_next_place()
        else:
            self._emit_page(page.lines, place)
            before, self._last = self._last, self._reference(page.lines)
            self._pages += 1
            # The page limit ends a loop with a server that always has more.
            is_full = len(page.lines) >= self._page_lines and self._pages < _MAX_PAGES
            if is_full and self._last not in {"", before}:
                self._request_page(self._last)
            else:
                self._request_next_place()
        self._emit_released(self._clock.now())

    def _emit_page(self, lines: Iterable[IrcLine], place: str) -> None:
        now = self._clock.now()
        since = self._lasting.missing_since(now, HISTORY_AGE_S)
        cursor = self._lasting.complete_until
        for line in lines:
            sent = sent_at(line, now)
            # A line without an id cannot be recognised again: only surely new ones are emitted.
            is_emitted = "msgid" not in line.tags and cursor is not None and sent <= cursor
            is_ours = since is not None and sent >= since and not is_emitted
            if is_ours and not is_from_bouncer(line):
                told = self._context.state.read_past(line, place)
                fresh_id = partial(self._event_id, line, is_old=True)
                for event in to_notifications(told, self._context, now, fresh_id, is_past=True):
                    self._emit(event, now)

    def handle_pong(self, token: str) -> None:
        """Go on if the request behind which this PING was sent is still open: it will not be
        answered.
        """
        if self._places and token == f"{PING_PREFIX}{self._number}":
            self._request_next_place()
        self._emit_released(self._clock.now())

    @property
    def _page_lines(self) -> int:
        return min(self._isupport.history_lines or _PAGE_LINES, _PAGE_LINES)

    def _request_page(self, reference: str) -> None:
        place = self._places[0]
        if place == DIRECT_PLACE:
            until = f"timestamp={_format_time(self._clock.now())}"
            params = ["TARGETS", reference, until, str(_MAX_TARGETS)]
        else:
            params = ["AFTER", place, reference, str(self._page_lines)]
        self._number += 1
        ping = format_line("PING", f"{PING_PREFIX}{self._number}")
        self._outgoing.queue_lines([format_line("CHATHISTORY", *params), ping])

    def _request_next_place(self) -> None:
        self._places.popleft()
        self._request_first_page()

    def _request_first_page(self) -> None:
        self._pages, self._last = 0, ""
        if self._places and self._since:
            self._request_page(self._since)

    def _add_people(self, page: Batch) -> None:
        for line in page.lines:
            target = self._isupport.fold(line.param(1))
            person = line.command == "CHATHISTORY" and target and not self._isupport.is_room(target)
            is_nick = person and " " not in target and target[0] not in ":*"
            if is_nick and target not in self._places:
                self._places.append(target)

    def _reference(self, lines: Sequence[IrcLine]) -> str:
        """Return a reference to the last line; empty: there is none."""
        tags = next((line.tags for line in reversed(lines) if "time" in line.tags), NO_TAGS)
        msgid, time = tags.get("msgid", ""), tags.get("time", "")
        if self._isupport.history_by_id and msgid and " " not in msgid:
            return f"msgid={msgid}"
        return f"timestamp={time}" if time and time.isascii() and " " not in time else ""

    def _emit_released(self, now: datetime) -> None:
        """Emit messages that need not be held any more, in order of arrival: past the limit all."""
        waiting = () if len(self._held) > _MAX_HELD else self._places
        free = [message for waits, message in self._held if waits.isdisjoint(waiting)]
        self._held = [item for item in self._held if not item[0].isdisjoint(waiting)]
        for message in free:
            self._emit(message, now)
        if not self._places and self._lasting.gap_from is not None:
            self._lasting.gap_from = None
            if self.has_history:
                self._inbox.put_notification(None, self._lasting.cursor)

    def flush(self) -> None:
        """Emit all held events, because no answer will come; the gap stays one."""
        for _, message in self._held:
            self._emit(message, self._clock.now())
        self._held = []
