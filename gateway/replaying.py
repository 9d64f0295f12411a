"""Reads a stretch of a log and has it decided again: beside a running gateway, or from an export."""

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.events import ConversationId
from gateway.records import DmnStateSaved, Seq, TurnRecord, ViewFolded
from gateway.reheard import compare_input
from gateway.replay import ReplayReport, replay_dmn
from gateway.reseen import ViewReplay
from gateway.store import LogEntry, Store, StoreError, StoreReader
from gateway.store.schema import create_store_file, migrate_schema, sqlite_uri

ReplayProgress = Callable[[int, int], None]
"""Called now and then with the position that was reached, and the last one."""

_REPLAYED_KINDS: Final = ("dmn", "folded", "rewound", "turn_ended")
_REPLAY_PAGE: Final = 500
"""Entries in memory at once, besides what is in view."""
_LOG_COLUMNS: Final = ("seq", "at", "kind", "conversation", "key", "cause", "body")


class InvalidLog(StoreError):
    """The file is no export of a log."""


async def replay_log(
    reader: StoreReader, *, since: datetime | None, progress: ReplayProgress = lambda _done, _last: None
) -> ReplayReport:
    """Decide again all that stands in the log since then (None: from its beginning), and compare.

    What was in view at the beginning is read, too. What comes while this reads is part of it, or not.
    """
    report, seen = ReplayReport(), dict[ConversationId, ViewReplay]()
    newest = await reader.newest_entries(1)
    last = newest[-1].seq if newest else 0
    after = await _find_position(reader, since, last) if since is not None else 0
    begin = Seq(after + 1)
    while page := await reader.entries(after=after, before=last + 1, kinds=_REPLAYED_KINDS, limit=_REPLAY_PAGE):
        for entry in page:
            await _replay_entry(reader, entry, begin, seen, report)
        after = page[-1].seq
        progress(after, last)
    return report


async def _replay_entry(
    reader: StoreReader, entry: LogEntry, begin: Seq, seen: dict[ConversationId, ViewReplay], report: ReplayReport
) -> None:
    report.add_entry(entry.seq, entry.at)
    fact, place = entry.fact, entry.conversation
    if isinstance(fact, DmnStateSaved):
        replay_dmn(report, entry.seq, fact)
        return
    if place is None:
        return
    if place not in seen:
        seen[place] = await _load_view(reader, place, begin)
    seen[place].apply_entry(entry, report)
    if isinstance(fact, TurnRecord):
        found = await compare_input(reader, place, entry.seq, fact)
        if found.skipped:
            report.add_skipped("heard", found.skipped)
        elif found.difference:
            report.add_differences("heard", entry.seq, place, found.difference)
        else:
            report.add_match("heard")


async def _load_view(reader: StoreReader, place: ConversationId, begin: Seq) -> ViewReplay:
    """What was in view there when the stretch began."""
    seen, start = ViewReplay(), 0
    for fold in await reader.newest_entries(1, before=begin, kinds=["folded"], conversation=place):
        start = fold.fact.start if isinstance(fold.fact, ViewFolded) else 0
    after, kinds = start - 1, ["turn_ended", "folded", "rewound"]
    while page := await reader.entries(after=after, before=begin, kinds=kinds, conversation=place, limit=_REPLAY_PAGE):
        for entry in page:
            seen.apply_entry(entry, None)
        after = page[-1].seq
    for fold in await reader.newest_entries(1, before=begin, kinds=["folded"], conversation=place):
        seen.apply_entry(fold, None)
    return seen


async def _find_position(reader: StoreReader, since: datetime, last: int) -> int:
    """The position behind which entries are as new as that: times grow with positions, but for a clock set back."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        found = await reader.entries(after=middle, limit=1)
        if found and found[0].at < since:
            low = found[0].seq
        else:
            high = middle
    return low


@contextlib.asynccontextmanager
async def open_log(path: Path) -> AsyncIterator[StoreReader]:
    """A store as it is, or one that is made of an export. Raises StoreError."""
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise InvalidLog(f"cannot read {path}: {error.strerror}") from error
    if head.startswith(b"SQLite format 3\0") or not head:
        async with await Store.open_readonly(path) as reader:
            yield reader
        return
    with tempfile.TemporaryDirectory(prefix="reverie-replay-") as folder:
        made = Path(folder, "export.db")
        create_store_file(made)
        migrate_schema(made)
        with contextlib.closing(sqlite3.connect(sqlite_uri(made, "rw"), uri=True)) as connection, connection:
            try:
                connection.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", _read_export(path))
            except (sqlite3.Error, OverflowError) as error:
                raise InvalidLog(f"{path} is no log: {error}") from error
        async with await Store.open_readonly(made) as reader:
            yield reader


def _read_export(path: Path) -> Iterator[tuple[object, ...]]:
    """The rows of an export, as `reverie log export` writes it."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                said = json.loads(line)
                *head, body = (said[name] for name in _LOG_COLUMNS)
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidLog(f"line {number} of {path} is no entry of a log: {type(error).__name__}") from error
            yield (*head, json.dumps(body, ensure_ascii=False))
