"""Copies of whole stores from one engine to the other: files of SQLite, and PostgreSQL databases.

The log and its tables are copied as they are, in one snapshot, into a store that was empty. Then
each row of both logs is compared; `reverie log rebuild` compares the tables, which follow from the
log. Blocks.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

from gateway.core.clock import Clock
from gateway.store.archive import list_month_files
from gateway.store.log import Log
from gateway.store.projections import PROJECTED_TABLES, plugin_tables
from gateway.store.queries import COLUMNS, LAST
from gateway.store.reader import connect
from gateway.store.rebuild import connect_writer, followed_tables, repair_search
from gateway.store.schema import (
    ServerStore,
    StoreLocation,
    StoreLock,
    check_current_schema,
    create_store_file,
    local_path,
    unreadable_error,
)
from gateway.store.types import LogError, StoreUnreadable

_PAGE_ROWS: Final = 1_000
CopyProgress = Callable[[int, int], None]
"""Called now and then with the entries copied and their total."""


class CopyReport(NamedTuple):
    """A finished copy."""

    entries: int
    last: int
    """The log's last position. 0: it is empty."""
    digest: str
    """SHA-256 of all rows of the log, the same in both stores."""


def transfer_store(
    source: StoreLocation, target: StoreLocation, clock: Clock, progress: CopyProgress
) -> CopyReport:
    """Copy a store, as it is at this moment, into one that is empty or missing. Verified.

    Nobody waits for it, but what is written to the source meanwhile is not in the copy. The files
    of old months are copied too. Raises StoreError and OSError: then the target holds a part, and
    is to be deleted.
    """
    check_current_schema(source)
    try:
        with contextlib.closing(connect(source, "reader")) as reading, reading.snapshot():
            followed = followed_tables(reading).items()
            current = [one for one in plugin_tables() if (one.name, one.definition) in followed]
            tables = (*PROJECTED_TABLES, "archived_key", *(one.name for one in current))
            report = _copy_log(reading, target, clock, progress, tables)
        copy_month_files(local_path(source), local_path(target))
        with contextlib.closing(connect(target, "reader")) as written:
            found = _digest_log(written)
    except LogError as error:
        raise unreadable_error(target, error) from error
    if found != report:
        raise StoreUnreadable(
            f"the log in {target} is not like that in {source}: delete the copy, and tell the "
            "developers"
        )
    return report


def _copy_log(
    reading: Log,
    target: StoreLocation,
    clock: Clock,
    progress: CopyProgress,
    tables: Sequence[str],
) -> CopyReport:
    """Copy the log and these tables. Those of plugins that are not among them are made from the
    log when the copy is opened.
    """
    path = local_path(target)
    create_store_file(path, only_directory=isinstance(target, ServerStore))
    lock = StoreLock(path, clock.now())
    try:
        with contextlib.closing(connect_writer(target)) as writing:
            if writing.last_seq():
                raise StoreUnreadable(f"{target} holds a log already: a copy needs an empty store")
            ((whole,),) = reading.fetch("SELECT count(*) FROM log")
            done = 0
            for rows in _iter_pages(reading):
                with writing.transaction():
                    writing.write(f"INSERT INTO log ({COLUMNS}) VALUES {{}}", rows)  # noqa: S608 - constants only
                done += len(rows)
                progress(done, whole)
            with writing.transaction():
                for table in tables:
                    writing.write(
                        f"INSERT INTO {table} VALUES {{}}",  # noqa: S608 - names of ours
                        reading.fetch(f"SELECT * FROM {table}"),  # noqa: S608 - the same
                    )
                for table in followed_tables(writing).keys() - set(tables):
                    writing.write("DELETE FROM plugin_table WHERE name = $1", [(table,)])
                repair_search(writing)
    finally:
        lock.release()
    return _digest_log(reading)


def copy_month_files(source: Path, target: Path) -> None:
    """Copy the files of old months beside another store. Raises OSError."""
    for path in list_month_files(source) if source != target else ():
        shutil.copy2(path, target.with_name(f"{target.name}{path.name.removeprefix(source.name)}"))


def _iter_pages(log: Log) -> Iterator[list[tuple[object, ...]]]:
    page = f"SELECT {COLUMNS} FROM log WHERE seq > $1 ORDER BY seq LIMIT {_PAGE_ROWS}"  # noqa: S608 - constants only
    last = -LAST
    while rows := log.fetch(page, (last,)):
        last = rows[-1][0]
        yield rows


def _digest_log(log: Log) -> CopyReport:
    digest, entries, last = hashlib.sha256(), 0, 0
    for rows in _iter_pages(log):
        # PostgreSQL has the symbol for a NUL character in its place.
        digest.update("".join(f"{row!r}\n" for row in rows).replace("\\x00", "\u2400").encode())
        entries, last = entries + len(rows), cast("int", rows[-1][0])
    return CopyReport(entries, last, digest.hexdigest())
