"""Knowledge of a provider's cache: the prefixes in it (`CacheState`), and the gaps between requests
(`Cadence`), which decide for how long a prefix is cached (`Cadence.lifetimes`). Pure.

Gaps count from start to start of requests, as a cache's lifetimes do. Of each conversation, of the
part that all conversations of an agent share, and of all conversations together a histogram of the
gaps is kept, in which newer gaps weigh more.

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
from itertools import accumulate, pairwise
from math import inf
from typing import Literal, NamedTuple

from agent.cache.prices import Price
from gateway.core.events import CacheTtl
from gateway.core.ratelimit import LruDict

LIFETIME_S: dict[CacheTtl, float] = {"5m": 300.0, "1h": 3_600.0}
"""A prefix is gone after so long without use: a gap of 300 s is one too many
(platform.claude.com/docs/en/build-with-claude/prompt-caching)."""

LENGTHS_S = (300.0, 600.0, 1_200.0, 2_400.0, 3_600.0, 7_200.0, 14_400.0, 28_800.0, 57_600.0)
"""Limits of the lengths of gaps, the lifetimes among them."""
_LOOP_SEGMENTS = 128
"""Segments in front of the end of what is read whose lifetimes begin anew with it. Among them is
the one in front of a loop of tools, at which the next turn reads if the loop's thinking is left
out."""
_SHORT, _HOUR = LENGTHS_S.index(LIFETIME_S["5m"]) + 1, LENGTHS_S.index(LIFETIME_S["1h"]) + 1
"""Number of the lengths that each lifetime survives."""

_DECAY = 0.998
"""Weight that an observation keeps when the next one comes: about the last five hundred count."""
_PRESUMED_GAPS = (0.2, *[0.02] * len(LENGTHS_S))
"""Gaps assumed in each length, so that nothing that was never seen is impossible."""
_OVER_WEIGHT = 0.1
"""Weight, in gaps, of the end of the conversation. It hardly counts before a conversation is idle
for longer than ever."""
_FRONT_RETURNS = 0.4
"""Returns that are presumed for what stands in front of the card, which so begins with an hour."""
_PRESUMED_TOKENS = 500
"""Size of what only one conversation has, where it is not known."""
_POOL_RETURNS = 5
"""Most returns of so many tokens that are presumed among all conversations, one for each but the
first: the first few of a new gateway begin with an hour, until they show that nobody returns. One
alone shows by itself."""
_POOL_ENDS = 6.0
"""Ends of a conversation that all conversations together stand for in each."""
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
    """Gaps between the requests of one prefix, newer ones weighing more."""

    last_s: float = 0.0
    lengths: tuple[float, ...] = (0.0,) * len(_PRESUMED_GAPS)
    """Gaps by length: shorter than each of `LENGTHS_S`, and longer."""
    tokens: int = 0
    """Size at the last request."""
    saved: float = 0.0
    """Tokens that 5 minutes would have written again, and an hour read."""
    written: float = 0.0
    """Tokens that an hour would have written, too: those that are new, and all behind an end."""

    def with_request(self, at_s: float, gap_s: float, before: int = 0, tokens: int = 0) -> "Gaps":
        """Return the gaps with one more, which ended at `at_s`. The prefix has grown in it from
        `before` tokens; where it has shrunk, all is new.
        """
        lengths = [weight * _DECAY for weight in self.lengths]
        length = bisect_right(LENGTHS_S, max(0.0, gap_s))
        lengths[length] += 1.0
        saved, written = self.saved * _DECAY, self.written * _DECAY
        if _SHORT <= length < _HOUR:
            saved += before
        written += tokens if length >= _HOUR or tokens < before else tokens - before
        return Gaps(at_s, tuple(lengths), tokens, saved, written)

    def lasting(self, price: Price) -> CacheTtl:
        """Return the lifetime of a prefix that keeps its size: an hour, until the gaps show that it
        does not pay.
        """
        returns = sum(self.lengths[_SHORT:_HOUR]) + _FRONT_RETURNS
        return "1h" if is_hour_cheaper(returns, sum(self.lengths[_HOUR:]), price) else "5m"


_NO_GAPS = Gaps()


def is_hour_cheaper(saved: float, written: float, price: Price) -> bool:
    """Return whether a lifetime of an hour costs less than 5 minutes: `saved` tokens are then read
    instead of written again, and `written` ones have cost more.
    """
    return saved * (price.write_5m - price.read) > written * (price.write_1h - price.write_5m)


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
    """Gaps within each conversation, all together. The begin of one counts as the longest: each
    will end once."""
    _by_conversation: LruDict[str, Gaps] = field(default_factory=LruDict)

    def observe_request(self, conversation: str, at_s: float, tokens: int = 0) -> None:
        """Add a request. `tokens`: of what only this conversation has. 0: not known."""
        own, shared, gap_s, before = self._by_conversation.get(conversation), self.shared, inf, 0
        if own is not None:
            gap_s, before = at_s - own.last_s, own.tokens
        tokens = tokens or before or _PRESUMED_TOKENS
        self._by_conversation.put(
            conversation,
            Gaps(at_s, tokens=tokens)
            if own is None
            else own.with_request(at_s, gap_s, before, tokens),
        )
        self.pool = self.pool.with_request(at_s, gap_s, before, tokens)
        self.shared = (
            Gaps(at_s) if shared is None else shared.with_request(at_s, at_s - shared.last_s)
        )

    def lifetimes(self, conversation: str, price: Price) -> Lifetimes:
        """Return the lifetimes that the gaps so far show to be cheapest.

        A conversation has an hour where that would have saved more than it would have cost until
        now. Added to its own tokens are those of `_POOL_ENDS` ends, and as many saved ones as all
        conversations have had for so many written ones.
        """
        gaps, pool = self._by_conversation.get(conversation, _NO_GAPS), self.pool
        others = min(_POOL_RETURNS, max(0, len(self._by_conversation) - 1))
        ends = _POOL_ENDS * gaps.tokens
        likely = ends * (pool.saved + others * _PRESUMED_TOKENS) / max(1.0, pool.written)
        read, lost = sum(gaps.lengths[:_SHORT]), sum(gaps.lengths[_SHORT:])
        head = (self.shared or _NO_GAPS).lasting(price)
        own: CacheTtl | None = "5m"
        if head == "1h" and is_hour_cheaper(gaps.saved + likely, gaps.written + ends, price):
            own = "1h"
        elif sum(gaps.lengths[_HOUR:]) >= _MIN_LONG_GAPS and read * (1.0 - price.read) < lost * (
            price.write_5m - 1.0
        ):
            own = None  # hardly anything that was written was read
        return Lifetimes(head, "1h" if own == "1h" else gaps.lasting(price), own)

    def lengths(self, conversation: str) -> list[float]:
        """Return the gaps expected of a conversation, by length. All those of the others weigh as
        much as one of its own.
        """
        own, pool = self._by_conversation.get(conversation, _NO_GAPS).lengths, self.pool.lengths
        share = 1.0 / max(1.0, sum(pool))
        return [
            mine + share * all_ + presumed
            for mine, all_, presumed in zip(own, pool, _PRESUMED_GAPS, strict=True)
        ]


Digest = bytes
"""Name of all bytes of a request up to a place."""

ROOT_DIGEST: Digest = b""
"""Digest of the empty prefix."""


def extend_digest(before: Digest, piece: bytes) -> Digest:
    """Return the digest of the bytes of `before` with `piece` behind them."""
    return blake2b(piece, digest_size=16, key=before).digest()


class PromptSegment(NamedTuple):
    """A piece of a request that ends where a breakpoint can stand: the tools, a block, or a
    `ModelMessage`.

    A message has one segment for each part; only the last of them takes a breakpoint.
    """

    name: str
    """tools, identity, skills, binding, channel or history."""
    behind: Literal["tools", "block", "said"]
    number: int
    """`CacheBreakpoint.index`."""
    tokens: int
    end_tokens: int
    """Tokens of the request up to its end."""
    digest: Digest
    """Digest of all bytes of the request up to its end."""
    end_position: int
    """Number of tools, blocks and content blocks up to its end."""
    is_shared: bool = False
    """True: this segment and everything in front of it is the same in all conversations."""
    takes_breakpoint: bool = True
    """False: nothing in it can carry a breakpoint."""


@dataclass(slots=True)
class _CacheSegment:
    index: int
    """Index of its last segment in the request."""
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

    What is written of the messages behind other messages, for as long, is kept as one with them:
    the moving end of a conversation. Of its earlier ends, the last ones are used with it. So the
    steps of a request do not grow with its conversation.
    """

    def __init__(self, *, capacity: int = 8_192) -> None:
        """Start with an empty cache.

        `capacity`: limit of segments remembered, the last used ones.
        """
        self._capacity = capacity
        self._segments: dict[Digest, _CacheSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, path: Sequence[PromptSegment], at_s: float) -> tuple[CachedPrefix, ...]:
        """Return the longest prefix of a request that could be read at this time, behind those
        that it was written behind.
        """
        for index in range(len(path) - 1, -1, -1):
            if path[index].digest in self._segments:
                chain = [one for _, one in self._chain(path[index].digest)]
                if chain[0].behind is None and all(at_s < one.expires_s for one in chain):
                    ends = accumulate([one.expires_s for one in chain], min)
                    return tuple(
                        [
                            CachedPrefix(one.index, one.lifetime, until_s)
                            for one, until_s in zip(chain, ends, strict=True)
                        ]
                    )
        return ()

    def _chain(self, digest: Digest | None) -> list[tuple[Digest, _CacheSegment]]:
        """Return what a prefix was written behind, from the first known, and itself."""
        chain = list[tuple[Digest, _CacheSegment]]()
        while digest is not None and (segment := self._segments.get(digest)) is not None:
            chain.append((digest, segment))
            digest = segment.behind
        return chain[::-1]

    def record_request(
        self,
        path: Sequence[PromptSegment],
        *,
        read: int,
        writes: Sequence[tuple[int, CacheTtl]],
        at_s: float,
    ) -> None:
        """Record a request that was sent at `at_s` and has begun to be answered.

        It read its first `read` segments and wrote up to each of `writes`. A request without an
        answer wrote nothing.
        """
        behind = path[read - 1].digest if read else None
        alive = {
            one.digest: found
            for one in path[max(0, read - _LOOP_SEGMENTS) : read]
            if (found := self._segments.get(one.digest)) is not None and at_s < found.expires_s
        }
        for used, segment in (dict(self._chain(behind)) | alive).items():
            del self._segments[used]  # used segments move to the end: the oldest stand in front
            self._segments[used] = segment
            segment.expires_s = max(segment.expires_s, at_s + LIFETIME_S[segment.lifetime])
        for index, lifetime in writes:
            digest, until_s = path[index].digest, at_s + LIFETIME_S[lifetime]
            before = self._segments.get(behind) if behind is not None else None
            if (
                before is not None
                and before.lifetime == lifetime
                and path[before.index].behind == "said"
            ):
                behind = before.behind
            old = self._segments.pop(digest, None)
            if old is not None and old.expires_s > until_s:
                self._segments[digest] = old  # another request wrote it meanwhile, for longer
            else:
                self._segments[digest] = _CacheSegment(index, behind, lifetime, until_s)
            behind = digest
        if len(self._segments) > self._capacity:
            self._trim(at_s)

    def forget(self, path: Iterable[PromptSegment]) -> None:
        """Remove prefixes that were found not to be cached."""
        for segment in path:
            self._segments.pop(segment.digest, None)

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
