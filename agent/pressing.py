"""A view that must become smaller: which turns are told how, the gentlest means first. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agent.layout import TurnSizes, ViewShape, current_shape, estimate_turn_tokens, fold_further

_NEWEST_SHARE = 0.5
"""Of the room may be taken by the newest turn before its results give way to what was said before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitLimits:
    """What there is room for, in tokens."""

    room: int
    """For head and turns."""
    hard_limit: int
    """For them, where only the newest turn is left. At least `room`."""
    head: int
    """Taken by the text in front of the turns as it is."""
    new_head: int
    """May be taken by it once turns leave."""
    excerpts: int
    keep_results: int
    """So many of the newest results stay whole if they can."""
    tail_tokens: int
    """Of the newest turns stays word for word where the journal or a summary stands for the others."""
    can_summarise: bool
    """A model can make a summary."""
    spared: int
    """As it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """What came of it."""

    shape: ViewShape
    needs_summary: bool = False
    rewrites_head: bool = False
    """The text in front is written anew."""


def fit_view(turns: Sequence[TurnSizes], at: FitLimits) -> FitResult:
    """Return the gentlest way that leaves what there is room for; else the newest turn alone, or nothing."""
    newest = max(0, len(turns) - 1)
    if found := _find_gentlest(turns, at, 0, at.room - at.head):
        return FitResult(shape=found)
    room = at.room - at.new_head
    written = 0
    while written < newest and turns[written].is_in_journal:
        written += 1
    bridge = min(written, _tail_start(turns, at, at.tail_tokens))
    if bridge and (found := _find_gentlest(turns, at, bridge, room)):
        return FitResult(shape=found, rewrites_head=True)
    leaving = _tail_start(turns, at, min(at.tail_tokens, room)) if at.can_summarise else 0
    if leaving and (found := _find_gentlest(turns, at, leaving, room)):
        return FitResult(shape=found, needs_summary=True, rewrites_head=True)
    if not (found := _drop_oldest(turns, at, room)):
        found = fold_further(turns, current_shape(turns, at.spared), start=newest, summed=len(turns), keep=0)
        head = at.new_head if newest > 0 else min(at.head, at.new_head)
        if sum(estimate_turn_tokens(turns, found, at.excerpts)) > at.hard_limit - head:
            found = ViewShape(start=len(turns), summed=len(turns), trimmed=len(turns))
    return FitResult(shape=found, needs_summary=at.can_summarise and found.start > 0, rewrites_head=True)


def _find_gentlest(turns: Sequence[TurnSizes], at: FitLimits, start: int, room: int) -> ViewShape | None:
    """Of the ways to tell the turns from `start` on, the first that fits."""
    now = current_shape(turns, at.spared)
    trimmed = fold_further(turns, now, start=start, trimmed=len(turns) - 1, keep=at.keep_results)
    if sum(estimate_turn_tokens(turns, trimmed, at.excerpts)) <= room:
        return trimmed
    loops = _summarize_loops(turns, at, trimmed, room)
    ways = (loops, *_trim_newest(turns, at, now, loops))
    return next((shape for shape in ways if sum(estimate_turn_tokens(turns, shape, at.excerpts)) <= room), None)


def _trim_newest(turns: Sequence[TurnSizes], at: FitLimits, now: ViewShape, shape: ViewShape) -> Iterator[ViewShape]:
    """The newest turn trimmed as well; and no result spared."""
    for keep in (at.keep_results, 0):
        yield fold_further(turns, now, start=shape.start, summed=shape.summed, trimmed=len(turns), keep=keep)


def _summarize_loops(turns: Sequence[TurnSizes], at: FitLimits, shape: ViewShape, room: int) -> ViewShape:
    """As few of the oldest tool loops summed as leaves what there is room for; else as many as helps."""
    taken = estimate_turn_tokens(turns, shape, 0)
    total, excerpts = sum(taken), sum(turn.whole - turn.summed for turn in turns[shape.start : shape.summed])
    best = (total + min(at.excerpts, excerpts), shape.summed)
    for place in range(shape.summed, len(turns) - 1):
        total -= taken[place] - turns[place].summed
        excerpts += turns[place].whole - turns[place].summed
        best = min(best, (total + min(at.excerpts, excerpts), place + 1))
        if best[0] <= room:
            break
    return fold_further(
        turns,
        current_shape(turns, at.spared),
        start=shape.start,
        summed=best[1],
        trimmed=shape.trimmed,
        keep=at.keep_results,
    )


def _tail_start(turns: Sequence[TurnSizes], at: FitLimits, most: int) -> int:
    """Where the newest turns begin that take so much at most; there is always one."""
    shape = fold_further(turns, current_shape(turns, at.spared), trimmed=len(turns) - 1, keep=at.keep_results)
    place, taken = max(0, len(turns) - 1), estimate_turn_tokens(turns, shape, at.excerpts)
    left = most - sum(taken[place:])
    while place > 0 and taken[place - 1] <= left:
        place -= 1
        left -= taken[place]
    return place


def _drop_oldest(turns: Sequence[TurnSizes], at: FitLimits, room: int) -> ViewShape | None:
    """As few of the oldest turns leave as possible; None: not even the newest one fits without being summed."""
    if not turns:
        return None
    now, newest = current_shape(turns, at.spared), len(turns) - 1
    summed = fold_further(turns, now, summed=newest, trimmed=newest, keep=at.keep_results)
    shapes = [summed, *_trim_newest(turns, at, now, summed)]
    for shape in shapes:
        taken = estimate_turn_tokens(turns, shape, at.excerpts)
        if taken[newest] > (room * _NEWEST_SHARE if shape is not shapes[-1] else room):
            continue
        start, left = newest, room - taken[newest]
        while start > 0 and taken[start - 1] <= left:
            start -= 1
            left -= taken[start]
        return _find_gentlest(turns, at, start, room) or replace(shape, start=start)
    return None
