"""Looks at the store: without its lock, without writing, and never for long.

What is so about the store. Pure.
"""

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
"""Below that the next media file or backup may be the last."""
LARGE_WAL_BYTES: Final = 268_435_456
"""Four times what the writer lets stand (`journal_size_limit`): somebody holds an old view of the store open."""
RECENT_S: Final = 86_400.0
"""What is longer ago people have dealt with, or never will."""
LONG_WAIT_S: Final = 600.0
"""A post that waits longer than any platform's usual limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreObservation:
    """The file as it was found."""

    path: str
    exists: bool
    directory_problem: str = ""
    """Why its directory cannot be used; empty: it can."""
    open_problem: str = ""
    """Why it cannot be opened; empty: it can."""
    schema: int = 0
    newest_schema: int = 0
    """The schema that this version knows."""
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
    """0: none waits."""
    uncertain: int
    """Of which nobody knows whether people have seen them, lately."""


def judge_store(seen: StoreObservation) -> Iterator[Finding]:
    """Whether it can be used, and for how long."""
    yield from _judge_space(seen)
    if seen.directory_problem:
        yield _bad_finding(
            seen,
            "store.directory",
            f"its directory cannot be used: {seen.directory_problem}",
            "make that directory writable for the gateway's user, or set store.path to another",
        )
        return
    if not seen.exists:
        yield Finding(
            code="store.file", level="ok", what="there is none yet; the first start makes it", where=seen.path
        )
        return
    if not seen.writable:
        yield _bad_finding(
            seen,
            "store.readonly",
            "the gateway's user cannot read and write it",
            "chown it to the user that runs the gateway (mode 600), or look whether its disk is mounted read-only",
        )
        return
    if seen.open_problem:
        yield _bad_finding(
            seen,
            "store.foreign",
            seen.open_problem,
            "set store.path to the right file, or restore a backup (`reverie restore FILE --config DIR`)",
        )
        return
    if seen.damage:
        yield _bad_finding(
            seen,
            "store.damaged",
            f"the file is damaged: {'; '.join(seen.damage[:3])}",
            "stop the gateway, keep a copy, look at the disk, and restore the newest backup "
            "(`reverie restore FILE --config DIR`)",
        )
        return
    yield from _judge_schema(seen)
    extent = "whole" if seen.checked == "whole" else "looked through in part, for want of time, and good so far"
    yield Finding(
        code="store.file",
        level="ok",
        what=f"{_format_size(seen.size_bytes)}, schema {seen.schema}, {extent}",
        where=seen.path,
    )


def judge_outbox(seen: OutboxObservation, *, running: bool, where: str) -> Iterator[Finding]:
    """What waits to be delivered."""
    if seen.uncertain:
        yield Finding(
            code="store.uncertain",
            level="warning",
            what=f"of {seen.uncertain} post(s) since yesterday nobody knows whether people have seen them",
            fix="see `reverie log show --kind delivery`, and say it again by hand where it matters",
            where=where,
        )
    if seen.waiting and (not running or seen.oldest_s > LONG_WAIT_S):
        how = "the gateway is stopped" if not running else f"the oldest for {seen.oldest_s / 60:.0f} minutes"
        yield Finding(
            code="store.waiting",
            level="warning",
            what=f"{seen.waiting} post(s) wait to be delivered; {how}",
            fix="start the gateway" if not running else "see the findings of the channels that they are for",
            where=where,
        )
    elif not seen.uncertain:
        yield Finding(code="store.outbox", level="ok", what="everything is delivered", where=where)


def _judge_schema(seen: StoreObservation) -> Iterator[Finding]:
    if seen.schema > seen.newest_schema:
        yield _bad_finding(
            seen,
            "store.schema",
            f"a newer reverie wrote it (schema {seen.schema}, this one knows up to {seen.newest_schema})",
            "upgrade the program to that version again, or restore a backup from before",
        )
    elif seen.schema < seen.newest_schema:
        yield Finding(
            code="store.older",
            level="ok",
            what=f"it has the older schema {seen.schema}; the next start brings it to {seen.newest_schema}",
            where=seen.path,
        )


def _judge_space(seen: StoreObservation) -> Iterator[Finding]:
    if seen.free_bytes < LOW_SPACE_BYTES:
        yield Finding(
            code="store.disk",
            level="bad" if seen.free_bytes < NO_SPACE_BYTES else "warning",
            what=f"{_format_size(seen.free_bytes)} are free on its disk",
            fix="make room there, or move the store to a larger disk (store.path)",
            where=seen.path,
        )
    if seen.wal_bytes > LARGE_WAL_BYTES:
        yield Finding(
            code="store.wal",
            level="warning",
            what=f"its write-ahead log has {_format_size(seen.wal_bytes)}",
            fix="end programs that hold the store open (a `reverie log tail -f`, an SQLite shell), then restart",
            where=seen.path,
        )


def _bad_finding(seen: StoreObservation, code: str, what: str, fix: str) -> Finding:
    return Finding(code=code, level="bad", what=what, fix=fix, where=seen.path)


def _format_size(count: int) -> str:
    for unit, name in ((1_000_000_000, "GB"), (1_000_000, "MB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count / 1000:.0f} kB"


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
