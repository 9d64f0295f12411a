"""The command table: one row per command. Pure."""

from dataclasses import dataclass

from channels.base import CommandSpec
from gateway.access import Role

RANKS: tuple[Role, ...] = ("blocked", "guest", "member", "admin", "owner")
"""Who may do less stands first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    summary: str
    """One line, at most 100 characters."""
    argument: str | None = None
    """What to write behind the name; None: nothing."""
    role: Role = "guest"
    """The lowest role that may use it. Others are not answered."""
    own: bool = False
    """In a direct chat whoever it belongs to may use it, too."""
    direct_only: bool = False
    """Only in a direct chat."""
    private: bool = False
    """The answer concerns nobody but who asked: shown to them alone where the platform can."""
    aliases: tuple[str, ...] = ()
    """Other names for it, not listed anywhere."""

    def open_to(self, role: Role, *, direct: bool) -> bool:
        """Whether this role may use it; `direct`: in a direct chat, which is that person's own."""
        return RANKS.index(role) >= RANKS.index(self.role) or (self.own and direct and role != "blocked")


TABLE: tuple[Row, ...] = (
    Row(name="help", summary="What can be asked of me.", argument="[command]", private=True, aliases=("commands",)),
    Row(name="about", summary="What I am, and who runs me.", aliases=("start",)),  # Telegram's first button is /start
    Row(name="whoami", summary="Who you are to me, and why.", private=True),
    Row(name="status", summary="Where I am connected, what answers, and what I am doing."),
    Row(name="more", summary="The next page of my last long answer here."),
    Row(name="version", summary="Which version of Reverie this is."),
    Row(name="usage", summary="Tokens and money that were spent in this room today.", role="member", private=True),
    Row(
        name="cache",
        summary="How much of this conversation the model's cache gives, and what it missed last.",
        role="admin",
        private=True,
    ),
    Row(
        name="why",
        summary="What happened to an entry of the log, and which rule decided.",
        argument="<entry>",
        role="admin",
        private=True,
    ),
    Row(name="channels", summary="Every channel: state, age, reconnects, reason.", role="admin", private=True),
    Row(name="new", summary="Begin afresh: I see nothing of what was said here until now.", role="admin", own=True),
    Row(name="retry", summary="Answer once more what I answered last here.", role="admin", own=True),
    Row(
        name="rewind",
        summary="Take back the last exchange here, or as many as you say.",
        argument="[n]",
        role="admin",
        own=True,
    ),
    Row(name="compact", summary="Make what I see of this conversation smaller, now.", role="admin", own=True),
)

BY_NAME: dict[str, Row] = {name: row for row in TABLE for name in (row.name, *row.aliases)}
"""By every name that somebody may write."""

SPECS: tuple[CommandSpec, ...] = tuple(
    CommandSpec(name=row.name, summary=row.summary, argument=row.argument, private=row.private) for row in TABLE
)
"""As channels are told."""
