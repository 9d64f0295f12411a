"""Turns and tool calls in progress, recorded for an observer such as the operations API.

Nothing here waits, fails or costs more than a few microseconds a turn. Growing answers are not
passed on without an observer.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

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


class TurnObserver(Protocol):
    """Receiver of changes as they happen. Each method returns at once."""

    def turn_changed(self, running: RunningTurn, state: Literal["started", "ended"]) -> None:
        """Receive the start or the end of a turn."""

    def answer_grew(self, running: RunningTurn, text: str) -> None:
        """Receive the whole text so far of an answer."""

    def thinking_grew(self, running: RunningTurn, text: str) -> None:
        """Receive the next piece of the model's thinking."""

    def tool_changed(self, running: RunningTurn, tool: ToolProgress) -> None:
        """Receive the start or the end of a tool call."""


class TurnTracker:
    """Record of the turns in progress. One for all agents."""

    def __init__(self) -> None:
        self._running: dict[TurnId, RunningTurn] = {}
        self.observer: TurnObserver | None = None
        """None: nobody observes."""

    @property
    def running(self) -> list[RunningTurn]:
        """Turns in progress, the oldest first."""
        return [*self._running.values()]

    @contextlib.contextmanager
    def track(self, running: RunningTurn) -> Iterator[None]:
        """Record a turn as running inside the `with` block."""
        self._running[running.turn] = running
        if self.observer is not None:
            self.observer.turn_changed(running, "started")
        try:
            yield
        finally:
            del self._running[running.turn]
            if self.observer is not None:
                self.observer.turn_changed(running, "ended")

    def answer_grew(self, turn: TurnId, text: str) -> None:
        """Report the whole text so far of a turn's answer."""
        if self.observer is not None and turn in self._running:
            self.observer.answer_grew(self._running[turn], text)

    def thinking_grew(self, turn: TurnId, text: str) -> None:
        """Report the next piece of a turn's thinking."""
        if self.observer is not None and turn in self._running:
            self.observer.thinking_grew(self._running[turn], text)

    def tool_changed(self, turn: TurnId, tool: ToolProgress) -> None:
        """Record the start or the end of a tool call of a turn."""
        running = self._running.get(turn)
        if running is None:
            return
        if tool.state == "started":
            running.tools[tool.call] = tool.name
        else:
            running.tools.pop(tool.call, None)
        if self.observer is not None:
            self.observer.tool_changed(running, tool)
