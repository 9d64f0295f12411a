"""What commands are asked with, what they may look at, and what they answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.access import Role
from gateway.clock import Clock
from gateway.commands.table import TABLE, Row
from gateway.events import ChannelName, Command, Post
from gateway.ops.stats import Stats
from gateway.rewinds import Change, Rewinds
from gateway.store import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that commands may look at."""

    reader: Reader
    clock: Clock
    stats: Stats
    version: str
    model: Callable[[], str]
    """What answers people, by name."""
    mode: Callable[[], str]
    """What the agent is doing, in a word."""
    contacts: Mapping[ChannelName, str]
    """Who runs this bot, as each channel says it."""
    prefix: Mapping[ChannelName, str]
    """What stands in front of a command's name there. Empty: none can be given there."""
    rewinds: Rewinds
    """What changes the view of a conversation."""
    pages: Callable[[Post], int]
    """How many pages a post has where it goes; 1 where there are no pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One command that is to be answered."""

    command: Command
    role: Role
    rule: str
    """Why this person is heard here."""

    def listed(self) -> list[Row]:
        """The commands that this person may use here."""
        direct = self.command.direct
        return [row for row in TABLE if row.open_to(self.role, direct=direct) and (direct or not row.direct_only)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What to say."""

    text: str
    page: int = 1
    change: Change | None = None
    """What becomes durable with it. None: it only tells."""


Handler = Callable[[Ask, World], Awaitable[str | Answer]]
