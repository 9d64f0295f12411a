"""Journal: notes of agents, durable in the log first, then in the journal file that people read.

The log is authoritative, and the file follows it. A mark file beside the store names the last note
that reached the journal, so a start writes what a crash or a full disk held back, and nothing that
somebody has deleted there since.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from agent.tokens.counter import estimate_tokens
from gateway.cluster.cluster import agent_lease
from gateway.context.history import find_write_of_cut_off_turn
from gateway.core.clock import new_id
from gateway.core.facts import NoteWritten, Seq
from gateway.core.private_files import (
    JOURNAL_FILE,
    FileStamp,
    agent_state_directory,
    append_private,
    file_stamp,
    read_private,
    replace_private,
)
from gateway.core.scopes import Visibility, scope_of_new_note
from gateway.core.text_safety import normalize_text
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugins.memory.journal_file import (
    MAX_TEXT_CHARS,
    REMEMBERED_TITLE,
    JournalEntry,
    find_note_ids,
    format_entry,
    parse_journal,
    remove_note,
)
from gateway.plugins.memory.memory_file import find_newest_dream
from gateway.store import LogEntry, NewEntry
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.notes")

MAX_RECOVERED_NOTES: Final = 1_000
"""Newest notes that a start compares with the journal."""
TAIL_BYTES: Final = 4_000_000
"""Part at the end of a journal in which a start looks for them."""
MAX_JOURNAL_BYTES: Final = 64_000_000
"""Size of a journal from which notes can be removed: more than years of notes."""
IN_FLIGHT: Final = timedelta(seconds=10)
"""Age up to which a note may still be written into the file by the process that has it, if there
are several."""
_JOURNAL_MARK: Final = "journal.mark"
_NOTE_KEY_PREFIX: Final = "note:"


@dataclass(slots=True)
class _JournalState:
    """State of one agent's journal."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_loaded: bool = False
    """The notes of the log have been read."""
    undreamt_notes: deque[tuple[Seq, int]] = field(
        default_factory=lambda: deque(maxlen=MAX_RECOVERED_NOTES)
    )
    """Log position and tokens of each note since the last dream."""
    handwritten: tuple[FileStamp, list[JournalEntry]] = (None, [])
    """Entries written by people, and the state of the file when they were read."""
    unwritten: list[JournalEntry] = field(default_factory=list)
    """Durable notes that are not in the file yet."""


