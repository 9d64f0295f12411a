"""What an agent writes down: durable in the log, then in the journal that people read.

The log is the truth, and the file follows it. Beside the store a mark says which note was the last to reach the file,
so a start writes what a crash or a full disk kept from it, and nothing that somebody has deleted there since.

Forgetting what an agent wrote down: the log keeps it, and nobody is told of it any more.

First it is durable in the log. Then the journal loses the entry and MEMORY.md its line. Beside the store a mark says
which was the last to reach the files, so that a start goes on with what a crash or a full disk kept from them.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

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
from agent.tools.specs import FORGET, ForgetArgs
from agent.view import estimate_tokens
from agent.workspace.character_card import normalize_text
from channels.aio import run_to_completion
from gateway.context.history import find_write_of_cut_off_turn
from gateway.context.memory import MemoryStore, find_newest_dream, load_dreams, remove_note_lines
from gateway.context.search import HitBuilder, SearchHit, SearchPlaces, match_all_terms, split_words
from gateway.core.clock import Clock, new_id
from gateway.core.events import ConversationId
from gateway.core.facts import NoteForgotten, NoteWritten, Seq
from gateway.core.permissions import ToolPermit
from gateway.core.private_files import (
    JOURNAL_FILE,
    FileStamp,
    agent_state_directory,
    append_private,
    file_stamp,
    read_private,
    read_tail,
    replace_private,
)
from gateway.core.scopes import is_trusted, scope_of_new_note
from gateway.core.tool import Tool, ToolContext, ToolOutput
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import LogEntry, NewEntry, Store
from gateway.stream.place_names import PlaceTitles

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
    handwritten: tuple[FileStamp, list[JournalEntry]] = (None, [])
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
        desk, path = self._state_of(agent), self._directory(agent) / JOURNAL_FILE
        if (
            desk.handwritten[0] is None or file_stamp(path) != desk.handwritten[0]
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
            await asyncio.to_thread(_remove_note_from_file, self._directory(agent) / JOURNAL_FILE, name)

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
        mark = (read_private(self._mark_path(agent), most=100) or b"").decode("ascii", "replace")
        if mark == newest:
            return {newest}
        end = read_tail(self._directory(agent) / JOURNAL_FILE, most=TAIL_BYTES)
        there = find_note_ids(end.decode("utf-8", "replace"))
        if newest in there:
            replace_private(self._mark_path(agent), newest.encode())
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
            append_private(self._directory(agent) / JOURNAL_FILE, format_entry(late[0]).encode())
            replace_private(self._mark_path(agent), late[0].note_id.encode())
            del late[0]

    def _mark_path(self, agent: str) -> Path:
        return agent_state_directory(self._store.path, agent) / _JOURNAL_MARK

    def _state_of(self, agent: str) -> _JournalState:
        return self._states.setdefault(agent, _JournalState())


def _note_identity(noted: NoteWritten) -> tuple[str, str, str, str, bool]:
    """What tells one note from another, whoever had it written."""
    return noted.agent, noted.scope, noted.title, noted.text, noted.lasting


def _is_dream_material(noted: NoteWritten) -> bool:
    """Whether there is something to dream of, or to ask an owner."""
    return noted.lasting or is_trusted(noted.role, foreign=noted.foreign)


def _remove_note_from_file(path: Path, note: str) -> None:
    text = (read_private(path, most=MAX_JOURNAL_BYTES) or b"").decode("utf-8", "surrogateescape")
    left = remove_note(text, note)
    if left != text:
        replace_private(path, left.encode("utf-8", "surrogateescape"))


def note_id_of(stored: NewEntry | LogEntry) -> str:
    """What the journal calls it."""
    return (stored.key or "").removeprefix(_NOTE_KEY_PREFIX)


def estimate_note_tokens(noted: NoteWritten) -> int:
    """Roughly, of one note."""
    return estimate_tokens(noted.title + noted.text)


def _read_handwritten(path: Path, before: tuple[FileStamp, list[JournalEntry]]) -> tuple[FileStamp, list[JournalEntry]]:
    now = file_stamp(path)
    if now == before[0]:
        return before
    text = read_tail(path, most=TAIL_BYTES).decode("utf-8", "replace")
    return now, [entry for entry in parse_journal(text) if not entry.note_id]


def to_journal_entry(noted: NoteWritten, of: NewEntry | LogEntry) -> JournalEntry:
    """A note of the log as the journal has it."""
    title = REMEMBERED_TITLE if noted.lasting else noted.title
    return JournalEntry(at=of.at, title=title, text=noted.text, scope=noted.scope, note_id=note_id_of(of))


MAX_MATCHES: Final = 10
"""Told of, where several are meant."""
MAX_WORDS: Final = 12
FORGET_PERMIT: Final = ToolPermit(approval="untrusted")
NO_MATCH: Final = (
    "There is nothing like that among what you wrote down that may be told of here. All the words must be in it, "
    "or it is named by a handle like n12, which recall shows."
)
NOT_ALLOWED: Final = (
    "Only an owner or admin can have you forget that. Alone with you, anybody can have you forget what you wrote down "
    "in that chat."
)
_HANDLE: Final = re.compile(r"n([0-9]{1,18})")
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_PAGE: Final = 200
_PAGES: Final = 10
_FORGOTTEN_MARK: Final = "forgotten.mark"


def parse_note_handle(written: str) -> Seq | None:
    """The note that is named by this handle, e.g. n12, as recall shows it. None: it is none."""
    match = _HANDLE.fullmatch(written.strip(_QUOTES).lower())
    return Seq(int(match[1])) if match is not None else None


class JournalPlaces(SearchPlaces, Protocol):
    """Who knows places: `gateway.stream.routing.PrivacyCache`."""

    @property
    def titles(self) -> PlaceTitles:
        """What places are called."""

    async def is_direct(self, conversation: ConversationId) -> bool | None:
        """Whether it is a direct chat."""


class NoteForgetter:
    """Of all agents. `recover` after the notes and the memory have."""

    def __init__(
        self, store: Store, clock: Clock, places: JournalPlaces, notes: JournalStore, memory: MemoryStore
    ) -> None:
        self._store = store
        self._clock = clock
        self._places = places
        self._journal = notes
        self._memory = memory
        self._hits = HitBuilder(store, places)
        self._lock = asyncio.Lock()

    @property
    def tool(self) -> Tool:
        """The tool."""
        return Tool.create(FORGET, ForgetArgs, self.forget, FORGET_PERMIT)

    async def recover(self, agents: Iterable[str]) -> None:
        """Take out of the files what the last run could not. Raises StoreError; what a disk refuses is logged."""
        for agent in agents:
            await self.apply_to_files(agent)

    async def forget(self, asked: ForgetArgs, where: ToolContext) -> str | ToolOutput:
        """Forget the one that is meant, or tell which could be. Raises Refused and StoreError.

        When this returns it is durable. Cancelled, it is forgotten all the same, or not at all.
        """
        may = await self._allowed_scopes(where)
        seq = parse_note_handle(asked.what)
        found = await (self.find_note(seq, where) if seq is not None else self._find_by_words(asked.what, where))
        if not found:
            raise ToolCallRefused(NO_MATCH)
        open_ = [(one, hit) for one, hit in found if may(hit.scope)]
        if not open_:
            raise ToolCallRefused(NOT_ALLOWED)
        if len(open_) > 1:
            words = split_words(asked.what)
            lines = [f"{hit.handle} {hit.render(words)}" for _, hit in open_[:MAX_MATCHES]]
            more = " There are more: give more words." if len(open_) > MAX_MATCHES else ""
            head = f"Several are like that. Nothing is forgotten yet: name one by its handle.{more}"
            foreign = any(hit.is_foreign for _, hit in open_[:MAX_MATCHES])
            text = "\n".join([head, *lines])
            return ToolOutput(text=text, kind="messages", origin="your notes", is_untrusted=True, is_foreign=foreign)
        return await run_to_completion(self._forget_note(open_[0][0], where))

    async def _allowed_scopes(self, where: ToolContext) -> Callable[[str], bool]:
        """Whose notes who asks can have forgotten, by their scope. What may not be told there is not found at all."""
        if where.requesters and all(asker.role in ("owner", "admin") for asker in where.requesters):
            return lambda _: True
        if await self._places.is_direct(where.at.conversation):
            return lambda scope: scope == where.visibility.scope
        raise ToolCallRefused(NOT_ALLOWED)

    async def find_note(self, seq: Seq, where: ToolContext) -> list[tuple[LogEntry, SearchHit]]:
        """The note that stands there, if it may be told of where this is asked and is not forgotten; else none."""
        one = await self._store.entry(seq)
        return await self._filter_visible([one], where) if one is not None else []

    async def _find_by_words(self, what: str, where: ToolContext) -> list[tuple[LogEntry, SearchHit]]:
        """The newest that hold all the words, a few more than are told."""
        terms = [term for term in to_single_line(what, len(what)).split() if any(map(str.isalnum, term))][:MAX_WORDS]
        found, before = list[tuple[LogEntry, SearchHit]](), None
        for _ in range(_PAGES if terms else 0):
            page = await self._store.newest_entries(_PAGE, before=before, kinds=["noted"], match=match_all_terms(terms))
            found += await self._filter_visible(page[::-1], where)
            if len(found) > MAX_MATCHES or len(page) < _PAGE:
                break
            before = page[0].seq
        return found

    async def _filter_visible(self, some: Iterable[LogEntry], where: ToolContext) -> list[tuple[LogEntry, SearchHit]]:
        """The notes that may be told there and are not forgotten: as `recall` finds them."""
        notes = [one for one in some if isinstance(one.fact, NoteWritten)]
        hits = [(one, await self._hits.build(one, where)) for one in notes]
        return where.visibility.only_visible(
            [(one, hit) for one, hit in hits if hit is not None], lambda pair: pair[1].scope
        )

    async def _forget_note(self, note: LogEntry, where: ToolContext) -> str:
        asking = where.requesters
        by = ", ".join(f"{to_single_line(asker.name, 100)} ({asker.role})" for asker in asking) or "the agent itself"
        fact = NoteForgotten(agent=where.agent, note=note.seq, by=by, turn=where.turn)
        entry = NewEntry(
            fact=fact, at=self._clock.now(), conversation=where.at.conversation, key=f"forgotten:{note.seq}"
        )
        await self._store.append([entry])
        trusted = bool(asking) and all(asker.role in ("owner", "admin") for asker in asking)
        reached = await self.apply_to_files(where.agent, trusted=[note.seq] if trusted else ())
        late = "" if reached else " The files could not be written just now, and follow at the next start."
        return f"It is forgotten. What MEMORY.md made of it leaves with the next dream. Do not tell it again.{late}"

    async def apply_to_files(self, agent: str, *, trusted: Collection[Seq] = ()) -> bool:
        """Take what is forgotten out of the files. False: a disk refused. `trusted`: for these, lines of anybody's.

        Raises StoreError.
        """
        mark = agent_state_directory(self._store.path, agent) / _FORGOTTEN_MARK
        async with self._lock:
            try:
                told = (await asyncio.to_thread(read_private, mark, most=100) or b"0").decode("ascii", "replace")
                after = int(told) if told.isdigit() else 0
                while page := await self._store.entries(after=after, kinds=["forgotten"], limit=_PAGE):
                    for one in page:
                        if isinstance(one.fact, NoteForgotten) and one.fact.agent == agent:
                            await self._remove_from_files(one.fact, one.seq, anybodys=one.fact.note in trusted)
                        after = one.seq
                        await asyncio.to_thread(replace_private, mark, str(after).encode())
            except OSError as error:
                logger.warning("what %s forgot is still in its files: %s", agent, error)
                return False
        return True

    async def _remove_from_files(self, forgotten: NoteForgotten, at: Seq, *, anybodys: bool) -> None:
        note = await self._store.entry(forgotten.note)
        if note is None or not isinstance(note.fact, NoteWritten):
            return
        await self._journal.remove_note(forgotten.agent, note, at)
        before, text = await self._memory.read(forgotten.agent), note.fact.text
        after = remove_note_lines(before, text)
        if after == before:
            return
        newest_first = await load_dreams(self._store, forgotten.agent)
        made = next((one.fact for one in reversed(newest_first) if one.fact.upto >= note.seq), None)
        known = is_trusted(note.fact.role, foreign=note.fact.foreign) or any(
            forgotten.note in one.fact.notes for one in newest_first
        )
        # Else somebody could have written down what stands there, to have it taken out.
        if anybodys or (known and made is not None and remove_note_lines(made.before, text) == made.before):
            upto = newest_first[0].fact.upto if newest_first else Seq(0)
            await self._memory.rewrite(forgotten.agent, before=before, after=after, upto=upto, reason="forgotten")
