"""High-water mark beside a store: how far its log had come, so that one that has lost its end is known at start.

The end is lost where the write-ahead log is cut (a snapshot of the file alone, a disk that lies about its flushes) or
an older copy is put in place. Nothing inside the file shows that. So after each commit the position is written over the
last one in a small file: some microseconds without a flush, which outlives the process. `sync` flushes it now and then.

What was said in the lost end may have been said: `build_unanswered_entries` takes unread messages as perhaps answered.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gateway.core.clock import new_id
from gateway.core.events import Address, ConversationId, Post, PostKey, Usage
from gateway.core.facts import (
    AMBIENT,
    LOW,
    ConversationRewound,
    Seq,
    TurnId,
    TurnRecord,
    UnreadDismissed,
    inner_conversation,
    is_inner,
)
from gateway.core.i18n import N_, _
from gateway.store.reader import StoreReader, last_seq
from gateway.store.types import NewEntry

_RECORD_BYTES = 256
"""Size of the file: one block of the disk, written as a whole."""
_MAX_TURNS = 50
"""Turns that are searched for an interrupted one, as `gateway.runtime.agents` does at start."""
LOST_END_TEXT = N_("(I lost the end of my log. If I have not answered your last message, please send it again.)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostEnd:
    """Entries that the log had, and has no more."""

    last: Seq
    """Last position that it has. 0: none."""
    marked: Seq
    """Position that it had come to."""
    at: datetime
    """Time of the entry at that position, UTC."""


def mark_path(store: Path) -> Path:
    """Return the path of the mark. Hidden, so that it outlives `rm reverie.db*`."""
    return store.with_name(f".{store.name}.mark")


def find_lost_end(connection: sqlite3.Connection, store: Path) -> LostEnd | None:
    """Compare a store with its mark. None: nothing is missing, or there is no mark."""
    try:
        found = json.loads(mark_path(store).read_bytes())
        marked, at = Seq(int(found["seq"])), datetime.fromisoformat(found["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    last = last_seq(connection)
    row = connection.execute("SELECT at FROM log WHERE seq = ?", (marked,)).fetchone()
    if last >= marked and (row is None or datetime.fromisoformat(row[0]) == at):  # None: it was pruned
        return None
    return LostEnd(last=last, marked=marked, at=at)


def read_settled_end(store: Path) -> LostEnd | None:
    """Return the newest lost end that was dealt with, as the mark remembers it. None: there was none."""
    try:
        last, marked, at = json.loads(mark_path(store).read_bytes())["lost"]
        return LostEnd(last=Seq(int(last)), marked=Seq(int(marked)), at=datetime.fromisoformat(at))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class HighWaterMark:
    """The mark of a store that is open for writing. A mark that cannot be written is left as it is."""

    def __init__(self, store: Path, lost: LostEnd | None) -> None:
        """`lost`: the newest end that the log has lost; the mark remembers it."""
        self._lost = {"lost": [lost.last, lost.marked, lost.at.isoformat()]} if lost else {}
        self._fd, self._is_synced = -1, True
        with contextlib.suppress(OSError):
            self._fd = os.open(mark_path(store), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, seq: Seq, at: str) -> None:
        """Record that the log has come to this position."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, json.dumps({"seq": seq, "at": at, **self._lost}).ljust(_RECORD_BYTES).encode(), 0)
            self._is_synced = False

    def sync(self) -> None:
        """Flush it to the disk. Blocks."""
        if not self._is_synced:
            self._is_synced = True
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)

    def close(self) -> None:
        """Flush and close it. Idempotent."""
        self.sync()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


async def build_unanswered_entries(
    store: StoreReader, now: datetime, why: str, agent: str
) -> tuple[list[NewEntry], Collection[ConversationId]]:
    """Return the entries that take unread messages as perhaps answered, and the conversations that have some.

    They become context for the next turn there. `why`: the reason, for people.
    """
    due = [place for place, _ in await store.due_conversations(LOW)]
    interrupted, last = await _find_interrupted(store), await store.last_position()
    entries = [_closing_turn_entry(now, place, why) for place in interrupted]
    if due:
        looked = tuple((place, last) for place in due)
        entries.append(_closing_turn_entry(now, inner_conversation(agent), why, agent=agent, looked=looked))
    return entries, {*due, *interrupted}


async def build_dismissal_entries(store: StoreReader, now: datetime) -> list[NewEntry]:
    """Return the entries after which no turn is shown what was answered, perhaps, in an end that the log has lost.

    That is all that is unread, also edits of messages that were answered, and the lines of interrupted turns. A model
    that is shown them answers them again.
    """
    unread = {place for place, _ in await store.due_conversations(AMBIENT)}
    read = UnreadDismissed(turn=TurnId(""), upto=await store.last_position())
    entries = [NewEntry(fact=read, at=now, conversation=place) for place in sorted(unread)]
    for place, (first, last) in (await _find_interrupted(store)).items():
        gone = ConversationRewound(first=first, last=last, by="the gateway, because the log has lost its end")
        entries.append(NewEntry(fact=gone, at=now, conversation=place))
    return entries


async def _find_interrupted(store: StoreReader) -> dict[ConversationId, tuple[Seq, Seq]]:
    """Return the first and last of the newest turns of conversations, where they were interrupted.

    The next start would answer them again.
    """
    found = dict[ConversationId, tuple[Seq, Seq]]()
    for one in await store.newest_entries(_MAX_TURNS, kinds=["turn_ended"]):
        place, fact = one.conversation, one.fact
        if place is None or is_inner(place) or not isinstance(fact, TurnRecord) or fact.cause == "compact":
            continue
        if fact.outcome == "interrupted":
            found[place] = found.get(place, (one.seq, one.seq))[0], one.seq
        else:
            found.pop(place, None)
    return found


def _closing_turn_entry(
    now: datetime,
    place: ConversationId,
    reason: str,
    *,
    agent: str = "",
    looked: tuple[tuple[ConversationId, Seq], ...] = (),
) -> NewEntry:
    """Build a turn without output that marks due messages as looked at. It consumes no unread messages."""
    turn = TurnId(new_id(now))
    fact = TurnRecord(
        turn=turn,
        covers=(),
        omitted=0,
        heard="",
        upto=Seq(0),
        outcome="yielded",
        text="",
        reason=reason,
        model="",
        usage=Usage(),
        requests=0,
        autonomous=False,
        agent=agent,
        looked=looked,
    )
    return NewEntry(fact=fact, at=now, conversation=place, key=f"turn:{turn}")


def build_lost_end_notice(end: LostEnd, at: Address) -> Post:
    """Return the notice for whoever may wait for an answer there; always the same."""
    digest = hashlib.sha256(f"lost end:{end.marked}:{end.at.isoformat()}:{at.conversation}".encode()).hexdigest()
    return Post(key=PostKey(digest[:26]), to=at, text=_(LOST_END_TEXT), style="notice")
