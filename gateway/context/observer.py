"""Turns and tool calls in progress, recorded for an observer such as the operations API.

Nothing here waits, fails or costs more than a few microseconds a turn. Growing answers are not
passed on without an observer.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gateway.core.events import ConversationId
from gateway.core.facts import TurnId


@dataclass(slots=True, kw_only=True)
class RunningTurn:
    """Turn in progress."""

    turn: TurnId
    agent: str
    conversation: ConversationId
    autonomous: bool
    cause: str
    since: datetime
    tools: dict[str, str] = field(default_factory=dict)
    """Names of the tools in progress, by call id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """Start or end of a tool call."""

    call: str
    name: str
    arguments: str
    state: Literal["started", "ended"]
    result: str = ""
    error: bool = False


@dataclass(frozen=True, slots=True)
class AnswerGrew:
    """An answer has grown."""

    text: str
    """The whole text so far."""


@dataclass(frozen=True, slots=True)
class ThinkingGrew:
    """A model has thought on."""

    text: str
    """The next piece."""


Progress = Literal["started", "ended"] | AnswerGrew | ThinkingGrew | ToolProgress
"""What happens in a turn: its start and its end, its answer, the calls of its tools."""
ProgressListener = Callable[[RunningTurn, Progress], None]
"""Returns at once."""


class TurnTracker:
    """Record of the turns in progress. One for all agents."""

    def __init__(self) -> None:
        self._running: dict[TurnId, RunningTurn] = {}
        self.listeners: list[ProgressListener] = []
        """Who is told what happens in turns, in order."""

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
        for listener in self.listeners:
            listener(running, news)
