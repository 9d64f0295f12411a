"""Entries and results of the store, and its errors, named by what the catcher does.

StoreError
├── StoreClosed           stop: this store was closed, nothing was written
├── AppendFailed          tell: nothing of this append is in the log, or its text says that this is
│                         not known; the store still works
├── BadSearchQuery        tell: search terms that cannot be searched for
├── LogError              a statement failed: only inside of the store, which raises another one
│                         of these for it
└── StoreOpenError        stop and tell the operator; nothing on disk was changed
    ├── StoreMissing      there is no such file
    ├── StoreInUse        another process holds it
    ├── StoreTooNew       a newer reverie wrote it
    └── StoreUnreadable   not ours, damaged, or not permitted
        └── StoreUnavailable  wait: the disk is full, or another program has locked it
"""

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from functools import cache
from typing import Any, Literal, NamedTuple, Self

from gateway.core.events import ChannelName, ConversationId, Post
from gateway.core.facts import Fact, Seq, fact_kinds, load_fact
from gateway.core.frozen import frozen

logger = logging.getLogger("reverie.store")


@frozen(eq=False)
class NewEntry:
    """One fact to be appended. Two entries are equal only if they are the same object."""

    fact: Fact
    at: datetime
    """Time at which the gateway learnt of it, aware."""
    conversation: ConversationId | None = None
    """None: it belongs to no conversation."""
    key: str | None = None
    """Deduplication key: a second entry with the same key is not written. None: always written."""
    cause: "Seq | NewEntry | None" = None
    """Cause of this entry: a position in the log, or an earlier entry of the same append. If that
    earlier entry is in the log already, this one is not written either."""


class AppendResult(NamedTuple):
    """Result of appending one entry."""

    seq: Seq
    """Position of the entry; of a duplicate, the position of the first one; of an entry dropped
    with its cause, the position of the cause's first one."""
    is_new: bool
    """True if it was written now."""


class LogEntry(NamedTuple):
    """An entry read from the log."""

    seq: Seq
    at: datetime
    """UTC."""
    kind: str
    conversation: ConversationId | None
    key: str | None
    cause: Seq | None
    fact: Fact

    @classmethod
    def from_row(cls, row: Sequence[object]) -> "LogEntry":
        """Make an entry of the log's columns in their order. Raises ValueError if the body is not a
        fact.
        """
        seq, at, kind, conversation, key, cause, body = row
        return cls(
            seq=Seq(int(str(seq))),
            at=datetime.fromisoformat(str(at)),
            kind=str(kind),
            conversation=None if conversation is None else ConversationId(str(conversation)),
            key=None if key is None else str(key),
            cause=None if cause is None else Seq(int(str(cause))),
            fact=load_fact(str(kind), str(body)),
        )


def read_entries(rows: Iterable[Sequence[object]]) -> list[LogEntry]:
    """Make entries of rows of the log. Those of kinds that only a newer version knows are left out.

    Raises ValueError if a body is not a fact.
    """
    found, known = list[LogEntry](), fact_kinds()
    for row in rows:
        if row[2] in known:
            found.append(LogEntry.from_row(row))
        else:
            _tell_unknown(str(row[2]))
    return found


@cache
def _tell_unknown(kind: str) -> None:
    by = "a plugin that is not used" if "." in kind else "a newer version"
    logger.warning("entries of the log are left out: the kind %s is known to %s only", kind, by)


@frozen
class UnreadEntries:
    """Unread entries for the next turn of a conversation."""

    messages: tuple[LogEntry, ...]
    """Oldest first."""
    omitted: int
    """Number of unread entries up to `upto` that are not among `messages`: only overheard ones."""
    upto: Seq
    """The newest entry that is covered, shown or not; 0 if there is none. Later entries are for
    another turn."""
    has_changes: bool = False
    """True if a message there was edited or deleted since the oldest unread one: see
    `StoreReader.message_changes`."""


PartState = Literal["pending", "sending", "sent", "uncertain", "failed"]


@frozen
class OutboxPart:
    """One part of a post that is being delivered."""

    index: int
    """Index from 0."""
    body: str
    """Text as rendered for the first attempt."""
    state: PartState
    """`sending`: handed over, and no end was recorded (after a crash: it may have been shown)."""
    reason: str
    """Reason of the last failed attempt; empty if it succeeded or there was none."""
    attempts: int
    first_at: datetime | None = None
    """Start of the first attempt that may have shown it, UTC. None: it surely was not shown."""

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make a part of the table's columns in their order."""
        index, body, state, reason, attempts, first = row
        first_at = None if first is None else datetime.fromisoformat(first)
        return cls(
            index=index, body=body, state=state, reason=reason, attempts=attempts, first_at=first_at
        )


@frozen
class OutboxPost:
    """A post whose delivery has not ended."""

    seq: Seq
    at: datetime
    """Time at which it was queued, UTC."""
    post: Post
    parts: tuple[OutboxPart, ...]
    """Empty before the first attempt."""


class ConnectionState(NamedTuple):
    """Last reported state of one account's connection."""

    channel: ChannelName
    up: bool
    reason: str
    at: datetime


