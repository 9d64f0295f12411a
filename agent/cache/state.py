"""Knowledge of a provider's cache: the prefixes in it (`CacheState`), and the gaps between requests
(`Cadence`), which decide for how long a prefix is cached (`Cadence.lifetimes`). Pure.

Gaps count from start to start of requests, as a cache's lifetimes do. Of each conversation, of the
part that all conversations of an agent share, and of all conversations together are kept: a
histogram of the gaps, and two sums of tokens, what a lifetime of an hour would have kept where 5
minutes would not, and what would have been written behind the first request for it. Newer gaps
weigh more, and the gaps of all conversations stand in for what is not known of one.

The content of a cache is derived from the requests that were sent. A provider stores what stands in
front of a breakpoint, as a segment behind the cached prefix before it, for the lifetime that was
paid for. A prefix can be read while its own segment and all in front of it live. Each use restarts
their lifetimes, at the start of the request, and lengthens none. If the documentation
(platform.claude.com/docs/en/build-with-claude/prompt-caching) does not say, the worse is assumed.
Times are passed in.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from math import inf
from typing import NamedTuple

from agent.cache.prices import Price
from gateway.core.events import CacheTtl, RequestUsage
from gateway.core.ratelimit import LruDict

LIFETIME_S: dict[CacheTtl, float] = {"5m": 300.0, "1h": 3_600.0}
"""A prefix is gone after so long without use: a gap of 300 s is one too many
(platform.claude.com/docs/en/build-with-claude/prompt-caching)."""

LENGTHS_S = (300.0, 600.0, 1_200.0, 2_400.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 57_600.0)
"""Limits of the lengths of gaps, the lifetimes among them."""
_SHORT, _HOUR = LENGTHS_S.index(LIFETIME_S["5m"]) + 1, LENGTHS_S.index(LIFETIME_S["1h"]) + 1
"""Number of the lengths that each lifetime survives."""

_OWN_BLOCKS = frozenset({"binding", "channel", "history"})
_DECAY = 0.99
"""Weight that an observation keeps when the next one comes. About the last hundred count."""
_PRESUMED_GAPS = (0.2, *[0.02] * len(LENGTHS_S))
"""Gaps assumed in each length, so that nothing that was never seen is impossible."""
_OVER_WEIGHT = 0.1
"""Weight, in gaps, of the end of the conversation. It hardly counts before a conversation is idle
for longer than ever."""
_PRESUMED_HOUR_GAPS = 0.4
"""Gaps between 5 minutes and an hour that are assumed for what begins with an hour."""
_PRESUMED_GAPS_AHEAD = 10
"""Gaps, as long as those of all conversations together, that are assumed to follow in each. Of the
values that were tried 8 learns later, and 15 gives an hour where talks do not last so long."""
_MIN_LONG_GAPS = 2.0
"""Least number of gaps of more than an hour before the end of a conversation may go uncached."""


class Lifetimes(NamedTuple):
    """How long each part of a prompt is cached."""

    shared: CacheTtl
    """Of what all conversations begin with."""
    binding: CacheTtl
    own: CacheTtl | None
    """Of the channel card and the history. None: they are not cached as long as they are cold."""


class Gaps(NamedTuple):
    """Observed requests of one prefix, newer ones weighing more."""

    last_s: float = 0.0
    """Time of the last request."""
    tokens: int = 0
    """Its size."""
    lengths: tuple[float, ...] = (0.0,) * len(_PRESUMED_GAPS)
    """Gaps by length: shorter than each of `LENGTHS_S`, and longer."""
    kept: float = 0.0
    """Tokens that an hour would have kept and 5 minutes would not."""
    written: float = 0.0
    """Tokens that would have been written for it, those of the first request not counted."""

    def with_request(self, at_s: float, tokens: int, before: "Gaps | None") -> "Gaps":
        """Return the observations with a request added. `before`: those of its conversation. None:
        it is its first.
        """
        lengths, kept, written = [weight * _DECAY for weight in self.lengths], 0, 0
        if before is not None:
            length, written = bisect_right(LENGTHS_S, max(0.0, at_s - before.last_s)), tokens
            lengths[length] += 1.0
            if length < _HOUR:
                written = max(0, tokens - before.tokens)
                kept = tokens - written if length >= _SHORT else 0
        return Gaps(
            at_s, tokens, tuple(lengths), self.kept * _DECAY + kept, self.written * _DECAY + written
        )

    def lasting(self, price: Price) -> CacheTtl:
        """Return the lifetime of a prefix that begins with an hour and keeps its size: 5 minutes
        once the gaps show that an hour does not pay.
        """
        kept = _PRESUMED_HOUR_GAPS + sum(self.lengths[_SHORT:_HOUR])
        return "1h" if is_hour_cheaper(kept, sum(self.lengths[_HOUR:]), price) else "5m"


_NO_GAPS = Gaps()


def is_hour_cheaper(kept: float, written: float, price: Price, margin: float = 0.0) -> bool:
    """Return whether a lifetime of an hour costs less than 5 minutes, by more than `margin` (plain
    tokens).

    `kept`: tokens that only an hour keeps, and that would have to be written again. `written`:
    tokens written for it.
    """
    saved = kept * (price.write_5m - price.read)
    return saved > written * (price.write_1h - price.write_5m) + margin


def return_probability(lengths: Sequence[float], idle_s: float, within_s: float) -> float:
    """Return how likely a request is within so many seconds, after so many idle seconds."""
    after, later = _weight_beyond(lengths, idle_s), _weight_beyond(lengths, idle_s + within_s)
    return 1.0 - later / after


def _weight_beyond(lengths: Sequence[float], idle_s: float) -> float:
    """Return the weight of longer gaps. Those of one length are spread evenly over it."""
    edges = (0.0, *LENGTHS_S, 2 * LENGTHS_S[-1])
    total = _OVER_WEIGHT
    for (low, high), weight in zip(pairwise(edges), lengths, strict=True):
        total += weight * min(1.0, max(0.0, (high - idle_s) / (high - low)))
    return total


def expected_requests(lengths: Sequence[float], lifetime: CacheTtl) -> float:
    """Return the expected number of requests before a longer gap than `lifetime`. The end of the
    conversation counts as one.
    """
    survived = _HOUR if lifetime == "1h" else _SHORT
    return sum(lengths[:survived]) / (sum(lengths[survived:]) + 1.0)


@dataclass(slots=True)
class Cadence:
    """Gaps between the requests of one agent.

    It has no clock: times are passed in, as seconds that a restart does not reset.
    """

    shared: Gaps | None = None
    """Of the prefix that all conversations share. None: there was no request."""
    pool: Gaps = _NO_GAPS
    """Gaps within each conversation, all together."""
    _by_conversation: LruDict[str, Gaps] = field(default_factory=LruDict)

    def observe_request(self, conversation: str, at_s: float, tokens: int) -> None:
        """Add a request. `tokens`: of its part that is not shared."""
        before = self._by_conversation.get(conversation)
        self._by_conversation.put(
            conversation, (before or _NO_GAPS).with_request(at_s, tokens, before)
        )
        self.pool = self.pool.with_request(at_s, tokens, before)
        self.shared = (self.shared or _NO_GAPS).with_request(at_s, 0, self.shared)

    def lifetimes(self, conversation: str, price: Price) -> Lifetimes:
        """Return the lifetimes that the gaps so far show to be cheapest.

        A conversation begins with an hour for the shared part and the binding. The rest has an hour
        where its own gaps, and the mean gap of all conversations as one more, show that to cost
        less: by as much as the conversation costs uncached, or at all if an hour pays in a
        conversation of its size whose next gaps are like those of all conversations.
        """
        gaps, pool = self._by_conversation.get(conversation, _NO_GAPS), self.pool
        count = max(1.0, sum(pool.lengths))
        kept = gaps.tokens * sum(pool.lengths[_SHORT:_HOUR]) / count
        written, once = pool.written / count, gaps.tokens / _PRESUMED_GAPS_AHEAD
        risk = 0 if is_hour_cheaper(kept, written + once, price) else gaps.tokens
        own: CacheTtl | None = "5m"
        short, long = sum(gaps.lengths[:_SHORT]), sum(gaps.lengths[_HOUR:])
        lost = sum(gaps.lengths[_SHORT:])
        if is_hour_cheaper(gaps.kept + kept, gaps.written + written + risk, price, risk):
            own = "1h"
        elif long >= _MIN_LONG_GAPS and short * (1.0 - price.read) < lost * (price.write_5m - 1.0):
            own = None  # hardly anything that was written was read
        shared = (self.shared or _NO_GAPS).lasting(price)
        return Lifetimes(shared, gaps.lasting(price), own)

    def lengths(self, conversation: str) -> list[float]:
        """Return the gaps expected of a conversation, by length. All those of the others weigh as
        much as one of its own.
        """
        own, pool = self._by_conversation.get(conversation, _NO_GAPS).lengths, self.pool.lengths
        share = 1.0 / max(1.0, sum(pool))
        weights = zip(own, pool, _PRESUMED_GAPS, strict=True)
        return [mine + share * all_ + presumed for mine, all_, presumed in weights]


def count_recorded_tokens(accounts: Sequence[RequestUsage]) -> int:
    """Return the tokens of a turn's last request as `Cadence.observe_request` takes them."""
    blocks = [block for account in accounts[-1:] for block in account.blocks]
    return sum([block.tokens for block in blocks if block.name in _OWN_BLOCKS])