class JournalStore:
    """Writes the notes of all agents. Call `recover` before the first use, `close` at the end."""

    def __init__(self, gateway: GatewayHandle) -> None:
        """Each process writes its own notes into the file; what another one could not write is
        written by the one that leads the agent.
        """
        self._store, self._clock = gateway.store, gateway.clock
        self._directory, self._cluster = gateway.live.agent_directory, gateway.channels.cluster
        self._states: dict[str, _JournalState] = {}
        self._write_tasks: set[asyncio.Task[None]] = set()

    def count_material(self, entries: Sequence[LogEntry]) -> None:
        """Count the material for dreams, whichever process wrote it."""
        for entry in entries:
            noted = entry.fact
            state = self._states.get(noted.agent) if isinstance(noted, NoteWritten) else None
            if state is None or not state.is_loaded or not isinstance(noted, NoteWritten):
                continue
            if _is_dream_material(noted):
                state.undreamt_notes.append((entry.seq, estimate_note_tokens(noted)))

    async def recover(self, agent: str) -> None:
        """Write the notes that the last run could not write into an agent's journal.

        Raises StoreError; disk errors are logged. Call it again for an agent that is led by this
        process from now on.
        """
        self._state_of(agent).is_loaded = False
        await self._load_state(agent)

    async def write(self, context: ToolContext, title: str, text: str, *, lasting: bool) -> None:
        """Write a note. `lasting`: it is kept for good. Raises ToolCallRefused, StoreError.

        If the same turn wrote it before its process ended, it is not written again. On return it is
        durable, and in the file unless the disk fails. On cancellation it is written all the same.
        """
        text = normalize_text(text)
        if not text:
            raise ToolCallRefused("There is nothing to write down: the text is blank.")
        if len(text) > MAX_TEXT_CHARS:
            raise ToolCallRefused(
                f"That is {len(text)} characters; at most {MAX_TEXT_CHARS} are kept. Write less."
            )
        label, scope = context.request.label, context.visibility.scope
        shared = label.is_trusted and Visibility(scope=scope).can_read(label.readers)
        noted = NoteWritten(
            agent=context.agent,
            scope=scope_of_new_note(context.at.conversation, scope, shared=shared),
            title=title,
            text=text,
            lasting=lasting,
            by=", ".join(f"{one.name} ({one.role})" for one in context.requesters),
            turn=context.turn,
            label=label,
        )
        # In a task of its own: an interrupted turn must not leave it open whether the note was
        # kept.
        task = asyncio.create_task(self._append_note(context, noted))
        self._write_tasks.add(task)
        task.add_done_callback(self._write_tasks.discard)
        await asyncio.shield(task)

    async def _append_note(self, context: ToolContext, noted: NoteWritten) -> None:
        state = await self._load_state(noted.agent)
        async with state.lock:  # so that the file has the order of the log
            place = context.at.conversation
            before = await find_write_of_cut_off_turn(
                self._store,
                place,
                noted.turn,
                "noted",
                lambda one: (
                    isinstance(one.fact, NoteWritten)
                    and _note_identity(one.fact) == _note_identity(noted)
                ),
            )
            if before is not None:
                return
            now = self._clock.now()
            key = f"{_NOTE_KEY_PREFIX}{new_id(now)}"
            entry = NewEntry(fact=noted, at=now, conversation=place, key=key)
            await self._store.append([entry])
            state.unwritten.append(to_journal_entry(noted, entry))
            await self._flush(noted.agent, state)

    def material_tokens(self, agent: str) -> int:
        """Return the approximate size of the notes since the last dream, from memory alone."""
        return sum(tokens for _, tokens in self._state_of(agent).undreamt_notes)

    def mark_dreamt(self, agent: str, upto: Seq) -> None:
        """Record that the notes up to this log position are in the agent's memory."""
        state = self._state_of(agent)
        while state.undreamt_notes and state.undreamt_notes[0][0] <= upto:
            state.undreamt_notes.popleft()

    async def read_handwritten(self, agent: str) -> list[JournalEntry]:
        """Return the entries that people wrote into the journal, read again if it changed. Raises
        OSError.

        Of a long journal only the end is read.
        """
        state, path = self._state_of(agent), self._directory(agent) / JOURNAL_FILE
        if file_stamp(path) != state.handwritten[0]:  # this check costs less than a thread
            state.handwritten = await asyncio.to_thread(_read_handwritten, path, state.handwritten)
        return state.handwritten[1]

    async def remove_note(self, agent: str, note: LogEntry, forgotten: Seq) -> None:
        """Remove a note that the entry at `forgotten` deletes from the dream material and the
        journal.

        Raises OSError.
        """
        assert isinstance(note.fact, NoteWritten)
        state, name = await self._load_state(agent), note_id_of(note)
        async with state.lock:
            trusted = note.fact.label.is_trusted
            # An earlier dream used it, so the next one is to remove it.
            dreamt = trusted and all(seq != note.seq for seq, _ in state.undreamt_notes)
            kept = [one for one in state.undreamt_notes if one[0] not in (note.seq, forgotten)]
            state.undreamt_notes = deque(
                [*kept, *([(forgotten, estimate_note_tokens(note.fact))] if dreamt else [])],
                maxlen=MAX_RECOVERED_NOTES,
            )
            state.unwritten = [entry for entry in state.unwritten if entry.note_id != name]
            await asyncio.to_thread(
                _remove_note_from_file, self._directory(agent) / JOURNAL_FILE, name
            )

    async def close(self) -> None:
        """Wait for the writes in progress."""
        while self._write_tasks:
            await asyncio.wait(self._write_tasks)

    async def _load_state(self, agent: str) -> _JournalState:
        state = self._state_of(agent)
        async with state.lock:
            if not state.is_loaded:
                found = await self._store.newest_entries(MAX_RECOVERED_NOTES, kinds=["noted"])
                notes = [
                    (one, one.fact)
                    for one in found
                    if isinstance(one.fact, NoteWritten) and one.fact.agent == agent
                ]
                dream = await find_newest_dream(self._store, agent)
                upto = dream.fact.upto if dream is not None else 0
                forgotten = await self._store.forgotten_notes([one.seq for one, _ in notes])
                left = [(one, noted) for one, noted in notes if one.seq not in forgotten]
                state.undreamt_notes.clear()
                state.undreamt_notes.extend(
                    (one.seq, estimate_note_tokens(noted))
                    for one, noted in left
                    if one.seq > upto and _is_dream_material(noted)
                )
                missing = await self._find_missing(
                    agent, [to_journal_entry(noted, one) for one, noted in notes]
                )
                ids_left = {note_id_of(one) for one, _ in left}
                found_missing = [entry for entry in missing if entry.note_id in ids_left]
                state.unwritten = [
                    *found_missing,
                    *(one for one in state.unwritten if one not in found_missing),
                ]
                state.is_loaded = True
                await self._flush(agent, state)
        return state

    async def _find_missing(self, agent: str, entries: list[JournalEntry]) -> list[JournalEntry]:
        """Return the entries that did not reach the file."""
        if not entries or not self._cluster.holds(agent_lease(agent)):
            return []
        settled = self._clock.now() - IN_FLIGHT
        try:
            written = await asyncio.to_thread(self._read_written_ids, agent, entries[-1].note_id)
        except OSError as error:
            logger.warning("the journal of %s cannot be read: %s", agent, error)
            written = set()
        last = max(
            (index for index, one in enumerate(entries) if one.note_id in written), default=-1
        )
        return [
            one for one in entries[last + 1 :] if not self._cluster.is_shared or one.at < settled
        ]

    def _read_written_ids(self, agent: str, newest: str) -> set[str]:
        newest_mark = (read_private(self._mark_path(agent), most=100) or b"").decode(
            "ascii", "replace"
        )
        if newest_mark == newest:
            return {newest}
        written = find_note_ids(_read_end(self._directory(agent) / JOURNAL_FILE))
        if newest in written:
            replace_private(self._mark_path(agent), newest.encode())
        return {newest_mark} | written

    async def _flush(self, agent: str, state: _JournalState) -> None:
        """Write to the file; after a disk error the entries wait for the next note, or the next
        start.
        """
        if not state.unwritten:
            return
        try:
            await asyncio.to_thread(self._append_to_file, agent, state.unwritten)
        except OSError as error:
            logger.warning(
                "the journal of %s cannot be written, the log has what it lacks: %s", agent, error
            )

    def _append_to_file(self, agent: str, entries: list[JournalEntry]) -> None:
        while entries:
            path, text = self._directory(agent) / JOURNAL_FILE, format_entry(entries[0]).encode()
            append_private(path, text, most=MAX_JOURNAL_BYTES)
            replace_private(self._mark_path(agent), entries[0].note_id.encode())
            del entries[0]

    def _mark_path(self, agent: str) -> Path:
        return agent_state_directory(self._store.path, agent) / _JOURNAL_MARK

    def _state_of(self, agent: str) -> _JournalState:
        return self._states.setdefault(agent, _JournalState())


