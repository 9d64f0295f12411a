"""Journal: notes of agents, durable in the log first, then in the journal file that people read.

The log is authoritative, and the file follows it: the process that leads an agent appends what
stands behind a mark beside the store, the log position of the last note that reached the file. So a
start writes what a crash or a full disk held back, and nothing that somebody has deleted there
since. Where the mark is lost, what the file has counts.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from agent.tokens.counter import estimate_tokens
from channels.aio import run_to_completion
from gateway.cluster.cluster import agent_lease
from gateway.context.history import find_write_of_cut_off_turn
from gateway.core.clock import new_id
from gateway.core.events import ConversationId
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
from gateway.store import LogEntry, NewEntry, Store, StoreError, StoreReader
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.notes")

TAIL_BYTES: Final = 4_000_000
"""Part at the end of a journal that is read."""
MAX_JOURNAL_BYTES: Final = 64_000_000
"""Size of a journal from which notes can be removed: more than years of notes."""
MAX_SEARCHED_NOTES: Final = 1_000
"""Newest notes of all agents that are searched for material of dreams and what an owner decides."""
_PAGE: Final = 200
_NOTE_KEY_PREFIX: Final = "note:"


class JournalStore:
    """Writes the notes of all agents. Call `recover` before the first use."""

    def __init__(self, gateway: GatewayHandle) -> None:
        self._store, self._clock, self._tasks = gateway.store, gateway.clock, gateway.tasks
        self._directory, self._cluster = gateway.live.agent_directory, gateway.channels.cluster
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """Held while the file of an agent is written."""
        self._undreamt = dict[str, dict[Seq, int]]()
        """Log position and tokens of each note since the last dream, of agents led here."""
        self._handwritten = dict[str, tuple[FileStamp, list[JournalEntry]]]()
        """Entries written by people, and the state of the file when they were read."""

    def on_notes(self, entries: Sequence[LogEntry]) -> None:
        """Count the material for dreams, and bring notes of other processes into the files."""
        for entry in entries:
            noted = entry.fact
            if isinstance(noted, NoteWritten) and noted.agent in self._undreamt:
                if _is_dream_material(noted):
                    self._undreamt[noted.agent][entry.seq] = estimate_note_tokens(noted)
                if self._cluster.is_shared:
                    self._tasks.create_task(self._flush(noted.agent))

    async def recover(self, agent: str) -> None:
        """Count the notes since the last dream of an agent that is led here from now on, and bring
        into its journal what is missing there. Raises StoreError; disk errors are logged.
        """
        found = await find_kept_notes(self._store, MAX_SEARCHED_NOTES)
        dream = await find_newest_dream(self._store, agent)
        upto = dream.fact.upto if dream is not None else 0
        self._undreamt[agent] = {
            one.seq: estimate_note_tokens(noted)
            for one, noted in found
            if noted.agent == agent and one.seq > upto and _is_dream_material(noted)
        }
        await self._flush(agent)

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
        # An interrupted turn must not leave it open whether the note was kept.
        await run_to_completion(self._append_note(context, noted))

    async def _append_note(self, context: ToolContext, noted: NoteWritten) -> None:
        place = context.at.conversation
        before = await find_write_of_cut_off_turn(
            self._store,
            place,
            noted.turn,
            "noted",
            lambda one: (
                isinstance(one.fact, NoteWritten)
                and replace(one.fact, by=noted.by, turn=noted.turn, label=noted.label) == noted
            ),
        )
        if before is None:
            now = self._clock.now()
            key = f"{_NOTE_KEY_PREFIX}{new_id(now)}"
            await self._store.append([NewEntry(fact=noted, at=now, conversation=place, key=key)])
            await self._flush(noted.agent)

    def material_tokens(self, agent: str) -> int:
        """Return the approximate size of the notes since the last dream, from memory alone."""
        return sum(self._undreamt.get(agent, {}).values())

    def mark_dreamt(self, agent: str, upto: Seq) -> None:
        """Record that the notes up to this log position are in the agent's memory."""
        notes = self._undreamt.get(agent, {})
        self._undreamt[agent] = {seq: tokens for seq, tokens in notes.items() if seq > upto}

    async def read_handwritten(self, agent: str) -> list[JournalEntry]:
        """Return the entries that people wrote into the journal, read again if it changed. Raises
        OSError.

        Of a long journal only the end is read.
        """
        path, (stamp, known) = self._path(agent), self._handwritten.get(agent, (None, []))
        if (now := file_stamp(path)) != stamp:  # this check costs less than a thread
            text = await asyncio.to_thread(_read_end, path)
            known = [entry for entry in parse_journal(text) if not entry.note_id]
            self._handwritten[agent] = now, known
        return known

    async def remove_note(self, agent: str, note: LogEntry, forgotten: Seq) -> None:
        """Remove a note that the entry at `forgotten` deletes from the dream material and the
        journal.

        Raises OSError.
        """
        assert isinstance(note.fact, NoteWritten)
        undreamt = self._undreamt.setdefault(agent, {})
        if undreamt.pop(note.seq, None) is None and note.fact.label.is_trusted:
            # An earlier dream used it, so the next one is to remove it.
            undreamt[forgotten] = estimate_note_tokens(note.fact)
        async with self._locks[agent]:
            await asyncio.to_thread(_remove_note_from_file, self._path(agent), note_id_of(note))

    async def _flush(self, agent: str) -> None:
        """Append the notes behind the mark to the file; after an error of the disk or the store
        they wait for the next note, or the next start.
        """
        if not self._cluster.holds(agent_lease(agent)):
            return
        mark = agent_state_directory(self._store.path, agent) / "journal.mark"
        path = self._path(agent)
        async with self._locks[agent]:
            try:
                is_marked = await asyncio.to_thread(read_mark, mark)
                text = "" if is_marked else await asyncio.to_thread(_read_end, path)
                known = find_note_ids(text)
                async for one in iter_unmarked(self._store, mark, "noted", agent):
                    note, gone = one.fact, await self._store.forgotten_notes([one.seq])
                    if isinstance(note, NoteWritten) and not gone and note_id_of(one) not in known:
                        entry = JournalEntry(
                            at=one.at,
                            title=REMEMBERED_TITLE if note.lasting else note.title,
                            text=note.text,
                            scope=note.scope,
                            note_id=note_id_of(one),
                        )
                        added = format_entry(entry).encode()
                        await asyncio.to_thread(append_private, path, added, most=MAX_JOURNAL_BYTES)
            except (OSError, StoreError) as error:
                logger.warning(
                    "the journal of %s cannot be written, the log has what it lacks: %s",
                    agent,
                    error,
                )

    def _path(self, agent: str) -> Path:
        return self._directory(agent) / JOURNAL_FILE


