"""The one task that writes. Everything that is queued while a commit runs goes into the next one.

The gateway's writer is patient: while the disk is full, the file locked or a write fails, appends wait in their order
and are tried again until they succeed or `given_up` is set. So no caller needs a retry of its own, and nothing is done
twice.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import aiosqlite

from channels.tasks import with_timeout
from gateway.clock import Clock
from gateway.records import Seq
from gateway.store.entries import AppendResult, NewEntry
from gateway.store.errors import AppendFailed, StoreClosed, transient_reason
from gateway.store.plan import AppendPlan, EntryDraft, dedup_keys, draft_entries, plan_append
from gateway.store.projections import SqlValue, group_statements

logger = logging.getLogger("reverie.store")

BATCH_ENTRIES = 2_000
"""Entries in one transaction at most (one append of more is one transaction all the same)."""

_LOG = "INSERT INTO log (seq, at, kind, conversation, key, cause, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
_SEARCH = "INSERT INTO search (rowid, text) SELECT seq, text FROM said WHERE seq BETWEEN ? AND ?"
_CHUNKS = tuple(2**power for power in range(11, -1, -1))
"""Rows per statement. SQLite lets go of Python's global lock once per statement step, and with a busy
event loop each time costs up to 5 ms (sys.getswitchinterval) to get it back; so many rows are one step.
Few sizes, so that the prepared statements stay cached."""

FIRST_WAIT_S, MOST_WAIT_S = 0.25, 5.0
"""Between two tries of a patient writer: doubles from the first to the second."""
LOCKED_S = 5.0
"""A lock of another program is an outage once it has lasted so long; other failures are one at once."""

Params = tuple[SqlValue, ...]
AppendListener = Callable[[Sequence[NewEntry], Sequence[AppendResult]], None]


@dataclass(slots=True)
class _PendingAppend:
    entries: Sequence[NewEntry]
    drafts: tuple[EntryDraft, ...]
    done: asyncio.Future[tuple[AppendResult, ...]]


@dataclass(frozen=True, slots=True)
class StoreOutage:
    """The log cannot be written."""

    since: datetime
    reason: str
    """Why, for people, with what to do about it."""


class LogWriter:
    """Group commit over one connection, whose isolation level must be IMMEDIATE."""

    def __init__(self, connection: aiosqlite.Connection, last: Seq, patient: Clock | None = None) -> None:
        """`patient`: the clock by which it tries again. None: an append that fails is refused at once."""
        self._connection = connection
        self._last = last
        self._is_unsure = False
        """A rollback has failed, so what the file has is not known."""
        self._retry_clock = patient
        self._failing: tuple[datetime, float] | None = None
        """Since when appends fail, also by the monotonic clock."""
        self._tries = 0
        self.outage: StoreOutage | None = None
        """As `Store.outage`."""
        self.given_up = asyncio.Event()
        self.outage_listeners: list[Callable[[StoreOutage | None], None]] = []
        """Called when an outage begins (again with each new reason), and with None when it is over."""
        self._queue: deque[_PendingAppend] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self.commits = 0
        """Transactions committed so far."""
        self.listeners = list[AppendListener]()
        """As `Store.hear`."""
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def append(self, entries: Sequence[NewEntry]) -> tuple[AppendResult, ...]:
        """See `Store.append`."""
        if self._closing or (self.outage is not None and self.given_up.is_set()):
            raise StoreClosed("the store is closed")
        drafts = draft_entries(entries)
        if not drafts:
            return ()
        call = _PendingAppend(entries, drafts, asyncio.get_running_loop().create_future())
        self._queue.append(call)
        self._wake.set()
        return await call.done

    async def close(self) -> None:
        """Take no more, write what is queued, end the task. The connection stays open."""
        self._closing = True
        self.given_up.set()
        self._wake.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._queue or not self._closing:
                if self._failing is None or self.given_up.is_set():
                    await self._wake.wait()
                self._wake.clear()
                while batch := self._take():
                    await self._write(batch)
                if self._failing is not None and self._retry_clock is not None and not self.given_up.is_set():
                    await self._probe(self._retry_clock)
        finally:  # only a cancelled task leaves anything here
            self._closing = True
            for call in self._queue:
                if not call.done.done():
                    call.done.set_exception(StoreClosed("the store was closed before this was written"))
            self._queue.clear()

    def _take(self) -> list[_PendingAppend]:
        batch: list[_PendingAppend] = []
        room = BATCH_ENTRIES
        while self._queue and (not batch or len(self._queue[0].drafts) <= room):
            call = self._queue.popleft()
            if not call.done.done():  # a cancelled caller that has not begun is wholly out
                batch.append(call)
                room -= len(call.drafts)
        return batch

    async def _write(self, batch: list[_PendingAppend]) -> None:
        while batch := [call for call in batch if not call.done.done()]:
            try:
                answers = await self._commit([call.drafts for call in batch])
            except asyncio.CancelledError:
                self._refuse(batch, StoreClosed("the store was closed while this was being written"))
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's answer, and the writer lives on
                await self._undo()
                if self._retry_clock is not None and transient_reason(error):
                    await self._wait_for_retry(self._retry_clock, error, batch)
                    continue
                if len(batch) == 1:
                    refusal = AppendFailed(f"not written to the log: {error}")
                    refusal.__cause__ = error
                    self._refuse(batch, refusal)
                    return
                half = len(batch) // 2  # narrows down to the one that is to blame, in few more commits
                await self._write(batch[:half])
                await self._write(batch[half:])
                return
            self._mark_working()
            for call, answer in zip(batch, answers, strict=True):
                self._notify(call.entries, answer)
                if not call.done.done():
                    call.done.set_result(answer)
            return

    async def _probe(self, clock: Clock) -> None:
        """Whoever waited has gone: see whether it can be written by now."""
        try:
            ((version,),) = await self._connection.execute_fetchall("PRAGMA user_version")
            await self._connection.execute_fetchall("BEGIN IMMEDIATE")
            await self._connection.execute_fetchall(f"PRAGMA user_version = {version}")
            await self._connection.commit()
        except sqlite3.Error as error:
            await self._undo()
            await self._wait_for_retry(clock, error, [])
        else:
            self._mark_working()

    async def _wait_for_retry(self, clock: Clock, error: Exception, batch: list[_PendingAppend]) -> None:
        """Until it is to be tried again. Given up: refuse all that waits."""
        now, now_s = clock.now(), clock.monotonic()
        self._failing = since, since_s = self._failing or (now, now_s)
        reason = transient_reason(error)
        locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        if (not locked or now_s - since_s >= LOCKED_S) and (self.outage is None or self.outage.reason != reason):
            self.outage = StoreOutage(since, reason)
            self._notify_outage()
        self._tries += 1
        delay_s = min(FIRST_WAIT_S * 2.0 ** min(self._tries - 1, 10), 1.0 if locked else MOST_WAIT_S)
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

    def _mark_working(self) -> None:
        self._failing, self._tries = None, 0
        if self.outage is not None:
            self.outage = None
            self._notify_outage()

    def _notify_outage(self) -> None:
        for listener in self.outage_listeners:
            try:
                listener(self.outage)
            except Exception:  # a bug, and no reason to write no more
                logger.exception("an outage of the log could not be told")

    @staticmethod
    def _refuse(batch: Sequence[_PendingAppend], error: Exception) -> None:
        for call in batch:
            if not call.done.done():
                call.done.set_exception(error)

    def _notify(self, entries: Sequence[NewEntry], answer: tuple[AppendResult, ...]) -> None:
        for listener in self.listeners:
            try:
                listener(entries, answer)
            except Exception:  # a bug: what is written is written, and whoever wrote it is to know
                logger.exception("what was written could not be told")

    async def _commit(self, batch: list[tuple[EntryDraft, ...]]) -> list[tuple[AppendResult, ...]]:
        if self._is_unsure:
            await self._reread()
        made = plan_append(batch, await self._known(list(dedup_keys(batch))), self._last)
        if made.rows:
            # By itself, or each of the statements that follow would wait for another program's lock.
            await self._connection.execute_fetchall("BEGIN IMMEDIATE")
            # Queued together, they run without a word between the threads; each hop costs 0.1 ms.
            writes = [self._connection.executemany(sql, rows) for sql, rows in _append_statements(made)]
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
            try:
                await self._connection.commit()
            except sqlite3.Error:  # it may have been committed all the same
                await self._reread()
                if self._last < made.rows[-1].seq:
                    raise
            self.commits += 1
            self._last = made.rows[-1].seq
        return made.answers

    async def _known(self, wanted: list[str]) -> dict[str, Seq]:
        if not wanted:
            return {}
        size = next((size for size in reversed(_CHUNKS) if size >= len(wanted)), len(wanted))
        sql = f"SELECT key, seq FROM log WHERE key IN ({', '.join('?' * size)})"  # noqa: S608 - question marks only
        found = await self._connection.execute_fetchall(sql, wanted + [None] * (size - len(wanted)))
        return {key: Seq(seq) for key, seq in found}

    async def _undo(self) -> None:
        """Back to the last commit, as the file has it: an error in COMMIT leaves open which one that is."""
        self._is_unsure = True
        with contextlib.suppress(sqlite3.Error, ValueError):  # the next transaction meets the same trouble
            await self._reread()

    async def _reread(self) -> None:
        await self._connection.rollback()
        self._last = await last_seq(self._connection)
        self._is_unsure = False


async def last_seq(connection: aiosqlite.Connection) -> Seq:
    """The log's last position; 0 if it is empty."""
    ((last,),) = await connection.execute_fetchall("SELECT coalesce(max(seq), 0) FROM log")
    return Seq(last)


def _append_statements(made: AppendPlan) -> Iterator[tuple[str, list[Params]]]:
    yield from _chunk_inserts(_LOG, list(made.rows))
    for sql, rows in group_statements(made.statements):
        yield from _chunk_inserts(sql, rows)
    if made.has_text:
        yield _SEARCH, [(made.rows[0].seq, made.rows[-1].seq)]


def _chunk_inserts(sql: str, rows: Sequence[Params]) -> Iterator[tuple[str, list[Params]]]:
    """The same rows with as few steps as can be: plain inserts take many rows in one."""
    head, values, row = sql.partition(" VALUES ")
    if not values:
        yield sql, list(rows)
        return
    start = 0
    for size in _CHUNKS:
        while len(rows) - start >= size:
            many = rows[start : start + size]
            yield f"{head} VALUES {', '.join([row] * size)}", [tuple(value for one in many for value in one)]
            start += size
