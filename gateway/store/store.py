"""The store open for writing: a reader, a writer with group commit, and the lock that makes it the only one.

`plan_append` is the pure half of an append: which entries are written, and at which positions. `LogWriter` is the one
task that writes: everything queued while a commit runs goes into the next one. The gateway's writer is patient: while
the disk is full, the file is locked or a write fails, appends wait in their order and are retried until they succeed or
`given_up` is set. So no caller needs a retry of its own, and nothing is done twice.
"""

import asyncio
import contextlib
import hashlib
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import aiosqlite

from channels.aio import run_to_completion, with_timeout
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, Sender
from gateway.core.facts import ChannelCardPinned, Fact, Seq, dump_fact
from gateway.core.ratelimit import Rate, TokenBuckets
from gateway.store.active import ActiveConversations, read_conversation
from gateway.store.files import StoreWatch, adopt_rescued, finish_moves, rescue_store
from gateway.store.mark import HighWaterMark, LostEnd, find_lost_end
from gateway.store.projections import (
    ROWS_PER_STATEMENT,
    SEARCHABLE_KINDS,
    Params,
    Statement,
    chunk_rows,
    group_statements,
    project_fact,
)
from gateway.store.reader import (
    Arguments,
    LogRow,
    Result,
    StoreReader,
    ViewEntries,
    connect_in_thread,
    connect_reader,
    last_seq,
    run_in_thread,
)
from gateway.store.rebuild import upgrade_store
from gateway.store.schema import (
    WRITER_PRAGMAS,
    ServerStore,
    StoreLocation,
    StoreLock,
    check_current_schema,
    create_store_file,
    local_path,
    migrate_server,
    sqlite_uri,
    unreadable_error,
)
from gateway.store.types import (
    REMOVED_TEXT,
    AppendFailed,
    AppendResult,
    CommitUncertain,
    LogEntry,
    NewEntry,
    ProcessRemoved,
    ServerInUse,
    ServerUnavailable,
    StoreClosed,
    StoreError,
    StoreFileLost,
    StoreUnreadable,
    UnreadEntries,
    read_entries,
    transient_reason,
)

if TYPE_CHECKING:
    from gateway.store.postgresql import PostgresConnection

logger = logging.getLogger("reverie.store")

Subscriber = Callable[[Sequence[LogEntry]], None]

MAX_BATCH_ENTRIES = 2_000
"""Entries in one transaction at most (one append of more is one transaction all the same)."""
_INSERT_LOG = "INSERT INTO log (seq, at, kind, conversation, key, cause, body) VALUES {}"
_INSERT_SEARCH = "INSERT INTO search (rowid, text) SELECT seq, text FROM said WHERE seq BETWEEN ? AND ?"
_KEEP_KEY = "INSERT INTO archived_key (digest, seq) VALUES (?, ?) ON CONFLICT DO NOTHING"
_RECORD_ARCHIVE = (
    "INSERT INTO archive (name, bytes, entries) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET bytes = excluded.bytes, entries = archive.entries + excluded.entries"
)
FIRST_RETRY_S, MAX_RETRY_S = 0.25, 5.0
"""Delay between two retries of a patient writer: doubles from the first value to the second."""
MAX_LOCKED_RETRY_S = 1.0
"""The longest such delay while another program holds the lock."""
LOCK_GRACE_S = 5.0
"""How long another program's lock lasts before it counts as an outage; other failures do at once."""
FOLLOW_S = 1.0
"""Time after which a shared log is read at the latest: an announcement may have been lost."""
ANNOUNCED_RATE = Rate(burst=5, per_minute=40 * 60)
"""How often it is read because something was announced. A busy log is read for several announcements at once."""


class NewLogRow(NamedTuple):
    """A row of the log, in the order of its columns."""

    seq: Seq
    at: str
    kind: str
    conversation: str | None
    key: str | None
    cause: Seq | None
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDraft:
    """An entry that is complete except for its position."""

    entry: NewEntry
    at: str
    body: str


