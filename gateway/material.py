"""What a dream is made of: what was written down since the last one, and what of it is to be forgotten."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from agent.journal import flat
from agent.view import estimate_tokens
from agent.workspace.text import tidy
from gateway.records import Forgotten, Noted, Seq
from gateway.scopes import PUBLIC
from gateway.store import Store, Stored

_PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that was written down."""

    seq: Seq
    """Where it stands; of what is forgotten, where that does."""
    at: datetime
    noted: Noted
    forgotten: bool = False
    """It is to be forgotten, and a dream before had it."""


async def material(store: Store, agent: str, after: Seq, budget: int) -> list[Note]:
    """The oldest since then that fit in so many tokens; at least one, if there is any."""
    found, since = list[Note](), after
    while True:
        page = await store.entries(after=after, kinds=["noted", "forgotten"], limit=_PAGE)
        gone = await store.forgotten([one.seq for one in page])
        for one in page:
            note = await _note(store, one, since) if one.seq not in gone else None
            if note is None or note.noted.agent != agent:
                continue
            budget -= estimate_tokens(told(note))
            if found and budget < 0:
                return found
            found.append(note)
        if len(page) < _PAGE:
            return found
        after = page[-1].seq


async def _note(store: Store, one: Stored, since: Seq) -> Note | None:
    """None: no dream before had it, and none is to have it. Those before had what was noted until `since`."""
    if isinstance(one.fact, Forgotten):
        noted = await store.entry(one.fact.note) if one.fact.note <= since else None
        if noted is not None and isinstance(noted.fact, Noted):
            return Note(seq=one.seq, at=noted.at, noted=noted.fact, forgotten=True)
    return Note(seq=one.seq, at=one.at, noted=one.fact) if isinstance(one.fact, Noted) else None


def told(note: Note) -> str:
    """As the model is told of it."""
    noted = note.noted
    whence = "public" if noted.scope == PUBLIC else f"private, of {flat(noted.scope)}"
    what = "to remember" if noted.lasting else "journal"
    what = "to be forgotten: MEMORY.md must say nothing of it any more" if note.forgotten else what
    title = f" {flat(noted.title)}" if noted.title else ""
    return f"[{note.at:%Y-%m-%d %H:%M} UTC] ({what}; {whence}){title}\n{indented(noted.text)}"


def indented(text: str) -> str:
    """So that nothing of it looks like a frame."""
    return "\n".join(f"  {line}" for line in tidy(text).split("\n"))
