"""Asking for what was said while we were away: https://ircv3.net/specs/extensions/chathistory. Pure.

One question at a time, oldest page first. Whatever arrives live in a place that is still being asked about is
held back until the place is done, so that its lines are told in order. A PING behind each question makes sure
that a server without an answer does not keep us waiting: it answers in order.

What is told of what was heard: each thing once, and in a room the old before the new. Pure: time is handed in.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from channels.irc.compose import LOCAL_ID_PREFIX
from channels.irc.inbound import IrcLineContext, sent_at, to_notifications
from channels.irc.people import IrcState
from channels.irc.wire import HistoryBatch, IrcLine, Isupport, format_line
from gateway.core.events import (
    ConnectionChanged,
    MembershipChanged,
    Message,
    MessageDeleted,
    Notification,
    ReactionChanged,
)

_PAGE_LINES: Final = 100
_MAX_PAGES: Final = 100
_MAX_TARGETS: Final = 50
_MAX_HELD: Final = 1_000
_ANSWER_TIMEOUT: Final = timedelta(seconds=120)
"""Our question may have had to wait for its turn, too."""
DIRECT_PLACE: Final = "\0people"
"""The place of all direct talk, while it is not known with whom there was any."""
PING_PREFIX: Final = "history-"


class HistoryRequests:
    """One connection's questions. Places are folded rooms and nicks."""

    def __init__(self) -> None:
        self._places: deque[str] = deque()
        """Still to be asked about, the first one now."""
        self._since: datetime | None = None
        self._asked_at: datetime | None = None
        self._pages = self._number = 0
        self._last = ""
        self._held: list[tuple[set[str], Notification]] = []
        """With the places that each waits for, any of them."""
        self._isupport = Isupport()
        self._known_places: set[str] = set()

    @property
    def is_overfull(self) -> bool:
        """More is held back than ever should be."""
        return len(self._held) > _MAX_HELD

    def is_timed_out(self, now: datetime) -> bool:
        """The server does not even answer the PING behind our question."""
        return self.is_pending and self._asked_at is not None and now - self._asked_at > _ANSWER_TIMEOUT

    @property
    def is_pending(self) -> bool:
        """Some place is not done."""
        return bool(self._places)

    def hold_rooms(self, rooms: Iterable[str]) -> None:
        """From now on hold back what is said in these and in direct talk."""
        self._places = deque([*rooms, DIRECT_PLACE])

    def start(self, rooms: Iterable[str], since: datetime, now: datetime, isupport: Isupport) -> list[str]:
        """Begin to ask about `rooms` and direct talk; the lines to send."""
        self._isupport, self._since = isupport, since
        self._places = deque([*dict.fromkeys(map(isupport.fold, rooms)), DIRECT_PLACE])
        self._known_places = set(self._places)
        return self._request_page(f"timestamp={_format_time(since)}", now)

    def stop(self) -> list[str]:
        """Ask about nothing."""
        self._places.clear()
        return []

    def hold(self, place: str, direct: bool, notification: Notification) -> bool:
        """Keep it until its place is done; False: tell it now."""
        waits = {place, DIRECT_PLACE} if direct else {place}
        if waits.isdisjoint(self._places):
            return False
        self._held.append((waits, notification))
        return True

    def release_ready(self) -> list[Notification]:
        """What need not be held back any more, in the order of arrival. Too much is never held."""
        open_ = () if self.is_overfull else self._places
        free = [notification for waits, notification in self._held if waits.isdisjoint(open_)]
        self._held = [item for item in self._held if not item[0].isdisjoint(open_)]
        return free

    def handle_page(self, page: HistoryBatch, me: str, now: datetime) -> tuple[list[IrcLine], list[str]]:
        """An answer: the lines to tell, and what to ask next."""
        place = self._places[0] if self._places else ""
        about = DIRECT_PLACE if page.kind == "draft/chathistory-targets" else self._isupport.fold(page.target)
        if not place or self._since is None or about != place:
            return [], []
        if about == DIRECT_PLACE:
            return [], self._add_people(page, now)
        lines = (
            [_with_target(said, me) for said in page.lines] if not self._isupport.is_room(place) else list(page.lines)
        )
        last = self._reference(page.lines)
        self._pages += 1
        # Without the page limit a server that answers for ever would be asked for ever.
        more = len(page.lines) >= self._limit and last not in {"", self._last} and self._pages < _MAX_PAGES
        self._last = last
        return lines, self._request_page(last, now) if more else self._request_next(now)

    def handle_pong(self, token: str, now: datetime) -> list[str]:
        """The server is behind the question: if it is still open, it will not be answered."""
        return self._request_next(now) if self._places and token == f"{PING_PREFIX}{self._number}" else []

    @property
    def _limit(self) -> int:
        return min(self._isupport.history_lines or _PAGE_LINES, _PAGE_LINES)

    def _request_page(self, reference: str, now: datetime) -> list[str]:
        place = self._places[0]
        if place == DIRECT_PLACE:
            asked = ["TARGETS", reference, f"timestamp={_format_time(now)}", str(_MAX_TARGETS)]
        else:
            asked = ["AFTER", place, reference, str(self._limit)]
        self._number += 1
        self._asked_at = now
        return [format_line("CHATHISTORY", *asked), format_line("PING", f"{PING_PREFIX}{self._number}")]

    def _request_next(self, now: datetime) -> list[str]:
        self._places.popleft()
        self._pages, self._last = 0, ""
        if not self._places or self._since is None:
            return []
        return self._request_page(f"timestamp={_format_time(self._since)}", now)

    def _add_people(self, page: HistoryBatch, now: datetime) -> list[str]:
        for said in page.lines:
            target = self._isupport.fold(said.param(1))
            person = said.command == "CHATHISTORY" and target and not self._isupport.is_room(target)
            if person and target not in self._known_places and " " not in target and target[0] not in ":*":
                self._known_places.add(target)
                self._places.append(target)
        return self._request_next(now)

    def _reference(self, lines: Iterable[IrcLine]) -> str:
        last = next((said for said in reversed(list(lines)) if "time" in said.tags), None)
        if last is None:
            return ""
        msgid = last.tags.get("msgid", "")
        if self._isupport.history_by_id and msgid and " " not in msgid:
            return f"msgid={msgid}"
        return f"timestamp={last.tags['time']}" if last.tags["time"].isascii() and " " not in last.tags["time"] else ""


