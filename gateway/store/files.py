"""Files of a store: copies made while it is written, checks, and the mark. Blocks.

A copy is made by `VACUUM INTO` (https://www.sqlite.org/lang_vacuum.html#vacuuminto): one read
transaction, which in WAL mode blocks no writer and only lets the WAL grow meanwhile
(https://www.sqlite.org/wal.html#concurrency).

The high-water mark beside a store tells how far its log had come, so that one that has lost its end
is known at start: the write-ahead log was cut (a snapshot of the file alone), or an older copy was
put there. Nothing inside the file shows that. After each commit the position is written over the
last one: some microseconds without a flush, which outlives the process.
"""

import contextlib
import errno
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.core.facts import Seq
from gateway.core.frozen import frozen
from gateway.core.private_files import open_directory
from gateway.store.schema import check_schema, sqlite_uri, unreadable_error
from gateway.store.types import StoreFileLost, StoreMissing, StoreUnreadable

if TYPE_CHECKING:
    from gateway.store.log import Log

logger = logging.getLogger("reverie.store")

STEP_INSTRUCTIONS: Final = 10_000
"""Instructions of SQLite's virtual machine between two looks at the copy: some milliseconds."""
COPY_FLUSH_BYTES: Final = 8 << 20
"""Bytes between two flushes; a file system makes the fsync of other files wait for the data written
before."""
PAUSE_S: Final = 0.02
"""Pause after each flush, for other users of the disk."""

CopyProgress = Callable[[int, int], None]
"""Called now and then with the copied bytes and their total."""


@frozen
class StoreSummary:
    """Content of a store in numbers."""

    schema: int
    entries: int
    last: int
    """The log's last position. 0: it is empty."""


def copy_store(
    source: Path, target: Path, progress: CopyProgress = lambda _done, _whole: None
) -> None:
    """Copy a store to a new file, for its owner alone, as it is at this moment. Nothing waits for
    it.

    Raises FileExistsError, StoreMissing, StoreTooNew, StoreUnreadable and OSError; a partial copy
    stays then.
    """
    if not source.exists():
        raise StoreMissing(
            f"there is no store at {source}: check the path, or start the gateway once"
        )
    file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    whole, flushed = source.stat().st_size, 0

    def step() -> int:
        nonlocal flushed
        done = os.fstat(file).st_size
        if done - flushed >= COPY_FLUSH_BYTES:
            flushed = done
            os.fdatasync(file)
            time.sleep(PAUSE_S)
        progress(min(done, whole), whole)
        return 0

    try:
        with contextlib.closing(
            sqlite3.connect(sqlite_uri(source, "ro"), uri=True, isolation_level=None)
        ) as reading:
            check_schema(reading, source)
            reading.set_progress_handler(step, STEP_INSTRUCTIONS)
            reading.execute("VACUUM INTO ?", (str(target),))
        os.fsync(file)
    except sqlite3.Error as error:
        raise _copy_error(source, error) from error
    finally:
        os.close(file)


class StoreWatch:
    """The files of a store as they are open. Its queries take two system calls."""

    def __init__(self, path: Path) -> None:
        """Call it when a connection is open that has begun to read: then the write-ahead log is
        there.
        """
        self.path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self.file_id, self._wal_id = _file_id(path), _file_id(self._wal)

    def check(self) -> None:
        """Raise StoreFileLost if what is written now would not be found at the path later."""
        if (found := _file_id(self.path)) != self.file_id:
            what = "was deleted or moved away" if found is None else "was replaced by another file"
            raise StoreFileLost(f"the store {self.path} {what} while the gateway runs")
        if _file_id(self._wal) != self._wal_id:
            raise StoreFileLost(
                f"{self._wal}, a part of the store, was deleted while the gateway runs"
            )


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def rescued_path(store: Path) -> Path:
    """Return the path of the copy of a store that was deleted while it was open."""
    return store.with_name(f"{store.name}.rescued")


