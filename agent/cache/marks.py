"""Which places of a request to mark. Pure: `plan` tells what comes of it.

The rules (platform.claude.com/docs/en/build-with-claude/prompt-caching): at most four marks; 1 h in front of
5 m; only a marked place is written, and only if the prompt up to it has the model's minimum; a mark reads the
longest cached prefix that ends at most twenty positions back, its own counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from agent.cache.lifetimes import Expected
from agent.cache.warmth import Cached, Digest
from gateway.events import Lifetime

MAX_MARKS = 4
LOOK_BACK = 20
"""Positions that a mark looks at, its own first."""
_SAFE = 17
"""As many are counted on: thinking is a position of its own, and so is each of what is told for one request and stays
in front of it."""

Marked = list[tuple[int, Lifetime]]
"""Units to mark behind, ascending, and for how long."""

_LIFETIMES: tuple[Lifetime | None, ...] = (None, "5m", "1h")
"""From the shortest."""


class Unit(NamedTuple):
    """A piece of a request that ends at a place where a mark can stand: the tools, a block, a `Said`.

    A `Said` may be several, one for each piece; then only the last of them is `markable`.
    """

    name: str
    """tools, identity, skills, binding, channel or history."""
    behind: Literal["tools", "block", "said"]
    number: int
    """`Mark.index`."""
    tokens: int
    digest: Digest
    """Of all bytes of the request up to the end of this unit."""
    positions: int = 1
    """Tools, blocks or content blocks that it consists of."""
    shared: bool = False
    """It and all in front of it is the same in all conversations."""
    markable: bool = True
    """False: nothing in it can carry a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A request, measured."""

    units: Sequence[Unit]
    upto: Sequence[int]
    """Tokens up to the end of each unit."""
    position: Sequence[int]
    """Of the end of each unit, from 1."""
    minimum: int
    """Tokens of the shortest prefix that is cached."""
    hit: Cached | None
    """The longest prefix that is believed to be cached."""

    def last(self, unit: int) -> int:
        """Return the last unit that is worth a mark, from this one backwards; -1: there is none."""
        while unit >= 0 and not self.units[unit].markable:
            unit -= 1
        return unit if unit >= 0 and self.upto[unit] >= self.minimum else -1

    def next(self, unit: int) -> int:
        """Return the first unit that is worth a mark, from this one on; -1: there is none, or no such unit."""
        if unit < 0:
            return -1
        takes = (i for i in range(unit, len(self.units)) if self.units[i].markable and self.upto[i] >= self.minimum)
        return next(takes, -1)

    @property
    def head(self) -> int:
        """The last such unit of what all conversations share."""
        return self.last(next((i for i, unit in enumerate(self.units) if not unit.shared), len(self.units)) - 1)

    @property
    def end(self) -> int:
        """The last such unit of all."""
        return self.last(len(self.units) - 1)

    @property
    def behind_short(self) -> bool:
        """Whether what is cached of this conversation lives for 5 minutes.

        Behind it an hour would be paid for nothing: what it stands behind is gone before.
        """
        ours = max(self.head, _binding(self, self.head))
        return self.hit is not None and self.hit.unit > ours and self.hit.lifetime == "5m"

    def tokens(self, start: int, end: int) -> int:
        """Between the ends of two units; -1: the beginning."""
        return self.upto[end] - (self.upto[start] if start >= 0 else 0) if end > start else 0


def auto(places: Places, shared: Expected, own: Expected, *, known: bool) -> Marked:
    """Choose by expected cost. `known` is False if nothing is known of how often what is shared is asked for."""
    head, end, hit = places.head, places.end, places.hit
    front, tail = _lifetimes(places, head, end, (shared, own))
    chosen: dict[int, Lifetime] = {}
    inner = -1 if known or hit is not None else places.last(head - 1)
    if front == "1h" and inner >= 0 and 2 * places.upto[inner] >= places.upto[head]:
        # A guess, so not all is put on it: most of what is shared for an hour, the rest for 5 minutes.
        chosen[inner], front, tail = "1h", "5m", tail and "5m"
    if head >= 0 and (front or hit is not None):
        chosen[head] = front or "5m"
    if tail:
        binding, stone = _binding(places, head), _stepping_stone(places, end)
        if binding > head:
            # Other conversations stand behind it as well: it must not die with the one that wrote it first.
            chosen[binding] = front or tail
        if stone > binding:
            chosen[stone] = tail
        chosen[end] = tail
    elif hit is not None and (place := places.next(hit.unit)) > head:
        chosen[place] = "5m"  # only read; should it be gone after all, this is the cheaper surprise
    return _ordered(chosen)


def _lifetimes(
    places: Places, head: int, end: int, expected: tuple[Expected, Expected]
) -> tuple[Lifetime | None, Lifetime | None]:
    """Choose for what is shared and for this conversation together: the first may not be the shorter one."""
    shared, own = expected
    hit = places.hit or Cached(-1, "5m")
    fronts = _to_be_had(shared) if head > hit.unit else (shared.best(),)  # what is read has its lifetime already
    tails = _to_be_had(own) if end > head else (None,)
    tokens = places.tokens(hit.unit, head), places.tokens(max(hit.unit, head), end)
    pairs = [
        (tokens[0] * shared.of(front) + tokens[1] * own.of(tail), front, tail)
        for front in fronts
        for tail in tails
        if not tokens[0] or _LIFETIMES.index(tail) <= _LIFETIMES.index(front)
    ]
    _, front, tail = min(pairs, key=lambda pair: pair[0])
    return front, tail


def _to_be_had(expected: Expected) -> tuple[Lifetime | None, ...]:
    return tuple(lifetime for lifetime in _LIFETIMES if expected.of(lifetime) < inf)


def fixed(places: Places, *, long: bool, short: Lifetime) -> Marked:
    """Follow the table: an hour for what all share and for the binding, `short` for what is behind them."""
    head, end = places.head, places.end
    stone = _stepping_stone(places, end)
    card = max((i for i, unit in enumerate(places.units) if unit.behind == "block"), default=-1)
    behind: Lifetime = short if long else "5m"
    chosen = {unit: behind for unit in (places.last(card) if stone < 0 else stone, end) if unit >= 0}
    for unit in (head, _binding(places, head)):
        if unit >= 0:
            chosen[unit] = "1h" if long else "5m"
    return _ordered(chosen)


def _binding(places: Places, head: int) -> int:
    """Return the place in front of the channel's card: other rooms may have the same binding. -1: there is none."""
    last = head
    for number, unit in enumerate(places.units):
        if unit.behind == "block" and unit.name != "channel":
            last = number
    last = places.last(last)
    return last if last > head else -1


def _stepping_stone(places: Places, end: int) -> int:
    """Return a place to mark besides the last, to find what the last cannot see; -1: it sees far enough.

    Where nothing of the conversation is known to be cached (a restart forgets), that is where the request before
    this one must have ended: behind it stand one answer and what was said to it.
    """
    at = places.hit.unit if places.hit is not None else -1
    if end >= 0 and (at < 0 or places.units[at].behind != "said"):
        newest = places.units[end].number
        before = (i for i in range(end, -1, -1) if places.units[i].behind == "said")
        at = next((i for i in before if places.units[i].number == newest - 2), at)
    at = places.next(at)
    return at if 0 <= at < end and places.position[end] - places.position[at] >= _SAFE else -1


def _ordered(chosen: dict[int, Lifetime]) -> Marked:
    """Put the marks in order, none longer-lived than one in front of it, and no more than may be.

    Where there are too many, the foremost goes: `auto`'s guess, without which the rest is written all the same.
    """
    marks: Marked = []
    long = False
    for unit in sorted(chosen, reverse=True)[:MAX_MARKS]:
        long = long or chosen[unit] == "1h"
        marks.append((unit, "1h" if long else "5m"))
    return marks[::-1]