async def find_kept_notes(
    reader: StoreReader, newest: int, conversation: ConversationId | None = None
) -> list[tuple[LogEntry, NoteWritten]]:
    """Return those of the newest notes that are not forgotten, oldest first. Raises StoreError."""
    found = await reader.newest_entries(newest, kinds=["noted"], conversation=conversation)
    gone = await reader.forgotten_notes([one.seq for one in found])
    return [
        (one, one.fact)
        for one in found
        if isinstance(one.fact, NoteWritten) and one.seq not in gone
    ]


def note_id_of(stored: NewEntry | LogEntry) -> str:
    """Return the id of a note in the journal."""
    return (stored.key or "").removeprefix(_NOTE_KEY_PREFIX)


def estimate_note_tokens(noted: NoteWritten) -> int:
    """Return the approximate size of a note."""
    return estimate_tokens(noted.title + noted.text)


def _is_dream_material(noted: NoteWritten) -> bool:
    """Return whether a note is material for a dream, or a question to an owner."""
    return noted.lasting or noted.label.is_trusted


def read_mark(path: Path) -> Seq:
    """Return the log position in a mark file; 0: there is none that can be read. Raises OSError."""
    marked = read_private(path, most=100) or b""
    return Seq(int(marked)) if marked.isdigit() else Seq(0)


async def iter_unmarked(store: Store, mark: Path, kind: str, agent: str) -> AsyncIterator[LogEntry]:
    """Yield an agent's entries of a kind behind its mark, oldest first, and move that behind each
    once the next one is asked for. Those of other agents move it once a page. Raises OSError,
    StoreError.
    """
    after = await asyncio.to_thread(read_mark, mark)
    while page := await store.entries(after=after, kinds=[kind], limit=_PAGE):
        after = page[-1].seq
        for one in page:
            if is_own := getattr(one.fact, "agent", "") == agent:
                yield one
            if is_own or one.seq == after:
                await asyncio.to_thread(replace_private, mark, str(one.seq).encode())


def _remove_note_from_file(path: Path, note: str) -> None:
    text = (read_private(path, most=MAX_JOURNAL_BYTES) or b"").decode("utf-8", "surrogateescape")
    left = remove_note(text, note)
    if left != text:
        replace_private(path, left.encode("utf-8", "surrogateescape"))


def _read_end(path: Path) -> str:
    content = read_private(path, most=MAX_JOURNAL_BYTES) or b""
    return content[-TAIL_BYTES:].decode("utf-8", "replace")
