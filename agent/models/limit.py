"""Requests to a model at the same time: as many as it takes, in turns between rooms.

A provider says "too many" with 429 or 529. Additive increase, multiplicative decrease (Chiu and
Jain, 1989), as TCP does: a refusal leaves room for as many requests as are under way without it,
and each answer adds a little.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from agent.models.base import ModelBusy
from gateway.core.events import ConversationId, room_of

MOST_REQUESTS: Final = 100
"""Requests at the same time to a model that refuses none."""


class RequestLimit:
    """Limit of the requests to one model at the same time."""

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self._most = self._allowed = float(most)
        self._pauses = 0
        self._running = Counter[str]()
        """Requests under way, by room."""
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        """Oldest first."""

    @property
    def allowed(self) -> int:
        """Requests that may be under way now."""
        return int(self._allowed)

    @asynccontextmanager
    async def holding(self, conversation: ConversationId) -> AsyncIterator[None]:
        """Wait until one more request may be made, and count it until the end of the block, which
        raises ModelBusy if it was refused. The next one is of the room with the fewest under way.
        """
        room = room_of(conversation)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((room, turn))
        self._admit()
        try:
            await turn
            yield
            self._allowed = min(self._most, self._allowed + 1 / self._allowed)
        except ModelBusy as error:
            if error.status is not None:
                self._allowed = max(1.0, min(self._allowed, self._running.total() - 1.0))
            raise
        finally:
            if (room, turn) in self._waiting:
                self._waiting.remove((room, turn))
            else:
                self._running -= Counter([room])
            self._admit()

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Let no request begin meanwhile: the provider has said how long it takes none."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._admit()

    def _admit(self) -> None:
        while not self._pauses and self._running.total() < self.allowed:
            waiting = [one for one in self._waiting if not one[1].done()]
            if not waiting:
                return
            room, turn = min(waiting, key=lambda one: self._running[one[0]])
            self._waiting.remove((room, turn))
            self._running[room] += 1
            turn.set_result(None)
