"""Which places of a request to mark. Pure: `plan` tells what comes of it.

The rules (platform.claude.com/docs/en/build-with-claude/prompt-caching): at most four marks; 1 h in front of
5 m; only a marked place is written, and only if the prompt up to it has the model's minimum; a mark reads the
longest cached prefix that ends at most twenty positions back, its own counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from agent.cache.cadence import GapOdds
from agent.cache.lifetimes import CacheMultipliers, is_hour_cheaper
from agent.cache.warmth import CachedPrefix, Digest
from gateway.events import CacheTtl

MAX_BREAKPOINTS = 4
LOOK_BACK_POSITIONS = 20
"""Positions that a mark looks at, its own first."""
_SAFE_LOOK_BACK = 17
"""As many are counted on: thinking is a position of its own, and so is each of what is told for one request and stays
in front of it."""

Breakpoints = list[tuple[int, CacheTtl]]
"""Units to mark behind, ascending, and for how long."""

_PRESUMED_HOUR_GAPS = 0.4
"""Gaps between 5 minutes and an hour that are presumed of what begins with the hour."""
_MIN_LONG_GAPS = 2.0
"""Gaps of more than an hour before which the end of a conversation is marked in any case."""


class PromptSegment(NamedTuple):
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
    is_shared: bool = False
    """It and all in front of it is the same in all conversations."""
    takes_breakpoint: bool = True
    """False: nothing in it can carry a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """A request, measured."""

    segments: Sequence[PromptSegment]
    cumulative_tokens: Sequence[int]
    """Tokens up to the end of each unit."""
    end_positions: Sequence[int]
    """Of the end of each unit, from 1."""
    min_tokens: int
    """Tokens of the shortest prefix that is cached."""
    longest_hit: CachedPrefix | None
    """The longest prefix that is believed to be cached."""

    def last_breakpoint(self, unit: int) -> int:
        """Return the last unit that is worth a mark, from this one backwards; -1: there is none."""
        while unit >= 0 and not self.segments[unit].takes_breakpoint:
            unit -= 1
        return unit if unit >= 0 and self.cumulative_tokens[unit] >= self.min_tokens else -1

    def next_breakpoint(self, unit: int) -> int:
        """Return the first unit that is worth a mark, from this one on; -1: there is none, or no such unit."""
        if unit < 0:
            return -1
        takes = (
            i
            for i in range(unit, len(self.segments))
            if self.segments[i].takes_breakpoint and self.cumulative_tokens[i] >= self.min_tokens
        )
        return next(takes, -1)

    @property
    def shared_end(self) -> int:
        """The last such unit of what all conversations share."""
        return self.last_breakpoint(
            next((i for i, unit in enumerate(self.segments) if not unit.is_shared), len(self.segments)) - 1
        )

    @property
    def end(self) -> int:
        """The last such unit of all."""
        return self.last_breakpoint(len(self.segments) - 1)

    @property
    def is_behind_short(self) -> bool:
        """Whether what is cached of this conversation lives for 5 minutes.

        Behind it an hour would be paid for nothing: what it stands behind is gone before.
        """
        ours = max(self.shared_end, _binding_segment(self, self.shared_end))
        return self.longest_hit is not None and self.longest_hit.segment > ours and self.longest_hit.lifetime == "5m"

    @property
    def is_cold(self) -> bool:
        """Whether nothing of this conversation alone is cached."""
        return self.longest_hit is None or self.longest_hit.segment <= max(
            self.shared_end, _binding_segment(self, self.shared_end)
        )


