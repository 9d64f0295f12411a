"""The marks of one request, and what they are expected to read and write. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Literal

from agent.cache.cadence import Odds
from agent.cache.lifetimes import Multipliers
from agent.cache.marks import LOOK_BACK, Marked, Places, Unit, auto, fixed
from agent.cache.prices import Price
from agent.cache.warmth import Cached
from agent.models.base import Mark
from gateway.events import BlockAccount, Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to decide."""

    kind: Literal["auto", "fixed", "off"] = "auto"
    """`auto`: by expected cost. `fixed`: 1 h for what all share and the binding, 5 m behind it. `off`: no marks."""
    allows_hour: bool = True
    """False: the provider has no 1 h lifetime, or may not be asked for it."""
    short_lifetime: Lifetime = "5m"
    """What `fixed` puts behind what is there for longer. `1h` counts only if that is to be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send, and what is expected of it."""

    breakpoints: tuple[Mark, ...]
    read_segments: int
    """Units that are expected to come from the cache, from the first."""
    writes: tuple[tuple[int, Lifetime], ...]
    """Units up to the end of which it is expected to write, each behind the one before or behind what is read."""
    blocks: tuple[BlockAccount, ...]
    """The same in tokens, per block, in the order of the request, without empty ones."""


def plan(
    units: Sequence[Unit],
    *,
    price: Price,
    policy: Policy,
    shared: Odds,
    own: Odds,
    cached: Sequence[Cached] = (),
) -> Plan:
    """Choose the marks of one request.

    `shared` are the odds of what all conversations share, `own` those of this conversation; `cached` is what
    `Warmth.find` says of it now.
    """
    places = Places(
        segments=units,
        cumulative_tokens=tuple(accumulate(unit.tokens for unit in units)),
        end_positions=tuple(accumulate(unit.positions for unit in units)),
        min_tokens=price.minimum_tokens,
        longest_hit=cached[-1] if cached else None,
    )
    marks: Marked = []
    if policy.kind == "fixed":
        marks = fixed(places, long=policy.allows_hour, short=policy.short_lifetime)
    elif policy.kind == "auto":
        cost = Multipliers(price.read, price.write_5m, price.write_1h if policy.allows_hour else inf)
        marks = auto(places, shared, own, cost)
    read = _found(places, marks, cached)
    writes = tuple((unit, lifetime) for unit, lifetime in marks if unit >= read)
    return Plan(
        breakpoints=tuple(
            Mark(behind=units[i].behind, index=units[i].number, lifetime=lifetime) for i, lifetime in marks
        ),
        read_segments=read,
        writes=writes,
        blocks=_accounts(units, read, writes),
    )


def in_front(units: Sequence[Unit], cached: Sequence[Cached]) -> tuple[tuple[Unit, ...], tuple[Cached, ...]]:
    """Return the units with no place for a mark in the messages, and what is cached in front of these.

    For a request with another `tool_choice` than usual: nothing of its messages is read from the cache, and what it
    would write of them nobody reads (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates).
    """
    usable = tuple([unit._replace(takes_breakpoint=False) if unit.behind == "said" else unit for unit in units])
    return usable, tuple([place for place in cached if units[place.segment].behind != "said"])


def by_itself(units: Sequence[Unit], cached: Sequence[Cached]) -> Plan:
    """What is expected of a provider that caches every prefix by itself, and keeps it for a while."""
    read = cached[-1].segment + 1 if cached else 0
    writes: tuple[tuple[int, Lifetime], ...] = tuple((unit, "5m") for unit in range(read, len(units)))
    return Plan(breakpoints=(), read_segments=read, writes=writes, blocks=_accounts(units, read, ()))


def again(units: Sequence[Unit], marks: tuple[Mark, ...]) -> Plan:
    """What is expected of a request for what is cached, to the end: that all of it is read."""
    return Plan(breakpoints=marks, read_segments=len(units), writes=(), blocks=_accounts(units, len(units), ()))


def _found(places: Places, marks: Marked, cached: Sequence[Cached]) -> int:
    """Return how many units the marks will find in the cache."""
    for mark, _ in reversed(marks):
        for place in reversed(cached):
            if place.segment <= mark and places.end_positions[mark] - places.end_positions[place.segment] < LOOK_BACK:
                return place.segment + 1
    return 0


def _accounts(units: Sequence[Unit], read: int, writes: Sequence[tuple[int, Lifetime]]) -> tuple[BlockAccount, ...]:
    accounts: dict[str, list[int]] = {}
    lifetimes: dict[str, Lifetime] = {}
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
        BlockAccount(name=name, tokens=sums[0], read=sums[1], written=sums[2], lifetime=lifetimes.get(name))
        for name, sums in accounts.items()
        if sums[0]
    )
