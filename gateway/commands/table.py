"""The command table: one row per command. Pure.

What is known of commands anywhere is from here: help, slash commands, menus, and what text means on IRC.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from channels.base import CommandArg, CommandSpec, CommandSub
from gateway.standing import ADMINS, RANKS, Role

Group = Literal["me and you", "this conversation", "approvals", "people", "rooms", "what I do", "how I run"]
"""What a command is about. Help lists them in this order."""
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
Form = Literal["", "number", "id", "word", "room", "person", "command", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sub:
    """One of the things that a command can do."""

    name: str
    summary: str
    args: tuple[CommandArg, ...] = ()
    role: Role | None = None
    """The lowest role that may use it. None: the command's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command. It has `args`, or `subs` with theirs; the first sub is meant where none is named."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    group: Group
    summary: str
    """One line, at most 100 characters."""
    args: tuple[CommandArg, ...] = ()
    subs: tuple[Sub, ...] = ()
    default_sub: str = ""
    """The sub that is meant where the first word names none. Empty: that is an error."""
    role: Role = "guest"
    """The lowest role that may use it. Others are not answered."""
    needs_global_role: bool = False
    """It acts beyond the place where it is given: a role that holds there alone does not count."""
    allowed_in_own_chat: bool = False
    """In a direct chat whoever it belongs to may use it, too."""
    direct_only: bool = False
    """Only in a direct chat."""
    private: bool = False
    """The answer concerns nobody but who asked: shown to them alone where the platform can."""
    aliases: tuple[str, ...] = ()
    """Other names for it, not listed anywhere."""

    def is_allowed_for(
        self, role: Role, *, direct: bool, everywhere: Role | None = None, sub: Sub | None = None
    ) -> bool:
        """Whether this role may use it; `direct`: in a direct chat, which is that person's own.

        `everywhere`: the role that holds in all places. None: the same one.
        """
        has = everywhere if self.needs_global_role and everywhere is not None else role
        needs = (sub.role if sub is not None else None) or self.role
        return RANKS.index(has) >= RANKS.index(needs) or (self.allowed_in_own_chat and direct and role != "blocked")

    @property
    def is_administrative(self) -> bool:
        """Whether its use is written into the audit."""
        return self.role in ADMINS or any(sub.role in ADMINS for sub in self.subs)

    def find_sub(self, name: str) -> Sub | None:
        """The one of that name."""
        return next((one for one in self.subs if one.name == name), None)


