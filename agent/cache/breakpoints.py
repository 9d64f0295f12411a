"""Breakpoints of one request: where, and for how long. Pure.

Breakpoints (platform.claude.com/docs/en/build-with-claude/prompt-caching): a request has at most
four. A lifetime of an hour stands in front of one of 5 minutes. Only a prefix that ends at a
breakpoint is written, and only if it has the model's minimum length. A breakpoint reads the longest
cached prefix that ends at most twenty positions back, its own counted.

Lifetimes: writing for an hour costs more each time; it pays if gaps follow that 5 minutes do not
survive and an hour does. The cost that each choice would have had until now is compared, so a wrong
choice costs at most what it takes to find that out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple

from agent.cache.plan import CachePlan, CachePolicy, PromptSegment, account_blocks
from agent.cache.prices import Price
from agent.cache.state import (
    CachedPrefix,
    GapOdds,
)
from agent.models.base import (
    CacheBreakpoint,
)
from gateway.core.events import CacheTtl


class CacheMultipliers(NamedTuple):
    """Prices of tokens as multiples of the plain input price. Infinite: not available."""

    read: float
    write_5m: float
    write_1h: float


def is_hour_cheaper(kept: float, written: float, cost: CacheMultipliers) -> bool:
    """Return whether a lifetime of an hour costs less than 5 minutes.

    `kept`: amount that only an hour keeps, and that would have to be written again. `written`:
    amount written for it.
    """
    return kept * (cost.write_5m - cost.read) > written * (cost.write_1h - cost.write_5m)


MAX_BREAKPOINTS = 4

LOOK_BACK_POSITIONS = 20
"""Positions that a breakpoint searches, its own first."""

_SAFE_LOOK_BACK = 17
"""Positions that are relied on: thinking takes a position of its own, and so does each text for one
request that stays in front of it."""

Breakpoints = list[tuple[int, CacheTtl]]
"""Segments to mark, ascending, and the lifetime of each."""

_PRESUMED_HOUR_GAPS = 0.4
"""Gaps between 5 minutes and an hour that are assumed for a prefix that begins with an hour."""

_MIN_LONG_GAPS = 2.0
"""Least number of gaps of more than an hour before the end of a conversation may go without a
breakpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """Segments of a request, and the sizes that the choice of breakpoints depends on."""

    segments: Sequence[PromptSegment]
    end_positions: Sequence[int]
    """Position of the end of each segment, from 1."""
    min_tokens: int
    """Tokens of the shortest prefix that is cached."""
    longest_hit: CachedPrefix | None
    """Longest prefix that is assumed to be cached."""

    def last_breakpoint(self, segment: int) -> int:
        """Return the last useful breakpoint, from this segment backwards. -1: none."""
        while segment >= 0 and not self.segments[segment].takes_breakpoint:
            segment -= 1
        return (
            segment if segment >= 0 and self.segments[segment].end_tokens >= self.min_tokens else -1
        )

    def next_breakpoint(self, segment: int) -> int:
        """Return the first useful breakpoint, from this segment on. -1: none, or no such
        segment.
        """
        if segment < 0:
            return -1
        takes = (
            i
            for i in range(segment, len(self.segments))
            if self.segments[i].takes_breakpoint and self.segments[i].end_tokens >= self.min_tokens
        )
        return next(takes, -1)

    @property
    def shared_end(self) -> int:
        """Return the last useful breakpoint of the part that all conversations share."""
        return self.last_breakpoint(
            next(
                (i for i, segment in enumerate(self.segments) if not segment.is_shared),
                len(self.segments),
            )
            - 1
        )

    @property
    def end(self) -> int:
        """Return the last useful breakpoint of all."""
        return self.last_breakpoint(len(self.segments) - 1)

    @property
    def is_behind_short(self) -> bool:
        """Return whether the cached part of this conversation lives for 5 minutes.

        An hour behind it would be wasted: the prefix in front expires earlier.
        """
        own_start = max(self.shared_end, _binding_segment(self, self.shared_end))
        return (
            self.longest_hit is not None
            and self.longest_hit.segment > own_start
            and self.longest_hit.lifetime == "5m"
        )

    @property
    def is_cold(self) -> bool:
        """Return whether no part of this conversation alone is cached."""
        return self.longest_hit is None or self.longest_hit.segment <= max(
            self.shared_end, _binding_segment(self, self.shared_end)
        )


