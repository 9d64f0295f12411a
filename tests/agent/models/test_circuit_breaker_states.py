"""The circuit breaker: a table of before, event, after, and laws for every history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.failover import CircuitBreaker

CLOSED = CircuitBreaker()
TWICE = CircuitBreaker(failures=2)
OPEN = CircuitBreaker(wait_s=30.0, retry_at_s=130.0, has_opened=True)
TRYING = CircuitBreaker(wait_s=30.0, retry_at_s=160.0, is_trying=True, has_opened=True)
AGAIN = CircuitBreaker(wait_s=60.0, retry_at_s=200.0, has_opened=True)
HEALED = CircuitBreaker(has_opened=True)


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        (CLOSED, ("record_attempt", 100), CLOSED),
        (CLOSED, ("record_success",), CLOSED),
        (CLOSED, ("record_failure", 100), CircuitBreaker(failures=1)),
        (TWICE, ("record_success",), CLOSED),
        (TWICE, ("record_failure", 100), OPEN),
        (OPEN, ("record_attempt", 130), TRYING),
        (OPEN, ("record_failure", 131), OPEN),  # asked before it opened: nothing new
        (OPEN, ("record_success",), HEALED),  # the same: it works
        (TRYING, ("record_success",), HEALED),
        (TRYING, ("record_failure", 140), AGAIN),
        (HEALED, ("record_failure", 0), CircuitBreaker(failures=1, has_opened=True)),
        (
            CircuitBreaker(wait_s=240, is_trying=True, has_opened=True),
            ("record_failure", 0),
            CircuitBreaker(wait_s=300, retry_at_s=300, has_opened=True),
        ),
    ],
)
def test_transitions(before: CircuitBreaker, event: tuple[str, float], after: CircuitBreaker) -> None:
    name, *arguments = event
    assert getattr(before, name)(*arguments) == after


@pytest.mark.parametrize(
    ("state", "now_s", "may"),
    [
        (CLOSED, 0, True),
        (TWICE, 0, True),
        (OPEN, 129.9, False),
        (OPEN, 130, True),
        (TRYING, 159.9, False),  # one tries already
        (TRYING, 160, True),  # and was never heard of again
    ],
)
def test_who_may_ask(state: CircuitBreaker, now_s: float, may: bool) -> None:
    assert state.admits(now_s) == may


def test_a_service_that_stays_away_is_tried_ever_more_seldom() -> None:
    breaker, now_s, tried = CircuitBreaker(), 0.0, []
    while now_s < 1_500:
        if breaker.admits(now_s):
            breaker = breaker.record_attempt(now_s).record_failure(now_s)
            tried.append(now_s)
        now_s += 1
    assert tried == [0, 1, 2, 32, 92, 212, 452, 752, 1052, 1352]


@pytest.mark.parametrize(("hint_s", "until_s"), [(None, 30), (5, 30), (90, 90), (1e9, 300)])
def test_a_hint_may_make_it_wait_longer_but_not_for_ever(hint_s: float | None, until_s: float) -> None:
    assert TWICE.record_failure(0, hint_s=hint_s).retry_at_s == until_s
    assert TWICE.record_failure(0, hint_s=hint_s).wait_s == 30  # the next doubles ours


events = st.lists(st.tuples(st.sampled_from(["ask", "fail", "succeed", "lose"]), st.floats(0, 400)), max_size=80)


@given(events)
def test_whatever_happens(history: list[tuple[str, float]]) -> None:
    breaker, now_s, streak = CircuitBreaker(), 0.0, 0
    for what, passed_s in history:
        now_s += passed_s
        before = breaker
        if what == "succeed":
            breaker, streak = breaker.record_success(), 0
            assert breaker.admits(now_s)
        elif breaker.admits(now_s):
            breaker = breaker.record_attempt(now_s)
            if breaker.is_open:
                assert not breaker.admits(now_s)  # one at a time
            if what == "fail":
                breaker, streak = breaker.record_failure(now_s), streak + 1
        assert breaker.has_opened or not before.has_opened
        assert breaker.is_open == (streak >= 3)
        assert breaker.admits(now_s + 300)  # never shut out for longer than the longest wait
        assert not breaker.is_open or 30 <= breaker.wait_s <= 300
