"""What commands are asked with, what they may look at, and what they answer."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from gateway.changes import CommandEffect
from gateway.clock import Clock
from gateway.commands.table import COMMANDS, CommandDefinition
from gateway.events import Address, ChannelName, Command, Post
from gateway.ops.stats import GatewayStats
from gateway.rewinds import Rewinder
from gateway.standing import Role, person_key
from gateway.store import StoreReader
from gateway.tools.deciding import ApprovalDecisions
from gateway.tools.toolbox import ToolList


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """All that commands may look at."""

    reader: StoreReader
    clock: Clock
    stats: GatewayStats
    version: str
    model_name: Callable[[], str]
    """What answers people, by name."""
    agent_mode: Callable[[], str]
    """What the agent is doing, in a word."""
    prefixes: Mapping[ChannelName, str]
    """What stands in front of a command's name there. Empty: none can be given there."""
    rewinds: Rewinder
    """What changes the view of a conversation."""
    count_pages: Callable[[Post], int]
    """How many pages a post has where it goes; 1 where there are no pages."""
    operator_contact: Callable[[ChannelName], str | None] = lambda _: None
    """Who runs this bot, as that channel says it."""
    approvals: ApprovalDecisions | None = None
    """What calls of tools wait for an admin's word. None: no tool does."""
    tools_at: Callable[[Address], ToolList] = lambda _: ToolList()
    """What tools whoever answers there has."""
    awaiting_channels: Collection[ChannelName] = ()
    """As `Capabilities.awaits`: there who may not use a command is told so."""
    private_address: Callable[[Command], Address] = lambda command: command.at
    """Where somebody is told what is not for the room's eyes: there, where the platform can tell them alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """One command that is to be answered."""

    command: Command
    role: Role
    rule: str
    """Why this person is heard here."""
    global_role: Role = "guest"
    """The role that this person has in all places."""
    sub: str = ""
    """Which of the things that the command can do is meant. Empty: it has none."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Its arguments by name, those that were given; they fit the table."""

    @property
    def person(self) -> str:
        """Who asks, as `gateway.standing.person_key` writes them."""
        return person_key(self.command.at.channel, self.command.sender.id)

    def available_commands(self) -> list[CommandDefinition]:
        """The commands that this person may use here."""
        direct = self.command.direct
        return [
            row
            for row in COMMANDS
            if row.is_allowed_for(self.role, direct=direct, everywhere=self.global_role)
            and (direct or not row.direct_only)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """What to say."""

    text: str
    page: int = 1
    effect: CommandEffect | None = None
    """What becomes durable with it. None: it only tells."""
    private: bool | None = None
    """Whether it concerns nobody but who asked. None: as the table says."""
    ok: bool = True
    """False: what was wanted is not done. For the audit."""


CommandHandler = Callable[[CommandCall, CommandContext], Awaitable[str | CommandReply]]
