"""Simulated time: a clock that jumps. As soon as nothing is left to do, it is the time of whatever
comes next.

So a story says `await clock.sleep(3600)`, and when that returns an hour has passed in which
everything happened at its time. What is measured on the clock is what the gateway itself waited
for, and no moment of a busy machine.
"""

import asyncio
import contextlib
import functools
import heapq
import inspect
import queue
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Any, TypeVar, TypeVarTuple
from unittest import mock

from gateway.core.clock import ManualClock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
LATELY_S = 0.05
"""After a socket was busy it may still be."""
BEGIN = datetime(2026, 3, 2, 6, tzinfo=UTC)


class JumpingClock(ManualClock):
    """Stands still while anything is left to do at this time."""

    def jump(self) -> bool:
        """It is the time of whoever sleeps shortest. False: nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            return False
        self.advance(self._sleepers[0][0] - self._elapsed_s)
        return True


class _Selector(selectors.DefaultSelector):
    """Where a loop waits that has nothing to do."""

    def __init__(self, clock: JumpingClock, grace_s: float, lately_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._grace_s, self._lately_s = grace_s, lately_s
        self._busy_until_s = 0.0
        self.working = 0
        """What threads do that a coroutine waits for."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        if self.working:
            return super().select(timeout)
        found = super().select(self._grace_s if time.monotonic() < self._busy_until_s else 0.0)
        if found:
            self._busy_until_s = time.monotonic() + self._lately_s
        return found if found or self._clock.jump() else super().select(timeout)


class _Loop(asyncio.SelectorEventLoop):
    """Knows when nothing is left to do: no callback is ready, and no thread works for a
    coroutine.
    """

    def __init__(self, clock: JumpingClock, grace_s: float, lately_s: float) -> None:
        self._waits = _Selector(clock, grace_s, lately_s)
        super().__init__(self._waits)

    def works(self, done: "asyncio.Future[T]") -> "asyncio.Future[T]":
        """A thread works until then."""
        self._waits.working += 1
        done.add_done_callback(self._worked)
        return done

    def _worked(self, _: object) -> None:
        self._waits.working -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        return self.works(super().run_in_executor(executor, func, *args))


class _Queue(queue.SimpleQueue[tuple["asyncio.Future[Any] | None", Callable[[], Any]]]):
    """What aiosqlite's threads are to do."""

    def put_nowait(self, item: tuple["asyncio.Future[Any] | None", Callable[[], Any]]) -> None:
        done = item[0]
        if done is not None and isinstance(loop := done.get_loop(), _Loop):
            loop.works(done)
        super().put_nowait(item)


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    with mock.patch("aiosqlite.core.SimpleQueue", _Queue):
        yield


def simulate(
    story: Callable[[JumpingClock], Coroutine[Any, Any, T]],
    *,
    begin: datetime = BEGIN,
    limit_s: float = 600.0,
    grace_s: float = 0.0,
    lately_s: float = LATELY_S,
) -> T:
    """Run a story in simulated time. `limit_s`: of real time.

    `grace_s`: how long after something went over a socket more is waited for, at each step of the
    next `lately_s`.
    """
    clock = JumpingClock(begin)
    with _counted(), asyncio.Runner(loop_factory=lambda: _Loop(clock, grace_s, lately_s)) as runner:
        return runner.run(asyncio.wait_for(story(clock), limit_s))


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test in simulated time. Its `clock` is the one that jumps; all else are fixtures."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        simulate(lambda clock: test(clock=clock, **fixtures))

    told = inspect.signature(test)
    others = [one for name, one in told.parameters.items() if name != "clock"]
    run.__signature__ = told.replace(parameters=others)  # type: ignore[attr-defined] # for pytest
    return run
