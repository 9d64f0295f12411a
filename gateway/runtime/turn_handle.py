"""A running turn, as its agent sees it: how it is steered and ended."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.core.events import MessageId, SenderId
from gateway.core.tool import Requester

DELETED_REASON: Final = "what it was to answer was deleted meanwhile"


class TurnInterrupted(Exception):
    """The turn was ended from outside; what it has done so far is to be recorded."""


class TurnHandle:
    """Handle of one turn."""

    def __init__(self) -> None:
        self.stop_reason = ""
        """Reason why it was stopped, in words. Empty: it was not."""
        self.drop_reason = ""
        """Reason why its reply is dropped although its input counts as consumed, in words. Empty:
        it is not."""
        self.requesters: tuple[Requester, ...] = ()
        """People on whose behalf it acts, as far as it has begun."""
        self.heard: dict[MessageId, tuple[SenderId, str]] = {}
        """Author and text of each message to the agent that it has read."""
        self.is_drafting = False
        """Its answer is being written, without any tool so far."""
        self.is_corrected = False
        """Somebody whom it may be about to answer has written again, and it has not read that."""
        self.running_calls = 0
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
        had_news, self._has_news, self.is_corrected = self._has_news, False, False
        return had_news

    def revise(self, message: MessageId, author: SenderId, text: str) -> None:
        """Take up the new text of a message.

        A turn that has read another one ends, and the next one begins anew, knowing what its tools
        did; one that waits for a tool is told.
        """
        known_author, known_text = self.heard.get(message, (None, ""))
        if known_author == author and known_text != text:
            if self.running_calls:
                self.steer()
            else:
                self.interrupt()

    def is_corrected_by(self, authors: Mapping[MessageId, SenderId]) -> bool:
        """Return whether one of these messages is new to it and may change what it writes for its
        author.
        """
        known = {author for author, _ in self.heard.values()}
        return any(author in known for one, author in authors.items() if one not in self.heard)

    def forget(self, message: MessageId) -> None:
        """Take in that a message was deleted. A turn that has read no other message to the agent
        answers nobody.
        """
        if self.heard.pop(message, None) is not None and not self.heard:
            self.drop(DELETED_REASON)

    def interrupt(self) -> None:
        """End the turn, unless its record is already being written."""
        if self._task is not None and not self._is_interrupted:
            self._task.cancel()
        self._is_interrupted = True

    def hold(self) -> bool:
        """Block the turn's record until `release`. False: it is too late, the turn has ended by
        itself.
        """
        if self._is_ending:
            return False
        self._released.clear()
        return True

    def release(self) -> None:
        """Let the turn's record be written."""
        self._released.set()

    def stop(self, why: str) -> None:
        """End the turn for good: nothing of it is resumed or posted, even if its reply is complete.

        Only for a turn that is held, or of which nothing was written yet. `why`: in words, not
        empty.
        """
        self.stop_reason = why
        self.interrupt()

    def drop(self, why: str) -> None:
        """End the turn without a reply. Its input counts as consumed. `why`: in words, not
        empty.
        """
        self.drop_reason = self.drop_reason or why
        self.interrupt()

    async def begin_ending(self) -> None:
        """Wait until nobody holds the turn, then mark its record as being written."""
        await self._released.wait()
        self._is_ending = True

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let the turn be interrupted inside the `with` block: then what runs there is cancelled.

        Raises TurnInterrupted once that has ended, or at once if the turn was interrupted before. A
        cancellation of the whole task passes through, as with `asyncio.timeout`.
        """
        is_too_late = self._is_interrupted
        if is_too_late:
            raise TurnInterrupted
        self._task = task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            try:
                yield
            finally:
                self._task = None
                if self._is_interrupted:
                    task.uncancel()
        except asyncio.CancelledError:
            if self._is_interrupted and task.cancelling() <= before:
                raise TurnInterrupted from None
            raise
