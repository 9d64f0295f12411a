"""The store, open for writing: a reader, a writer and the lock that makes it the only one."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import aiosqlite

from channels.tasks import run_to_completion
from gateway.clock import Clock
from gateway.store.connection import connect_reader
from gateway.store.entries import AppendResult, NewEntry
from gateway.store.lock import StoreLock
from gateway.store.moves import finish_moves
from gateway.store.reader import StoreReader
from gateway.store.schema import WRITER_PRAGMAS, check_current_schema, create_store_file, sqlite_uri, unreadable_error
from gateway.store.upgrade import upgrade_store
from gateway.store.writer import AppendListener, LogWriter, StoreOutage, last_seq


class Store(StoreReader):
    """The log and everything that is folded from it. Made by `open`; close it, or use it in `async with`."""

    def __init__(
        self,
        path: Path,
        reading: aiosqlite.Connection,
        writing: aiosqlite.Connection,
        writer: LogWriter,
        lock: StoreLock,
    ) -> None:
        super().__init__(path, reading)
        self._writing = writing
        self._writer = writer
        self._lock = lock

    @classmethod
    async def open(cls, path: Path, clock: Clock, *, patient: bool = False, locked_s: float = 1.0) -> Self:
        """Open for writing, making the file and its folders if they are not there, and migrating it.

        Takes time that does not grow with the log. Raises InUse, TooNew or Unreadable; never deletes
        anything. `patient`: while the log cannot be written appends wait for that by `clock`; one try waits for
        another program's lock for `locked_s` of real time. Else the clock only says, in the lock file, since when
        the store is held.
        """
        lock = await asyncio.to_thread(_prepare_file, path, clock)
        opened: list[aiosqlite.Connection] = []
        try:
            opened.append(
                writing := await aiosqlite.connect(sqlite_uri(path, "rw"), uri=True, isolation_level="IMMEDIATE")
            )
            for pragma in WRITER_PRAGMAS:
                await writing.execute_fetchall(pragma)
            if patient:
                await writing.execute_fetchall(f"PRAGMA busy_timeout = {int(locked_s * 1000)}")
            last = await last_seq(writing)
            opened.append(reading := await connect_reader(path))
        except BaseException as error:
            for connection in opened:
                await connection.close()
            lock.release()
            if isinstance(error, sqlite3.Error):
                raise unreadable_error(path, error) from error
            raise
        return cls(path, reading, writing, LogWriter(writing, last, clock if patient else None), lock)

    @staticmethod
    async def open_readonly(path: Path) -> StoreReader:
        """Open for reading beside a running gateway or without one. Raises Missing, TooNew or Unreadable."""
        await asyncio.to_thread(check_current_schema, path)
        try:
            return StoreReader(path, await connect_reader(path))
        except sqlite3.Error as error:
            raise unreadable_error(path, error) from error

    @property
    def commits(self) -> int:
        """Transactions committed since it was opened."""
        return self._writer.commits

    async def append(self, entries: Sequence[NewEntry]) -> tuple[AppendResult, ...]:
        """Write the entries in one transaction, all or none; return once that is on the disk.

        The answers stand in the order of the entries. Many callers at once share commits, in the order in
        which they called. Raises ValueError at once for an entry that can never be stored (a time without
        zone, a lone surrogate, a cause that does not stand before it); NotWritten if the database refuses:
        nothing of this append is written, others are not harmed; Closed after `close`. A patient store does not
        raise for what may pass (disk full, locked, ...): the append waits until it is written, or until `give_up`,
        and raises Closed then. Cancelled, the entries are wholly written or not at all.
        """
        return await self._writer.append(entries)

    @property
    def outage(self) -> StoreOutage | None:
        """Why a patient store cannot write, and since when. None: it can, as far as it is known."""
        return self._writer.outage

    def add_outage_listener(self, listener: Callable[[StoreOutage | None], None]) -> None:
        """From now on call this when an outage begins or has another reason, and with None when it is over.

        It is called on the event loop, and returns at once.
        """
        self._writer.outage_listeners.append(listener)

    def give_up(self) -> None:
        """Wait for the end of no outage any more: the gateway stops."""
        self._writer.given_up.set()

    @property
    def given_up(self) -> bool:
        """Whether that was said."""
        return self._writer.given_up.is_set()

    def add_listener(self, listener: AppendListener) -> None:
        """From now on call this with the entries of each append, and what became of them.

        It is called on the event loop as soon as they are on the disk, in the order of the log, before whoever appended
        them goes on, and also if nobody waits for them any more. It returns at once.
        """
        self._writer.listeners.append(listener)

    async def close(self) -> None:
        """Write what is queued, then let go of the file and the lock. More than once is as good as once."""
        await run_to_completion(self._release())  # however often whoever closes it is cancelled

    async def _release(self) -> None:
        try:
            await self._writer.close()
        finally:
            await self._writing.close()
            await super().close()
            self._lock.release()


def _prepare_file(path: Path, clock: Clock) -> StoreLock:
    create_store_file(path)
    lock = StoreLock(path, clock.now())
    try:
        finish_moves(path)
        upgrade_store(path)
    except BaseException:
        lock.release()
        raise
    return lock
