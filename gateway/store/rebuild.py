"""Rebuild of the derived tables from the log, and making of those of plugins. Blocks."""

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

from gateway.core.clock import Clock, SystemClock
from gateway.core.facts import fact_kinds
from gateway.store import queries
from gateway.store.archive import insert_archived, list_month_files, read_rows
from gateway.store.log import Log
from gateway.store.projections import (
    PROJECTED_TABLES,
    Statement,
    Table,
    fold_entry,
    group_statements,
    plugin_tables,
    project_fact,
    stop_following,
)
from gateway.store.queries import COLUMNS, LAST
from gateway.store.reader import LogRow
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
from gateway.store.types import (
    LogEntry,
    LogError,
    ServerInUse,
    StoreUnreadable,
    TableDifference,
    read_entries,
)

RebuildProgress = Callable[[int, int], None]
"""Called now and then with the entries replayed and their total, from another thread."""
_CHUNK = 5_000


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
            tables = (*PROJECTED_TABLES, *(table.name for table in plugin_tables()))
            _replay(log, progress, tables)
            repaired = [_repair_table(log, table) for table in tables]
            repaired.append(repair_search(log))
    except LogError as error:
        raise unreadable_error(location, error) from error
    finally:
        lock.release()
    return [difference for difference in repaired if difference is not None]


def connect_writer(location: StoreLocation) -> Log:
    """Migrate the store, and open it for writing. The caller holds the lock of the files."""
    if isinstance(location, ServerStore):
        log: Log = (server := connect_server(location, "writer"))
        migrate_server(server, location)
    else:
        migrate_schema(location)
        log = SqliteLog(sqlite_uri(location, "rw"))
    prepare_tables(log, local_path(location))
    return log


MAX_PREPARE_TRIES: Final = 3
"""How often a process tries to make tables of plugins beside others that start."""


def prepare_tables(
    log: Log,
    store: Path,
    alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Make the tables of plugins that are new, changed, or were away while others appended, from
    the log and its archives, in one transaction.

    A table of a plugin that is gone stays as it is, until that plugin comes back; one that cannot
    be made follows the log no more. `alone`: keeps other processes out of the store. Raises
    LogError.
    """
    for tries_left in reversed(range(MAX_PREPARE_TRIES)):
        tables = plugin_tables()
        wanted = {table.name: table.definition for table in tables}
        if followed_tables(log) == wanted:
            return
        try:
            with alone(), log.transaction():
                known = followed_tables(log)
                made = [one for one in tables if known.get(one.name) not in ("", one.definition)]
                _make_tables(log, store, made)
                log.write("DELETE FROM plugin_table")
                log.write(
                    "INSERT INTO plugin_table (name, definition) VALUES {}", list(wanted.items())
                )
            return
        except ServerInUse as error:
            if not tries_left:
                raise ServerInUse(
                    "the other processes that use it have other plugins: stop them first"
                ) from error
        except LogError as error:
            refused = [
                one.name
                for one in tables
                if not error.reason and not log.accepts(partial(_make_tables, log, store, [one]))
            ]
            if not refused or not tries_left:
                raise
            stop_following(refused, str(error))


def followed_tables(log: Log) -> dict[str, str]:
    """Return the tables of plugins that hold all of the log, with their definitions."""
    return dict(log.fetch("SELECT name, definition FROM plugin_table"))


def _make_tables(log: Log, store: Path, tables: Sequence[Table]) -> None:
    for table in tables:
        log.write(f"DROP TABLE IF EXISTS {table.name}")
        log.write(f"CREATE TABLE {table.name} ({table.columns})")
    names, kinds = {one.name for one in tables}, {kind for one in tables for kind in one.kinds}
    if not kinds:
        return
    try:
        archived = [read_rows(path) for path in list_month_files(store)]
    except OSError as error:
        raise _files_error(store, error) from error
    rows = heapq.merge(*archived, _iter_kinds(log, kinds), key=itemgetter(0))
    wanted = (
        row for _, (row, *_) in itertools.groupby(rows, itemgetter(0)) if row[2] in kinds
    )  # an entry may be in a file and in the log
    while chunk := list(itertools.islice(wanted, _CHUNK)):
        statements = (one for entry in read_entries(chunk) for one in fold_entry(entry))
        for sql, params in group_statements(one for one in statements if one.table in names):
            log.write(sql, params)


def _iter_kinds(log: Log, kinds: Collection[str]) -> Iterator[LogRow]:
    last = 0
    while True:
        sql, params = queries.browse(log.dialect, after=last, kinds=sorted(kinds), limit=_CHUNK)
        if not (rows := log.fetch(sql, params)):
            return
        yield from rows
        last = rows[-1][0]


def _replay(log: Log, progress: RebuildProgress, tables: Sequence[str]) -> None:
    """Fold the log into temporary tables of the same names, which hide the real ones."""
    for table in tables:
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
        raise _files_error(store, error) from error
    if missing := _count_missing(log):
        what = (
            f"{missing:,} of {left:,} entries that have left the log are in no file beside {store}"
        )
        raise StoreUnreadable(
            f"{what}: put the files of old months back; without them nothing can be compared"
        )


def _files_error(store: Path, error: OSError) -> StoreUnreadable:
    return StoreUnreadable(
        f"cannot read the files of old months in {store.parent}: {error.strerror}"
    )


def _count_missing(log: Log) -> int:
    """Return how many positions have no entry: all have one, until it leaves."""
    return int(log.fetch("SELECT coalesce(max(seq), 0) - count(*) FROM log")[0][0])


def _project_row(row: tuple[object, ...]) -> Iterator[Statement]:
    try:
        entry = LogEntry.from_row(row)
    except ValueError as error:
        kind = str(row[2])
        if "." in kind and kind not in fact_kinds():  # of a plugin that is gone
            return
        raise StoreUnreadable(
            f"log entry {row[0]} is not a fact of this reverie: {error}"
        ) from error
    yield from project_fact(entry.seq, str(row[1]), entry.conversation, entry.cause, entry.fact)
    yield from fold_entry(entry)


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
