"""The store in a PostgreSQL database.

Whoever writes holds an advisory lock, which the server releases when that connection ends
(https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS): alone as a `writer`,
or beside others as a `sharer`. Those who append take turns: each of their transactions holds the
lock of the log until it is committed, so that positions have no gaps and are committed in their
order. A connection that was lost is made again by the next statement.

Imported only for a store in PostgreSQL.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import psycopg
from psycopg import conninfo, sql
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper, TextLoader

from gateway.core.facts import Seq
from gateway.store import queries
from gateway.store.appends import AppendPlan, News
from gateway.store.log import Arguments, Log, Result, Role
from gateway.store.types import (
    LogEntry,
    LogError,
    ProcessRemoved,
    ServerInUse,
    ServerRefused,
    ServerUnavailable,
    StatementRefused,
    StoreUnreadable,
    read_entries,
)

logger = logging.getLogger("reverie.store")

OLDEST_VERSION: Final = 140000
"""PostgreSQL 14: functions with bodies that are parsed when they are made."""
_LOCK_CLASS: Final = 0x52455652
"""First key of our advisory locks: `REVR`. The second is the hash of the schema's name."""
LOG_LOCK: Final = 0x5245564C
"""First key of the lock that a transaction holds while it appends, or removes a process: `REVL`."""
_PARAMETERS: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "reverie",
}
"""Defaults of a connection (https://www.postgresql.org/docs/current/libpq-connect.html): a server
that has vanished is noticed within 25 seconds."""
_UNAVAILABLE: Final = ("08", "25P03", "25P04", "40", "53", "55P03", "57", "58")
"""SQLSTATE classes and codes of errors that pass
(https://www.postgresql.org/docs/current/errcodes-appendix.html): lost connection, ended by the
server while this process hung (`HUNG_MS`) or for a transaction that took too long, rolled back for
another one, full disk, no memory or connection left, locked, shut down or starting, error of a
disk."""
_READ_ONLY: Final = "25006"
_SERVER_PARAMETERS: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""The same from the server's side: it releases the lock of a gateway that has vanished."""
LOCK_WAIT_S: Final = 2.0
"""Time in which the server notices the end of a process that held the lock."""
SHARE_WAIT_S: Final = 15.0
"""Time in which a sharer that starts has made or migrated the tables: the others that start wait
for it."""
_PASSING: Final = (
    "starting up",
    "shutting down",
    "recovery",
    "too many",
    "remaining connection slots",
    "terminating",
)
"""Words of a refused connection that a later try may get: the server tells no code of an error
(libpq)."""
HUNG_MS: Final = 5_000
"""Time after which the server ends a sharer that has begun a transaction and does not go on: others
wait for it."""
LOG_NEWS: Final = "log"
"""What sharers append to the log is announced on the channel `shared_name` of this, with their
number."""
_NEWS: Final = (
    "SELECT seq, at, kind, conversation, key, cause, body, xmin::text FROM log WHERE "
    "seq > $1 ORDER BY seq"
)
_JOIN: Final = (
    "INSERT INTO process (name, host, pid, version) VALUES ('', '', 0, '') RETURNING number"
)
_REMOVE_PROCESSES: Final = """
DO $$ BEGIN
    IF to_regclass('process') IS NOT NULL THEN
        UPDATE lease SET free_since = clock_timestamp() WHERE number IS NOT NULL;
        DELETE FROM process;
    END IF;
END $$
"""


def read_url(url: str) -> tuple[dict[str, Any], str]:
    """Return the parameters of a connection, and the schema: the first of `options=-c
    search_path=...`. Raises StoreUnreadable, without the words of libpq, which repeat a password.
    """
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise StoreUnreadable(
            "the URL of the database cannot be read: see whether its parameters are spelled as in "
            "PostgreSQL's manual, and write %40 for @ in its password, %25 for %, %20 for a space"
        ) from None
    named = re.search(r"search_path=(\w+)", str(found.get("options", "")))
    return {**_PARAMETERS, **found}, named[1] if named is not None else "reverie"


def shared_name(schema: str, what: str | int) -> str:
    """Return a name that no other schema has, of at most 63 bytes, for sessions and notifications.

    The sessions of a process have that of its number as their `application_name`: they are ended
    when it is removed.
    """
    return f"reverie:{what}:{schema.encode('ascii', 'replace').decode()}"[:63]


