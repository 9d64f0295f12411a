"""What an agent writes down: durable in the log, then in the journal that people read.

The log is the truth, and the file follows it. Beside the store a mark says which note was the last to reach the file,
so a start writes what a crash or a full disk kept from it, and nothing that somebody has deleted there since.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.journal import (
    MAX_TEXT_CHARS,
    MAX_TITLE_CHARS,
    REMEMBERED_TITLE,
    JournalEntry,
    find_note_ids,
    format_entry,
    parse_journal,
    remove_note,
    to_single_line,
)
from agent.tools.schema import ToolCallRefused
from agent.view import estimate_tokens
from agent.workspace.text import normalize_text
from gateway import own_files
from gateway.clock import Clock
from gateway.cut_off import find_write_of_cut_off_turn
from gateway.hands import ToolContext
from gateway.ids import new_id
from gateway.memory import find_newest_dream
from gateway.records import NoteWritten, Seq
from gateway.scopes import is_trusted, scope_of_new_note
from gateway.store import LogEntry, NewEntry, Store

logger = logging.getLogger("reverie.notes")

MAX_RECOVERED_NOTES: Final = 1_000
"""Notes that a start looks at."""
TAIL_BYTES: Final = 4_000_000
"""Of a journal, in which a start looks for them."""
MAX_JOURNAL_BYTES: Final = 64_000_000
"""Of a journal, out of which something is taken: more than years of notes."""
_JOURNAL_MARK: Final = "journal.mark"
_NOTE_KEY_PREFIX: Final = "note:"


@dataclass(slots=True)
class _JournalState:
    """One agent's."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_loaded: bool = False
    """What the log holds of it has been looked at."""
    undreamt_notes: deque[tuple[Seq, int]] = field(default_factory=lambda: deque(maxlen=MAX_RECOVERED_NOTES))
    """Where each note since the last dream stands, and its tokens."""
    handwritten: tuple[own_files.FileStamp, list[JournalEntry]] = (None, [])
    """What people wrote, and the state of the file in which it was read."""
    unwritten: list[JournalEntry] = field(default_factory=list)
    """Durable, and not in the file yet."""


