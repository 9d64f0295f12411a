"""Looks at the store: without its lock, without writing, and never for long."""

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import aiosqlite

from gateway.doctor.base import DoctorContext, run_in_thread
from gateway.doctor.rules.store import RECENT_S, OutboxObservation, StoreObservation, judge_outbox, judge_store
from gateway.events import DeliveryReport
from gateway.probes.base import Finding
from gateway.store import Store, StoreError, StoreReader, StoreUnreadable
from gateway.store.schema import APPLICATION_ID, check_schema, migrations, sqlite_uri

INTEGRITY_CHECK_S: Final = 5.0
"""For looking through the file: it holds back the writer's checkpoint, and nothing else."""
_PROGRESS_STEPS: Final = 10_000
"""Of SQLite's machine between two looks at the time."""


async def check_store(subject: DoctorContext) -> Sequence[Finding]:
    """The file itself."""
    path, alive = subject.settings.store.path, subject.gateway_state.is_alive
    return list(judge_store(await run_in_thread(lambda: inspect_store(path, alive=alive))))


async def check_outbox(subject: DoctorContext) -> Sequence[Finding]:
    """What waits to be delivered."""
    path = subject.settings.store.path
    try:
        async with await open_reader(path, alive=subject.gateway_state.is_alive) as reader:
            posts = await reader.undelivered_posts()
            ended = await reader.newest_entries(200, kinds=["delivery"])
    except (StoreError, sqlite3.Error, OSError):  # the file's own check says why
        return []
    now = datetime.now(UTC)
    oldest_s = max(((now - post.at).total_seconds() for post in posts), default=0.0)
    uncertain = sum(1 for post in posts if any(part.state == "uncertain" for part in post.parts))
    lately = [one.fact for one in ended if (now - one.at).total_seconds() < RECENT_S]
    uncertain += sum(1 for one in lately if isinstance(one, DeliveryReport) and one.state == "uncertain")
    seen = OutboxObservation(waiting=len(posts), oldest_s=oldest_s, uncertain=uncertain)
    return list(judge_outbox(seen, running=subject.gateway_state.kind == "running", where=str(path)))


async def open_reader(path: Path, *, alive: bool) -> StoreReader:
    """What is in it, as `Store.open_readonly`, and no file is left beside it. Raises StoreError and sqlite3.Error."""
    if alive or _read_wal_bytes(path):
        return await Store.open_readonly(path)
    address = _build_sqlite_uri(path, alive=alive)
    schema = await run_in_thread(lambda: _read_schema(address, path))
    if schema != len(migrations()):
        raise StoreUnreadable(f"{path} has the older schema {schema}")
    return StoreReader(path, await aiosqlite.connect(address, uri=True, isolation_level=None))


def inspect_store(path: Path, *, alive: bool) -> StoreObservation:
    """Look at the file. `alive`: a process may write it meanwhile. Blocks."""
    unusable = _find_directory_problem(path.parent)
    there = not unusable and path.exists()
    closed = there and not os.access(path, os.R_OK | os.W_OK)
    seen = StoreObservation(
        path=str(path),
        exists=there,
        directory_problem=unusable,
        newest_schema=len(migrations()),
        free_bytes=_read_free_bytes(path.parent),
        writable=not closed,
    )
    if not there or not os.access(path, os.R_OK):
        return seen
    wal_bytes = _read_wal_bytes(path)
    opened = _inspect_database(_build_sqlite_uri(path, alive=alive))
    return StoreObservation(
        path=seen.path,
        exists=True,
        open_problem=opened[0],
        schema=opened[1],
        newest_schema=seen.newest_schema,
        damage=opened[2],
        checked=opened[3],
        size_bytes=path.stat().st_size,
        wal_bytes=wal_bytes,
        free_bytes=seen.free_bytes,
        writable=seen.writable,
    )


def _read_wal_bytes(path: Path) -> int:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return 0


def _build_sqlite_uri(path: Path, *, alive: bool) -> str:
    """For SQLite. Where nobody writes and nothing waits in the write-ahead log, the file alone is the truth.

    Then it is not to make a `-shm` beside it: root, who may have called us, would own that, and the gateway could not
    open its store (https://www.sqlite.org/uri.html#uriimmutable).
    """
    still = "" if alive or _read_wal_bytes(path) else "&immutable=1"
    return f"{sqlite_uri(path, 'ro')}{still}"


def _read_schema(address: str, path: Path) -> int:
    with closing(sqlite3.connect(address, uri=True)) as connection:
        return check_schema(connection, path)


def _inspect_database(address: str) -> tuple[str, int, tuple[str, ...], Literal["whole", "partly", "no"]]:
    """Why it cannot be opened, its schema, what is damaged, and how much was looked at."""
    schema = 0
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID or not schema:
                return "the file is not a store of reverie's", 0, (), "no"
            end = time.monotonic() + INTEGRITY_CHECK_S
            connection.set_progress_handler(lambda: int(time.monotonic() > end), _PROGRESS_STEPS)
            rows = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return "", schema, (), "partly"
        return _format_sqlite_error(error), schema, (), "no"
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return "the file is not a store of reverie's", 0, (), "no"
        return "", schema, (_format_sqlite_error(error),), "whole"
    damage = tuple(" ".join(row.split()) for row in rows if row != "ok")
    return "", schema, damage, "whole"


def _format_sqlite_error(error: sqlite3.Error) -> str:
    return f"SQLite says: {error}"


def _find_directory_problem(directory: Path) -> str:
    """Why no store can be used there; empty: it can. Beside the file SQLite and the lock need files of their own."""
    for path in (directory, *directory.parents):
        try:
            mode = path.stat().st_mode
        except OSError:  # it is not there, or one above is closed, or no directory: that says more
            continue
        if not stat.S_ISDIR(mode):
            return f"{path} is no directory"
        return "" if os.access(path, os.R_OK | os.W_OK | os.X_OK) else f"{path} is not open to us, or not writable"
    return "it is not there"


def _read_free_bytes(directory: Path) -> int:
    for path in (directory, *directory.parents):
        with suppress(OSError):  # it is not there, or one above is closed
            return shutil.disk_usage(path).free
    return 0
