"""Handles of running turns: news are announced to a turn, and it is stopped from outside, through its handle."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from agent.brief import TurnOutcome
from gateway.core.tool import Requester

T = TypeVar("T")


class TurnInterrupted(Exception):
    """The turn was ended from outside; what it has done so far is to be recorded."""


class TurnHandle:
    """Handle of one turn."""

    def __init__(self) -> None:
        self.stop_reason = ""
        """Reason why it was stopped, in words. Empty: it was not."""
        self.drop_reason = ""
        """Reason why its reply is dropped although its input counts as consumed, in words. Empty: it is not."""
        self.requesters: tuple[Requester, ...] = ()
        """People on whose behalf it acts, as far as it has begun."""
        self._task: asyncio.Task[Any] | None = None
        self._has_news = False
        self._is_interrupted = False
        self._is_ending = False
        """Its record is being written."""
        self._released = asyncio.Event()
        self._released.set()

    def steer(self) -> None:
        """Announce news, for the turn's next tool boundary."""
        self._has_news = True

    def take_news(self) -> bool:
        """Return whether news were announced since the last call."""
        had_news, self._has_news = self._has_news, False
        return had_news

    def interrupt(self) -> None:
        """End the turn, unless its record is already being written."""
        self._is_interrupted = True
        if self._task is not None:
            self._task.cancel()

    def hold(self) -> bool:
        """Block the turn's record until `release`. False: it is too late, the turn has ended by itself."""
        if self._is_ending:
            return False
        self._released.clear()
        return True

    def release(self) -> None:
        """Let the turn's record be written."""
        self._released.set()

    def stop(self, why: str) -> None:
        """End the turn for good: nothing of it is resumed or posted, even if its reply is complete.

        Only for a turn that is held, or of which nothing was written yet. `why`: in words, not empty.
        """
        self.stop_reason = why
        self.interrupt()

    def drop(self, why: str) -> None:
        """End the turn without a reply. Its input counts as consumed. `why`: in words, not empty."""
        self.drop_reason = self.drop_reason or why
        self.interrupt()

    def override_outcome(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome; of a stopped or dropped turn, that of one that yielded."""
        why = self.stop_reason or self.drop_reason
        return replace(outcome, outcome="yielded", text="", reason=why, yielded=True) if why else outcome

    async def begin_ending(self) -> None:
        """Wait until nobody holds the turn, then mark its record as being written."""
        await self._released.wait()
        self._is_ending = True

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine, so that it can be interrupted. Raises TurnInterrupted if it was, once it has ended.

        Cancelled, it cancels the coroutine, too, and passes the cancellation on.
        """
        if self._is_interrupted:
            work.close()
            raise TurnInterrupted
        self._task = task = asyncio.ensure_future(work)
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
