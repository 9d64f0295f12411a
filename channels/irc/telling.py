"""What is told of what was heard: each thing once, and in a room the old before the new. Pure: time is handed in."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from channels.irc.batches import History
from channels.irc.history import Gaps
from channels.irc.inbound import View, sent_at, to_notifications
from channels.irc.isupport import Isupport
from channels.irc.memory import Memory
from channels.irc.wire import Line
from gateway.events import Link, Message, Notification


class Put(Protocol):
    """Where it goes."""

    def __call__(self, notification: Notification | None, cursor: str | None = None) -> None:
        """None: only the cursor moves. Never waits."""


class Telling:
    """Of one connection."""

    def __init__(self, put: Put, memory: Memory, fresh_id: Callable[[], str], age_s: float) -> None:
        """What is older than `age_s` is not asked for."""
        self.put, self.memory, self.fresh_id, self.age_s = put, memory, fresh_id, age_s
        self.keeps = False
        """The server has a history, so the cursor is worth keeping."""
        self._gaps = Gaps()
        # Without a cursor there is no telling what is missing; a gap that was not filled yet stays one.
        self.memory.gap = self.memory.safe is not None

    def live(self, line: Line, view: View, now: datetime) -> None:
        """A line of this moment."""
        for notification in to_notifications(line, view, now, self.fresh_id):
            if isinstance(notification, Link) or not self._held(notification, view.isupport):
                self._tell(notification, now)
        if self._gaps.crowded:
            self._released(now)

    def _held(self, notification: Notification, isupport: Isupport) -> bool:
        # Membership must not wait: who is in a room decides who may be heard.
        if not self._gaps.open or not isinstance(notification, Message):
            return False
        direct = notification.kind == "direct"
        place = notification.sender.name if direct else notification.at.room
        return self._gaps.hold(isupport.fold(place), direct, notification)

    def _tell(self, notification: Notification, now: datetime) -> None:
        if isinstance(notification, Message) and not self.memory.told.add(f"{notification.at.room} {notification.id}"):
            return
        self.memory.saw(notification.sent, now)
        self.put(notification, self._cursor)

    @property
    def _cursor(self) -> str | None:
        return self.memory.cursor if self.keeps and not self.memory.gap else None

    def seen(self, line: Line, now: datetime) -> None:
        """A line that is not told, but whose time says where we begin."""
        self.memory.saw(sent_at(line, now), now)

    def expect(self, rooms: Iterable[str]) -> None:
        """We are about to enter these (folded) rooms: nothing new of them before what is missing."""
        if self.keeps and self.memory.gap and self.age_s > 0:
            self._gaps.expect(rooms)

    def fill(self, rooms: Sequence[str], now: datetime, isupport: Isupport) -> list[str]:
        """Ask for what was said in these rooms, and in direct talk, while we were away; the lines to send."""
        since = self.memory.since(now, self.age_s) if self.keeps and self.memory.gap else None
        asked = self._gaps.start(rooms, since, now, isupport) if since is not None else self._gaps.stop()
        self._released(now)
        return asked

    def page(self, page: History, view: View, now: datetime) -> list[str]:
        """An answer; what to ask next."""
        lines, asked = self._gaps.page(page, view.me, now)
        since, cursor = self.memory.since(now, self.age_s), self.memory.safe
        for line in lines:
            sent = sent_at(line, now)
            # A line without an id cannot be known again: only what is surely new is told.
            known = "msgid" not in line.tags and cursor is not None and sent <= cursor
            if since is not None and sent >= since and not known:
                for notification in to_notifications(line, view, now, self.fresh_id):
                    self._tell(notification, now)
        self._released(now)
        return asked

    def pong(self, token: str, now: datetime) -> list[str]:
        """The server has dealt with a question; what to ask next."""
        asked = self._gaps.pong(token, now)
        self._released(now)
        return asked

    def _released(self, now: datetime) -> None:
        for notification in self._gaps.release():
            self._tell(notification, now)
        if not self._gaps.open and self.memory.gap:
            self.memory.closed()
            if self._cursor is not None:
                self.put(None, self._cursor)

    def keep_up(self, now: datetime) -> None:
        """To be called now and then: nothing is held back for a server that does not answer."""
        if self._gaps.late(now):
            self.flush(now)

    def flush(self, now: datetime) -> None:
        """No answer will come any more: what is held back is told as it is, and the gap stays one."""
        self._gaps.stop()
        for notification in self._gaps.release():
            self._tell(notification, now)
