"""Retention: entries that are old enough, and that nothing needs any more, leave the log for archives.

`prune_store` is one pass. It finds what must stay (`_FIND_NEEDED`), then takes small steps: up to `STEP_ROWS` entries
are appended to their archive and flushed, then one transaction deletes them and records the archive's new length. So a
crash at any moment leaves each entry in the log, in an archive, or in both with the archive's copy behind its recorded
length, where the next pass removes it. No derived table changes, except the search index.

In PostgreSQL the log is in parts of about a month (`migrations/postgresql/0014_partitions.sql`). Entries of a part wait
until all of them are old. Then they are appended to their archives without a step of the writer, what stays is copied
to a new part, and one short transaction puts that in the place of the old part and records the archives' new lengths.
The old part is dropped, and its space is free at once. A crash before leaves a copy that nobody reads, for the next
pass to drop. A part of more than `WAIT_DAYS` (that of a quiet gateway, or of a log from before there were parts), and
one most of which stays, is left by steps as in a file.

What stays, however old it is:

- every kind that is not in `PRUNABLE_KINDS`, and what caused such an entry: notes, memory, labels of files, approvals,
  acts of administration, reminders, roles, settings made in chat;
- what the next request of a conversation holds or may open: turns in view, the newest turns and messages, what they
  cover and name, edits of that, the pinned card and the topic;
- edits, deletions and judgements of a message, as long as the message itself;
- unread messages, posts that are not delivered, and what they answer. Of what is merely overheard, the newest
  `KEPT_OVERHEARD` of each conversation: no turn shows more, and the older ones are counted in `unread`.
"""

import asyncio
import logging
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from channels.aio import run_to_completion
from gateway.core.clock import Clock
from gateway.core.facts import MESSAGE_KINDS, PRUNABLE_KINDS, fact_kinds
from gateway.store.appends import key_digest
from gateway.store.archive import append_rows, archive_directory, archive_name, list_archives, read_rows
from gateway.store.log import Arguments, Log, Result
from gateway.store.queries import COLUMNS, FIRST_ENTRY_SINCE, LAST, LAST_POSITION, for_sqlite, using
from gateway.store.reader import LogRow, connect
from gateway.store.schema import ServerStore, StoreLocation, connect_server
from gateway.store.shared import SharedStore
from gateway.store.store import KEEP_KEY, Store
from gateway.store.types import ServerUnavailable, StoreError, StoreUnreadable

logger = logging.getLogger("reverie.store")

INTERVAL_S: Final = 6 * 3600.0
"""Time between two passes."""
STEP_ROWS: Final = 100
STEP_BYTES: Final = 500_000
"""Most of one step, in entries and in characters of their facts: some milliseconds for the log's writer."""
STEP_PAUSE_S: Final = 0.05
"""Pause after each step, for messages: a pass moves at most 2,000 entries a second."""
PART_CHECK_S: Final = 600.0
"""Time between two looks whether the log needs another part."""
PART_DAYS: Final = 30
PART_ENTRIES: Final = 10_000
"""Span of a part: the positions of so many days at the pace of the last ones, and at least so many."""
WAIT_DAYS: Final = 62
"""Longest time that a part may span whose entries leave together: so long an entry stays beyond its age at most."""
PART_STEP_ROWS: Final = 2_000
PART_STEP_BYTES: Final = 10_000_000
"""Most of one step of entries that leave together."""
BEGIN_TRIES: Final = 20
BEGIN_PAUSE_S: Final = 0.25
"""Tries to begin a part, with a pause in which messages are taken in."""
REPLACE_TRIES: Final = 300
REPLACE_PAUSE_S: Final = 1.0
"""Tries to replace a part while somebody reads the log in a long transaction, e.g. for a backup."""
KEPT_OVERHEARD: Final = 1_000
KEPT_MESSAGES: Final = 50
"""Newest messages of each conversation that stay: as many as the channel card looks at."""
KEPT_TURNS: Final = 25
"""Newest turns of each conversation that stay: more than a rewind looks at."""
_HANDLE: Final = re.compile(r"(?<![A-Za-z0-9])[etm](\d{1,18})(?!\d)")
"""Handles of results, turns and messages (`gateway.context.evidence`)."""

