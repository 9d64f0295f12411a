"""Simulated days of a conversation, with the planner's own sizes: the cost of each way to fold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.compaction import (
    HEAD_SHARE,
    KEEP_LOOPS,
    KEEP_SHARE,
    CompactionParams,
    CompactionPlan,
    plan_compaction,
)
from agent.view import (
    TurnForm,
    TurnSizes,
    ViewShape,
    apply_forms,
    current_shape,
    estimate_turn_tokens,
    fold_further,
)


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


# Laws of the fold planner, under generated views and situations.


@st.composite
def views(draw: st.DrawFn, *, most: int = 12) -> tuple[TurnSizes, ...]:
    """Turns as they may stand in view: the oldest in the harshest form."""
    count = draw(st.integers(0, most))
    summed = draw(st.integers(0, count))
    trimmed = draw(st.integers(summed, count))
    covered = draw(st.integers(0, count))
    turns = []
    for place in range(count):
        results = draw(st.lists(st.integers(1, 3_000), max_size=4).map(tuple))
        least = draw(st.integers(8, 400))
        loop, rest = draw(st.integers(0, 200)), draw(st.integers(0, 50))
        turns.append(
            TurnSizes(
                whole=least + loop + rest + sum(results),
                trimmed=least + loop,
                summed=least,
                form=TurnForm.SUMMED
                if place < summed
                else TurnForm.TRIMMED
                if place < trimmed
                else TurnForm.WHOLE,
                results=results,
                requests=draw(st.integers(1, 6)),
                is_in_journal=place < covered,
            )
        )
    return tuple(turns)


situations = st.builds(
    CompactionParams,
    budget=st.integers(256, 30_000),
    new=st.integers(0, 300),
    head=st.integers(0, 1_000),
    scale=st.sampled_from([0.7, 1.0, 1.5]),
    full=st.booleans(),
    force=st.sampled_from([0, 0, 0, 1, 2]),
    cold=st.booleans(),
    read=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    write=st.sampled_from([1.0, 1.25, 2.0]),
    ahead=st.floats(0, 200),
    spared=st.integers(0, 3),
    keep_results=st.integers(0, 3),
    policy=st.sampled_from(["auto", "always", "full"]),
    compact_above=st.none() | st.integers(100, 20_000),
    keep_tail=st.sampled_from([0, 500, 20_000]),
)


def laid(turns: tuple[TurnSizes, ...], at: CompactionParams) -> int:
    return at.head + sum(estimate_turn_tokens(turns, current_shape(turns, at.spared)))


def carried_out(
    turns: tuple[TurnSizes, ...], at: CompactionParams, found: CompactionPlan
) -> tuple[tuple[TurnSizes, ...], CompactionParams]:
    view = View(turns).folded(found)
    return view.turns, replace(at, spared=found.spared, head=found.head)


def pressed(turns: tuple[TurnSizes, ...], at: CompactionParams) -> bool:
    """Whether the fold was made under pressure, by the definition of it."""
    taken, room = laid(turns, at), wanted(turns, at)
    total = (taken + at.new) * at.scale
    due = at.compact_above is not None and total > at.compact_above + 1
    return taken > room and (at.full or at.force > 0 or total > at.budget + 1 or due)


def wanted(turns: tuple[TurnSizes, ...], at: CompactionParams) -> int:
    taken, budget = laid(turns, at), int(at.budget / at.scale)
    most = [budget]
    if at.force:
        most.append(taken)
    if at.compact_above is not None and taken + at.new > int(at.compact_above / at.scale):
        most.append(int(at.compact_above / at.scale))
    return max(0, min(int(min(most) * KEEP_SHARE) >> max(0, at.force - 1), budget - at.new))


@given(views(), situations)
def test_marks_only_move_forward(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found, now = plan_compaction(turns, at), current_shape(turns, at.spared)
    assert 0 <= found.start <= found.summed <= found.trimmed <= len(turns)
    assert found.summed >= now.summed
    assert found.trimmed >= max(now.trimmed, found.summed)
    if not found.kinds:
        assert (found.start, found.summed, found.trimmed, found.spared) == (
            0,
            now.summed,
            now.trimmed,
            at.spared,
        )
        assert found.head == at.head


@given(views(), situations)
def test_no_result_that_was_cleared_comes_back(
    turns: tuple[TurnSizes, ...], at: CompactionParams
) -> None:
    found, now = plan_compaction(turns, at), current_shape(turns, at.spared)
    before, after = (
        estimate_turn_tokens(turns, now),
        estimate_turn_tokens(turns, replace(now, **shape(found))),
    )
    assert all(after[place] <= before[place] for place in range(len(turns)))


def shape(found: CompactionPlan) -> dict[str, int]:
    return {
        "start": found.start,
        "summed": found.summed,
        "trimmed": found.trimmed,
        "spared": found.spared,
    }


@given(views(), situations)
def test_what_was_decided_holds(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    at = replace(at, force=0)  # a second failure is another situation
    turns, at = carried_out(turns, at, plan_compaction(turns, at))
    again = plan_compaction(turns, at)
    assert not again.kinds, again.verdict


@given(views(), situations)
def test_a_fold_under_pressure_leaves_what_there_is_room_for(
    turns: tuple[TurnSizes, ...], at: CompactionParams
) -> None:
    if not pressed(turns, at):
        return
    found, room = plan_compaction(turns, at), wanted(turns, at)
    assert found.kinds or len(turns) == 1
    after, then = carried_out(turns, at, found)
    assert then.head <= max(at.head if found.start == 0 else 0, int(room * HEAD_SHARE))
    left = laid(after, then)
    if len(after) > 1:
        assert left <= room
    elif after:
        assert left <= max(room, 0 if at.force else int(at.budget / at.scale) - at.new)
    assert left < laid(turns, at) or not found.kinds or (not after and found.start > 0)


@given(views(), situations)
def test_nothing_leaves_the_view_unless_something_presses(
    turns: tuple[TurnSizes, ...], at: CompactionParams
) -> None:
    at = replace(at, full=False, force=0, compact_above=None, budget=10**9)
    found = plan_compaction(turns, at)
    assert found.start == 0
    assert set(found.kinds) <= {"trim", "sum"}
    assert found.summed <= max(current_shape(turns, at.spared).summed, len(turns) - KEEP_LOOPS)


@given(views(), situations)
def test_the_newest_turn_keeps_its_loop_while_anything_else_can_go(
    turns: tuple[TurnSizes, ...], at: CompactionParams
) -> None:
    found, count = plan_compaction(turns, at), len(turns)
    if count and turns[-1].form is not TurnForm.SUMMED and found.summed == count:
        assert found.start >= count - 1
        assert turns[-1].trimmed + int(wanted(turns, at) * HEAD_SHARE) > wanted(turns, at)


@given(views(), situations)
def test_the_newest_turn_leaves_only_if_nothing_else_helps(
    turns: tuple[TurnSizes, ...], at: CompactionParams
) -> None:
    found, room = plan_compaction(turns, at), wanted(turns, at)
    if turns and found.start == len(turns):
        hard = room if at.force else max(room, int(at.budget / at.scale) - at.new)
        newest = estimate_turn_tokens(
            turns[-1:], current_shape((replace(turns[-1], form=TurnForm.SUMMED),), 0)
        )
        head = int(room * HEAD_SHARE)
        assert sum(newest) > hard - (head if len(turns) > 1 else min(head, at.head))


@given(views(), situations)
@example(
    (
        TurnSizes(whole=10, trimmed=8, summed=8, form=TurnForm.SUMMED, results=(1, 1), requests=1),
        TurnSizes(whole=135, trimmed=135, summed=8, requests=1),
        TurnSizes(whole=1289, trimmed=497, summed=297, results=(1, 1, 1, 739), requests=6),
    ),
    CompactionParams(budget=3071, new=300, head=151, scale=1.5, force=1, policy="always"),
)
def test_kinds_say_what_is_done(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found, now = plan_compaction(turns, at), current_shape(turns, at.spared)
    assert list(found.kinds) == [
        kind for kind in ("trim", "sum", "bridge", "summary", "drop") if kind in found.kinds
    ]
    assert not found.needs_summary or (
        found.start > 0 and at.compact_above is not None and at.force == 0
    )
    covered = [turn.is_in_journal for turn in turns[: found.start]]
    if found.start and not found.needs_summary:
        assert ("bridge" in found.kinds) == any(covered)
        assert ("drop" in found.kinds) == (not all(covered))
    before, after = (
        estimate_turn_tokens(turns, now),
        estimate_turn_tokens(turns, replace(now, **shape(found))),
    )
    stay = [place for place in range(found.start, len(turns)) if before[place] != after[place]]
    assert ("sum" in found.kinds) == any(now.summed <= place < found.summed for place in stay)
    assert ("trim" in found.kinds) == any(place >= found.summed for place in stay)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
@example(1, 2, 3)
def test_a_gentler_form_is_never_the_shorter_one(whole: int, trimmed: int, summed: int) -> None:
    sizes = TurnSizes(whole=whole, trimmed=trimmed, summed=summed)
    assert sizes.whole >= sizes.trimmed >= sizes.summed


# Cost of the planner's folds, compared with every fixed period: none is cheaper.


TURNS = 80
PERIODS = (1, 2, 3, 5, 8, 13, 21, 35)


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


def fixed(
    turns: list[TurnSizes], prices: Prices, keep: int, period: int, loops: int | None
) -> float:
    """What it costs to fold each so many turns. `loops`: tool loops that are not summed; None: none
    is."""

    def decided(place: int, view: View) -> ViewShape:
        if place % period:
            return view.shape
        count = len(view.turns)
        return fold_further(
            view.turns,
            view.shape,
            trimmed=count,
            summed=0 if loops is None else count - loops,
            keep=keep,
        )

    return played(turns, decided, prices)


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize(
    "one",
    [
        turn(5_000, 300, 1, 2),
        turn(200, 300, 1, 2),
        turn(5_000, 2_000, 1, 2),
        turn(8_000, 300, 5, 6),
    ],
)
@pytest.mark.parametrize(
    "prices",
    [Prices(), Prices(write=2.0), Prices(read=0.5, write=1.0), Prices(read=0.025, write=1.0)],
)
def test_no_fixed_rhythm_is_cheaper(prices: Prices, one: TurnSizes, keep: int) -> None:
    turns = [one] * TURNS
    ours = auto(turns, prices, keep)
    never = fixed(turns, prices, keep, TURNS + 1, None)
    best = min(
        [
            never,
            *(
                fixed(turns, prices, keep, period, loops)
                for period in PERIODS
                for loops in (None, 3)
            ),
        ]
    )
    assert ours <= best * 1.05


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


# Means that are taken under pressure, gentlest first, and views that stay as they are.


def chat(tokens: int = 100, *, covered: bool = False) -> TurnSizes:
    """A turn without tools."""
    return TurnSizes(whole=tokens, trimmed=tokens, summed=tokens, is_in_journal=covered)


def loop(
    result: int = 1_000, results: int = 1, *, said: int = 100, stub: int = 50, covered: bool = False
) -> TurnSizes:
    return TurnSizes(
        whole=said + results * (result + stub),
        trimmed=said + results * stub,
        summed=said + min(40, results * stub),
        results=(result,) * results,
        is_in_journal=covered,
    )


def under(budget: int, **more: object) -> CompactionParams:
    """As it is where folds cost too much to be made for their own sake."""
    return replace(CompactionParams(budget=budget, ahead=0.0, policy="full"), **more)  # type: ignore[arg-type] # any field


def forms(turns: list[TurnSizes], found: CompactionPlan) -> str:
    """A letter for each turn: how it is told."""
    return "".join(
        "-"
        if place < found.start
        else "s"
        if place < found.summed
        else "t"
        if place < found.trimmed
        else "w"
        for place in range(len(turns))
    )


def test_what_fits_stays() -> None:
    turns = [loop() for _ in range(4)]
    found = plan_compaction(turns, under(5_000))
    assert (found.kinds, forms(turns, found)) == ((), "wwww")
    assert "only a full window" in found.verdict
    assert plan_compaction([chat()] * 4, under(5_000)).verdict == ""  # nothing could go
    assert plan_compaction([], CompactionParams(budget=1_000)) == CompactionPlan()


def test_old_results_go_first_but_for_the_newest() -> None:
    turns = [loop() for _ in range(8)]
    found = plan_compaction(turns, under(8_000))
    assert (found.kinds, forms(turns, found), found.spared) == (
        ("trim",),
        "tttttttw",
        1,
    )  # with the newest turn's: two
    found = plan_compaction(turns, under(8_000, keep_results=0))
    assert (forms(turns, found), found.spared) == ("tttttttw", 0)
    assert "9,200 tokens do not fit 8,000" in found.verdict


def test_then_so_many_of_the_oldest_loops_are_summed_as_is_needed() -> None:
    turns = [loop(results=4, result=500, stub=100) for _ in range(8)]
    found = plan_compaction(turns, under(11_300))
    assert found.kinds == ("trim", "sum")
    assert forms(turns, found) == "sttttttw"
    found = plan_compaction(turns, under(8_000))
    assert forms(turns, found) == "sssssstw"


def test_then_the_newest_turn_is_trimmed_and_then_no_result_is_spared() -> None:
    turns = [loop(), loop(results=6)]
    found = plan_compaction(turns, under(5_600))
    assert (found.kinds, forms(turns, found), found.spared) == (("trim", "sum"), "st", 2)
    found = plan_compaction(turns, under(4_000))
    assert (forms(turns, found), found.spared) == ("st", 0)


def test_then_what_the_journal_covers_leaves() -> None:
    turns = [chat(covered=True)] * 30 + [chat()] * 20
    found = plan_compaction(turns, under(4_900))
    assert (found.kinds, found.start, found.head) == (("drop",) * 0 + ("bridge", "drop"), 32, 612)
    found = plan_compaction(turns, under(4_900, keep_tail=1_000))
    assert found.kinds == ("bridge", "drop")
    turns = [chat(covered=True)] * 40 + [chat()] * 10
    found = plan_compaction(turns, under(4_900))
    assert (found.kinds, found.start) == (("bridge",), 40)
    found = plan_compaction(turns, under(4_900, keep_tail=1_500))
    assert (found.kinds, found.start) == (("bridge",), 35)  # so much stays word for word


def test_then_a_model_summarises_all_but_the_tail() -> None:
    turns = [chat()] * 50
    found = plan_compaction(turns, under(4_900, compact_above=10_000, keep_tail=1_000))
    assert (found.kinds, found.needs_summary, found.start) == (("summary",), True, 40)
    found = plan_compaction(turns, under(4_900, compact_above=10_000, keep_tail=20_000))
    assert (found.kinds, found.start) == (("summary",), 32)  # as much as there is room for
    found = plan_compaction(turns, under(4_900, compact_above=10_000, force=1))
    assert found.kinds == ("drop",)  # what asks for a summary would be too long itself
    turns = [chat(covered=True)] * 45 + [chat()] * 5
    assert plan_compaction(turns, under(4_900, compact_above=10_000)).kinds == (
        "bridge",
    )  # costs nothing


def test_a_summary_is_due_before_the_budget_is_spent() -> None:
    turns = [chat()] * 50
    assert not plan_compaction(turns, under(10_000, compact_above=5_000)).kinds
    found = plan_compaction(turns, under(10_000, compact_above=4_999))
    assert found.needs_summary
    assert "summary is due" in found.verdict
    assert plan_compaction(turns, under(10_000, compact_above=4_000, new=0)).head <= 4_000 // 8
    loops = [loop() for _ in range(8)]
    assert plan_compaction(loops, under(100_000, compact_above=9_000)).kinds == (
        "trim",
    )  # if nothing gentler does


def test_else_the_oldest_turns_leave_and_no_more_than_must() -> None:
    turns = [chat()] * 50
    found = plan_compaction(turns, under(4_900))
    assert (found.kinds, found.start, found.head) == (("drop",), 32, 612)  # 18 * 100 + 612 <= 2,450
    assert found.summed == found.trimmed == 49 or found.start <= found.summed


def test_a_prompt_that_was_too_long_is_halved_each_time() -> None:
    turns = [chat()] * 40
    left = [40 - plan_compaction(turns, under(100_000, force=time)).start for time in (1, 2)]
    assert left == [15, 7]
    assert "too long (2)" in plan_compaction(turns, under(100_000, force=2)).verdict
    assert plan_compaction([chat()], under(100_000, force=1)).start == 1


@pytest.mark.parametrize(("scale", "folds"), [(1.0, False), (2.0, True), (0.5, False)])
def test_estimates_are_scaled_by_what_was_billed(scale: float, *, folds: bool) -> None:
    assert bool(plan_compaction([chat()] * 30, under(5_000, scale=scale)).kinds) == folds


def test_where_it_costs_nothing_old_loops_are_summed_too() -> None:
    turns = [loop(results=4) for _ in range(6)]
    found = plan_compaction(turns, CompactionParams(budget=10**9, cold=True, keep_results=1))
    assert (found.kinds, forms(turns, found), found.spared) == (("trim", "sum"), "sssttt", 1)
    assert "nothing is cached" in found.verdict
