"""Token buckets: so many at once, then so many a minute. Pure: times are handed in.

https://en.wikipedia.org/wiki/Token_bucket. All is counted in whole numbers (nanoseconds, millionths of one a minute),
so nothing drifts, however long and in however many steps a bucket fills.
"""

from typing import Final

from gateway.limits.most import Rate
from gateway.limits.recent import MAX_REMEMBERED, LruDict

_NANO: Final = 1_000_000_000
_MICRO: Final = 1_000_000
_TOKEN: Final = 60 * _NANO * _MICRO
"""One of what a bucket holds: in nanoseconds, at a millionth a minute."""


class _TokenBucket:
    """What is left at a moment."""

    __slots__ = ("at_ns", "full_ns", "level")

    def __init__(self, level: int, at_ns: int) -> None:
        self.level = level
        self.at_ns = at_ns
        self.full_ns = at_ns
        """When it was last known to be full."""


class TokenBuckets:
    """A bucket for each of those who are remembered. The others' are full."""

    def __init__(self, rate: Rate, most: int = MAX_REMEMBERED) -> None:
        self.rate = rate
        self._capacity = _capacity_of(rate)
        self._refill_rate = _refill_rate_of(rate)
        """Millionths a minute."""
        self._buckets = LruDict[str, _TokenBucket](most)

    def set_rate(self, rate: Rate) -> None:
        """Go by that from now on: what was taken stays taken, and comes back at the new pace."""
        more = _capacity_of(rate) - self._capacity
        for whose in self._buckets:
            bucket = self._buckets[whose]
            bucket.level = max(0, bucket.level + more)
        self.rate, self._capacity, self._refill_rate = rate, _capacity_of(rate), _refill_rate_of(rate)

    def has_token(self, whose: str, now_s: float) -> bool:
        """Whether one more may be taken at this monotonic time, which is not before any that was told earlier."""
        if not self.rate.is_limited or whose not in self._buckets:
            return True
        return self._refill(self._buckets[whose], now_s).level >= _TOKEN

    def take(self, whose: str, now_s: float) -> bool:
        """Take one if it is there; whether it was."""
        if not self.rate.is_limited:
            return True
        bucket = self._buckets.get(whose)
        bucket = _TokenBucket(self._capacity, _to_ns(now_s)) if bucket is None else self._refill(bucket, now_s)
        if bucket.level < _TOKEN:
            return False
        bucket.level -= _TOKEN
        self._buckets.put(whose, bucket)
        return True

    def give_back(self, whose: str, taken_s: float, now_s: float) -> None:
        """One that was taken then was not used. Never gives more than there would be if it had not been taken."""
        bucket = self._buckets.get(whose)
        if bucket is not None:
            self._refill(bucket, now_s)
            # While one was missing the bucket may have filled where else it would have been full already.
            gone = max(0, bucket.at_ns - _to_ns(taken_s)) * self._refill_rate
            bucket.level = min(self._capacity, bucket.level + max(0, _TOKEN - gone))

    def was_full_since(self, whose: str, since_s: float) -> bool:
        """Whether it was full at any moment after that one, as far as it was looked at since."""
        bucket = self._buckets.get(whose)
        return bucket is None or bucket.full_ns > _to_ns(since_s)

    def _refill(self, bucket: _TokenBucket, now_s: float) -> _TokenBucket:
        now_ns = max(bucket.at_ns, _to_ns(now_s))
        bucket.level += (now_ns - bucket.at_ns) * self._refill_rate
        bucket.at_ns = now_ns
        if bucket.level >= self._capacity:
            bucket.level, bucket.full_ns = self._capacity, now_ns
        return bucket


def _capacity_of(rate: Rate) -> int:
    return max(1, rate.burst) * _TOKEN


def _refill_rate_of(rate: Rate) -> int:
    return round(rate.per_minute * _MICRO)


def _to_ns(at_s: float) -> int:
    return round(at_s * _NANO)
