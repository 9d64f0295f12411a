"""What happens, as it is noted for whoever listens, and what becomes of it on the wire. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from gateway.ops.onlookers import Running, Tool
from gateway.store import Appended, Entry


@dataclass(frozen=True, slots=True)
class Wrote:
    """This was appended to the log."""

    entries: Sequence[Entry]
    written: Sequence[Appended]


@dataclass(frozen=True, slots=True)
class Turned:
    """A turn began or is over."""

    running: Running
    state: Literal["started", "ended"]
    at: datetime


@dataclass(slots=True)
class Grew:
    """An answer has grown to this, and so much more was thought."""

    running: Running
    at: datetime
    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Used:
    """A tool began or ended."""

    running: Running
    tool: Tool
    at: datetime


@dataclass(frozen=True, slots=True)
class Logged:
    """A warning, or worse, was logged."""

    at: datetime
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class Reread:
    """The configuration was read again: keys that count, keys that count later, what is wrong with it."""

    at: datetime
    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """Something has changed that is looked at when it is told: connections, the agents' networks."""


Happened = Wrote | Turned | Grew | Used | Logged | Reread | Changed


class Frame(NamedTuple):
    """Events as they go over the wire."""

    seq: int
    """The position of the log up to which this tells. 0: it is not in the log."""
    data: bytes
    event_count: int


class Teller(Protocol):
    """Makes frames."""

    async def encode(self, happened: Sequence[Happened]) -> list[Frame]:
        """Of what happened."""

    async def encode_backlog(self, after: int) -> tuple[int, list[Frame]]:
        """Of what is in the log behind `after`; and the last position of the log."""

    def encode_lost(self, count: int) -> bytes:
        """That so many events are missing."""