@dataclass(slots=True, kw_only=True)
class AppendPlan:
    """Rows and statements of one transaction, and the results for each append in it."""

    rows: list[NewLogRow] = field(default_factory=list)
    answers: list[tuple[AppendResult, ...]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    has_text: bool = False
    """True if there is text for the search index."""


def draft_entries(entries: Sequence[NewEntry]) -> tuple[EntryDraft, ...]:
    """Serialise the entries. Raises ValueError for one that could never be stored or read back."""
    earlier: set[int] = set()
    drafts = []
    for entry in entries:
        if entry.at.tzinfo is None:
            raise ValueError("an entry's time needs a time zone")
        if isinstance(entry.cause, NewEntry) and id(entry.cause) not in earlier:
            raise ValueError("an entry's cause must stand before it in the same append")
        for text in (entry.key, entry.conversation):
            if text is not None:
                text.encode()  # a lone surrogate cannot be stored; UnicodeEncodeError is a ValueError
        earlier.add(id(entry))
        at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
        drafts.append(EntryDraft(entry=entry, at=at, body=dump_fact(entry.fact)))
    return tuple(drafts)


def dedup_keys(batch: Sequence[Sequence[EntryDraft]]) -> Iterator[str]:
    """Yield every key that must be looked up before `plan_append`."""
    return (draft.entry.key for drafts in batch for draft in drafts if draft.entry.key is not None)


def plan_append(batch: Sequence[Sequence[EntryDraft]], known: dict[str, Seq], last: Seq) -> AppendPlan:
    """Plan one transaction for a batch. `known`: keys already in the log; `last`: the log's last seq."""
    plan = AppendPlan()
    known = dict(known)
    for drafts in batch:
        results: dict[int, AppendResult] = {}
        for draft in drafts:
            last = _place_draft(draft, results, known, last, plan)
        plan.answers.append(tuple(results[id(draft.entry)] for draft in drafts))
    return plan


def _place_draft(
    draft: EntryDraft, results: dict[int, AppendResult], known: dict[str, Seq], last: Seq, plan: AppendPlan
) -> Seq:
    """Add the draft to the plan, unless it or its cause is in the log already; return the last seq after it.

    Adds to `results`, by entry, and to `known`.
    """
    entry = draft.entry
    cause = entry.cause
    if isinstance(cause, NewEntry):
        cause_result = results[id(cause)]
        if not cause_result.is_new:
            results[id(entry)] = cause_result
            return last
        cause = cause_result.seq
    if entry.key is not None:
        first_seq = known.get(entry.key)
        if first_seq is not None:
            results[id(entry)] = AppendResult(first_seq, is_new=False)
            return last
    seq = Seq(last + 1)
    if entry.key is not None:
        known[entry.key] = seq
    kind = entry.fact.kind
    plan.rows.append(NewLogRow(seq, draft.at, kind, entry.conversation, entry.key, cause, draft.body))
    plan.statements.extend(project_fact(seq, draft.at, entry.conversation, cause, entry.fact))
    plan.has_text = plan.has_text or kind in SEARCHABLE_KINDS
    results[id(entry)] = AppendResult(seq, is_new=True)
    return seq


def list_written(entries: Sequence[NewEntry], results: Sequence[AppendResult]) -> list[LogEntry]:
    """Return the entries of one append that are new in the log, as it holds them."""
    seqs = {id(entry): result.seq for entry, result in zip(entries, results, strict=True)}
    return [
        LogEntry(
            seq=result.seq,
            at=entry.at.astimezone(UTC),
            kind=entry.fact.kind,
            conversation=entry.conversation,
            key=entry.key,
            cause=seqs[id(entry.cause)] if isinstance(entry.cause, NewEntry) else entry.cause,
            fact=entry.fact,
        )
        for entry, result in zip(entries, results, strict=True)
        if result.is_new
    ]


def _append_statements(plan: AppendPlan) -> Iterator[tuple[str, list[Params]]]:
    """Yield the SQL of a transaction, in order, each with its rows."""
    yield from chunk_rows(_INSERT_LOG, list(plan.rows))
    for sql, rows in group_statements(plan.statements):
        yield from chunk_rows(sql, rows)
    if plan.has_text:
        yield _INSERT_SEARCH, [(plan.rows[0].seq, plan.rows[-1].seq)]


@dataclass(slots=True)
class _PendingAppend:
    drafts: tuple[EntryDraft, ...]
    done: asyncio.Future[tuple[AppendResult, ...]]


@dataclass(frozen=True, slots=True)
class StoreOutage:
    """State in which the log cannot be written."""

    since: datetime
    reason: str
    """Reason for people, with a remedy."""


class LogWriter:
    """Group commit over one connection, whose isolation level must be IMMEDIATE.

    One that shares the log with other processes publishes what they append, too, in the order of the log: before an
    append of its own succeeds, and soon after each announcement (`follow`).
    """

    def __init__(
        self,
        connection: aiosqlite.Connection,
        watch: StoreWatch | None,
        last: Seq,
        retry_clock: Clock | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        """`watch` None: it is a database. `retry_clock`: of a patient writer. None: a failed append is refused."""
        self._connection, self._watch = connection, watch
        self._is_shared = is_shared
        self.is_following = False
        """See `Store.begin_following`."""
        self.process: int | None = None
        """See `Store.join`."""
        self._commit_count = self._uncertain_count = 0
        """Transactions that this process has committed, as the database counts them; also with the uncertain one."""
        self.is_removed = False
        """See `Store.is_removed`."""
        self.mark: HighWaterMark | None = None
        """See `gateway.store.mark`. None: it stays as it is."""
        self._rescues = dict[str, str]()
        """What was done about lost files, by what was lost: first the write-ahead log may go, and then all."""
        self.last = last
        """The log's last position."""
        self.is_last_unknown = False
        """True after a failed rollback: `last` may not be the file's."""
        self._uncertain: tuple[list[tuple[EntryDraft, ...]], AppendPlan, _News] | None = None
        """The transaction of which it is not known whether it was committed, and what others appended before it."""
        self._retry_clock = retry_clock
        self._failing: tuple[datetime, float] | None = None
        """Start of the failures, by the wall clock and the monotonic clock. None: the last try succeeded."""
        self._tries = 0
        self.outage: StoreOutage | None = None
        """See `Store.outage`."""
        self.given_up = asyncio.Event()
        self.working = asyncio.Event()
        """Set while there is no outage, and once it is given up."""
        self.working.set()
        self.outage_listeners: list[Callable[[StoreOutage | None], None]] = []
        """Called when an outage begins (again with each new reason), and with None when it is over."""
        self._queue: deque[_PendingAppend] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._is_behind = True
        """Others may have appended what was not read yet."""
        self._announced_rate = TokenBuckets(ANNOUNCED_RATE)
        self._late_reading: asyncio.TimerHandle | None = None
        """For what was announced since the last reading. None: nothing was, or it is read now."""
        self.commits = 0
        """Transactions committed so far."""
        self.subscriptions = list[tuple[Subscriber, tuple[type[Fact], ...], bool | None]]()
        """See `Store.subscribe`."""
        self._published = asyncio.Event()
        """Set when `last` has grown; then replaced by a new event."""
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def append(self, entries: Sequence[NewEntry], *, lazily: bool = False) -> tuple[AppendResult, ...]:
        """See `Store.append`."""
        if self._closing or (self.outage is not None and self.given_up.is_set()):
            raise StoreClosed("the store is closed")
        drafts = draft_entries(entries)
        if not drafts:
            return ()
        call = _PendingAppend(drafts, asyncio.get_running_loop().create_future())
        self._queue.append(call)
        if not lazily:
            self._wake.set()
        return await call.done

    def flush(self) -> None:
        """See `Store.flush`."""
        self._wake.set()

    async def catch_up(self, upto: int) -> None:
        """See `Store.catch_up`."""
        while self.last < upto:
            self.follow()
            await self._published.wait()

    def follow(self) -> None:
        """See `Store.follow`."""
        if self._late_reading is not None:
            self._late_reading.cancel()
            self._late_reading = None
        self._is_behind = True
        self._wake.set()

    def follow_soon(self) -> None:
        """See `Store.follow_soon`."""
        loop = asyncio.get_running_loop()
        if self._late_reading is None:
            wait_s = self._announced_rate.wait_s("", loop.time())
            self._late_reading = loop.call_later(wait_s, self._read_late)

    def _read_late(self) -> None:
        self._announced_rate.use("", asyncio.get_running_loop().time())
        self.follow()

    def check_files(self) -> None:
        """See `Store.check_files`."""
        try:
            if self._watch is not None:
                self._watch.check()
        except StoreFileLost:
            self._begin_probing()

    def _begin_probing(self) -> None:
        if self._failing is None and self._retry_clock is not None:
            self._failing = self._retry_clock.now(), self._retry_clock.monotonic()
            self._wake.set()

    async def wait_for_server(self, error: ServerUnavailable, *, at_once: bool) -> None:
        """Return when a read may be tried again. Raises the error if the store is not patient; StoreClosed."""
        if self._retry_clock is None:
            raise error
        self._begin_probing()
        with contextlib.suppress(TimeoutError):
            await with_timeout(self._retry_clock, 0.0 if at_once else MAX_LOCKED_RETRY_S, self.given_up.wait())
        if self.given_up.is_set():
            raise StoreClosed(f"given up before this was read: {error}")

    def give_up(self) -> None:
        """See `Store.give_up`."""
        self.given_up.set()
        self.working.set()

    async def close(self) -> None:
        """Refuse new appends, write the queue, end the task. The connection stays open."""
        self._closing = True
        self.give_up()
        self._wake.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._queue or not self._closing:
                if self._failing is None or self.given_up.is_set():
                    await self._wait_for_work()
                self._wake.clear()
                while batch := self._take_batch():
                    await self._write(batch)
                may_follow = self.process is not None and self.is_following and not self.given_up.is_set()
                if self._is_behind and may_follow and self._failing is None:
                    await self._read_news()
                if self._failing is not None and self._retry_clock is not None and not self.given_up.is_set():
                    await self._probe(self._retry_clock)
        finally:  # not empty only if the task was cancelled
            self._closing = True
            for call in self._queue:
                if not call.done.done():
                    call.done.set_exception(StoreClosed("the store was closed before this was written"))
            self._queue.clear()

    async def _wait_for_work(self) -> None:
        if self.process is None or self._retry_clock is None or self.given_up.is_set():
            await self._wake.wait()
            return
        try:
            await with_timeout(self._retry_clock, FOLLOW_S, self._wake.wait())
        except TimeoutError:
            self._is_behind = True

    async def _read_news(self) -> None:
        """Publish what other processes have appended."""
        self._is_behind = False
        try:
            news = await run_in_thread(self._connection, read_news, self.last)
        except sqlite3.Error:
            self._is_behind = True
            self._begin_probing()
        else:
            self._publish_news(news)

    def _publish_news(self, news: "_News") -> None:
        for last, written in news:
            self.last = last
            self._publish(written, is_own=False)

    def _take_batch(self) -> list[_PendingAppend]:
        batch: list[_PendingAppend] = []
        room = MAX_BATCH_ENTRIES
        while self._queue and (not batch or len(self._queue[0].drafts) <= room):
            call = self._queue.popleft()
            if not call.done.done():  # an append cancelled before this is not written at all
                batch.append(call)
                room -= len(call.drafts)
        return batch

    async def _write(self, batch: list[_PendingAppend]) -> None:
        """Write the batch; a patient writer retries. An append that cannot be written is refused alone."""
        while batch := [call for call in batch if not call.done.done()]:
            try:
                answers = await self._commit([call.drafts for call in batch])
            except asyncio.CancelledError:
                self._refuse(batch, StoreClosed("the store was closed while this was being written"))
                raise
            except ProcessRemoved as error:
                await self._end_removed(error, batch)
                return
            except Exception as error:  # noqa: BLE001 - any error is the caller's result, and the writer continues
                await self._roll_back()
                if self._retry_clock is not None and transient_reason(error):
                    await self._wait_for_retry(self._retry_clock, error, batch)
                    continue
                if len(batch) == 1:
                    refusal = AppendFailed(f"not written to the log: {error}")
                    refusal.__cause__ = error
                    self._refuse(batch, refusal)
                    return
                middle = len(batch) // 2  # bisects to the entry that fails, in few more commits
                await self._write(batch[:middle])
                await self._write(batch[middle:])
                return
            self._mark_working()
            for call, answer in zip(batch, answers, strict=True):
                if not call.done.done():
                    call.done.set_result(answer)  # its waiter goes on only after this task has paused
                self._publish(list_written([draft.entry for draft in call.drafts], answer))
            return

    async def _probe(self, clock: Clock) -> None:
        """Test whether the store can be written by now, when no append waits for it any more."""
        try:
            if self._watch is not None:
                self._watch.check()
            ((version,),) = await self._connection.execute_fetchall("PRAGMA user_version")
            await self._connection.execute_fetchall("BEGIN IMMEDIATE")
            await self._connection.execute_fetchall(f"PRAGMA user_version = {version}")
            await self._connection.commit()
        except sqlite3.Error as error:
            await self._roll_back()
            await self._wait_for_retry(clock, error, [])
        else:
            self._mark_working()

    async def _wait_for_retry(self, clock: Clock, error: Exception, batch: list[_PendingAppend]) -> None:
        """Wait until the next retry. Given up: refuse all waiting appends."""
        now, now_s = clock.now(), clock.monotonic()
        self._failing = since, since_s = self._failing or (now, now_s)
        reason = transient_reason(error)
        if isinstance(error, StoreFileLost) and self._watch is not None:
            reason = f"{reason}; {await self._save_lost(reason, self._watch)}"
        locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        if (not locked or now_s - since_s >= LOCK_GRACE_S) and (self.outage is None or self.outage.reason != reason):
            self.outage = StoreOutage(since, reason)
            self._notify_outage()
        self._tries += 1
        delay_s = min(FIRST_RETRY_S * 2.0 ** min(self._tries - 1, 10), MAX_LOCKED_RETRY_S if locked else MAX_RETRY_S)
        try:
            with contextlib.suppress(TimeoutError):
                await with_timeout(clock, delay_s, self.given_up.wait())
        except asyncio.CancelledError:
            self._refuse(batch, StoreClosed("the store was closed before this was written"))
            raise
        if self.given_up.is_set():
            self.outage = self.outage or StoreOutage(since, reason)
            self._refuse([*batch, *self._queue], StoreClosed(f"given up before this was written: {reason}"))
            self._queue.clear()

    async def _end_removed(self, error: ProcessRemoved, batch: list[_PendingAppend]) -> None:
        """Refuse all appends, now and later."""
        with contextlib.suppress(sqlite3.Error, ValueError):
            await self._connection.rollback()
        self.is_removed = True
        clock = self._retry_clock
        self.outage = StoreOutage(clock.now() if clock is not None else datetime.now(UTC), str(error))
        self.give_up()
        self._refuse([*batch, *self._queue], StoreClosed(f"not written: {error}"))
        self._queue.clear()

    async def _save_lost(self, lost: str, watch: StoreWatch) -> str:
        """Save what lost files hold, once for all that is lost by now. Return what to do."""
        if lost not in self._rescues:
            try:
                self._rescues[lost] = await run_in_thread(self._connection, rescue_store, watch)
            except (OSError, sqlite3.Error) as error:
                return f"what it held cannot be saved yet ({error}): make room beside it, and put it back"
        return self._rescues[lost]

    def _mark_working(self) -> None:
        self._failing, self._tries = None, 0
        self._rescues.clear()
        if self.outage is not None:
            self.outage = None
            self._notify_outage()

    def _notify_outage(self) -> None:
        if self.outage is None:
            self.working.set()
        elif not self.given_up.is_set():
            self.working.clear()
        for listener in self.outage_listeners:
            try:
                listener(self.outage)
            except Exception:  # a bug, and no reason to stop writing
                logger.exception("an outage of the log could not be told")

    @staticmethod
    def _refuse(batch: Sequence[_PendingAppend], error: Exception) -> None:
        for call in batch:
            if not call.done.done():
                call.done.set_exception(error)

    def _publish(self, written: Sequence[LogEntry], *, is_own: bool = True) -> None:
        """Call the subscribers with the new entries of one append, if it has any that this version knows."""
        published, self._published = self._published, asyncio.Event()
        published.set()
        for subscriber, fact_types, own in self.subscriptions:
            if own is not None and own is not is_own:
                continue
            wanted = [one for one in written if type(one.fact) in fact_types] if fact_types else written
            if not wanted:
                continue
            try:
                subscriber(wanted)
            except Exception:  # a bug: the entries are written, and their caller must get the result
                logger.exception("a subscriber of the log failed")

    async def _commit(self, batch: list[tuple[EntryDraft, ...]]) -> list[tuple[AppendResult, ...]]:
        if self.is_last_unknown:
            await self._read_last()
        if (plan := self._take_committed(batch)) is None:
            plan = await self._write_batch(batch)
        if plan.rows:
            self.commits += 1
            self.last = plan.rows[-1].seq
        return plan.answers

    async def _write_batch(self, batch: list[tuple[EntryDraft, ...]]) -> AppendPlan:
        try:
            if not self._is_shared:
                return await run_in_thread(self._connection, commit_batch, batch, self.last, self._watch, self.mark)
            assert self.process is not None, "`Store.join` comes before the first append"
            self._is_behind = False
            plan, news, self._commit_count = await run_in_thread(
                self._connection, commit_shared, batch, self.last, self.process, self.mark
            )
        except CommitUncertain as error:
            self._uncertain, self._uncertain_count = (batch, *error.args), self._commit_count + 1
            raise
        self._publish_news(news)
        return plan

    async def _roll_back(self) -> None:
        """Return to the last commit in the file: after an error in COMMIT it is not known which one that is."""
        self.is_last_unknown = self._is_behind = True
        with contextlib.suppress(sqlite3.Error, ValueError):  # the next transaction fails the same way
            await self._read_last()

    async def _read_last(self) -> None:
        """End the transaction, and find out whether it was committed. Raises ProcessRemoved."""
        await self._connection.rollback()
        if self.process is not None:
            found = await run_in_thread(self._connection, count_commits, self.process)
            self._commit_count = found
        else:
            last = await run_in_thread(self._connection, last_seq)
            expected = self.last if self._uncertain is None else self._uncertain[1].rows[-1].seq
            if self._watch is None and last not in (self.last, expected):
                raise ServerInUse("another process has written to this store meanwhile: restart this one")
            self.last = last
        self.is_last_unknown = False

    def _take_committed(self, batch: list[tuple[EntryDraft, ...]]) -> AppendPlan | None:
        """Return the plan of a batch that was committed, though that was not known at once. None: it was not."""
        if self._uncertain is None:
            return None
        (drafts, plan, news), self._uncertain = self._uncertain, None
        answers = {id(one): answer for one, answer in zip(drafts, plan.answers, strict=True)}
        is_committed = (
            self._uncertain_count <= self._commit_count if self._is_shared else plan.rows[-1].seq <= self.last
        )
        if not is_committed or not all(id(one) in answers for one in batch):
            return None  # if it was, a shared log shows it as one of others
        self._publish_news(news)
        return replace(plan, answers=[answers[id(one)] for one in batch])


def commit_batch(
    connection: sqlite3.Connection,
    batch: Sequence[Sequence[EntryDraft]],
    last: Seq,
    watch: StoreWatch | None,
    mark: HighWaterMark | None,
) -> AppendPlan:
    """Write a batch in one transaction, and then the mark, in the connection's thread.

    `last`: the log's last position before it.
    """
    plan = plan_append(batch, _find_known(connection, list(dedup_keys(batch))), last)
    if plan.rows:
        connection.execute("BEGIN IMMEDIATE")
        _write_plan(connection, plan)
        if watch is not None:
            watch.check()
        try:
            connection.commit()
        except sqlite3.Error as error:  # it may be committed all the same
            try:
                connection.rollback()
                found = last_seq(connection)
            except sqlite3.Error:
                raise CommitUncertain(plan, _News()) from error
            if found < plan.rows[-1].seq:
                raise
        if mark is not None:
            mark.write(plan.rows[-1].seq, plan.rows[-1].at)
    return plan


def _write_plan(connection: sqlite3.Connection, plan: AppendPlan) -> None:
    for sql, rows in _append_statements(plan):
        connection.executemany(sql, rows)


class _News(list[tuple[Seq, list[LogEntry]]]):
    """Entries of other processes, those of one transaction together, each with the position of its last one."""

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]]) -> Self:
        """Make it of rows of the log, each with its transaction. Entries of a newer version are left out."""
        return cls(
            (Seq(group[-1][0]), [entry for row in group for entry in _read_row(row)])
            for _, found in groupby(rows, key=lambda row: row[-1])
            if (group := list(found))
        )


