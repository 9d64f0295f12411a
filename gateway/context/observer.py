"""Turns and tool calls in progress, recorded for an observer such as the operations API.

Nothing here waits, fails or costs more than a few microseconds a turn. Growing answers are not
passed on without an observer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gateway.core.events import ConversationId, MessageId
from gateway.core.facts import TurnId
from gateway.core.frozen import frozen


@dataclass(slots=True, kw_only=True)
class RunningTurn:
    """Turn in progress."""

    turn: TurnId
    agent: str
    conversation: ConversationId
    autonomous: bool
    cause: str
    since: datetime
    reply_to: MessageId | None = None
    """What its answer replies to."""
    may_grow: bool = True
    """False: the answer is to be posted as a whole, for it notifies somebody whom it does not reply
    to, and an edit notifies nobody."""
    is_awaited: bool = False
    """A person waits for the answer."""
    is_shown: bool = False
    """True: a plugin shows the answer while it is written. Set by it, when the turn starts."""
    goes_on: bool = False
    """True at its end: a later turn there goes on with its work. It was interrupted or cut off."""
    tools: dict[str, str] = field(default_factory=dict)
    """Names of the tools in progress, by call id."""
    listeners: Sequence["ProgressListener"] = ()
    """Who is told what happens in it, in order, before the tracker's listeners."""


@frozen
class ToolProgress:
    """Start or end of a tool call."""

    call: str
    name: str
    arguments: str
    state: Literal["started", "ended"]
    result: str = ""
    error: bool = False


@frozen(kw_only=False)
class AnswerGrew:
    """An answer has grown."""

    text: str
    """The whole text so far."""


@frozen(kw_only=False)
class ThinkingGrew:
    """A model has thought on."""

    text: str
    """The next piece."""


Progress = Literal["started", "slow", "ended"] | AnswerGrew | ThinkingGrew | ToolProgress
"""What happens in a turn: its start and its end, its answer, the calls of its tools; slow: nothing
of the answer has come for long."""
ProgressListener = Callable[[RunningTurn, Progress], None]
"""Returns at once."""


class TurnTracker:
    """Record of the turns in progress. One for all agents."""

    def __init__(self) -> None:
        self._running: dict[TurnId, RunningTurn] = {}
        self.listeners: list[ProgressListener] = []
        """Who is told what happens in all turns, in order."""

    @property
    def running(self) -> list[RunningTurn]:
        """Turns in progress, the oldest first."""
        return [*self._running.values()]

    @contextlib.contextmanager
    def track(self, running: RunningTurn) -> Iterator[None]:
        """Record a turn as running inside the `with` block."""
        self._running[running.turn] = running
        self.tell(running.turn, "started")
        try:
            yield
        except asyncio.CancelledError:
            running.goes_on = True
            raise
        finally:
            self.tell(running.turn, "ended")
            del self._running[running.turn]

    def tell(self, turn: TurnId, news: Progress) -> None:
        """Tell the listeners what happens in a turn, and record the calls of its tools."""
        running = self._running.get(turn)
        if running is None:
            return
        if isinstance(news, ToolProgress):
            if news.state == "started":
                running.tools[news.call] = news.name
            else:
                running.tools.pop(news.call, None)
        for listener in (*running.listeners, *self.listeners):
            listener(running, news)
