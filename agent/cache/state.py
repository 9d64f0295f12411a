"""Knowledge of a provider's cache: the prefixes in it (`CacheState`), and the gaps between requests
(`Cadence`). Pure.

Gaps count from start to start of requests, as a cache's lifetimes do, and matter only by the
lifetimes that survive them: up to 5 minutes, up to an hour, longer. Conversations come in bursts
with silences between, so gaps are counted separately by the kind of gap before them (a Markov chain
over the three kinds). Newer gaps weigh more, one gap outweighs the prior, and the gaps of all other
conversations stand in for what is not known of one. Apart from that, two sums are kept: what a
lifetime of an hour would have saved, and what it would have cost (`agent.cache.plan`).

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

from gateway.core.events import CacheTtl
from gateway.core.ratelimit import LruDict

GAPS_S = (300.0, 3_600.0)
"""Limits of the kinds of gaps: the lifetimes of 5 minutes and of 1 hour survive shorter ones
(platform.claude.com/docs/en/build-with-claude/prompt-caching)."""

LENGTHS_S = tuple(300.0 * 2**step for step in range(8))
"""Limits of the lengths of gaps: five minutes to ten and a half hours."""

GapShares = tuple[float, float, float]
"""Shares of the kinds of gaps, shortest first. They sum to 1."""

_NO_GAP = 3
"""Row for the first request, with no gap before it."""
_DECAY = 0.98
"""Weight that an observation keeps when the next one of its kind comes. About the last fifty count,
so that the rare silences of a busy room are not forgotten between them."""
_ROW_PRIOR_WEIGHT = 1.0
"""Weight of the conversation's overall shares, in observations, against the gaps after one kind of
gap."""
_GUESS_WEIGHT, _POOL_WEIGHT = 0.3, 4.0
"""Weights, in observations, of a guess, and of what all other conversations taught."""
_POOL_ENOUGH = 20.0
"""Gaps of all conversations after which their weight is full."""
_MIN_REMAINING = 20.0
"""Expected further requests with a prefix that was never repeated. With fewer, no decision would
matter."""
_MAX_REMAINING = 400.0
"""Limit of expected further requests: a fold ends most prefixes by then."""
_PRESUMED_GAPS = 0.03
"""Gaps assumed in each length, so that nothing that was never seen is impossible."""
_OVER_WEIGHT = 0.1
"""Weight, in gaps, of the end of the conversation. It hardly counts before a conversation is idle
for longer than ever."""
_GROWTH_DECAY = 0.95
"""Weight that the sums of a growing prefix (`GapStats.kept`) keep after each gap that 5 minutes do
not survive."""
_POOL_DECAY = 0.999
"""Weight that the same sums of all conversations together keep after each request."""
_MAX_GROWTH_REQUESTS = 120
"""Requests after which a conversation is assumed to grow no more: a fold ends it."""
_SEVERAL_HOUR_GAPS, _ONE_HOUR_GAP = 2.8, 0.9
"""Gaps that only an hour survives, newer ones weighing more, after which a conversation counts as
one with such gaps. Usually three, because a conversation that has hardly begun may be over; one if
most other conversations have them."""
_USUAL_SHARE, _USUAL_MARGIN = 0.8, 3.0
"""Condition for one gap to be enough: in all conversations together an hour must have kept this
share of what was written for it, and so many units more."""
_MAX_CONVERSATIONS = 4_096
"""Limit of conversations that are remembered, the last used ones."""

CHAT_PRIOR: GapShares = (0.65, 0.20, 0.15)
"""Guess for a prefix of which nothing is known."""


class GapOdds(NamedTuple):
    """Expectation for a prefix that is being requested now."""

    next_gap: GapShares
    """Odds of the gap that begins now."""
    rows: tuple[GapShares, GapShares, GapShares]
    """Odds of the gap that follows each kind of gap."""
    remaining_requests: float
    """Expected number of further requests with this prefix."""
    is_known: bool = True
    """False: no gap was ever seen, and all of this is a guess."""
    gap_counts: GapShares = (0.0, 0.0, 0.0)
    """Observed gaps of each kind, newer ones weighing more: for a prefix that keeps its size."""
    kept: float = 0.0
    """Amount that an hour would have kept and 5 minutes would not, for a prefix that grows with
    each request. The unit is what one request adds. 0 until enough was seen."""
    written: float = 0.0
    """Amount that would have been written for it, in the same unit."""


class GapStats(NamedTuple):
    """Observations of one prefix."""

    last_s: float
    """Time of the last request."""
    last_kind: int
    """Kind of the gap before that; 3: there was none."""
    request_count: int
    """Number of requests."""
    weights: tuple[float, ...]
    """Four rows (after each kind of gap, and at first) of three kinds."""
    lengths: tuple[float, ...]
    """Gaps by length: up to each of `LENGTHS_S`, and longer."""
    kept: float = 0.0
    written: float = 0.0
    """As in `GapOdds`, and so is `kept`."""


_NEW_STATS = GapStats(0.0, _NO_GAP, 0, (0.0,) * 12, (0.0,) * 9)


def gap_kind(gap_s: float) -> int:
    """Return the kind of a gap: 0, 1 or 2. A lifetime of 300 s does not survive a gap of 300 s."""
    return 0 if gap_s < GAPS_S[0] else 1 if gap_s < GAPS_S[1] else 2


def observe_request(stats: GapStats | None, at_s: float) -> GapStats:
    """Return the observations with a request at this time added."""
    if stats is None:
        kept, written = hour_savings(0, None)
        return _NEW_STATS._replace(last_s=at_s, request_count=1, kept=kept, written=written)
    gap_s = max(0.0, at_s - stats.last_s)
    gap = gap_kind(gap_s)
    kept, written = hour_savings(stats.request_count, gap)
    weight = 1.0 if gap == 0 else _GROWTH_DECAY
    return GapStats(
        last_s=at_s,
        last_kind=gap,
        request_count=stats.request_count + 1,
        weights=_add_gap(stats.weights, stats.last_kind, gap),
        lengths=_add_length(stats.lengths, gap_s),
        kept=stats.kept * weight + kept,
        written=stats.written * weight + written,
    )


def hour_savings(request_count: int, gap: int | None) -> tuple[float, float]:
    """Return what an hour keeps at a request, and what is written for it, after so many requests
    and this gap.

    The own part of a conversation begins with its card and first message, and each request adds
    about as much as each of these. `gap` None: the first request.
    """
    size = float(min(request_count, _MAX_GROWTH_REQUESTS) + 1)
    if gap is not None and gap < 2:  # noqa: PLR2004 - what an hour survives (`gap_kind`)
        return (size, 1.0) if gap == 1 else (0.0, 1.0)
    return 0.0, size + 1.0


def _add_gap(weights: tuple[float, ...], row: int, gap: int) -> tuple[float, ...]:
    aged = [
        weight * _DECAY if index // 3 == row else weight for index, weight in enumerate(weights)
    ]
    aged[3 * row + gap] += 1.0
    return tuple(aged)


def _add_length(lengths: tuple[float, ...], gap_s: float) -> tuple[float, ...]:
    aged = [weight * _DECAY for weight in lengths]
    aged[bisect_right(LENGTHS_S, gap_s)] += 1.0
    return tuple(aged)


def return_probability(lengths: Sequence[float], idle_s: float, within_s: float) -> float:
    """Return how likely a request is within so many seconds, after so many idle seconds."""
    after, later = _weight_beyond(lengths, idle_s), _weight_beyond(lengths, idle_s + within_s)
    return 1.0 - later / after if after else 0.0


def _weight_beyond(lengths: Sequence[float], idle_s: float) -> float:
    """Return the weight of longer gaps. Those of one length are spread evenly over it."""
    edges = (0.0, *LENGTHS_S, 2 * LENGTHS_S[-1])
    total = _OVER_WEIGHT
    for (low, high), weight in zip(pairwise(edges), lengths, strict=True):
        total += (weight + _PRESUMED_GAPS) * min(1.0, max(0.0, (high - idle_s) / (high - low)))
    return total


def estimate_odds(
    stats: GapStats, prior: tuple[GapShares, GapShares, GapShares, GapShares], prior_weight: float
) -> GapOdds:
    """Combine the observations of one prefix with `prior`: shares after each kind of gap, and at
    first.
    """
    weights = stats.weights
    overall = (
        weights[0] + weights[3] + weights[6] + weights[9],
        weights[1] + weights[4] + weights[7] + weights[10],
        weights[2] + weights[5] + weights[8] + weights[11],
    )
    rows: list[GapShares] = []
    for row in range(4):
        guess = _mix_shares(overall, prior[row], prior_weight)
        rows.append(
            _mix_shares(
                (weights[3 * row], weights[3 * row + 1], weights[3 * row + 2]),
                guess,
                _ROW_PRIOR_WEIGHT,
            )
        )
    remaining = min(_MAX_REMAINING, _MIN_REMAINING + stats.request_count)
    return GapOdds(
        next_gap=rows[stats.last_kind],
        rows=(rows[0], rows[1], rows[2]),
        remaining_requests=remaining,
        is_known=any(overall),
        gap_counts=overall,
        kept=stats.kept,
        written=stats.written,
    )


def _mix_shares(seen: tuple[float, float, float], guess: GapShares, weight: float) -> GapShares:
    total = seen[0] + seen[1] + seen[2] + weight
    return (
        (seen[0] + weight * guess[0]) / total,
        (seen[1] + weight * guess[1]) / total,
        (seen[2] + weight * guess[2]) / total,
    )


@dataclass(slots=True)
class Cadence:
    """Gaps between the requests of one agent: of the prefix that all its conversations share, and
    of each conversation.

    It has no clock: times are passed in, as seconds that a restart does not reset.
    """

    shared: GapStats | None = None
    pool: GapStats = _NEW_STATS
    """Gaps of all conversations together."""
    _by_conversation: LruDict[str, GapStats] = field(
        default_factory=lambda: LruDict(_MAX_CONVERSATIONS)
    )

    def observe_request(self, conversation: str, at_s: float) -> None:
        self.shared = observe_request(self.shared, at_s)
        before, pool = self._by_conversation.get(conversation), self.pool
        if before is None:
            kept, written = hour_savings(0, None)
        else:
            gap_s = max(0.0, at_s - before.last_s)
            weights, lengths = (
                _add_gap(pool.weights, before.last_kind, gap_kind(gap_s)),
                _add_length(pool.lengths, gap_s),
            )
            pool = pool._replace(
                request_count=pool.request_count + 1, weights=weights, lengths=lengths
            )
            kept, written = hour_savings(before.request_count, gap_kind(gap_s))
        self.pool = pool._replace(
            kept=pool.kept * _POOL_DECAY + kept, written=pool.written * _POOL_DECAY + written
        )
        self._by_conversation.put(conversation, observe_request(before, at_s))

    def shared_odds(self) -> GapOdds:
        return estimate_odds(
            self.shared or _NEW_STATS,
            (CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR),
            _GUESS_WEIGHT,
        )

    def odds(self, conversation: str) -> GapOdds:
        pooled = estimate_odds(
            self.pool, (CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR), _GUESS_WEIGHT
        )
        weight = _GUESS_WEIGHT + (_POOL_WEIGHT - _GUESS_WEIGHT) * min(
            1.0, self.pool.request_count / _POOL_ENOUGH
        )
        stats = self._by_conversation.get(conversation, _NEW_STATS)
        usual = self.pool.kept > _USUAL_SHARE * self.pool.written + _USUAL_MARGIN
        has_hour_gaps = sum(stats.weights[1::3]) >= (_ONE_HOUR_GAP if usual else _SEVERAL_HOUR_GAPS)
        found = estimate_odds(stats, (*pooled.rows, pooled.next_gap), weight)
        return found if has_hour_gaps else found._replace(kept=0.0)

    def return_probability(self, conversation: str, idle_s: float, within_s: float) -> float:
        """Return how likely a request of this conversation is within so many seconds, after so many
        idle seconds.
        """
        own, pool = self._by_conversation.get(conversation, _NEW_STATS).lengths, self.pool.lengths
        share = 1.0 / max(1.0, sum(pool))  # all others together weigh as much as one gap of its own
        return return_probability(
            [mine + share * all_ for mine, all_ in zip(own, pool, strict=True)], idle_s, within_s
        )


LIFETIME_S: dict[CacheTtl, float] = {"5m": 300.0, "1h": 3_600.0}

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
