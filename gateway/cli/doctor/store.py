"""Checks of the store, without its lock, without writing, and bounded in time."""

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import aiosqlite

from gateway.cli.doctor.base import DoctorContext, run_in_thread
from gateway.cli.probes.base import Finding
from gateway.core.events import DeliveryReport
from gateway.store import Store, StoreError, StoreReader, StoreUnreadable
from gateway.store.schema import APPLICATION_ID, check_schema, migrations, sqlite_uri

LOW_SPACE_BYTES: Final = 1_000_000_000
"""Free space below which a store that grows by its usual megabytes a day fills the disk within months."""
NO_SPACE_BYTES: Final = 100_000_000
"""Free space below which the next media file or backup may not fit."""
LARGE_WAL_BYTES: Final = 268_435_456
"""Four times what the writer leaves (`journal_size_limit`): a program holds an old snapshot of the store open."""
RECENT_S: Final = 86_400.0
"""Age in seconds beyond which uncertain deliveries are no longer reported."""
LONG_WAIT_S: Final = 600.0
"""Seconds: longer than the usual rate limit of any platform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreObservation:
    """The store file as found."""

    path: str
    exists: bool
    directory_problem: str = ""
    """Reason why its directory cannot be used; empty: it can."""
    open_problem: str = ""
    """Reason why it cannot be opened; empty: it can."""
    schema: int = 0
    newest_schema: int = 0
    """Newest schema that this version knows."""
    damage: tuple[str, ...] = ()
    checked: Literal["whole", "partly", "no"] = "no"
    size_bytes: int = 0
    wal_bytes: int = 0
    free_bytes: int = 0
    writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxObservation:
    """Posts that are not delivered."""

    waiting: int
    oldest_s: float
    """Age of the oldest waiting post; 0: none waits."""
    uncertain: int
    """Recent posts of which it is not known whether they arrived."""


def judge_store(store: StoreObservation) -> Iterator[Finding]:
    """Judge whether the store can be used, and for how long."""
    yield from _judge_space(store)
    if store.directory_problem:
        yield _bad_finding(
            store,
            "store.directory",
            f"its directory cannot be used: {store.directory_problem}",
            "make that directory writable for the gateway's user, or set store.path to another",
        )
        return
    if not store.exists:
        yield Finding(
            code="store.file", level="ok", what="there is none yet; the first start makes it", where=store.path
        )
        return
    if not store.writable:
        yield _bad_finding(
            store,
            "store.readonly",
            "the gateway's user cannot read and write it",
            "chown it to the user that runs the gateway (mode 600), or look whether its disk is mounted read-only",
        )
        return
    if store.open_problem:
        yield _bad_finding(
            store,
            "store.foreign",
            store.open_problem,
            "set store.path to the right file, or restore a backup (`reverie restore FILE --config DIR`)",
        )
        return
    if store.damage:
        yield _bad_finding(
            store,
            "store.damaged",
            f"the file is damaged: {'; '.join(store.damage[:3])}",
            "stop the gateway, keep a copy, look at the disk, and restore the newest backup "
            "(`reverie restore FILE --config DIR`)",
        )
        return
    yield from _judge_schema(store)
    extent = "whole" if store.checked == "whole" else "looked through in part, for want of time, and good so far"
    yield Finding(
        code="store.file",
        level="ok",
        what=f"{_format_size(store.size_bytes)}, schema {store.schema}, {extent}",
        where=store.path,
    )


def judge_outbox(outbox: OutboxObservation, *, running: bool, where: str) -> Iterator[Finding]:
    """Judge the posts that wait for delivery."""
    if outbox.uncertain:
        yield Finding(
            code="store.uncertain",
            level="warning",
            what=f"of {outbox.uncertain} post(s) since yesterday nobody knows whether people have seen them",
            fix="see `reverie log show --kind delivery`, and say it again by hand where it matters",
            where=where,
        )
    if outbox.waiting and (not running or outbox.oldest_s > LONG_WAIT_S):
        how = "the gateway is stopped" if not running else f"the oldest for {outbox.oldest_s / 60:.0f} minutes"
        yield Finding(
            code="store.waiting",
            level="warning",
            what=f"{outbox.waiting} post(s) wait to be delivered; {how}",
            fix="start the gateway" if not running else "see the findings of the channels that they are for",
            where=where,
        )
    elif not outbox.uncertain:
        yield Finding(code="store.outbox", level="ok", what="everything is delivered", where=where)


def _judge_schema(store: StoreObservation) -> Iterator[Finding]:
    if store.schema > store.newest_schema:
        yield _bad_finding(
            store,
            "store.schema",
            f"a newer reverie wrote it (schema {store.schema}, this one knows up to {store.newest_schema})",
            "upgrade the program to that version again, or restore a backup from before",
        )
    elif store.schema < store.newest_schema:
        yield Finding(
            code="store.older",
            level="ok",
            what=f"it has the older schema {store.schema}; the next start brings it to {store.newest_schema}",
            where=store.path,
        )


def _judge_space(store: StoreObservation) -> Iterator[Finding]:
    if store.free_bytes < LOW_SPACE_BYTES:
        yield Finding(
            code="store.disk",
            level="bad" if store.free_bytes < NO_SPACE_BYTES else "warning",
            what=f"{_format_size(store.free_bytes)} are free on its disk",
            fix="make room there, or move the store to a larger disk (store.path)",
            where=store.path,
        )
    if store.wal_bytes > LARGE_WAL_BYTES:
        yield Finding(
            code="store.wal",
            level="warning",
            what=f"its write-ahead log has {_format_size(store.wal_bytes)}",
            fix="end programs that hold the store open (a `reverie log tail -f`, an SQLite shell), then restart",
            where=store.path,
        )


def _bad_finding(store: StoreObservation, code: str, what: str, fix: str) -> Finding:
    return Finding(code=code, level="bad", what=what, fix=fix, where=store.path)


def _format_size(count: int) -> str:
    for unit, name in ((1_000_000_000, "GB"), (1_000_000, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1000:.0f} kB"


INTEGRITY_CHECK_S: Final = 5.0
"""Seconds for the integrity check, which delays nothing but the writer's checkpoint."""
_PROGRESS_STEPS: Final = 10_000
"""Steps of SQLite's virtual machine between two looks at the time."""


