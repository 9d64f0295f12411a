"""What the loop and a turn share: the handle by which a turn is steered and stopped from outside, and its result."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from agent.brief import TurnOutcome
from gateway.core.tool import Requester


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Result of a turn, for the agent's loop."""

    has_failed: bool = False
    used_tools: bool = False
    has_yielded: bool = False
    was_interrupted: bool = False
    autonomous: bool = False
    is_over_budget: bool = False
    """The budget does not cover its requests."""
    cost_usd: float = 0.0
    """Cost of its requests, as far as their prices are known."""


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
        """The task of the turn, while it can be interrupted."""
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
        if self._task is not None and not self._is_interrupted:
            self._task.cancel()
        self._is_interrupted = True

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

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the turn be interrupted inside the `with` block: then what runs there is cancelled.

        Raises TurnInterrupted once that has ended, or at once if the turn was interrupted before. A cancellation of the
        whole task passes through, as with `asyncio.timeout`.
        """
        if self._is_interrupted:
            raise TurnInterrupted
        self._task = task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if self._uncancel(task) and task.cancelling() <= before:
                raise TurnInterrupted from None
            raise
        except BaseException:
            self._uncancel(task)
            raise
        else:
            self._uncancel(task)
        finally:
            self._task = None

    def _uncancel(self, task: asyncio.Task[Any]) -> bool:
        """Take the cancellation of an interruption back. False: there was none."""
        if self._is_interrupted:
            task.uncancel()
        return self._is_interrupted
