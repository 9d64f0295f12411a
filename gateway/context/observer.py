"""What goes on just now, for whoever looks on: turns and their tools, noted where they happen.

Nothing here waits, fails or costs more than a few microseconds a turn; what only somebody who looks on needs (words as
they grow) is not even looked at while nobody does.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from gateway.context.turn_facts import TurnStart
from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.core.facts import TurnId


@dataclass(slots=True, kw_only=True)
class RunningTurn:
    """A turn under way."""

    turn: TurnId
    agent: str
    conversation: ConversationId
    autonomous: bool
    cause: str
    since: datetime
    tools: dict[str, str] = field(default_factory=dict)
    """By call: the names of those that are carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProgress:
    """A call of a tool."""

    call: str
    name: str
    arguments: str
    state: Literal["started", "ended"]
    result: str = ""
    error: bool = False


class TurnObserver(Protocol):
    """Somebody who is told as it happens. Each call returns at once."""

    def turn_changed(self, running: RunningTurn, state: Literal["started", "ended"]) -> None:
        """A turn began or is over."""

    def answer_grew(self, running: RunningTurn, text: str) -> None:
        """An answer has grown to this."""

    def thinking_grew(self, running: RunningTurn, text: str) -> None:
        """So much more was thought."""

    def tool_changed(self, running: RunningTurn, tool: ToolProgress) -> None:
        """A tool began or ended."""


class TurnTracker:
    """Where turns note what they do. One for all agents."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[TurnId, RunningTurn] = {}
        self.observer: TurnObserver | None = None
        """None: nobody looks on."""

    @property
    def running(self) -> list[RunningTurn]:
        """The turns under way, the oldest first."""
        return [*self._running.values()]

    @contextlib.contextmanager
    def track(self, begun: TurnStart, agent: str) -> Iterator[RunningTurn]:
        """For as long as a turn runs."""
        turn = begun.turn
        running = RunningTurn(
            turn=turn,
            agent=agent,
            conversation=begun.place.conversation,
            autonomous=begun.autonomous,
            cause=begun.cause,
            since=self._clock.now(),
        )
        self._running[turn] = running
        if self.observer is not None:
            self.observer.turn_changed(running, "started")
        try:
            yield running
        finally:
            del self._running[turn]
            if self.observer is not None:
                self.observer.turn_changed(running, "ended")

    def answer_callback(self, running: RunningTurn, also: Callable[[str], None] | None) -> Callable[[str], None]:
        """What is to be called with the text so far of a growing answer. `also`: so is this."""

        def seen(text: str) -> None:
            if also is not None:
                also(text)
            if self.observer is not None:
                self.observer.answer_grew(running, text)

        return seen

    def thinking_callback(self, running: RunningTurn) -> Callable[[str], None]:
        """What is to be called with each piece of thinking."""

        def seen(text: str) -> None:
            if self.observer is not None:
                self.observer.thinking_grew(running, text)

        return seen

    def tool_changed(self, turn: TurnId, tool: ToolProgress) -> None:
        """A tool began or ended in that turn."""
        running = self._running.get(turn)
        if running is None:
            return
        if tool.state == "started":
            running.tools[tool.call] = tool.name
        else:
            running.tools.pop(tool.call, None)
        if self.observer is not None:
            self.observer.tool_changed(running, tool)