_MESSAGES = ", ".join(f"'{kind}'" for kind in MESSAGE_KINDS)
_STAYING = ", ".join(f"'{kind}'" for kind in sorted(set(fact_kinds()) - PRUNABLE_KINDS))
_KEEP_NAMED = "INSERT INTO needed SELECT seq FROM log WHERE seq = $1 ON CONFLICT DO NOTHING"


def _newest(table: str, where: str, index: str, count: int) -> str:
    """Return the condition for the newest rows of a table `one` in the conversation `place`."""
    return f"""one.conversation = place.name AND {where} AND one.seq >= coalesce((
    SELECT seq FROM {table} AS one {using(index)} WHERE one.conversation = place.name AND {where}
    ORDER BY seq DESC LIMIT 1 OFFSET {count - 1}), 0)"""  # noqa: S608 - constants only


_IN_TURN = "one.kind = 'turn_ended'"
_FIND_NEEDED: Final = f"""
CREATE TEMP TABLE needed (seq bigint PRIMARY KEY);
CREATE TEMP TABLE place (name TEXT PRIMARY KEY);
INSERT INTO place WITH RECURSIVE found (name) AS (
    SELECT min(conversation) FROM log {using("log_conversation")} WHERE conversation IS NOT NULL
    UNION ALL
    SELECT (SELECT min(conversation) FROM log {using("log_conversation")} WHERE conversation > found.name)
    FROM found WHERE found.name IS NOT NULL
) SELECT name FROM found WHERE name IS NOT NULL;
INSERT INTO needed SELECT max(seq) FROM log HAVING max(seq) IS NOT NULL;

-- Unread, and not delivered.
INSERT INTO needed SELECT seq FROM unread WHERE urgency >= 1 ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT one.seq FROM place CROSS JOIN unread AS one {using("unread_conversation")}
WHERE {_newest("unread", "one.urgency < 1", "unread_conversation", KEPT_OVERHEARD)} ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT seq FROM outbox WHERE true ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT part.seq
FROM outbox CROSS JOIN log AS post CROSS JOIN log AS part {using("log_conversation")}
WHERE post.seq = outbox.seq AND part.conversation = post.conversation AND part.seq > post.seq
    AND part.kind IN ('sending', 'part') AND json_extract(part.body, '$.post') = outbox.post
ON CONFLICT DO NOTHING;

-- What the view of each conversation shows.
INSERT INTO needed SELECT turn.seq FROM place CROSS JOIN log AS turn {using("log_turn")}
WHERE turn.kind = 'turn_ended' AND turn.conversation = place.name
    AND turn.seq >= coalesce((SELECT start FROM view WHERE view.conversation = place.name), 0)
ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT one.seq FROM place CROSS JOIN log AS one {using("log_turn")}
WHERE {_newest("log", _IN_TURN, "log_turn", KEPT_TURNS)} ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT fold FROM view WHERE fold > 0 ON CONFLICT DO NOTHING;

-- What a turn did that was cut off, so that its repetition does not do it again.
INSERT INTO needed SELECT begun.seq FROM place CROSS JOIN log AS begun {using("log_conversation")}
WHERE begun.conversation = place.name AND begun.kind IN ('tool_begun', 'acted') AND begun.seq > coalesce((
    SELECT max(seq) FROM log AS one {using("log_turn")} WHERE {_IN_TURN} AND one.conversation = place.name
), 0) ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT one.seq FROM place CROSS JOIN log AS one {using("log_conversation")}
WHERE {_newest("log", f"one.kind IN ({_MESSAGES})", "log_conversation", KEPT_MESSAGES)} ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT card.seq FROM place CROSS JOIN log AS card WHERE card.seq = (
    SELECT max(seq) FROM log AS one {using("log_carded")} WHERE one.kind = 'carded' AND one.conversation = place.name
) ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT topic.seq FROM place CROSS JOIN log AS topic WHERE topic.seq = (
    SELECT max(seq) FROM log AS one {using("log_topic")} WHERE one.kind = 'membership'
    AND json_extract(one.body, '$.change') = 'topic' AND one.conversation = place.name
) ON CONFLICT DO NOTHING;
"""  # noqa: S608 - constants only
_CHANGES: Final = f"""
INSERT INTO needed SELECT changed.seq
FROM needed CROSS JOIN log AS said CROSS JOIN log AS changed {using("log_reworded")}
WHERE said.seq = needed.seq AND said.kind IN ({_MESSAGES}) AND changed.conversation = said.conversation
    AND json_extract(changed.body, '$.message') = json_extract(said.body, '$.id')
    AND changed.kind IN ('edited', 'deleted')
ON CONFLICT DO NOTHING;
"""  # noqa: S608 - constants only
_FOLLOWING: Final = f"""
INSERT INTO needed SELECT later.seq FROM needed CROSS JOIN log AS later {using("log_cause")}
WHERE later.cause = needed.seq ON CONFLICT DO NOTHING;
"""  # noqa: S608 - constants only
_FIND_RELATED: Final = f"""
INSERT INTO needed SELECT CAST(told.value AS bigint)
FROM needed CROSS JOIN log AS turn CROSS JOIN json_each(turn.body, '$.covers') AS told
WHERE turn.seq = needed.seq AND turn.kind = 'turn_ended' ON CONFLICT DO NOTHING;
INSERT INTO needed SELECT result.seq FROM needed CROSS JOIN log AS turn CROSS JOIN log AS result
WHERE turn.seq = needed.seq AND turn.kind = 'turn_ended'
    AND result.key > 'evidence:' || json_extract(turn.body, '$.turn') || ':'
    AND result.key < 'evidence:' || json_extract(turn.body, '$.turn') || ';'
ON CONFLICT DO NOTHING;
{_CHANGES}
-- What follows from these, twice (judgements; posts and their deliveries), and what led to all that stays.
{_FOLLOWING}{_FOLLOWING}
INSERT INTO needed
SELECT cause FROM log {using("log_kind")} WHERE kind IN ({_STAYING}) AND cause IS NOT NULL ON CONFLICT DO NOTHING;
INSERT INTO needed WITH RECURSIVE up (seq) AS (
    SELECT log.cause FROM needed JOIN log USING (seq) WHERE log.cause IS NOT NULL
    UNION SELECT log.cause FROM up JOIN log USING (seq) WHERE log.cause IS NOT NULL
) SELECT seq FROM up WHERE true ON CONFLICT DO NOTHING;

-- Edits and deletions of all messages that stay, with their judgements: else a deleted text would be shown again.
{_CHANGES}
INSERT INTO needed SELECT judged.seq FROM needed CROSS JOIN log AS judged {using("log_cause")}
WHERE judged.cause = needed.seq AND judged.kind = 'judged' ON CONFLICT DO NOTHING;
"""  # noqa: S608 - constants only
_PREPARE_PARTS: Final = """
SET lock_timeout = 1000;
SELECT drop_parts();
CREATE TEMP TABLE leaving_part (seq bigint PRIMARY KEY);
"""
_LIST_PARTS: Final = (
    "SELECT number, first, until, (SELECT at FROM log WHERE seq >= first ORDER BY seq LIMIT 1), "
    "(SELECT at FROM log WHERE seq < until ORDER BY seq DESC LIMIT 1) "
    "FROM part WHERE until <= (SELECT max(seq) FROM log) ORDER BY first"
)
"""Parts to which nothing is added any more, with the times of their first and last entries."""
_SAME_ENTRY = (
    "SELECT 1 FROM log WHERE seq = $1 AND at = $2 AND kind = $3 AND coalesce(conversation, '') = coalesce($4, '') "
    "AND coalesce(key, '') = coalesce($5, '') AND coalesce(cause, 0) = coalesce($6, 0)"
)
_VIEW_BODIES = "SELECT log.body FROM needed JOIN log USING (seq) WHERE log.kind IN ('turn_ended', 'folded')"


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """Result of one pass."""

    entries: int
    """Number of entries that left the log."""
    longest_s: float
    """Longest time that one step kept the log's writer busy, by the clock of the machine."""


