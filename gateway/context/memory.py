"""MEMORY.md: what an agent knows for good. Written by dreams, edited by people, told to a verified owner alone.

Notes that were made of strangers' words come into it only by an owner's word (`MemoryStore.approve`), as they are.

The log has each version that a dream wrote, before the file has it. Beside the store a mark says which one was the last
to reach the file, so that a start goes on with what a crash cut off; what people wrote since is never overwritten.
"""

import asyncio
import difflib
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from gateway.context.search import normalize_text
from gateway.core.clock import Clock, new_id
from gateway.core.facts import MemoryConsolidated, Seq, inner_conversation
from gateway.core.private_files import MEMORY_FILE, agent_state_directory, read_private, replace_private
from gateway.store import NewEntry, Store, StoreReader

logger = logging.getLogger("reverie.memory")

MAX_BYTES: Final = 250_000
"""Of a file that is read: as much as a workspace's."""
MAX_CHARS: Final = 12_000
"""Of a file that an approved note is added to: more of it is in no prompt."""
APPROVED: Final = "approved"
"""The reason of a `MemoryConsolidated` by which an owner let a note in."""
UNDONE: Final = "undone"
"""The reason of a `MemoryConsolidated` that took another one back."""
_MARK: Final = "memory.mark"
_PAGE: Final = 20
_PAGES: Final = 50
"""A thousand dreams, of all agents: two years of one."""

Directory = Callable[[str], Path]
"""Where an agent's own files are."""


class DreamRecord(NamedTuple):
    """A dream as the log has it."""

    key: str
    at: datetime
    fact: MemoryConsolidated


async def load_dreams(reader: StoreReader, agent: str, most: int | None = None) -> list[DreamRecord]:
    """An agent's, the newest first, at most so many; of the newest of all agents'."""
    found, before = list[DreamRecord](), None
    for _ in range(_PAGES):
        page = await reader.newest_entries(_PAGE, before=before, kinds=["dreamed"])
        for one in reversed(page):
            if isinstance(one.fact, MemoryConsolidated) and one.fact.agent == agent:
                found.append(DreamRecord(one.key or "", one.at, one.fact))
            if len(found) == most:
                return found
        if len(page) < _PAGE:
            break
        before = page[0].seq
    return found


async def find_newest_dream(reader: StoreReader, agent: str) -> DreamRecord | None:
    """The last version that was written of an agent's memory, whoever changed the file since."""
    return next(iter(await load_dreams(reader, agent, 1)), None)


def find_last_effective_dream(newest_first: list[DreamRecord]) -> DreamRecord | None:
    """The newest dream that changed something and was not taken back."""
    undone = 0
    for one in newest_first:
        if one.fact.before == one.fact.after:
            continue
        if one.fact.reason == UNDONE:
            undone += 1
        elif undone:
            undone -= 1
        else:
            return one
    return None


def format_diff(before: str, after: str) -> str:
    """What changed, as a unified diff; empty: nothing did."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="")
    return "\n".join(lines)


def remove_note_lines(text: str, noted: str) -> str:
    """The file without the lines that say word for word what was noted, and nothing else. Pure."""
    wanted = [words for line in noted.split("\n") if (words := normalize_text(line))]
    lines = text.split("\n")
    said = [normalize_text(line) for line in lines]
    count = len(wanted)
    first = next((place for place in range(len(lines)) if wanted and said[place : place + count] == wanted), None)
    return text if first is None else remove_note_lines("\n".join(lines[:first] + lines[first + count :]), noted)


class MemoryFile:
    """One agent's. Blocks on the disk; all raise OSError, also for a file that is a link or no text."""

    def __init__(self, store: Path, directory: Path, agent: str) -> None:
        self.path = directory / MEMORY_FILE
        self._mark = agent_state_directory(store, agent) / _MARK

    def read(self) -> str:
        """As it stands there, whoever wrote it. Empty: there is none."""
        content = read_private(self.path, most=MAX_BYTES) or b""
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise OSError(f"{self.path} is not UTF-8") from None

    def write(self, text: str) -> None:
        """Put this in its place, at once and whole."""
        replace_private(self.path, text.encode())

    def finish_write(self, newest: DreamRecord | None) -> None:
        """Go on with what a crash cut off: this version is durable, and perhaps the file lacks it."""
        if newest is None or (read_private(self._mark, most=100) or b"").decode("ascii", "replace") == newest.key:
            return
        if self.read() == newest.fact.before:
            self.write(newest.fact.after)
        self.mark_written(newest.key)

    def mark_written(self, key: str) -> None:
        """This version has reached the file."""
        replace_private(self._mark, key.encode())


class MemoryStore:
    """All agents'."""

    def __init__(self, store: Store, clock: Clock, directory: Directory) -> None:
        self._store = store
        self._clock = clock
        self._directory = directory

    def _file(self, agent: str) -> MemoryFile:
        return MemoryFile(self._store.path, self._directory(agent), agent)

    async def recover(self, agent: str) -> None:
        """`settle` at a start, which must not fail for a file: what a disk refuses is logged. Raises StoreError."""
        try:
            await self.finish_write(agent)
        except OSError as error:
            logger.warning("the memory of %s cannot be written or read: %s", agent, error)

    async def finish_write(self, agent: str) -> None:
        """Go on with what a crash cut off. Raises OSError, StoreError."""
        await asyncio.to_thread(self._file(agent).finish_write, await find_newest_dream(self._store, agent))

    async def read(self, agent: str) -> str:
        """All of the file. Empty: there is none. Raises OSError."""
        return await asyncio.to_thread(self._file(agent).read)

    async def rewrite(
        self, agent: str, *, before: str, after: str, upto: Seq, reason: str, notes: tuple[Seq, ...] = ()
    ) -> bool:
        """Have the file say `after`, unless it does not say `before` any more: False, and nothing is done.

        First it is durable in the log. Raises StoreError, or OSError: then a later `settle` goes on with it.
        """
        file = self._file(agent)
        if await asyncio.to_thread(file.read) != before:
            return False
        now = self._clock.now()
        key = f"dream:{new_id(now)}"
        fact = MemoryConsolidated(agent=agent, before=before, after=after, upto=upto, reason=reason, notes=notes)
        await self._store.append([NewEntry(fact=fact, at=now, conversation=inner_conversation(agent), key=key)])
        await asyncio.to_thread(file.write, after)
        await asyncio.to_thread(file.mark_written, key)
        return True

    async def approve(self, agent: str, note: Seq, text: str) -> str:
        """Add a note to the file, as it is. Empty: it is there; else why not. Raises StoreError, OSError.

        Call it when an owner has said so, who was shown all of it.
        """
        await self.finish_write(agent)
        newest_first = await load_dreams(self._store, agent)
        if any(note in one.fact.notes for one in newest_first):
            return "it was let into MEMORY.md before"
        before = await self.read(agent)
        after = f"{before.rstrip()}\n{format_as_list_item(text)}\n".lstrip()
        if len(after) > MAX_CHARS:
            return f"MEMORY.md would have more than {MAX_CHARS:,} characters: have something in it forgotten first"
        upto = newest_first[0].fact.upto if newest_first else Seq(0)
        done = await self.rewrite(agent, before=before, after=after, upto=upto, reason=APPROVED, notes=(note,))
        return "" if done else "MEMORY.md was changed in this moment: say it again"


def format_as_list_item(text: str) -> str:
    """A note as MEMORY.md has it once it was approved: one item of a list. Pure."""
    return "- " + "\n  ".join(line for line in text.split("\n") if line.strip())
