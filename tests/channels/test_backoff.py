"""How long to wait between attempts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.aio import Backoff, with_timeout
from gateway.core.clock import Clock, ManualClock, SystemClock


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


class Work:
    """Work that waits until it may end, and tells how it ended."""

    def __init__(self) -> None:
        self.go, self.ended = asyncio.Event(), ""

    async def run(self) -> str:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # what it does to end takes a moment
            self.ended = "cancelled"
            raise
        self.ended = "done"
        return "result"


def as_coroutine(work: Work) -> Awaitable[str]:
    return work.run()


def as_task(work: Work) -> Awaitable[str]:
    return asyncio.create_task(work.run())


@pytest.mark.parametrize("clock", [ManualClock(), SystemClock()], ids=["manual", "system"])
@pytest.mark.parametrize("given", [as_coroutine, as_task])
async def test_a_wait_ends_with_its_work_or_its_time_and_leaves_no_work_behind(
    clock: Clock, given: Callable[[Work], Awaitable[str]]
) -> None:
    work = Work()
    work.go.set()
    assert await with_timeout(clock, 3_600.0, given(work)) == "result"

    late = Work()
    with pytest.raises(TimeoutError):
        await with_timeout(clock, 0.0, given(late))
    assert late.ended == "cancelled"

    cut = Work()
    waiting = asyncio.create_task(with_timeout(clock, 3_600.0, given(cut)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cut.ended == "cancelled"