Bounds = list[tuple[str, int, list[str]]]
"""Times before which kinds are too old, each with the position that ends the search, and the kinds."""


class _Span(NamedTuple):
    """Positions that are left in one way: after `after`, before `before`."""

    after: int
    before: int
    bounds: Bounds
    part: int | None = None
    """Number of the part that is replaced. None: its entries are deleted by steps."""


async def run_retention(store: Store, keep: Mapping[str, float], clock: Clock) -> None:
    """Prune now and every `INTERVAL_S`, without end. `keep`: as for `prune_store`; empty: everything stays.

    Begins parts of a log in PostgreSQL, also if everything stays.
    """
    is_server, next_s = isinstance(store.location, ServerStore), 0.0
    pause_s = PART_CHECK_S if is_server else INTERVAL_S
    while keep or is_server:
        next_s -= pause_s
        try:
            if is_server:
                await begin_parts(store, clock.now())
            if keep and next_s <= 0.0:
                next_s = INTERVAL_S
                report = await prune_store(store, keep, clock)
                if report.entries:
                    logger.info("%d old entries have left the log for its archives", report.entries)
        except (StoreError, OSError) as error:
            logger.warning("old entries stay in the log for now: %s", error)
        await clock.sleep(pause_s)


async def begin_parts(store: Store, now: datetime, *, least: int = PART_ENTRIES) -> bool:
    """Begin parts of a log in PostgreSQL if it needs them. `least`: entries of one. Returns whether it did.

    Raises StoreError, also if somebody reads the log in a long transaction.
    """
    return await asyncio.to_thread(_begin_parts, store.location, now, least)


