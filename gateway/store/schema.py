"""Making, checking and migrating the file. Blocking; called in a thread."""

import os
import sqlite3
from functools import cache
from importlib import resources
from pathlib import Path

from gateway.store.errors import StoreMissing, StoreTooNew, StoreUnreadable

APPLICATION_ID = 0x52455652
"""`REVR`, in the header of each of our files (https://www.sqlite.org/pragma.html#pragma_application_id)."""

WRITER_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA cache_size = -8192",
    "PRAGMA journal_size_limit = 67108864",
)


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Every migration, in order: its number and its SQL."""
    folder = resources.files("gateway.store") / "migrations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple((int(file.name[:4]), file.read_text(encoding="utf-8")) for file in files)


def sqlite_uri(path: Path, mode: str) -> str:
    """A SQLite URI: mode `ro` or `rw`; neither makes a file."""
    return f"{path.absolute().as_uri()}?mode={mode}"


def create_store_file(path: Path) -> None:
    """Make sure that there is a file, empty if it is new, readable by its owner alone. Raises Unreadable."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnreadable(f"cannot use {path} as the store: {error.strerror}") from error


def migrate_schema(path: Path) -> None:
    """Bring the file to the newest schema, one transaction per step. Raises TooNew or Unreadable.

    Killed in between, it goes on where it stopped. The caller holds the lock.
    """
    steps = migrations()
    try:
        connection = sqlite3.connect(sqlite_uri(path, "rw"), uri=True, isolation_level=None)
        try:
            version = check_schema(connection, path, fresh=True)
            for pragma in WRITER_PRAGMAS:
                connection.execute(pragma).fetchall()
            for number, sql in steps[version:]:
                connection.executescript(
                    f"BEGIN IMMEDIATE; {sql}; PRAGMA application_id = {APPLICATION_ID}; "
                    f"PRAGMA user_version = {number}; COMMIT;"
                )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error


def check_schema(connection: sqlite3.Connection, path: Path, *, fresh: bool = False) -> int:
    """The schema's version. Raises TooNew or Unreadable, and sqlite3.Error if it is not SQLite at all.

    `fresh`: an empty file is fine (version 0).
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if fresh and (application, version, tables) == (0, 0, 0):
        return 0
    newest = len(migrations())
    if application != APPLICATION_ID or not version:
        raise StoreUnreadable(f"{path} is not a store of reverie's: set another store.path (nothing was changed)")
    if version > newest:
        raise StoreTooNew(f"{path} has schema {version} and this reverie knows up to {newest}: run a newer reverie")
    return int(version)


def check_current_schema(path: Path) -> None:
    """Check for reading, changing nothing. Raises Missing, TooNew or Unreadable."""
    if not path.exists():
        raise StoreMissing(f"there is no store at {path}: check the path, or start the gateway once")
    try:
        connection = sqlite3.connect(sqlite_uri(path, "ro"), uri=True)
        try:
            version, newest = check_schema(connection, path), len(migrations())
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error
    if version < newest:
        raise StoreUnreadable(f"{path} has the older schema {version}: start the gateway once to bring it to {newest}")


def unreadable_error(path: Path, error: Exception) -> StoreUnreadable:
    """What to tell of a file that SQLite does not want."""
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StoreUnreadable(f"cannot open {path} as the store ({error}): make room there, or set another store.path")
    return StoreUnreadable(f"cannot read {path} as a store ({error}): restore a backup, or set another store.path")
