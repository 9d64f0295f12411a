"""Staying attached: the stream of events, begun again with a growing wait whenever it ends, from where it ended."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from channels.backoff import Backoff
from gateway.console.api import Api, ApiError
from gateway.console.events import Past, Seen, Status

MOST_S: Final = 10.0
"""Between two attempts: somebody sits in front of it."""


class Hearer(Protocol):
    """Who is told. Each call returns at once."""

    def handle_connected(self, status: Status, past: Past | None) -> None:
        """A connection stands. `past`: of the conversation that is followed, at the first time only."""

    def handle_events(self, events: Sequence[Seen]) -> None:
        """These happened."""

    def handle_disconnected(self, error: ApiError, seconds: float) -> None:
        """It stands no longer, or could not be made; the next attempt comes after so many seconds."""


async def attach(api: Api, hearer: Hearer, conversation: str, *, chance: Callable[[], float] = random.random) -> None:
    """Tell `hearer` what happens there, until cancelled."""
    backoff, last, known = Backoff(MOST_S), "", False
    while True:
        try:
            async with api.open_stream(last) as stream:
                status = await api.get_status()
                past = None if known else await api.get_history(conversation)
                hearer.handle_connected(status, past)
                known = True
                backoff.reset()
                async for position, events in stream.batches():
                    last = position or last
                    hearer.handle_events(events)
        except ApiError as error:
            wait_s = backoff.next_delay_s(0, chance())
            hearer.handle_disconnected(error, wait_s)
            await asyncio.sleep(wait_s)