def choose_breakpoints(places: MeasuredPrompt, shared: GapOdds, own: GapOdds, cost: CacheMultipliers) -> Breakpoints:
    """Mark the places of the plain layout, each for as long as the gaps seen so far show to be cheapest.

    A conversation begins with the plain layout: an hour for what all share and for the binding, 5 minutes behind
    them. The card and what is behind it are kept for an hour once the gaps of this conversation show that it pays,
    and the rest for 5 minutes once they show that the hour does not.
    """
    if cost.write_1h == inf:
        return fixed_breakpoints(places, long=False, short="5m")
    if not own.is_known:
        return fixed_breakpoints(places, long=True, short="5m")
    behind: CacheTtl = "1h" if not places.is_behind_short and is_hour_cheaper(own.kept, own.written, cost) else "5m"
    front, binding = _lifetime_after_hour(shared, cost), _lifetime_after_hour(own, cost)
    short, medium, long = own.gap_counts
    # Somebody must have been there in time, or what was written at the end was hardly ever read.
    seldom = long >= _MIN_LONG_GAPS and short * (1.0 - cost.read) < (medium + long) * (cost.write_5m - 1.0)
    return _place_breakpoints(places, front, binding, behind, ends=behind == "1h" or not seldom)


def _lifetime_after_hour(odds: GapOdds, cost: CacheMultipliers) -> CacheTtl:
    """Choose for a prefix that keeps its size and began with an hour."""
    _, medium, long = odds.gap_counts
    return "1h" if is_hour_cheaper(medium + _PRESUMED_HOUR_GAPS, long, cost) else "5m"


def fixed_breakpoints(places: MeasuredPrompt, *, long: bool, short: CacheTtl) -> Breakpoints:
    """Follow the table: an hour for what all share and for the binding, `short` for what is behind them."""
    front: CacheTtl = "1h" if long else "5m"
    return _place_breakpoints(places, front, front, short if long else "5m")


def _place_breakpoints(
    places: MeasuredPrompt, front: CacheTtl, binding: CacheTtl, behind: CacheTtl, *, ends: bool = True
) -> Breakpoints:
    """Mark what all share, the binding, the card, where the request before ended if that is far back, and the end.

    Where that is too many the binding's mark goes: it is then written with the card. `ends`: False leaves the end
    out as long as nothing of the conversation is cached.
    """
    head, end = places.shared_end, places.end
    stone, bound = _intermediate_segment(places, end), _binding_segment(places, head)
    card = places.last_breakpoint(
        max((i for i, unit in enumerate(places.segments) if unit.behind == "block"), default=-1)
    )
    chosen = {unit: behind for unit in ((card, stone, end) if ends or not places.is_cold else (card,)) if unit >= 0}
    if head >= 0:
        chosen[head] = front
    if bound >= 0 and (bound == card or len(chosen) < MAX_BREAKPOINTS):
        chosen[bound] = binding
    return _order_breakpoints(chosen)


def _binding_segment(places: MeasuredPrompt, head: int) -> int:
    """Return the place in front of the channel's card: other rooms may have the same binding. -1: there is none."""
    last = head
    for number, unit in enumerate(places.segments):
        if unit.behind == "block" and unit.name != "channel":
            last = number
    last = places.last_breakpoint(last)
    return last if last > head else -1


def _intermediate_segment(places: MeasuredPrompt, end: int) -> int:
    """Return a place to mark besides the last, to find what the last cannot see; -1: it sees far enough.

    Where nothing of the conversation is known to be cached (a restart forgets), that is where the request before
    this one must have ended: behind it stand one answer and what was said to it.
    """
    at = places.longest_hit.segment if places.longest_hit is not None else -1
    if end >= 0 and (at < 0 or places.segments[at].behind != "said"):
        newest = places.segments[end].number
        before = (i for i in range(end, -1, -1) if places.segments[i].behind == "said")
        at = next((i for i in before if places.segments[i].number == newest - 2), at)
    at = places.next_breakpoint(at)
    return at if 0 <= at < end and places.end_positions[end] - places.end_positions[at] >= _SAFE_LOOK_BACK else -1


def _order_breakpoints(chosen: dict[int, CacheTtl]) -> Breakpoints:
    """Put the marks in order, none longer-lived than one in front of it."""
    marks: Breakpoints = []
    long = False
    for unit in sorted(chosen, reverse=True):
        long = long or chosen[unit] == "1h"
        marks.append((unit, "1h" if long else "5m"))
    return marks[::-1]
