"""The store's file: lock, creation, migrations and checks. Blocking; called in a thread.

One writer per store: an advisory lock on a file beside it and on its own file, held until closed or
until the process dies.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import field
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gateway.core.frozen import frozen
from gateway.core.installing import install_command
from gateway.store.types import (
    LogError,
    ServerInUse,
    ServerRefused,
    ServerUnavailable,
    StoreInUse,
    StoreMissing,
    StoreOpenError,
    StoreTooNew,
    StoreUnavailable,
    StoreUnreadable,
    transient_reason,
)

if TYPE_CHECKING:
    from gateway.config.models import StoreConfig
    from gateway.store.log import Role
    from gateway.store.postgres_log import PostgresLog

logger = logging.getLogger("reverie.store")

APPLICATION_ID = 0x52565245
"""`RVRE`, in the header of each of our files
(https://www.sqlite.org/pragma.html#pragma_application_id)."""
UNRELEASED_ID: Final = 0x52455652
"""That of stores of versions before the first release."""

WRITER_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA busy_timeout = 5000",
    "PRAGMA cache_size = -8192",
    "PRAGMA journal_size_limit = 67108864",
)

_SERVER_FOLDER = "migrations/postgresql"


@frozen(kw_only=False)
class ServerStore:
    """A store in a PostgreSQL database."""

    url: str = field(repr=False)
    """`postgresql://...`
    (https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS). Secret."""
    path: Path
    """Where a file would be: locks, archives and the files of agents are beside it."""

    def __str__(self) -> str:
        """Return its address, without a password."""
        found = urlsplit(self.url)
        return f"{found.scheme}://{found.netloc.rpartition('@')[2]}{found.path}"


StoreLocation = Path | ServerStore


def store_location(config: "StoreConfig") -> StoreLocation:
    """Return where the configured store is."""
    return (
        ServerStore(config.url.get_secret_value(), config.path)
        if config.url is not None
        else config.path
    )


def local_path(store: StoreLocation) -> Path:
    """Return the path that the local files of a store are beside."""
    return store.path if isinstance(store, ServerStore) else store


def connect_server(store: ServerStore, role: "Role") -> "PostgresLog":
    """Connect to a database. Blocking. Raises StoreUnreadable without the driver, and LogError."""
    try:
        from gateway.store.postgres_log import PostgresLog  # noqa: PLC0415 - an extra, and SQLite needs none of it
    except ImportError as error:
        raise StoreUnreadable(
            f"a store in PostgreSQL needs psycopg ({error}): {install_command('postgres')}"
        ) from error
    return PostgresLog(store.url, role)


MAX_CREATE_TRIES: Final = 30
"""How often a process tries to make the tables beside others that start, each time for as long as a
lock is waited for.
"""


def migrate_server(
    connection: "PostgresLog", store: ServerStore, *, is_shared: bool = False
) -> None:
    """Make or migrate the tables. The connection holds the lock, or shares it. Raises StoreTooNew
    and LogError.
    """
    steps = migrations(_SERVER_FOLDER)
    for tries_left in reversed(range(MAX_CREATE_TRIES)):
        version = _server_version(
            connection, store
        )  # another process may have migrated it meanwhile
        if version > newest_schema(store):
            raise _too_new(store, version)
        if version == newest_schema(store):
            return
        try:
            with connection.alone() if is_shared else contextlib.nullcontext():
                version = connection.schema_version()
                _tell_of_wait(store, version)
                connection.migrate([step for step in steps if step[0] > version])
        except ServerInUse as error:
            if (
                version == 0 and tries_left
            ):  # nobody uses tables that are not there: others start, too
                continue
            raise ServerInUse(
                f"the tables have to be migrated (schema {version} to {newest_schema(store)}), and "
                "other processes use it: stop them first"
            ) from error
        return


def _server_version(connection: "PostgresLog", store: ServerStore) -> int:
    """Return the version of the schema. Raises StoreUnreadable for one of before the first release,
    and LogError.
    """
    ((unreleased,),) = connection.fetch(
        "SELECT to_regclass('call') IS NOT NULL"
    )  # a table of theirs alone
    if unreleased:
        raise unreleased_error(store)
    return connection.schema_version()