def _read_row(row: Sequence[Any]) -> list[LogEntry]:
    try:
        return read_entries([row[:-1]])
    except ValueError:
        logger.warning("entry %s of the log is left out: its text is no fact of the kind %s", row[0], row[2])
        return []


def commit_shared(
    connection: sqlite3.Connection,
    batch: Sequence[Sequence[EntryDraft]],
    last: Seq,
    process: int,
    mark: HighWaterMark | None,
) -> tuple[AppendPlan, _News, int]:
    """Write a batch as `commit_batch`, to a log that other processes write, too.

    `last`: the last position that is known. Returns what others appended after that and before the batch, and the
    number of transactions that `process` has committed. Raises ProcessRemoved.
    """
    server = cast("PostgresConnection", connection)
    found, rows = server.begin_shared(process, last)
    if found is None:
        raise ProcessRemoved(REMOVED_TEXT)
    news = _News.from_rows(rows)
    plan = plan_append(batch, _find_known(connection, list(dedup_keys(batch))), news[-1][0] if news else last)
    _write_plan(connection, plan)
    try:
        connection.commit()
    except sqlite3.Error as error:  # it may be committed all the same
        try:
            connection.rollback()
            counted = count_commits(connection, process)
        except ProcessRemoved:
            raise
        except sqlite3.Error:
            raise CommitUncertain(plan, news) from error
        if counted < found:
            raise
    if mark is not None and plan.rows:
        mark.write(plan.rows[-1].seq, plan.rows[-1].at)
    return plan, news, found


