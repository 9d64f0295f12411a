"""What can go wrong with the store, named by what whoever catches it does.

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