class StoreLock:
    """An exclusive lock on `<store>.lock`, which names the holder, and on the store's own file
    where there is one.

    A link leads to the same file by another name, and the lock file may be deleted by hand. Neither
    is ever removed here. Blocks only for a few system calls. Raises StoreInUse if another process
    holds one of them, StoreUnreadable if the lock file cannot be made or written, StoreUnavailable
    if the disk is full. The kernel releases both when the process ends, however it ends.
    """

    _fd = _store_fd = -1

    def __init__(self, store: Path, now: datetime, *, is_shared: bool = False) -> None:
        """`is_shared`: others of this kind may hold it at the same time."""
        path = store.with_name(store.name + ".lock")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _file_error(f"cannot make the lock file {path}", error) from error
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 4096)
            self.release()
            raise _in_use(store, holder) from error
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(
                self._fd, json.dumps({"pid": os.getpid(), "started": now.isoformat()}).encode(), 0
            )
        except OSError as error:
            self.release()
            raise _file_error(f"cannot write the lock file {path}", error) from error
        if not is_shared:
            self.lock_file(store)

    def lock_file(self, store: Path) -> None:
        """Lock the store's own file: again after it was replaced, while no connection of this
        process has it open.

        SQLite's locks are of another kind (fcntl), which closing a descriptor of the file would
        release.
        """
        try:
            locked = os.open(store, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return  # there is none yet, or whoever opens the store says what is wrong with it
        if self._store_fd >= 0 and os.path.sameopenfile(self._store_fd, locked):
            os.close(locked)
            return
        locked, self._store_fd = self._store_fd, locked
        if locked >= 0:
            os.close(locked)
        try:
            fcntl.flock(self._store_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise _in_use(store, b"") from error
        except OSError:  # a file system without such locks: the lock file has to do
            pass

    def release(self) -> None:
        """Release the lock. Idempotent."""
        for descriptor in (self._store_fd, self._fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._store_fd = -1

    def __del__(self) -> None:
        self.release()  # the call of `open` that took it was cancelled


def _in_use(store: Path, holder: bytes) -> StoreInUse:
    try:
        content = json.loads(holder)
        pid, started = int(content["pid"]), str(content["started"])
    except (ValueError, KeyError, TypeError):
        return StoreInUse(
            f"{store} is in use by another process: stop that one, or set another store.path", None
        )
    return StoreInUse(
        f"{store} is in use by process {pid} (since {started}): stop that one (kill {pid}), or set "
        "another store.path",
        pid,
    )


@cache
def migrations(folder_name: str = "migrations") -> tuple[tuple[int, str], ...]:
    """Return every migration, in order: its number and its SQL."""
    folder = resources.files("gateway.store") / folder_name
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".sql")),
        key=lambda file: file.name,
    )
    return tuple((int(file.name[:4]), file.read_text(encoding="utf-8")) for file in files)


@cache
def table_names() -> frozenset[str]:
    """Return the names of all tables and views that the migrations make, on either engine."""
    made = (sql for folder in ("migrations", _SERVER_FOLDER) for _, sql in migrations(folder))
    return frozenset(re.findall(r"CREATE (?:VIRTUAL )?(?:TABLE|VIEW) (\w+)", "\n".join(made)))


def newest_schema(store: StoreLocation | None = None) -> int:
    """Return the schema that this version migrates a store to. None: a file. Each engine counts its
    own.
    """
    return (migrations(_SERVER_FOLDER) if isinstance(store, ServerStore) else migrations())[-1][0]


def sqlite_uri(path: Path, mode: str) -> str:
    """Return a SQLite URI: mode `ro`, `rw`, or `still`; none creates the store.

    `still`: as `ro`, and makes no file beside a store that nobody has open
    (https://www.sqlite.org/uri.html#uriimmutable).
    """
    if mode == "still":
        mode = "ro" if path.with_name(f"{path.name}-wal").exists() else "ro&immutable=1"
    return f"{path.absolute().as_uri()}?mode={mode}"