def note_id_of(stored: NewEntry | LogEntry) -> str:
    """Return the id of a note in the journal."""
    return (stored.key or "").removeprefix(_NOTE_KEY_PREFIX)


def estimate_note_tokens(noted: NoteWritten) -> int:
    """Return the approximate size of a note."""
    return estimate_tokens(noted.title + noted.text)


def to_journal_entry(noted: NoteWritten, entry: NewEntry | LogEntry) -> JournalEntry:
    """Return a note of the log as a journal entry."""
    title = REMEMBERED_TITLE if noted.lasting else noted.title
    return JournalEntry(
        at=entry.at, title=title, text=noted.text, scope=noted.scope, note_id=note_id_of(entry)
    )


def _note_identity(noted: NoteWritten) -> tuple[str, str, str, str, bool]:
    """Return the fields that distinguish notes, regardless of who requested them."""
    return noted.agent, noted.scope, noted.title, noted.text, noted.lasting


def _is_dream_material(noted: NoteWritten) -> bool:
    """Return whether a note is material for a dream, or a question to an owner."""
    return noted.lasting or noted.label.is_trusted


def _remove_note_from_file(path: Path, note: str) -> None:
    text = (read_private(path, most=MAX_JOURNAL_BYTES) or b"").decode("utf-8", "surrogateescape")
    left = remove_note(text, note)
    if left != text:
        replace_private(path, left.encode("utf-8", "surrogateescape"))


def _read_handwritten(
    path: Path, before: tuple[FileStamp, list[JournalEntry]]
) -> tuple[FileStamp, list[JournalEntry]]:
    now = file_stamp(path)
    if now == before[0]:
        return before
    return now, [entry for entry in parse_journal(_read_end(path)) if not entry.note_id]


def _read_end(path: Path) -> str:
    content = read_private(path, most=MAX_JOURNAL_BYTES) or b""
    return content[-TAIL_BYTES:].decode("utf-8", "replace")
