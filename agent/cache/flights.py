"""One writer at a time of a cold prefix: others wait until what it writes can be read, but not for ever."""

import asyncio

from agent.cache.warmth import Digest
from gateway.clock import Clock


class SingleFlight:
    """The prefixes that are being written just now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writers: dict[Digest, asyncio.Event] = {}

    async def wait_for_writer(self, prefix: Digest | None, until_s: float) -> bool:
        """Wait for whoever writes this prefix, until `until_s` by the clock's `monotonic` at the longest.

        True: it can be read, or its writer has failed. False: nobody writes it, or it took too long; what is done
        about it before the next suspension is done before anybody else's turn.
        """
        begun = self._writers.get(prefix) if prefix is not None else None
        left_s = until_s - self._clock.monotonic()
        if begun is None or left_s <= 0:
            return False
        waits = [asyncio.ensure_future(begun.wait()), asyncio.ensure_future(self._clock.sleep(left_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        return begun.is_set()

    def start(self, prefix: Digest | None) -> asyncio.Event:
        """Begin to write: set what this returns once it can be read, and `end` it in any case. None: it writes none."""
        begun = asyncio.Event()
        if prefix is not None:
            self._writers[prefix] = begun
        return begun

    def finish(self, prefix: Digest | None, begun: asyncio.Event) -> None:
        """Nobody has to wait any more."""
        begun.set()
        if prefix is not None and self._writers.get(prefix) is begun:
            del self._writers[prefix]