def create_store_file(path: Path, *, only_directory: bool = False) -> None:
    """Create the file, readable by its owner alone, if it is missing. Raises StoreUnreadable,
    StoreUnavailable.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not only_directory:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _file_error(f"cannot use {path} as the store", error) from error


def migrate_schema(path: Path) -> None:
    """Migrate the file to the newest schema, one transaction per step. Raises StoreTooNew or
    StoreUnreadable.

    Killed in between, it continues where it stopped. The caller holds the lock.
    """
    steps = migrations()
    try:
        connection = sqlite3.connect(sqlite_uri(path, "rw"), uri=True, isolation_level=None)
        try:
            version = check_schema(connection, path, fresh=True)
            for pragma in WRITER_PRAGMAS:
                connection.execute(pragma).fetchall()
            _tell_of_wait(path, version)
            for number, sql in steps[version:]:
                connection.executescript(
                    f"BEGIN IMMEDIATE; {sql}; PRAGMA application_id = {APPLICATION_ID}; "
                    f"PRAGMA user_version = {number}; COMMIT;"
                )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise unreadable_error(path, error) from error


def _tell_of_wait(store: StoreLocation, version: int) -> None:
    if 0 < version < newest_schema(store):
        logger.info(
            "%s is brought from schema %s to the newest: this can take minutes", store, version
        )


def check_schema(connection: sqlite3.Connection, path: Path, *, fresh: bool = False) -> int:
    """Return the schema's version. Raises StoreTooNew or StoreUnreadable, and sqlite3.Error for
    other files.

    `fresh`: an empty file is valid (version 0).
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if fresh and (application, version, tables) == (0, 0, 0):
        return 0
    newest = newest_schema(path)
    if application == UNRELEASED_ID:
        raise unreleased_error(path)
    if application != APPLICATION_ID or not version:
        raise StoreUnreadable(
            f"{path} is not a store of reverie's: set another store.path (nothing was changed)"
        )
    if version > newest:
        raise _too_new(path, version)
    return int(version)


def unreleased_error(store: StoreLocation) -> StoreUnreadable:
    """Make the error for a store of a version before the first release."""
    return StoreUnreadable(
        f"{store} is of a reverie before 0.2.0, whose stores are read no more: look into it with "
        "that one (`reverie log`), or begin anew with another store.path or store.url (nothing was "
        "changed)"
    )


def _too_new(store: StoreLocation, version: int) -> StoreTooNew:
    newest = newest_schema(store)
    return StoreTooNew(
        f"{store} has schema {version} and this reverie knows up to {newest}: run a newer reverie"
    )


def check_current_schema(path: StoreLocation, mode: str = "ro") -> None:
    """Check for reading, changing nothing. Raises StoreMissing, StoreTooNew or StoreUnreadable."""
    newest = newest_schema(path)
    try:
        if isinstance(path, ServerStore):
            with closing(connect_server(path, "reader")) as server:
                version = _server_version(server, path)
        elif path.exists():
            with closing(sqlite3.connect(sqlite_uri(path, mode), uri=True)) as connection:
                version = check_schema(connection, path)
        else:
            version = 0
    except (LogError, sqlite3.Error) as error:
        raise unreadable_error(path, error) from error
    if not version:
        raise StoreMissing(
            f"there is no store at {path}: check the path, or start the gateway once"
        )
    if version > newest:
        raise _too_new(path, version)
    if version < newest:
        raise StoreUnreadable(
            f"{path} has the older schema {version}: start the gateway once to bring it to {newest}"
        )


_WAITED_FOR = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_FULL,
        # also of a full disk, where the file beside the write-ahead log cannot grow
        sqlite3.SQLITE_IOERR,
    }
)


def _file_error(what: str, error: OSError) -> StoreUnreadable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(
            f"{what} ({error.strerror}): the disk is full: make room where the store is"
        )
    return StoreUnreadable(f"{what}: {error.strerror}")


def unreadable_error(path: StoreLocation, error: LogError | sqlite3.Error) -> StoreOpenError:
    """Make the error for a file that SQLite cannot use, or for a database."""
    if isinstance(path, ServerStore):
        if isinstance(error, ServerInUse):
            return StoreInUse(f"{path}: {error}", None)
        unavailable = isinstance(error, ServerUnavailable) and not isinstance(error, ServerRefused)
        return (StoreUnavailable if unavailable else StoreUnreadable)(
            f"cannot use {path} as the store: {error}"
        )
    reported = error.__cause__ if isinstance(error, LogError) else error
    if (
        isinstance(reported, sqlite3.Error)
        and (getattr(reported, "sqlite_errorcode", None) or 0) & 0xFF in _WAITED_FOR
    ):
        return StoreUnavailable(
            f"cannot open {path} as the store ({error}): {transient_reason(reported)}"
        )
    return StoreUnreadable(
        f"cannot read {path} as a store ({error}): restore a backup, or set another store.path"
    )
