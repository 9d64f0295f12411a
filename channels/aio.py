"""Asyncio helpers for adapters.

Reconnect back-off, timeouts on a given clock, cancellation, shared answers, and the back-pressure
buffer. Waits use the `Clock` that is passed in, and randomness is passed in. Only
`_DRAIN_TIMEOUT_S` is in real seconds.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from gateway.core.clock import Clock, SystemClock
from gateway.core.ratelimit import LruDict

FIRST_DELAY_S, MAX_DELAY_S = 1.0, 60.0
"""Shortest and longest delay between two connection attempts."""
RECONNECT_DELAY_S = (1.0, 5.0)
"""Shortest and longest delay after a connection that worked; Discord asks for the same after opcode
9."""
WORKED_S = 5.0
"""Uptime in seconds after which a connection to a platform has worked. A server that cuts each one
at once does not want us, and coming back every few seconds would use up Discord's new sessions, and
be noise in IRC's rooms."""
STABLE_UPTIME_S = 60.0
"""Uptime in seconds after which a connection counts as a success and the back-off starts again."""


class Backoff:
    """Exponential back-off with jitter.

    The delay doubles from 1 s to `max_delay_s`; each wait is a random value between half of it and
    all of it, and at least 1 s.
    """

    def __init__(self, max_delay_s: float = MAX_DELAY_S) -> None:
        self._max_delay_s = max_delay_s
        self._failures = 0

    def reset(self) -> None:
        """Record a successful attempt."""
        self._failures = 0

    def reconnect_delay_s(self, up_s: float, chance: float) -> float:
        """Return the delay after a connection to a platform that was up for `up_s` (0: never);
        `chance` is from 0 to 1.

        After one that worked it is random within `RECONNECT_DELAY_S`: in an hour of bad network it
        does not grow.
        """
        if up_s < WORKED_S:
            return self.next_delay_s(0.0, chance)
        self.reset()
        shortest_s, longest_s = RECONNECT_DELAY_S
        return shortest_s + (longest_s - shortest_s) * chance

    def next_delay_s(self, up_s: float, chance: float) -> float:
        """Return the delay after a connection that was up for `up_s` (0: never); `chance` is from 0
        to 1.
        """
        if up_s >= STABLE_UPTIME_S:
            self.reset()
        delay_s = min(self._max_delay_s, FIRST_DELAY_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return max(FIRST_DELAY_S, delay_s * (0.5 + chance / 2))


ResultT = TypeVar("ResultT")


async def with_timeout(clock: Clock, limit_s: float, work: Awaitable[ResultT]) -> ResultT:
    """Return the result of `work`; raise TimeoutError after `limit_s`.

    `work` is cancelled and finished in all other cases.
    """
    if isinstance(clock, SystemClock):  # asyncio's own timer, which needs no tasks
        async with asyncio.timeout(limit_s):
            return await work
    working, timer = asyncio.ensure_future(work), asyncio.create_task(clock.sleep(limit_s))
    try:
        await asyncio.wait({working, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError
        return working.result()
    finally:
        await cancel_and_wait(working, timer)


async def wait_first(task: asyncio.Future[Any], work: Coroutine[Any, Any, object]) -> None:
    """Return when either ends; `task` keeps running, `work` is cancelled."""
    other = asyncio.create_task(work)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(other)


def is_cancellation(error: BaseException) -> bool:
    """Return whether this is the cancellation of the current task. A CancelledError may also come
    out of other work that somebody has cancelled: then it is a failure like any other.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until they are finished."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_to_completion(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of `work`. Cancellation, however often, takes effect only after `work` has
    ended.

    For short work that must not be left half done.
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
        working.exception()  # retrieved, so that asyncio does not log it
    raise cancelled


KeyT = TypeVar("KeyT", bound=Hashable)
AnswerT = TypeVar("AnswerT")


class RoomSignals:
    """Wakes whoever waits for a change in a room."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}

    async def wait(self, room: str) -> None:
        """Return after the next `notify` of that room."""
        await self._events.setdefault(room, asyncio.Event()).wait()

    def notify(self, room: str) -> None:
        if (event := self._events.pop(room, None)) is not None:
            event.set()


class _Answer(Generic[AnswerT]):
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.requested_s = -math.inf
        self.value: AnswerT | None = None


class AnswerCache(Generic[KeyT, AnswerT]):
    """Answers of a platform to the same questions, each asked once at a time."""

    def __init__(self, clock: Clock, max_age_s: float) -> None:
        """Use an answer for `max_age_s` after its request; 0: only for questions put before
        that.
        """
        self._clock = clock
        self._max_age_s = max_age_s
        self._answers = LruDict[KeyT, _Answer[AnswerT]]()

    async def get(self, key: KeyT, ask: Callable[[], Awaitable[AnswerT | None]]) -> AnswerT | None:
        """Return the answer of `ask`. None: there is none, which is not kept, or it was forgotten
        meanwhile.
        """
        put_s = self._clock.monotonic()
        self._answers.put(key, answer := self._answers.get(key) or _Answer())
        async with answer.lock:
            max_age_s = 0.0 if answer.value is None else self._max_age_s
            if put_s - answer.requested_s > max_age_s:
                requested_s, answer.value = self._clock.monotonic(), await ask()
                answer.requested_s = requested_s
        return answer.value if self._answers.get(key) is answer else None

    def forget(self, key: KeyT) -> None:
        """Ask again, also if an answer is awaited."""
        self._answers.pop(key, None)

    def clear(self) -> None:
        self._answers.clear()


ItemT = TypeVar("ItemT")
_HIGH_WATER, _LOW_WATER = 1024, 256
"""Items at which the buffer is full, and at which it has room again."""
_DRAIN_TIMEOUT_S = 1.0
"""Real seconds that `emit` has, after cancellation, for items that were already received: a slow
disk takes a while."""


class BackpressureBuffer(Generic[ItemT]):
    """Buffer between a connection and an `emit` that may block.

    Holds about a thousand items; when it is full, reading should stop until most of them are taken.
    """

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self._capacity = float(_HIGH_WATER)
        self._full_event = asyncio.Event()
        self._nonempty_event = asyncio.Event()
        self._drained_event = asyncio.Event()
        self._drained_event.set()
        self._room_event = asyncio.Event()
        self._room_event.set()
        self._in_progress: list[ItemT] = []
        """Taken, but not processed yet."""

    @property
    def is_full(self) -> bool:
        return not self._room_event.is_set()

    def set_paused(self, paused: bool) -> None:
        """Called when the buffer becomes full, and when there is room again; to be extended where
        reading can stop.
        """

    async def wait_for_room(self) -> None:
        """Return once most of the items are taken."""
        await self._room_event.wait()

    async def wait_until_full(self) -> None:
        await self._full_event.wait()

    def put(self, item: ItemT) -> None:
        """Append an item. Never waits and never drops."""
        self._items.append(item)
        self._drained_event.clear()
        self._nonempty_event.set()
        if len(self._items) >= self._capacity and self._room_event.is_set():
            self._room_event.clear()
            self._full_event.set()
            self.set_paused(True)

    async def get_batch(self, limit: int) -> list[ItemT]:
        """Return 1 to `limit` items, in order. The call also marks the previous batch as
        processed.
        """
        self._in_progress = []
        if not self._items:
            self._nonempty_event.clear()
            self._drained_event.set()
        await self._nonempty_event.wait()
        self._in_progress = batch = [
            self._items.popleft() for _ in range(min(limit, len(self._items)))
        ]
        if len(self._items) <= _LOW_WATER:
            self._capacity = float(_HIGH_WATER)
            if self.is_full:
                self._signal_room()
        return batch

    def _signal_room(self) -> None:
        self._room_event.set()
        self._full_event.clear()
        self.set_paused(False)

    def filter_pending(self, wanted: Callable[[ItemT], bool]) -> list[ItemT]:
        """Keep only the unprocessed items that are `wanted`, and return them in order."""
        kept = [item for item in self._items if wanted(item)]
        self._items = deque(kept)
        return kept

    async def run_producer_consumer(
        self, work: Coroutine[Any, Any, None], pump: Coroutine[Any, Any, None]
    ) -> None:
        """Run `work`, which puts items, and `pump`, which takes them, until either ends; raise the
        error of either.

        If `work` fails, all items put before are still processed; after cancellation there is a
        short time for that. Items that are not processed then stay in the buffer. They may have
        been processed: the next call takes them again.
        """
        working, pumping = asyncio.create_task(work), asyncio.create_task(pump)
        try:
            await asyncio.wait({pumping, working}, return_when=asyncio.FIRST_COMPLETED)
            if not pumping.done():
                # Denied: events received so far, and the lost connection, are still emitted.
                await wait_first(pumping, self._drained_event.wait())
            for task in (pumping, working):
                if task.done():
                    task.result()
        finally:
            try:
                await cancel_and_wait(working)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(
                        wait_first(pumping, self._drained_event.wait()), _DRAIN_TIMEOUT_S
                    )
            finally:
                await cancel_and_wait(pumping, working)
                self._items.extendleft(reversed(self._in_progress))
                self._in_progress = []
                if self._items:
                    self._drained_event.clear()
                    self._nonempty_event.set()
