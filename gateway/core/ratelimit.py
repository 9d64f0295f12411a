"""Rate limiters with keys: token buckets, counts within a sliding window, and their bounded dict.
Pure.

Times are arguments.

A token bucket (https://en.wikipedia.org/wiki/Token_bucket) allows a burst, then so many a minute.
It counts in whole numbers (nanoseconds, millionths of a token a minute), so nothing drifts, however
long and in however many steps it fills. A sliding window allows so many in any stretch of its
length, and no burst beyond them.
"""

from collections import OrderedDict, deque
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


_NANO: Final = 1_000_000_000
_MICRO: Final = 1_000_000
_TOKEN: Final = 60 * _NANO * _MICRO
"""One token, in units of a nanosecond at a millionth of a token a minute."""


class _TokenBucket:
    __slots__ = ("at_ns", "level")

    def __init__(self, level: int, at_ns: int) -> None:
        self.level = level
        self.at_ns = at_ns


class TokenBuckets:
    """Token buckets by key. A key that is not remembered has a full bucket.

    Times are monotonic seconds; one that is before that of an earlier call counts as the earlier
    one.
    """

    def __init__(self, rate: Rate, max_size: int = MAX_REMEMBERED) -> None:
        self._capacity = 0
        self._buckets = LruDict[str, _TokenBucket](max_size)
        self.set_rate(rate)

    def set_rate(self, rate: Rate) -> None:
        """Use this rate from now on: taken tokens stay taken, and come back at the new rate."""
        self.rate, before = rate, self._capacity
        self._capacity = max(1, rate.burst) * _TOKEN
        self._refill_rate = round(rate.per_minute * _MICRO)
        """Millionths of a token a minute."""
        self._is_limited = rate.burst > 0 or rate.per_minute > 0
        for bucket in self._buckets.values():
            bucket.level = max(0, bucket.level + self._capacity - before)

    def wait_s(self, key: str, now_s: float, tokens: int = 1) -> float:
        """Return the time until the bucket has so many tokens; 0: it has them. Infinite: it never
        will.
        """
        bucket = self._buckets.get(key)
        level = self._capacity if bucket is None else self._refill(bucket, now_s).level
        missing = tokens * _TOKEN - level
        if missing <= 0 or not self._is_limited:
            return 0.0
        return -(-missing // self._refill_rate) / _NANO if self._refill_rate else float("inf")

    def take(self, key: str, now_s: float) -> bool:
        """Take a token if there is one. Return whether it was taken."""
        is_free = self.wait_s(key, now_s) == 0
        if is_free:
            self.use(key, now_s)
        return is_free

    def use(self, key: str, now_s: float) -> None:
        """Take a token even if there is none: then it is owed, and later ones come later."""
        if self._is_limited:
            bucket = self._buckets.get(key) or _TokenBucket(self._capacity, round(now_s * _NANO))
            self._refill(bucket, now_s).level -= _TOKEN
            self._buckets.put(key, bucket)

    def give_back(self, key: str, taken_s: float, now_s: float) -> None:
        """Return an unused token that was taken at `taken_s`.

        The bucket never holds more than if it had not been taken.
        """
        bucket = self._buckets.get(key)
        if bucket is not None:
            self._refill(bucket, now_s)
            # Without this token the bucket may have filled in a time in which it would have been
            # full already.
            gone = max(0, bucket.at_ns - round(taken_s * _NANO)) * self._refill_rate
            bucket.level = min(self._capacity, bucket.level + max(0, _TOKEN - gone))

    def _refill(self, bucket: _TokenBucket, now_s: float) -> _TokenBucket:
        now_ns = max(bucket.at_ns, round(now_s * _NANO))
        bucket.level = min(
            self._capacity, bucket.level + (now_ns - bucket.at_ns) * self._refill_rate
        )
        bucket.at_ns = now_ns
        return bucket


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
