"""Between a socket that never waits and an `emit` that may: a bounded buffer that stops the reading."""

import asyncio
from collections import deque
from collections.abc import Callable

from channels.base import Emit
from gateway.events import Notification

BATCH = 256
_FULL, _DRAINED = 1024, 256


class Inbox:
    """Holds about a thousand notifications; past that `pause(True)` is called until most are emitted."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self._pause = pause
        self._waiting: deque[tuple[Notification | None, str | None]] = deque()
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.full = False

    def put(self, notification: Notification | None, cursor: str | None = None) -> None:
        """Never waits and never drops. `cursor` becomes durable with `notification` (None: by itself)."""
        self._waiting.append((notification, cursor))
        self._empty.clear()
        self._more.set()
        if not self.full and len(self._waiting) >= _FULL:
            self.full = True
            self._pause(True)

    async def drained(self) -> None:
        """Return once all that was put is emitted."""
        await self._empty.wait()

    async def run(self, emit: Emit) -> None:
        """Emit in order, in batches. Ends only by cancellation or by what `emit` raises."""
        while True:
            await self._more.wait()
            taken = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            batch = [notification for notification, _ in taken if notification is not None]
            cursor = next((moved for _, moved in reversed(taken) if moved is not None), None)
            if batch or cursor is not None:
                await emit(batch, cursor=cursor)
            if self.full and len(self._waiting) <= _DRAINED:
                self.full = False
                self._pause(False)
            if not self._waiting:
                self._more.clear()
                self._empty.set()
