"""What a dream is made of: what was written down since the last one, and what of it is to be forgotten.

Of notes of turns that had read words of others than owners and admins, or text from outside, no model makes MEMORY.md:
those that are to be remembered for good wait for an owner's word.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from agent.journal import to_single_line
from agent.view import estimate_tokens
from agent.workspace.text import normalize_text
from gateway.events import ConversationId
from gateway.memory import format_as_list_item, load_dreams
from gateway.records import NoteForgotten, NoteWritten, Seq
from gateway.scopes import PUBLIC, is_trusted
from gateway.store import LogEntry, Store, StoreReader
from gateway.tools.consent import escape_invisible

_PAGE: Final = 200
_MAX_PENDING_NOTES: Final = 1_000
"""Notes that are looked through for those that wait."""
_MAX_PENDING_CHARS: Final = 8_000
"""Of such notes shown at once, each of them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamNote:
    """Something that was written down."""

    seq: Seq
    """Where it stands; of what is forgotten, where that does."""
    at: datetime
    place: ConversationId
    """Where it was written down."""
    noted: NoteWritten
    is_forgotten: bool = False
    """It is to be forgotten, and a dream before had it."""

    @property
    def is_trusted(self) -> bool:
        """Whether a dream may make something of it."""
        return is_trusted(self.noted.role, foreign=self.noted.foreign)


class DreamInput(NamedTuple):
    """What was written down since some moment."""

    notes: list[DreamNote]
    """What a dream may make something of, the oldest first."""
    pending: list[DreamNote]
    """What is to be remembered only with an owner's word, the oldest first."""
    upto: Seq
    """Nothing that stands up to here is left out."""


async def load_dream_input(store: Store, agent: str, after: Seq, budget: int) -> DreamInput:
    """The oldest notes since then that fit in so many tokens; at least one, if there is any."""
    found, waiting, since, upto = list[DreamNote](), list[DreamNote](), after, after
    while True:
        page = await store.entries(after=after, kinds=["noted", "forgotten"], limit=_PAGE)
        gone = await store.forgotten_notes([one.seq for one in page])
        for one in page:
            note = await _find_note(store, one, since) if one.seq not in gone else None
            if note is None or note.noted.agent != agent:
                continue
            if note.is_trusted:
                budget -= estimate_tokens(render_note(note))
                if found and budget < 0:
                    return DreamInput(found, waiting, upto)
                found.append(note)
            elif note.noted.lasting and not note.is_forgotten:
                waiting.append(note)
            upto = one.seq
        if len(page) < _PAGE:
            return DreamInput(found, waiting, upto)
        after = page[-1].seq


async def _find_note(store: Store, one: LogEntry, since: Seq) -> DreamNote | None:
    """None: no dream before had it, and none is to have it. Those before had what was noted until `since`."""
    if isinstance(one.fact, NoteForgotten):
        noted = await store.entry(one.fact.note) if one.fact.note <= since else None
        if noted is not None and isinstance(noted.fact, NoteWritten):
            return _build_note(one.seq, noted, noted.fact, forgotten=True)
    return _build_note(one.seq, one, one.fact) if isinstance(one.fact, NoteWritten) else None


def _build_note(seq: Seq, of: LogEntry, noted: NoteWritten, *, forgotten: bool = False) -> DreamNote:
    place = of.conversation or ConversationId("")
    return DreamNote(seq=seq, at=of.at, place=place, noted=noted, is_forgotten=forgotten)


async def find_pending_notes(store: StoreReader, agent: str) -> list[DreamNote]:
    """An agent's newest that were to be remembered and wait for an owner's word, oldest first. Raises StoreError."""
    found = await store.newest_entries(_MAX_PENDING_NOTES, kinds=["noted"])
    gone = await store.forgotten_notes([one.seq for one in found])
    approved = {seq for dream in await load_dreams(store, agent) for seq in dream.fact.notes}
    notes = [
        _build_note(one.seq, one, one.fact)
        for one in found
        if isinstance(one.fact, NoteWritten) and one.seq not in gone
    ]
    return [
        one
        for one in notes
        if one.noted.agent == agent and one.noted.lasting and not one.is_trusted and one.seq not in approved
    ]


def render_note(note: DreamNote) -> str:
    """As the model is told of it: a quotation, with whose words it was made of, and where."""
    noted = note.noted
    whence = "public" if noted.scope == PUBLIC else f"private, of {to_single_line(noted.scope)}"
    whence += f"; from the words of the role {to_single_line(noted.role)}, in {to_single_line(note.place)}"
    what = "to remember" if noted.lasting else "journal"
    what = "to be forgotten: MEMORY.md must say nothing of it any more" if note.is_forgotten else what
    title = f" {to_single_line(noted.title)}" if noted.title else ""
    return f"[{note.at:%Y-%m-%d %H:%M} UTC] ({what}; {whence}){title}\n{indent_text(noted.text)}"


def indent_text(text: str) -> str:
    """So that nothing of it looks like a frame."""
    return "\n".join(f"  {line}" for line in normalize_text(text).split("\n"))


def render_pending_notes(notes: Sequence[DreamNote], prefix: str, label: Callable[[ConversationId], str]) -> str:
    """What an owner is asked, in Markdown: each note whole, as it would stand in MEMORY.md, or not at all. Pure.

    `prefix`: in front of a command where it is read. `label`: how a place is called there.
    """
    lines, left = list[str](), _MAX_PENDING_CHARS
    for shown, one in enumerate(notes):
        text = [escape_invisible(line) for line in format_as_list_item(one.noted.text).split("\n")]
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