class _Text(StrDumper):
    """Text of a parameter. A NUL character, which PostgreSQL cannot hold, becomes the symbol for
    it.
    """

    def dump(self, obj: str) -> Any:  # noqa: ANN401 - the driver's
        return super().dump(obj.replace("\0", "\u2400") if "\0" in obj else obj)


class _Number(TextLoader):
    """A `numeric` as an int, or as a float if it has a fraction."""

    def load(self, data: Any) -> Any:  # noqa: ANN401 - the driver's
        text = str(super().load(data))
        return float(text) if "." in text or "N" in text else int(text)


def _group_news(rows: Sequence[Sequence[Any]]) -> News:
    """Make it of rows of the log, each with its transaction. Entries of a newer version are left
    out.
    """
    return [
        (Seq(group[-1][0]), [entry for row in group for entry in _read_row(row)])
        for _, found in groupby(rows, key=lambda row: row[-1])
        if (group := list(found))
    ]


def _read_row(row: Sequence[Any]) -> list[LogEntry]:
    try:
        return read_entries([row[:-1]])
    except ValueError:
        logger.warning(
            "entry %s of the log is left out: its text is no fact of the kind %s", row[0], row[2]
        )
        return []


class PostgresLog(Log):
    """A connection to a database.

    After `begin` statements are sent without waiting for their results, so an error of one may be
    raised by a later one, or by `commit`.
    """

    dialect = queries.POSTGRESQL

    def __init__(self, url: str, role: Role) -> None:
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._thread: Final = ThreadPoolExecutor(1, "postgresql")
        self._role: Final = role
        self._parameters, self.schema = read_url(url)
        self._session: tuple[int, str] | None = None
        """Id and start of the server's process for the last connection."""
        self._is_closed = False
        self._pipeline = contextlib.ExitStack()
        self._in_transaction = self._is_pipelined = False
        self._process: int | None = None
        """Number of the process that appends. None: none does."""
        self._begun_commits = 0
        """Transactions that this process has committed, with the last one that it began."""
        self._open()

    async def start(self) -> None:
        """Do nothing: the thread begins with the first call."""

    async def run(self, function: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        if self._is_closed:
            raise ValueError("the connection is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self.close)

    def _open(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return the connection, made again if it was lost."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self._in_transaction:
            raise ServerUnavailable("the connection to the database was lost")
        self._connection = None
        try:
            made = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=1)
        except psycopg.OperationalError as error:
            text = " ".join(str(error).split())
            refused = "FATAL" in text and not any(words in text for words in _PASSING)
            raise (ServerRefused if refused else ServerUnavailable)(
                f"the database cannot be reached ({text})"
            ) from error
        try:
            self._set_up(made)
        except BaseException:
            made.close()
            raise
        self._connection = made
        return made

    def _set_up(self, made: "psycopg.Connection[tuple[Any, ...]]") -> None:
        made.cursor_factory = psycopg.RawCursor
        made.adapters.register_dumper(int, Int8Dumper)
        made.adapters.register_dumper(str, _Text)
        made.adapters.register_loader("json", TextLoader)
        made.adapters.register_loader("numeric", _Number)
        if (
            made.info.server_version < OLDEST_VERSION
            or made.info.parameter_status("server_encoding") != "UTF8"
        ):
            raise LogError("it takes PostgreSQL 14 or newer, and a database in UTF8")
        made.execute(f"SET search_path = {sql.Identifier(self.schema).as_string()}")
        made.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )
        if self._role in ("reader", "visitor"):
            made.execute("SET default_transaction_isolation = 'repeatable read'")
            made.execute("SET default_transaction_read_only = on")
        if self._role in ("writer", "sharer"):
            self._lock(made)

    def _lock(self, made: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Take the lock of the store. Raises ServerInUse if another process holds it, or for a
        writer, shares it.
        """
        for name, value in _SERVER_PARAMETERS.items():
            made.execute("SELECT set_config($1, $2, false)", (name, value))
        if self._session is not None:  # which may still hold it, where its end was not noticed
            made.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE pid = $1 AND backend_start::text = $2",
                self._session,
            )
        if self._role == "sharer":
            made.execute(f"SET idle_in_transaction_session_timeout = {HUNG_MS}")
        self._take_lock(made, is_shared=self._role == "sharer")
        self._session = made.execute(
            "SELECT pid::bigint, backend_start::text FROM pg_stat_activity WHERE pid = "
            "pg_backend_pid()"
        ).fetchone()

    def _take_lock(self, made: "psycopg.Connection[tuple[Any, ...]]", *, is_shared: bool) -> None:
        # Not by `lock_timeout`: a lock that is granted in the moment in which the time is over
        # stays with the session.
        until_s = time.monotonic() + (SHARE_WAIT_S if is_shared else LOCK_WAIT_S)
        statement = (
            f"SELECT pg_try_advisory_lock{'_shared' if is_shared else ''}($1::integer, "
            "hashtext($2))"
        )
        while made.execute(statement, (_LOCK_CLASS, self.schema)).fetchone() == (False,):
            if time.monotonic() >= until_s:
                raise ServerInUse(
                    "another process writes to this store: stop that one, or set another store.url"
                )
            time.sleep(0.02)

    def join(self, number: int | None) -> None:
        """Append as this process, from now on. None: as the only one.

        Once it was removed (`gateway.cluster.database`) it appends nothing any more.
        """
        with self._log_errors():
            made = self._open()
            if number is None:
                made.execute(_REMOVE_PROCESSES, prepare=False)
                ((number,),) = made.execute(_JOIN).fetchall()
            name = self._parameters["application_name"] = shared_name(self.schema, number)
            made.execute("SELECT set_config('application_name', $1, false)", (name,))
        self._process = number

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of a sharer alone. Raises ServerInUse if others share it."""
        with self._log_errors():
            made, key = self._open(), (_LOCK_CLASS, self.schema)
            made.execute("SELECT pg_advisory_unlock_shared($1::integer, hashtext($2))", key)
            is_alone = False
            try:
                self._take_lock(made, is_shared=False)
                is_alone = True
                yield
            finally:
                made.execute("SELECT pg_advisory_lock_shared($1::integer, hashtext($2))", key)
                if is_alone:
                    made.execute("SELECT pg_advisory_unlock($1::integer, hashtext($2))", key)

    def begin_append(self, last: Seq) -> News:
        """Begin a transaction in which no other process appends. Raises ProcessRemoved: it may
        write nothing.
        """
        with self._log_errors():
            made = self._open()
            pipeline = self._begin_pipelined(made)
            # Else statements would be planned anew, while the others wait.
            made.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            made.execute(
                "SELECT pg_advisory_xact_lock($1::integer, hashtext($2))", (LOG_LOCK, self.schema)
            )
            counted = made.execute(
                "UPDATE process SET commits = commits + 1 WHERE number = $1 RETURNING commits",
                (self._process,),
            )
            news = made.execute(_NEWS, (last,))
            pipeline.sync()  # from here on the session counts as idle, see `HUNG_MS`
            found = counted.fetchone()
            if found is None:
                raise ProcessRemoved
            self._begun_commits = int(found[0])
            return _group_news(news.fetchall())

    def commit_append(self) -> None:
        self.commit(announces=True)

    def read_news(self, last: int) -> News:
        """Return what other processes have appended after the position `last`."""
        return _group_news(self.fetch(_NEWS, (last,)))

    def has_committed(self, plan: AppendPlan) -> bool:  # noqa: ARG002 - the process's row tells it
        """See `Log.has_committed`. Raises ProcessRemoved."""
        found = self.fetch("SELECT commits FROM process WHERE number = $1", (self._process,))
        if not found:
            raise ProcessRemoved
        return bool(found[0][0] >= self._begun_commits)

    def check_files(self) -> None:
        """Do nothing: the files are the server's."""

    def probe(self) -> None:
        self.rollback()
        self.write("UPDATE schema_version SET version = version")

    def hide_table(self, table: str) -> None:
        self.write(
            f"CREATE TEMP TABLE {table} (LIKE {self.schema}.{table} INCLUDING ALL) ON COMMIT DROP"
        )

    def repair_search(self, *, is_wrong: bool) -> bool:
        if not is_wrong and not self.fetch(
            "SELECT 1 FROM said JOIN search ON search.rowid = said.seq WHERE search.text <> "
            "said.text LIMIT 1"
        ):
            return False
        self.write("DELETE FROM search")
        self.write("INSERT INTO search (rowid, text) SELECT seq, text FROM said")
        return True

    def schema_version(self) -> int:
        """Return the version of the schema. 0: there is none."""
        ((found,),) = self.fetch("SELECT to_regclass('schema_version')::text")
        return (
            int(self.fetch("SELECT version FROM schema_version")[0][0]) if found is not None else 0
        )

    def migrate(self, steps: Sequence[tuple[int, str]]) -> None:
        """Execute these migrations, each with its number, in one transaction, and remove all
        processes.

        None of them is connected, but one of an older version may have been cut off, and come back.
        """
        with self._log_errors():
            made = self._open()
            made.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.Identifier(self.schema).as_string()}")
            with made.transaction():
                made.execute(_REMOVE_PROCESSES, prepare=False)
                for number, script in steps:
                    made.execute(script, prepare=False)
                    made.execute("DELETE FROM schema_version")
                    made.execute("INSERT INTO schema_version (version) VALUES ($1)", (number,))

    def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[Any]:
        with self._log_errors():
            # Planned for these words: a rare one is looked up, and one that all texts have is read
            # from the end.
            prepare = False if "match_query($" in sql else None
            return self._open().execute(sql, params, prepare=prepare).fetchall()

    def _execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._log_errors():
            made = self._open()
            # Within a pipeline another one would wait for its results.
            with contextlib.nullcontext() if self._is_pipelined else made.pipeline():
                for row in rows:
                    made.execute(sql, row)

    @staticmethod
    @lru_cache(maxsize=64)
    def placeholders(count: int, width: int) -> str:
        """Return the values of so many rows, as numbered placeholders."""
        numbers = range(1, width + 1)
        return ", ".join(
            f"({', '.join(f'${row * width + number}' for number in numbers)})"
            for row in range(count)
        )

    def begin(self) -> None:
        with self._log_errors():
            self._begin_pipelined(self._open())
        if self._process is not None and not self.fetch(
            "SELECT 1 FROM process WHERE number = $1 FOR SHARE", (self._process,)
        ):
            raise ProcessRemoved

    def _begin_pipelined(self, made: "psycopg.Connection[tuple[Any, ...]]") -> psycopg.Pipeline:
        pipeline = self._pipeline.enter_context(made.pipeline())
        self._is_pipelined = True
        made.execute("BEGIN", prepare=False)
        self._in_transaction = True
        return pipeline

    def begin_snapshot(self) -> None:
        with self._log_errors():
            self._open().execute("BEGIN", prepare=False)
            self._in_transaction = True

    def commit(self, *, announces: bool = False) -> None:
        with self._log_errors():
            made = self._open()
            made.execute("COMMIT", prepare=False)
            if announces:
                # Not within the transaction: that would hold the server's lock of notifications
                # until the disk has it. If this is lost, the others look by themselves
                # (`gateway.store.shared.FOLLOW_S`).
                made.execute(
                    "SELECT pg_notify($1, $2)",
                    (shared_name(self.schema, LOG_NEWS), str(self._process)),
                )
            self._pipeline.close()
        self._in_transaction = self._is_pipelined = False

    def rollback(self) -> None:
        """Roll the transaction back, if there is one. A lost connection is made again by the next
        statement.
        """
        with contextlib.suppress(psycopg.Error):  # of a statement before
            self._pipeline.close()
        if self._in_transaction:
            self._in_transaction = self._is_pipelined = False
            made = self._connection
            if made is not None and not made.closed:
                with self._log_errors():
                    # forgets what was prepared, too: some of it was not, after an error
                    made.rollback()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._thread.shutdown(wait=False)

    def __del__(self) -> None:
        self.close()  # the call that opened it was cancelled

    @contextlib.contextmanager
    def _log_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            text = str(error).partition("\n")[0]
            state = error.sqlstate or ""
            if (
                (not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError))
                or state.startswith(_UNAVAILABLE)
                or (state == _READ_ONLY and self._role in ("writer", "sharer"))
            ):
                raise ServerUnavailable(
                    f"the database cannot be used ({text}): see that its server runs"
                ) from error
            raise (StatementRefused if state.startswith("42") else LogError)(text) from error
