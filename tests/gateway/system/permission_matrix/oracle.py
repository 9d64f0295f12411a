"""What is to come of everything that comes in: the rules of the documents in words, written without
the product's own.

docs/access-and-pairing.md, and the design, section 11. An `Outcome` is what can be seen from
outside.
"""

from typing import Final, Literal, NamedTuple

from tests.gateway.system.permission_matrix.people import (
    OPEN,
    ORDER,
    Person,
    Place,
    Platform,
    Role,
    roles,
)

Dm = Literal["pairing", "allowlist", "open", "disabled"]
Rooms = Literal["approval", "listed"]
Fate = Literal["nothing", "heard", "refused"]
Said = Literal["", "code", "notice", "answer", "not here"]
DMS: Final[tuple[Dm, ...]] = ("pairing", "allowlist", "open", "disabled")
ROOMS: Final[tuple[Rooms, ...]] = ("approval", "listed")


class Outcome(NamedTuple):
    fate: Fate
    """`nothing`: the adapter tells nobody of it."""
    turn: bool = False
    """The agent is woken, and a model asked."""
    said: Said = ""
    """What is posted: a one-time code, how to become known, what answers a command, that it is for
    direct chats."""
    acts: str = ""
    """What else changes: `role`, `room`, or `join`."""
    audited: bool = False
    aside: bool = False
    """It is said to whoever asked alone, though they did not ask alone."""


class Cell(NamedTuple):
    """Somebody comes in, somehow, somewhere, under a policy."""

    platform: Platform
    number: int
    """Of the person."""
    person: Person
    place: Place
    way: str
    dm: Dm
    rooms: Rooms

    @property
    def bot(self) -> bool:
        return self.person.is_bot(self.platform)

    @property
    def role(self) -> Role:
        return roles(self.person, self.place)[0]

    def __str__(self) -> str:
        return (
            f"{self.platform}: {self.person.name}, {self.way}, {self.place}; dm {self.dm}, "
            f"rooms {self.rooms}"
        )


NOTHING: Final = Outcome("nothing")


class Needs(NamedTuple):
    """A command, as docs/admin-commands.md has it."""

    role: Role
    wide: bool = False
    """A role of one place is not enough."""
    own: bool = False
    """In a direct chat whoever it belongs to may."""
    direct: bool = False
    """Only in a direct chat."""
    aside: bool = True
    """The answer is for whoever asked. Telegram and Discord show it to them by themselves."""


COMMANDS: Final[dict[str, Needs]] = {
    "whoami": Needs("guest"),
    "link start": Needs("guest", direct=True),
    "usage": Needs("member"),
    "new": Needs("admin", own=True, aside=False),
    "cache": Needs("admin"),
    "block": Needs("admin"),
    "role set": Needs("admin", wide=True),
    "room approve": Needs("admin", wide=True),
    "log": Needs("admin", wide=True, direct=True),
}
"""One of each kind."""
FORMS: Final = ("slash", "tap", "text", "called")
"""Native; by a tap on a button; in writing, with a prefix; in writing, behind the bot's name and
without one."""
SAID_TO_US: Final = frozenset({"say", "mention", "reply", "file", "forwarded", "forwarded command"})
"""Ways to speak to the agent itself (those that are told as direct, mention or reply)."""
INAUDIBLE: Final = frozenset({"notice", "ctcp"})
"""Nothing that anybody is told of: what machines say to machines."""
UNSIGNED: Final = frozenset({("discord", "delete")})
"""The platform does not tell who did it."""


