"""Clocks that are passed in, so that tests control the time, and ids that are unique without
coordination.
"""

import asyncio
import heapq
import itertools
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_ULID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ULID_CHARS = 26
_ULID_SHIFTS: Final = range(125, -1, -5)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class Clock(Protocol):
    """Source of time for code that does IO. Deciding code gets times as arguments instead."""

    def now(self) -> datetime:
        """Wall clock, aware, UTC. May jump."""

    def monotonic(self) -> float:
        """Seconds; never goes back. Comparable only within one process."""

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds; at once (after one loop step) for zero or less."""


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s))


class ManualClock:
    """A clock that stands still until `advance`. Part of the product because simulations use it
    too.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + delay_s, next(self._order), woken))
        await woken

    def correct(self, by_s: float) -> None:
        """Change the wall clock, as an administrator would; `monotonic` and all sleeps continue
        unchanged.
        """
        self._start += timedelta(seconds=by_s)

    def advance(self, delay_s: float) -> None:
        """Move forward, waking the sleepers that are due in order; each sees its own due time, as
        on a real clock.
        """
        end = self._elapsed_s + delay_s
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, woken = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, due)
            if not woken.done():
                woken.set_result(None)
        self._elapsed_s = end


def new_id(now: datetime) -> str:
    """A ULID (github.com/ulid/spec): 26 characters, sorts by time to the millisecond, 80 random
    bits.
    """
    value = ((now - _EPOCH) // _MILLISECOND << 80) | secrets.randbits(80)
    return "".join([_ULID_ALPHABET[(value >> shift) & 31] for shift in _ULID_SHIFTS])


def id_created_at(ulid: str) -> datetime | None:
    """Return the time at which `new_id` made this id, UTC, to the millisecond. None: it is not one
    of our ids.
    """
    if len(ulid) != _ULID_CHARS or not all(char in _ULID_ALPHABET for char in ulid):
        return None
    value = sum(
        _ULID_ALPHABET.index(char) << shift for char, shift in zip(ulid, _ULID_SHIFTS, strict=True)
    )
    try:
        return _EPOCH + (value >> 80) * _MILLISECOND
    except OverflowError:  # outside the range of datetime
        return None
