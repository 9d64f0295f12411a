"""What has arrived and waits to be noticed.

One short window per conversation, so that a thought written in three lines is answered once.
What is unread is in the store; this holds only the windows that are open now.
"""

import asyncio
from collections.abc import Callable

from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.records import URGENT


class Inbox:
    """Tells when a conversation is ripe."""

    def __init__(self, clock: Clock, coalesce_s: float, notice: Callable[[ConversationId, int], None]) -> None:
        """`notice(conversation, urgency)` is called on the event loop, once per window.

        `coalesce_s`: how long an urgent line waits for more; counted from the first, so that a
        chatterer cannot hold off the answer. 0: notice at once.
        """
        self._clock = clock
        self._coalesce_s = coalesce_s
        self._notice = notice
        self._open: dict[ConversationId, asyncio.Task[None]] = {}
        self._closed = False

    def arrived(self, conversation: ConversationId, urgency: int) -> None:
        """Something durable is unread here."""
        if self._closed:
            return  # the store has it: the next process takes it up
        if urgency < URGENT or self._coalesce_s <= 0:
            self._notice(conversation, urgency)
        elif conversation not in self._open:
            self._open[conversation] = asyncio.create_task(self._ripen(conversation))

    async def close(self) -> None:
        """Close all windows without noticing, and open none any more; what is unread stays in the store."""
        self._closed = True
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.clear()

    async def _ripen(self, conversation: ConversationId) -> None:
        await self._clock.sleep(self._coalesce_s)
        del self._open[conversation]
        self._notice(conversation, URGENT)
