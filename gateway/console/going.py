"""What goes on: turns and tools under way. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ConsoleActiveTurn:
    """One under way."""

    agent: str
    conversation: str
    since: datetime | None
    autonomous: bool
    written_text: str = ""
    """So far, in a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleActiveCall:
    """A tool under way."""

    turn: str
    name: str
    conversation: str
    since: datetime | None


def find_newest(found: Iterable[T], *wishes: Callable[[T], bool]) -> T | None:
    """The last one for which the first wish holds, else the second, and so on, else the last of all. None: no one."""
    known = [*found]
    for wish in wishes:
        fits = [one for one in known if wish(one)]
        if fits:
            return fits[-1]
    return known[-1] if known else None


def is_same_text(written: str, posted: str) -> bool:
    """Whether what grew is what was said then."""
    grown, whole = "".join(written.split()), "".join(posted.split())
    return bool(grown) and (whole.startswith(grown) or grown.endswith(whole))


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from one to the other. None: one of them is not known."""
    return (end - start).total_seconds() if start is not None and end is not None else None