async def check_store(context: DoctorContext) -> Sequence[Finding]:
    """Check the store file."""
    path, alive = context.settings.store.path, context.gateway_state.is_alive
    return list(judge_store(await run_in_thread(lambda: inspect_store(path, alive=alive))))


async def check_outbox(context: DoctorContext) -> Sequence[Finding]:
    """Check the posts that wait for delivery."""
    path = context.settings.store.path
    try:
        async with await open_reader(path, alive=context.gateway_state.is_alive) as reader:
            posts = await reader.undelivered_posts()
            ended = await reader.newest_entries(200, kinds=["delivery"])
    except (StoreError, sqlite3.Error, OSError):  # the check of the file reports the reason
        return []
    now = datetime.now(UTC)
    oldest_s = max(((now - post.at).total_seconds() for post in posts), default=0.0)
    uncertain = sum(1 for post in posts if any(part.state == "uncertain" for part in post.parts))
    lately = [one.fact for one in ended if (now - one.at).total_seconds() < RECENT_S]
    uncertain += sum(1 for one in lately if isinstance(one, DeliveryReport) and one.state == "uncertain")
    outbox = OutboxObservation(waiting=len(posts), oldest_s=oldest_s, uncertain=uncertain)
    return list(judge_outbox(outbox, running=context.gateway_state.kind == "running", where=str(path)))


async def open_reader(path: Path, *, alive: bool) -> StoreReader:
    """Open the store for reading as `Store.open_readonly` does, without leaving files beside it.

    Raises StoreError and sqlite3.Error.
    """
    if alive or _read_wal_bytes(path):
        return await Store.open_readonly(path)
    address = _build_sqlite_uri(path, alive=alive)
    schema = await run_in_thread(lambda: _read_schema(address, path))
    if schema != len(migrations()):
        raise StoreUnreadable(f"{path} has the older schema {schema}")
    return StoreReader(path, await aiosqlite.connect(address, uri=True, isolation_level=None))


def inspect_store(path: Path, *, alive: bool) -> StoreObservation:
    """Inspect the store file. `alive`: a process may write to it meanwhile. Blocks."""
    unusable = _find_directory_problem(path.parent)
    exists = not unusable and path.exists()
    closed = exists and not os.access(path, os.R_OK | os.W_OK)
    found = StoreObservation(
        path=str(path),
        exists=exists,
        directory_problem=unusable,
        newest_schema=len(migrations()),
        free_bytes=_read_free_bytes(path.parent),
        writable=not closed,
    )
    if not exists or not os.access(path, os.R_OK):
        return found
    wal_bytes = _read_wal_bytes(path)
    opened = _inspect_database(_build_sqlite_uri(path, alive=alive))
    return StoreObservation(
        path=found.path,
        exists=True,
        open_problem=opened[0],
        schema=opened[1],
        newest_schema=found.newest_schema,
        damage=opened[2],
        checked=opened[3],
        size_bytes=path.stat().st_size,
        wal_bytes=wal_bytes,
        free_bytes=found.free_bytes,
        writable=found.writable,
    )


def _read_wal_bytes(path: Path) -> int:
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except OSError:
        return 0


def _build_sqlite_uri(path: Path, *, alive: bool) -> str:
    """Return the URI for SQLite. Without a writer and without a write-ahead log the file is opened as immutable.

    Then SQLite creates no `-shm` file beside it. Such a file would belong to the user of doctor, perhaps root, and the
    gateway could not open its store (https://www.sqlite.org/uri.html#uriimmutable).
    """
    still = "" if alive or _read_wal_bytes(path) else "&immutable=1"
    return f"{sqlite_uri(path, 'ro')}{still}"


def _read_schema(address: str, path: Path) -> int:
    with closing(sqlite3.connect(address, uri=True)) as connection:
        return check_schema(connection, path)


def _inspect_database(address: str) -> tuple[str, int, tuple[str, ...], Literal["whole", "partly", "no"]]:
    """Return why the database cannot be opened, its schema, its damage, and how much of it was checked."""
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
    """Return why no store can be kept there; empty: it can. SQLite and the lock need files beside the store."""
    for path in (directory, *directory.parents):
        try:
            mode = path.stat().st_mode
        except OSError:  # missing, or below something closed or a file: the parent shows more
            continue
        if not stat.S_ISDIR(mode):
            return f"{path} is no directory"
        return "" if os.access(path, os.R_OK | os.W_OK | os.X_OK) else f"{path} is not open to us, or not writable"
    return "it is not there"


def _read_free_bytes(directory: Path) -> int:
    for path in (directory, *directory.parents):
        with suppress(OSError):  # missing, or below something closed
            return shutil.disk_usage(path).free
    return 0
