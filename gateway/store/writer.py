"""The one task that writes. Everything that is queued while a commit runs goes into the next one."""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aiosqlite

from gateway.records import Seq
from gateway.store.entries import Appended, Entry
from gateway.store.errors import Closed, NotWritten
from gateway.store.plan import Draft, Plan, draft, keys, plan
from gateway.store.projections import SqlValue, grouped

logger = logging.getLogger("reverie.store")

BATCH_ENTRIES = 2_000
"""Entries in one transaction at most (one append of more is one transaction all the same)."""

_LOG = "INSERT INTO log (seq, at, kind, conversation, key, cause, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
_SEARCH = "INSERT INTO search (rowid, text) SELECT seq, text FROM said WHERE seq BETWEEN ? AND ?"
_CHUNKS = tuple(2**power for power in range(11, -1, -1))
"""Rows per statement. SQLite lets go of Python's global lock once per statement step, and with a busy
event loop each time costs up to 5 ms (sys.getswitchinterval) to get it back; so many rows are one step.
Few sizes, so that the prepared statements stay cached."""

Params = tuple[SqlValue, ...]
Listener = Callable[[Sequence[Entry], Sequence[Appended]], None]


@dataclass(slots=True)
class _Append:
    entries: Sequence[Entry]
    drafts: tuple[Draft, ...]
    done: asyncio.Future[tuple[Appended, ...]]


class Writer:
    """Group commit over one connection, whose isolation level must be IMMEDIATE."""

    def __init__(self, connection: aiosqlite.Connection, last: Seq) -> None:
        self._connection = connection
        self._last = last
        self._queue: deque[_Append] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self.commits = 0
        """Transactions committed so far."""
        self.listeners = list[Listener]()
        """As `Store.hear`."""
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def append(self, entries: Sequence[Entry]) -> tuple[Appended, ...]:
        """See `Store.append`."""
        if self._closing:
            raise Closed("the store is closed")
        drafts = draft(entries)
        if not drafts:
            return ()
        call = _Append(entries, drafts, asyncio.get_running_loop().create_future())
        self._queue.append(call)
        self._wake.set()
        return await call.done

    async def close(self) -> None:
        """Take no more, write what is queued, end the task. The connection stays open."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._queue or not self._closing:
                await self._wake.wait()
                self._wake.clear()
                while batch := self._take():
                    await self._write(batch)
        finally:  # only a cancelled task leaves anything here
            self._closing = True
            for call in self._queue:
                if not call.done.done():
                    call.done.set_exception(Closed("the store was closed before this was written"))
            self._queue.clear()

    def _take(self) -> list[_Append]:
        batch: list[_Append] = []
        room = BATCH_ENTRIES
        while self._queue and (not batch or len(self._queue[0].drafts) <= room):
            call = self._queue.popleft()
            if not call.done.done():  # a cancelled caller that has not begun is wholly out
                batch.append(call)
                room -= len(call.drafts)
        return batch

    async def _write(self, batch: list[_Append]) -> None:
        try:
            answers = await self._commit([call.drafts for call in batch])
        except asyncio.CancelledError:
            for call in batch:
                if not call.done.done():
                    call.done.set_exception(Closed("the store was closed while this was being written"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's answer, and the writer lives on
            await self._undo()
            if len(batch) == 1:
                if not batch[0].done.done():
                    refusal = NotWritten(f"not written to the log: {error}")
                    refusal.__cause__ = error
                    batch[0].done.set_exception(refusal)
                return
            half = len(batch) // 2  # narrows down to the one that is to blame, in few more commits
            await self._write(batch[:half])
            await self._write(batch[half:])
            return
        for call, answer in zip(batch, answers, strict=True):
            self._tell(call.entries, answer)
            if not call.done.done():
                call.done.set_result(answer)

    def _tell(self, entries: Sequence[Entry], answer: tuple[Appended, ...]) -> None:
        for listener in self.listeners:
            try:
                listener(entries, answer)
            except Exception:  # a bug: what is written is written, and whoever wrote it is to know
                logger.exception("what was written could not be told")

    async def _commit(self, batch: list[tuple[Draft, ...]]) -> list[tuple[Appended, ...]]:
        made = plan(batch, await self._known(list(keys(batch))), self._last)
        if made.rows:
            # Queued together, they run without a word between the threads; each hop costs 0.1 ms.
            writes = [self._connection.executemany(sql, rows) for sql, rows in _statements(made)]
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
            await self._connection.commit()
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
        try:
            await self._connection.rollback()
            self._last = await last_seq(self._connection)
        except (sqlite3.Error, ValueError):
            return  # the next transaction meets the same trouble and answers its caller with it


async def last_seq(connection: aiosqlite.Connection) -> Seq:
    """The log's last position; 0 if it is empty."""
    ((last,),) = await connection.execute_fetchall("SELECT coalesce(max(seq), 0) FROM log")
    return Seq(last)


def _statements(made: Plan) -> Iterator[tuple[str, list[Params]]]:
    yield from _chunked(_LOG, list(made.rows))
    for sql, rows in grouped(made.projected):
        yield from _chunked(sql, rows)
    if made.said:
        yield _SEARCH, [(made.rows[0].seq, made.rows[-1].seq)]


def _chunked(sql: str, rows: Sequence[Params]) -> Iterator[tuple[str, list[Params]]]:
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