def _begin_parts(location: StoreLocation, now: datetime, least: int) -> bool:
    assert isinstance(location, ServerStore)
    since = (now - timedelta(days=PART_DAYS)).astimezone(UTC).isoformat(timespec="microseconds")
    server = connect_server(location, "other")
    try:
        ((first,),) = server.fetch(FIRST_ENTRY_SINCE, (since,))
        ((last,),) = server.fetch(LAST_POSITION)
        for tries in range(BEGIN_TRIES, -1, -1):
            try:
                if not server.begin_parts(max(least, last - first + 1)):
                    return False
                break
            except ServerUnavailable:  # somebody reads the log, or autovacuum works there
                if not tries:
                    raise
                time.sleep(BEGIN_PAUSE_S)
        server.write("ANALYZE log, search")
        return True
    finally:
        server.close()


async def prune_store(
    store: Store,
    keep: Mapping[str, float],
    clock: Clock,
    *,
    after_archive: Callable[[], None] = lambda: None,
) -> PruneReport:
    """Move entries to archives: those of a kind in `keep` that are older than so many seconds, unless they are needed.

    Messages are taken in meanwhile. Raises StoreError and OSError: then the rest stays until the next
    pass. `after_archive`: called in each step between its two halves, and before and after a part is replaced.
    """
    now, directory = clock.now(), archive_directory(store.path)
    connection = await asyncio.to_thread(_open_pass, store.location, directory)
    moved, longest_s = 0, 0.0
    try:
        bounds = await _in_thread(_find_bounds, connection, _keep_followers(keep), now)
        is_server = isinstance(store.location, ServerStore)
        for span in await _in_thread(partial(_list_spans, connection, bounds, is_server=is_server)):
            if span.part is not None:
                rows_left, took_s = await _replace_part(store, connection, span, clock, after_archive)
                moved, longest_s = moved + rows_left, max(longest_s, took_s)
                continue
            position = span.after
            while rows := await _in_thread(_next_rows, connection, position, span):
                name = archive_name(rows[0][0])
                valid = await _in_thread(_archive_rows, connection, directory / name, rows)
                after_archive()
                took_s = await store.move_out(rows, _digest_keys(rows), name, valid)
                moved, position, longest_s = moved + len(rows), rows[-1][0], max(longest_s, took_s)
                await clock.sleep(STEP_PAUSE_S)
    finally:
        await _in_thread(connection.close)
    return PruneReport(entries=moved, longest_s=longest_s)


