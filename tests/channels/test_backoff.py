"""How long to wait between attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.aio import Backoff


def test_the_wait_doubles_up_to_five_minutes() -> None:
    backoff = Backoff()
    assert [backoff.next_delay_s(0, 1.0) for _ in range(11)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    for _ in range(2000):
        assert backoff.next_delay_s(0, 1.0) == 300


@given(st.lists(st.floats(0, 1), max_size=40))
def test_the_wait_is_at_least_half_of_that_and_never_less_than_a_second(chances: list[float]) -> None:
    backoff = Backoff()
    for number, chance in enumerate(chances):
        whole = min(300, 2**number)
        assert max(1, whole / 2) <= backoff.next_delay_s(0, chance) <= whole


@pytest.mark.parametrize(("up_s", "then_s"), [(0, 8), (59.9, 8), (60, 1), (3600, 1)])
def test_a_stable_minute_begins_anew(up_s: float, then_s: float) -> None:
    backoff = Backoff()
    for _ in range(3):
        backoff.next_delay_s(0, 1.0)
    assert backoff.next_delay_s(up_s, 1.0) == then_s


def test_a_success_begins_anew() -> None:
    backoff = Backoff(60)
    assert [backoff.next_delay_s(0, 1.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    lasting = backoff.is_failing
    backoff.reset()
    assert (lasting, backoff.is_failing) == (True, False)
    assert backoff.next_delay_s(0, 1.0) == 1