def read_news(connection: sqlite3.Connection, last: Seq) -> _News:
    """Return what was appended to a shared log after this position."""
    return _News.from_rows(cast("PostgresConnection", connection).read_news(last))


def count_commits(connection: sqlite3.Connection, process: int) -> int:
    """Return how many transactions the process has committed. Raises ProcessRemoved."""
    count = cast("PostgresConnection", connection).count_commits(process)
    if count is None:
        raise ProcessRemoved(REMOVED_TEXT)
    return count


def delete_moved(
    connection: sqlite3.Connection,
    rows: Sequence[LogRow],
    digests: Sequence[tuple[bytes, int]],
    name: str,
    valid: int,
    *,
    process: int | None,
) -> float:
    """See `Store.move_out`. One transaction, in the connection's thread. Raises ProcessRemoved."""
    begun_s = time.monotonic()
    if connection.in_transaction:  # the writer looks whether the store can be written again
        raise sqlite3.OperationalError("the log is being written")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if process is not None:
            _check_member(connection, process)
        connection.executemany("INSERT INTO leaving (seq) VALUES (?)", [(row[0],) for row in rows])
        connection.execute(
            "INSERT INTO search (search, rowid, text) SELECT 'delete', seq, text FROM said "
            "WHERE seq IN (SELECT seq FROM leaving)"
        )
        connection.executemany(_KEEP_KEY, digests)
        connection.execute("DELETE FROM log WHERE seq IN (SELECT seq FROM leaving)")
        connection.execute("DELETE FROM leaving")
        connection.execute(_RECORD_ARCHIVE, (name, valid, len(rows)))
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return time.monotonic() - begun_s


