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
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from gateway.core.events import ConversationId
from gateway.store import queries
from gateway.store.log import Log
from gateway.store.reader import LogRow, StoreReader, clamp_params
from gateway.store.schema import migrations
from gateway.store.sqlite_log import SqliteLog
from gateway.store.types import BadSearchQuery, LogEntry, StatementRefused, StoreUnreadable, read_entries

FILE_POSITIONS: Final = 50_000
"""Positions of the log in one file: some megabytes, and what fits into memory for a search."""
_FILE_NAME: Final = re.compile(r"log-(\d{12,19})-(\d{12,19})\.jsonl\.gz")
_GZIP_LEVEL: Final = 6
_MEMORY: Final = "file::memory:"


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


@contextmanager
def _report_damage(path: Path, *, unreadable: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise StoreUnreadable for what a damaged file raises, and for `unreadable`."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, ValueError, KeyError, TypeError) as error:
        raise StoreUnreadable(f"the archive {path} is damaged ({error}): restore it from a backup") from error
    except unreadable as error:
        raise StoreUnreadable(f"cannot read the archive {path}: {error}") from error


def _read_lines(path: Path, from_byte: int = 0) -> Iterator[str]:
    """Yield the lines of a file. A member that is cut off, or being written, ends it."""
    with path.open("rb") as raw:
        raw.seek(from_byte)
        with gzip.open(raw, "rt", encoding="ascii") as file, suppress(EOFError):
            yield from file


def read_rows(path: Path, from_byte: int = 0) -> Iterator[LogRow]:
    """Yield the rows of a file in the order of its lines. A member that is cut off, or being written, ends it.

    Raises OSError, and StoreUnreadable for a damaged file.
    """
    with _report_damage(path):
        yield from map(line_to_row, _read_lines(path, from_byte))


def insert_archived(log: Log, directory: Path, into: str = "log") -> int:
    """Insert the rows of all archives that are not in the table `into`, and return their number.

    Raises OSError, StoreUnreadable and LogError.
    """
    count = f"SELECT count(*) FROM {into}"  # noqa: S608 - names of ours
    ((before,),) = log.fetch(count)
    sql = f"INSERT INTO {into} ({queries.COLUMNS}) VALUES {{}} ON CONFLICT DO NOTHING"  # noqa: S608 - names of ours
    for archive in list_archives(directory):
        log.write(sql, list(read_rows(archive.path)))
    ((found,),) = log.fetch(count)
    return int(found - before)


class ArchivedLog:
    """The whole log: what a store holds, and its archives. A read takes some tenths of a second for each archive."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._directory = archive_directory(reader.path)
        self._lines: tuple[Path, list[str]] | None = None
        """The archive that was read last."""
        self._indexed: tuple[Path, SqliteLog] | None = None
        """The archive that was searched last, and its rows in memory."""

    async def entry(self, seq: int) -> LogEntry | None:
        """Return the entry at this position. Raises StoreError."""
        found = await self.entry_rows(after=seq - 1, before=seq + 1, limit=1)
        return next(iter(read_entries(found)), None)

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
        """Return rows like `StoreReader.entry_rows`."""
        stored = await self._reader.entry_rows(
            after=after, before=before, kinds=kinds, conversation=conversation, match=match, limit=limit, newest=newest
        )
        found = {row[0]: row for row in stored}
        begin = _line_pattern(kinds, conversation)
        sql, params = queries.browse(
            queries.SQLITE,
            after=after,
            before=before,
            kinds=kinds,
            conversation=conversation,
            match=match,
            limit=limit,
            newest=newest,
        )
        archives = await self.list_files()  # after the store: what left it meanwhile is there
        for archive in reversed(archives) if newest else archives:
            chosen = sorted(found, reverse=newest)[:limit]
            if len(chosen) == limit and (
                not limit or (archive.last < chosen[-1] if newest else archive.first > chosen[-1])
            ):
                break
            if archive.last > after and (before is None or archive.first < before):
                rows = await (
                    asyncio.to_thread(self._select, archive.path, begin, after, before, limit, newest=newest)
                    if match is None
                    else asyncio.to_thread(self._search, archive.path, sql, params, match)
                )
                found |= {row[0]: row for row in rows if row[0] not in found}
        return [found[seq] for seq in sorted(sorted(found, reverse=newest)[:limit])]

    async def left(
        self, *, after: int, before: int, kinds: Sequence[str], conversation: ConversationId
    ) -> frozenset[int]:
        """Return the positions of such entries in the archives, with `after` < seq < `before`."""
        begin, found = _line_pattern(kinds, conversation), set[int]()
        for archive in await self.list_files():
            if archive.last > after and archive.first < before:
                rows = await asyncio.to_thread(
                    self._select, archive.path, begin, after, before, FILE_POSITIONS, newest=False
                )
                found |= {row[0] for row in rows}
        return frozenset(found)

    async def list_files(self) -> list[Archive]:
        """Return its archives by range. Raises StoreUnreadable."""
        with _report_damage(self._directory, unreadable=(OSError,)):
            return await asyncio.to_thread(list_archives, self._directory)

    def _search(self, path: Path, sql: str, params: Sequence[str | int], match: str) -> list[LogRow]:
        try:
            return self._index(path).fetch(sql, clamp_params(params))
        except StatementRefused as error:
            raise BadSearchQuery(f"cannot search for {match!r}: {error}") from error

    def _select(
        self, path: Path, begin: re.Pattern[str], after: int, before: int | None, limit: int, *, newest: bool
    ) -> list[LogRow]:
        with _report_damage(path, unreadable=(OSError,)):
            if self._lines is None or self._lines[0] != path:
                self._lines = path, list(_read_lines(path))
            found = ((match, line) for line in self._lines[1] if (match := begin.match(line)) is not None)
            by_seq = {int(match[1]): line for match, line in found}
            chosen = sorted(seq for seq in by_seq if seq > after and (before is None or seq < before))
            return [line_to_row(by_seq[seq]) for seq in (chosen[::-1] if newest else chosen)[:limit]]

    def _index(self, path: Path) -> SqliteLog:
        if self._indexed is None or self._indexed[0] != path:
            memory = SqliteLog(_MEMORY)
            with _report_damage(path, unreadable=(OSError,)):
                _fill_memory(memory, read_rows(path))
            memory.write("INSERT INTO search (search) VALUES ('rebuild')")
            self._indexed = path, memory
        return self._indexed[1]


def _line_pattern(kinds: Sequence[str] | None, conversation: ConversationId | None) -> re.Pattern[str]:
    """Return how a line of `row_to_line` begins that is of one of these kinds and there, with its position."""
    kind = "|".join(map(re.escape, kinds)) if kinds is not None else "[a-z_]+"
    place = f"{re.escape(json.dumps(conversation))}," if conversation is not None else ""
    return re.compile(rf'\{{"seq": (\d+), "at": "[^"]*", "kind": "(?:{kind})", "conversation": {place}')


def _fill_memory(memory: SqliteLog, rows: Iterable[LogRow]) -> None:
    """Make the schema in an empty database, and insert rows. Of rows with the same position the last counts."""
    for _, sql in migrations():
        memory.connection.executescript(sql)
    by_seq = {row[0]: row for row in rows}
    with memory.transaction():
        memory.write("INSERT INTO log VALUES {}", [by_seq[seq] for seq in sorted(by_seq)])


_AROUND: Final = 5_000
"""Positions before and after an entry in which its story is searched: more than a busy hour."""


@asynccontextmanager
async def open_around(reader: StoreReader, seq: int) -> AsyncIterator[StoreReader]:
    """Open a reader of the entries that tell what became of the one at `seq`, though some have left the log.

    It is `reader` itself if none can have left. Raises StoreError.
    """
    archives = await ArchivedLog(reader).list_files()
    if not archives or archives[-1].last < seq:
        yield reader
        return
    rows = await _rows_around(reader, seq)
    memory = SqliteLog(_MEMORY)
    await memory.start()
    async with StoreReader(reader.path, memory) as found:
        await memory.run(_fill_memory, memory, rows)
        yield found


async def _rows_around(reader: StoreReader, seq: int) -> list[LogRow]:
    """Return the rows of the entry's conversation near it, all turns near it, and what dealt with it, however late."""
    log = ArchivedLog(reader)
    entry = await log.entry(seq)
    if entry is None:
        return []
    place, after, before = entry.conversation, seq - _AROUND, seq + _AROUND
    rows = await log.entry_rows(after=after, before=before, conversation=place, limit=2 * _AROUND)
    rows += await log.entry_rows(after=after, before=before, kinds=["turn_ended", "attended"], limit=2 * _AROUND)
    rows += await reader.entry_rows(after=seq, kinds=["rewound"])  # never leave, nor do the next
    rows += await reader.entry_rows(kinds=["reminded"], conversation=place)
    newest = rows
    while place is not None and newest and not any(_has_dealt(row, place, seq) for row in newest):
        newest = await log.entry_rows(after=before - 1, kinds=["turn_ended", "handled"], conversation=place, limit=1)
        if newest:
            after, before = newest[0][0], newest[0][0] + _AROUND
            rows += newest + await log.entry_rows(after=after, before=before, conversation=place, limit=_AROUND)
    posts = {f"delivery:{place}:{row[4].removeprefix('post:')}" for row in rows if row[2] == "post" and row[4]}
    if posts - {row[4] for row in rows}:
        rows += await log.entry_rows(after=before - 1, kinds=["delivery"], conversation=place)
    return rows


def _has_dealt(row: LogRow, place: ConversationId, seq: int) -> bool:
    """Return whether this turn or decision there ends what became of the event at `seq`."""
    if row[0] <= seq or row[2] not in ("turn_ended", "handled") or row[3] != place:
        return False
    fact = json.loads(row[6])
    return bool(fact["upto"] >= seq and fact.get("outcome") != "interrupted")
