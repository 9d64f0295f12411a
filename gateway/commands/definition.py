"""`@command`: what a command is called, takes, needs and does, beside the function that answers
it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar, get_args

from channels.base import CommandArg, CommandCompletion
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
HandlerT = TypeVar("HandlerT", bound=CommandHandler)
SuggestionSource = Callable[[CommandCompletion, "CommandContext"], Awaitable[Sequence[str]]]
"""Returns suggestions for an argument, the likeliest first; may be called at every key press."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedArg(CommandArg):
    """Argument with its suggestions."""

    source: SuggestionSource | None = None
    """None: there are none, or the argument has choices."""


@dataclass(frozen=True, slots=True)
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
    operator: bool = False
    """True: only for the operator, from the shell and through the API."""
    handler: CommandHandler | None = None
    """Answers it, if no subcommand is named. None: each has its own."""

    def __call__(self, handler: HandlerT) -> HandlerT:
        """Declare this function as its handler."""
        replace(self, handler=handler).declare()
        return handler

    def declare(self) -> None:
        """Add it to the table. A command with subcommands is declared before these."""
        name, _, sub = self.name.partition(" ")
        for rows in (_OPERATOR_ROWS,) if self.operator else (_ROWS, _OPERATOR_ROWS):
            row = rows.get(name, self)
            one = replace(
                row, name=sub, summary=self.summary, args=self.args, subs=(), handler=self.handler
            )
            one = replace(one, needs_gateway=row.needs_gateway or self.needs_gateway)
            if sub:
                rows[name] = replace(row, subs=(*row.subs, one))
            elif (
                self.operator or not row.operator
            ):  # one of the operator's stays, in whatever order they are declared
                rows[name] = self

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

    def find_sub(self, name: str) -> "CommandDefinition | None":
        """Return the subcommand of that name."""
        return next((one for one in self.subs if one.name == name), None)


command = CommandDefinition
"""Decorator of handlers, by the name of other decorators."""
_ROWS: Final[dict[str, CommandDefinition]] = {}
_OPERATOR_ROWS: Final[dict[str, CommandDefinition]] = {}


def declared_commands(*, operator: bool) -> dict[str, CommandDefinition]:
    """Return what was declared so far, by subject, and by every name and alias: that of people, or
    of the operator.
    """

    def place(row: CommandDefinition) -> tuple[int, str]:
        handler = row.handler or row.subs[0].handler
        return COMMAND_GROUPS.index(row.group), getattr(handler, "__module__", "")

    ordered = sorted((_OPERATOR_ROWS if operator else _ROWS).values(), key=place)
    return {name: row for row in ordered for name in (row.name, *row.aliases)}


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
    needed: bool = False,
    rest: bool = False,
    suggests: SuggestionSource | None = None,
    secret: bool = False,
) -> CommandArg:
    """Return an argument of a command. `needed`: it must be given. `rest`: it takes the rest of the
    line.
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
        number=number,
    )


def format_arg(arg: CommandArg) -> str:
    """Return an argument as it is shown in help."""
    name = " | ".join(arg.choices) or arg.name
    return f"<{name}>" if arg.required else f"[{name}]"
