"""Means that are taken under pressure, gentlest first, and views that stay as they are."""

from dataclasses import replace

import pytest

from agent.compaction import CompactionParams, CompactionPlan, plan_compaction
from agent.view import TurnForm, TurnSizes


def chat(tokens: int = 100, *, covered: bool = False) -> TurnSizes:
    """A turn without tools."""
    return TurnSizes(whole=tokens, trimmed=tokens, summed=tokens, is_in_journal=covered)


def loop(result: int = 1_000, results: int = 1, *, said: int = 100, stub: int = 50, covered: bool = False) -> TurnSizes:
    """A turn with tools."""
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
        "-" if place < found.start else "s" if place < found.summed else "t" if place < found.trimmed else "w"
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
    assert (found.kinds, forms(turns, found), found.spared) == (("trim",), "tttttttw", 1)  # with the newest turn's: two
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
    assert plan_compaction(turns, under(4_900, compact_above=10_000)).kinds == ("bridge",)  # costs nothing


def test_a_summary_is_due_before_the_budget_is_spent() -> None:
    turns = [chat()] * 50
    assert not plan_compaction(turns, under(10_000, compact_above=5_000)).kinds
    found = plan_compaction(turns, under(10_000, compact_above=4_999))
    assert found.needs_summary
    assert "summary is due" in found.verdict
    assert plan_compaction(turns, under(10_000, compact_above=4_000, new=0)).head <= 4_000 // 8
    loops = [loop() for _ in range(8)]
    assert plan_compaction(loops, under(100_000, compact_above=9_000)).kinds == ("trim",)  # if nothing gentler does


def test_else_the_oldest_turns_leave_and_no_more_than_must() -> None:
    turns = [chat()] * 50
    found = plan_compaction(turns, under(4_900))
    assert (found.kinds, found.start, found.head) == (("drop",), 32, 612)  # 18 * 100 + 612 <= 2,450
    assert found.summed == found.trimmed == 49 or found.start <= found.summed


def test_where_turns_leave_those_that_stay_are_told_as_gently_as_fits() -> None:
    turns = [chat(covered=True)] * 60 + [loop() for _ in range(3)]
    found = plan_compaction(turns, under(7_000))
    assert (found.kinds, found.start) == (("trim", "bridge"), 60)
    assert (found.summed, found.trimmed, found.spared) == (60, 62, 1)


def test_a_long_newest_turn_gives_way_to_what_was_said_before_it() -> None:
    turns = [*[chat()] * 30, loop(result=1_000)]
    found = plan_compaction(turns, under(4_000))
    assert (found.start, found.trimmed, found.spared) == (17, len(turns), 0)
    turns = [*[chat()] * 30, loop(result=500)]
    found = plan_compaction(turns, under(3_600))
    assert found.trimmed < len(turns)  # it does not take more than half


def test_the_newest_turn_is_summed_before_it_leaves_and_leaves_if_even_that_does_not_fit() -> None:
    turns = [chat(), replace(loop(results=20), summed=400)]
    found = plan_compaction(turns, under(1_200))
    assert (forms(turns, found), found.kinds) == ("-s", ("sum", "drop"))
    found = plan_compaction(turns, under(700))
    assert forms(turns, found) == "-s"  # alone, it may take more than was wanted
    assert forms(turns, plan_compaction(turns, under(700, new=300))) == "--"
    assert (
        forms([chat(900)], plan_compaction([chat(900)], under(1_000, full=True))) == "w"
    )  # nothing helps but to lose it
    assert forms([chat(900)], plan_compaction([chat(900)], under(1_000, new=200))) == "-"


def test_a_prompt_that_was_too_long_is_halved_each_time() -> None:
    turns = [chat()] * 40
    left = [40 - plan_compaction(turns, under(100_000, force=time)).start for time in (1, 2)]
    assert left == [15, 7]
    assert "too long (2)" in plan_compaction(turns, under(100_000, force=2)).verdict
    assert plan_compaction([chat()], under(100_000, force=1)).start == 1


