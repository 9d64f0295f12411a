"""What goes into the store and what comes out of it.

What can go wrong with the store, named by what whoever catches it does.

StoreError
├── Closed        stop: this store was closed, nothing was written
├── NotWritten    tell: nothing of this append is in the log; the store still works
├── BadQuery      tell: search terms that cannot be searched for
└── CannotOpen    stop and tell the operator; nothing on disk was changed
    ├── Missing       there is no such file
    ├── InUse         another process holds it
    ├── TooNew        a newer reverie wrote it
    └── Unreadable    not ours, damaged, or not permitted
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Self

from gateway.core.events import ChannelName, ConversationId, Post, SenderId, Usage
from gateway.core.facts import FACT, Fact, Seq
from gateway.store.projections import NANO_PER_USD, usage_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewEntry:
    """One fact to be appended. Two entries are equal only if they are the same object."""

    fact: Fact
    at: datetime
    """When we learnt of it, aware."""
    conversation: ConversationId | None = None
    """None: it concerns no place."""
    key: str | None = None
    """Two entries with one key are one: the second is not written. None: always written."""
    cause: "Seq | NewEntry | None" = None
    """What led to it: a position in the log, or an earlier entry of the same append. If that earlier
    entry turns out to be in the log already, this one is not written either."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What became of one entry."""

    seq: Seq
    """Where it stands; for a duplicate where the first one stands; for an entry that was dropped with its
    cause, where that cause's first one stands."""
    is_new: bool
    """It was written now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """An entry read back."""

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
        """Make it of the log's columns in their order. Raises ValueError if the body is not a fact."""
        seq, at, kind, conversation, key, cause, body = row
        return cls(
            seq=Seq(int(str(seq))),
            at=datetime.fromisoformat(str(at)),
            kind=str(kind),
            conversation=None if conversation is None else ConversationId(str(conversation)),
            key=None if key is None else str(key),
            cause=None if cause is None else Seq(int(str(cause))),
            fact=FACT.validate_json(str(body)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadEntries:
    """What a conversation's next turn is to be told."""

    messages: tuple[LogEntry, ...]
    """Oldest first."""
    omitted: int
    """Unread ones up to `upto` that are not among `messages`: only overheard ones."""
    upto: Seq
    """The newest that this is about, shown or not; 0 if there is none. What lies behind it is for another turn."""
    has_changes: bool = False
    """Something there was edited or deleted since the oldest unread one: see `Reader.changes`."""


PartState = Literal["pending", "sending", "sent", "uncertain", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPart:
    """One part of a post that is under way."""

    index: int
    """Counted from 0."""
    body: str
    """As it was rendered for the first attempt."""
    state: PartState
    """`sending`: handed over, and no end was recorded (after a crash: it may have been seen)."""
    reason: str
    """Of the last attempt's end; empty if it went well or there was none."""
    attempts: int
    first_at: datetime | None = None
    """When it was handed over for the first time of those that may have shown it, UTC. None: surely not seen."""

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of the table's columns in their order."""
        index, body, state, reason, attempts, first = row
        first_at = None if first is None else datetime.fromisoformat(first)
        return cls(index=index, body=body, state=state, reason=reason, attempts=attempts, first_at=first_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxPost:
    """A post whose delivery has not ended."""

    seq: Seq
    at: datetime
    """When it was queued, UTC."""
    post: Post
    parts: tuple[OutboxPart, ...]
    """Empty before the first attempt."""


class ConnectionState(NamedTuple):
    """The last that was heard of one account's connection."""

    channel: ChannelName
    up: bool
    reason: str
    at: datetime


SpendingKey = Literal["all", "conversation", "room", "sender", "day", "agent", "share", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingSum:
    """What model requests cost, summed up."""

    key: str
    """Whose sum it is: a conversation, a room, `channel:sender`, a day (YYYY-MM-DD, UTC), ...; empty for `all`."""
    requests: int
    """Of a sender without meaning: a turn's requests cannot be shared."""
    unpriced: int
    """Of these, how many had no known price and are missing from the cost."""
    usage: Usage
    cost_usd: float

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of its key and sums in the order of the table's columns."""
        key, requests, unpriced, *usage, nano_usd = row
        return cls(
            key=key, requests=requests, unpriced=unpriced, usage=usage_of(*usage), cost_usd=nano_usd / NANO_PER_USD
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationTypeCount:
    """A type of notifications, or several together, whose name ends in `*`."""

    type: str
    count: int
    first_at: datetime
    """UTC, as is the next."""
    last_at: datetime

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of the table's columns in their order, without the family."""
        dotted, count, first, last = row
        return cls(
            type=dotted, count=count, first_at=datetime.fromisoformat(first), last_at=datetime.fromisoformat(last)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCounts:
    """What is unread in one conversation."""

    conversation: ConversationId
    urgent: int
    normal: int
    low: int
    ambient: int
    """How many there are of each urgency."""
    oldest: Seq
    """The first of them."""
    since: datetime
    """When that came, UTC."""

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of what `queries.PENDING` gives."""
        conversation, urgent, normal, low, ambient, oldest, since = row
        return cls(
            conversation=ConversationId(conversation),
            urgent=urgent,
            normal=normal,
            low=low,
            ambient=ambient,
            oldest=Seq(oldest),
            since=datetime.fromisoformat(since),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReminder:
    """One that is still to come."""

    id: str
    agent: str
    conversation: ConversationId | None
    """Where it is told; None: to the agent itself."""
    due: datetime
    """When it comes next, UTC."""
    schedule: str
    text: str
    sender: SenderId
    """Who asked for it; empty: the agent itself."""
    asked_by: str

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of the table's columns in their order."""
        name, agent, place, due, schedule, text, sender, asked_by = row
        return cls(
            id=name,
            agent=agent,
            conversation=ConversationId(place) if place else None,
            due=datetime.fromisoformat(due),
            schedule=schedule,
            text=text,
            sender=SenderId(sender),
            asked_by=asked_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifference:
    """A projection that was not what the log says, and has been mended."""

    table: str
    missing: int
    """Rows that the log gives and the table lacked. A changed row is one missing and one extra."""
    extra: int
    """Rows that the log does not give. Both 0: the search index was damaged inside its rows."""


class StoreError(Exception):
    """Anything the store can fail with. The message is one sentence for a person, without secrets."""


class StoreClosed(StoreError):
    """The store was closed before this could be done; nothing was written."""


class AppendFailed(StoreError):
    """Nothing of this append is in the log. The cause says why; later appends may well succeed."""


class BadSearchQuery(StoreError):
    """The search terms are not a query of SQLite's FTS5."""


class StoreOpenError(StoreError):
    """There is no store to work with. Nothing on disk was changed or deleted."""


class StoreMissing(StoreOpenError):
    """There is no such file."""


class StoreInUse(StoreOpenError):
    """Another process has it open for writing."""

    pid: int | None
    """That process; None if it did not say."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class StoreTooNew(StoreOpenError):
    """A newer reverie wrote it."""


class StoreUnreadable(StoreOpenError):
    """Not a store of ours, damaged, or not permitted."""


_TRANSIENT_ERRORS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room where the store is",
    sqlite3.SQLITE_BUSY: "another program holds a lock on the store: end it",
    sqlite3.SQLITE_LOCKED: "another program holds a lock on the store: end it",
    sqlite3.SQLITE_PROTOCOL: "another program holds a lock on the store: end it",
    sqlite3.SQLITE_IOERR: "the disk reports an error: look at the system's log",
    sqlite3.SQLITE_READONLY: "the store cannot be written: see that its file and folder are writable",
    sqlite3.SQLITE_CANTOPEN: "the store cannot be opened: see that its file and folder are there and accessible",
    sqlite3.SQLITE_PERM: "the store cannot be opened: see that its file and folder are there and accessible",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
}
"""By SQLite's primary result code (https://www.sqlite.org/rescode.html)."""


def transient_reason(error: Exception) -> str:
    """Why a write failed, and what to do, if trying it again may help. Empty: it will not, e.g. the file is damaged."""
    code = getattr(error, "sqlite_errorcode", None)
    return "" if code is None else _TRANSIENT_ERRORS.get(code & 0xFF, "")
