"""Rebuild of the derived tables from the log. Blocks."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.core.clock import Clock, SystemClock
from gateway.store.archive import insert_archived
from gateway.store.log import Log
from gateway.store.projections import PROJECTED_TABLES, Statement, group_statements, project_fact
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
    sqlite_uri,
    unreadable_error,
)
from gateway.store.sqlite_log import SqliteLog
from gateway.store.types import LogEntry, LogError, StoreUnreadable, TableDifference

logger = logging.getLogger("reverie.store")

RebuildProgress = Callable[[int, int], None]
"""Called now and then with the entries replayed and their total, from another thread."""
_CHUNK = 5_000
"""Entries in memory at once."""


async def rebuild(
    location: StoreLocation, *, progress: RebuildProgress | None = None, clock: Clock | None = None
) -> list[TableDifference]:
    """Replay the log and its archives, repair every table that differs, and return the differences.
    Empty: all is well.

    Holds the store's lock: raises StoreInUse while a gateway runs; also StoreMissing, StoreTooNew
    and StoreUnreadable. The repair is one transaction. Cancelled, it still runs to its end in its
    thread, holding the lock.
    """
    return await asyncio.to_thread(
        rebuild_blocking,
        location,
        progress or (lambda _done, _whole: None),
        clock or SystemClock(),
    )


def rebuild_blocking(
    location: StoreLocation, progress: RebuildProgress, clock: Clock
) -> list[TableDifference]:
    """Run `rebuild` in the calling thread, which also calls `progress`."""
    if isinstance(location, ServerStore) or not location.exists():
        check_current_schema(location)
    lock = StoreLock(local_path(location), clock.now())
    try:
        with contextlib.closing(connect_writer(location)) as log, log.transaction():
            _include_archived(log, local_path(location))
            _replay(log, progress)
            repaired = [_repair_table(log, table) for table in PROJECTED_TABLES]
            repaired.append(repair_search(log))
    except LogError as error:
        raise unreadable_error(location, error) from error
    finally:
        lock.release()
    return [difference for difference in repaired if difference is not None]


def connect_writer(location: StoreLocation) -> Log:
    """Migrate the store, and open it for writing. The caller holds the lock of the files."""
    if isinstance(location, ServerStore):
        server = connect_server(location, "writer")
        migrate_server(server, location)
        return server
    migrate_schema(location)
    return SqliteLog(sqlite_uri(location, "rw"))


def _replay(log: Log, progress: RebuildProgress) -> None:
    """Fold the log into temporary tables of the same names, which hide the real ones."""
    for table in PROJECTED_TABLES:
        log.hide_table(table)
    ((whole,),) = log.fetch("SELECT count(*) FROM log")
    page = f"SELECT {COLUMNS} FROM log WHERE seq > $1 ORDER BY seq LIMIT {_CHUNK}"  # noqa: S608 - constants only
    done, last = 0, -LAST
    while rows := log.fetch(page, (last,)):
        last = rows[-1][0]
        for sql, params in group_statements(
            statement for row in rows for statement in _project_row(row)
        ):
            log.write(sql, params)
        done += len(rows)
        progress(done, whole)


def _include_archived(log: Log, store: Path) -> None:
    """If entries have left the log, hide it behind a temporary one that has them. Raises
    StoreUnreadable.
    """
    if not (left := _count_missing(log)):
        return
    log.hide_table("log")
    hiding = f"{log.dialect.temporary}.log"
    log.write(f"INSERT INTO {hiding} SELECT * FROM {log.schema}.log")  # noqa: S608 - names of ours
    try:
        insert_archived(log, store, hiding)
    except OSError as error:
        raise StoreUnreadable(
            f"cannot read the files of old months in {store.parent}: {error.strerror}"
        ) from error
    if missing := _count_missing(log):
        what = (
            f"{missing:,} of {left:,} entries that have left the log are in no file beside {store}"
        )
        raise StoreUnreadable(
            f"{what}: put the files of old months back; without them nothing can be compared"
        )


def _count_missing(log: Log) -> int:
    """Return how many positions have no entry: all have one, until it leaves."""
    return int(log.fetch("SELECT coalesce(max(seq), 0) - count(*) FROM log")[0][0])


def _project_row(row: tuple[object, ...]) -> Iterator[Statement]:
    try:
        entry = LogEntry.from_row(row)
    except ValueError as error:
        raise StoreUnreadable(
            f"log entry {row[0]} is not a fact of this reverie: {error}"
        ) from error
    return project_fact(entry.seq, str(row[1]), entry.conversation, entry.cause, entry.fact)


def _repair_table(log: Log, table: str) -> TableDifference | None:
    made, real = f"{log.dialect.temporary}.{table}", f"{log.schema}.{table}"
    missing, extra = _compare(log, f"SELECT * FROM {made}", f"SELECT * FROM {real}")  # noqa: S608 - names of ours
    if not missing and not extra:
        return None
    log.write(f"DELETE FROM {real}")  # noqa: S608 - names of ours
    log.write(f"INSERT INTO {real} SELECT * FROM {made}")  # noqa: S608 - the same
    return TableDifference(table=table, missing=missing, extra=extra)


def repair_search(log: Log) -> TableDifference | None:
    """Compare the index of words with the log, and make it again if it differs. None: it does
    not.
    """
    missing, extra = _compare(log, "SELECT seq FROM said", log.dialect.searched)
    if log.repair_search(is_wrong=bool(missing or extra)):
        return TableDifference(table="search", missing=missing, extra=extra)
    return None


def _compare(log: Log, expected: str, found: str) -> tuple[int, int]:
    """Return how many rows the second query lacks, and how many it has beyond the first."""
    missing, extra = (
        log.fetch(f"SELECT count(*) FROM ({one} EXCEPT {other}) AS found")[0][0]  # noqa: S608 - constants only
        for one, other in ((expected, found), (found, expected))
    )
    return missing, extra