def _arg(
    name: str,
    summary: str,
    *choices: str,
    form: Form = "",
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


def written(arg: CommandArg) -> str:
    """How an argument stands in a line of help."""
    name = " | ".join(arg.choices) or arg.name
    return f"<{name}>" if arg.required else f"[{name}]"


_WHO: Final = _arg(
    "who",
    "A person: channel:id as whoami shows it, or a name heard here lately.",
    form="person",
    needed=True,
    suggests=True,
)
_WHERE: Final = _arg("where", "In this room only, or wherever I am.", "here", "everywhere")
_CODE: Final = _arg("code", "The code.", form="id", needed=True, rest=True, secret=True)
_REQUEST: Final = _arg(
    "code",
    "The code, or the id of the request or of the person, as list shows them.",
    form="id",
    needed=True,
    rest=True,
    secret=True,
)
_ROOM_REQUEST: Final = replace(
    _REQUEST, summary="The code, or the id of the request or of the room, as list shows them.", required=False
)
_ROOM: Final = _arg("room", "A room, as rooms lists them.", form="room", suggests=True)

TABLE: Final[tuple[Row, ...]] = (
    Row(
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
    Row(
        name="about",
        group="me and you",
        summary="What I am, and who runs me.",
        aliases=("start",),  # Telegram's first button
    ),
    Row(name="whoami", group="me and you", summary="Who you are to me, and why.", private=True),
    Row(name="status", group="how I run", summary="Where I am connected, what answers, and what I am doing."),
    Row(name="more", group="me and you", summary="The next page of my last long answer here."),
    Row(name="again", group="me and you", summary="Repeat an answer of mine that may not have arrived here."),
    Row(name="version", group="me and you", summary="Which version of Reverie this is."),
    Row(
        name="link",
        group="me and you",
        summary="Show that you are the same person on another platform.",
        subs=(
            Sub(name="start", summary="Get a code to hand to me where you are known by another name."),
            Sub(name="code", summary="Hand in a code that I showed you.", args=(_CODE,)),
            Sub(name="list", summary="The accounts that are you to me."),
            Sub(
                name="remove",
                summary="This account is not me any more.",
                args=(_arg("account", "As list shows it.", form="person", needed=True, suggests=True),),
            ),
        ),
        default_sub="code",
        direct_only=True,
        private=True,
    ),
    Row(
        name="usage",
        group="this conversation",
        summary="Tokens and money that were spent in this room today.",
        role="member",
        private=True,
    ),
    Row(
        name="tools",
        group="approvals",
        summary="Which tools I have, and who may have me use them.",
        role="member",
        private=True,
    ),
    Row(
        name="cache",
        group="this conversation",
        summary="How much of this conversation the model's cache gives, and what it missed last.",
        role="admin",
        private=True,
    ),
    Row(
        name="why",
        group="how I run",
        summary="What happened to an entry of the log, and which rule decided.",
        args=(_arg("entry", "Its number, as log tail shows it.", form="number", needed=True),),
        role="admin",
        private=True,
    ),
    Row(
        name="stop",
        group="this conversation",
        summary="Leave off what I am doing here.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    Row(
        name="new",
        group="this conversation",
        summary="Begin afresh: I see nothing of what was said here until now.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    Row(
        name="retry",
        group="this conversation",
        summary="Answer once more what I answered last here.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    Row(
        name="rewind",
        group="this conversation",
        summary="Take back the last exchange here, or as many as you say.",
        args=(_arg("n", "How many exchanges.", form="number"),),
        role="admin",
        allowed_in_own_chat=True,
    ),
    Row(
        name="compact",
        group="this conversation",
        summary="Make what I see of this conversation smaller, now.",
        role="admin",
        allowed_in_own_chat=True,
    ),
    Row(
        name="journal",
        group="this conversation",
        summary="What I wrote down here lately.",
        args=(_arg("n", "How many entries.", form="number"),),
        role="admin",
        allowed_in_own_chat=True,
        private=True,
    ),
    Row(
        name="memory",
        group="this conversation",
        summary="What I remember for good.",
        subs=(
            Sub(name="show", summary="All of it, as far as it may be told here."),
            Sub(
                name="forget",
                summary="Forget one thing.",
                args=(_arg("note", "Its number, as journal and show have it.", form="id", needed=True, suggests=True),),
            ),
            Sub(name="pending", summary="What waits for an owner's word before I remember it for good."),
            Sub(
                name="approve",
                summary="Let one of these into MEMORY.md.",
                args=(_arg("note", "Its number, as pending has it.", form="id", needed=True, suggests=True),),
            ),
        ),
        role="admin",
        allowed_in_own_chat=True,
        private=True,
    ),
    Row(
        name="remind",
        group="this conversation",
        summary="The reminders of this conversation.",
        subs=(
            Sub(name="list", summary="Those that are still to come."),
            Sub(
                name="cancel",
                summary="Call one off.",
                args=(_arg("id", "As list shows it.", form="id", needed=True, suggests=True),),
            ),
        ),
        role="admin",
        allowed_in_own_chat=True,
        private=True,
    ),
    Row(
        name="approve",
        group="approvals",
        summary="Let go ahead what waits for an admin's word. Without an id: what waits.",
        args=(
            _arg("id", "As I told it when I asked.", form="id", suggests=True),
            _arg("lasting", "For more than this once.", "session", "always"),
        ),
        role="admin",
    ),
    Row(
        name="deny",
        group="approvals",
        summary="Refuse what waits for an admin's word.",
        args=(_arg("id", "As I told it.", form="id", needed=True, suggests=True),),
        role="admin",
    ),
    Row(
        name="revoke",
        group="approvals",
        summary="Ask again before a tool that was approved for longer.",
        args=(_arg("tool", "Its name.", form="word", needed=True, suggests=True),),
        role="admin",
    ),
    Row(
        name="block",
        group="people",
        summary="Hear nothing of somebody any more.",
        args=(_WHO, _WHERE),
        role="admin",
        private=True,
    ),
    Row(
        name="unblock", group="people", summary="Hear somebody again.", args=(_WHO, _WHERE), role="admin", private=True
    ),
    Row(
        name="role",
        group="people",
        summary="Who may do what.",
        subs=(
            Sub(name="list", summary="Everybody who has a role, and why."),
            Sub(
                name="set",
                summary="Give somebody a role.",
                args=(_WHO, _arg("role", "Which.", "owner", "admin", "member", needed=True), _WHERE),
            ),
            Sub(name="clear", summary="Take back what was given here.", args=(_WHO, _WHERE)),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="pair",
        group="people",
        summary="Who may speak to me alone.",
        subs=(
            Sub(name="list", summary="Who asks to, and who may."),
            Sub(
                name="approve",
                summary="Let in whoever asks to.",
                args=(_REQUEST,),
            ),
            Sub(name="revoke", summary="Let somebody in no more.", args=(_WHO,)),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="room",
        group="rooms",
        summary="In which rooms I may speak.",
        subs=(
            Sub(name="list", summary="Those that were approved, and those that wait for it."),
            Sub(
                name="approve",
                summary="Open the room that somebody asks for; without a code or an id, this room.",
                args=(_ROOM_REQUEST,),
            ),
            Sub(name="revoke", summary="Close a room that was approved; without one, this room.", args=(_ROOM,)),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="rooms",
        group="rooms",
        summary="Where I am, and how I behave there.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="join",
        group="rooms",
        summary="Enter a room.",
        args=(_arg("room", "Where to.", form="room", needed=True, suggests=True),),
        role="admin",
        needs_global_role=True,
    ),
    Row(
        name="part",
        group="rooms",
        summary="Leave a room; without one, this one.",
        args=(_ROOM,),
        role="admin",
        needs_global_role=True,
    ),
    Row(
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
    Row(
        name="channels",
        group="how I run",
        summary="Every channel: state, age, reconnects, reason.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="pending",
        group="what I do",
        summary="What is unread, by conversation.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="notify",
        group="what I do",
        summary="What may interrupt me.",
        subs=(
            Sub(name="types", summary="Types of notifications that came so far, and their thresholds."),
            Sub(
                name="threshold",
                summary="Cut off a type below an urgency; without one, how it stands.",
                args=(
                    _arg("type", "A type, or a prefix of one.", form="word", needed=True, suggests=True),
                    _arg("urgency", "The lowest that passes.", "ambient", "low", "normal", "urgent", "reset"),
                ),
            ),
            Sub(name="rules", summary="Which rules raise and lower urgency."),
            Sub(
                name="rule",
                summary="Add a rule.",
                args=(
                    _arg("urgency", "What it makes of it.", "ambient", "low", "normal", "urgent", needed=True),
                    _arg("type", "A type, or a prefix of one.", form="word", needed=True, suggests=True),
                    _arg("keyword", "Only with this in the text.", rest=True),
                ),
            ),
            Sub(
                name="unrule",
                summary="Take back a rule that was added.",
                args=(_arg("id", "As rules shows it.", form="id", needed=True, suggests=True),),
            ),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="dmn",
        group="what I do",
        summary="What I do by myself.",
        subs=(
            Sub(name="status", summary="How I am, and what I would do next."),
            Sub(name="pause", summary="Nothing unasked, until wake."),
            Sub(name="wake", summary="Go on."),
            Sub(
                name="sleep",
                summary="Rest until woken, or until a time.",
                args=(_arg("until", "30m, 8h, 07:30.", form="time", rest=True),),
            ),
            Sub(
                name="quiet",
                summary="Say nothing unasked for an hour, or as long as you say.",
                args=(_arg("until", "30m, 8h, 07:30.", form="time", rest=True),),
            ),
            Sub(name="off", summary="Leave it off, also after a restart."),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="model",
        group="what I do",
        summary="What I think with.",
        subs=(
            Sub(name="list", summary="All that is configured, and what is in use."),
            Sub(
                name="switch",
                summary="Think with another one.",
                args=(_arg("name", "As list shows it.", form="word", needed=True, suggests=True),),
            ),
            Sub(name="reset", summary="Think with what is configured."),
        ),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="log",
        group="how I run",
        summary="What happened lately.",
        subs=(Sub(name="tail", summary="The newest entries.", args=(_arg("n", "How many.", form="number"),)),),
        default_sub="tail",
        role="admin",
        needs_global_role=True,
        direct_only=True,
        private=True,
    ),
    Row(
        name="reload",
        group="how I run",
        summary="Read the configuration again.",
        role="admin",
        needs_global_role=True,
        private=True,
    ),
    Row(
        name="restart",
        group="how I run",
        summary="Disconnect a channel and connect it again.",
        args=(_arg("channel", "Its name.", form="word", needed=True, suggests=True),),
        role="admin",
        needs_global_role=True,
        private=True,
    ),
)

BY_NAME: Final[dict[str, Row]] = {name: row for row in TABLE for name in (row.name, *row.aliases)}
"""By every name that somebody may write."""

SPECS: Final[tuple[CommandSpec, ...]] = tuple(
    CommandSpec(
        name=row.name,
        summary=row.summary,
        args=row.args,
        subs=tuple(CommandSub(name=sub.name, summary=sub.summary, args=sub.args) for sub in row.subs),
        private=row.private,
        role=row.role,
        direct_only=row.direct_only,
        own=row.allowed_in_own_chat,
    )
    for row in TABLE
)
"""As channels are told."""
