"""The store in a file of SQLite."""

import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import aiosqlite

from gateway.core.facts import Seq
from gateway.store import queries
from gateway.store.appends import AppendPlan, News
from gateway.store.files import StoreWatch, rescue_store
from gateway.store.log import Arguments, Log, Result
from gateway.store.schema import WRITER_PRAGMAS
from gateway.store.types import (
    LogError,
    LogLocked,
    StatementRefused,
    StoreFileLost,
    read_entries,
    transient_reason,
)

_LOCKED: Final = sqlite3.SQLITE_BUSY


class SqliteLog(Log):
    """A connection to a file."""

    dialect, schema = queries.SQLITE, "main"

    def __init__(self, address: str) -> None:
        """`address`: a URI (`gateway.store.schema.sqlite_uri`)."""
        self._thread: aiosqlite.Connection | None = None
        self._watch: StoreWatch | None = None
        self._rescues = dict[str, str]()
        """What was done about lost files, by what was lost: first the write-ahead log may go, and
        then all."""
        try:
            self.connection = sqlite3.connect(
                address, uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _log_error(error) from error

    def prepare_writing(self, path: Path, locked_s: float | None) -> None:
        """Let this be the connection that appends. `locked_s`: time for which it waits for another
        program's lock.
        """
        for pragma in WRITER_PRAGMAS:
            self.fetch(pragma)
        if locked_s is not None:
            self.fetch(f"PRAGMA busy_timeout = {int(locked_s * 1000)}")
        self.last_seq()  # now the write-ahead log is there
        self._watch = StoreWatch(path)

    async def start(self) -> None:
        self._thread = await aiosqlite.Connection(lambda: self.connection, 64)

    def run(
        self, function: Callable[[*Arguments], Result], *args: *Arguments
    ) -> Coroutine[Any, Any, Result]:
        assert self._thread is not None
        # aiosqlite has no public name for this.
        run: Coroutine[Any, Any, Result] = self._thread._execute(function, *args)  # type: ignore[no-untyped-call]  # noqa: SLF001 - see above
        return run

    async def aclose(self) -> None:
        if self._thread is not None:
            await self._thread.close()

    def close(self) -> None:
        self.connection.close()

    def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        try:
            return self.connection.execute(sql, _bind(sql, params)).fetchall()
        except sqlite3.Error as error:
            raise _log_error(error) from error

    def _execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self.connection.executemany(sql, [_bind(sql, row) for row in rows])
        except sqlite3.Error as error:
            raise _log_error(error) from error

    @staticmethod
    @lru_cache(maxsize=64)
    def placeholders(count: int, width: int) -> str:
        """Return the values of so many rows, as placeholders that need no names: there may be
        thousands.
        """
        return ", ".join([f"({', '.join('?' * width)})"] * count)

    def begin(self) -> None:
        self._execute("BEGIN IMMEDIATE")

    def begin_snapshot(self) -> None:
        self._execute("BEGIN")

    def commit(self) -> None:
        self._execute("COMMIT")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def _execute(self, sql: str) -> None:
        try:
            self.connection.execute(sql)
        except sqlite3.Error as error:
            raise _log_error(error) from error

    def begin_append(self, last: Seq) -> News:
        self.begin()
        end = self._committed_up_to
        if end <= last:
            return ()
        # Of a commit that seemed to fail. Nobody else may append.
        sql = f"SELECT {queries.COLUMNS} FROM log WHERE seq > $1 AND seq <= $2 ORDER BY seq"  # noqa: S608 - constants only
        return [(end, read_entries(self.fetch(sql, (last, end))))]

    def commit_append(self) -> None:
        self._check_or_save_files()
        self.commit()

    def has_committed(self, plan: AppendPlan) -> bool:
        return self.last_seq() >= plan.rows[-1].seq

    def check_files(self) -> None:
        if self._watch is not None:
            self._watch.check()

    def probe(self) -> None:
        self.rollback()
        self._check_or_save_files()
        ((version,),) = self.fetch("PRAGMA user_version")
        with self.transaction():
            self._execute(f"PRAGMA user_version = {version}")

    def hide_table(self, table: str) -> None:
        sql = (
            "SELECT type, sql FROM main.sqlite_master WHERE tbl_name = $1 AND type IN ('table', "
            "'index') AND sql IS NOT NULL ORDER BY type DESC"
        )
        for kind, made in self.fetch(sql, (table,)):
            create = "CREATE TEMP TABLE " if kind == "table" else "CREATE INDEX temp."
            self._execute(
                made.replace("CREATE TABLE " if kind == "table" else "CREATE INDEX ", create, 1)
            )

    def repair_search(self, *, is_wrong: bool) -> bool:
        # https://www.sqlite.org/fts5.html#the_integrity_check_command
        try:
            self._execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
        except LogError:
            is_wrong = True
        if is_wrong:
            self._execute("INSERT INTO search (search) VALUES ('rebuild')")
        return is_wrong

    def _check_or_save_files(self) -> None:
        """See `check_files`. What lost files hold is saved, once for all that is lost by now; the
        error says what to do.
        """
        try:
            self.check_files()
        except StoreFileLost as lost:
            self.rollback()
            assert self._watch is not None
            if str(lost) not in self._rescues:
                try:
                    self._rescues[str(lost)] = rescue_store(self.connection, self._watch)
                except (OSError, sqlite3.Error) as error:
                    raise StoreFileLost(
                        f"{lost}; what it held cannot be saved yet ({error}): make room beside it, "
                        "and put it back"
                    ) from error
            raise StoreFileLost(f"{lost}; {self._rescues[str(lost)]}") from lost
        self._rescues.clear()


def _bind(sql: str, params: Sequence[Any]) -> Any:  # noqa: ANN401 - the driver's
    """Return the parameters by the names that SQLite sees in `$1`; as they are for placeholders
    without names.
    """
    return {str(number): value for number, value in enumerate(params, 1)} if "$1" in sql else params


def _log_error(error: sqlite3.Error) -> LogError:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_ERROR:
        return StatementRefused(str(error))
    return (LogLocked if code == _LOCKED else LogError)(str(error), transient_reason(error))
