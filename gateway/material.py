"""What a dream is made of: what was written down since the last one, and what of it is to be forgotten.

Of notes of turns that had read words of others than owners and admins, or text from outside, no model makes MEMORY.md:
those that are to be remembered for good wait for an owner's word.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from agent.journal import flat
from agent.view import estimate_tokens
from agent.workspace.text import tidy
from gateway.events import ConversationId
from gateway.memory import as_lines, dreams
from gateway.records import Forgotten, Noted, Seq
from gateway.scopes import PUBLIC, is_trusted
from gateway.store import Reader, Store, Stored
from gateway.tools.consent import visible

_PAGE: Final = 200
_WAITING: Final = 1_000
"""Notes that are looked through for those that wait."""
_SHOWN_CHARS: Final = 8_000
"""Of such notes shown at once, each of them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that was written down."""

    seq: Seq
    """Where it stands; of what is forgotten, where that does."""
    at: datetime
    place: ConversationId
    """Where it was written down."""
    noted: Noted
    is_forgotten: bool = False
    """It is to be forgotten, and a dream before had it."""

    @property
    def is_trusted(self) -> bool:
        """Whether a dream may make something of it."""
        return is_trusted(self.noted.role, foreign=self.noted.foreign)


class Material(NamedTuple):
    """What was written down since some moment."""

    notes: list[Note]
    """What a dream may make something of, the oldest first."""
    pending: list[Note]
    """What is to be remembered only with an owner's word, the oldest first."""
    upto: Seq
    """Nothing that stands up to here is left out."""


async def material(store: Store, agent: str, after: Seq, budget: int) -> Material:
    """The oldest notes since then that fit in so many tokens; at least one, if there is any."""
    found, waiting, since, upto = list[Note](), list[Note](), after, after
    while True:
        page = await store.entries(after=after, kinds=["noted", "forgotten"], limit=_PAGE)
        gone = await store.forgotten_notes([one.seq for one in page])
        for one in page:
            note = await _note(store, one, since) if one.seq not in gone else None
            if note is None or note.noted.agent != agent:
                continue
            if note.is_trusted:
                budget -= estimate_tokens(told(note))
                if found and budget < 0:
                    return Material(found, waiting, upto)
                found.append(note)
            elif note.noted.lasting and not note.is_forgotten:
                waiting.append(note)
            upto = one.seq
        if len(page) < _PAGE:
            return Material(found, waiting, upto)
        after = page[-1].seq


async def _note(store: Store, one: Stored, since: Seq) -> Note | None:
    """None: no dream before had it, and none is to have it. Those before had what was noted until `since`."""
    if isinstance(one.fact, Forgotten):
        noted = await store.entry(one.fact.note) if one.fact.note <= since else None
        if noted is not None and isinstance(noted.fact, Noted):
            return _made(one.seq, noted, noted.fact, forgotten=True)
    return _made(one.seq, one, one.fact) if isinstance(one.fact, Noted) else None


def _made(seq: Seq, of: Stored, noted: Noted, *, forgotten: bool = False) -> Note:
    place = of.conversation or ConversationId("")
    return Note(seq=seq, at=of.at, place=place, noted=noted, is_forgotten=forgotten)


async def waiting(store: Reader, agent: str) -> list[Note]:
    """An agent's newest that were to be remembered and wait for an owner's word, oldest first. Raises StoreError."""
    found = await store.newest_entries(_WAITING, kinds=["noted"])
    gone = await store.forgotten_notes([one.seq for one in found])
    approved = {seq for dream in await dreams(store, agent) for seq in dream.fact.notes}
    notes = [_made(one.seq, one, one.fact) for one in found if isinstance(one.fact, Noted) and one.seq not in gone]
    return [
        one
        for one in notes
        if one.noted.agent == agent and one.noted.lasting and not one.is_trusted and one.seq not in approved
    ]


def told(note: Note) -> str:
    """As the model is told of it: a quotation, with whose words it was made of, and where."""
    noted = note.noted
    whence = "public" if noted.scope == PUBLIC else f"private, of {flat(noted.scope)}"
    whence += f"; from the words of the role {flat(noted.role)}, in {flat(note.place)}"
    what = "to remember" if noted.lasting else "journal"
    what = "to be forgotten: MEMORY.md must say nothing of it any more" if note.is_forgotten else what
    title = f" {flat(noted.title)}" if noted.title else ""
    return f"[{note.at:%Y-%m-%d %H:%M} UTC] ({what}; {whence}){title}\n{indented(noted.text)}"


def indented(text: str) -> str:
    """So that nothing of it looks like a frame."""
    return "\n".join(f"  {line}" for line in tidy(text).split("\n"))


def render_waiting(notes: Sequence[Note], prefix: str, label: Callable[[ConversationId], str]) -> str:
    """What an owner is asked, in Markdown: each note whole, as it would stand in MEMORY.md, or not at all. Pure.

    `prefix`: in front of a command where it is read. `label`: how a place is called there.
    """
    lines, left = list[str](), _SHOWN_CHARS
    for shown, one in enumerate(notes):
        text = [visible(line) for line in as_lines(one.noted.text).split("\n")]
        left -= sum(map(len, text))
        if shown and left < 0:
            lines.append(f"And {len(notes) - shown} more: `{prefix}memory pending` shows them once these are decided.")
            break
        role, beside = one.noted.role or "guest", ", beside text from outside" if one.noted.foreign else ""
        lines.append(f"`n{one.seq}`, {one.at:%Y-%m-%d %H:%M} UTC, in {label(one.place)}, lowest role {role}{beside}:")
        lines += ["```", *text, "```"]
    head = (
        "I was asked to remember this by others than owners and admins, or beside words of theirs. Nothing of it is in "
        "MEMORY.md unless you say so:"
    )
    tail = (
        f"`{prefix}memory approve NUMBER` puts one into MEMORY.md, word for word. `{prefix}memory forget NUMBER` has "
        "me forget it. If you do nothing, it stays out."
    )
    return "\n".join([head, *lines, tail])
