"""Command table: one row for each command. Pure.

The single source for help, native slash commands, menus, and parsing of text.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from channels.base import CommandArg, CommandSpec, SubcommandSpec
from gateway.core.identity import ADMIN_ROLES, ROLE_ORDER, Role

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


def _arg(
    name: str,
    summary: str,
    *choices: str,
    form: ArgForm = "",
    needed: bool = False,
    rest: bool = False,
    suggests: bool = False,
    secret: bool = False,
) -> CommandArg:
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


_WHO_ARG: Final = _arg(
    "who",
    "A person: channel:id as whoami shows it, or a name heard here lately.",
    form="person",
    needed=True,
    suggests=True,
)
_WHERE_ARG: Final = _arg("where", "In this room only, or wherever I am.", "here", "everywhere")
_CODE_ARG: Final = _arg("code", "The code.", form="id", needed=True, rest=True, secret=True)
_REQUEST_ARG: Final = _arg(
    "code",
    "The code, or the id of the request or of the person, as list shows them.",
    form="id",
    needed=True,
    rest=True,
    secret=True,
)
_ROOM_REQUEST_ARG: Final = replace(
    _REQUEST_ARG, summary="The code, or the id of the request or of the room, as list shows them.", required=False
)
_ROOM_ARG: Final = _arg("room", "A room, as rooms lists them.", form="room", suggests=True)

COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="help",
        group="me and you",
        summary="What can be asked of me.",
        args=(
            _arg("command", "One command in full.", form="command", suggests=True),
            _arg("sub", "One thing that it can do.", form="command"),
        ),
        private=True,
        aliases=("commands",),
    ),
    CommandDefinition(
        name="about",
        group="me and you",
        summary="What I am, and who runs me.",
        aliases=("start",),  # Telegram's first button
    ),
    CommandDefinition(name="whoami", group="me and you", summary="Who you are to me, and why.", private=True),
    CommandDefinition(
        name="status", group="how I run", summary="Where I am connected, what answers, and what I am doing."
    ),
    CommandDefinition(name="more", group="me and you", summary="The next page of my last long answer here."),
    CommandDefinition(
        name="again", group="me and you", summary="Repeat an answer of mine that may not have arrived here."
    ),
    CommandDefinition(name="version", group="me and you", summary="Which version of Reverie this is."),
    CommandDefinition(
        name="link",
        group="me and you",
        summary="Show that you are the same person on another platform.",
        subs=(
            SubcommandDefinition(name="start", summary="Get a code to hand to me where you are known by another name."),
            SubcommandDefinition(name="code", summary="Hand in a code that I showed you.", args=(_CODE_ARG,)),
            SubcommandDefinition(name="list", summary="The accounts that are you to me."),
            SubcommandDefinition(
                name="remove",
                summary="This account is not me any more.",
                args=(_arg("account", "As list shows it.", form="person", needed=True, suggests=True),),
            ),
        ),
        default_sub="code",
        direct_only=True,
        private=True,
    ),
    CommandDefinition(
        name="usage",
        group="this conversation",
        summary="Tokens and money that were spent in this room today.",
        role="member",
        private=True,
    ),
    CommandDefinition(
        name="tools",
        group="approvals",
        summary="Which tools I have, and who may have me use them.",
        role="member",
        private=True,
    ),
    CommandDefinition(
        name="cache",
        group="this conversation",
        summary="How much of this conversation the model's cache gives, and what it missed last.",
        role="admin",
        private=True,
    ),
    CommandDefinition(
        name="why",
        group="how I run",
        summary="What happened to an entry of the log, and which rule decided.",
        args=(_arg("entry", "Its number, as log tail shows it.", form="number", needed=True),),
        role="admin",
        private=True,
    ),
    CommandDefinition(
        name="stop",
        group="this conversation",
        summary="Leave off what I am doing here.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    CommandDefinition(
        name="new",
        group="this conversation",
        summary="Begin afresh: I see nothing of what was said here until now.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    CommandDefinition(
        name="retry",
        group="this conversation",
        summary="Answer once more what I answered last here.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    CommandDefinition(
        name="rewind",
        group="this conversation",
        summary="Take back the last exchange here, or as many as you say.",
        args=(_arg("n", "How many exchanges.", form="number"),),
        role="admin",
        allowed_in_own_chat=True,
    ),
    CommandDefinition(
        name="compact",
        group="this conversation",
        summary="Make what I see of this conversation smaller, now.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    CommandDefinition(
        name="journal",
        group="this conversation",
        summary="What I wrote down here lately.",
        args=(_arg("n", "How many entries.", form="number"),),
        role="admin",
        allowed_in_own_chat=True,
        private=True,
    ),
    CommandDefinition(
        name="memory",
        group="this conversation",
        summary="What I remember for good.",
        subs=(
            SubcommandDefinition(name="show", summary="All of it, as far as it may be told here."),
            SubcommandDefinition(
                name="forget",
                summary="Forget one thing.",
                args=(_arg("note", "Its number, as journal and show have it.", form="id", needed=True, suggests=True),),
            ),
            SubcommandDefinition(
                name="pending", summary="What waits for an owner's word before I remember it for good."
            ),
            SubcommandDefinition(
                name="approve",
                summary="Let one of these into MEMORY.md.",
                args=(_arg("note", "Its number, as pending has it.", form="id", needed=True, suggests=True),),
            ),
        ),
        role="admin",
        allowed_in_own_chat=True,
        private=True,
    ),
    CommandDefinition(
        name="remind",
        group="this conversation",
        summary="The reminders of this conversation.",
        subs=(
            SubcommandDefinition(name="list", summary="Those that are still to come."),
            SubcommandDefinition(
                name="cancel",
                summary="Call one off.",
                args=(_arg("id", "As list shows it.", form="id", needed=True, suggests=True),),
            ),
        ),
        role="admin",
        allowed_in_own_chat=True,
        private=True,
    ),
    CommandDefinition(
        name="approve",
        group="approvals",
        summary="Let go ahead what waits for an admin's word. Without an id: what waits.",
        args=(
            _arg("id", "As I told it when I asked.", form="id", suggests=True),
            _arg("lasting", "For more than this once.", "session", "always"),
        ),
        role="admin",
    ),
    CommandDefinition(
        name="deny",
        group="approvals",
        summary="Refuse what waits for an admin's word.",
        args=(_arg("id", "As I told it.", form="id", needed=True, suggests=True),),
        role="admin",
    ),
    CommandDefinition(
        name="revoke",
        group="approvals",
        summary="Ask again before a tool that was approved for longer.",
        args=(_arg("tool", "Its name.", form="word", needed=True, suggests=True),),
        role="admin",
    ),
    CommandDefinition(
        name="block",
        group="people",
        summary="Hear nothing of somebody any more.",
        args=(_WHO_ARG, _WHERE_ARG),
        role="admin",
        private=True,
    ),
    CommandDefinition(
        name="unblock",
        group="people",
        summary="Hear somebody again.",
        args=(_WHO_ARG, _WHERE_ARG),
        role="admin",
        private=True,
    ),
    CommandDefinition(
        name="role",
        group="people",
        summary="Who may do what.",
        subs=(
            SubcommandDefinition(name="list", summary="Everybody who has a role, and why."),
            SubcommandDefinition(
                name="set",
                summary="Give somebody a role.",
                args=(_WHO_ARG, _arg("role", "Which.", "owner", "admin", "member", needed=True), _WHERE_ARG),
            ),
            SubcommandDefinition(name="clear", summary="Take back what was given here.", args=(_WHO_ARG, _WHERE_ARG)),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="pair",
        group="people",
        summary="Who may speak to me alone.",
        subs=(
            SubcommandDefinition(name="list", summary="Who asks to, and who may."),
            SubcommandDefinition(
                name="approve",
                summary="Let in whoever asks to.",
                args=(_REQUEST_ARG,),
            ),
            SubcommandDefinition(name="revoke", summary="Let somebody in no more.", args=(_WHO_ARG,)),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="room",
        group="rooms",
        summary="In which rooms I may speak.",
        subs=(
            SubcommandDefinition(name="list", summary="Those that were approved, and those that wait for it."),
            SubcommandDefinition(
                name="approve",
                summary="Open the room that somebody asks for; without a code or an id, this room.",
                args=(_ROOM_REQUEST_ARG,),
            ),
            SubcommandDefinition(
                name="revoke", summary="Close a room that was approved; without one, this room.", args=(_ROOM_ARG,)
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="rooms",
        group="rooms",
        summary="Where I am, and how I behave there.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="join",
        group="rooms",
        summary="Enter a room.",
        args=(_arg("room", "Where to.", form="room", needed=True, suggests=True),),
        role="admin",
        needs_global_role=True,
    ),
    CommandDefinition(
        name="part",
        group="rooms",
        summary="Leave a room; without one, this one.",
        args=(_ROOM_ARG,),
        role="admin",
        needs_global_role=True,
    ),
    CommandDefinition(
        name="say",
        group="rooms",
        summary="Say something in another room, in my name.",
        args=(
            _arg("room", "Where.", form="room", needed=True, suggests=True),
            _arg("text", "What.", needed=True, rest=True),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="channels",
        group="how I run",
        summary="Every channel: state, age, reconnects, reason.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="pending",
        group="what I do",
        summary="What is unread, by conversation.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="notify",
        group="what I do",
        summary="What may interrupt me.",
        subs=(
            SubcommandDefinition(
                name="types", summary="Types of notifications that came so far, and their thresholds."
            ),
            SubcommandDefinition(
                name="threshold",
                summary="Cut off a type below an urgency; without one, how it stands.",
                args=(
                    _arg("type", "A type, or a prefix of one.", form="word", needed=True, suggests=True),
                    _arg("urgency", "The lowest that passes.", "ambient", "low", "normal", "urgent", "reset"),
                ),
            ),
            SubcommandDefinition(name="rules", summary="Which rules raise and lower urgency."),
            SubcommandDefinition(
                name="rule",
                summary="Add a rule.",
                args=(
                    _arg("urgency", "What it makes of it.", "ambient", "low", "normal", "urgent", needed=True),
                    _arg("type", "A type, or a prefix of one.", form="word", needed=True, suggests=True),
                    _arg("keyword", "Only with this in the text.", rest=True),
                ),
            ),
            SubcommandDefinition(
                name="unrule",
                summary="Take back a rule that was added.",
                args=(_arg("id", "As rules shows it.", form="id", needed=True, suggests=True),),
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="dmn",
        group="what I do",
        summary="What I do by myself.",
        subs=(
            SubcommandDefinition(name="status", summary="How I am, and what I would do next."),
            SubcommandDefinition(name="pause", summary="Nothing unasked, until wake."),
            SubcommandDefinition(name="wake", summary="Go on."),
            SubcommandDefinition(
                name="sleep",
                summary="Rest until woken, or until a time.",
                args=(_arg("until", "30m, 8h, 07:30.", form="time", rest=True),),
            ),
            SubcommandDefinition(
                name="quiet",
                summary="Say nothing unasked for an hour, or as long as you say.",
                args=(_arg("until", "30m, 8h, 07:30.", form="time", rest=True),),
            ),
            SubcommandDefinition(name="off", summary="Leave it off, also after a restart."),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="model",
        group="what I do",
        summary="What I think with.",
        subs=(
            SubcommandDefinition(name="list", summary="All that is configured, and what is in use."),
            SubcommandDefinition(
                name="switch",
                summary="Think with another one.",
                args=(_arg("name", "As list shows it.", form="word", needed=True, suggests=True),),
            ),
            SubcommandDefinition(name="reset", summary="Think with what is configured."),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="log",
        group="how I run",
        summary="What happened lately.",
        subs=(
            SubcommandDefinition(
                name="tail", summary="The newest entries.", args=(_arg("n", "How many.", form="number"),)
            ),
        ),
        default_sub="tail",
        role="admin",
        needs_global_role=True,
        direct_only=True,
        private=True,
    ),
    CommandDefinition(
        name="reload",
        group="how I run",
        summary="Read the configuration again.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    CommandDefinition(
        name="restart",
        group="how I run",
        summary="Disconnect a channel and connect it again.",
        args=(_arg("channel", "Its name.", form="word", needed=True, suggests=True),),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
)

COMMANDS_BY_NAME: Final[dict[str, CommandDefinition]] = {
    name: row for row in COMMANDS for name in (row.name, *row.aliases)
}
"""Commands by every name and alias."""

COMMAND_SPECS: Final[tuple[CommandSpec, ...]] = tuple(
    CommandSpec(
        name=row.name,
        summary=row.summary,
        args=row.args,
        subs=tuple(SubcommandSpec(name=sub.name, summary=sub.summary, args=sub.args) for sub in row.subs),
        private=row.private,
        role=row.role,
        direct_only=row.direct_only,
        own=row.allowed_in_own_chat,
    )
    for row in COMMANDS
)
"""Specifications for the channels."""
