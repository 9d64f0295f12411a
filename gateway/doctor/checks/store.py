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

from gateway.doctor.base import Subject, aside
from gateway.doctor.rules.store import LATELY_S, OutboxSeen, StoreSeen, of_outbox, of_store
from gateway.events import Delivery
from gateway.probes.base import Finding
from gateway.store import Reader, Store, StoreError, Unreadable
from gateway.store.schema import APPLICATION_ID, check, migrations, uri

LOOK_S: Final = 5.0
"""For looking through the file: it holds back the writer's checkpoint, and nothing else."""
_STEPS: Final = 10_000
"""Of SQLite's machine between two looks at the time."""


async def check_store(subject: Subject) -> Sequence[Finding]:
    """The file itself."""
    path, alive = subject.settings.store.path, subject.gateway_state.is_alive
    return list(of_store(await aside(lambda: see(path, alive=alive))))


async def check_outbox(subject: Subject) -> Sequence[Finding]:
    """What waits to be delivered."""
    path = subject.settings.store.path
    try:
        async with await reading(path, alive=subject.gateway_state.is_alive) as reader:
            posts = await reader.undelivered_posts()
            ended = await reader.newest_entries(200, kinds=["delivery"])
    except (StoreError, sqlite3.Error, OSError):  # the file's own check says why
        return []
    now = datetime.now(UTC)
    oldest_s = max(((now - post.at).total_seconds() for post in posts), default=0.0)
    uncertain = sum(1 for post in posts if any(part.state == "uncertain" for part in post.parts))
    lately = [one.fact for one in ended if (now - one.at).total_seconds() < LATELY_S]
    uncertain += sum(1 for one in lately if isinstance(one, Delivery) and one.state == "uncertain")
    seen = OutboxSeen(waiting=len(posts), oldest_s=oldest_s, uncertain=uncertain)
    return list(of_outbox(seen, running=subject.gateway_state.kind == "running", where=str(path)))


async def reading(path: Path, *, alive: bool) -> Reader:
    """What is in it, as `Store.open_readonly`, and no file is left beside it. Raises StoreError and sqlite3.Error."""
    if alive or _wal_bytes(path):
        return await Store.open_readonly(path)
    address = _address(path, alive=alive)
    schema = await aside(lambda: _schema(address, path))
    if schema != len(migrations()):
        raise Unreadable(f"{path} has the older schema {schema}")
    return Reader(path, await aiosqlite.connect(address, uri=True, isolation_level=None))


def see(path: Path, *, alive: bool) -> StoreSeen:
    """Look at the file. `alive`: a process may write it meanwhile. Blocks."""
    unusable = _unusable(path.parent)
    there = not unusable and path.exists()
    closed = there and not os.access(path, os.R_OK | os.W_OK)
    seen = StoreSeen(
        path=str(path),
        exists=there,
        directory_problem=unusable,
        newest_schema=len(migrations()),
        free_bytes=_free(path.parent),
        writable=not closed,
    )
    if not there or not os.access(path, os.R_OK):
        return seen
    wal_bytes = _wal_bytes(path)
    opened = _opened(_address(path, alive=alive))
    return StoreSeen(
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


def _wal_bytes(path: Path) -> int:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return 0


def _address(path: Path, *, alive: bool) -> str:
    """For SQLite. Where nobody writes and nothing waits in the write-ahead log, the file alone is the truth.

    Then it is not to make a `-shm` beside it: root, who may have called us, would own that, and the gateway could not
    open its store (https://www.sqlite.org/uri.html#uriimmutable).
    """
    still = "" if alive or _wal_bytes(path) else "&immutable=1"
    return f"{uri(path, 'ro')}{still}"


def _schema(address: str, path: Path) -> int:
    with closing(sqlite3.connect(address, uri=True)) as connection:
        return check(connection, path)


def _opened(address: str) -> tuple[str, int, tuple[str, ...], Literal["whole", "partly", "no"]]:
    """Why it cannot be opened, its schema, what is damaged, and how much was looked at."""
    schema = 0
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (schema,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID or not schema:
                return "the file is not a store of reverie's", 0, (), "no"
            end = time.monotonic() + LOOK_S
            connection.set_progress_handler(lambda: int(time.monotonic() > end), _STEPS)
            rows = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return "", schema, (), "partly"
        return _told(error), schema, (), "no"
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return "the file is not a store of reverie's", 0, (), "no"
        return "", schema, (_told(error),), "whole"
    damage = tuple(" ".join(row.split()) for row in rows if row != "ok")
    return "", schema, damage, "whole"


def _told(error: sqlite3.Error) -> str:
    return f"SQLite says: {error}"


def _unusable(directory: Path) -> str:
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


def _free(directory: Path) -> int:
    for path in (directory, *directory.parents):
        with suppress(OSError):  # it is not there, or one above is closed
            return shutil.disk_usage(path).free
    return 0