def expected(cell: Cell) -> Outcome:
    if (cell.platform, cell.way, cell.place) == ("telegram", "edited command", "direct"):
        cell = cell._replace(
            way="slash role set"
        )  # alone with the bot, an edit into a command is that command
    form, _, name = cell.way.partition(" ")
    needs = COMMANDS.get(name, COMMANDS["whoami"])
    ordinary = cell._replace(
        way="say" if cell.place == "direct" else "mention" if form == "called" else "talk"
    )
    if cell.way in INAUDIBLE:
        return NOTHING
    if (cell.platform, cell.way) in UNSIGNED:
        return Outcome("heard")
    if form == "called" and (not _uses(needs, cell) or (needs.direct and cell.place != "direct")):
        return _listened(ordinary)  # without a prefix it is a command only where it is answered
    if form == "text" and cell.bot:
        return _listened(ordinary)  # what bots write is never a command
    if form in FORMS:
        told = _command(needs, name, cell)
        if (
            form == "tap" and told.fate == "refused"
        ):  # the platform shows that it waits, whoever tapped
            return told._replace(said="notice")
        waits = (
            (cell.platform, form) == ("discord", "slash")
            and not cell.bot
            and cell.role != "blocked"
        )
        return (
            told._replace(said="notice")
            if told.fate == "refused" and not told.said and waits
            else told
        )
    return _invited(cell) if cell.way == "invite" else _listened(cell)


def _listened(cell: Cell) -> Outcome:
    speech = cell.way in SAID_TO_US
    told = _heard(cell, command=False, speech=speech)
    return told._replace(turn=told.fate == "heard" and speech)


def _heard(cell: Cell, *, command: bool, speech: bool) -> Outcome:
    """Whether it is heard at all; if not, what its author is told. `speech`: they speak to the
    agent."""
    if cell.role == "blocked" or (cell.bot and cell.role == "guest"):
        return Outcome("refused")
    asks = speech and not cell.bot
    if cell.place == "direct":
        if cell.dm == "disabled" or (cell.dm != "open" and cell.role == "guest"):
            shown: Said = "code" if cell.person.verified else "notice"
            return Outcome("refused", said=shown if asks and cell.dm == "pairing" else "")
        return Outcome("heard")
    if cell.place in OPEN or (command and cell.role in ("admin", "owner")):
        return Outcome("heard")
    return Outcome("refused", said="code" if asks and cell.rooms == "approval" else "")


def _command(needs: Needs, name: str, cell: Cell) -> Outcome:
    audited = needs.role == "admin"
    told = _heard(cell, command=True, speech=True)
    if told.fate == "refused":
        return told._replace(audited=audited)
    if not _uses(
        needs, cell
    ):  # people are told what it takes: alone, or where they took it from a menu
        aside = cell.platform == "irc" and cell.place != "direct" and not cell.bot
        is_told = not cell.bot and (
            aside or cell.place == "direct" or cell.way.startswith("slash ")
        )
        return Outcome("refused", said="notice" if is_told else "", audited=audited, aside=aside)
    aside = needs.aside and cell.platform == "irc" and cell.place != "direct"
    said: Said = "not here" if needs.direct and cell.place != "direct" else "answer"
    return Outcome("heard", said=said, acts=_acts(name, cell), audited=audited, aside=aside)


def _uses(needs: Needs, cell: Cell) -> bool:
    """Whether this person may use it there."""
    if cell.bot or _heard(cell, command=True, speech=True).fate == "refused":
        return False
    if needs.own and cell.place == "direct":
        return True
    role, everywhere = roles(cell.person, cell.place)
    return ORDER.index(everywhere if needs.wide else role) >= ORDER.index(needs.role)


def _acts(name: str, cell: Cell) -> str:
    """What a command changes for whoever may use it."""
    if (
        name == "block"
    ):  # who administers one place only acts there, and a direct chat is no place for that
        everywhere = roles(cell.person, cell.place)[1]
        return "role" if cell.place != "direct" or everywhere in ("admin", "owner") else ""
    if name == "room approve":
        return "room" if cell.place in ("closed", "closed thread") else ""
    return "role" if name == "role set" else ""


def _invited(cell: Cell) -> Outcome:
    """An admin's call into an open room is followed. Where it is not open, it may be asked for."""
    if cell.place not in OPEN:  # on IRC we are not in there, and write to whoever invites
        asked = _heard(cell, command=False, speech=True)
        return asked._replace(aside=bool(asked.said) and cell.platform == "irc")
    told = _heard(cell, command=False, speech=True)
    if told.fate == "refused" or cell.role not in ("admin", "owner"):
        return Outcome("refused")
    return Outcome("heard", acts="join")
