"""What an account remembers from one connection to the next. Pure.

The cursor outlives the process: the newest server time that was told in order, and the server's TLS policy (`sts`).
"""

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import Final

from channels.irc.sts import StsPolicy

_MAX_EMITTED: Final = 8_192
_MAX_OWN: Final = 2_048
_STS_SEPARATOR: Final = " sts="
NO_CURSOR: Final = "-"
"""Of a channel that has had one, and has nothing to remember any more."""
_OVERLAP: Final = timedelta(seconds=5)
"""Servers of one network do not agree on the second; what comes twice is known by its id."""


class _RecentIds:
    """A set that forgets its oldest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> bool:
        """False: it is there already."""
        if name in self._known:
            return False
        self._known[name] = None
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return True

    def __contains__(self, name: object) -> bool:
        return name in self._known


class IrcState:
    """Outlives connections."""

    def __init__(self, cursor: str | None) -> None:
        self.own_message_ids = _RecentIds(_MAX_OWN)
        """The server's names of our own messages."""
        self.emitted_ids = _RecentIds(_MAX_EMITTED)
        """Events that were handed over, by place and id."""
        self.barred_rooms: set[str] = set()
        """Folded rooms that we were thrown out of, or told to leave, and must not enter by ourselves."""
        told, _, policy = (cursor or "").partition(_STS_SEPARATOR)
        self._newest = self.complete_until = _parse_cursor_time(told)
        """`safe`: everything up to then is told."""
        self.has_gap = False
        """What was said while we were away is not all told yet."""
        self.sts_policy = StsPolicy(policy)

    @property
    def cursor(self) -> str | None:
        """How far everything is told, and the policy; None: neither is known."""
        told = "" if self.complete_until is None else self.complete_until.isoformat(timespec="milliseconds")
        return told + (_STS_SEPARATOR + self.sts_policy.serialized if self.sts_policy.serialized else "") or None

    def record_time(self, sent: datetime, now: datetime) -> None:
        """Something that the server sent then was handed over. A server whose clock is ahead is not believed."""
        sent = min(sent, now)
        self._newest = sent if self._newest is None else max(self._newest, sent)
        if not self.has_gap:
            self.complete_until = self._newest

    def close_gap(self) -> None:
        """Nothing is missing any more."""
        self.has_gap, self.complete_until = False, self._newest

    def missing_since(self, now: datetime, age_s: float) -> datetime | None:
        """From when on something may be missing; None: there is no telling, or it is not wanted."""
        if self.complete_until is None or age_s <= 0:
            return None
        return max(self.complete_until - _OVERLAP, now - timedelta(seconds=age_s))


def _parse_cursor_time(cursor: str | None) -> datetime | None:
    """A cursor that somebody else wrote is as good as none."""
    try:
        told = datetime.fromisoformat(cursor or "")
    except ValueError:
        return None
    return told.astimezone(UTC) if told.tzinfo else None
