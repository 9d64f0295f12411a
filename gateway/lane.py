"""The handle on a turn while it runs: how it is told that something has arrived, and how it is ended from outside."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The turn was ended from outside; what it has done so far is to be written down."""


class Lane:
    """One for each turn."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[Any] | None = None
        self._news = False
        self._ended = False

    def steer(self) -> None:
        """Something has arrived that the turn should be told at its next tool boundary."""
        self._news = True

    def news(self) -> bool:
        """Whether something has arrived since this was asked last."""
        told, self._news = self._news, False
        return told

    def interrupt(self) -> None:
        """End the turn. One that is about to write down how it ended by itself is let alone."""
        self._ended = True
        if self._asking is not None:
            self._asking.cancel()

    async def run(self, asking: Coroutine[Any, Any, T]) -> T:
        """Await this, so that it can be interrupted. Raises Interrupted if it was, once it has ended.

        Cancelled, it ends that, too, and lets the cancellation through.
        """
        if self._ended:
            asking.close()
            raise Interrupted
        self._asking = task = asyncio.ensure_future(asking)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._asking = None
        if task.cancelled():
            raise Interrupted
        return task.result()
