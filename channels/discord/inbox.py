"""Between sockets that must be read and an `emit` that may block: a buffer that stops the reading."""

import asyncio
from collections import deque
from dataclasses import dataclass

from gateway.events import Notification

_FULL, _DRAINED = 1024, 256


@dataclass(frozen=True, slots=True)
class Raw:
    """One event of the gateway, as it came."""

    shard: int
    event: str
    data: object


class Inbox:
    """Holds about a thousand items; past that, whoever reads sockets waits for `room`."""

    def __init__(self) -> None:
        self._waiting: deque[Raw | Notification] = deque()
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    async def room(self) -> None:
        """Return once most of it is taken."""
        await self._room.wait()

    async def drained(self) -> None:
        """Return once all that was put is dealt with."""
        await self._empty.wait()

    def put(self, item: Raw | Notification) -> None:
        """Never waits and never drops: the sockets stop being read when it is full."""
        self._waiting.append(item)
        self._empty.clear()
        self._more.set()
        if len(self._waiting) >= _FULL:
            self._room.clear()

    async def take(self, most: int) -> list[Raw | Notification]:
        """At least one item, in order. Asking for more says that the ones before are dealt with."""
        if not self._waiting:
            self._more.clear()
            self._empty.set()
        await self._more.wait()
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if len(self._waiting) <= _DRAINED:
            self._room.set()
        return taken