def _with_target(said: IrcLine, me: str) -> IrcLine:
    """In a direct talk of the past we may have had another nick."""
    return replace(said, params=(me, *said.params[1:])) if said.command in {"PRIVMSG", "TAGMSG"} else said


def _format_time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_LIVE_WINDOW: Final = timedelta(seconds=60)
"""What is older was not said just now: a bouncer plays it back."""
_MAX_SKEW: Final = timedelta(seconds=30)
"""A clock that is wrong by less does no harm."""
_MAX_ID_COUNTS: Final = 8_192


class PutNotification(Protocol):
    """Where it goes."""

    def __call__(self, notification: Notification | None, cursor: str | None = None) -> None:
        """None: only the cursor moves. Never waits."""


class IrcEmitter:
    """Of one connection."""

    def __init__(self, put: PutNotification, memory: IrcState, fresh_id: Callable[[], str], age_s: float) -> None:
        """What is older than `age_s` is not asked for."""
        self.put, self.state, self.fresh_id, self.age_s = put, memory, fresh_id, age_s
        self.has_history = False
        """The server has a history, so the cursor is worth keeping."""
        self._requests = HistoryRequests()
        self._skew = timedelta()
        """How far the server's clock is ahead of ours."""
        self._server_clock: tuple[datetime, float] | None = None
        """What its clock showed, and when that was by a clock of ours that nobody sets."""
        self._id_counts: OrderedDict[str, int] = OrderedDict()
        """What was said without an id on this connection, and how often."""
        # Without a cursor there is no telling what is missing; a gap that was not filled yet stays one.
        self.state.has_gap = self.state.complete_until is not None

    def emit_line(self, line: IrcLine, view: IrcLineContext, now: datetime, now_s: float) -> None:
        """A line of this moment. `now_s`: the same as `now` on a clock that nobody sets."""
        if self._server_clock is not None:  # ours may have been set since
            sent, at_s = self._server_clock
            self._skew = sent + timedelta(seconds=now_s - at_s) - now
        old = "time" in line.tags and self._age(sent_at(line, now), now) > _LIVE_WINDOW
        for notification in to_notifications(line, view, now, partial(self._event_id, line, old=old)):
            if old and isinstance(notification, Message):
                self._emit(_as_history(notification), now)
            elif old and isinstance(notification, MembershipChanged) and notification.change == "invite":
                continue
            elif isinstance(notification, ConnectionChanged) or not self._hold(notification, view.isupport):
                self._emit(notification, now)
        if self._requests.is_overfull:
            self._emit_released(now)

    def sync_clock(self, line: IrcLine, now: datetime, now_s: float) -> None:
        """A line that the server surely says in this moment, so its time tells how its clock goes."""
        if "time" in line.tags:
            self._server_clock = sent_at(line, now), now_s

    def _age(self, sent: datetime, now: datetime) -> timedelta:
        return now - (sent - self._skew)

    def _event_id(self, line: IrcLine, *, old: bool) -> str:
        """For a line without one: the same each time that it is played back, and for nothing else.

        The same words in the same moment are two messages, unless they are old.
        """
        if line.command != "PRIVMSG" or "time" not in line.tags:
            return self.fresh_id()
        words = "\0".join((line.tags["time"], line.source.mask, *line.params))
        name = hashlib.sha256(words.encode("utf-8", "replace")).hexdigest()[:26]
        count = 1 if old else self._id_counts.get(name, 0) + 1
        self._id_counts[name] = count
        if len(self._id_counts) > _MAX_ID_COUNTS:
            self._id_counts.popitem(last=False)
        return f"{LOCAL_ID_PREFIX}{name}" + (f"-{count}" if count > 1 else "")

    def _hold(self, notification: Notification, isupport: Isupport) -> bool:
        # Membership must not wait: who is in a room decides who may be heard.
        if not self._requests.is_pending or not isinstance(notification, Message):
            return False
        direct = notification.kind == "direct"
        place = notification.sender.name if direct else notification.at.room
        return self._requests.hold(isupport.fold(place), direct, notification)

    def _emit(self, notification: Notification, now: datetime) -> None:
        if isinstance(notification, Message) and not self.state.emitted_ids.add(
            f"{notification.at.room} {notification.id}"
        ):
            return
        self.state.record_time(notification.sent, now)
        if (
            isinstance(notification, Message | ReactionChanged | MembershipChanged | MessageDeleted)
            and abs(self._skew) > _MAX_SKEW
        ):
            # Who reads it compares it with our clock. What a server says of the past was said in the past.
            notification = replace(notification, sent=min(notification.sent - self._skew, now))
        self.put(notification, self._cursor)

    @property
    def _cursor(self) -> str | None:
        return self.state.cursor if self.has_history and not self.state.has_gap else None

    def record_time(self, line: IrcLine, now: datetime) -> None:
        """A line that is not told, but whose time says where we begin."""
        self.state.record_time(sent_at(line, now), now)

    def hold_rooms(self, rooms: Iterable[str]) -> None:
        """We are about to enter these (folded) rooms: nothing new of them before what is missing."""
        if self.has_history and self.state.has_gap and self.age_s > 0:
            self._requests.hold_rooms(rooms)

    def request_history(self, rooms: Sequence[str], now: datetime, isupport: Isupport) -> list[str]:
        """Ask for what was said in these rooms, and in direct talk, while we were away; the lines to send."""
        since = self.state.missing_since(now, self.age_s) if self.has_history and self.state.has_gap else None
        asked = self._requests.start(rooms, since, now, isupport) if since is not None else self._requests.stop()
        self._emit_released(now)
        return asked

    def emit_history(self, page: HistoryBatch, view: IrcLineContext, now: datetime) -> list[str]:
        """An answer; what to ask next."""
        lines, asked = self._requests.handle_page(page, view.own_nick, now)
        since, cursor = self.state.missing_since(now, self.age_s), self.state.complete_until
        for line in lines:
            sent = sent_at(line, now)
            # A line without an id cannot be known again: only what is surely new is told.
            known = "msgid" not in line.tags and cursor is not None and sent <= cursor
            if since is not None and sent >= since and not known:
                for notification in to_notifications(line, view, now, partial(self._event_id, line, old=True)):
                    self._emit(notification, now)
        self._emit_released(now)
        return asked

    def handle_pong(self, token: str, now: datetime) -> list[str]:
        """The server has dealt with a question; what to ask next."""
        asked = self._requests.handle_pong(token, now)
        self._emit_released(now)
        return asked

    def _emit_released(self, now: datetime) -> None:
        for notification in self._requests.release_ready():
            self._emit(notification, now)
        if not self._requests.is_pending and self.state.has_gap:
            self.state.close_gap()
            if self._cursor is not None:
                self.put(None, self._cursor)

    def check_timeout(self, now: datetime) -> None:
        """To be called now and then: nothing is held back for a server that does not answer."""
        if self._requests.is_timed_out(now):
            self.flush(now)

    def flush(self, now: datetime) -> None:
        """No answer will come any more: what is held back is told as it is, and the gap stays one."""
        self._requests.stop()
        for notification in self._requests.release_ready():
            self._emit(notification, now)


def _as_history(message: Message) -> Message:
    """It addresses nobody any more."""
    return replace(message, kind="direct" if message.kind == "direct" else "room", history=True)
