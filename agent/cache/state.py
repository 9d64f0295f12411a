"""How soon a prefix is asked for again: the odds of the next gap, learned from the gaps that were. Pure.

Gaps count from start to start of requests, as a cache's lifetimes do, and matter only by what survives them:
up to 5 minutes, up to an hour, longer. Talk comes in bursts with silences between, so what follows a short gap
is counted apart from what follows a long one (a Markov chain over the three kinds). Newer gaps weigh more, one
gap outweighs the prior, and what is not known of one conversation is taken from all others. Apart from that it is
summed up what an hour would have kept, and what it would have cost (`agent.cache.plan`).

What is believed to be in a provider's cache, from what was sent. Pure: times are handed in.

A provider keeps what stood in front of a mark, as a segment behind the cached place before it, for as long as
was paid. A place can be read while its own segment and all in front of it live. Each use begins their lifetimes
anew, at the start of the request, and makes none longer. Where the documentation
(platform.claude.com/docs/en/build-with-claude/prompt-caching) is silent this believes the worse.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from math import inf
from typing import NamedTuple

from gateway.core.events import CacheTtl

GAPS_S = (300.0, 3_600.0)
"""Up to these, and longer: what a 5 minute and a 1 hour lifetime survive
(platform.claude.com/docs/en/build-with-claude/prompt-caching)."""

LENGTHS_S = tuple(300.0 * 2**step for step in range(8))
"""Five minutes to ten hours and a half."""

GapShares = tuple[float, float, float]
"""Of gaps of each kind, shortest first. Sums to 1."""

_NO_GAP = 3
"""The row of what follows the first request, with no gap before it."""
_DECAY = 0.98
"""What an observation still weighs when the next one of its kind comes: about the last fifty count, so that the rare
silences of a busy room are not forgotten between them."""
_ROW_PRIOR_WEIGHT = 1.0
"""How many observations the conversation's overall share weighs against what follows one kind of gap."""
_WEAK, _INFORMED = 0.3, 4.0
"""How many observations a guess weighs, and what all other conversations taught."""
_POOL_ENOUGH = 20.0
"""Gaps of all conversations after which they count as informed."""
_MIN_REMAINING = 20.0
"""Requests that are expected to repeat a prefix that was never repeated: less is not worth deciding about."""
_MAX_REMAINING = 400.0
"""A fold ends most prefixes by then."""
_PRESUMED_GAPS = 0.03
"""Gaps in each length, so that nothing is impossible that was never seen."""
_OVER_WEIGHT = 0.1
"""Of one gap: that the conversation is over. It hardly counts before it has been idle for longer than ever."""
_GROWTH_DECAY = 0.95
"""What the sums of a growing prefix (`GapStats.kept`) still weigh after each gap that 5 minutes do not survive."""
_POOL_DECAY = 0.999
"""The same of all conversations together, after each request."""
_MAX_GROWTH_REQUESTS = 120
"""Requests after which a conversation is taken to grow no more: a fold ends it."""
_OFTEN, _ONCE = 2.8, 0.9
"""Gaps that only an hour survives, newer ones weighing more, after which a conversation counts as one that has them:
the third, because what has hardly begun may be over; the first, where most others have them."""
_USUAL, _PROOF = 0.8, 3.0
"""In all conversations together an hour must have kept such a share of what was written for it, and so much more, for
one gap to be enough in each."""
_MAX_CONVERSATIONS = 4_096
"""Conversations remembered, the last used ones."""

CHAT_PRIOR: GapShares = (0.65, 0.20, 0.15)
"""A guess for a prefix of which nothing is known."""


class GapOdds(NamedTuple):
    """What is expected of a prefix that is being asked for now."""

    next_gap: GapShares
    """Of the gap that begins now."""
    rows: tuple[GapShares, GapShares, GapShares]
    """Of the gap that follows each kind of gap."""
    remaining_requests: float
    """How many more requests will repeat it."""
    is_known: bool = True
    """False: no gap was ever seen, and all this is a guess."""
    gap_counts: GapShares = (0.0, 0.0, 0.0)
    """Gaps of each kind that were seen, newer ones weighing more: for a prefix that keeps its size."""
    kept: float = 0.0
    """What an hour would have kept that 5 minutes would not, for a prefix that grows with each request: in units of
    what one request adds. 0 as long as too little was seen."""
    written: float = 0.0
    """What would have been written for it, in the same units."""