MAX_GROWTH_DAYS = 3_650.0
"""A disk that lasts longer is not told as a day."""


@frozen
class StoreGrowth:
    """Size of the store's file, and its growth."""

    size_bytes: int
    unused_bytes: int
    """Of these, free for new entries."""
    bytes_per_day: float | None
    """None: the store is younger than a day."""

    def full_on(self, now: datetime, free_bytes: int) -> date | None:
        """Return the day on which it reaches the end of a disk with so many free bytes.

        None: not in ten years, or not known.
        """
        if (
            not self.bytes_per_day
            or (days := (free_bytes + self.unused_bytes) / self.bytes_per_day) > MAX_GROWTH_DAYS
        ):
            return None
        return (now + timedelta(days=days)).date()

    def describe(self, now: datetime, free_bytes: int) -> str:
        """Describe it in one sentence for people."""
        if self.bytes_per_day is None:
            return f"{self.size_bytes / 1e6:,.1f} MB; how fast it grows is known after a day"
        full = self.full_on(now, free_bytes)
        end = (
            f"at this pace its disk is full on {full}"
            if full is not None
            else "its disk lasts for years"
        )
        return (
            f"{self.size_bytes / 1e6:,.1f} MB, {self.bytes_per_day / 1e6:,.2f} MB more each "
            f"day; {end}"
        )


@frozen
class TableDifference:
    """A derived table that differed from the log, and has been repaired."""

    table: str
    missing: int
    """Rows that follow from the log and were not in the table. A changed row is one missing and one
    extra."""
    extra: int
    """Rows that do not follow from the log. Both 0: the search index was damaged inside its
    rows."""


class StoreError(Exception):
    """Any failure of the store. The message is one sentence for a person, without secrets."""


class StoreClosed(StoreError):
    """The store was closed before this could be done; nothing was written."""


class AppendFailed(StoreError):
    """Nothing of this append is in the log, or (`CommitUncertain`) it is not known. The cause says
    why; later appends may well succeed.
    """


class BadSearchQuery(StoreError):
    """The search terms are not a query of SQLite's FTS5."""


class StoreOpenError(StoreError):
    """There is no store to work with. Nothing on disk was changed or deleted."""


class StoreMissing(StoreOpenError):
    """There is no such file."""


class StoreInUse(StoreOpenError):
    """Another process has it open for writing."""

    pid: int | None
    """Id of that process; None if it is not known."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class StoreTooNew(StoreOpenError):
    """A newer reverie wrote it."""


class StoreUnreadable(StoreOpenError):
    """Not a store of ours, damaged, or not permitted."""


class StoreUnavailable(StoreUnreadable):
    """The disk is full or fails, or another program holds SQLite's lock on it: it can be opened
    later.
    """


class LogError(StoreError):
    """A statement failed, or there is no connection."""

    reason: str
    """Why, with a remedy, if a later try may succeed. Empty: it will not, e.g. the file is
    damaged."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class LogLocked(LogError):
    """Another program holds a lock on the file."""


class StatementRefused(LogError):
    """The database does not understand a statement, or a query for words in it."""


class StoreFileLost(LogError):
    """The file that is open is not the one at its path any more. The message says what happened to
    it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, message)


class ServerUnavailable(LogError):
    """The database server cannot be used now. The message says why, with a remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message, message)


class ServerInUse(ServerUnavailable):
    """Another process writes to the database."""


class ServerRefused(ServerUnavailable):
    """The server answers and does not let the gateway in: a wrong password, no such database."""


REMOVED_TEXT = (
    "the other processes of this gateway took this one for dead, because the database did not hear "
    "of it: it ends, and can be started again"
)


class ProcessRemoved(LogError):
    """Other processes of the gateway took this one for dead: it may write nothing any more."""

    def __init__(self) -> None:
        super().__init__(REMOVED_TEXT)


class CommitUncertain(LogError):
    """A commit failed, and it cannot be seen now whether it was done."""

    def __init__(self, error: LogError) -> None:
        super().__init__(str(error), error.reason)


_TRANSIENT_ERRORS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room where the store is",
    sqlite3.SQLITE_BUSY: "another program holds a lock on the store: end it",
    sqlite3.SQLITE_LOCKED: "another program holds a lock on the store: end it",
    sqlite3.SQLITE_PROTOCOL: "another program holds a lock on the store: end it",
    sqlite3.SQLITE_IOERR: "the disk reports an error: look at the system's log",
    sqlite3.SQLITE_READONLY: (
        "the store cannot be written: see that its file and folder are writable"
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "the store cannot be opened: see that its file and folder are there and accessible"
    ),
    sqlite3.SQLITE_PERM: (
        "the store cannot be opened: see that its file and folder are there and accessible"
    ),
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
}
"""By SQLite's primary result code (https://www.sqlite.org/rescode.html)."""


def transient_reason(error: sqlite3.Error) -> str:
    """Return why a write failed, with a remedy, if a retry may help. Empty: it will not, e.g. the
    file is damaged.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return "" if code is None else _TRANSIENT_ERRORS.get(code & 0xFF, "")
