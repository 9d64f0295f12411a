"""Compaction: decides before a turn whether the view of a conversation is folded, and how. Pure: it
only plans.

Without pressure, old results and old tool loops go once that pays, or at once if the cache is cold
and it costs nothing. Under pressure the view shrinks to half of its limit, whatever that costs.
`plan_compaction` decides, `fold_further` finds the next way to make a view smaller, `FoldEconomics`
weighs the savings of a fold against its cost.

The economics, in tokens at the input price: keeping S tokens that could go costs S * read at each
request: a rent. Removing them writes R tokens to the cache anew that would have been read, where R
is what stands behind the first change: R * (write - read), once. The part of R that is in its final
form is written that way once, sooner or later; the part that will change again is written once more
at each fold. Over time it is cheapest to fold as soon as the rent, the coming turn's included, has
grown to the price of the latter part (as in the economic order quantity, where the cost of ordering
equals the cost of holding), and only if the savings to come, until the cache is cold and a fold is
free, are worth all of R.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal

from agent.view import (
    TurnSizes,
    ViewShape,
    apply_forms,
    current_shape,
    estimate_turn_tokens,
    fold_further,
)
from gateway.core.frozen import frozen

KEEP_SHARE = 0.50
"""Share of the budget that survives a fold under pressure, so that the next fold is far off."""
HEAD_SHARE = 0.25
"""Share of what survives that the head may take."""
MIN_GAIN_TOKENS = 64
"""Least savings of a fold without pressure."""
KEEP_LOOPS = 3
"""Number of the newest turns whose tool loops are only summarized under pressure."""
_NEWEST_SHARE = 0.5
"""Share of the room that the newest turn may take before its results are shortened in favour of
older turns."""


@frozen
class CompactionParams:
    """Everything besides the turns that a plan depends on. Every number is finite. Stored as
    JSON.
    """

    budget: int
    """Tokens for head, turns and new messages together."""
    new: int = 0
    """Estimated tokens of the new messages, with their images."""
    head: int = 0
    """Estimated tokens of the head. 0: none."""
    scale: float = 1.0
    """Billed tokens of the last prompt per estimated token. Every estimate is multiplied by it."""
    full: bool = False
    """True: the provider counted more in the last prompt than the share of the window for folds
    allows."""
    force: int = 0
    """Number of times that the provider refused this turn's prompt as too long. 0: not refused."""
    cold: bool = False
    """True: nothing of the view is in the provider's cache, so a change costs nothing."""
    read: float = 0.1
    """Price of reading from the cache, as a share of the input price."""
    write: float = 1.25
    """Price of writing to the cache, as a share of the input price."""
    ahead: float = 20.0
    """Expected requests, this turn's included, before the cache is cold anyway."""
    spared: int = 0
    """`ViewShape.spared` of the present view."""
    keep_results: int = 2
    """Number of the newest results that stay whole."""
    policy: Literal["auto", "always", "full"] = "auto"
    """auto: fold if it costs nothing or pays; always: before each turn; full: only under
    pressure."""
    compact_above: int | None = None
    """Tokens of head, turns and new messages above which a model writes a summary if gentler means
    leave too much. None: no summaries."""
    keep_tail: int = 0
    """Tokens of the newest turns that neither a summary nor the journal replaces, if there is
    room."""


@frozen
class CompactionPlan(ViewShape):
    """Shape of the view from now on, and how it comes about. Indices refer to the turns as they
    were passed in.
    """

    head: int = 0
    """Limit of the head from now on, in estimated tokens. Unchanged unless `turns[:start]`
    leave."""
    kinds: tuple[str, ...] = ()
    """Steps taken, gentlest first: `trim`, `sum`, `bridge`, `summary`, `drop`. Empty: the view
    stays as it is."""
    verdict: str = ""
    """Reason in words, with the numbers. Empty: nothing could go."""

    @property
    def needs_summary(self) -> bool:
        """A model is to summarize `turns[:start]`. If it cannot, plan again with
        `compact_above=None`.
        """
        return "summary" in self.kinds


