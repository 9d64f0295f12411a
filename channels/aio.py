"""Between a connection that must be read and an `emit` that may block: a buffer that stops the reading.

Waiting for one of several things on a clock that was handed in.

How long to wait between two attempts to connect. Pure: chance is handed in.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from gateway.core.clock import Clock

FIRST_DELAY_S, MAX_DELAY_S = 1.0, 300.0
STABLE_UPTIME_S = 60.0
"""A connection that was up for so long counts as a success: the next back-off begins anew."""


class Backoff:
    """Doubles from 1 s to `most_s`; each wait is between half of that and the whole, and at least 1 s."""

    def __init__(self, most_s: float = MAX_DELAY_S) -> None:
        self._max_delay_s = most_s
        self._failures = 0

    @property
    def is_failing(self) -> bool:
        """The last attempt failed."""
        return self._failures > 0

    def reset(self) -> None:
        """An attempt succeeded."""
        self._failures = 0

    def next_delay_s(self, up_s: float, chance: float) -> float:
        """After a connection that was up for `up_s` (0: never); `chance` is from 0 to 1."""
        if up_s >= STABLE_UPTIME_S:
            self.reset()
        most_s = min(self._max_delay_s, FIRST_DELAY_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return max(FIRST_DELAY_S, most_s * (0.5 + chance / 2))


ResultT = TypeVar("ResultT")


async def with_timeout(clock: Clock, limit_s: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What `work` gives, or TimeoutError after `limit_s`. `work` is cancelled and gone in any other case."""
    working, timer = asyncio.create_task(work), asyncio.create_task(clock.sleep(limit_s))
    try:
        await asyncio.wait({working, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError
        return working.result()
    finally:
        await cancel_and_wait(working, timer)


async def wait_first(task: asyncio.Task[None], work: Coroutine[Any, Any, object]) -> None:
    """Return when either ends; leaves `task` running."""
    other = asyncio.create_task(work)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(other)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them and see them gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_to_completion(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What `work` gives. Cancelled, and however often, it goes to its end first.

    For what is short, and must not be half done.
    """
    working, cancelled = asyncio.ensure_future(work), None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return working.result()
    if not working.cancelled():
        working.exception()  # nobody is told of it
    raise cancelled


ItemT = TypeVar("ItemT")
_HIGH_WATER, _LOW_WATER = 1024, 256
_DRAIN_TIMEOUT_S = 0.2
"""Real seconds that `emit` has, after we are told to end, for what was already heard."""


class BackpressureBuffer(Generic[ItemT]):
    """Holds about a thousand items; past that nothing more should be read until most of them are taken."""

    def __init__(self, pause: Callable[[bool], None] = lambda _: None) -> None:
        """`pause(True)` is called when it is full, `pause(False)` when there is room again."""
        self._pause = pause
        self._items: deque[ItemT] = deque()
        self._capacity = float(_HIGH_WATER)
        self._full_event = asyncio.Event()
        self._nonempty_event = asyncio.Event()
        self._drained_event = asyncio.Event()
        self._drained_event.set()
        self._room_event = asyncio.Event()
        self._room_event.set()
        self._in_progress: list[ItemT] = []
        """Not dealt with yet."""

    @property
    def is_full(self) -> bool:
        return not self._room_event.is_set()

    async def wait_for_room(self) -> None:
        """Return once most of it is taken."""
        await self._room_event.wait()

    async def wait_until_full(self) -> None:
        """Return once it is full."""
        await self._full_event.wait()

    async def wait_until_drained(self) -> None:
        """Return once all that was put is dealt with."""
        await self._drained_event.wait()

    def put(self, item: ItemT) -> None:
        """Never waits and never drops."""
        self._items.append(item)
        self._drained_event.clear()
        self._nonempty_event.set()
        if not self.is_full and len(self._items) >= self._capacity:
            self._room_event.clear()
            self._full_event.set()
            self._pause(True)

    async def get_batch(self, most: int) -> list[ItemT]:
        """At least one item, in order. Asking for more says that the ones before are dealt with."""
        self._in_progress = []
        if not self._items:
            self._nonempty_event.clear()
            self._drained_event.set()
        await self._nonempty_event.wait()
        self._in_progress = taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
        if len(self._items) <= _LOW_WATER:
            self._capacity = float(_HIGH_WATER)
            if self.is_full:
                self._signal_room()
        return taken

    def _signal_room(self) -> None:
        self._room_event.set()
        self._full_event.clear()
        self._pause(False)

    def filter_pending(self, wanted: Callable[[ItemT], bool]) -> list[ItemT]:
        """What is there that nobody has dealt with, in order; of that, only what is `wanted` stays."""
        kept = [item for item in self._items if wanted(item)]
        self._items = deque(kept)
        return kept

    async def run_producer_consumer(self, work: Coroutine[Any, Any, None], pump: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which puts, beside `pump`, which takes, until either ends; raises what it raised.

        If `work` fails, all that was put before is dealt with; if we are cancelled, it has a moment for that. What is
        not dealt with then is still there, and may have been dealt with: it is taken once more if this is called again.
        """
        working, pumping = asyncio.create_task(work), asyncio.create_task(pump)
        try:
            await asyncio.wait({pumping, working}, return_when=asyncio.FIRST_COMPLETED)
            if not pumping.done():
                # Denied: what was said until now, and that the link is down, still goes in.
                await wait_first(pumping, self.wait_until_drained())
            for task in (pumping, working):
                if task.done():
                    task.result()
        finally:
            try:
                await cancel_and_wait(working)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wait_first(pumping, self.wait_until_drained()), _DRAIN_TIMEOUT_S)
            finally:
                await cancel_and_wait(pumping, working)
                self._items.extendleft(reversed(self._in_progress))
                self._in_progress = []
                if self._items:
                    self._drained_event.clear()
                    self._nonempty_event.set()
