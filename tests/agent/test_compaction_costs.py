"""Cost of the planner's folds, compared with every fixed period: none is cheaper."""

import pytest

from agent.compaction import CompactionParams, CompactionPlan, plan_compaction
from agent.view import TurnSizes, ViewShape, fold_further
from tests.agent.compaction_kit import Prices, View, played

TURNS = 80
PERIODS = (*range(1, 16), 18, 21, 25, 30, 35, 40, 45, 50)
SOME = (1, 2, 3, 5, 8, 13, 21, 35)


def turn(brings: int, said: int, results: int, requests: int) -> TurnSizes:
    """One with tools: so many tokens in so many results, beside what is said."""
    stubs = 40 * results
    return TurnSizes(
        whole=said + stubs + brings,
        trimmed=said + stubs,
        summed=said + min(stubs, 60),
        results=(brings // results,) * results,
        requests=requests,
    )


def auto(turns: list[TurnSizes], prices: Prices, keep: int, *, ahead: float | None = None) -> float:
    """What the planner's way costs. `ahead`: what it is told; None: the truth."""

    def decided(place: int, view: View) -> CompactionPlan:
        left = float(sum(one.requests for one in turns[place:]))
        at = CompactionParams(
            budget=10**9,
            read=prices.read,
            write=prices.write,
            ahead=left if ahead is None else ahead,
            spared=view.spared,
            keep_results=keep,
        )
        return plan_compaction(view.turns, at)

    return played(turns, decided, prices)


def fixed(turns: list[TurnSizes], prices: Prices, keep: int, period: int, loops: int | None) -> float:
    """What it costs to fold each so many turns. `loops`: tool loops that are not summed; None: none is."""

    def decided(place: int, view: View) -> ViewShape:
        if place % period:
            return view.shape
        count = len(view.turns)
        return fold_further(
            view.turns, view.shape, trimmed=count, summed=0 if loops is None else count - loops, keep=keep
        )

    return played(turns, decided, prices)


@pytest.mark.parametrize("periods", [SOME, pytest.param(PERIODS, marks=pytest.mark.system)], ids=["some", "all"])
@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize(
    "one", [turn(5_000, 300, 1, 2), turn(200, 300, 1, 2), turn(5_000, 2_000, 1, 2), turn(8_000, 300, 5, 6)]
)
@pytest.mark.parametrize(
    "prices", [Prices(), Prices(write=2.0), Prices(read=0.5, write=1.0), Prices(read=0.025, write=1.0)]
)
def test_no_fixed_rhythm_is_cheaper(prices: Prices, one: TurnSizes, keep: int, periods: tuple[int, ...]) -> None:
    turns = [one] * TURNS
    ours = auto(turns, prices, keep)
    never = fixed(turns, prices, keep, TURNS + 1, None)
    best = min([never, *(fixed(turns, prices, keep, period, loops) for period in periods for loops in (None, 3))])
    assert ours <= best * 1.05


def test_it_folds_less_often_where_a_fold_is_dearer() -> None:
    def folds(prices: Prices) -> int:
        view, count = View(), 0
        for _ in range(60):
            at = CompactionParams(budget=10**9, read=prices.read, write=prices.write, ahead=200.0, spared=view.spared)
            found = plan_compaction(view.turns, at)
            count += bool(found.kinds)
            view = view.folded(found)
            view = View((*view.turns, turn(5_000, 300, 1, 2)), view.spared, view.head, view.excerpts)
        return count

    assert 0 < folds(Prices(write=2.0)) < folds(Prices(write=1.25)) < folds(Prices(read=0.5, write=1.0))
    assert folds(Prices(read=0.0, write=1.0)) == 0  # keeping costs nothing


def test_it_does_not_fold_what_is_soon_cold_and_folds_what_is_cold() -> None:
    turns = [turn(5_000, 300, 1, 2)] * 8
    warm = CompactionParams(budget=10**9, ahead=60.0)
    assert plan_compaction(turns, warm).kinds
    soon = plan_compaction(turns, CompactionParams(budget=10**9, ahead=1.0))
    assert not soon.kinds
    assert "1.0 more requests" in soon.verdict
    assert plan_compaction(turns, CompactionParams(budget=10**9, ahead=1.0, cold=True)).kinds
    assert plan_compaction(
        [turn(5_000, 300, 1, 2)] * 3, CompactionParams(budget=10**9, ahead=0.0, cold=True)
    ).kinds == ("trim",)


def test_a_quiet_room_costs_the_least_if_it_is_folded_while_it_is_cold() -> None:
    """Each turn comes to a cold cache, so what is left out need not be written."""
    prices, turns = Prices(), [turn(5_000, 300, 1, 2)] * 40

    def decided(_: int, view: View) -> CompactionPlan:
        return plan_compaction(view.turns, CompactionParams(budget=10**9, cold=True, spared=view.spared))

    def never(_: int, view: View) -> ViewShape:
        return view.shape

    assert played(turns, decided, prices, cold=lambda _: True) < 0.2 * played(turns, never, prices, cold=lambda _: True)