class GapStats(NamedTuple):
    """What is kept of one prefix: plain numbers, to be stored and restored."""

    last_s: float
    """When it was last asked for."""
    last: int
    """The kind of the gap before that; 3: there was none."""
    asked: int
    """Requests so far."""
    weights: tuple[float, ...]
    """Four rows (after each kind of gap, and at first) of three kinds."""
    lengths: tuple[float, ...]
    """Gaps by length: up to each of `LENGTHS_S`, and longer."""
    kept: float = 0.0
    written: float = 0.0
    """As in `GapOdds`."""


_SHARED, _POOL = "shared", "pool"
"""No conversations' names: those have a slash (`Address.conversation`)."""

_NEW_STATS = GapStats(0.0, _NO_GAP, 0, (0.0,) * 12, (0.0,) * 9)


def gap_kind(gap_s: float) -> int:
    """0, 1 or 2: which lifetimes survive such a gap. What lives for 300 s is gone at 300."""
    return 0 if gap_s < GAPS_S[0] else 1 if gap_s < GAPS_S[1] else 2


def observe_request(habit: GapStats | None, at_s: float) -> GapStats:
    """Take in that the prefix is asked for now."""
    if habit is None:
        kept, written = hour_savings(0, None)
        return _NEW_STATS._replace(last_s=at_s, asked=1, kept=kept, written=written)
    gap_s = max(0.0, at_s - habit.last_s)
    gap = gap_kind(gap_s)
    kept, written = hour_savings(habit.asked, gap)
    weight = 1.0 if gap == 0 else _GROWTH_DECAY
    return GapStats(
        last_s=at_s,
        last=gap,
        asked=habit.asked + 1,
        weights=_add_gap(habit.weights, habit.last, gap),
        lengths=_add_length(habit.lengths, gap_s),
        kept=habit.kept * weight + kept,
        written=habit.written * weight + written,
    )


def hour_savings(asked: int, gap: int | None) -> tuple[float, float]:
    """Return what an hour keeps at a request, and what is written for it, after so many requests and this gap.

    What a conversation has of its own begins with its card and first message, and each request adds about as much as
    each of these. None: this is the first request.
    """
    size = float(min(asked, _MAX_GROWTH_REQUESTS) + 1)
    if gap is not None and gap < 2:  # noqa: PLR2004 - what an hour survives (`gap_kind`)
        return (size, 1.0) if gap == 1 else (0.0, 1.0)
    return 0.0, size + 1.0


