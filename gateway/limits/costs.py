"""What answers cost, by whose they are and by day. Pure."""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from gateway.limits.recent import MAX_REMEMBERED, LruDict

KEPT_DAYS: Final = 3
"""Kept at once: a clock that is set wrong for a moment loses no sums."""


class DailyCosts:
    """In billionths of a dollar, as `gateway.store.spending` counts."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._days = LruDict[str, dict[str, int]](KEPT_DAYS)

    def set_day(self, day: str, sums: Mapping[str, int]) -> None:
        """That day (YYYY-MM-DD, UTC) they have cost so much until now."""
        self._days.put(day, dict(sums))

    def add(self, day: str, whose: str, nano_usd: int) -> None:
        """One more. Where too many are known, those are forgotten who cost least."""
        sums = self._days.get(day, {})
        sums[whose] = sums.get(whose, 0) + nano_usd
        if len(sums) > 2 * self._most:
            sums = dict(heapq.nlargest(self._most, sums.items(), key=lambda one: one[1]))
        self._days.put(day, sums)

    def total(self, day: str, whose: Iterable[str]) -> int:
        """What these have cost together on that day."""
        sums = self._days.get(day)
        return 0 if sums is None else sum(sums.get(one, 0) for one in whose)
