"""MEMORY.md: an agent's long-term memory. Written by dreams, edited by people, shown to a verified
owner alone.

- Strangers' words never enter it, except by an owner's hand: a note that an owner adds
  (`MemoryStore.approve`), word for word. Dreams read the notes of admins as well, so all of it
  counts as an admin's words (`MEMORY_LABEL` in `gateway.core.labels`).
- The log has each version that a dream wrote before the file has it. A mark file beside the store
  names the last version that reached the file, so a start completes what a crash cut off; later
  changes by people are never overwritten.
"""

import asyncio
import difflib
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from gateway.core.clock import new_id
from gateway.core.facts import MemoryConsolidated, Seq, inner_conversation
from gateway.core.i18n import _
from gateway.core.private_files import (
    MEMORY_FILE,
    agent_state_directory,
    read_private,
    replace_private,
)
from gateway.core.text_safety import shorten
from gateway.plugins.memory.search import fold_words
from gateway.store import NewEntry, StoreReader
from gateway.stream.handle import GatewayHandle

MAX_BYTES: Final = 250_000
"""Largest file that is read, as in a workspace."""
MAX_CHARS: Final = 12_000
"""Largest file to which an approved note is added: text beyond that is in no prompt."""
APPROVED: Final = "approved"
"""`MemoryConsolidated.reason` of a note that an owner added."""
EDITED: Final = "edited"
"""`MemoryConsolidated.reason` of an entry that the operator changed."""
MAX_SHOWN_CHANGES: Final = 12
UNDONE: Final = "undone"
"""`MemoryConsolidated.reason` of a version that takes another one back."""
_MARK: Final = "memory.mark"
_MAX_DREAMS: Final = 1_000
"""Dreams of all agents that are searched: two years of one."""


class DreamRecord(NamedTuple):
    """A dream as the log has it."""

    key: str
    at: datetime
    fact: MemoryConsolidated


async def load_dreams(
    reader: StoreReader, agent: str, limit: int | None = None
) -> list[DreamRecord]:
    """Return an agent's dreams, newest first, at most `limit`, among the newest of all agents."""
    found = list[DreamRecord]()
    async for one in reader.iter_newest(_MAX_DREAMS, page=20, kinds=["dreamed"]):
        if isinstance(one.fact, MemoryConsolidated) and one.fact.agent == agent:
            found.append(DreamRecord(one.key or "", one.at, one.fact))
        if len(found) == limit:
            break
    return found


async def find_newest_dream(reader: StoreReader, agent: str) -> DreamRecord | None:
    """Return the last recorded version of an agent's memory, whoever changed the file since."""
    return next(iter(await load_dreams(reader, agent, 1)), None)


def find_last_effective_dream(
    newest_first: list[DreamRecord], *, approvals: bool = True
) -> DreamRecord | None:
    """Return the newest dream that changed something and was not taken back. `approvals` False:
    notes that an owner added are passed over.
    """
    undone = 0
    for one in newest_first:
        if one.fact.before == one.fact.after:
            continue
        if one.fact.reason == UNDONE:
            undone += 1
        elif undone:
            undone -= 1
        elif approvals or one.fact.reason not in (APPROVED, EDITED):
            return one
    return None


def list_changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that went and came, in the order of the file: `- old`, `+ new`. Pure."""
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    changed = [line for line in list(diff)[2:] if not line.startswith("@@")]
    return [f"{line[0]} {line[1:].strip()}" for line in changed if line[1:].strip()]


def render_memory_change(
    dream: DreamRecord, text: str, most: int = MAX_SHOWN_CHANGES, *, shows_gone: bool = True
) -> list[str]:
    """Return what a dream changed in the file, a line each, at most `most`; the rest is counted.
    For an owner alone. Pure.

    `text`: the file now. What came and has been taken out since is not shown. `shows_gone` False:
    what went is only counted, as a note was forgotten, which nobody is shown.
    """
    kept = {line.strip() for line in text.splitlines()}
    lines = list_changed_lines(dream.fact.before, dream.fact.after)
    lines = [line for line in lines if line[0] == "-" or line[2:] in kept]
    changed = [line for line in lines if shows_gone or line[0] == "+"]
    plain = [line[:2] + line[2:].removeprefix("- ") for line in changed[:most]]
    shown = [shorten(line, 200) for line in plain]
    more = len(lines) - len(shown)
    return [*shown, _("(and {count} more lines)").format(count=more)] if more else shown


async def load_memory_change(
    reader: StoreReader, agent: str, *, text: str | None = None, most: int = MAX_SHOWN_CHANGES
) -> tuple[DreamRecord, list[str]] | None:
    """Return the last dream that changed the file, and what it changed (`render_memory_change`).
    For an owner alone. Raises StoreError.

    `text`: the file now. None: not known. None is returned if nothing of it may be shown.
    """
    dreams = await load_dreams(reader, agent)
    last = find_last_effective_dream(dreams, approvals=False)
    if last is None:
        return None
    since = next((one.fact.upto for one in dreams if one.fact.upto < last.fact.upto), Seq(0))
    forgotten = await reader.entries(after=since, kinds=["forgotten"], limit=1)
    if text is None:
        text = "" if forgotten else last.fact.after
    changes = render_memory_change(last, text, most, shows_gone=not forgotten)
    return (last, changes) if changes else None


def remove_note_lines(text: str, noted: str) -> str:
    """Return the file without the lines that hold exactly a note's words. Pure."""
    wanted = [words for line in noted.split("\n") if (words := fold_words(line))]
    lines = text.split("\n")
    normalized = [fold_words(line) for line in lines]
    count = len(wanted)
    first = next(
        (
            index
            for index in range(len(lines))
            if wanted and normalized[index : index + count] == wanted
        ),
        None,
    )
    return (
        text
        if first is None
        else remove_note_lines("\n".join(lines[:first] + lines[first + count :]), noted)
    )


