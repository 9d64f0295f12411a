"""Staying attached: the stream of events, begun again with a growing wait whenever it ends, from where it ended."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from channels.backoff import Backoff
from gateway.console.api import ConsoleApiError, GatewayApiClient
from gateway.console.events import ConsoleApiModel, ConsoleHistory, ConsoleStatus

MAX_RECONNECT_S: Final = 10.0
"""Between two attempts: somebody sits in front of it."""


class ApiListener(Protocol):
    """Who is told. Each call returns at once."""

    def handle_connected(self, status: ConsoleStatus, past: ConsoleHistory | None) -> None:
        """A connection stands. `past`: of the conversation that is followed, at the first time only."""

    def handle_events(self, events: Sequence[ConsoleApiModel]) -> None:
        """These happened."""

    def handle_disconnected(self, error: ConsoleApiError, seconds: float) -> None:
        """It stands no longer, or could not be made; the next attempt comes after so many seconds."""


async def listen_with_reconnect(
    api: GatewayApiClient, hearer: ApiListener, conversation: str, *, chance: Callable[[], float] = random.random
) -> None:
    """Tell `hearer` what happens there, until cancelled."""
    backoff, last, known = Backoff(MAX_RECONNECT_S), "", False
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
        except ConsoleApiError as error:
            wait_s = backoff.next_delay_s(0, chance())
            hearer.handle_disconnected(error, wait_s)
            await asyncio.sleep(wait_s)
