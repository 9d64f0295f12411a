"""What waits to be sent, or to be confirmed, on one connection."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from channels.base import Away, Going, Uncertain, unrecorded
from channels.irc import refusals
from channels.irc.identity import absence
from channels.irc.window import Verdict, Window
from gateway.events import Receipt, RoomId


@dataclass(frozen=True, slots=True)
class Direct:
    """How something for one person is put into lines, once it is known under which nick they are to be reached."""

    chat: RoomId
    fit: Callable[[str, str], Sequence[str]]
    """(nick, text): the pieces of it that each fit one line to that nick."""
    line: Callable[[str, str, bool], str]
    """(nick, piece, whether it is the first): the line."""


NOBODY = "(401)"
"""How a reason ends where nobody has that nick: ERR_NOSUCHNICK."""


@dataclass(eq=False, slots=True)
class Item:
    """Lines that belong together: one part of a post, or something of our own."""

    lines: deque[str]
    """With `direct`, the texts of which lines are made."""
    target: str = ""
    """Folded; empty: not a message."""
    done: asyncio.Future[Receipt] | None = None
    """None: not a part."""
    going: Going = unrecorded
    """Awaited before the first line is written."""
    whole: str = ""
    """The lines are one multiline batch with this text: the server answers the batch, not its lines."""
    alone: str = ""
    """The command that it is; empty: a message."""
    direct: Direct | None = None
    """It is for one person, whoever has their nick by then."""
    nick: str = ""
    """With `direct`: whom it is written to."""
    texts: tuple[str, ...] = ()
    """With `direct`: all of `lines`, to be written again under another nick."""
    again: int = 0
    """How often that was."""
    checked: bool = False
    """WHOIS was asked for it."""
    number: int = 0
    """Of two for one person the lower one goes first."""
    gone: bool = False
    written: int = 0

    @property
    def dropped(self) -> bool:
        return self.done is not None and self.done.cancelled() and self.written == 0


@dataclass(eq=False, slots=True)
class Barrier:
    """A PING that is on its way."""

    token: str
    covers: list[Item]
    window: Window[Item]
    sent_s: float


def finish(item: Item, verdict: Verdict) -> None:
    """Tell whoever waits for it."""
    if item.done is None or item.done.done():
        return
    match verdict.fate:
        case "taken":
            item.done.set_result(Receipt(ids=verdict.ids))
        case "refused" if item.direct is not None and verdict.reason.endswith(NOBODY):
            item.done.set_exception(Away(absence(item.direct.chat)))
        case "refused":
            item.done.set_exception(refusals.error(verdict.reason))
        case "unknown":
            item.done.set_exception(Uncertain(f"perhaps not all of it was said: {verdict.reason}"))