def choose_breakpoints(
    prompt: MeasuredPrompt, shared: GapOdds, own: GapOdds, cost: CacheMultipliers
) -> Breakpoints:
    """Choose breakpoints, each with the lifetime that the gaps so far show to be cheapest.

    A conversation begins with the fixed layout: an hour for the shared part and for the binding, 5
    minutes behind them. The card and what follows get an hour once the gaps of this conversation
    show that it pays, and the rest gets 5 minutes once they show that the hour does not.
    """
    if cost.write_1h == inf:
        return fixed_breakpoints(prompt, long=False, short="5m")
    if not own.is_known:
        return fixed_breakpoints(prompt, long=True, short="5m")
    behind: CacheTtl = (
        "1h"
        if not prompt.is_behind_short and is_hour_cheaper(own.kept, own.written, cost)
        else "5m"
    )
    front, binding = _lifetime_after_hour(shared, cost), _lifetime_after_hour(own, cost)
    short, medium, long = own.gap_counts
    # If requests hardly ever came in time, what was written at the end was hardly ever read.
    seldom = long >= _MIN_LONG_GAPS and short * (1.0 - cost.read) < (medium + long) * (
        cost.write_5m - 1.0
    )
    return _place_breakpoints(prompt, front, binding, behind, ends=behind == "1h" or not seldom)


def _lifetime_after_hour(odds: GapOdds, cost: CacheMultipliers) -> CacheTtl:
    """Return the lifetime for a prefix that keeps its size and began with an hour."""
    _, medium, long = odds.gap_counts
    return "1h" if is_hour_cheaper(medium + _PRESUMED_HOUR_GAPS, long, cost) else "5m"


def fixed_breakpoints(prompt: MeasuredPrompt, *, long: bool, short: CacheTtl) -> Breakpoints:
    """Return the fixed layout: an hour for the shared part and the binding, `short` for what
    follows.
    """
    front: CacheTtl = "1h" if long else "5m"
    return _place_breakpoints(prompt, front, front, short if long else "5m")


def _place_breakpoints(
    prompt: MeasuredPrompt,
    front: CacheTtl,
    binding: CacheTtl,
    behind: CacheTtl,
    *,
    ends: bool = True,
) -> Breakpoints:
    """Mark the shared part, the binding, the card, the end of the previous request if that is far
    back, and the end.

    If these are too many, the binding goes without: it is then written with the card. `ends`: False
    leaves out the end as long as nothing of the conversation is cached.
    """
    head, end = prompt.shared_end, prompt.end
    intermediate, binding_segment = (
        _intermediate_segment(prompt, end),
        _binding_segment(prompt, head),
    )
    card = prompt.last_breakpoint(
        max(
            (i for i, segment in enumerate(prompt.segments) if segment.behind == "block"),
            default=-1,
        )
    )
    chosen = {
        segment: behind
        for segment in ((card, intermediate, end) if ends or not prompt.is_cold else (card,))
        if segment >= 0
    }
    if head >= 0:
        chosen[head] = front
    if binding_segment >= 0 and (binding_segment == card or len(chosen) < MAX_BREAKPOINTS):
        chosen[binding_segment] = binding
    return _order_breakpoints(chosen)


def _binding_segment(prompt: MeasuredPrompt, head: int) -> int:
    """Return the segment in front of the channel card, because other rooms may share the binding.
    -1: none.
    """
    last = head
    for number, segment in enumerate(prompt.segments):
        if segment.behind == "block" and segment.name != "channel":
            last = number
    last = prompt.last_breakpoint(last)
    return last if last > head else -1


