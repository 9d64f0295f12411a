"""Laws of the fold planner, under generated views and situations."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.compaction import (
    EXCERPTS_SHARE,
    HEAD_SHARE,
    KEEP_LOOPS,
    KEEP_SHARE,
    CompactionParams,
    CompactionPlan,
    dump_params,
    load_params,
    plan_compaction,
)
from agent.view import TurnForm, TurnSizes, current_shape, estimate_turn_tokens
from tests.agent.compaction_kit import View


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
                form=TurnForm.SUMMED if place < summed else TurnForm.TRIMMED if place < trimmed else TurnForm.WHOLE,
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
    excerpts=st.sampled_from([0, 2_000]),
    policy=st.sampled_from(["auto", "always", "full"]),
    compact_above=st.none() | st.integers(100, 20_000),
    keep_tail=st.sampled_from([0, 500, 20_000]),
)


def excerpts(at: CompactionParams) -> int:
    return min(at.excerpts, int(at.budget * EXCERPTS_SHARE) // 64 * 64)


def laid(turns: tuple[TurnSizes, ...], at: CompactionParams) -> int:
    return at.head + sum(estimate_turn_tokens(turns, current_shape(turns, at.spared), excerpts(at)))


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
        assert (found.start, found.summed, found.trimmed, found.spared) == (0, now.summed, now.trimmed, at.spared)
        assert found.head == at.head


@given(views(), situations)
def test_no_result_that_was_cleared_comes_back(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found, now = plan_compaction(turns, at), current_shape(turns, at.spared)
    before, after = estimate_turn_tokens(turns, now, 0), estimate_turn_tokens(turns, replace(now, **shape(found)), 0)
    assert all(after[place] <= before[place] for place in range(len(turns)))


def shape(found: CompactionPlan) -> dict[str, int]:
    return {"start": found.start, "summed": found.summed, "trimmed": found.trimmed, "spared": found.spared}


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
def test_nothing_leaves_the_view_unless_something_presses(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
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
def test_the_newest_turn_leaves_only_if_nothing_else_helps(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found, room = plan_compaction(turns, at), wanted(turns, at)
    if turns and found.start == len(turns):
        hard = room if at.force else max(room, int(at.budget / at.scale) - at.new)
        newest = estimate_turn_tokens(
            turns[-1:], current_shape((replace(turns[-1], form=TurnForm.SUMMED),), 0), excerpts(at)
        )
        head = int(room * HEAD_SHARE)
        assert sum(newest) > hard - (head if len(turns) > 1 else min(head, at.head))


@given(views(), situations)
def test_kinds_say_what_is_done(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found, now = plan_compaction(turns, at), current_shape(turns, at.spared)
    assert list(found.kinds) == [kind for kind in ("trim", "sum", "bridge", "summary", "drop") if kind in found.kinds]
    assert not found.needs_summary or (found.start > 0 and at.compact_above is not None and at.force == 0)
    covered = [turn.is_in_journal for turn in turns[: found.start]]
    if found.start and not found.needs_summary:
        assert ("bridge" in found.kinds) == any(covered)
        assert ("drop" in found.kinds) == (not all(covered))
    before, after = (
        estimate_turn_tokens(turns, now, excerpts(at)),
        estimate_turn_tokens(turns, replace(now, **shape(found)), excerpts(at)),
    )
    stay = [place for place in range(found.start, len(turns)) if before[place] != after[place]]
    assert ("sum" in found.kinds) == any(place < found.summed for place in stay)
    assert ("trim" in found.kinds) == any(place >= found.summed for place in stay)


@given(views(), situations)
def test_each_fold_says_why_with_numbers(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found = plan_compaction(turns, at)
    assert not found.kinds or any(character.isdigit() for character in found.verdict)
    assert not found.verdict or any(character.isdigit() for character in found.verdict)


@given(views(), situations)
def test_a_small_gain_is_no_reason(turns: tuple[TurnSizes, ...], at: CompactionParams) -> None:
    found = plan_compaction(turns, at)
    if found.kinds and not pressed(turns, at) and at.policy == "auto":
        now = current_shape(turns, at.spared)
        gain = sum(estimate_turn_tokens(turns, now, excerpts(at))) - sum(
            estimate_turn_tokens(turns, replace(now, **shape(found)), excerpts(at))
        )
        assert gain >= 64


@given(situations)
def test_a_situation_is_read_as_it_was_written(at: CompactionParams) -> None:
    assert load_params(dump_params(at)) == at
    assert dump_params(load_params(dump_params(at))) == dump_params(at)
    assert dump_params(at) == json.dumps(json.loads(dump_params(at)), sort_keys=True, separators=(",", ":"))


def test_what_is_no_situation_is_refused() -> None:
    for wrong in ("", "[]", '{"colour": 1}', "{"):
        with pytest.raises((ValueError, TypeError)):
            load_params(wrong)


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
@example(1, 2, 3)
def test_a_gentler_form_is_never_the_shorter_one(whole: int, trimmed: int, summed: int) -> None:
    sizes = TurnSizes(whole=whole, trimmed=trimmed, summed=summed)
    assert sizes.whole >= sizes.trimmed >= sizes.summed
