"""Whether the view of a conversation is folded before a turn, and how. Pure: a plan, which others carry out.

Where nothing presses, old results and old loops go once it pays (`agent.compaction`), or at once where the cache is
cold and it costs nothing. Under pressure the view gets half as long as it may be (`agent.compaction`), whatever that
costs.

A view that must become smaller: which turns are told how, the gentlest means first. Pure.

What a fold saves and what it costs, in tokens at the input price. Pure.

Keeping S tokens that could go costs S * read at each request: a rent. Letting them go writes R tokens to the cache anew
that would have been read, where R is what stands behind the first change: R * (write - read), once. Of R, what is told
in its last form is written that way once, sooner or later; what will change again is written once more at each fold.
Folds are as far apart as is cheapest in the long run if one is made as soon as the rent, the coming turn's included,
has grown to the price of the latter (as in the economic order quantity, where the cost of ordering equals the cost of
holding). And only if what is still to be saved, until the cache is cold and a fold is free, is worth all of R.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Literal

from agent.view_forms import TurnSizes, ViewShape, apply_forms, current_shape, estimate_turn_tokens, fold_further

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldEconomics:
    """What one way to fold comes to. One minus another is what the first one comes to on top of the second."""

    gain: int
    """Tokens that go."""
    rent: float
    """Tokens that could have gone, times the requests that repeated them all the same, the coming turn's included."""
    rewritten: int
    """Tokens behind the first change, as they are told then."""
    rewritten_again: int
    """Of these, what the next fold is going to change."""

    def __sub__(self, other: "FoldEconomics") -> "FoldEconomics":
        return FoldEconomics(
            gain=self.gain - other.gain,
            rent=self.rent - other.rent,
            rewritten=self.rewritten - other.rewritten,
            rewritten_again=self.rewritten_again - other.rewritten_again,
        )

    def is_worthwhile(self, *, read: float, write: float, ahead: float) -> bool:
        """Whether it is time, where the cache is warm."""
        dearer = max(0.0, write - read)
        return self.rent * read >= self.rewritten_again * dearer and self.gain * read * ahead >= self.rewritten * dearer


def assess_fold(
    turns: Sequence[TurnSizes], shape: ViewShape, *, spared: int, excerpts: int, keep: int, loops: int
) -> FoldEconomics:
    """`spared`: results that are whole now in trimmed turns; `keep`, `loops`: newest results and loops that stay."""
    now = current_shape(turns, spared)
    before, after = estimate_turn_tokens(turns, now, excerpts), estimate_turn_tokens(turns, shape, excerpts)
    first = next((place for place, taken in enumerate(before) if after[place] != taken), len(turns))
    last = [
        after[place]
        for place in range(first, len(turns))
        if after[place] != before[place] and after[place] <= turns[place].trimmed
    ]
    coming = sum(turn.requests for turn in turns) / max(1, len(turns))
    since = [*accumulate((turn.requests for turn in reversed(turns)), initial=coming)][-2::-1]
    return FoldEconomics(
        gain=sum(before) - sum(after),
        rent=sum(gain * since[place] for place, gain in _iter_gains(turns, now, shape, keep=keep, loops=loops)),
        rewritten=sum(after[first:]),
        rewritten_again=sum(after[first:]) - sum(last),
    )


def _iter_gains(
    turns: Sequence[TurnSizes], now: ViewShape, shape: ViewShape, *, keep: int, loops: int
) -> Iterator[tuple[int, int]]:
    """What goes, each with the turn since whose end it could have gone."""
    results = [(place, saved) for place, turn in enumerate(turns) for saved in turn.results]
    newest = len(turns) - 1
    for number, (was, is_) in enumerate(zip(_cleared_results(turns, now), _cleared_results(turns, shape), strict=True)):
        if is_ and not was:
            newer = number + keep
            yield results[newer][0] if newer < len(results) else newest, results[number][1]
    for place in range(now.trimmed, shape.trimmed):
        turn = turns[place]
        yield place, turn.whole - turn.trimmed - sum(turn.results)
    for place in range(now.summed, shape.summed):
        yield min(place + loops, newest), turns[place].trimmed - turns[place].summed


def _cleared_results(turns: Sequence[TurnSizes], shape: ViewShape) -> list[bool]:
    """Of each result that a trim would clear, oldest first, whether it is."""
    found, spared = list[bool](), shape.spared
    for place in range(len(turns) - 1, -1, -1):
        for _ in turns[place].results:
            spares = shape.summed <= place < shape.trimmed and spared > 0
            spared -= spares
            found.append(place < shape.trimmed and not spares)
    return found[::-1]