def _add_gap(weights: tuple[float, ...], row: int, gap: int) -> tuple[float, ...]:
    aged = [weight * _DECAY if index // 3 == row else weight for index, weight in enumerate(weights)]
    aged[3 * row + gap] += 1.0
    return tuple(aged)


def _add_length(lengths: tuple[float, ...], gap_s: float) -> tuple[float, ...]:
    aged = [weight * _DECAY for weight in lengths]
    aged[bisect_right(LENGTHS_S, gap_s)] += 1.0
    return tuple(aged)


def return_probability(lengths: Sequence[float], idle_s: float, within_s: float) -> float:
    """Return how likely it is to be asked for within so long, after having been idle for so long."""
    after, later = _weight_beyond(lengths, idle_s), _weight_beyond(lengths, idle_s + within_s)
    return 1.0 - later / after if after else 0.0


def _weight_beyond(lengths: Sequence[float], idle_s: float) -> float:
    """Weigh the gaps that are longer, those of one length being spread evenly over it."""
    edges = (0.0, *LENGTHS_S, 2 * LENGTHS_S[-1])
    total = _OVER_WEIGHT
    for (low, high), weight in zip(pairwise(edges), lengths, strict=True):
        total += (weight + _PRESUMED_GAPS) * min(1.0, max(0.0, (high - idle_s) / (high - low)))
    return total


def estimate_odds(
    habit: GapStats, prior: tuple[GapShares, GapShares, GapShares, GapShares], prior_weight: float
) -> GapOdds:
    """Weigh what was seen of one prefix against `prior`: shares after each kind of gap, and at first."""
    w = habit.weights
    overall = (w[0] + w[3] + w[6] + w[9], w[1] + w[4] + w[7] + w[10], w[2] + w[5] + w[8] + w[11])
    rows: list[GapShares] = []
    for row in range(4):
        guess = _mix_shares(overall, prior[row], prior_weight)
        rows.append(_mix_shares((w[3 * row], w[3 * row + 1], w[3 * row + 2]), guess, _ROW_PRIOR_WEIGHT))
    remaining = min(_MAX_REMAINING, _MIN_REMAINING + habit.asked)
    return GapOdds(
        next_gap=rows[habit.last],
        rows=(rows[0], rows[1], rows[2]),
        remaining_requests=remaining,
        is_known=any(overall),
        gap_counts=overall,
        kept=habit.kept,
        written=habit.written,
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
    """One agent's habits: of what all its conversations share, and of each of them.

    No clock: times are handed in, as seconds that a restart does not begin anew.
    """

    shared: GapStats | None = None
    pool: GapStats = _NEW_STATS
    """All conversations' gaps together."""
    _by_conversation: OrderedDict[str, GapStats] = field(default_factory=OrderedDict)

    def observe_request(self, conversation: str, at_s: float) -> None:
        """Take in a request of this conversation."""
        self.shared = observe_request(self.shared, at_s)
        before, pool = self._by_conversation.pop(conversation, None), self.pool
        if before is None:
            kept, written = hour_savings(0, None)
        else:
            gap_s = max(0.0, at_s - before.last_s)
            weights, lengths = _add_gap(pool.weights, before.last, gap_kind(gap_s)), _add_length(pool.lengths, gap_s)
            pool = pool._replace(asked=pool.asked + 1, weights=weights, lengths=lengths)
            kept, written = hour_savings(before.asked, gap_kind(gap_s))
        self.pool = pool._replace(kept=pool.kept * _POOL_DECAY + kept, written=pool.written * _POOL_DECAY + written)
        self._by_conversation[conversation] = observe_request(before, at_s)
        if len(self._by_conversation) > _MAX_CONVERSATIONS:
            self._by_conversation.popitem(last=False)

    def shared_odds(self) -> GapOdds:
        """Of what all conversations share."""
        return estimate_odds(self.shared or _NEW_STATS, (CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR), _WEAK)

    def odds(self, conversation: str) -> GapOdds:
        """Of this conversation."""
        pooled = estimate_odds(self.pool, (CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR, CHAT_PRIOR), _WEAK)
        weight = _WEAK + (_INFORMED - _WEAK) * min(1.0, self.pool.asked / _POOL_ENOUGH)
        habit = self._by_conversation.get(conversation, _NEW_STATS)
        usual = self.pool.kept > _USUAL * self.pool.written + _PROOF
        shown = sum(habit.weights[1::3]) >= (_ONCE if usual else _OFTEN)
        found = estimate_odds(habit, (*pooled.rows, pooled.next_gap), weight)
        return found if shown else found._replace(kept=0.0)

    def return_probability(self, conversation: str, idle_s: float, within_s: float) -> float:
        """Return how likely it is that this conversation, idle for so long, asks again within so long."""
        own, pool = self._by_conversation.get(conversation, _NEW_STATS).lengths, self.pool.lengths
        share = 1.0 / max(1.0, sum(pool))  # all others together weigh as much as one gap of its own
        return return_probability([mine + share * all_ for mine, all_ in zip(own, pool, strict=True)], idle_s, within_s)

    def dump(self) -> tuple[tuple[str, GapStats], ...]:
        """All of it, for `restore`."""
        shared = ((_SHARED, self.shared), (_POOL, self.pool)) if self.shared is not None else ()
        return (*shared, *self._by_conversation.items())

    @classmethod
    def restore(cls, state: Iterable[tuple[str, GapStats]]) -> "Cadence":
        """Reverse `state`."""
        each = OrderedDict(state)
        shared, pool = each.pop(_SHARED, None), each.pop(_POOL, _NEW_STATS)
        return cls(shared=shared, pool=pool, _by_conversation=each)


LIFETIME_S: dict[CacheTtl, float] = {"5m": 300.0, "1h": 3_600.0}

Digest = bytes
"""Names all bytes of a request up to a place."""

ROOT_DIGEST: Digest = b""
"""In front of everything."""


def extend_digest(before: Digest, piece: bytes) -> Digest:
    """Name what `before` names with `piece` behind it."""
    return blake2b(piece, digest_size=16, key=before).digest()


class _CacheSegment(NamedTuple):
    behind: Digest | None
    """The place that it was written behind; None: it begins the request."""
    lifetime: CacheTtl
    expires_s: float


class CachedPrefix(NamedTuple):
    """A place in a request up to which it is believed to be cached."""

    segment: int
    """The one that ends there, by its number in the request."""
    lifetime: CacheTtl
    """Of the segment that ends there."""


class CachedUntil(NamedTuple):
    """The same, and for how long."""

    prefix: CachedPrefix
    expires_s: float


class CacheState:
    """The beliefs about one cache: one provider, one model."""

    def __init__(self, *, kept: int = 8_192) -> None:
        """`kept`: places remembered, the last used ones."""
        self._capacity = kept
        self._segments: dict[Digest, _CacheSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, path: Sequence[Digest], at_s: float) -> tuple[CachedPrefix, ...]:
        """Return the places of a request that could be read at this time, in its order."""
        return tuple([one.prefix for one in self.find_with_expiry(path, at_s)])

    def find_with_expiry(self, path: Sequence[Digest], at_s: float) -> tuple[CachedUntil, ...]:
        """Return the same, each with when it can be read no more unless it is used until then."""
        ends: dict[Digest | None, float] = {None: inf}
        found: list[CachedUntil] = []
        for index, digest in enumerate(path):
            segment = self._segments.get(digest)
            if segment is not None and at_s < segment.expires_s and segment.behind in ends:
                ends[digest] = until_s = min(segment.expires_s, ends[segment.behind])
                found.append(CachedUntil(CachedPrefix(index, segment.lifetime), until_s))
        return tuple(found)

    def record_request(
        self, path: Sequence[Digest], *, read: int, writes: Iterable[tuple[int, CacheTtl]], at_s: float
    ) -> None:
        """Take in a request that was sent at `at_s` and has begun to be answered.

        It read its first `read` units and wrote up to these. One that was not answered wrote nothing.
        """
        behind = path[read - 1] if read else None
        self._touch(behind, at_s)
        for index, lifetime in writes:
            digest, until_s = path[index], at_s + LIFETIME_S[lifetime]
            old = self._segments.pop(digest, None)
            if old is not None and old.expires_s > until_s:
                self._segments[digest] = old  # somebody else wrote it meanwhile, for longer
            else:
                self._segments[digest] = _CacheSegment(behind, lifetime, until_s)
            behind = digest
        if len(self._segments) > self._capacity:
            self._trim(at_s)

    def forget(self, path: Iterable[Digest]) -> None:
        """These places were found not to be cached."""
        for digest in path:
            self._segments.pop(digest, None)

    def expires_s(self, path: Sequence[Digest], at_s: float) -> float | None:
        """When the longest cached beginning of a request will be gone; None: nothing of it is cached."""
        found = self.find_with_expiry(path, at_s)
        return found[-1].expires_s if found else None

    def _segment_chain(self, digest: Digest | None) -> list[tuple[Digest, _CacheSegment]]:
        found: list[tuple[Digest, _CacheSegment]] = []
        while digest is not None and (segment := self._segments.get(digest)) is not None:
            found.append((digest, segment))
            digest = segment.behind
        return found

    def _touch(self, digest: Digest | None, at_s: float) -> None:
        for place, segment in reversed(self._segment_chain(digest)):
            del self._segments[place]  # what is used moves to the end, so the front is what may go
            until_s = max(segment.expires_s, at_s + LIFETIME_S[segment.lifetime])
            self._segments[place] = segment._replace(expires_s=until_s)

    def _trim(self, at_s: float) -> None:
        alive = {digest: segment for digest, segment in self._segments.items() if at_s < segment.expires_s}
        excess = max(0, len(alive) - self._capacity * 3 // 4)
        self._segments = dict(list(alive.items())[excess:])
