"""What can go wrong with the store, named by what whoever catches it does.

StoreError
├── Closed        stop: this store was closed, nothing was written
├── NotWritten    tell, or try again: nothing of this append is in the log; the store still works
├── BadQuery      tell: search terms that cannot be searched for
└── CannotOpen    stop and tell the operator; nothing on disk was changed
    ├── Missing       there is no such file
    ├── InUse         another process holds it
    ├── TooNew        a newer reverie wrote it
    └── Unreadable    not ours, damaged, or not permitted
"""


class StoreError(Exception):
    """Anything the store can fail with. The message is one sentence for a person, without secrets."""


class Closed(StoreError):
    """The store was closed before this could be done; nothing was written."""


class NotWritten(StoreError):
    """Nothing of this append is in the log. The cause says why; later appends may well succeed."""


class BadQuery(StoreError):
    """The search terms are not a query of SQLite's FTS5."""


class CannotOpen(StoreError):
    """There is no store to work with. Nothing on disk was changed or deleted."""


class Missing(CannotOpen):
    """There is no such file."""


class InUse(CannotOpen):
    """Another process has it open for writing."""

    pid: int | None
    """That process; None if it did not say."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class TooNew(CannotOpen):
    """A newer reverie wrote it."""


class Unreadable(CannotOpen):
    """Not a store of ours, damaged, or not permitted."""
