"""Checks of the processes that share a store in PostgreSQL, wherever they run: directory, connections."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.cli.doctor.base import DoctorContext, Finding, bad, ok, run_in_thread, warning
from gateway.ops.health import find_unseen
from gateway.store import ServerStore, StoreError, store_location
from gateway.store.schema import connect_server

if TYPE_CHECKING:
    from gateway.cluster.cluster import MemberStatus

CONNECTIONS: Final = 5
"""Connections of a process to the database: 4, and one once its dashboard is used."""
_FREE_CONNECTIONS: Final = """
SELECT current_setting('max_connections')::integer,
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true)::integer, 0)
    - (SELECT sum(numbackends) FROM pg_stat_database)::integer + 1 -- that of the doctor
"""


async def check_processes(context: DoctorContext) -> Sequence[Finding]:
    """Check which processes share the store, what they share, and whether there is room for one more."""
    store = store_location(context.settings.store)
    if not isinstance(store, ServerStore):
        return []
    try:
        most, free = await run_in_thread(lambda: _count_connections(store))
        from gateway.cluster.database import read_processes  # noqa: PLC0415 - an extra, and SQLite needs none of it

        statuses, _ = await read_processes(store.url)
    except (StoreError, sqlite3.Error):  # the check of the store reports the reason
        return []
    alive = [one for one in statuses if one.has_session]
    unseen = await run_in_thread(lambda: find_unseen(statuses, store.path, datetime.now(UTC)))
    return [*_judge_alive(alive), *_judge_directory(unseen, store.path), *_judge_connections(most, free)]


def _judge_alive(alive: Sequence["MemberStatus"]) -> Iterator[Finding]:
    if alive:
        listed = ", ".join(one.member.name for one in alive)
        yield ok("process.running", f"the processes of the gateway are {listed}")


def _judge_directory(unseen: str, store: Path) -> Iterator[Finding]:
    if unseen:
        what, _, fix = unseen.partition("; ")
        yield bad("process.directory", what, fix, str(store.parent))


def _judge_connections(most: int, free: int) -> Iterator[Finding]:
    if free < CONNECTIONS:
        what = f"only {max(0, free)} connections of the database are free, and one more process needs {CONNECTIONS}"
        fix = f"raise max_connections of PostgreSQL (it is {most}), or end other programs that use it"
        yield warning("process.connections", what, fix)


def _count_connections(store: ServerStore) -> tuple[int, int]:
    """Return how many connections the server takes at most, and how many more it takes now."""
    with closing(connect_server(store, "reader")) as server:
        ((most, free),) = server.execute(_FREE_CONNECTIONS)
    return int(most), int(free)
