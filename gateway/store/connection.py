"""A connection for reading, and what it can be asked with."""

from collections.abc import Iterable
from pathlib import Path

import aiosqlite

from gateway.store.queries import LAST
from gateway.store.schema import sqlite_uri


def clamp_params(params: Iterable[str | int | None]) -> list[str | int | None]:
    """Numbers as SQLite can take them: a position beyond 64 bits is beyond every entry, as the last one is."""
    return [max(-LAST, min(value, LAST)) if isinstance(value, int) else value for value in params]


async def connect_reader(path: Path) -> aiosqlite.Connection:
    """A connection that cannot write."""
    connection = await aiosqlite.connect(sqlite_uri(path, "ro"), uri=True, isolation_level=None)
    try:
        await connection.execute_fetchall("PRAGMA query_only = ON")
    except BaseException:  # cancelled, too: a connection that nobody has keeps its thread, and so the process, for ever
        await connection.close()
        raise
    return connection
