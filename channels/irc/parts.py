"""What waits to be sent, or to be confirmed, on one connection."""

import asyncio
from collections import deque
from dataclasses import dataclass

from channels.base import Going, Uncertain, unrecorded
from channels.irc import refusals
from channels.irc.window import Verdict, Window
from gateway.events import Receipt


@dataclass(eq=False, slots=True)
class Item:
    """Lines that belong together: one part of a post, or something of our own."""

    lines: deque[str]
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
        case "refused":
            item.done.set_exception(refusals.error(verdict.reason))
        case "unknown":
            item.done.set_exception(Uncertain(f"perhaps not all of it was said: {verdict.reason}"))