def _intermediate_segment(prompt: MeasuredPrompt, end: int) -> int:
    """Return a place for a breakpoint in front of the last one, to find what the last cannot. -1:
    none is needed.

    If nothing of the conversation is known to be cached (a restart forgets), that is the end of the
    previous request: behind it stand one answer and one message.
    """
    at = prompt.longest_hit.segment if prompt.longest_hit is not None else -1
    if end >= 0 and (at < 0 or prompt.segments[at].behind != "said"):
        newest = prompt.segments[end].number
        before = (i for i in range(end, -1, -1) if prompt.segments[i].behind == "said")
        at = next((i for i in before if prompt.segments[i].number == newest - 2), at)
    at = prompt.next_breakpoint(at)
    return (
        at
        if 0 <= at < end and prompt.end_positions[end] - prompt.end_positions[at] >= _SAFE_LOOK_BACK
        else -1
    )


def _order_breakpoints(chosen: dict[int, CacheTtl]) -> Breakpoints:
    """Return the breakpoints in order, none with a longer lifetime than one in front of it."""
    ordered: Breakpoints = []
    long = False
    for segment in sorted(chosen, reverse=True):
        long = long or chosen[segment] == "1h"
        ordered.append((segment, "1h" if long else "5m"))
    return ordered[::-1]


def plan_cache(
    segments: Sequence[PromptSegment],
    *,
    price: Price,
    policy: CachePolicy,
    shared: GapOdds,
    own: GapOdds,
    cached: Sequence[CachedPrefix] = (),
    ratio: float = 1.0,
) -> CachePlan:
    """Choose the breakpoints of one request.

    `shared`: odds of the part that all conversations share. `own`: odds of this conversation.
    `cached`: as `CacheState.find` returns it. `ratio`: billed tokens per estimated token.
    """
    prompt = MeasuredPrompt(
        segments=segments,
        end_positions=tuple(accumulate(segment.positions for segment in segments)),
        min_tokens=price.minimum_tokens,
        longest_hit=cached[-1] if cached else None,
    )
    breakpoints: Breakpoints = []
    if policy.kind == "fixed":
        breakpoints = fixed_breakpoints(
            prompt, long=policy.allows_hour, short=policy.short_lifetime
        )
    elif policy.kind == "auto":
        cost = CacheMultipliers(
            price.read, price.write_5m, price.write_1h if policy.allows_hour else inf
        )
        breakpoints = choose_breakpoints(prompt, shared, own, cost)
    read = _count_hit_segments(prompt, breakpoints, cached)
    writes = tuple((segment, lifetime) for segment, lifetime in breakpoints if segment >= read)
    return CachePlan(
        breakpoints=tuple(
            CacheBreakpoint(behind=segments[i].behind, index=segments[i].number, lifetime=lifetime)
            for i, lifetime in breakpoints
        ),
        read_segments=read,
        writes=writes,
        blocks=account_blocks(segments, read, writes, ratio),
    )


def segments_before_messages(
    segments: Sequence[PromptSegment], cached: Sequence[CachedPrefix]
) -> tuple[tuple[PromptSegment, ...], tuple[CachedPrefix, ...]]:
    """Return the segments without breakpoints in the messages, and what is cached in front of the
    messages.

    For a request with another `tool_choice` than usual: nothing of its messages is read from the
    cache, and what it would write of them is never read
    (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates).
    """
    usable = tuple(
        [
            segment._replace(takes_breakpoint=False) if segment.behind == "said" else segment
            for segment in segments
        ]
    )
    return usable, tuple([place for place in cached if segments[place.segment].behind != "said"])


def _count_hit_segments(
    prompt: MeasuredPrompt, breakpoints: Breakpoints, cached: Sequence[CachedPrefix]
) -> int:
    """Return the number of segments that the breakpoints will find in the cache."""
    for segment, _ in reversed(breakpoints):
        for place in reversed(cached):
            if (
                place.segment <= segment
                and prompt.end_positions[segment] - prompt.end_positions[place.segment]
                < LOOK_BACK_POSITIONS
            ):
                return place.segment + 1
    return 0
