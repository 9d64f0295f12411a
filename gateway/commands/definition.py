"""`@command`: what a command is called, takes, needs and does, beside the function that answers
it.

It marks a function of a module of this package, or a method of a plugin, and nothing else: the
table (`gateway.commands.table`) looks for the marks.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast, get_args

from channels.base import CommandArg, CommandCompletion
from gateway.core.frozen import frozen
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER, Role
from gateway.store.effects import CommandEffect

if TYPE_CHECKING:
    from gateway.commands.context import CommandCall, CommandContext

CommandGroup = Literal[
    "me and you", "this conversation", "approvals", "people", "rooms", "what I do", "how I run"
]
"""Subjects of commands, in the order in which help lists them."""
COMMAND_GROUPS: Final[tuple[CommandGroup, ...]] = get_args(CommandGroup)
CommandHandler = Callable[["CommandCall", "CommandContext"], Awaitable[CommandEffect]]
"""Answers with `done` or `refuse`. It may raise: the dispatcher answers for it."""
HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[CommandEffect | str]])
_DECLARATIONS: Final = "declared_commands"
SuggestionSource = Callable[[CommandCompletion, "CommandContext"], Awaitable[Sequence[str]]]
"""Returns suggestions for an argument, the likeliest first; may be called at every key press."""


@frozen
class SuggestedArg(CommandArg):
    """Argument with its suggestions."""

    source: SuggestionSource | None = None
    """None: there are none, or the argument has choices."""
    most: int = 0
    """Largest number that it may be, from 1 on. 0: any number."""


@frozen(kw_only=False)
class CommandDefinition:
    """A command, or one of its subcommands, which has what the command has unless it says
    otherwise.
    """

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`. A subcommand is declared by `name sub`, and then called
    `sub`."""
    summary: str
    """One line, at most 100 characters."""
    _: KW_ONLY
    group: CommandGroup = "me and you"
    args: tuple[CommandArg, ...] = ()
    subs: "tuple[CommandDefinition, ...]" = ()
    """Subcommands with their arguments; without a named one its own handler answers, or the first
    is meant."""
    default_sub: str = ""
    """Subcommand that is meant if the first word names none. Empty: that is an error."""
    role: Role = "guest"
    """Lowest role that may use it. Others get no answer."""
    needs_global_role: bool = False
    """True: it acts beyond its place, so a role in that place alone is not enough. A subcommand may
    need that where its command does not."""
    allowed_in_own_chat: bool = False
    """True: in a direct chat its owner may use it too, whatever their role."""
    direct_only: bool = False
    """True: only in a direct chat."""
    private: bool = True
    """True: the answer is shown to the sender alone, where the platform can. False: it is said in
    the room, because it changes what happens there or says who I am. Each subcommand has its own
    value."""
    aliases: tuple[str, ...] = ()
    """Other names, which are not listed."""
    needs_gateway: bool = False
    """True: it acts on what runs, so it cannot be carried out on the store of a stopped gateway."""
    asks_model: bool = False
    """True: it has a model asked, so it is limited as a message to the agent is."""
    operator: bool = False
    """True: only for the operator, from the shell and through the API."""
    example: str = ""
    """A use of it, which help shows, with `!` as the prefix."""
    plugin: str = ""
    """Name of the plugin that brings it, as the table found it. Empty: it is built in."""
    handler: CommandHandler | None = None
    """Answers it, if no subcommand is named. None: each has its own."""

    def __call__(self, handler: HandlerT) -> HandlerT:
        """Declare this function as its handler.

        A method of a plugin is called with the `CommandCall` and the arguments of its signature
        (see `gateway.commands.table`), and returns the answer as Markdown, or a `CommandEffect`.
        """
        declared = replace(self, handler=cast("CommandHandler", handler))
        handler.__dict__.setdefault(_DECLARATIONS, []).append(declared)
        return handler

    def is_allowed_for(self, role: Role, *, direct: bool, everywhere: Role | None = None) -> bool:
        """Return whether this role may use it; `direct`: in a direct chat, which is that person's
        own.

        `everywhere`: role in all places. None: the same one.
        """
        has = everywhere if self.needs_global_role and everywhere is not None else role
        return ROLE_ORDER.index(has) >= ROLE_ORDER.index(self.role) or (
            self.allowed_in_own_chat and direct and role != "blocked"
        )

    @property
    def is_administrative(self) -> bool:
        """True if its use is recorded in the audit."""
        return self.role in ADMIN_ROLES

    def find_meant(self, args: str) -> "CommandDefinition":
        """Return the subcommand that these arguments name; without one, the command."""
        return self.find_sub(args.partition(" ")[0].lower()) or self

    def find_sub(self, name: str) -> "CommandDefinition | None":
        """Return the subcommand of that name."""
        return next((one for one in self.subs if one.name == name), None)


command = CommandDefinition
"""Decorator that declares a function as the handler of a command: `CommandDefinition`. A command
whose subcommands answer it is declared by a name: `DMN = command("dmn", ...)`."""


def declared_commands(owner: ModuleType | type) -> Iterator[CommandDefinition]:
    """Yield what a module or a class declares, as declared, in that order."""
    for one in vars(owner).values():
        if isinstance(one, CommandDefinition):
            yield one
        elif isinstance(one, FunctionType):
            yield from one.__dict__.get(_DECLARATIONS, ())


def find_available(
    rows: Mapping[str, CommandDefinition], role: Role, everywhere: Role, *, direct: bool
) -> list[CommandDefinition]:
    """Return the commands that somebody may use at a place, without aliases."""
    return [
        row
        for row in dict.fromkeys(rows.values())
        if row.is_allowed_for(role, direct=direct, everywhere=everywhere)
        and (direct or not row.direct_only)
    ]


def make_arg(
    name: str,
    summary: str,
    *choices: str,
    number: bool = False,
    most: int = 0,
    needed: bool = False,
    rest: bool = False,
    suggests: SuggestionSource | None = None,
    secret: bool = False,
) -> CommandArg:
    """Return an argument of a command. `needed`: it must be given. `rest`: it takes the rest of the
    line. `most`: it is a number from 1 to this.
    """
    return SuggestedArg(
        name=name,
        summary=summary,
        required=needed,
        choices=choices,
        rest=rest,
        suggests=suggests is not None,
        source=suggests,
        secret=secret,
        number=number or bool(most),
        most=most,
    )


def format_arg(arg: CommandArg) -> str:
    """Return an argument as it is shown in help."""
    name = " | ".join(arg.choices) or arg.name
    return f"<{name}>" if arg.required else f"[{name}]"
