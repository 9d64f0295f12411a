"""Asking for what was said while we were away: https://ircv3.net/specs/extensions/chathistory. Pure.

One question at a time, oldest page first. Whatever arrives live in a place that is still being asked about is
held back until the place is done, so that its lines are told in order. A PING behind each question makes sure
that a server without an answer does not keep us waiting: it answers in order.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from channels.irc.batches import HistoryBatch
from channels.irc.isupport import Isupport
from channels.irc.wire import IrcLine, format_line
from gateway.events import Notification

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
