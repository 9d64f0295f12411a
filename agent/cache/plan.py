"""The marks of one request, and what they are expected to read and write. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Literal

from agent.cache.cadence import GapOdds
from agent.cache.lifetimes import CacheMultipliers
from agent.cache.marks import (
    LOOK_BACK_POSITIONS,
    Breakpoints,
    MeasuredPrompt,
    PromptSegment,
    choose_breakpoints,
    fixed_breakpoints,
)
from agent.cache.prices import Price
from agent.cache.warmth import CachedPrefix
from agent.models.base import CacheBreakpoint
from gateway.events import BlockUsage, CacheTtl


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How to decide."""

    kind: Literal["auto", "fixed", "off"] = "auto"
    """`choose_breakpoints`: by expected cost. `fixed_breakpoints`: 1 h for what all share and the binding, 5 m behind
    it. `off`: no marks."""
    allows_hour: bool = True
    """False: the provider has no 1 h lifetime, or may not be asked for it."""
    short_lifetime: CacheTtl = "5m"
    """What `fixed_breakpoints` puts behind what is there for longer. `1h` counts only if that is to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What to send, and what is expected of it."""

    breakpoints: tuple[CacheBreakpoint, ...]
    read_segments: int
    """Units that are expected to come from the cache, from the first."""
    writes: tuple[tuple[int, CacheTtl], ...]
    """Units up to the end of which it is expected to write, each behind the one before or behind what is read."""
    blocks: tuple[BlockUsage, ...]
    """The same in tokens, per block, in the order of the request, without empty ones."""


def plan_cache(
    units: Sequence[PromptSegment],
    *,
    price: Price,
    policy: CachePolicy,
    shared: GapOdds,
    own: GapOdds,
    cached: Sequence[CachedPrefix] = (),
) -> CachePlan:
    """Choose the marks of one request.

    `shared` are the odds of what all conversations share, `own` those of this conversation; `cached` is what
    `Warmth.find` says of it now.
    """
    places = MeasuredPrompt(
        segments=units,
        cumulative_tokens=tuple(accumulate(unit.tokens for unit in units)),
        end_positions=tuple(accumulate(unit.positions for unit in units)),
        min_tokens=price.minimum_tokens,
        longest_hit=cached[-1] if cached else None,
    )
    marks: Breakpoints = []
    if policy.kind == "fixed":
        marks = fixed_breakpoints(places, long=policy.allows_hour, short=policy.short_lifetime)
    elif policy.kind == "auto":
        cost = CacheMultipliers(price.read, price.write_5m, price.write_1h if policy.allows_hour else inf)
        marks = choose_breakpoints(places, shared, own, cost)
    read = _count_hit_segments(places, marks, cached)
    writes = tuple((unit, lifetime) for unit, lifetime in marks if unit >= read)
    return CachePlan(
        breakpoints=tuple(
            CacheBreakpoint(behind=units[i].behind, index=units[i].number, lifetime=lifetime) for i, lifetime in marks
        ),
        read_segments=read,
        writes=writes,
        blocks=_account_blocks(units, read, writes),
    )


def segments_before_messages(
    units: Sequence[PromptSegment], cached: Sequence[CachedPrefix]
) -> tuple[tuple[PromptSegment, ...], tuple[CachedPrefix, ...]]:
    """Return the units with no place for a mark in the messages, and what is cached in front of these.

    For a request with another `tool_choice` than usual: nothing of its messages is read from the cache, and what it
    would write of them nobody reads (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates).
    """
    usable = tuple([unit._replace(takes_breakpoint=False) if unit.behind == "said" else unit for unit in units])
    return usable, tuple([place for place in cached if units[place.segment].behind != "said"])


def plan_automatic(units: Sequence[PromptSegment], cached: Sequence[CachedPrefix]) -> CachePlan:
    """What is expected of a provider that caches every prefix by itself, and keeps it for a while."""
    read = cached[-1].segment + 1 if cached else 0
    writes: tuple[tuple[int, CacheTtl], ...] = tuple((unit, "5m") for unit in range(read, len(units)))
    return CachePlan(breakpoints=(), read_segments=read, writes=writes, blocks=_account_blocks(units, read, ()))


def plan_reread(units: Sequence[PromptSegment], marks: tuple[CacheBreakpoint, ...]) -> CachePlan:
    """What is expected of a request for what is cached, to the end: that all of it is read."""
    return CachePlan(
        breakpoints=marks, read_segments=len(units), writes=(), blocks=_account_blocks(units, len(units), ())
    )


def _count_hit_segments(places: MeasuredPrompt, marks: Breakpoints, cached: Sequence[CachedPrefix]) -> int:
    """Return how many units the marks will find in the cache."""
    for mark, _ in reversed(marks):
        for place in reversed(cached):
            if (
                place.segment <= mark
                and places.end_positions[mark] - places.end_positions[place.segment] < LOOK_BACK_POSITIONS
            ):
                return place.segment + 1
    return 0


def _account_blocks(
    units: Sequence[PromptSegment], read: int, writes: Sequence[tuple[int, CacheTtl]]
) -> tuple[BlockUsage, ...]:
    accounts: dict[str, list[int]] = {}
    lifetimes: dict[str, CacheTtl] = {}
    pending = list(writes)
    for index, unit in enumerate(units):
        while pending and pending[0][0] < index:
            pending.pop(0)
        sums = accounts.setdefault(unit.name, [0, 0, 0])
        sums[0] += unit.tokens
        if index < read:
            sums[1] += unit.tokens
        elif pending:
            sums[2] += unit.tokens
            lifetimes.setdefault(unit.name, pending[0][1])
    return tuple(
        BlockUsage(name=name, tokens=sums[0], read=sums[1], written=sums[2], lifetime=lifetimes.get(name))
        for name, sums in accounts.items()
        if sums[0]
    )
