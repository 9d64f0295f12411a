"""Month files: what has left the log, as JSON lines compressed by gzip, beside the store. Blocking.

There is one file for each month (UTC), with one line for each entry, as `log show --jsonl` writes
them; `zgrep` and `reverie log show FILE` read it. A file is replaced as a whole, so a crash leaves
the old or the new one.
"""

import gzip
import heapq
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

from gateway.core.facts import MonthArchived
from gateway.store import queries
from gateway.store.files import sync_directory
from gateway.store.log import Log
from gateway.store.reader import LogRow, StoreReader
from gateway.store.types import StoreUnreadable

Parsed = TypeVar("Parsed")


def month_file(store: Path, month: str) -> Path:
    """Return the path of the file for a month, which is written as 2026-03."""
    return store.with_name(f"{store.name}.{month}.jsonl.gz")


def list_month_files(store: Path) -> list[Path]:
    """Return the files that there are, oldest month first. Raises OSError."""
    name = re.compile(rf"{re.escape(store.name)}\.\d{{4}}-\d{{2}}\.jsonl\.gz")
    paths = store.parent.iterdir() if store.parent.is_dir() else ()
    return sorted(path for path in paths if name.fullmatch(path.name))


def row_to_line(row: LogRow) -> str:
    """Return a row of the log as one line of JSON, in ASCII: safe on every terminal."""
    seq, at, kind, conversation, key, cause, body = row
    head = {
        "seq": seq,
        "at": at,
        "kind": kind,
        "conversation": conversation,
        "key": key,
        "cause": cause,
    }
    fact = body if body.isascii() else json.dumps(json.loads(body))
    return f'{json.dumps(head)[:-1]}, "body": {fact}}}'


def line_to_row(line: str) -> LogRow:
    """Return the row of a line. Raises ValueError, KeyError or TypeError for any other text."""
    found = json.loads(line)
    body = json.dumps(found["body"], ensure_ascii=False, separators=(",", ":"))
    seq, at, kind = int(found["seq"]), str(found["at"]), str(found["kind"])
    return seq, at, kind, found["conversation"], found["key"], found["cause"], body


def add_to_file(path: Path, rows: Iterable[LogRow]) -> None:
    """Write rows, which are in the order of the log, into a file, with what it has. When it returns
    they are durable.

    A row that the file has already is not doubled. The file is for its owner alone. Raises OSError,
    and StoreUnreadable, which leaves the file as it was, for one that is damaged.
    """
    had = _parse_lines(path, lambda line: (line_to_row(line)[0], line)) if path.exists() else ()
    merged = heapq.merge(had, ((row[0], row_to_line(row)) for row in rows))
    fresh = path.with_name(f".{path.name}.new")
    opened = os.open(
        fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(opened, "wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
            for (_, line), _ in itertools.groupby(merged):
                file.write(f"{line}\n".encode("ascii"))
        raw.flush()
        os.fsync(opened)
    fresh.replace(path)
    sync_directory(path.parent)


def read_rows(path: Path) -> Iterator[LogRow]:
    """Yield the rows of a file. Raises StoreUnreadable, also for a file that is damaged or no month
    file.
    """
    return _parse_lines(path, line_to_row)


def _parse_lines(path: Path, parse: Callable[[str], Parsed]) -> Iterator[Parsed]:
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            for line in file:
                yield parse(line.rstrip("\n"))
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, KeyError, TypeError) as error:
        what = f"{path} is damaged, or no file of the log ({error})"
        raise StoreUnreadable(f"{what}: restore it from a backup") from error
    except OSError as error:
        raise StoreUnreadable(f"cannot read {path}: {error.strerror}") from error


def insert_archived(log: Log, store: Path, into: str) -> None:
    """Insert the rows of all month files that the table `into` lacks. Raises OSError, StoreError
    and LogError.
    """
    sql = f"INSERT INTO {into} ({queries.COLUMNS}) VALUES {{}} ON CONFLICT DO NOTHING"  # noqa: S608 - names of ours
    for path in list_month_files(store):
        log.write(sql, list(read_rows(path)))


async def has_left(reader: StoreReader, seq: int) -> bool:
    """Return whether the entry at this position has left the log: each position had one. Raises
    StoreError.
    """
    return 0 < seq <= await reader.last_position() and await reader.entry(seq) is None


async def whole_since(reader: StoreReader) -> date | None:
    """Return the day since when the log is whole: what is older has left it. None: nothing has.
    Raises StoreError.
    """
    facts = [one.fact for one in await reader.entries(kinds=["archived"])]
    months = [fact.month for fact in facts if isinstance(fact, MonthArchived)]
    return (
        (date.fromisoformat(f"{max(months)}-01") + timedelta(days=31)).replace(day=1)
        if months
        else None
    )