def rescue_store(connection: sqlite3.Connection, watch: StoreWatch) -> str:
    """Save all that is in the open file at a path. Return what to do then. Raises OSError and
    sqlite3.Error.

    A deleted store is copied beside its place, and the next start takes the copy. If only the
    write-ahead log was deleted, the rest of it is written to the store's own file.
    """
    if _file_id(watch.path) == watch.file_id:
        if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise sqlite3.OperationalError("it is in use")
        return "nothing is lost: restart the gateway"
    rescued = rescued_path(watch.path)
    fresh = rescued.with_name(f"{rescued.name}.new")
    rescued.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    opened = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        connection.execute("VACUUM INTO ?", (str(fresh),))
        os.fsync(opened)
    finally:
        os.close(opened)
    fresh.replace(rescued)
    sync_directory(rescued.parent)
    return (
        "put it back, or end the gateway, leave nothing at its path, and start: all that it "
        f"held is in {rescued}"
    )


def adopt_rescued(path: Path) -> None:
    """Put the rescued copy in the place of a new, empty store. The caller holds the store's
    lock.
    """
    rescued = rescued_path(path)
    if path.stat().st_size == 0 and rescued.exists():
        for side in (
            "-wal",
            "-shm",
            "-journal",
        ):  # of the deleted store; what they held is in the copy
            path.with_name(f"{path.name}{side}").unlink(missing_ok=True)
        rescued.replace(path)
        sync_directory(path.parent)
        logger.warning("the store was deleted while the gateway ran, and is taken from %s", rescued)


def check_store(path: Path) -> StoreSummary:
    """Check a whole store that nobody else uses. Raises StoreTooNew, or StoreUnreadable with the
    errors found.

    Finds pages and indexes that are damaged or disagree, and a log that was changed other than by
    appends.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(sqlite_uri(path, "rw"), uri=True, isolation_level=None)
        ) as connection:
            schema = check_schema(connection, path)
            problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)")]
            if problems != ["ok"]:
                raise StoreUnreadable(f"{path} is damaged: {'; '.join(problems)}")
            entries, last = connection.execute(
                "SELECT count(*), coalesce(max(seq), 0) FROM log"
            ).fetchone()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error
    return StoreSummary(schema=schema, entries=entries, last=last)


def seal_store(path: Path) -> None:
    """Move all data of an unused store into its one file, with nothing beside it. Raises
    StoreUnreadable.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(sqlite_uri(path, "rw"), uri=True, isolation_level=None)
        ) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error
    if mode != "delete":
        raise StoreUnreadable(f"{path} is in use by somebody else")
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def _copy_error(source: Path, error: sqlite3.Error) -> Exception:
    """Return the error for the one of the two files that it is about."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return OSError(errno.ENOSPC, str(error))
    if code in _WRITE_ERRORS:
        return OSError(f"the copy cannot be written ({error}): look at the system's log")
    return unreadable_error(source, error)


_WRITE_ERRORS: Final = frozenset(
    {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE}
)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable; one that is gone is left out. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), open_directory(directory) as opened:
        os.fsync(opened)


@frozen
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


def find_lost_end(log: "Log", store: Path) -> LostEnd | None:
    """Compare a store with its mark. None: nothing is missing, or there is no mark."""
    try:
        found = json.loads(mark_path(store).read_bytes())
        marked, at = Seq(int(found["seq"])), datetime.fromisoformat(found["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    last = log.last_seq()
    row = next(iter(log.fetch("SELECT at FROM log WHERE seq = $1", (marked,))), None)
    if last >= marked and (
        row is None or datetime.fromisoformat(row[0]) == at
    ):  # None: it was pruned
        return None
    return LostEnd(last=last, marked=marked, at=at)


def write_mark(mark: Path, seq: Seq, at: str) -> None:
    """Record that the log has come to this position, in a text of one length, which covers the last
    one. A mark that cannot be written is left as it is.
    """
    with contextlib.suppress(OSError):
        opened = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(opened, f'{{"seq": {seq}, "at": "{at}"}}'.ljust(128).encode(), 0)
        finally:
            os.close(opened)
