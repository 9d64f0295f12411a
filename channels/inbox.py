"""Between a connection that must be read and an `emit` that may block: a buffer that stops the reading."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from channels.tasks import end, first

T = TypeVar("T")
_FULL, _DRAINED = 1024, 256
_LAST_WORDS_S = 0.2
"""Real seconds that `emit` has, after we are told to end, for what was already heard."""


class Inbox(Generic[T]):
    """Holds about a thousand items; past that nothing more should be read until most of them are taken."""

    def __init__(self, pause: Callable[[bool], None] = lambda _: None) -> None:
        """`pause(True)` is called when it is full, `pause(False)` when there is room again."""
        self._pause = pause
        self._waiting: deque[T] = deque()
        self._most = float(_FULL)
        self._filled = asyncio.Event()
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._room = asyncio.Event()
        self._room.set()
        self._taken: list[T] = []
        """Not dealt with yet."""

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    async def room(self) -> None:
        """Return once most of it is taken."""
        await self._room.wait()

    async def filled(self) -> None:
        """Return once it is full."""
        await self._filled.wait()

    async def drained(self) -> None:
        """Return once all that was put is dealt with."""
        await self._empty.wait()

    def put(self, item: T) -> None:
        """Never waits and never drops."""
        self._waiting.append(item)
        self._empty.clear()
        self._more.set()
        if not self.full and len(self._waiting) >= self._most:
            self._room.clear()
            self._filled.set()
            self._pause(True)

    async def take(self, most: int) -> list[T]:
        """At least one item, in order. Asking for more says that the ones before are dealt with."""
        self._taken = []
        if not self._waiting:
            self._more.clear()
            self._empty.set()
        await self._more.wait()
        self._taken = taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if len(self._waiting) <= _DRAINED:
            self._most = float(_FULL)
            if self.full:
                self._make_room()
        return taken

    def _make_room(self) -> None:
        self._room.set()
        self._filled.clear()
        self._pause(False)

    def left(self, wanted: Callable[[T], bool]) -> list[T]:
        """What is there that nobody has dealt with, in order; of that, only what is `wanted` stays."""
        kept = [item for item in self._waiting if wanted(item)]
        self._waiting = deque(kept)
        return kept

    async def between(self, work: Coroutine[Any, Any, None], pump: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which puts, beside `pump`, which takes, until either ends; raises what it raised.

        If `work` fails, all that was put before is dealt with; if we are cancelled, it has a moment for that. What is
        not dealt with then is still there, and may have been dealt with: it is taken once more if this is called again.
        """
        working, pumping = asyncio.create_task(work), asyncio.create_task(pump)
        try:
            await asyncio.wait({pumping, working}, return_when=asyncio.FIRST_COMPLETED)
            if not pumping.done():
                # Denied: what was said until now, and that the link is down, still goes in.
                await first(pumping, self.drained())
            for task in (pumping, working):
                if task.done():
                    task.result()
        finally:
            try:
                await end(working)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(first(pumping, self.drained()), _LAST_WORDS_S)
            finally:
                await end(pumping, working)
                self._waiting.extendleft(reversed(self._taken))
                self._taken = []
                if self._waiting:
                    self._empty.clear()
                    self._more.set()
