"""Whether the view of a conversation is folded before a turn, and how. Pure: a plan, which others carry out.

Where nothing presses, old results and old loops go once it pays (`agent.rent`), or at once where the cache is cold and
it costs nothing. Under pressure the view gets half as long as it may be (`agent.pressing`), whatever that costs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from agent.layout import TurnSizes, ViewShape, apply_forms, current_shape, estimate_turn_tokens, fold_further
from agent.pressing import FitLimits, fit_view
from agent.rent import FoldEconomics, assess_fold

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
