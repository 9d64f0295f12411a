"""What has arrived and waits to be noticed.

One short window per conversation, so that a thought written in three lines is answered once.
What is unread is in the store; this holds only the windows that are open now.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.records import URGENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Something durable is unread in a conversation."""

    conversation: ConversationId
    urgency: int
    type: str = ""
    """Its dotted type. Empty: several, or it is not known any more."""
    direct: bool | None = None
    """It came in a direct chat, as the platform says. None: the event does not tell."""
    own: bool = False
    """It is to be dealt with there, and not by looking at it from the inner conversation."""


class Inbox:
    """Tells when a conversation is ripe."""

    def __init__(self, clock: Clock, coalesce_s: float, notice: Callable[[Arrival], None]) -> None:
        """`notice` is called on the event loop, once per window with what opened it.

        `coalesce_s`: how long an urgent line waits for more; counted from the first, so that a
        chatterer cannot hold off the answer. 0: notice at once.
        """
        self._clock = clock
        self._coalesce_s = coalesce_s
        self._notice = notice
        self._open: dict[ConversationId, asyncio.Task[None]] = {}
        self._closed = False

    def arrived(self, arrival: Arrival) -> None:
        """Something durable is unread here."""
        if self._closed:
            return  # the store has it: the next process takes it up
        if arrival.urgency < URGENT or self._coalesce_s <= 0:
            self._notice(arrival)
        elif arrival.conversation not in self._open:
            self._open[arrival.conversation] = asyncio.create_task(self._ripen(arrival))

    async def close(self) -> None:
        """Close all windows without noticing, and open none any more; what is unread stays in the store."""
        self._closed = True
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.clear()

    async def _ripen(self, arrival: Arrival) -> None:
        await self._clock.sleep(self._coalesce_s)
        del self._open[arrival.conversation]
        self._notice(arrival)