@frozen
class FoldEconomics:
    """Savings and costs of one way to fold. The difference of two: those of the first on top of the
    second.
    """

    gain: int
    rent: float
    """Tokens that could have gone, times the requests that repeated them in the meantime, the
    coming turn's included."""
    rewritten: int
    """Tokens behind the first change, in their new form."""
    rewritten_again: int
    """Part of these that the next fold is going to change."""

    def __sub__(self, other: "FoldEconomics") -> "FoldEconomics":
        return FoldEconomics(
            gain=self.gain - other.gain,
            rent=self.rent - other.rent,
            rewritten=self.rewritten - other.rewritten,
            rewritten_again=self.rewritten_again - other.rewritten_again,
        )

    def is_worthwhile(self, params: CompactionParams) -> bool:
        surcharge = max(0.0, params.write - params.read)
        return self.gain >= MIN_GAIN_TOKENS and (
            params.cold
            or (
                self.rent * params.read >= self.rewritten_again * surcharge
                and self.gain * params.read * params.ahead >= self.rewritten * surcharge
            )
        )

    def describe(self, params: CompactionParams) -> str:
        """Return the numbers in words, in tokens at the input price."""
        if params.cold:
            return f"{self.gain:,} tokens could go; nothing is cached, so it costs nothing"
        surcharge = max(0.0, params.write - params.read)
        return (
            f"{self.gain:,} tokens could go: they have cost {self.rent * params.read:,.0f} since "
            f"they could, and in {params.ahead:.1f} more requests will cost "
            f"{self.gain * params.read * params.ahead:,.0f}; rewriting {self.rewritten:,} costs "
            f"{self.rewritten * surcharge:,.0f}, of which {self.rewritten_again * surcharge:,.0f} "
            "each time anew"
        )


class _CompactionView:
    def __init__(self, turns: Sequence[TurnSizes], params: CompactionParams) -> None:
        self.turns, self.params = turns, params
        self.now = current_shape(turns, params.spared)

    def sizes(self, shape: ViewShape) -> list[int]:
        return estimate_turn_tokens(self.turns, shape)

    def total(self, shape: ViewShape) -> int:
        return sum(self.sizes(shape))

    def fold(
        self, *, start: int = 0, summed: int = 0, trimmed: int = 0, keep: int | None = None
    ) -> ViewShape:
        """Return the present shape folded at least so far. `keep`: newest results that stay; None:
        as configured.
        """
        keep = self.params.keep_results if keep is None else keep
        return fold_further(
            self.turns, self.now, start=start, summed=summed, trimmed=trimmed, keep=keep
        )

    def build_plan(
        self, shape: ViewShape, verdict: str, kinds: tuple[str, ...] = (), head: int | None = None
    ) -> CompactionPlan:
        return CompactionPlan(
            start=shape.start,
            summed=shape.summed,
            trimmed=shape.trimmed,
            spared=shape.spared,
            head=self.params.head if head is None else head,
            kinds=kinds,
            verdict=verdict,
        )

    def changed_forms(self, shape: ViewShape) -> tuple[str, ...]:
        """Return the kinds of harsher forms among the turns that stay."""
        changed = [
            before != after
            for before, after in zip(self.sizes(self.now), self.sizes(shape), strict=True)
        ]
        trims = any(changed[max(shape.start, shape.summed) : shape.trimmed])
        sums = any(changed[max(shape.start, self.now.summed) : shape.summed])
        return (*(("trim",) if trims else ()), *(("sum",) if sums else ()))

    def find_gentlest(self, start: int, room: int) -> ViewShape | None:
        """Return the first shape that fits, of those that keep the turns from `start` on."""
        trimmed = self.fold(start=start, trimmed=len(self.turns) - 1)
        if self.total(trimmed) <= room:
            return trimmed
        loops = self._summarize_loops(trimmed, room)
        return next(
            (shape for shape in (loops, *self._trim_newest(loops)) if self.total(shape) <= room),
            None,
        )

    def drop_oldest(self, room: int) -> ViewShape | None:
        """Drop as few of the oldest turns as possible. None: even the newest one only fits if it is
        summarized.
        """
        if not self.turns:
            return None
        newest = len(self.turns) - 1
        summed = self.fold(summed=newest, trimmed=newest)
        shapes = [summed, *self._trim_newest(summed)]
        for shape in shapes:
            taken = self.sizes(shape)
            if taken[newest] > (room * _NEWEST_SHARE if shape is not shapes[-1] else room):
                continue
            start = _first_fitting(taken, newest, room - taken[newest])
            return self.find_gentlest(start, room) or replace(shape, start=start)
        return None

    def tail_start(self, most: int) -> int:
        """Return the index of the first of the newest turns that take at most `most` tokens: at
        least one turn.
        """
        newest, taken = (
            max(0, len(self.turns) - 1),
            self.sizes(self.fold(trimmed=len(self.turns) - 1)),
        )
        return _first_fitting(taken, newest, most - sum(taken[newest:]))

    def _trim_newest(self, shape: ViewShape) -> Iterator[ViewShape]:
        """Yield the shape with the newest turn trimmed as well, and then with no result spared."""
        for keep in (self.params.keep_results, 0):
            yield self.fold(
                start=shape.start, summed=shape.summed, trimmed=len(self.turns), keep=keep
            )

    def _summarize_loops(self, shape: ViewShape, room: int) -> ViewShape:
        """Summarize as few of the oldest tool loops as needed to fit, or else as many as make the
        view smaller.
        """
        taken = self.sizes(shape)
        total = sum(taken)
        best = total, shape.summed
        for index in range(shape.summed, len(self.turns) - 1):
            total -= taken[index] - self.turns[index].summed
            best = min(best, (total, index + 1))
            if total <= room:
                break
        return self.fold(start=shape.start, summed=best[1], trimmed=shape.trimmed)


