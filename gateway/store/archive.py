"""Archives: what has left the log, as JSON lines in files compressed by gzip.

Each file holds the entries of one range of positions, one line each, as `reverie log export` writes them. A step of
`gateway.store.retention` appends one gzip member (RFC 1952 allows several), so a line may follow one of a later entry.
The table `archive` says how many bytes of a file are valid: what is behind them was cut off by a crash, and is still in
the log. `ArchivedLog` reads log and archives as one.
"""

import asyncio
import gzip
import json
import os
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from gateway.core.events import ConversationId
from gateway.store import queries
from gateway.store.reader import LogRow, StoreReader, clamp_params
from gateway.store.schema import migrations
from gateway.store.types import BadSearchQuery, StoreUnreadable

FILE_POSITIONS: Final = 50_000
"""Positions of the log in one file: some megabytes, and what fits into memory for a search."""
_FILE_NAME: Final = re.compile(r"log-(\d{12,19})-(\d{12,19})\.jsonl\.gz")
_GZIP_LEVEL: Final = 6


class Archive(NamedTuple):
    """A file that exists."""

    path: Path
    first: int
    last: int
    """Range of positions that it may hold."""


def archive_directory(store: Path) -> Path:
    """Return the directory of a store's archives."""
    return store.with_name(f"{store.name}.archive")


def archive_name(seq: int) -> str:
    """Return the name of the file for this position."""
    first = (seq - 1) // FILE_POSITIONS * FILE_POSITIONS + 1
    return f"log-{first:012}-{first + FILE_POSITIONS - 1:012}.jsonl.gz"


def list_archives(directory: Path) -> list[Archive]:
    """Return the files by range; none if there is no directory. Raises OSError."""
    paths = directory.iterdir() if directory.is_dir() else ()
    found = [(path, match) for path in paths if (match := _FILE_NAME.fullmatch(path.name)) is not None]
    return sorted((Archive(path, int(match[1]), int(match[2])) for path, match in found), key=lambda a: a[1])


def row_to_line(row: LogRow) -> str:
    """Return a row of the log as one line of JSON, in ASCII: safe on every terminal."""
    seq, at, kind, conversation, key, cause, body = row
    head = {"seq": seq, "at": at, "kind": kind, "conversation": conversation, "key": key, "cause": cause}
    fact = body if body.isascii() else json.dumps(json.loads(body))
    return f'{json.dumps(head)[:-1]}, "body": {fact}}}'


def line_to_row(line: str) -> LogRow:
    """Return the row of a line. Raises ValueError, KeyError or TypeError for any other text."""
    found = json.loads(line)
    body = json.dumps(found["body"], ensure_ascii=False, separators=(",", ":"))
    seq, at, kind = int(found["seq"]), str(found["at"]), str(found["kind"])
    return seq, at, kind, found["conversation"], found["key"], found["cause"], body


def append_rows(path: Path, valid_bytes: int, rows: Iterable[LogRow]) -> int:
    """Write rows durably behind the valid bytes of a file, and return its valid bytes with them. Raises OSError.

    What stood behind these is replaced. The file is for its owner alone.
    """
    member = gzip.compress("".join(f"{row_to_line(row)}\n" for row in rows).encode("ascii"), _GZIP_LEVEL, mtime=0)
    is_new = not path.exists()
    path.parent.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b") as file:
        file.truncate(valid_bytes)
        file.seek(valid_bytes)
        file.write(member)
        file.flush()
        os.fsync(handle)
    if is_new:
        opened = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    return valid_bytes + len(member)


def read_rows(path: Path, from_byte: int = 0) -> Iterator[LogRow]:
    """Yield the rows of a file in the order of its lines. A member that is cut off, or being written, ends it.

    Raises OSError, and StoreUnreadable for a damaged file.
    """
    try:
        with path.open("rb") as raw:
            raw.seek(from_byte)
            with gzip.open(raw, "rt", encoding="ascii") as file, suppress(EOFError):
                for line in file:
                    yield line_to_row(line)
    except (gzip.BadGzipFile, zlib.error, ValueError, KeyError, TypeError) as error:
        raise StoreUnreadable(f"the archive {path} is damaged ({error}): restore it from a backup") from error


def insert_archived(connection: sqlite3.Connection, directory: Path, into: str = "log") -> int:
    """Insert the rows of all archives that are not in the table `into`, and return their number.

    Raises OSError, StoreUnreadable and sqlite3.Error.
    """
    before = connection.total_changes
    sql = f"INSERT OR IGNORE INTO {into} ({queries.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - names of ours
    for archive in list_archives(directory):
        connection.executemany(sql, read_rows(archive.path))
    return connection.total_changes - before


class ArchivedLog:
    """The whole log: what a store holds, and its archives. For commands: a search reads each archive."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._directory = archive_directory(reader.path)
        self._opened: tuple[Path, bool, sqlite3.Connection] | None = None
        """The archive that was read last, whether it is indexed, and its rows in memory."""

    async def entry_rows(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[str] | None = None,
        conversation: ConversationId | None = None,
        match: str | None = None,
        limit: int = 1_000,
        newest: bool = False,
    ) -> list[LogRow]:
        """Return rows like `StoreReader.entry_rows`. Raises OSError as well."""
        stored = await self._reader.entry_rows(
            after=after, before=before, kinds=kinds, conversation=conversation, match=match, limit=limit, newest=newest
        )
        found = {row[0]: row for row in stored}
        sql, params = queries.browse(
            after=after, before=before, kinds=kinds, conversation=conversation, match=match, limit=limit, newest=newest
        )
        archives = await asyncio.to_thread(
            list_archives, self._directory
        )  # after the store: what left it meanwhile is there
        for archive in reversed(archives) if newest else archives:
            chosen = sorted(found, reverse=newest)[:limit]
            if len(chosen) == limit and (
                not limit or (archive.last < chosen[-1] if newest else archive.first > chosen[-1])
            ):
                break
            if archive.last > after and (before is None or archive.first < before):
                rows = await asyncio.to_thread(self._read, archive.path, sql, params, match)
                found |= {row[0]: row for row in rows if row[0] not in found}
        return [found[seq] for seq in sorted(sorted(found, reverse=newest)[:limit])]

    def _read(self, path: Path, sql: str, params: Sequence[str | int], match: str | None) -> list[LogRow]:
        connection = self._open(path, indexed=match is not None)
        try:
            return [tuple(row) for row in connection.execute(sql, clamp_params(params))]
        except sqlite3.OperationalError as error:
            raise BadSearchQuery(f"cannot search for {match!r}: {error}") from error

    def _open(self, path: Path, *, indexed: bool) -> sqlite3.Connection:
        if self._opened is not None and self._opened[:2] == (path, indexed):
            return self._opened[2]
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for _, sql in migrations():
            connection.executescript(sql)
        connection.execute("BEGIN")
        rows = {row[0]: row for row in read_rows(path)}
        connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", [rows[seq] for seq in sorted(rows)])
        if indexed:
            connection.execute("INSERT INTO search (search) VALUES ('rebuild')")
        connection.execute("COMMIT")
        self._opened = (path, indexed, connection)
        return connection
