"""Rate limiters with keys: token buckets, counts within a sliding window, and their bounded dict.
Pure.

Times are arguments.

A token bucket (https://en.wikipedia.org/wiki/Token_bucket) allows a burst, then so many a minute.
A sliding window allows so many in any stretch of its length, and no burst beyond them.
"""

from collections import OrderedDict, deque
from math import inf
from typing import Final, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MAX_REMEMBERED: Final = 10_000
"""Most people, rooms or notices remembered at once, where nothing else is said."""


class LruDict(OrderedDict[K, V]):
    """Dict of at most `max_size` entries: the entry that was written longest ago is dropped first.
    Write with `put`.
    """

    def __init__(self, max_size: int = MAX_REMEMBERED) -> None:
        super().__init__()
        self._max_size = max_size

    def put(self, key: K, value: V) -> None:
        """Store the value as the newest entry."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._max_size:
            self.popitem(last=False)


class Rate(NamedTuple):
    """Burst and steady rate of a token bucket."""

    burst: int
    """Tokens at once. 0 with a rate: one."""
    per_minute: float
    """Tokens a minute after the burst. 0 with a burst of 0: no limit."""

    def __str__(self) -> str:
        return f"{max(1, self.burst)} at once, then {self.per_minute:g} a minute"


_ROUNDING: Final = 1e-6
"""Part of a token that may be missing: a wait that was computed is over when it has passed."""


class TokenBuckets:
    """Token buckets by key. A key that is not remembered has a full bucket.

    Times are monotonic seconds; one that is before that of an earlier call counts as the earlier
    one.
    """

    def __init__(self, rate: Rate, max_size: int = MAX_REMEMBERED) -> None:
        self.rate = rate
        self._taken = LruDict[str, tuple[float, float]](max_size)
        """Tokens that a full bucket had more, and when that was so."""

    def set_rate(self, rate: Rate) -> None:
        """Use this rate from now on: taken tokens stay taken, and come back at the new rate."""
        self.rate = rate

    def _find_taken(self, key: str, now_s: float) -> tuple[float, float]:
        """Return the tokens that a full bucket has more, and the time that counts as now."""
        taken, at_s = self._taken.get(key, (0.0, now_s))
        now_s = max(at_s, now_s)
        return max(0.0, taken - (now_s - at_s) * self.rate.per_minute / 60), now_s

    def wait_s(self, key: str, now_s: float, tokens: int = 1) -> float:
        """Return the time until the bucket has so many tokens; 0: it has them. Infinite: it never
        will.
        """
        missing = self._find_taken(key, now_s)[0] + tokens - max(1, self.rate.burst)
        if missing <= _ROUNDING or not any(self.rate):
            return 0.0
        return missing * 60 / self.rate.per_minute if self.rate.per_minute else inf

    def take(self, key: str, now_s: float) -> bool:
        """Take a token if there is one. Return whether it was taken."""
        is_free = self.wait_s(key, now_s) == 0
        if is_free:
            self.use(key, now_s)
        return is_free

    def use(self, key: str, now_s: float) -> None:
        """Take a token even if there is none: then it is owed, and later ones come later."""
        if any(self.rate):
            taken, now_s = self._find_taken(key, now_s)
            self._taken.put(key, (taken + 1, now_s))

    def give_back(self, key: str, taken_s: float, now_s: float) -> None:
        """Return an unused token that was taken at `taken_s`.

        The bucket never holds more than if it had not been taken.
        """
        taken, now_s = self._find_taken(key, now_s)
        # Without this token the bucket may have filled in a time in which it would have been full
        # already.
        filled = (now_s - taken_s) * self.rate.per_minute / 60
        self._taken.put(key, (max(0.0, taken - max(0.0, 1 - filled)), now_s))


class SlidingWindows:
    """Times of the last `window_s` seconds by key."""

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_s = window_s
        self._times = LruDict[str, deque[float]]()

    def count(self, key: str, now_s: float) -> int:
        """Return how many there are at this monotonic time."""
        times = self._times.get(key, deque())
        while times and times[0] <= now_s - self._window_s:
            times.popleft()
        return len(times)

    def wait_s(self, key: str, now_s: float, most: int) -> float:
        """Return the time until there are fewer than `most`, which is at least 1; 0: there are."""
        count = self.count(key, now_s)
        return self._times[key][count - most] + self._window_s - now_s if count >= most else 0.0

    def add(self, key: str, now_s: float) -> None:
        """Count one more."""
        times = self._times.get(key, deque())
        times.append(now_s)
        self._times.put(key, times)

    def try_add(self, key: str, now_s: float, most: int) -> bool:
        """Count one more if there are fewer than `most`. Return whether it was counted."""
        is_free = self.count(key, now_s) < most
        if is_free:
            self.add(key, now_s)
        return is_free