def _first_fitting(sizes: Sequence[int], index: int, left: int) -> int:
    """Return the first index from which on the turns in front of `index` fit into what is left."""
    while index > 0 and sizes[index - 1] <= left:
        index -= 1
        left -= sizes[index]
    return index


def plan_compaction(turns: Sequence[TurnSizes], params: CompactionParams) -> CompactionPlan:
    """Decide the shape of the view. `turns`: those in view, oldest first.

    Marks only move forward. Under pressure, head and turns take at most half of the budget
    afterwards, and together with the new messages at most all of it: otherwise only the newest turn
    is left, or nothing if not even that fits.
    """
    view = _CompactionView(turns, params)
    found = _plan_if_worthwhile(view)
    return _plan_under_pressure(view, found) or found


def _plan_under_pressure(view: _CompactionView, found: CompactionPlan) -> CompactionPlan | None:
    """Return the plan that pressure requires on top of `found`.

    None: there is no pressure, or the view is small enough already.
    """
    params, taken = view.params, view.params.head + view.total(view.now)
    budget = int(params.budget / params.scale)
    summary_due = None if params.compact_above is None else int(params.compact_above / params.scale)
    pressure = _describe_pressure(params, taken, budget, summary_due)
    limits = [
        budget,
        *([taken] if params.force else []),
        *([summary_due] if summary_due is not None and taken + params.new > summary_due else []),
    ]
    room = max(
        0, min(int(min(limits) * KEEP_SHARE) >> max(0, params.force - 1), budget - params.new)
    )
    if not pressure or taken <= room:
        return None
    new_head = int(room * HEAD_SHARE)
    fitting = _CompactionView(apply_forms(view.turns, found), replace(params, spared=found.spared))
    shape = fitting.find_gentlest(0, room - params.head)
    rewrites_head, needs_summary = shape is None, False
    if shape is None:
        shape, needs_summary = _fit_with_new_head(
            fitting,
            room=room - new_head,
            hard_limit=room if params.force else max(room, budget - params.new),
            new_head=new_head,
            # After a refusal the request for a summary would be too long as well.
            can_summarise=summary_due is not None and not params.force,
        )
    leaving = _leaving_kinds(view.turns[: shape.start], summarise=needs_summary)
    rewritten = rewrites_head and (shape.start > 0 or params.head > new_head)
    kinds = (*view.changed_forms(shape), *(leaving if rewritten else ()))
    head = new_head if rewritten else params.head
    verdict = (
        f"{pressure}: {taken:,} tokens in view become {head + view.total(shape):,} at most; "
        f"wanted are {room:,}"
    )
    return view.build_plan(shape, verdict, kinds, head) if kinds else None


def _fit_with_new_head(
    view: _CompactionView, *, room: int, hard_limit: int, new_head: int, can_summarise: bool
) -> tuple[ViewShape, bool]:
    """Return the gentlest shape whose turns fit once the head is written anew, or the newest turn
    alone, or nothing.

    Also whether a summary is needed. `hard_limit`: room for head and turns if only the newest turn
    is left.
    """
    turns, newest = view.turns, max(0, len(view.turns) - 1)
    journaled = 0
    while journaled < newest and turns[journaled].is_in_journal:
        journaled += 1
    bridge = min(journaled, view.tail_start(view.params.keep_tail))
    if bridge and (found := view.find_gentlest(bridge, room)):
        return found, False
    leaving = view.tail_start(min(view.params.keep_tail, room)) if can_summarise else 0
    if leaving and (found := view.find_gentlest(leaving, room)):
        return found, True
    if not (found := view.drop_oldest(room)):
        found = view.fold(start=newest, summed=len(turns), keep=0)
        head = new_head if newest > 0 else min(view.params.head, new_head)
        if view.total(found) > hard_limit - head:
            found = ViewShape(start=len(turns), summed=len(turns), trimmed=len(turns))
    return found, can_summarise and found.start > 0


