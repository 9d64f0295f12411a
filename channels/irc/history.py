"""Missed messages, requested from the server's history, and the emitting of each event once and in
order.

https://ircv3.net/specs/extensions/chathistory. One request at a time, oldest page first. Live
messages of a place whose history is still being requested are held back until that is complete, so
that they are emitted in order. A PING behind each request detects a server without an answer: it
answers in order. `HistoryRequests` is pure: time is passed in.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from channels.irc.inbound import IrcLineContext, sent_at, to_notifications
from channels.irc.wire import Batch, IrcLine, Isupport, format_line
from gateway.core.clock import new_id
from gateway.core.events import (
    MembershipChanged,
    Message,
    MessageDeleted,
    Notification,
    ReactionChanged,
)
from gateway.core.ratelimit import LruDict

if TYPE_CHECKING:
    from channels.irc.session import IrcSession

_PAGE_LINES: Final = 100
_MAX_PAGES: Final = 100
HISTORY_AGE_S: Final = 3600.0
"""Age of the oldest messages that are requested."""
_MAX_TARGETS: Final = 50
_MAX_HELD: Final = 1_000
DIRECT_PLACE: Final = "\0people"
"""Place of all direct messages, until the people with new messages are known."""
PING_PREFIX: Final = "history-"


class HistoryRequests:
    """History requests of one connection, and the notifications that wait for the answers. Places
    are folded.
    """

    def __init__(self, isupport: Isupport) -> None:
        self._isupport = isupport
        self._places: deque[str] = deque()
        """Places to request, the current one first."""
        self._since: datetime | None = None
        self._pages = self._number = 0
        self._last = ""
        self._held: list[tuple[set[str], Notification]] = []
        """Held notifications, each with the places it waits for; any of them holds it."""
        self._known_places: set[str] = set()

    @property
    def is_overfull(self) -> bool:
        """True if more is held back than the limit."""
        return len(self._held) > _MAX_HELD

    @property
    def is_pending(self) -> bool:
        """True if the history of some place is incomplete."""
        return bool(self._places)

    def hold_rooms(self, rooms: Iterable[str]) -> None:
        """Hold back messages of these rooms and direct messages from now on."""
        self._places = deque([*dict.fromkeys(map(self._isupport.fold, rooms)), DIRECT_PLACE])

    def start(self, rooms: Iterable[str], since: datetime, now: datetime) -> list[str]:
        """Begin requests for `rooms` and direct messages; return the lines to send."""
        self._since = since
        self.hold_rooms(rooms)
        self._known_places = set(self._places)
        return self._request_first(now)

    def stop(self) -> None:
        """End all requests."""
        self._places.clear()

    def hold(self, message: Message) -> bool:
        """Hold the message until its place is complete; False: emit it now."""
        direct = message.kind == "direct"
        place = self._isupport.fold(message.sender.name if direct else message.at.room)
        waits = {place, DIRECT_PLACE} if direct else {place}
        if waits.isdisjoint(self._places):
            return False
        self._held.append((waits, message))
        return True

    def release_ready(self) -> list[Notification]:
        """Return notifications that need not be held any more, in order of arrival.

        Past the limit that is all of them.
        """
        waiting = () if self.is_overfull else self._places
        free = [notification for waits, notification in self._held if waits.isdisjoint(waiting)]
        self._held = [item for item in self._held if not item[0].isdisjoint(waiting)]
        return free

    def handle_page(self, page: Batch, me: str, now: datetime) -> tuple[list[IrcLine], list[str]]:
        """Process an answer; return the lines to emit, and the lines to send."""
        place = self._places[0] if self._places else ""
        lists_people = page.kind == "draft/chathistory-targets"
        if not place or place != (
            DIRECT_PLACE if lists_people else self._isupport.fold(page.target)
        ):
            return [], []
        if lists_people:
            self._add_people(page)
            return [], self._request_next(now)
        lines = list(page.lines)
        if not self._isupport.is_room(
            place
        ):  # direct messages of the past are addressed to our current nick
            lines = [
                replace(line, params=(me, *line.params[1:]))
                if line.command in {"PRIVMSG", "TAGMSG"}
                else line
                for line in lines
            ]
        last = self._reference(page.lines)
        self._pages += 1
        # The page limit ends a loop with a server that always has more.
        is_full = len(page.lines) >= self._limit
        has_more = is_full and last not in {"", self._last} and self._pages < _MAX_PAGES
        self._last = last
        return lines, self._request_page(last, now) if has_more else self._request_next(now)

    def handle_pong(self, token: str, now: datetime) -> list[str]:
        """Return the lines to send after a PONG: if its request is still open, it will not be
        answered.
        """
        return (
            self._request_next(now)
            if self._places and token == f"{PING_PREFIX}{self._number}"
            else []
        )

    @property
    def _limit(self) -> int:
        return min(self._isupport.history_lines or _PAGE_LINES, _PAGE_LINES)

    def _request_page(self, reference: str, now: datetime) -> list[str]:
        place = self._places[0]
        if place == DIRECT_PLACE:
            params = ["TARGETS", reference, f"timestamp={_format_time(now)}", str(_MAX_TARGETS)]
        else:
            params = ["AFTER", place, reference, str(self._limit)]
        self._number += 1
        return [
            format_line("CHATHISTORY", *params),
            format_line("PING", f"{PING_PREFIX}{self._number}"),
        ]

    def _request_next(self, now: datetime) -> list[str]:
        self._places.popleft()
        return self._request_first(now)

    def _request_first(self, now: datetime) -> list[str]:
        """Return the lines that request the first page of the current place."""
        self._pages, self._last = 0, ""
        reference = f"timestamp={_format_time(self._since)}" if self._since is not None else ""
        return self._request_page(reference, now) if self._places else []

    def _add_people(self, page: Batch) -> None:
        for line in page.lines:
            target = self._isupport.fold(line.param(1))
            person = line.command == "CHATHISTORY" and target and not self._isupport.is_room(target)
            if (
                person
                and target not in self._known_places
                and " " not in target
                and target[0] not in ":*"
            ):
                self._known_places.add(target)
                self._places.append(target)

    def _reference(self, lines: Iterable[IrcLine]) -> str:
        last = next((line for line in reversed(list(lines)) if "time" in line.tags), None)
        if last is None:
            return ""
        msgid = last.tags.get("msgid", "")
        if self._isupport.history_by_id and msgid and " " not in msgid:
            return f"msgid={msgid}"
        return (
            f"timestamp={last.tags['time']}"
            if last.tags["time"].isascii() and " " not in last.tags["time"]
            else ""
        )


def _format_time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_LIVE_WINDOW: Final = timedelta(seconds=60)
"""Older messages from before the connection are not live: a bouncer plays them back."""
_MAX_SKEW: Final = timedelta(seconds=30)
"""Smaller clock errors do no harm."""
_MAX_ID_COUNTS: Final = 8_192
_ID_PREFIX: Final = "local-"
"""Prefix of the ids of messages that the server gives none."""


class IrcEmitter:
    """Emitter of one connection: each event once, and in a room old events before new ones."""

    def __init__(self, session: "IrcSession") -> None:
        self._session, self._state = session, session.state
        self.has_history = False
        """The server keeps a history, so the cursor is worth storing."""
        self._requests = HistoryRequests(session.isupport)
        self._skew = timedelta()
        """Time by which the server's clock is ahead of ours."""
        self._begun = session.clock.now()
        """Time when the connection was begun."""
        self._id_counts = LruDict[str, int](_MAX_ID_COUNTS)
        """Number of equal messages without an id on this connection, by generated name."""
        self._is_given_up = False
        """The server did not answer, so the gap stays one."""
        # Without a cursor it is unknown what is missing; a gap that is not filled yet stays one.
        self._state.has_gap = self._state.complete_until is not None

    def emit_line(self, line: IrcLine, context: IrcLineContext) -> None:
        """Emit the events of a live line.

        One that was said while we were connected is live however late it is read: this process may
        have been stopped, or the network slow.
        """
        now = self._now()
        is_old = (
            "time" in line.tags and sent_at(line, now) - self._skew < self._begun - _LIVE_WINDOW
        )
        read_at = (
            now if is_old else sent_at(line, now)
        )  # lines arrive in order, so people are as they were then
        for notification in to_notifications(
            line, context, read_at, partial(self._event_id, line, is_old=is_old)
        ):
            if is_old and isinstance(notification, Message):  # history, which addresses nobody
                kind: Literal["direct", "room"] = (
                    "direct" if notification.kind == "direct" else "room"
                )
                self._emit(replace(notification, kind=kind, history=True))
            elif (
                is_old
                and isinstance(notification, MembershipChanged)
                and notification.change == "invite"
            ):
                continue
            # Membership events must not wait: access depends on who is in a room.
            elif not isinstance(notification, Message) or not self._requests.hold(notification):
                self._emit(notification)
        if self._requests.is_overfull:
            self._emit_released()

    def _now(self) -> datetime:
        return self._session.clock.now()

    def sync_clock(self, line: IrcLine) -> None:
        """Learn the clock difference from a line that the server surely sends at this moment."""
        if "time" in line.tags:
            self._skew = sent_at(line, self._now()) - self._now()

    def _event_id(self, line: IrcLine, *, is_old: bool) -> str:
        """Return an id for a line without one: equal for every playback of it, and for no other
        line.

        Equal words at an equal time are two messages, unless they are played back.
        """
        if line.command != "PRIVMSG" or "time" not in line.tags:
            return _ID_PREFIX + new_id(self._now())
        words = "\0".join((line.tags["time"], line.source, *line.params))
        name = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:26]
        count = 1 if is_old else self._id_counts.get(name, 0) + 1
        self._id_counts.put(name, count)
        return f"{_ID_PREFIX}{name}" + (f"-{count}" if count > 1 else "")

    def _emit(self, notification: Notification) -> None:
        now = self._now()
        if isinstance(notification, Message):
            if (name := f"{notification.at.room} {notification.id}") in self._state.emitted_ids:
                return
            self._state.emitted_ids.put(name, None)
        self._state.record_time(notification.sent, now)
        if (
            isinstance(notification, Message | ReactionChanged | MembershipChanged | MessageDeleted)
            and abs(self._skew) > _MAX_SKEW
        ):
            # Readers compare it with our clock, and an event cannot be in the future.
            notification = replace(notification, sent=min(notification.sent - self._skew, now))
        self._session.inbox.put_notification(notification, self._cursor)

    @property
    def _cursor(self) -> str | None:
        return self._state.cursor if self.has_history and not self._state.has_gap else None

    def record_time(self, line: IrcLine) -> None:
        """Advance the cursor by a line that is not emitted."""
        now = self._now()
        self._state.record_time(sent_at(line, now), now)

    def hold_rooms(self, rooms: Iterable[str]) -> None:
        """Hold back live messages of these rooms, which we are about to join, until the missed ones
        are emitted.
        """
        if self.has_history and self._state.has_gap:
            self._requests.hold_rooms(rooms)

    def request_history(self, rooms: Sequence[str]) -> None:
        """Request the messages of these rooms, and direct messages, that we missed."""
        now = self._now()
        since = (
            self._state.missing_since(now, HISTORY_AGE_S)
            if self.has_history and self._state.has_gap
            else None
        )
        if since is None:
            self._requests.stop()
        else:
            self._session.queue_lines(self._requests.start(rooms, since, now))
        self._emit_released()

    def emit_history(self, page: Batch, context: IrcLineContext) -> None:
        """Emit the events of an answer, and go on to the next request."""
        now = self._now()
        lines, requests = self._requests.handle_page(page, context.own_nick, now)
        since, cursor = self._state.missing_since(now, HISTORY_AGE_S), self._state.complete_until
        for line in lines:
            sent = sent_at(line, now)
            # A line without an id cannot be recognised again: only surely new ones are emitted.
            is_emitted = "msgid" not in line.tags and cursor is not None and sent <= cursor
            if since is not None and sent >= since and not is_emitted:
                fresh_id = partial(self._event_id, line, is_old=True)
                for notification in to_notifications(line, context, now, fresh_id):
                    self._emit(notification)
        self._emit_released()
        self._session.queue_lines(requests)

    def handle_pong(self, token: str) -> None:
        """Process the PONG behind a request."""
        self._session.queue_lines(self._requests.handle_pong(token, self._now()))
        self._emit_released()

    def _emit_released(self) -> None:
        for notification in self._requests.release_ready():
            self._emit(notification)
        if not self._requests.is_pending and self._state.has_gap and not self._is_given_up:
            self._state.close_gap()
            if self._cursor is not None:
                self._session.inbox.put_notification(None, self._cursor)

    def flush(self) -> None:
        """Emit all held events, because no answer will come; the gap stays one."""
        self._is_given_up = self._is_given_up or self._state.has_gap
        self._requests.stop()
        for notification in self._requests.release_ready():
            self._emit(notification)
