"""Store: one append-only log in SQLite or PostgreSQL, and the tables derived from it.

`Store.append` writes facts, durable and deduplicated; `StoreReader` (a `Store` is one) answers
queries; `rebuild` makes every derived table again from the log and reports the differences.

  types.py        entries, results and errors
  store.py        the store open for writing: group commit, retries during an outage; shared.py:
                  beside other processes
  appends.py      which entries an append writes, and where
  projections.py  changes that a fact makes in the derived tables, those of plugins too; costs,
                  notification types, current facts
  active.py       what every turn asks for, kept in memory
  reader.py       queries of the gateway; queries.py: their SQL
  overview.py     queries of the dashboard and the console, on a connection of their own
  schema.py       where the store is; the file: lock, migrations (`migrations/*.sql`), checks
  log.py          one connection: sqlite_log.py and postgres_log.py
  transfer.py     copies of whole stores from one engine to the other
  rebuild.py      upgrade of an older store, and repair of the derived tables
  spending.py     what turns cost, by day and for the budgets
  archive.py      files of the months that have left the log
  files.py        copies and checks of stores; the mark, which finds a store that has lost its end
  check.py        checks for `reverie doctor`
  format.py       log entries on one line, for people
  effects.py      facts that a command adds to the log

A migration has two files, for SQLite and in `migrations/postgresql`. A released one never changes.
"""

from gateway.store.files import LostEnd
from gateway.store.reader import (
    DueReason,
    EntryLocation,
    LogRow,
    StoreReader,
    ViewEntries,
    WordUses,
    search_terms,
)
from gateway.store.rebuild import rebuild
from gateway.store.schema import ServerStore, StoreLocation, local_path, store_location
from gateway.store.spending import SpendingKey, SpendingSum, total_cost_usd
from gateway.store.store import Store, StoreOutage, StoreTasks
from gateway.store.types import (
    REMOVED_TEXT,
    AppendFailed,
    AppendResult,
    BadSearchQuery,
    ConnectionState,
    LogEntry,
    NewEntry,
    OutboxPart,
    OutboxPost,
    PartState,
    StoreClosed,
    StoreError,
    StoreGrowth,
    StoreInUse,
    StoreMissing,
    StoreOpenError,
    StoreTooNew,
    StoreUnavailable,
    StoreUnreadable,
    TableDifference,
    UnreadEntries,
)

__all__ = [
    "REMOVED_TEXT",
    "AppendFailed",
    "AppendResult",
    "BadSearchQuery",
    "ConnectionState",
    "DueReason",
    "EntryLocation",
    "LogEntry",
    "LogRow",
    "LostEnd",
    "NewEntry",
    "OutboxPart",
    "OutboxPost",
    "PartState",
    "ServerStore",
    "SpendingKey",
    "SpendingSum",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreGrowth",
    "StoreInUse",
    "StoreLocation",
    "StoreMissing",
    "StoreOpenError",
    "StoreOutage",
    "StoreReader",
    "StoreTasks",
    "StoreTooNew",
    "StoreUnavailable",
    "StoreUnreadable",
    "TableDifference",
    "UnreadEntries",
    "ViewEntries",
    "WordUses",
    "local_path",
    "rebuild",
    "search_terms",
    "store_location",
    "total_cost_usd",
]
