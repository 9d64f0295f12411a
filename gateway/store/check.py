"""Checks of the store, without its lock, without writing, and bounded in time."""

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gateway.config.check_registry import CheckContext, check
from gateway.core.events import DeliveryReport
from gateway.core.findings import Finding, bad, ok, warning
from gateway.core.format import format_bytes
from gateway.store import (
    ServerStore,
    Store,
    StoreError,
    StoreMissing,
    StoreTooNew,
    StoreUnreadable,
    local_path,
    store_location,
)
from gateway.store.schema import (
    check_current_schema,
    check_schema,
    newest_schema,
    sqlite_uri,
)

LOW_SPACE_BYTES: Final = 1_000_000_000
"""Free space below which a store that grows by its usual megabytes a day fills the disk within
months."""
NO_SPACE_BYTES: Final = 100_000_000
"""Free space below which the next media file or backup may not fit."""
SOON_FULL_DAYS: Final = 30
"""Days before the disk is full: time to do something about it."""
RECENT_S: Final = 86_400.0
"""Age in seconds beyond which uncertain deliveries are no longer reported."""
LONG_WAIT_S: Final = 600.0
"""Seconds: longer than the usual rate limit of any platform."""


INTEGRITY_CHECK_S: Final = 5.0
"""Seconds for the integrity check, which delays nothing but the writer's checkpoint."""


@check("place of the store")
def check_place(context: CheckContext) -> Iterator[Finding]:
    """Check whether a store can be kept there, and for how long."""
    path, where = context.settings.store.path, str(context.settings.store.path)
    free_bytes = _read_free_bytes(path.parent)
    if free_bytes < LOW_SPACE_BYTES:
        found = bad if free_bytes < NO_SPACE_BYTES else warning
        fix = "free some space there, or move the store to a larger disk (store.path)"
        yield found("store.disk", f"{format_bytes(free_bytes)} are free on its disk", fix, where)
    if problem := _find_directory_problem(path.parent):
        yield bad(
            "store.directory",
            f"its directory cannot be used: {problem}",
            "make that directory writable for the gateway's user, or set store.path to another one",
            where,
        )
    elif path.is_dir():
        yield bad("store.directory", "it is a directory", "let store.path name a file in it", where)
    for agent in context.settings.agents:
        if agent.files and (problem := _find_directory_problem(agent.files)):
            fix = "make it a directory that the gateway's user can write, or take `files` out"
            what = f"the files of the agent cannot be kept there: {problem}"
            yield bad("files.directory", what, fix, f"agents.{agent.id}.files")


@check("store")
def check_store(context: CheckContext) -> Iterator[Finding]:
    """Check whether the store can be used."""
    path, where = context.settings.store.path, str(context.settings.store.path)
    if _find_directory_problem(path.parent):  # reported by the check above
        return
    if isinstance(server := store_location(context.settings.store), ServerStore):
        yield from _check_server(server)
    elif not path.exists():
        yield ok("store.file", "it does not exist yet; the first start creates it", where)
    elif not os.access(path, os.R_OK | os.W_OK):
        fix = (
            "chown it to the user that runs the gateway (mode 600), or check whether its disk is "
            "mounted read-only"
        )
        yield bad("store.readonly", "the gateway's user cannot read and write it", fix, where)
    else:
        yield from _check_database(path)


def _check_server(store: ServerStore) -> Iterator[Finding]:
    try:
        check_current_schema(store)
    except StoreMissing:
        yield ok(
            "store.database", "there is no store in it yet; the first start makes it", str(store)
        )
    except StoreError as error:
        fix = (
            "see that the server runs and has connections left (max_connections), and that "
            "store.url names its host, "
            "port, user, password and database"
        )
        yield bad("store.database", str(error), fix, str(store))
    else:
        yield ok("store.database", f"it can be read, schema {newest_schema(store)}", str(store))