def _describe_pressure(
    params: CompactionParams, taken: int, budget: int, summary_due: int | None
) -> str:
    """Return the strongest pressure in words. Empty: none."""
    if params.force:
        return f"the provider said that the prompt is too long ({params.force})"
    if taken + params.new > budget:
        return f"{taken + params.new:,} tokens do not fit {budget:,}"
    if params.full:
        return "the provider counted a prompt that is nearly full"
    if summary_due is not None and taken + params.new > summary_due:
        return (
            f"{taken + params.new:,} tokens are more than the {summary_due:,} from which on a "
            "summary is due"
        )
    return ""


def _leaving_kinds(turns: Sequence[TurnSizes], *, summarise: bool) -> tuple[str, ...]:
    if summarise:
        return ("summary",)
    covered = [turn.is_in_journal for turn in turns]
    return (
        *(("bridge",) if any(covered) else ()),
        *(("drop",) if not all(covered) or not covered else ()),
    )


def _plan_if_worthwhile(view: _CompactionView) -> CompactionPlan:
    """Return the plan without pressure: fold if it costs nothing, or pays."""
    params, count = view.params, len(view.turns)
    trim, both = view.fold(trimmed=count), view.fold(summed=count - KEEP_LOOPS, trimmed=count)
    gentle, harsh = _assess_fold(view, trim), _assess_fold(view, both)
    best = max(gentle, harsh, key=lambda fold: fold.gain)
    if best.gain <= 0:
        return view.build_plan(view.now, "")
    if params.policy == "full":
        return view.build_plan(
            view.now, f"{best.gain:,} tokens could go, which only a full window is a reason for"
        )
    if params.policy == "always":
        shape = trim if gentle.gain > 0 else view.now
        return view.build_plan(
            shape, f"{gentle.gain:,} tokens go, as always", view.changed_forms(shape)
        )
    pays = gentle.is_worthwhile(params)
    if (harsh - gentle).is_worthwhile(params) and (pays or harsh.is_worthwhile(params)):
        return view.build_plan(both, harsh.describe(params), view.changed_forms(both))
    if pays:
        return view.build_plan(trim, gentle.describe(params), view.changed_forms(trim))
    return view.build_plan(view.now, best.describe(params))


def _assess_fold(view: _CompactionView, shape: ViewShape) -> FoldEconomics:
    turns, before, after = view.turns, view.sizes(view.now), view.sizes(shape)
    first = next((index for index, taken in enumerate(before) if after[index] != taken), len(turns))
    last = [
        after[index]
        for index in range(first, len(turns))
        if after[index] != before[index] and after[index] <= turns[index].trimmed
    ]
    coming = sum(turn.requests for turn in turns) / max(1, len(turns))
    since = [*accumulate((turn.requests for turn in reversed(turns)), initial=coming)][-2::-1]
    gains = _iter_gains(turns, view.now, shape, keep=view.params.keep_results)
    return FoldEconomics(
        gain=sum(before) - sum(after),
        rent=sum(gain * since[index] for index, gain in gains),
        rewritten=sum(after[first:]),
        rewritten_again=sum(after[first:]) - sum(last),
    )


def _iter_gains(
    turns: Sequence[TurnSizes], now: ViewShape, shape: ViewShape, *, keep: int
) -> Iterator[tuple[int, int]]:
    """Yield the tokens of each part that goes, with the turn after which it could have gone."""
    results = [(index, saved) for index, turn in enumerate(turns) for saved in turn.results]
    newest = len(turns) - 1
    for number, (was, is_) in enumerate(
        zip(_cleared_results(turns, now), _cleared_results(turns, shape), strict=True)
    ):
        if is_ and not was:
            newer = number + keep
            yield results[newer][0] if newer < len(results) else newest, results[number][1]
    for index in range(now.trimmed, shape.trimmed):
        turn = turns[index]
        yield index, turn.whole - turn.trimmed - sum(turn.results)
    for index in range(now.summed, shape.summed):
        yield min(index + KEEP_LOOPS, newest), turns[index].trimmed - turns[index].summed


def _cleared_results(turns: Sequence[TurnSizes], shape: ViewShape) -> list[bool]:
    """Return for each result that trimming would clear, oldest first, whether it is cleared."""
    found, spared = list[bool](), shape.spared
    for index in range(len(turns) - 1, -1, -1):
        for _ in turns[index].results:
            spares = shape.summed <= index < shape.trimmed and spared > 0
            spared -= spares
            found.append(index < shape.trimmed and not spares)
    return found[::-1]
