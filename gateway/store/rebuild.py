"""Upgrade of an older store, and rebuild of the derived tables from the log. Blocks.

Each migration is one transaction, so a kill leaves the old or the new schema. An older version of the program cannot
read the new one, so the upgrade keeps a copy of the old file for a way back. That takes the disk space of the store
once, until the operator removes it.
"""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from gateway.core.clock import Clock, SystemClock
from gateway.store.archive import archive_directory, insert_archived
from gateway.store.files import copy_store, finish_moves
from gateway.store.projections import PROJECTED_TABLES, Statement, chunk_rows, group_statements, project_fact
from gateway.store.queries import COLUMNS, LAST
from gateway.store.schema import (
    ServerStore,
    StoreLocation,
    StoreLock,
    check_current_schema,
    connect_server,
    local_path,
    migrate_schema,
    migrate_server,
    newest_schema,
    sqlite_uri,
    unreadable_error,
)
from gateway.store.types import LogEntry, StoreError, StoreUnavailable, StoreUnreadable, TableDifference

if TYPE_CHECKING:
    from gateway.store.postgresql import PostgresConnection

logger = logging.getLogger("reverie.store")

_FREE_SPACE_FACTOR: Final = 2.0
"""Free space needed, as a multiple of the store's size: a migration may rewrite most of it."""
RebuildProgress = Callable[[int, int], None]
"""Called now and then with the entries replayed and their total, from another thread."""
_CHUNK = 5_000
"""Entries in memory at once."""


def upgrade_store(path: Path) -> None:
    """Migrate a store. The caller holds the lock. Raises StoreTooNew or StoreUnreadable."""
    version = _schema_version(path)
    if 0 < version < newest_schema():
        _keep_old_schema(path, version)
    migrate_schema(path)


def old_schema_path(path: Path, version: int) -> Path:
    """Return the path of the kept copy with that schema."""
    return path.with_name(f"{path.name}.schema-{version}")


