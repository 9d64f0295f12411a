"""Rate limiters: exact, and never more than they may give."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ratelimit import Rate, SlidingWindows, TokenBuckets

WHO = "irc.test:ann"
NANO = 10**9
ROUNDING = Fraction(1, 10**5)
"""Tokens: floats are not exact."""


def test_so_many_at_once_and_then_so_many_a_minute() -> None:
    buckets = TokenBuckets(Rate(3, 12.0))
    assert [buckets.take(WHO, 100.0) for _ in range(4)] == [True, True, True, False]
    assert not buckets.take(WHO, 104.999)
    assert buckets.take(WHO, 105.0)
    assert not buckets.take(WHO, 109.9)
    assert [buckets.take(WHO, 1_000.0) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("rate", "given"),
    [(Rate(0, 0.0), 50), (Rate(2, 0.0), 2), (Rate(0, 60.0), 1), (Rate(0, 0.5), 1)],
    ids=["no limit", "so many and no more", "one at once", "one in two minutes"],
)
def test_the_meaning_of_zeros(rate: Rate, given: int) -> None:
    buckets = TokenBuckets(rate)
    assert sum(buckets.take(WHO, 5.0) for _ in range(50)) == given


@given(
    burst=st.integers(0, 20),
    per_minute=st.floats(0, 600).map(lambda pace: round(pace, 3)),
    waits=st.lists(st.floats(0, 30), max_size=60),
    begin=st.floats(0, 1e6),
)
def test_no_window_has_more_than_the_burst_and_the_pace_give(
    burst: int, per_minute: float, waits: list[float], begin: float
) -> None:
    rate, now_s, taken = Rate(burst, per_minute), begin, list[int]()
    buckets = TokenBuckets(rate)
    for wait_s in waits:
        now_s += wait_s
        free = buckets.wait_s(WHO, now_s) == 0
        assert buckets.take(WHO, now_s) == free
        if free:
            taken.append(round(now_s * NANO))
    if not burst and not per_minute:
        assert len(taken) == len(waits)
        return
    pace = Fraction(round(per_minute * 10**6), 60 * 10**6 * NANO)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= max(1, burst) + pace * (taken[last] - start) + ROUNDING


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "repeat"]), st.floats(0, 20), st.floats(0, 5)),
        max_size=40,
    )
)
def test_what_is_given_back_is_never_more_than_was_taken(
    steps: list[tuple[str, float, float]],
) -> None:
    """A sender whose repeats are given back never gets more than one who never repeats."""
    rate = Rate(3, 20.0)
    with_repeats, plain, now_s = TokenBuckets(rate), TokenBuckets(rate), 0.0
    for what, wait_s, late_s in steps:
        now_s += wait_s
        if what == "repeat" and with_repeats.take(WHO, now_s):
            taken_s = now_s
            now_s += late_s
            with_repeats.give_back(WHO, taken_s, now_s)
        elif what == "take" and with_repeats.take(WHO, now_s):
            assert plain.take(WHO, now_s)


@given(
    burst=st.integers(1, 5),
    per_minute=st.floats(1, 600),
    waits=st.lists(st.floats(0, 5), max_size=30),
)
def test_a_wait_ends_when_the_token_is_there_and_not_before(
    burst: int, per_minute: float, waits: list[float]
) -> None:
    buckets, now_s = TokenBuckets(Rate(burst, per_minute)), 0.0
    slack_s = 1e-6 * (1 + 60 / per_minute)
    for pause_s in waits:
        now_s += pause_s
        wait_s = buckets.wait_s(WHO, now_s)
        assert 0 <= wait_s <= 60 / per_minute + slack_s
        if wait_s > slack_s:
            assert buckets.wait_s(WHO, now_s + wait_s - slack_s) > 0
        now_s += wait_s + 1e-9
        assert buckets.take(WHO, now_s)


def test_a_window_has_so_many_and_no_burst_beyond() -> None:
    windows = SlidingWindows()
    assert [windows.try_add("ann", at_s, 2) for at_s in (0, 1, 2, 59)] == [True, True, False, False]
    assert windows.try_add("bob", 2, 2)
    assert [windows.try_add("ann", at_s, 2) for at_s in (60, 60.5, 61.5)] == [True, False, True]
    assert windows.try_add("ann", 61.6, 3)
    assert not SlidingWindows().try_add("ann", 0, 0)


@given(waits=st.lists(st.floats(0, 30), max_size=60), most=st.integers(0, 5))
def test_no_stretch_of_the_window_has_more_than_its_limit(waits: list[float], most: int) -> None:
    windows, now_s, counted = SlidingWindows(60.0), 0.0, list[float]()
    for wait_s in waits:
        now_s += wait_s
        if windows.try_add(WHO, now_s, most):
            counted.append(now_s)
    assert all(sum(start <= at_s < start + 60.0 for at_s in counted) <= most for start in counted)