class JournalStore:
    """Writes down what agents want to keep. `recover` before the first use, `close` at the end."""

    def __init__(self, store: Store, clock: Clock, directory: Callable[[str], Path]) -> None:
        """`directory`: where an agent's journal is (`own_files.own`)."""
        self._store = store
        self._clock = clock
        self._directory = directory
        self._states: dict[str, _JournalState] = {}
        self._write_tasks: set[asyncio.Task[str]] = set()

    async def recover(self, agents: Iterable[str]) -> None:
        """Write what the last run could not into the journals. Raises StoreError; what a disk refuses is logged."""
        for agent in agents:
            await self._load_state(agent)

    async def write_entry(self, where: ToolContext, title: str, text: str) -> str:
        """Write an entry, and say so to the model. Raises Refused, StoreError.

        What the same turn wrote before its process ended is not written again.
        When this returns it is durable, and in the file unless the disk refuses. Cancelled, it is written all the same.
        """
        title = to_single_line(title, len(title))
        if len(title) > MAX_TITLE_CHARS:
            raise ToolCallRefused(f"A title has at most {MAX_TITLE_CHARS} characters.")
        await self._write(where, title, text, lasting=False)
        return "It is in your journal."

    async def remember(self, where: ToolContext, text: str) -> str:
        """Keep a fact for good, as `journal` keeps an entry."""
        await self._write(where, "", text, lasting=True)
        return "You will remember it."

    def material_tokens(self, agent: str) -> int:
        """Roughly how much was written down since the last dream; looks at nothing but memory."""
        return sum(tokens for _, tokens in self._state_of(agent).undreamt_notes)

    def mark_dreamt(self, agent: str, upto: Seq) -> None:
        """What was written down up to here is in the agent's memory now."""
        desk = self._state_of(agent)
        while desk.undreamt_notes and desk.undreamt_notes[0][0] <= upto:
            desk.undreamt_notes.popleft()

    async def read_handwritten(self, agent: str) -> list[JournalEntry]:
        """What people wrote into the journal, as it stands there now: of a long one, in its end. Raises OSError."""
        desk, path = self._state_of(agent), self._directory(agent) / own_files.JOURNAL_FILE
        if (
            desk.handwritten[0] is None or own_files.file_stamp(path) != desk.handwritten[0]
        ):  # a look that costs less than a thread does
            desk.handwritten = await asyncio.to_thread(_read_handwritten, path, desk.handwritten)
        return desk.handwritten[1]

    async def remove_note(self, agent: str, note: LogEntry, forgotten: Seq) -> None:
        """What the entry at `forgotten` forgets: no dream is told of it, and the journal loses it. Raises OSError."""
        assert isinstance(note.fact, NoteWritten)
        desk, name = await self._load_state(agent), note_id_of(note)
        async with desk.lock:
            trusted = is_trusted(note.fact.role, foreign=note.fact.foreign)
            # Then the next dream is told that it goes.
            dreamt = trusted and all(seq != note.seq for seq, _ in desk.undreamt_notes)
            kept = [one for one in desk.undreamt_notes if one[0] not in (note.seq, forgotten)]
            desk.undreamt_notes = deque(
                [*kept, *([(forgotten, estimate_note_tokens(note.fact))] if dreamt else [])], maxlen=MAX_RECOVERED_NOTES
            )
            desk.unwritten = [entry for entry in desk.unwritten if entry.note_id != name]
            await asyncio.to_thread(_remove_note_from_file, self._directory(agent) / own_files.JOURNAL_FILE, name)

    async def close(self) -> None:
        """Wait for what is being written."""
        while self._write_tasks:
            await asyncio.wait(self._write_tasks)

    async def _write(self, where: ToolContext, title: str, text: str, *, lasting: bool) -> str:
        text = normalize_text(text)
        if not text:
            raise ToolCallRefused("There is nothing to write down: the text is blank.")
        if len(text) > MAX_TEXT_CHARS:
            raise ToolCallRefused(f"That is {len(text)} characters; at most {MAX_TEXT_CHARS} are kept. Write less.")
        role, foreign = where.least_role, bool(where.trust.foreign)
        trusted = is_trusted(role, foreign=foreign)
        noted = NoteWritten(
            agent=where.agent,
            scope=scope_of_new_note(where.at.conversation, where.visibility.scope, trusted=trusted),
            title=title,
            text=text,
            lasting=lasting,
            turn=where.turn,
            role=role,
            foreign=foreign,
        )
        # On its own: an interrupted turn must not leave a note of which nobody knows whether it was kept.
        task = asyncio.create_task(self._append_note(where, noted))
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)
        return await asyncio.shield(task)

    async def _append_note(self, where: ToolContext, noted: NoteWritten) -> str:
        desk = await self._load_state(noted.agent)
        async with desk.lock:  # so that the file has the order of the log
            place = where.at.conversation
            before = await find_write_of_cut_off_turn(
                self._store,
                place,
                noted.turn,
                lambda _, fact: isinstance(fact, NoteWritten) and _note_identity(fact) == _note_identity(noted),
            )
            if before is not None and before.key is not None:
                return before.key.removeprefix(_NOTE_KEY_PREFIX)
            now = self._clock.now()
            note = new_id(now)
            entry = NewEntry(fact=noted, at=now, conversation=place, key=f"{_NOTE_KEY_PREFIX}{note}")
            (stored,) = await self._store.append([entry])
            if _is_dream_material(noted):
                desk.undreamt_notes.append((stored.seq, estimate_note_tokens(noted)))
            desk.unwritten.append(to_journal_entry(noted, entry))
            await self._flush(noted.agent, desk)
        return note

    async def _load_state(self, agent: str) -> _JournalState:
        desk = self._state_of(agent)
        async with desk.lock:
            if not desk.is_loaded:
                found = await self._store.newest_entries(MAX_RECOVERED_NOTES, kinds=["noted"])
                notes = [
                    (one, one.fact) for one in found if isinstance(one.fact, NoteWritten) and one.fact.agent == agent
                ]
                dream = await find_newest_dream(self._store, agent)
                upto = dream.fact.upto if dream is not None else 0
                gone = await self._store.forgotten_notes([one.seq for one, _ in notes])
                left = [(one, noted) for one, noted in notes if one.seq not in gone]
                desk.undreamt_notes.extend(
                    (one.seq, estimate_note_tokens(noted))
                    for one, noted in left
                    if one.seq > upto and _is_dream_material(noted)
                )
                missing = await self._find_missing(agent, [to_journal_entry(noted, one) for one, noted in notes])
                names_left = {note_id_of(one) for one, _ in left}
                desk.unwritten = [entry for entry in missing if entry.note_id in names_left]
                desk.is_loaded = True
                await self._flush(agent, desk)
        return desk

    async def _find_missing(self, agent: str, entries: list[JournalEntry]) -> list[JournalEntry]:
        """Those that did not reach the file."""
        if not entries:
            return []
        try:
            there = await asyncio.to_thread(self._read_written_ids, agent, entries[-1].note_id)
        except OSError as error:
            logger.warning("the journal of %s cannot be read: %s", agent, error)
            there = set()
        last = max((place for place, one in enumerate(entries) if one.note_id in there), default=-1)
        return entries[last + 1 :]

    def _read_written_ids(self, agent: str, newest: str) -> set[str]:
        mark = (own_files.read_private(self._mark_path(agent), most=100) or b"").decode("ascii", "replace")
        if mark == newest:
            return {newest}
        end = own_files.read_tail(self._directory(agent) / own_files.JOURNAL_FILE, most=TAIL_BYTES)
        there = find_note_ids(end.decode("utf-8", "replace"))
        if newest in there:
            own_files.replace_private(self._mark_path(agent), newest.encode())
        return {mark} | there

    async def _flush(self, agent: str, desk: _JournalState) -> None:
        """Into the file; what the disk refuses waits for the next note, or the next start."""
        if not desk.unwritten:
            return
        try:
            await asyncio.to_thread(self._append_to_file, agent, desk.unwritten)
        except OSError as error:
            logger.warning("the journal of %s cannot be written, the log has what it lacks: %s", agent, error)

    def _append_to_file(self, agent: str, late: list[JournalEntry]) -> None:
        while late:
            own_files.append_private(self._directory(agent) / own_files.JOURNAL_FILE, format_entry(late[0]).encode())
            own_files.replace_private(self._mark_path(agent), late[0].note_id.encode())
            del late[0]

    def _mark_path(self, agent: str) -> Path:
        return own_files.agent_state_directory(self._store.path, agent) / _JOURNAL_MARK

    def _state_of(self, agent: str) -> _JournalState:
        return self._states.setdefault(agent, _JournalState())