def replace_moved(
    connection: sqlite3.Connection,
    part: int,
    copy: int,
    archives: Sequence[tuple[str, int, int]],
    *,
    process: int | None,
) -> None:
    """See `Store.replace_part`. One transaction, in the connection's thread. Raises ProcessRemoved."""
    if connection.in_transaction:  # the writer looks whether the store can be written again
        raise sqlite3.OperationalError("the log is being written")
    connection.execute("BEGIN")
    try:
        if process is not None:
            _check_member(connection, process)
        cast("PostgresConnection", connection).replace_part(part, copy)
        connection.executemany(_RECORD_ARCHIVE, archives)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _check_member(connection: sqlite3.Connection, process: int) -> None:
    if not connection.execute("SELECT 1 FROM process WHERE number = ? FOR SHARE", (process,)).fetchall():
        raise ProcessRemoved(REMOVED_TEXT)


def key_digest(key: str) -> bytes:
    """Return what is kept of the deduplication key of an entry that has left the log."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def _find_known(connection: sqlite3.Connection, wanted: list[str]) -> dict[str, Seq]:
    """Return the keys that were in the log already, with their seqs."""
    if not wanted:
        return {}
    size = next((size for size in reversed(ROWS_PER_STATEMENT) if size >= len(wanted)), len(wanted))
    sql = f"SELECT key, seq FROM log WHERE key IN ({', '.join('?' * size)})"  # noqa: S608 - question marks only
    known = {key: Seq(seq) for key, seq in connection.execute(sql, wanted + [None] * (size - len(wanted)))}
    if len(known) < len(wanted) and connection.execute("SELECT 1 FROM archived_key LIMIT 1").fetchone() is not None:
        for key in wanted:
            found = connection.execute("SELECT seq FROM archived_key WHERE digest = ?", (key_digest(key),)).fetchone()
            if found is not None:
                known.setdefault(key, Seq(found[0]))
    return known


class Store(StoreReader):
    """The log and all tables derived from it. Made by `open`; close it, or use it in `async with`."""

    def __init__(
        self,
        location: StoreLocation,
        reading: aiosqlite.Connection,
        writing: aiosqlite.Connection,
        writer: LogWriter,
        lock: StoreLock,
        *,
        lost_end: LostEnd | None,
    ) -> None:
        super().__init__(location, reading)
        self.lost_end = lost_end
        """What the log had and has no more, as it was opened; known until the next append. None: nothing."""
        writer.mark = self._mark = HighWaterMark(self.path)
        self._writing = writing
        self._writer = writer
        self._lock = lock
        self._active = ActiveConversations(writer.last)
        self.subscribe(self._active.on_appended)

    @classmethod
    async def open(
        cls,
        location: StoreLocation,
        clock: Clock,
        *,
        patient: bool = False,
        locked_s: float = 1.0,
        is_shared: bool = False,
    ) -> Self:
        """Open for writing, creating the file and its folders if they are missing, and migrating it.

        Takes time that does not grow with the log. Raises StoreInUse, StoreTooNew or StoreUnreadable; never deletes
        anything. `patient`: while the log cannot be written, appends wait by `clock`; one try waits for another
        program's lock for `locked_s` of real time. Otherwise the clock is only used for the start time in the lock
        file. `is_shared`: other processes may have the same database open so; `join` comes before the first append.
        """
        path = local_path(location)
        lock = await asyncio.to_thread(_prepare_files, location, clock, is_shared=is_shared)
        opened: list[aiosqlite.Connection] = []
        try:
            opened.append(
                writing := await _connect_writer(location, locked_s if patient else None, is_shared=is_shared)
            )
            last = await run_in_thread(writing, last_seq)
            lost_end = await run_in_thread(writing, find_lost_end, path)
            watch = StoreWatch(path) if location is path else None
            opened.append(reading := await connect_reader(location))
        except BaseException as error:
            for connection in opened:
                await connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise unreadable_error(location, error) from error
            raise
        writer = LogWriter(writing, watch, last, clock if patient else None, is_shared=is_shared)
        return cls(location, reading, writing, writer, lock, lost_end=lost_end)

    @staticmethod
    async def open_readonly(path: StoreLocation) -> StoreReader:
        """Open for reading, with or without a running gateway. Raises StoreMissing, StoreTooNew or StoreUnreadable."""
        await asyncio.to_thread(check_current_schema, path)
        try:
            return StoreReader(path, await connect_reader(path))
        except sqlite3.Error as error:
            raise unreadable_error(path, error) from error

    async def join(self, process: int, *, follows: bool = True) -> None:
        """Append as this process (`gateway.cluster`), and publish what others append, from now on.

        `follows` False: only with an own append, until `begin_following`. Once the others have removed the process
        nothing of it is written: as after `give_up`, and `is_removed` is true. Raises sqlite3.Error.
        """
        await run_in_thread(self._writing, lambda one: cast("PostgresConnection", one).set_process(process))
        self._writer.process = process
        if follows:
            self.begin_following()

    def begin_following(self) -> None:
        """Publish from now on what other processes append, also without an append of this one.

        First all that they have appended since it was opened: what subscribers have loaded meanwhile they see again.
        Does nothing where there are no others.
        """
        self._writer.is_following = True
        self._writer.follow()

    def follow(self) -> None:
        """Read what other processes have appended: somebody waits for it. Returns at once."""
        self._writer.follow()

    def follow_soon(self) -> None:
        """Read what other processes have appended: it was announced. Returns at once.

        In a busy log several announcements are read together, within 25 ms (`ANNOUNCED_RATE`).
        """
        self._writer.follow_soon()

    async def catch_up(self, upto: int) -> None:
        """Return once all entries up to this position, which the log has, were published to the subscribers."""
        await self._writer.catch_up(upto)

    @property
    def is_removed(self) -> bool:
        """Whether other processes have removed this one."""
        return self._writer.is_removed

    @property
    def last(self) -> Seq:
        """Last position of the log whose entry was published to the subscribers."""
        return self._writer.last

    @property
    def commits(self) -> int:
        """Transactions committed since it was opened."""
        return self._writer.commits

    async def activate(self, conversation: ConversationId) -> None:
        """Keep in memory what the turns of a conversation ask for, if there is not too much of it.

        `unread_entries`, `unread_urgency`, `newest_senders`, `pinned_card` and the first `view_entries`
        cost no trip to the database then.
        """
        if (appends := self._active.begin_read(conversation)) is None:
            return
        found = None
        try:
            found = await self._read(read_conversation, conversation)
        except sqlite3.Error as error:
            raise self._read_error(error) from error
        finally:
            self._active.end_read(conversation, appends, found)

    async def _read(self, function: Callable[[sqlite3.Connection, *Arguments], Result], *args: *Arguments) -> Result:
        """See `StoreReader`. A patient store waits while the database cannot be used."""
        at_once = True
        while True:
            try:
                return await super()._read(function, *args)
            except ServerUnavailable as error:
                await self._writer.wait_for_server(error, at_once=at_once)
            at_once = False

    async def unread_entries(self, conversation: ConversationId, *, most: int, after: int = 0) -> UnreadEntries:
        """See `StoreReader.unread_entries`."""
        if (active := self._active.get(conversation)) is not None:
            return active.unread_entries(most=most, after=after)
        return await super().unread_entries(conversation, most=most, after=after)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        """See `StoreReader.unread_urgency`."""
        if (active := self._active.get(conversation)) is not None:
            return active.unread_urgency()
        return await super().unread_urgency(conversation)

    async def view_entries(self, conversation: ConversationId) -> ViewEntries:
        """See `StoreReader.view_entries`. What `activate` has read is given away once: whoever asks keeps it."""
        if (active := self._active.get(conversation)) is not None and active.view is not None:
            found, active.view = active.view, None
            return found
        return await super().view_entries(conversation)

    async def pinned_card(self, conversation: ConversationId) -> ChannelCardPinned | None:
        """See `StoreReader.pinned_card`."""
        if (active := self._active.get(conversation)) is not None:
            return active.card
        return await super().pinned_card(conversation)

    async def newest_senders(self, conversation: ConversationId, *, before: int, most: int) -> list[Sender]:
        """See `StoreReader.newest_senders`."""
        active = self._active.get(conversation)
        if active is not None and (found := active.newest_senders(before=before, most=most)) is not None:
            return found
        return await super().newest_senders(conversation, before=before, most=most)

    async def append(self, entries: Sequence[NewEntry], *, lazily: bool = False) -> tuple[AppendResult, ...]:
        """Write the entries in one transaction, all or none; return once they are on the disk.

        The results are in the order of the entries. Concurrent callers share commits, in the order of their calls.
        Raises ValueError at once for an entry that can never be stored (a time without zone, a lone surrogate, a cause
        that does not precede it); AppendFailed if the database refuses: nothing of this append is written, others are
        not affected; StoreClosed after `close`. A patient store does not raise for temporary failures (disk full,
        locked, ...): the append waits until it is written, or until `give_up`, and then raises StoreClosed. Cancelled,
        the entries are completely written or not at all. `lazily`: with the next commit, whoever causes it.
        """
        return await self._writer.append(entries, lazily=lazily)

    def flush(self) -> None:
        """Write now what waits for the next commit. Returns at once."""
        self._writer.flush()

    @property
    def outage(self) -> StoreOutage | None:
        """Reason and start of an outage of a patient store. None: it can be written, as far as it is known."""
        return self._writer.outage

    async def wait_until_writable(self) -> None:
        """Return once there is no outage. For what costs money, and could not be recorded. Raises StoreClosed."""
        if self.outage is not None:
            await self._writer.working.wait()
        if self.outage is not None:
            raise StoreClosed(f"given up: {self.outage.reason}")

    def add_outage_listener(self, listener: Callable[[StoreOutage | None], None]) -> None:
        """Call this when an outage begins or has another reason, and with None when it is over.

        It is called on the event loop, and must return at once.
        """
        self._writer.outage_listeners.append(listener)

    def check_files(self) -> None:
        """Begin an outage if the store's files were deleted or replaced. Call it every few seconds."""
        self._writer.check_files()

    def give_up(self) -> None:
        """Stop waiting for the end of an outage: the gateway stops."""
        self._writer.give_up()

    @property
    def given_up(self) -> bool:
        """True after `give_up`."""
        return self._writer.given_up.is_set()

    def subscribe(self, subscriber: Subscriber, *fact_types: type[Fact], own: bool | None = None) -> None:
        """Call this from now on with the new entries of each append whose facts are of these types; none given: of all.

        With those that other processes append to the same log, too; those of kinds that only a newer version knows are
        left out. `own`: with this process's alone, or (False) with those of the others alone.

        It is called on the event loop once the append has succeeded, in the order of the log, before the caller of
        `append` continues, and also if that caller was cancelled. It must return at once. Subscribers are called in the
        order of their subscriptions; an exception is logged, and keeps nothing from the others or the append's caller.
        """
        self._writer.subscriptions.append((subscriber, fact_types, own))

    async def move_out(
        self, rows: Sequence[LogRow], digests: Sequence[tuple[bytes, int]], name: str, valid: int
    ) -> float:
        """Delete entries that the archive `name` holds durably within its first `valid` bytes, and record that.

        `digests`: of their keys, with their positions. Returns the seconds for which the writer was busy. Raises
        sqlite3.Error, also while the store cannot be written: then nothing is deleted.
        """
        move = partial(delete_moved, process=self._writer.process)
        return await self._move(move, rows, digests, name, valid)

    async def replace_part(self, part: int, copy: int, archives: Sequence[tuple[str, int, int]]) -> None:
        """Put a copy in the place of a part of the log in PostgreSQL, and record what the archives hold now.

        `archives`: their names, valid bytes, and entries that were added. Raises as `move_out`; ServerUnavailable also
        if the log is read meanwhile in a long transaction.
        """
        replace_ = partial(replace_moved, process=self._writer.process)
        await self._move(replace_, part, copy, archives)

    async def _move(self, move: Callable[[sqlite3.Connection, *Arguments], Result], *args: *Arguments) -> Result:
        if self.outage is not None:
            raise StoreUnreadable(f"the log cannot be written: {self.outage.reason}")
        try:
            return await run_in_thread(self._writing, move, *args)
        except ServerUnavailable:
            self._writer.is_last_unknown = True  # the connection was lost: another process may write
            raise

    async def close(self) -> None:
        """Write the queue, then release the file and the lock. Idempotent."""
        await run_to_completion(self._release())  # also if the caller is cancelled repeatedly

    async def _release(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self._writing.close()
            await super().close()
            self._mark.close()
            self._lock.release()


class StoreTasks(asyncio.TaskGroup):
    """Tasks of one run. While the gateway stops and the log cannot be written, each ends where it would write."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._failure: asyncio.Future[StoreError] | None = None
        self._running = set[asyncio.Task[Any]]()

    @contextlib.contextmanager
    def watch_failure(self) -> Iterator[asyncio.Future[StoreError]]:
        """Hold the first error of the store that ends a task, in place of ending all others at once.

        So whoever waits for it can still tell people; it raises the error then, or cancels the future.
        """
        self._failure = failure = asyncio.get_running_loop().create_future()
        try:
            yield failure
        finally:
            self._failure = None
            failure.cancel()

    def cancel(self) -> None:
        """Cancel all that run."""
        for task in self._running:
            task.cancel()

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """See `asyncio.TaskGroup.create_task`."""
        work = self._run(coro)
        try:
            task = super().create_task(work, name=name, context=context)
        except RuntimeError:  # the group ends: what the last append still starts is cancelled like all else
            task = asyncio.get_running_loop().create_task(work, name=name, context=context)
            task.cancel()
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: coro.close())  # a task cancelled before its first step would never close it
        return task

    async def _run(self, work: Generator[Any, None, Any] | Coroutine[Any, Any, Any]) -> object:
        try:
            return await cast("Coroutine[Any, Any, Any]", work)
        except StoreClosed:
            if not self._store.given_up:
                raise
            return None
        except StoreError as error:
            if self._failure is None or self._failure.cancelled():
                raise
            if not self._failure.done():
                self._failure.set_result(error)
            return None


async def _connect_writer(location: StoreLocation, locked_s: float | None, *, is_shared: bool) -> aiosqlite.Connection:
    """Connect for writing. `locked_s`: see `Store.open`; None: the default. A database is migrated then."""
    if isinstance(location, ServerStore):
        writing = await connect_in_thread(location, "sharer" if is_shared else "writer")
    else:
        writing = await aiosqlite.connect(sqlite_uri(location, "rw"), uri=True, isolation_level="IMMEDIATE")
    try:
        if isinstance(location, ServerStore):
            await run_in_thread(
                writing, lambda one: migrate_server(cast("PostgresConnection", one), location, is_shared=is_shared)
            )
            return writing
        for pragma in WRITER_PRAGMAS:
            await writing.execute_fetchall(pragma)
        if locked_s is not None:
            await writing.execute_fetchall(f"PRAGMA busy_timeout = {int(locked_s * 1000)}")
    except BaseException:
        await writing.close()
        raise
    return writing


def _prepare_files(location: StoreLocation, clock: Clock, *, is_shared: bool) -> StoreLock:
    """Create what is missing, lock it, and migrate a file. Blocking."""
    path = local_path(location)
    create_store_file(path, only_directory=location is not path)
    lock = StoreLock(path, clock.now(), is_shared=is_shared)
    if location is not path:
        return lock
    try:
        finish_moves(path)
        adopt_rescued(path)
        upgrade_store(path)
        lock.lock_file(path)
    except BaseException:
        lock.release()
        raise
    return lock
