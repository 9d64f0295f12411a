"""What waits to be sent, or to be confirmed, on one connection."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from channels.base import BeforeSend, RecipientAway, Uncertain, no_before_send
from channels.irc import refusals
from channels.irc.identity import absence_text
from channels.irc.window import LineVerdict, SendWindow
from gateway.events import Receipt, RoomId


@dataclass(frozen=True, slots=True)
class DirectDelivery:
    """How something for one person is put into lines, once it is known under which nick they are to be reached."""

    chat: RoomId
    split: Callable[[str, str], Sequence[str]]
    """(nick, text): the pieces of it that each fit one line to that nick."""
    format: Callable[[str, str, bool], str]
    """(nick, piece, whether it is the first): the line."""


NO_SUCH_NICK = "(401)"
"""How a reason ends where nobody has that nick: ERR_NOSUCHNICK."""


@dataclass(eq=False, slots=True)
class SendItem:
    """Lines that belong together: one part of a post, or something of our own."""

    lines: deque[str]
    """With `direct`, the texts of which lines are made."""
    target: str = ""
    """Folded; empty: not a message."""
    future: asyncio.Future[Receipt] | None = None
    """None: not a part."""
    before_send: BeforeSend = no_before_send
    """Awaited before the first line is written."""
    multiline_text: str = ""
    """The lines are one multiline batch with this text: the server answers the batch, not its lines."""
    lone_command: str = ""
    """The command that it is; empty: a message."""
    direct: DirectDelivery | None = None
    """It is for one person, whoever has their nick by then."""
    nick: str = ""
    """With `direct`: whom it is written to."""
    texts: tuple[str, ...] = ()
    """With `direct`: all of `lines`, to be written again under another nick."""
    resend_count: int = 0
    """How often that was."""
    is_whois_checked: bool = False
    """WHOIS was asked for it."""
    position: int = 0
    """Of two for one person the lower one goes first."""
    is_handed_over: bool = False
    lines_written: int = 0

    @property
    def is_cancelled(self) -> bool:
        return self.future is not None and self.future.cancelled() and self.lines_written == 0


@dataclass(eq=False, slots=True)
class PingBarrier:
    """A PING that is on its way."""

    token: str
    items: list[SendItem]
    window: SendWindow[SendItem]
    sent_s: float


def resolve_item(item: SendItem, verdict: LineVerdict) -> None:
    """Tell whoever waits for it."""
    if item.future is None or item.future.done():
        return
    match verdict.fate:
        case "taken":
            item.future.set_result(Receipt(ids=verdict.ids))
        case "refused" if item.direct is not None and verdict.reason.endswith(NO_SUCH_NICK):
            item.future.set_exception(RecipientAway(absence_text(item.direct.chat)))
        case "refused":
            item.future.set_exception(refusals.refusal_error(verdict.reason))
        case "unknown":
            item.future.set_exception(Uncertain(f"perhaps not all of it was said: {verdict.reason}"))