def _note_identity(noted: NoteWritten) -> tuple[str, str, str, str, bool]:
    """What tells one note from another, whoever had it written."""
    return noted.agent, noted.scope, noted.title, noted.text, noted.lasting


def _is_dream_material(noted: NoteWritten) -> bool:
    """Whether there is something to dream of, or to ask an owner."""
    return noted.lasting or is_trusted(noted.role, foreign=noted.foreign)


def _remove_note_from_file(path: Path, note: str) -> None:
    text = (own_files.read_private(path, most=MAX_JOURNAL_BYTES) or b"").decode("utf-8", "surrogateescape")
    left = remove_note(text, note)
    if left != text:
        own_files.replace_private(path, left.encode("utf-8", "surrogateescape"))


def note_id_of(stored: NewEntry | LogEntry) -> str:
    """What the journal calls it."""
    return (stored.key or "").removeprefix(_NOTE_KEY_PREFIX)


def estimate_note_tokens(noted: NoteWritten) -> int:
    """Roughly, of one note."""
    return estimate_tokens(noted.title + noted.text)


def _read_handwritten(
    path: Path, before: tuple[own_files.FileStamp, list[JournalEntry]]
) -> tuple[own_files.FileStamp, list[JournalEntry]]:
    now = own_files.file_stamp(path)
    if now == before[0]:
        return before
    text = own_files.read_tail(path, most=TAIL_BYTES).decode("utf-8", "replace")
    return now, [entry for entry in parse_journal(text) if not entry.note_id]


def to_journal_entry(noted: NoteWritten, of: NewEntry | LogEntry) -> JournalEntry:
    """A note of the log as the journal has it."""
    title = REMEMBERED_TITLE if noted.lasting else noted.title
    return JournalEntry(at=of.at, title=title, text=noted.text, scope=noted.scope, note_id=note_id_of(of))