def test_the_providers_own_count_presses_too_unless_the_view_is_small_already() -> None:
    turns = [chat()] * 40
    found = plan_compaction(turns, under(5_000, full=True))
    assert found.kinds == ("drop",)
    assert "nearly full" in found.verdict
    assert not plan_compaction(turns[:25], under(5_000, full=True)).kinds  # it is something else that fills the window
    assert not plan_compaction([loop(500)] * 3, under(5_000, full=True)).kinds


@pytest.mark.parametrize(("scale", "folds"), [(1.0, False), (2.0, True), (0.5, False)])
def test_estimates_are_scaled_by_what_was_billed(scale: float, *, folds: bool) -> None:
    assert bool(plan_compaction([chat()] * 30, under(5_000, scale=scale)).kinds) == folds


def test_new_lines_need_their_room() -> None:
    turns = [chat()] * 30
    assert not plan_compaction(turns, under(5_000, new=2_000)).kinds
    found = plan_compaction(turns, under(5_000, new=4_000))
    assert 100 * (30 - found.start) + found.head <= 1_000


def test_a_head_from_a_larger_window_is_written_anew() -> None:
    assert plan_compaction([], under(1_000, head=5_000)) == replace(
        plan_compaction([], under(1_000, head=5_000)), start=0, kinds=("drop",), head=125
    )
    found = plan_compaction([chat()] * 3, under(1_000, head=5_000))
    assert (found.start, found.kinds, found.head) == (0, ("drop",), 125)


def test_always_clears_what_is_not_among_the_newest_results_at_each_turn() -> None:
    turns = [loop() for _ in range(4)]
    found = plan_compaction(turns, CompactionParams(budget=10**9, policy="always"))
    assert (found.kinds, forms(turns, found), found.spared) == (("trim",), "tttt", 2)
    done = [replace(turn, form=TurnForm.TRIMMED) for turn in turns]
    assert not plan_compaction(done, CompactionParams(budget=10**9, policy="always", spared=2)).kinds
    found = plan_compaction([*done, loop()], CompactionParams(budget=10**9, policy="always", spared=2))
    assert (forms([*done, loop()], found), found.spared) == ("ttttt", 2)


def test_where_it_costs_nothing_old_loops_are_summed_too() -> None:
    turns = [loop(results=4) for _ in range(6)]
    found = plan_compaction(turns, CompactionParams(budget=10**9, cold=True, keep_results=1))
    assert (found.kinds, forms(turns, found), found.spared) == (("trim", "sum"), "sssttt", 1)
    assert "nothing is cached" in found.verdict


def test_little_is_no_reason_to_fold_though_it_costs_nothing() -> None:
    turns = [loop(result=60), *[loop(result=10, said=500)] * 2]
    found = plan_compaction(turns, CompactionParams(budget=10**9, cold=True))
    assert not found.kinds
    assert found.verdict.startswith("60 tokens could go")
    assert plan_compaction([loop(result=64), *turns[1:]], CompactionParams(budget=10**9, cold=True)).kinds


def test_what_was_cleared_stays_cleared_where_fewer_results_are_new() -> None:
    turns = [replace(loop(), form=TurnForm.TRIMMED), TurnSizes(whole=400, trimmed=100, summed=100)]
    found = plan_compaction(turns, CompactionParams(budget=10**9, cold=True, spared=0, keep_results=2))
    assert (found.kinds, forms(turns, found), found.spared) == (("trim",), "tt", 0)
    assert plan_compaction(turns, CompactionParams(budget=10**9, cold=True, spared=1, keep_results=2)).spared == 1


def test_excerpts_take_a_small_part_of_a_small_window() -> None:
    turns = [loop(result=5_000) for _ in range(6)]
    assert plan_compaction(turns, CompactionParams(budget=10**9, cold=True, excerpts=2_000)).excerpts == 2_000
    assert plan_compaction(turns, CompactionParams(budget=4_000, cold=True, excerpts=2_000)).excerpts == 192


def test_a_verdict_says_what_speaks_for_and_against() -> None:
    turns = [loop(result=2_000) for _ in range(4)]
    found = plan_compaction(turns, CompactionParams(budget=10**9, ahead=5.0))
    assert found.verdict == (
        "4,010 tokens could go: they have cost 601 since they could, and in 5.0 more requests will cost 2,005; "
        "rewriting 4,590 costs 5,278, of which 4,945 each time anew"
    )
    assert not found.kinds