KEEP_SHARE = 0.50
"""Of the budget survives a fold under pressure, so that the next one is far off."""
HEAD_SHARE = 0.25
"""Of what survives may be the text that stands in front of the turns."""
EXCERPTS_SHARE = 1 / 16
"""Of the budget may be results of summarised loops, told word for word."""
MIN_GAIN_TOKENS = 64
"""A fold that nothing presses for saves at least this."""
KEEP_LOOPS = 3
"""Turns, the newest, whose tool loops are not summarised unless something presses for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionParams:
    """What else counts. Every number is finite."""

    budget: int
    """Tokens for head, turns and new lines together."""
    new: int = 0
    """Estimated tokens of the new lines, with their images."""
    head: int = 0
    """Estimated tokens of the text in front of the turns. 0: there is none."""
    scale: float = 1.0
    """Tokens billed for the last prompt per token estimated: every estimate is multiplied by it."""
    full: bool = False
    """The provider counted more in the last prompt than `fold_at_pct` allows."""
    force: int = 0
    """The provider said that this turn's prompt is too long: for the n-th time. 0: it did not."""
    cold: bool = False
    """Nothing of the view is in the provider's cache, so to change it costs nothing."""
    read: float = 0.1
    """Share of the input price for what is read from the cache."""
    write: float = 1.25
    """The same for what is written to it."""
    ahead: float = 20.0
    """Requests expected, this turn's included, before the cache is cold anyway."""
    spared: int = 0
    """`Marks.spared` of the view as it is."""
    keep_results: int = 2
    """So many of the newest results stay whole."""
    excerpts: int = 0
    """Tokens of summarised loops' results that may be told word for word."""
    policy: Literal["auto", "always", "full"] = "auto"
    """auto: fold where it costs nothing or pays; always: before each turn; full: only under pressure."""
    compact_above: int | None = None
    """Tokens of head, turns and new lines above which a model is to summarise what gentler means leave too long.
    None: no model does."""
    keep_tail: int = 0
    """Tokens of the newest turns that a summary or the journal does not take the place of, if there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """How the view is told from now on. Indices are into the turns as they were handed in."""

    start: int = 0
    """`turns[:start]` leave."""
    summed: int = 0
    """`turns[start:summed]` are SUMMED."""
    trimmed: int = 0
    """`turns[summed:trimmed]` are TRIMMED. At least `summed`."""
    spared: int = 0
    """As `Marks.spared`."""
    excerpts: int = 0
    """As `Marks.excerpts_tokens`."""
    head: int = 0
    """What the text in front may take from now on, in estimated tokens. As it is, unless `turns[:start]` leave."""
    kinds: tuple[str, ...] = ()
    """What is done, gentlest first: `trim`, `sum`, `bridge`, `summary`, `drop`. Empty: the view stays."""
    needs_summary: bool = False
    """A model is to summarise `turns[:start]`. If it cannot: decide again with `compact_above=None`."""
    verdict: str = ""
    """Why, in words, with the numbers. Empty: nothing could go."""

    @property
    def changes_view(self) -> bool:
        """Whether the view changes."""
        return bool(self.kinds)


def dump_params(at: CompactionParams) -> str:
    """Canonical JSON."""
    return json.dumps(asdict(at), sort_keys=True, separators=(",", ":"), allow_nan=False)


def load_params(text: str) -> CompactionParams:
    """Reverse `dump_params`.

    What is not there is as it is by default. Raises ValueError or TypeError for anything else.
    """
    return CompactionParams(**json.loads(text))


def plan_compaction(turns: Sequence[TurnSizes], at: CompactionParams) -> CompactionPlan:
    """How the turns in view (oldest first) are told from now on.

    Marks only move forward. Under pressure head and turns take half of the budget afterwards at most, and with the
    new lines no more than all of it: else only the newest turn is left, or nothing if not even that fits.
    """
    excerpts = min(at.excerpts, int(at.budget * EXCERPTS_SHARE) // 64 * 64)  # the same while the blocks change a little
    view = _CompactionView(turns=turns, params=at, current_shape=current_shape(turns, at.spared), excerpts=excerpts)
    found = _plan_if_worthwhile(view)
    return _plan_under_pressure(view, found) or found


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompactionView:
    """What there is to decide about."""

    turns: Sequence[TurnSizes]
    params: CompactionParams
    current_shape: ViewShape
    excerpts: int

    @property
    def current_tokens(self) -> int:
        return self.params.head + self.total_tokens(self.current_shape)

    def total_tokens(self, shape: ViewShape) -> int:
        return sum(estimate_turn_tokens(self.turns, shape, self.excerpts))

    def build_plan(
        self, shape: ViewShape, verdict: str, kinds: tuple[str, ...] = (), head: int | None = None
    ) -> CompactionPlan:
        return CompactionPlan(
            start=shape.start,
            summed=shape.summed,
            trimmed=shape.trimmed,
            spared=shape.spared,
            excerpts=self.excerpts,
            head=self.params.head if head is None else head,
            kinds=kinds,
            needs_summary="summary" in kinds,
            verdict=verdict,
        )

    def changed_forms(self, shape: ViewShape) -> tuple[str, ...]:
        """What is told in a harsher form, of the turns that stay."""
        before = estimate_turn_tokens(self.turns, self.current_shape, self.excerpts)
        changed = [
            before[place] != taken for place, taken in enumerate(estimate_turn_tokens(self.turns, shape, self.excerpts))
        ]
        trims = any(changed[max(shape.start, shape.summed) : shape.trimmed])
        sums = any(changed[max(shape.start, self.current_shape.summed) : shape.summed])
        return (*(("trim",) if trims else ()), *(("sum",) if sums else ()))


def _plan_under_pressure(view: _CompactionView, found: CompactionPlan) -> CompactionPlan | None:
    """What pressure asks for on top of what was found. None: nothing, or the view takes little of what is too much."""
    at, taken = view.params, view.current_tokens
    budget, due = int(at.budget / at.scale), None if at.compact_above is None else int(at.compact_above / at.scale)
    why = _describe_pressure(at, taken, budget, due)
    most = [budget, *([taken] if at.force else []), *([due] if due is not None and taken + at.new > due else [])]
    room = max(0, min(int(min(most) * KEEP_SHARE) >> max(0, at.force - 1), budget - at.new))
    if not why or taken <= room:
        return None
    new_head = int(room * HEAD_SHARE)
    pressed = fit_view(
        apply_forms(view.turns, found),
        FitLimits(
            room=room,
            hard_limit=room if at.force else max(room, budget - at.new),
            head=at.head,
            new_head=new_head,
            excerpts=view.excerpts,
            keep_results=at.keep_results,
            tail_tokens=at.keep_tail,
            can_summarise=due is not None and not at.force,  # what asks for it would be too long as well
            spared=found.spared,
        ),
    )
    shape = pressed.shape
    leaving = _leaving_kinds(view.turns[: shape.start], summarise=pressed.needs_summary)
    rewritten = pressed.rewrites_head and (shape.start > 0 or at.head > new_head)
    kinds = (*view.changed_forms(shape), *(leaving if rewritten else ()))
    head = new_head if rewritten else at.head
    verdict = f"{why}: {taken:,} tokens in view become {head + view.total_tokens(shape):,} at most; wanted are {room:,}"
    return view.build_plan(shape, verdict, kinds, head) if kinds else None


def _describe_pressure(at: CompactionParams, taken: int, budget: int, due: int | None) -> str:
    """What presses, the most pressing first. Empty: nothing."""
    if at.force:
        return f"the provider said that the prompt is too long ({at.force})"
    if taken + at.new > budget:
        return f"{taken + at.new:,} tokens do not fit {budget:,}"
    if at.full:
        return "the provider counted a prompt that is nearly full"
    if due is not None and taken + at.new > due:
        return f"{taken + at.new:,} tokens are more than the {due:,} from which on a summary is due"
    return ""


def _leaving_kinds(turns: Sequence[TurnSizes], *, summarise: bool) -> tuple[str, ...]:
    """What stands for turns that leave."""
    if summarise:
        return ("summary",)
    covered = [turn.is_in_journal for turn in turns]
    return (*(("bridge",) if any(covered) else ()), *(("drop",) if not all(covered) or not covered else ()))


def _plan_if_worthwhile(view: _CompactionView) -> CompactionPlan:
    """Nothing presses: fold if it costs nothing, or pays."""
    turns, at, count = view.turns, view.params, len(view.turns)
    trim = fold_further(turns, view.current_shape, trimmed=count, keep=at.keep_results)
    both = fold_further(turns, view.current_shape, summed=count - KEEP_LOOPS, trimmed=count, keep=at.keep_results)
    gentle, harsh = (
        assess_fold(turns, shape, spared=at.spared, excerpts=view.excerpts, keep=at.keep_results, loops=KEEP_LOOPS)
        for shape in (trim, both)
    )
    best = max(gentle, harsh, key=lambda one: one.gain)
    if best.gain <= 0:
        return view.build_plan(view.current_shape, "")
    if at.policy == "full":
        return view.build_plan(
            view.current_shape, f"{best.gain:,} tokens could go, which only a full window is a reason for"
        )
    if at.policy == "always":
        shape = trim if gentle.gain > 0 else view.current_shape
        return view.build_plan(shape, f"{gentle.gain:,} tokens go, as always", view.changed_forms(shape))
    if _is_worth(at, harsh - gentle) and (_is_worth(at, gentle) or _is_worth(at, harsh)):
        return view.build_plan(both, _format_savings(at, harsh), view.changed_forms(both))
    if _is_worth(at, gentle):
        return view.build_plan(trim, _format_savings(at, gentle), view.changed_forms(trim))
    return view.build_plan(view.current_shape, _format_savings(at, best))


def _is_worth(at: CompactionParams, one: FoldEconomics) -> bool:
    return one.gain >= MIN_GAIN_TOKENS and (at.cold or one.is_worthwhile(read=at.read, write=at.write, ahead=at.ahead))


def _format_savings(at: CompactionParams, one: FoldEconomics) -> str:
    """The numbers, in tokens at the input price."""
    if at.cold:
        return f"{one.gain:,} tokens could go; nothing is cached, so it costs nothing"
    dearer = max(0.0, at.write - at.read)
    return (
        f"{one.gain:,} tokens could go: they have cost {one.rent * at.read:,.0f} since they could, and in "
        f"{at.ahead:.1f} more requests will cost {one.gain * at.read * at.ahead:,.0f}; rewriting {one.rewritten:,} "
        f"costs {one.rewritten * dearer:,.0f}, of which {one.rewritten_again * dearer:,.0f} each time anew"
    )
