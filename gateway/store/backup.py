"""A copy of a store, made beside whoever writes it, and what is found when one is looked through. Blocks.

SQLite's backup API begins anew when somebody else commits while it copies (https://www.sqlite.org/backup.html), which
under load is for ever. So what is copied is what one read transaction sees; in WAL mode that keeps no writer waiting,
and only lets the WAL grow meanwhile (https://www.sqlite.org/wal.html#concurrency).
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.store.errors import StoreMissing, StoreUnreadable
from gateway.store.schema import check_schema, migrations, sqlite_uri, unreadable_error

STEP_PAGES: Final = 256
"""A megabyte: read in a few milliseconds."""
COPY_FLUSH_BYTES: Final = 8 << 20
"""So much is handed to the disk at once; a file system makes others' fsync wait for what stands in front of it."""
PAUSE_S: Final = 0.02
"""After each flush the disk is somebody else's for so long."""
MAX_ERRORS_SHOWN: Final = 5
"""So many of the things that are wrong with a damaged file are told."""

CopyProgress = Callable[[int, int], None]
"""Called now and then with the bytes that are done and their whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """What a store holds."""

    schema: int
    entries: int
    last: int
    """The log's last position. 0: it is empty."""


def copy_store(source: Path, target: Path, progress: CopyProgress = lambda _done, _whole: None) -> None:
    """Copy a store to a new file, for its owner alone, whole as it is at this moment. Nothing waits for it.

    Raises FileExistsError, Missing, TooNew, Unreadable and OSError; what was written until then stays.
    """
    if not source.exists():
        raise StoreMissing(f"there is no store at {source}: check the path, or start the gateway once")
    file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.closing(sqlite3.connect(sqlite_uri(source, "ro"), uri=True, isolation_level=None)) as reading:
            reading.execute("BEGIN")
            check_schema(reading, source)  # the first look is what the transaction sees from then on
            with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as writing:
                for pragma in ("journal_mode = OFF", "synchronous = OFF"):  # a copy that is not whole is thrown away
                    writing.execute(f"PRAGMA {pragma}").fetchall()
                (page_bytes,) = reading.execute("PRAGMA page_size").fetchone()
                reading.backup(writing, pages=STEP_PAGES, progress=_pace_copy(file, page_bytes, progress))
                writing.execute("PRAGMA journal_mode = DELETE").fetchall()  # else reading it would need files beside it
        os.fsync(file)
    except sqlite3.Error as error:
        raise _copy_error(source, target, error) from error
    finally:
        os.close(file)


def _pace_copy(file: int, page_bytes: int, progress: CopyProgress) -> Callable[[int, int, int], None]:
    flushed = 0

    def step(_status: int, left: int, whole: int) -> None:
        nonlocal flushed
        done = (whole - left) * page_bytes
        if done - flushed >= COPY_FLUSH_BYTES:
            flushed = done
            os.fdatasync(file)
            time.sleep(PAUSE_S)
        progress(done, whole * page_bytes)

    return step


def check_store(path: Path) -> StoreSummary:
    """Look through a whole store that nobody else uses. Raises TooNew, or Unreadable with what is wrong with it.

    Finds pages and indexes that are damaged or disagree, and a log that something else than an append has touched.
    """
    try:
        with contextlib.closing(sqlite3.connect(sqlite_uri(path, "rw"), uri=True, isolation_level=None)) as looking:
            schema = check_schema(looking, path)
            said = [str(row[0]) for row in looking.execute(f"PRAGMA integrity_check({MAX_ERRORS_SHOWN})")]
            if said != ["ok"]:
                raise StoreUnreadable(f"{path} is damaged: {'; '.join(said)}")
            entries, last = looking.execute("SELECT count(*), coalesce(max(seq), 0) FROM log").fetchone()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error
    return StoreSummary(schema=schema, entries=entries, last=last)


def seal_store(path: Path) -> None:
    """Have all of a store that nobody uses in its one file, and nothing beside it. Raises Unreadable."""
    try:
        with contextlib.closing(sqlite3.connect(sqlite_uri(path, "rw"), uri=True, isolation_level=None)) as last:
            (mode,) = last.execute("PRAGMA journal_mode = DELETE").fetchone()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error
    if mode != "delete":
        raise StoreUnreadable(f"{path} is in use by somebody else")
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def newest_schema() -> int:
    """What this version brings a store to."""
    return len(migrations())


def _copy_error(source: Path, target: Path, error: sqlite3.Error) -> Exception:
    """Which of the two files an error is about."""
    code = getattr(error, "sqlite_errorcode", 0) or 0
    if code & 0xFF == sqlite3.SQLITE_FULL or code in _WRITE_ERRORS:
        return OSError(f"the copy cannot be written to {target.parent} ({error}): make room there")
    return unreadable_error(source, error)


_WRITE_ERRORS: Final = frozenset(
    {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE}
)
