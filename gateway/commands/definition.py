"""A row of the command table: what a command is called, takes, needs and does, with its handler."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from channels.base import CommandArg
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER, Role

if TYPE_CHECKING:
    from gateway.commands.context import CommandHandler

CommandGroup = Literal["me and you", "this conversation", "approvals", "people", "rooms", "what I do", "how I run"]
"""Subjects of commands, in the order in which help lists them."""
COMMAND_GROUPS: Final[tuple[CommandGroup, ...]] = get_args(CommandGroup)
ArgForm = Literal["", "number", "id", "word", "room", "person", "command", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcommandDefinition:
    """A subcommand."""

    name: str
    summary: str
    args: tuple[CommandArg, ...] = ()
    role: Role | None = None
    """Lowest role that may use it. None: the command's."""
    needs_gateway: bool = False
    """True: it acts on what runs, so it cannot be carried out on the store of a stopped gateway."""
    handler: "CommandHandler"
    """Answers it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDefinition:
    """A command. It has `args`, or `subs` with theirs; without a named subcommand the first is meant."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    group: CommandGroup
    summary: str
    """One line, at most 100 characters."""
    args: tuple[CommandArg, ...] = ()
    subs: tuple[SubcommandDefinition, ...] = ()
    default_sub: str = ""
    """Subcommand that is meant if the first word names none. Empty: that is an error."""
    role: Role = "guest"
    """Lowest role that may use it. Others get no answer."""
    needs_global_role: bool = False
    """True: it acts beyond its place, so a role in that place alone is not enough."""
    allowed_in_own_chat: bool = False
    """True: in a direct chat its owner may use it too, whatever their role."""
    direct_only: bool = False
    """True: only in a direct chat."""
    private: bool = False
    """True: the answer is shown to the sender alone, where the platform can."""
    aliases: tuple[str, ...] = ()
    """Other names, which are not listed."""
    needs_gateway: bool = False
    """True: it acts on what runs, so it cannot be carried out on the store of a stopped gateway."""
    asks_model: bool = False
    """True: it has a model asked, so it is limited as a message to the agent is."""
    handler: "CommandHandler | None" = None
    """Answers it. None: each subcommand has its own."""

    def is_allowed_for(
        self, role: Role, *, direct: bool, everywhere: Role | None = None, sub: SubcommandDefinition | None = None
    ) -> bool:
        """Return whether this role may use it; `direct`: in a direct chat, which is that person's own.

        `everywhere`: role in all places. None: the same one.
        """
        has = everywhere if self.needs_global_role and everywhere is not None else role
        needs = (sub.role if sub is not None else None) or self.role
        return ROLE_ORDER.index(has) >= ROLE_ORDER.index(needs) or (
            self.allowed_in_own_chat and direct and role != "blocked"
        )

    @property
    def is_administrative(self) -> bool:
        """True if its use is recorded in the audit."""
        return self.role in ADMIN_ROLES or any(sub.role in ADMIN_ROLES for sub in self.subs)

    def find_sub(self, name: str) -> SubcommandDefinition | None:
        """Return the subcommand of that name."""
        return next((one for one in self.subs if one.name == name), None)


def make_arg(
    name: str,
    summary: str,
    *choices: str,
    form: ArgForm = "",
    needed: bool = False,
    rest: bool = False,
    suggests: bool = False,
    secret: bool = False,
) -> CommandArg:
    """Return an argument of a command. `needed`: it must be given. `rest`: it takes the rest of the line."""
    return CommandArg(
        name=name,
        summary=summary,
        required=needed,
        choices=choices,
        rest=rest,
        suggests=suggests,
        secret=secret,
        form=form,
    )


def format_arg(arg: CommandArg) -> str:
    """Return an argument as it is shown in help."""
    name = " | ".join(arg.choices) or arg.name
    return f"<{name}>" if arg.required else f"[{name}]"


WHO_ARG: Final = make_arg(
    "who",
    "A person: an id as in whoami, or a name that was active here lately.",
    form="person",
    needed=True,
    suggests=True,
)
WHERE_ARG: Final = make_arg("where", "In this room only, or everywhere.", "here", "everywhere")
CODE_ARG: Final = make_arg("code", "The code.", form="id", needed=True, rest=True, secret=True)
REQUEST_ARG: Final = make_arg(
    "code",
    "The code, or the id of the request or person, as in list.",
    form="id",
    needed=True,
    rest=True,
    suggests=True,
    secret=True,
)
ROOM_REQUEST_ARG: Final = replace(
    REQUEST_ARG, summary="The code, or the id of the request or room, as in list.", required=False
)
ROOM_ARG: Final = make_arg("room", "The room, as in rooms.", form="room", suggests=True)
