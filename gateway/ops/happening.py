"""What happens, as it is noted for whoever listens, and what becomes of it on the wire. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from gateway.ops.onlookers import RunningTurn, ToolProgress
from gateway.store import AppendResult, NewEntry


@dataclass(frozen=True, slots=True)
class LogAppended:
    """This was appended to the log."""

    entries: Sequence[NewEntry]
    written: Sequence[AppendResult]


@dataclass(frozen=True, slots=True)
class TurnStateChanged:
    """A turn began or is over."""

    running: RunningTurn
    state: Literal["started", "ended"]
    at: datetime


@dataclass(slots=True)
class AnswerGrown:
    """An answer has grown to this, and so much more was thought."""

    running: RunningTurn
    at: datetime
    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class ToolStateChanged:
    """A tool began or ended."""

    running: RunningTurn
    tool: ToolProgress
    at: datetime


@dataclass(frozen=True, slots=True)
class WarningLogged:
    """A warning, or worse, was logged."""

    at: datetime
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class ConfigReloaded:
    """The configuration was read again: keys that count, keys that count later, what is wrong with it."""

    at: datetime
    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """Something has changed that is looked at when it is told: connections, the agents' networks."""


GatewayEvent = (
    LogAppended | TurnStateChanged | AnswerGrown | ToolStateChanged | WarningLogged | ConfigReloaded | StatusChanged
)


class SseFrame(NamedTuple):
    """Events as they go over the wire."""

    seq: int
    """The position of the log up to which this tells. 0: it is not in the log."""
    data: bytes
    event_count: int


class EventEncoder(Protocol):
    """Makes frames."""

    async def encode(self, happened: Sequence[GatewayEvent]) -> list[SseFrame]:
        """Of what happened."""

    async def encode_backlog(self, after: int) -> tuple[int, list[SseFrame]]:
        """Of what is in the log behind `after`; and the last position of the log."""

    def encode_lost(self, count: int) -> bytes:
        """That so many events are missing."""
