"""One append-only log in SQLite, and the tables that are folded from it.

`Store.append` writes facts, durable and deduplicated; `StoreReader` (which `Store` is) asks; `rebuild` makes
every other table anew from the log and says what was wrong. The way in: `plan` decides where entries
go, `projections` (and `spending`) what they change beside the log, `writer` carries it out; `queries` and `reader` are
the way out; `schema`, `migrations/` and `lock` are about the file.
"""

from gateway.store.entries import (
    AppendResult,
    ConnectionState,
    LogEntry,
    NewEntry,
    NotificationTypeCount,
    OutboxPart,
    OutboxPost,
    PartState,
    PendingCounts,
    PendingReminder,
    SpendingKey,
    SpendingSum,
    TableDifference,
    UnreadEntries,
)
from gateway.store.errors import (
    AppendFailed,
    BadSearchQuery,
    StoreClosed,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreOpenError,
    StoreTooNew,
    StoreUnreadable,
)
from gateway.store.log import Store
from gateway.store.reader import LogRow, StoreReader, search_terms
from gateway.store.rebuild import rebuild
from gateway.store.uses import EntryLocation, WordUses
from gateway.store.writer import StoreOutage

__all__ = [
    "AppendFailed",
    "AppendResult",
    "BadSearchQuery",
    "ConnectionState",
    "EntryLocation",
    "LogEntry",
    "LogRow",
    "NewEntry",
    "NotificationTypeCount",
    "OutboxPart",
    "OutboxPost",
    "PartState",
    "PendingCounts",
    "PendingReminder",
    "SpendingKey",
    "SpendingSum",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreInUse",
    "StoreMissing",
    "StoreOpenError",
    "StoreOutage",
    "StoreReader",
    "StoreTooNew",
    "StoreUnreadable",
    "TableDifference",
    "UnreadEntries",
    "WordUses",
    "rebuild",
    "search_terms",
]