class MemoryStore:
    """MEMORY.md of all agents. A link, or a file that is no text, is an OSError."""

    def __init__(self, gateway: GatewayHandle) -> None:
        self._store, self._clock = gateway.store, gateway.clock
        self._directory = gateway.live.agent_directory

    async def finish_write(self, agent: str) -> None:
        """Complete a write that a crash cut off: the version is durable, but the file may lack it.

        Raises OSError, StoreError.
        """
        if (newest := await find_newest_dream(self._store, agent)) is not None:
            await asyncio.to_thread(self._finish_write, agent, newest)

    async def read(self, agent: str) -> str:
        """Return the text of the file. Empty: there is no file. Raises OSError."""
        return await asyncio.to_thread(self._read, agent)

    async def rewrite(
        self,
        agent: str,
        *,
        before: str,
        after: str,
        upto: Seq,
        reason: str,
        notes: tuple[Seq, ...] = (),
    ) -> bool:
        """Replace the text `before` with `after`. False: the file no longer holds `before`, and
        nothing is done.

        The new text is durable in the log first. Raises StoreError, or OSError: then a later
        `finish_write` completes it.
        """
        if await self.read(agent) != before:
            return False
        now = self._clock.now()
        key = f"dream:{new_id(now)}"
        fact = MemoryConsolidated(
            agent=agent, before=before, after=after, upto=upto, reason=reason, notes=notes
        )
        await self._store.append(
            [NewEntry(fact=fact, at=now, conversation=inner_conversation(agent), key=key)]
        )
        await asyncio.to_thread(self._write, agent, after, key)
        return True

    async def approve(self, agent: str, note: Seq, text: str) -> str:
        """Add a note to the file, word for word. Return an empty text, else why not. Raises
        StoreError, OSError.

        Call it once an owner who was shown the whole note has approved it.
        """
        await self.finish_write(agent)
        if any(note in one.fact.notes for one in await load_dreams(self._store, agent)):
            return _("it is already there")
        before = await self.read(agent)
        after = f"{before.rstrip()}\n{format_as_list_item(text)}\n".lstrip()
        return await self._change(agent, before, after, APPROVED, (note,))

    async def edit(self, agent: str, old: str, new: str) -> str:
        """Put another text in place of an entry (`split_entries`); empty: the entry goes. Return an
        empty text, else why nothing was done. Raises StoreError, OSError.

        Call it for an owner alone.
        """
        await self.finish_write(agent)
        before = await self.read(agent)
        entries = split_entries(before)
        if entries.count(old) != 1:
            return _("the file has just changed, or has this entry twice")
        place = entries.index(old)
        entries[place : place + 1] = [new.strip("\n")] if new.strip() else []
        return await self._change(agent, before, "\n".join(entries).strip() + "\n", EDITED, ())

    async def _change(
        self, agent: str, before: str, after: str, reason: str, notes: tuple[Seq, ...]
    ) -> str:
        """Return an empty text, else why nothing was done."""
        if len(after) > MAX_CHARS and len(after) >= len(before):
            text = _("the file would be longer than {count} characters; shorten it first")
            return text.format(count=f"{MAX_CHARS:,}")
        newest = await find_newest_dream(self._store, agent)
        upto = newest.fact.upto if newest is not None else Seq(0)
        done = await self.rewrite(
            agent, before=before, after=after, upto=upto, reason=reason, notes=notes
        )
        return "" if done else _("the file has just changed; send the command again")

    def _path(self, agent: str) -> Path:
        return self._directory(agent) / MEMORY_FILE

    def _mark(self, agent: str) -> Path:
        return agent_state_directory(self._store.path, agent) / _MARK

    def _write(self, agent: str, text: str, key: str) -> None:
        replace_private(self._path(agent), text.encode())
        replace_private(self._mark(agent), key.encode())

    def _read(self, agent: str) -> str:
        path = self._path(agent)
        try:
            return (read_private(path, most=MAX_BYTES) or b"").decode()
        except UnicodeDecodeError:
            raise OSError(f"{path} is not UTF-8") from None

    def _finish_write(self, agent: str, newest: DreamRecord) -> None:
        if read_private(self._mark(agent), most=100) == newest.key.encode():
            return
        if self._read(agent) == newest.fact.before:
            self._write(agent, newest.fact.after, newest.key)
        else:
            replace_private(self._mark(agent), newest.key.encode())


def split_entries(text: str) -> list[str]:
    """Return the lines of the file, each with the indented lines that follow it. Pure."""
    entries = list[str]()
    for line in text.rstrip().split("\n"):
        if entries and line.strip() and line[:1].isspace():
            entries[-1] += f"\n{line}"
        else:
            entries.append(line)
    return entries


def format_as_list_item(text: str) -> str:
    """Return a note as one list item, the form of approved notes in MEMORY.md. Pure."""
    return "- " + "\n  ".join(line for line in text.split("\n") if line.strip())