def _schema_version(path: Path) -> int:
    """Return the schema's version. 0: it is new, or no store; then `migrate_schema` raises. Raises StoreUnavailable."""
    try:
        with contextlib.closing(sqlite3.connect(sqlite_uri(path, "ro"), uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            return int(version)
    except sqlite3.Error as error:
        if isinstance(found := unreadable_error(path, error), StoreUnavailable):
            raise found from error
        return 0


def _keep_old_schema(path: Path, version: int) -> None:
    """Copy the old store. A failure is logged, and does not stop the upgrade: a backup may well exist."""
    target, size = old_schema_path(path, version), path.stat().st_size
    notice = f"the store becomes schema {newest_schema()}, which an older reverie does not read"
    if shutil.disk_usage(path.parent).free < size * _FREE_SPACE_FACTOR:
        logger.warning("%s; there is no room to keep it as it was, with schema %d", notice, version)
        return
    temporary = target.with_name(f"{target.name}.new")
    temporary.unlink(missing_ok=True)  # left by a kill
    try:
        copy_store(path, temporary)
        temporary.replace(target)
    except (OSError, StoreError) as error:
        temporary.unlink(missing_ok=True)
        logger.warning("%s; it cannot be kept as it was: %s", notice, error)
        return
    logger.info("%s; as it was it is kept as %s (%.1f MB): remove that when all is well", notice, target, size / 1e6)


async def rebuild(
    location: StoreLocation, *, progress: RebuildProgress | None = None, clock: Clock | None = None
) -> list[TableDifference]:
    """Replay the log and its archives, repair every table that differs, and return the differences. Empty: all is well.

    Holds the store's lock: raises StoreInUse while a gateway runs; also StoreMissing, StoreTooNew and StoreUnreadable.
    The repair is one transaction. Cancelled, it still runs to its end in its thread, holding the lock.
    """
    return await asyncio.to_thread(
        rebuild_blocking,
        location,
        progress or (lambda _done, _whole: None),
        clock or SystemClock(),
        archive_directory(local_path(location)),
    )


def rebuild_blocking(
    location: StoreLocation, progress: RebuildProgress, clock: Clock, archives: Path
) -> list[TableDifference]:
    """Run `rebuild` in the calling thread, which also calls `progress`. `archives`: the directory that has them."""
    if isinstance(location, ServerStore) or not location.exists():
        check_current_schema(location)
    lock = StoreLock(local_path(location), clock.now())
    try:
        with contextlib.closing(connect_writer(location)) as connection:
            main = cast("PostgresConnection", connection).schema if isinstance(location, ServerStore) else "main"
            connection.execute("BEGIN IMMEDIATE")
            _include_archives(connection, archives, main)
            _replay(connection, progress, main)
            repaired = [_repair_table(connection, table, main) for table in PROJECTED_TABLES]
            repaired.append(_repair_search(connection) if main == "main" else _repair_words(connection))
            connection.commit()
    except sqlite3.Error as error:
        raise unreadable_error(location, error) from error
    finally:
        lock.release()
    return [difference for difference in repaired if difference is not None]


def connect_writer(location: StoreLocation) -> sqlite3.Connection:
    """Upgrade the store, and open it for writing. The caller holds the lock of the files."""
    if isinstance(location, ServerStore):
        server = connect_server(location, "writer")
        migrate_server(server, location)
        return cast("sqlite3.Connection", server)
    finish_moves(location)
    upgrade_store(location)
    return sqlite3.connect(sqlite_uri(location, "rw"), uri=True, isolation_level=None)


def _replay(connection: sqlite3.Connection, progress: RebuildProgress, main: str) -> None:
    """Fold the log into temporary tables of the same names, which hide the real ones."""
    for table in PROJECTED_TABLES:
        _hide_table(connection, table, main)
    (whole,) = connection.execute("SELECT count(*) FROM log").fetchone()
    page = f"SELECT {COLUMNS} FROM log WHERE seq > ? ORDER BY seq LIMIT {_CHUNK}"  # noqa: S608 - constants only
    done, last = 0, -LAST
    while rows := connection.execute(page, (last,)).fetchall():
        last = rows[-1][0]
        for sql, params in group_statements(statement for row in rows for statement in _project_row(row)):
            for one, many in chunk_rows(sql, params):
                connection.executemany(one, many)
        done += len(rows)
        progress(done, whole)


def _hide_table(connection: sqlite3.Connection, table: str, main: str) -> None:
    """Create an empty temporary table of the same name, with the same indexes, which hides the real one.

    `main`: the schema with the real one; SQLite calls it `main`.
    """
    if main != "main":
        connection.execute(f"CREATE TEMP TABLE {table} (LIKE {main}.{table} INCLUDING ALL) ON COMMIT DROP")
        return
    for kind, sql in connection.execute(
        "SELECT type, sql FROM main.sqlite_master WHERE tbl_name = ? AND type IN ('table', 'index') "
        "AND sql IS NOT NULL ORDER BY type DESC",
        (table,),
    ).fetchall():
        create = "CREATE TEMP TABLE " if kind == "table" else "CREATE INDEX temp."
        connection.execute(sql.replace("CREATE TABLE " if kind == "table" else "CREATE INDEX ", create, 1))


def _include_archives(connection: sqlite3.Connection, archives: Path, main: str) -> None:
    """If entries have left the log, hide it behind a temporary one that has them. Raises StoreUnreadable."""
    (left,) = connection.execute("SELECT coalesce(sum(entries), 0) FROM archive").fetchone()
    if not left:
        return
    _hide_table(connection, "log", main)
    connection.execute(f"INSERT INTO temp.log SELECT * FROM {main}.log")  # noqa: S608 - names of ours
    try:
        found = insert_archived(connection, archives, "temp.log")
    except OSError as error:
        raise StoreUnreadable(f"cannot read the archives in {archives}: {error.strerror}") from error
    if found != left:
        what = f"{left - found:,} of {left:,} archived entries are missing in {archives}"
        raise StoreUnreadable(f"{what}: put the archives back, or the tables cannot be compared with the whole log")


def _project_row(row: tuple[object, ...]) -> Iterator[Statement]:
    try:
        entry = LogEntry.from_row(row)
    except ValueError as error:
        raise StoreUnreadable(f"log entry {row[0]} is not a fact of this reverie: {error}") from error
    return project_fact(entry.seq, str(row[1]), entry.conversation, entry.cause, entry.fact)


def _repair_table(connection: sqlite3.Connection, table: str, main: str) -> TableDifference | None:
    missing, extra = (
        connection.execute(
            f"SELECT count(*) FROM (SELECT * FROM {one} EXCEPT SELECT * FROM {other}) AS found"  # noqa: S608 - names of ours
        ).fetchone()[0]
        for one, other in ((f"temp.{table}", f"{main}.{table}"), (f"{main}.{table}", f"temp.{table}"))
    )
    if not missing and not extra:
        return None
    connection.execute(f"DELETE FROM {main}.{table}")  # noqa: S608 - names of ours
    connection.execute(f"INSERT INTO {main}.{table} SELECT * FROM temp.{table}")  # noqa: S608 - the same
    return TableDifference(table=table, missing=missing, extra=extra)


def _repair_search(connection: sqlite3.Connection) -> TableDifference | None:
    """Compare the index with the log (https://www.sqlite.org/fts5.html#the_integrity_check_command)."""
    missing, extra = _compare_search(connection, "SELECT id FROM search_docsize")
    try:
        connection.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    except sqlite3.DatabaseError:
        pass
    else:
        if not missing and not extra:
            return None
    connection.execute("INSERT INTO search (search) VALUES ('rebuild')")
    return TableDifference(table="search", missing=missing, extra=extra)


def _repair_words(connection: sqlite3.Connection) -> TableDifference | None:
    """Compare the words in a database with the log."""
    missing, extra = _compare_search(connection, "SELECT rowid FROM search")
    (changed,) = connection.execute(
        "SELECT count(*) FROM said JOIN search ON search.rowid = said.seq WHERE search.text <> said.text"
    ).fetchone()
    if not missing and not extra and not changed:
        return None
    connection.execute("DELETE FROM search")
    connection.execute("INSERT INTO search (rowid, text) SELECT seq, text FROM said")
    return TableDifference(table="search", missing=missing, extra=extra)


def _compare_search(connection: sqlite3.Connection, indexed: str) -> tuple[int, int]:
    """Return how many texts the index lacks, and how many it has that are none."""
    said = "SELECT seq FROM said"
    missing, extra = (
        connection.execute(f"SELECT count(*) FROM ({one} EXCEPT {other}) AS found").fetchone()[0]  # noqa: S608 - constants only
        for one, other in ((said, indexed), (indexed, said))
    )
    return missing, extra
