"""Forgetting what an agent wrote down: the log keeps it, and nobody is told of it any more.

First it is durable in the log. Then the journal loses the entry and MEMORY.md its line. Beside the store a mark says
which was the last to reach the files, so that a start goes on with what a crash or a full disk kept from them.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from agent.journal import to_single_line
from agent.tools.notes import FORGET, ForgetArgs
from agent.tools.schema import ToolCallRefused
from channels.tasks import run_to_completion
from gateway import own_files
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.hits import HitBuilder, SearchHit, SearchPlaces, match_all_terms, split_words
from gateway.memory import MemoryStore, load_dreams, remove_note_lines
from gateway.notes import JournalStore
from gateway.records import NoteForgotten, NoteWritten, Seq
from gateway.scopes import is_trusted
from gateway.store import LogEntry, NewEntry, Store
from gateway.titles import PlaceTitles
from gateway.tools.permits import ToolPermit

logger = logging.getLogger("reverie.notes")

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
    """Who knows places: `gateway.places.PrivacyCache`."""

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
        mark = own_files.agent_state_directory(self._store.path, agent) / _FORGOTTEN_MARK
        async with self._lock:
            try:
                told = (await asyncio.to_thread(own_files.read_private, mark, most=100) or b"0").decode(
                    "ascii", "replace"
                )
                after = int(told) if told.isdigit() else 0
                while page := await self._store.entries(after=after, kinds=["forgotten"], limit=_PAGE):
                    for one in page:
                        if isinstance(one.fact, NoteForgotten) and one.fact.agent == agent:
                            await self._remove_from_files(one.fact, one.seq, anybodys=one.fact.note in trusted)
                        after = one.seq
                        await asyncio.to_thread(own_files.replace_private, mark, str(after).encode())
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