def _check_database(path: Path) -> Iterator[Finding]:
    where, schema, damage, extent = str(path), 0, list[str](), "whole"
    restore = "`reverie restore FILE --config DIR`"
    fix = f"set store.path to the right file, or restore a backup ({restore})"
    try:
        with closing(
            sqlite3.connect(sqlite_uri(path, "still"), uri=True, isolation_level=None)
        ) as connection:
            schema = check_schema(connection, path)
            end = time.monotonic() + INTEGRITY_CHECK_S
            connection.set_progress_handler(lambda: int(time.monotonic() > end), 10_000)
            rows = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
            damage = [" ".join(row.split()) for row in rows if row != "ok"]
    except StoreTooNew as error:
        fix = "upgrade the program to that version again, or restore a backup from before"
        yield bad("store.schema", str(error), fix, where)
        return
    except StoreUnreadable as error:
        yield bad("store.foreign", str(error), fix, where)
        return
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            extent = "checked in part, because of the time limit, and good so far"
        elif error.sqlite_errorcode == sqlite3.SQLITE_NOTADB or isinstance(
            error, sqlite3.OperationalError
        ):
            yield bad("store.foreign", f"SQLite says: {error}", fix, where)
            return
        else:
            damage = [f"SQLite says: {error}"]
    if damage:
        fix = "stop the gateway, keep a copy, check the disk, and restore the newest backup"
        what = f"the file is damaged: {'; '.join(damage[:3])}"
        yield bad("store.damaged", what, f"{fix} ({restore})", where)
        return
    if schema < newest_schema(path):
        what = f"it has the older schema {schema}; the next start brings it to the newest"
        yield ok("store.older", what, where)
    yield ok("store.file", f"{format_bytes(path.stat().st_size)}, schema {schema}, {extent}", where)


@check("posts that wait")
async def check_outbox(context: CheckContext) -> Sequence[Finding]:
    """Check the posts that wait for delivery."""
    path, is_running = (
        store_location(context.settings.store),
        context.gateway_state.kind == "running",
    )
    try:
        async with await Store.open_readonly(path, "visitor") as reader:
            posts = await reader.undelivered_posts()
            ended = await reader.newest_entries(200, kinds=["delivery"])
    except (StoreError, OSError):  # the check of the file reports the reason
        return []
    now, where, found = datetime.now(UTC), str(path), list[Finding]()
    oldest_s = max(((now - post.at).total_seconds() for post in posts), default=0.0)
    uncertain = sum(1 for post in posts if any(part.state == "uncertain" for part in post.parts))
    lately = [one.fact for one in ended if (now - one.at).total_seconds() < RECENT_S]
    uncertain += sum(
        1 for one in lately if isinstance(one, DeliveryReport) and one.state == "uncertain"
    )
    if uncertain:
        what = f"{uncertain} post(s) since yesterday may or may not have arrived"
        fix = "see `reverie log show --kind delivery`, and repeat them by hand where it matters"
        found.append(warning("store.uncertain", what, fix, where))
    if posts and (not is_running or oldest_s > LONG_WAIT_S):
        how = (
            f"the oldest for {oldest_s / 60:.0f} minutes"
            if is_running
            else "the gateway is stopped"
        )
        fix = (
            "see the findings of the channels that they are for"
            if is_running
            else "start the gateway"
        )
        found.append(
            warning(
                "store.waiting", f"{len(posts)} post(s) wait to be delivered; {how}", fix, where
            )
        )
    elif not uncertain:
        found.append(ok("store.outbox", "everything is delivered", where))
    return found


@check("growth of the store")
async def check_growth(context: CheckContext) -> Sequence[Finding]:
    """Tell the growth of the store, and the day on which its disk is full."""
    path, now = store_location(context.settings.store), datetime.now(UTC)
    try:
        async with await Store.open_readonly(path, "visitor") as reader:
            growth = await reader.growth(now)
    except (StoreError, OSError):  # the check of the file reports the reason
        return []
    free_bytes = _read_free_bytes(local_path(path).parent)
    if not isinstance(path, Path):
        return [ok("store.growth", f"it has {growth.size_bytes / 1e6:,.1f} MB", str(path))]
    full, what = growth.full_on(now, free_bytes), f"it has {growth.describe(now, free_bytes)}"
    if full is None or (full - now.date()).days > SOON_FULL_DAYS:
        return [ok("store.growth", what, str(path))]
    fix = (
        "free some space there, move the store to a larger disk (store.path), or keep less "
        "(store.keep)"
    )
    return [warning("store.growth", what, fix, str(path))]


def _find_directory_problem(directory: Path) -> str:
    """Return why no store can be kept there; empty: it can. SQLite and the lock need files beside
    the store.
    """
    for path in (directory, *directory.parents):
        try:
            mode = path.stat().st_mode
        except OSError:  # missing, or below something closed or a file: the parent shows more
            continue
        if not stat.S_ISDIR(mode):
            return f"{path} is not a directory"
        return (
            ""
            if os.access(path, os.R_OK | os.W_OK | os.X_OK)
            else f"{path} is not readable and writable for this user"
        )
    return "it does not exist"


def _read_free_bytes(directory: Path) -> int:
    for path in (directory, *directory.parents):
        with suppress(OSError):  # missing, or below something closed
            return shutil.disk_usage(path).free
    return 0
