"""The port of the store: one connection to the log and its tables, in SQLite (`sqlite_log`) or
PostgreSQL.

Both take the same statements, with `$1` for a parameter: the schema of a database has those
functions of SQLite that they call. Those that differ stand side by side in `gateway.store.queries`,
or are in the files of the two.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, TypeVarTuple

from gateway.core.facts import Seq
from gateway.store.appends import (
    AppendPlan,
    EntryDraft,
    News,
    append_statements,
    dedup_keys,
    key_digest,
    plan_append,
)
from gateway.store.files import write_mark
from gateway.store.projections import plugin_tables, stop_following
from gateway.store.queries import LAST_POSITION, Dialect
from gateway.store.types import CommitUncertain, LogError, ProcessRemoved

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
Role = Literal["writer", "sharer", "reader", "visitor", "other"]
"""`writer` is the only one that writes, `sharer` shares that with others of its kind; a `reader`
changes nothing, and a `visitor` does not stay, and leaves no file behind."""
ROWS_PER_STATEMENT: Final = (*(2**power for power in range(11, 3, -1)), *range(8, 0, -1))
"""Rows per statement. SQLite releases Python's global lock once per statement step, and in a busy
event loop it takes up to 5 ms (sys.getswitchinterval) each time to get it back; so many rows are
one step. Few sizes above the usual ones, so that the prepared statements stay cached."""


class Log(ABC):
    """A connection. It blocks, and one thread at a time uses it: after `start` its own, in which
    `run` works.

    Every method raises LogError.
    """

    dialect: Dialect
    schema: str
    """Name of the schema of its tables; temporary ones hide them."""
    mark: Path | None = None
    """The high-water mark (`gateway.store.files`). None: it stays as it is."""
    _uncertain: tuple[Sequence[Sequence[EntryDraft]], AppendPlan] | None = None
    """The transaction of which it is not known whether it was committed."""
    _committed_up_to = Seq(0)
    """Last position of such a transaction that was committed, as a call with another batch found
    out.
    """

    @abstractmethod
    async def start(self) -> None:
        """Begin its thread. To be ended with `aclose`."""

    @abstractmethod
    async def run(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        """Execute a function in its thread: one trip there and back, however many statements that
        makes.

        Cancelled, it is executed all the same, if the thread has begun it. Raises ValueError once
        closed.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close it, and end its thread. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Close it, if it has no thread. Idempotent."""

    @abstractmethod
    def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        """Execute a query, and return its rows."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction that writes."""

    @abstractmethod
    def begin_snapshot(self) -> None:
        """Begin a transaction that reads as of one moment."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None:
        """Roll the transaction back, if there is one."""

    @abstractmethod
    def begin_append(self, last: Seq) -> News:
        """Begin a transaction that appends, and return what others have appended after this
        position.
        """

    @abstractmethod
    def commit_append(self) -> None:
        """Commit it, if what is written now would be found at its place later."""

    @abstractmethod
    def has_committed(self, plan: AppendPlan) -> bool:
        """Return whether the last transaction that this connection began to append was committed.
        `plan`: what it writes.
        """

    @abstractmethod
    def probe(self) -> None:
        """Test whether it can be written."""

    @abstractmethod
    def check_files(self) -> None:
        """Raise StoreFileLost if what is written now would not be found at its place later."""

    @abstractmethod
    def hide_table(self, table: str) -> None:
        """Create an empty temporary table of the same name, with the same indexes, which hides the
        real one.
        """

    @abstractmethod
    def repair_search(self, *, is_wrong: bool) -> bool:
        """Make the index of words again, if it is known to be wrong or found so. Returns whether it
        was.
        """

    @abstractmethod
    def _execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None: ...

    @staticmethod
    @abstractmethod
    def placeholders(count: int, width: int) -> str:
        """Return the values of so many rows, as placeholders."""

    def write(self, sql: str, rows: Sequence[Sequence[Any]] = ((),)) -> None:
        """Execute a statement with each of the rows. One with `VALUES {}` takes many of them in one
        step.
        """
        if "VALUES {}" not in sql:
            self._execute_many(sql, rows)
            return
        start = 0
        for size in ROWS_PER_STATEMENT:
            while len(rows) - start >= size:
                many = rows[start : start + size]
                statement = sql.format(self.placeholders(size, len(many[0])))
                self._execute_many(statement, [tuple(chain.from_iterable(many))])
                start += size

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all or nothing."""
        self.begin()
        try:
            yield
            self.commit()
        except BaseException:
            self.rollback()
            raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read as of one moment."""
        self.begin_snapshot()
        try:
            yield
        finally:
            self.rollback()

    def last_seq(self) -> Seq:
        """Return the log's last position; 0 if it is empty."""
        return Seq(self.fetch(LAST_POSITION)[0][0])

    def find_known(self, batch: Sequence[Sequence[EntryDraft]]) -> dict[str, Seq]:
        """Return those keys of a batch that are in the log already, with their positions."""
        wanted = dedup_keys(batch)
        if not wanted:
            return {}
        size = next(
            (size for size in reversed(ROWS_PER_STATEMENT) if size >= len(wanted)), len(wanted)
        )
        sql = (
            f"SELECT key, seq FROM log WHERE key IN {self.placeholders(1, size)} "  # noqa: S608 - placeholders only
            "UNION ALL SELECT * FROM (SELECT NULL, seq FROM archived_key LIMIT 1) AS left_the_log"
        )
        found = self.fetch(sql, wanted + [None] * (size - len(wanted)))
        known = {key: Seq(seq) for key, seq in found if key is not None}
        if len(found) > len(known) and len(known) < len(wanted):
            for key in filter(None, wanted):
                for (seq,) in self.fetch(
                    "SELECT seq FROM archived_key WHERE digest = $1", (key_digest(key),)
                ):
                    known.setdefault(key, Seq(seq))
        return known

    def append(self, batch: Sequence[Sequence[EntryDraft]], last: Seq) -> AppendPlan:
        """Write a batch in one transaction, and then the mark. `last`: the last position that is
        known.

        Raises CommitUncertain if it may be written: a call with the same batch finds out, and does
        nothing twice. One with another batch is told of it as of the entries of others.
        """
        if self._uncertain is not None:
            tried, plan = self._uncertain
            if self._was_committed(tried, plan):
                if [*map(id, tried)] == [*map(id, batch)]:
                    return plan
                self._committed_up_to = plan.rows[-1].seq
        self.rollback()  # of one that failed before
        try:
            before = self.begin_append(last)
            plan = plan_append(batch, self.find_known(batch), before[-1][0] if before else last)
            plan.before = before
            self.write_plan(plan)
        except BaseException:
            with contextlib.suppress(LogError):
                self.rollback()
            raise
        if not plan.rows:
            self.rollback()
            return plan
        try:
            self.commit_append()
        except LogError:
            if not self._was_committed(batch, plan):
                raise
        if self.mark is not None:
            write_mark(self.mark, plan.rows[-1].seq, plan.rows[-1].at)
        return plan

    def _was_committed(self, batch: Sequence[Sequence[EntryDraft]], plan: AppendPlan) -> bool:
        """Return whether the last transaction was committed, although it failed. Raises
        CommitUncertain, and ProcessRemoved.
        """
        self._uncertain = batch, plan
        try:
            self.rollback()
            is_written = self.has_committed(plan)
        except ProcessRemoved:
            raise
        except LogError as error:
            raise CommitUncertain(error) from error
        self._uncertain = None
        return is_written

    def append_without_refused(
        self, batch: Sequence[Sequence[EntryDraft]], last: Seq
    ) -> AppendPlan:
        """See `append`. No table of a plugin keeps a batch out of the log: one for which the
        database refuses a statement follows the log no more, until the next opening makes it anew.
        """
        try:
            return self.append(batch, last)
        except LogError as error:
            refused = () if error.reason else self._find_refused_tables(batch)
            if not refused:
                raise
            stop_following(refused, str(error))
        with self.transaction():
            self.write("DELETE FROM plugin_table WHERE name = $1", [(name,) for name in refused])
        return self.append(batch, last)

    def _find_refused_tables(self, batch: Sequence[Sequence[EntryDraft]]) -> list[str]:
        """Return the tables of plugins without which the batch could be written."""
        tables = [table.name for table in plugin_tables()]
        if not self._can_write(batch, without=tables):
            return []
        others = {name: [one for one in tables if one != name] for name in tables}
        return [name for name in tables if not self._can_write(batch, without=others[name])]

    def _can_write(self, batch: Sequence[Sequence[EntryDraft]], without: Collection[str]) -> bool:
        """Return whether the database takes a batch, without the changes in these tables."""

        def write() -> None:
            plan = plan_append(batch, self.find_known(batch), self.last_seq())
            plan.statements = [one for one in plan.statements if one.table not in without]
            self.write_plan(plan)

        return self.accepts(write)

    def accepts(self, write: Callable[[], None]) -> bool:
        """Return whether the database takes what this function writes, which is rolled back."""
        self.rollback()
        try:
            self.begin()
            write()
            self.last_seq()  # a pipeline tells now what was refused
        except LogError:
            return False
        finally:
            self.rollback()
        return True

    def write_plan(self, plan: AppendPlan) -> None:
        """Write what an append adds, within its transaction."""
        for sql, rows in append_statements(plan):
            self.write(sql, rows)
