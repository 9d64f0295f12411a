"""How long to wait between attempts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.aio import Backoff


def test_the_wait_doubles_up_to_a_minute() -> None:
    backoff = Backoff()
    assert [backoff.next_delay_s(0, 1.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    for _ in range(2000):
        assert backoff.next_delay_s(0, 1.0) == 60


@given(st.lists(st.floats(0, 1), max_size=40))
def test_the_wait_is_at_least_half_of_that_and_never_less_than_a_second(
    chances: list[float],
) -> None:
    backoff = Backoff()
    for number, chance in enumerate(chances):
        whole = min(60, 2**number)
        assert max(1, whole / 2) <= backoff.next_delay_s(0, chance) <= whole


@pytest.mark.parametrize(("up_s", "then_s"), [(0, 8), (59.9, 8), (60, 1), (3600, 1)])
def test_a_stable_minute_begins_anew(up_s: float, then_s: float) -> None:
    backoff = Backoff()
    for _ in range(3):
        backoff.next_delay_s(0, 1.0)
    assert backoff.next_delay_s(up_s, 1.0) == then_s


@pytest.mark.parametrize(
    ("uptimes_s", "delays_s"),
    [
        ([5, 8, 8, 59, 3600], [5, 5, 5, 5, 5]),
        ([0, 0, 0, 8, 0, 0], [1, 2, 4, 5, 1, 2]),
        ([4.9, 4.9, 4.9], [1, 2, 4]),
        ([0, 0, 0, 0, 0, 0, 0, 0], [1, 2, 4, 8, 16, 32, 60, 60]),
    ],
)
def test_a_connection_that_worked_begins_anew_within_five_seconds(
    uptimes_s: list[float], delays_s: list[float]
) -> None:
    backoff = Backoff()
    assert [backoff.reconnect_delay_s(up_s, 1.0) for up_s in uptimes_s] == delays_s


def test_those_who_are_cut_at_once_do_not_come_back_at_once() -> None:
    assert [Backoff().reconnect_delay_s(8, chance) for chance in (0.0, 0.25, 1.0)] == [1, 2, 5]