async def _in_thread(function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
    """Call this in a thread. Cancelled, it ends first: nobody may close a connection that a thread still uses."""
    return await run_to_completion(asyncio.to_thread(function, *args))


async def _replace_part(
    store: Store,
    connection: Log,
    span: _Span,
    clock: Clock,
    after_archive: Callable[[], None],
) -> tuple[int, float]:
    """Archive what leaves a part, and replace it. Returns the entries, and the longest time the writer was busy."""
    assert span.part is not None
    assert isinstance(store, SharedStore)
    directory = archive_directory(store.path)
    files = dict[str, tuple[int, int]]()
    position, longest_s = span.after, 0.0
    await _in_thread(connection.write, "TRUNCATE leaving_part")
    while rows := await _in_thread(_next_rows, connection, position, span):
        name, position = archive_name(rows[0][0]), rows[-1][0]
        valid, entries = files.get(name, (None, 0))
        valid = await _in_thread(_archive_rows, connection, directory / name, rows, valid)
        files[name] = valid, entries + len(rows)
        await _in_thread(_note_leaving, connection, rows)
        after_archive()
        await clock.sleep(STEP_PAUSE_S)
    copy = await _in_thread(_copy_part, connection, span.part)
    after_archive()
    for tries in range(1, REPLACE_TRIES + 1):
        begun_s = time.monotonic()
        try:
            await store.replace_part(span.part, copy, [(name, *found) for name, found in files.items()])
            break
        except ServerUnavailable:
            if tries == REPLACE_TRIES:
                raise
        finally:
            longest_s = max(longest_s, time.monotonic() - begun_s)
        await clock.sleep(REPLACE_PAUSE_S)
    after_archive()
    await _in_thread(connection.script, "SELECT drop_parts();\nANALYZE log, search;\n")
    return sum(entries for _, entries in files.values()), longest_s


def _digest_keys(rows: Sequence[LogRow]) -> list[tuple[bytes, int]]:
    return [(key_digest(row[4]), row[0]) for row in rows if row[4]]


def _note_leaving(connection: Log, rows: Sequence[LogRow]) -> None:
    """Let the rows stay out of the copy of their part. Their keys, which the log still has, are known for good."""
    with connection.transaction():
        connection.write("INSERT INTO leaving_part VALUES {}", [(row[0],) for row in rows])
        connection.write(KEEP_KEY, _digest_keys(rows))


def _copy_part(connection: Log, part: int) -> int:
    return int(connection.fetch("SELECT copy_part($1)", (part,))[0][0])


def _keep_followers(keep: Mapping[str, float]) -> Mapping[str, float]:
    """Return the ages with those of edits, deletions and judgements at least those of the messages they are about.

    A message without them would be shown as it was before, or though its sender was refused.
    """
    followed, found = MESSAGE_KINDS, dict(keep)
    for kinds in (("edited", "deleted"), ("judged",)):
        for kind in kinds:
            if not found.keys() >= {*followed}:  # some of these stay
                found.pop(kind, None)
            elif kind in found:
                found[kind] = max(found[one] for one in (kind, *followed))
        followed = (*followed, *kinds)
    return found


def _open_pass(location: StoreLocation, directory: Path) -> Log:
    """Open a connection of the pass, which knows in a temporary table `needed` what stays."""
    connection = connect(location, "other" if isinstance(location, ServerStore) else "reader")
    try:
        _trim_archives(connection, directory)
        if isinstance(location, ServerStore):
            connection.script(_PREPARE_PARTS)
        _find(connection, _FIND_NEEDED)  # a turn that ends from now on covers what is unread here
        named = {int(seq) for (body,) in connection.fetch(_VIEW_BODIES) for seq in _HANDLE.findall(body)}
        connection.write(_KEEP_NAMED, [(seq,) for seq in named])
        _find(connection, _FIND_RELATED)
    except BaseException:
        connection.close()
        raise
    return connection


def _find(connection: Log, script: str) -> None:
    connection.begin_snapshot()
    connection.script(script)
    connection.commit()


def _trim_archives(connection: Log, directory: Path) -> None:
    """Remove what a crash has left behind the valid bytes of the archives: all of it is still in the log.

    What is not came with another store: the file is kept under another name.
    """
    for path in [archive.path for archive in list_archives(directory)]:
        valid = _recorded_bytes(connection, path.name)
        if path.stat().st_size == valid:
            continue
        foreign = path.stat().st_size < valid or not _are_stored(connection, path, valid)
        if foreign:
            aside = path.with_name(f"{path.name}.{path.stat().st_mtime_ns}.aside")
            logger.warning("the archive %s is not the one that this store has written: it is kept as %s", path, aside)
            shutil.copy2(path, aside)
        if valid and path.stat().st_size > valid:
            with path.open("r+b") as file:
                file.truncate(valid)
        elif not valid or foreign:
            path.unlink()


def _are_stored(connection: Log, path: Path, valid: int) -> bool:
    try:
        return all(connection.fetch(_SAME_ENTRY, row[:6]) for row in read_rows(path, valid))
    except StoreUnreadable:  # cut off in the middle of a write, where no line is whole
        return True


def _archive_rows(connection: Log, path: Path, rows: Sequence[LogRow], valid: int | None = None) -> int:
    """Append rows to the archive, or begin it anew if it was taken away; return its valid bytes.

    `valid`: those before, if they are not recorded yet.
    """
    if valid is None:
        valid = _recorded_bytes(connection, path.name)
    return append_rows(path, valid if path.exists() else 0, rows)


def _recorded_bytes(connection: Log, name: str) -> int:
    found = connection.fetch("SELECT bytes FROM archive WHERE name = $1", (name,))
    return int(found[0][0]) if found else 0


def _find_bounds(connection: Log, keep: Mapping[str, float], now: datetime) -> Bounds:
    groups: dict[float, list[str]] = {}
    for kind, keep_s in keep.items():
        groups.setdefault(keep_s, []).append(kind)
    found = []
    for keep_s, kinds in groups.items():
        at = (now - timedelta(seconds=keep_s)).astimezone(UTC).isoformat(timespec="microseconds")
        found.append((at, int(connection.fetch(FIRST_ENTRY_SINCE, (at,))[0][0]), kinds))
    return found


def _list_spans(connection: Log, bounds: Bounds, *, is_server: bool) -> list[_Span]:
    """Return how the positions of the log are left, in their order."""
    if not bounds:
        return []
    spans, after = list[_Span](), 0
    for number, first, until, begun, ended in connection.fetch(_LIST_PARTS) if is_server else ():
        if begun is None or ended is None or ended < begun:
            continue
        if datetime.fromisoformat(ended) - datetime.fromisoformat(begun) > timedelta(days=WAIT_DAYS):
            continue
        spans.append(_Span(after, first, bounds))
        whole = [one for one in bounds if one[1] >= until]
        part = _Span(first - 1, until, whole)
        if whole:
            where, params = _leaving(part, part.after)
            count = f"SELECT count(*) FILTER (WHERE {where}), count(*) FROM log WHERE seq >= {first} AND seq < {until}"  # noqa: S608 - constants only
            ((leaving, entries),) = connection.fetch(count, params)
            spans.append(part._replace(part=number) if leaving > max(STEP_ROWS, entries / 2) else part)
        after = until - 1
    return [*spans, _Span(after, LAST, bounds)]


def _leaving(span: _Span, position: int) -> tuple[str, list[str | int]]:
    """Return the condition for entries after a position that leave, and its parameters."""
    terms = list[str]()
    params = list[str | int]([position, min(span.before, max(end for _, end, _ in span.bounds))])

    def param(value: str | int) -> str:
        params.append(value)
        return f"${len(params)}"

    for at, end, kinds in span.bounds:
        names = ", ".join(map(param, kinds))
        terms.append(f"({for_sqlite('+')}kind IN ({names}) AND seq < {param(end)} AND at < {param(at)})")
    return (
        f"seq > $1 AND seq < $2 AND ({' OR '.join(terms)}) "  # noqa: S608 - constants only
        "AND NOT EXISTS (SELECT 1 FROM needed WHERE needed.seq = log.seq)"
    ), params


def _next_rows(connection: Log, position: int, span: _Span) -> list[LogRow]:
    """Return the rows of the next step, oldest first, all for one archive."""
    where, params = _leaving(span, position)
    most_rows, most_bytes = (STEP_ROWS, STEP_BYTES) if span.part is None else (PART_STEP_ROWS, PART_STEP_BYTES)
    rows: list[LogRow] = connection.fetch(
        f"SELECT {COLUMNS} FROM log WHERE {where} ORDER BY seq LIMIT {most_rows}",  # noqa: S608 - constants only
        params,
    )
    size = 0

    def fits(row: LogRow) -> bool:
        nonlocal size
        size += len(row[6])
        return row is rows[0] or (size <= most_bytes and archive_name(row[0]) == archive_name(rows[0][0]))

    return list(takewhile(fits, rows))
