"""How a turn that runs is told that something has arrived, and how it is ended from outside."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from agent.brief import TurnOutcome
from gateway.core.tool import Requester

T = TypeVar("T")


class TurnInterrupted(Exception):
    """The turn was ended from outside; what it has done so far is to be written down."""


class TurnHandle:
    """One for each turn."""

    def __init__(self) -> None:
        self.stop_reason = ""
        """Why it was left off, in words. Empty: it was not."""
        self.drop_reason = ""
        """Why nothing is to be said of it, though it has heard all that it was told, in words. Empty: it is not."""
        self.requesters: tuple[Requester, ...] = ()
        """Who has it asked, as far as it has begun."""
        self._task: asyncio.Task[Any] | None = None
        self._has_news = False
        self._is_interrupted = False
        self._is_ending = False
        """How it ended is being written down."""
        self._released = asyncio.Event()
        self._released.set()

    def steer(self) -> None:
        """Something has arrived that the turn should be told at its next tool boundary."""
        self._has_news = True

    def take_news(self) -> bool:
        """Whether something has arrived since this was asked last."""
        told, self._has_news = self._has_news, False
        return told

    def interrupt(self) -> None:
        """End the turn. One that is about to write down how it ended by itself is let alone."""
        self._is_interrupted = True
        if self._task is not None:
            self._task.cancel()

    def hold(self) -> bool:
        """Let nothing be written down of it until `release`. False: that is too late, it has ended by itself."""
        if self._is_ending:
            return False
        self._released.clear()
        return True

    def release(self) -> None:
        """Go on."""
        self._released.set()

    def stop(self, why: str) -> None:
        """End the turn, and take up nothing of it by itself. Nothing more is said of it, also if its answer is there.

        Only for one that is held, or of which nothing was written down yet. `why`: in words, not empty.
        """
        self.stop_reason = why
        self.interrupt()

    def drop(self, why: str) -> None:
        """End the turn and say nothing of it. What it was told counts as heard. `why`: in words, not empty."""
        self.drop_reason = self.drop_reason or why
        self.interrupt()

    def override_outcome(self, outcome: TurnOutcome) -> TurnOutcome:
        """The same; if it was left off or dropped it ends like that, whatever it had come to."""
        why = self.stop_reason or self.drop_reason
        return replace(outcome, outcome="yielded", text="", reason=why, yielded=True) if why else outcome

    async def begin_ending(self) -> None:
        """How the turn ended is about to be written down: wait for whoever holds it."""
        await self._released.wait()
        self._is_ending = True

    async def run(self, asking: Coroutine[Any, Any, T]) -> T:
        """Await this, so that it can be interrupted. Raises Interrupted if it was, once it has ended.

        Cancelled, it ends that, too, and lets the cancellation through.
        """
        if self._is_interrupted:
            asking.close()
            raise TurnInterrupted
        self._task = task = asyncio.ensure_future(asking)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._task = None
        if task.cancelled():
            raise TurnInterrupted
        return task.result()
