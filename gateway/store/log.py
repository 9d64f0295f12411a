"""The store, open for writing: a reader, a writer and the lock that makes it the only one."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import aiosqlite

from channels.tasks import whole
from gateway.clock import Clock
from gateway.store.connection import connect_reader
from gateway.store.entries import Appended, Entry
from gateway.store.lock import Lock
from gateway.store.moves import finish
from gateway.store.reader import Reader
from gateway.store.schema import WRITER_PRAGMAS, check_current, make, unreadable, uri
from gateway.store.upgrade import bring_forward
from gateway.store.writer import Listener, Writer, last_seq


class Store(Reader):
    """The log and everything that is folded from it. Made by `open`; close it, or use it in `async with`."""

    def __init__(
        self, path: Path, reading: aiosqlite.Connection, writing: aiosqlite.Connection, writer: Writer, lock: Lock
    ) -> None:
        super().__init__(path, reading)
        self._writing = writing
        self._writer = writer
        self._lock = lock

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> Self:
        """Open for writing, making the file and its folders if they are not there, and migrating it.

        Takes time that does not grow with the log. Raises InUse, TooNew or Unreadable; never deletes
        anything. The clock only says, in the lock file, since when the store is held.
        """
        lock = await asyncio.to_thread(_prepare, path, clock)
        opened: list[aiosqlite.Connection] = []
        try:
            opened.append(writing := await aiosqlite.connect(uri(path, "rw"), uri=True, isolation_level="IMMEDIATE"))
            for pragma in WRITER_PRAGMAS:
                await writing.execute_fetchall(pragma)
            last = await last_seq(writing)
            opened.append(reading := await connect_reader(path))
        except BaseException as error:
            for connection in opened:
                await connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise unreadable(path, error) from error
            raise
        return cls(path, reading, writing, Writer(writing, last), lock)

    @staticmethod
    async def open_readonly(path: Path) -> Reader:
        """Open for reading beside a running gateway or without one. Raises Missing, TooNew or Unreadable."""
        await asyncio.to_thread(check_current, path)
        try:
            return Reader(path, await connect_reader(path))
        except sqlite3.Error as error:
            raise unreadable(path, error) from error

    @property
    def commits(self) -> int:
        """Transactions committed since it was opened."""
        return self._writer.commits

    async def append(self, entries: Sequence[Entry]) -> tuple[Appended, ...]:
        """Write the entries in one transaction, all or none; return once that is on the disk.

        The answers stand in the order of the entries. Many callers at once share commits, in the order in
        which they called. Raises ValueError at once for an entry that can never be stored (a time without
        zone, a lone surrogate, a cause that does not stand before it); NotWritten if the database refuses
        (disk full, ...): nothing of this append is written, others are not harmed, and it may be tried
        again; Closed after `close`. Cancelled, the entries are wholly written or not at all.
        """
        return await self._writer.append(entries)

    def hear(self, listener: Listener) -> None:
        """From now on call this with the entries of each append, and what became of them.

        It is called on the event loop as soon as they are on the disk, in the order of the log, before whoever appended
        them goes on, and also if nobody waits for them any more. It returns at once.
        """
        self._writer.listeners.append(listener)

    async def close(self) -> None:
        """Write what is queued, then let go of the file and the lock. More than once is as good as once."""
        await whole(self._let_go())  # however often whoever closes it is cancelled

    async def _let_go(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self._writing.close()
            await super().close()
            self._lock.release()


def _prepare(path: Path, clock: Clock) -> Lock:
    make(path)
    lock = Lock(path, clock.now())
    try:
        finish(path)
        bring_forward(path)
    except BaseException:
        lock.release()
        raise
    return lock
