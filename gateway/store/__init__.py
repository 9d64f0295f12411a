"""One append-only log in SQLite, and the tables that are folded from it.

`Store.append` writes facts, durable and deduplicated; `Reader` (which `Store` is) asks; `rebuild` makes
every other table anew from the log and says what was wrong. The way in: `plan` decides where entries
go, `projections` (and `spending`) what they change beside the log, `writer` carries it out; `queries` and `reader` are
the way out; `schema`, `migrations/` and `lock` are about the file.
"""

from gateway.store.entries import (
    Appended,
    Difference,
    Entry,
    LinkState,
    OutboxPart,
    OutboxPost,
    PartState,
    Pending,
    Reminder,
    SeenType,
    Spending,
    SpentBy,
    Stored,
    Unread,
)
from gateway.store.errors import (
    BadQuery,
    CannotOpen,
    Closed,
    InUse,
    Missing,
    NotWritten,
    StoreError,
    TooNew,
    Unreadable,
)
from gateway.store.log import Store
from gateway.store.reader import LogRow, Reader, search_terms
from gateway.store.rebuild import rebuild
from gateway.store.uses import Placed, Uses
from gateway.store.writer import Outage

__all__ = [
    "Appended",
    "BadQuery",
    "CannotOpen",
    "Closed",
    "Difference",
    "Entry",
    "InUse",
    "LinkState",
    "LogRow",
    "Missing",
    "NotWritten",
    "Outage",
    "OutboxPart",
    "OutboxPost",
    "PartState",
    "Pending",
    "Placed",
    "Reader",
    "Reminder",
    "SeenType",
    "Spending",
    "SpentBy",
    "Store",
    "StoreError",
    "Stored",
    "TooNew",
    "Unread",
    "Unreadable",
    "Uses",
    "rebuild",
    "search_terms",
]
