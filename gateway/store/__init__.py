"""One append-only log in SQLite, and the tables that are folded from it.

`Store.append` writes facts, durable and deduplicated; `StoreReader` (which `Store` is) asks; `rebuild` makes
every other table anew from the log and says what was wrong. The way in: `plan` decides where entries
go, `projections` (and `spending`) what they change beside the log, `writer` carries it out; `queries` and `reader` are
the way out; `schema`, `migrations/` and `lock` are about the file.
"""

from gateway.store.reader import EntryLocation, LogRow, StoreReader, WordUses, search_terms
from gateway.store.rebuild import rebuild
from gateway.store.store import Store, StoreOutage
from gateway.store.types import (
    AppendFailed,
    AppendResult,
    BadSearchQuery,
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
    StoreClosed,
    StoreError,
    StoreInUse,
    StoreMissing,
    StoreOpenError,
    StoreTooNew,
    StoreUnreadable,
    TableDifference,
    UnreadEntries,
)

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
