"""Simulated days of a conversation, with the planner's own sizes: the cost of each way to fold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.compaction import CompactionPlan
from agent.view import TurnSizes, ViewShape, apply_forms, current_shape, estimate_turn_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    read: float = 0.1
    write: float = 1.25


@dataclass(frozen=True, slots=True)
class View:
    """The turns in view, as they are told."""

    turns: tuple[TurnSizes, ...] = ()
    spared: int = 0
    head: int = 0

    @property
    def shape(self) -> ViewShape:
        return current_shape(self.turns, self.spared)

    def told(self) -> list[int]:
        return estimate_turn_tokens(self.turns, self.shape)

    def folded(self, how: CompactionPlan | ViewShape) -> "View":
        """The view once this is carried out."""
        turns = tuple(apply_forms(self.turns, how))
        head = how.head if isinstance(how, CompactionPlan) else self.head
        return View(turns[how.start :], how.spared, head)


def played(
    turns: Sequence[TurnSizes],
    decide: Callable[[int, View], CompactionPlan | ViewShape],
    prices: Prices,
    *,
    cold: Callable[[int], bool] = lambda _: False,
) -> float:
    """What the history costs over these turns, in tokens at the input price, without what each turn
    brings in."""
    view, cost = View(), 0.0
    for place, turn in enumerate(turns):
        before = view.told()
        how = decide(place, view)
        start = how.start
        folded = view.folded(how)
        after = folded.told()
        same = 0
        if start == 0 and not cold(place):
            same = next((at for at, taken in enumerate(after) if before[at] != taken), len(after))
        cost += sum(after[:same]) * prices.read + sum(after[same:]) * prices.write
        cost += sum(after) * prices.read * (turn.requests - 1)
        view = replace(folded, turns=(*folded.turns, turn))
    return cost