Digest = bytes
"""Name of all bytes of a request up to a place."""

ROOT_DIGEST: Digest = b""
"""Digest of the empty prefix."""


def extend_digest(before: Digest, piece: bytes) -> Digest:
    """Return the digest of the bytes of `before` with `piece` behind them."""
    return blake2b(piece, digest_size=16, key=before).digest()


@dataclass(slots=True)
class _CacheSegment:
    behind: Digest | None
    """Prefix behind which it was written. None: it begins the request."""
    lifetime: CacheTtl
    expires_s: float


class CachedPrefix(NamedTuple):
    """A prefix of a request that is assumed to be cached."""

    segment: int
    """Index of its last segment in the request."""
    lifetime: CacheTtl
    """Lifetime of that segment."""
    expires_s: float = inf
    """Time at which it expires unless it is used before."""


class CacheState:
    """Assumed content of one cache, of one provider and one model: it keeps what is marked, or all
    prefixes of each request where the provider caches by itself.
    """

    def __init__(self, *, capacity: int = 8_192) -> None:
        """Start with an empty cache.

        `capacity`: limit of segments remembered, the last used ones.
        """
        self._capacity = capacity
        self._segments: dict[Digest, _CacheSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, path: Sequence[Digest], at_s: float) -> tuple[CachedPrefix, ...]:
        """Return the prefixes of a request that could be read at this time, shortest first."""
        ends: dict[Digest | None, float] = {None: inf}
        found: list[CachedPrefix] = []
        for index, digest in enumerate(path):
            segment = self._segments.get(digest)
            if segment is not None and at_s < segment.expires_s and segment.behind in ends:
                ends[digest] = until_s = min(segment.expires_s, ends[segment.behind])
                found.append(CachedPrefix(index, segment.lifetime, until_s))
        return tuple(found)

    def count_cached(self, path: Sequence[Digest], at_s: float) -> int:
        """Return the number of segments in the longest of the prefixes that `find` returns."""
        alive, count = set[Digest | None]((None,)), 0
        for index, digest in enumerate(path):
            segment = self._segments.get(digest)
            if segment is not None and at_s < segment.expires_s and segment.behind in alive:
                alive.add(digest)
                count = index + 1
        return count

    def record_request(
        self,
        path: Sequence[Digest],
        *,
        read: int,
        writes: Sequence[tuple[int, CacheTtl]],
        at_s: float,
    ) -> None:
        """Record a request that was sent at `at_s` and has begun to be answered.

        It read its first `read` segments and wrote up to each of `writes`. A request without an
        answer wrote nothing.
        """
        behind = path[read - 1] if read else None
        chain, place = list[tuple[Digest, _CacheSegment]](), behind
        while place is not None and (segment := self._segments.get(place)) is not None:
            chain.append((place, segment))
            place = segment.behind
        for used, segment in reversed(chain):
            del self._segments[used]  # used segments move to the end: the oldest stand in front
            self._segments[used] = segment
            segment.expires_s = max(segment.expires_s, at_s + LIFETIME_S[segment.lifetime])
        for index, lifetime in writes:
            digest, until_s = path[index], at_s + LIFETIME_S[lifetime]
            old = self._segments.pop(digest, None)
            if old is not None and old.expires_s > until_s:
                self._segments[digest] = old  # another request wrote it meanwhile, for longer
            else:
                self._segments[digest] = _CacheSegment(behind, lifetime, until_s)
            behind = digest
        if len(self._segments) > self._capacity:
            self._trim(at_s)

    def forget(self, path: Iterable[Digest]) -> None:
        """Remove prefixes that were found not to be cached."""
        for digest in path:
            self._segments.pop(digest, None)

    def _trim(self, at_s: float) -> None:
        """Remove expired segments, and the oldest beyond three quarters of the capacity.

        The front of a chain stands before its rear, so the cut may leave a rear without its front.
        `find` does not return it then: it counts as not cached, and is planned to be written again,
        until a request writes the front again.
        """
        alive = {
            digest: segment
            for digest, segment in self._segments.items()
            if at_s < segment.expires_s
        }
        excess = max(0, len(alive) - self._capacity * 3 // 4)
        self._segments = dict(list(alive.items())[excess:])
