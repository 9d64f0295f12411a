import asyncio
from collections.abc import Awaitable, Callable

import pytest

from channels.aio import with_timeout
from gateway.core.clock import Clock, ManualClock, SystemClock


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
