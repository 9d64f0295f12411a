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

    def attached(self, status: Status, past: Past | None) -> None:
        """A connection stands. `past`: of the conversation that is followed, at the first time only."""

    def heard(self, events: Sequence[Seen]) -> None:
        """These happened."""

    def away(self, error: ApiError, seconds: float) -> None:
        """It stands no longer, or could not be made; the next attempt comes after so many seconds."""


async def attach(api: Api, hearer: Hearer, conversation: str, *, chance: Callable[[], float] = random.random) -> None:
    """Tell `hearer` what happens there, until cancelled."""
    backoff, last, known = Backoff(MOST_S), "", False
    while True:
        try:
            async with api.stream(last) as stream:
                status = await api.status()
                past = None if known else await api.past(conversation)
                hearer.attached(status, past)
                known = True
                backoff.over()
                async for position, events in stream.batches():
                    last = position or last
                    hearer.heard(events)
        except ApiError as error:
            wait_s = backoff.next_s(0, chance())
            hearer.away(error, wait_s)
            await asyncio.sleep(wait_s)
