"""How a turn that runs is told that something has arrived, and how it is ended from outside."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from agent.outcome import Outcome
from gateway.hands import Asker

T = TypeVar("T")


class Interrupted(Exception):
    """The turn was ended from outside; what it has done so far is to be written down."""


class Lane:
    """One for each turn."""

    def __init__(self) -> None:
        self.left_off = ""
        """Why it was left off, in words. Empty: it was not."""
        self.dropped = ""
        """Why nothing is to be said of it, though it has heard all that it was told, in words. Empty: it is not."""
        self.askers: tuple[Asker, ...] = ()
        """Who has it asked, as far as it has begun."""
        self._asking: asyncio.Task[Any] | None = None
        self._news = False
        self._ended = False
        self._over = False
        """How it ended is being written down."""
        self._free = asyncio.Event()
        self._free.set()

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

    def hold(self) -> bool:
        """Let nothing be written down of it until `release`. False: that is too late, it has ended by itself."""
        if self._over:
            return False
        self._free.clear()
        return True

    def release(self) -> None:
        """Go on."""
        self._free.set()

    def leave_off(self, why: str) -> None:
        """End the turn, and take up nothing of it by itself. Nothing more is said of it, also if its answer is there.

        Only for one that is held, or of which nothing was written down yet. `why`: in words, not empty.
        """
        self.left_off = why
        self.interrupt()

    def drop(self, why: str) -> None:
        """End the turn and say nothing of it. What it was told counts as heard. `why`: in words, not empty."""
        self.dropped = self.dropped or why
        self.interrupt()

    def ended(self, outcome: Outcome) -> Outcome:
        """The same; if it was left off or dropped it ends like that, whatever it had come to."""
        why = self.left_off or self.dropped
        return replace(outcome, outcome="yielded", text="", reason=why, yielded=True) if why else outcome

    async def over(self) -> None:
        """How the turn ended is about to be written down: wait for whoever holds it."""
        await self._free.wait()
        self._over = True

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
