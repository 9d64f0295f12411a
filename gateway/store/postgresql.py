"""The store in a PostgreSQL database: a connection with the interface of `sqlite3.Connection`, and the schema.

The statements of the store are SQLite's. Most run unchanged, for `migrations/postgresql` makes the functions of SQLite
that they call; `translate` rewrites the rest. So all logic stands once, in the other files. Errors are those of
`sqlite3`; `ServerUnavailable` says that a later try may succeed.

Whoever writes holds an advisory lock, which the server releases when that connection ends
(https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS): alone as a `writer`, or beside others as
a `sharer`. Sharers take turns: each of their transactions holds the lock of the log until it is committed, so that
positions have no gaps and are committed in their order. A connection that was lost is made again by the next statement.

Imported only for a store in PostgreSQL.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import psycopg
from psycopg import conninfo, sql
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper, TextLoader

from gateway.store.queries import GROWTH
from gateway.store.types import ServerInUse, ServerRefused, ServerUnavailable

DEFAULT_SCHEMA: Final = "reverie"
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
"""Defaults of a connection (https://www.postgresql.org/docs/current/libpq-connect.html): a server that has vanished is
noticed within 25 seconds."""
_UNAVAILABLE: Final = ("08", "53", "55P03", "57", "58")
"""SQLSTATE classes and codes of errors that pass (https://www.postgresql.org/docs/current/errcodes-appendix.html): lost
connection, full disk, no memory or connection left, locked, shut down or starting, error of a disk."""
_READ_ONLY: Final = "25006"
_SERVER_PARAMETERS: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""The same from the server's side: it releases the lock of a gateway that has vanished."""
LOCK_WAIT_MS: Final = 2_000
"""Time in which the server notices the end of a process that held the lock."""
SHARE_WAIT_MS: Final = 15_000
"""Time in which a sharer that starts has made or migrated the tables: the others that start wait for it."""
PART_WAIT_MS: Final = 200
"""Time for which a change of the log's parts waits for those who read the log: they let nobody append meanwhile."""
_PASSING: Final = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots", "terminating")
"""Words of a refused connection that a later try may get: the server tells no code of an error (libpq)."""
Role = Literal["writer", "sharer", "reader", "other"]
"""`writer` holds the lock of the store, `sharer` shares it with others of its kind; each transaction of a `reader` is
one snapshot, and changes nothing."""
HUNG_MS: Final = 5_000
"""Time after which the server ends a sharer that has begun a transaction and does not go on: others wait for it."""
LOG_NEWS: Final = "log"
"""What sharers append to the log is announced on the channel `shared_name` of this, with their number."""
_NEWS: Final = "SELECT seq, at, kind, conversation, key, cause, body, xmin::text FROM log WHERE seq > $1 ORDER BY seq"
_REMOVE_PROCESSES: Final = """
DO $$ BEGIN
    IF to_regclass('process') IS NOT NULL THEN
        UPDATE lease SET lost_at = NULL, free_since = clock_timestamp() WHERE number IS NOT NULL;
        DELETE FROM process;
    END IF;
END $$
"""

# Translation

_GROWTH: Final = GROWTH.replace(
    "(SELECT page_count * page_size FROM pragma_page_count, pragma_page_size)",
    "(SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relkind = 'r' "
    "AND relnamespace = current_schema()::regnamespace)",
).replace("(SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size)", "0")
_STATEMENTS: Final = {
    GROWTH: _GROWTH,
    "BEGIN IMMEDIATE": "BEGIN",
    "INSERT INTO search (search, rowid, text) SELECT 'delete', seq, text FROM said "
    "WHERE seq IN (SELECT seq FROM leaving)": "DELETE FROM search WHERE rowid IN (SELECT seq FROM leaving)",
}
"""Statements that have nothing in common."""
_REWRITES: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\bsearch MATCH (\?\d*)(?![\w.])", r"search.text @@ match_query(\1)"),
        (r"\bsearch MATCH ([\w.]+)", r"search.text @@ (SELECT match_query(\1))"),  # once, not for each row
        (r"\btemp\.(?=\w)", "pg_temp."),
        (r"^PRAGMA user_version$", "SELECT version FROM schema_version"),
        (r"^PRAGMA user_version = (\d+)$", r"UPDATE schema_version SET version = \1"),
    )
)
_PARAMETER: Final = re.compile(r"\?(\d*)")


@lru_cache(maxsize=2_000)
def translate(statement: str) -> str:
    """Return a statement of the store in PostgreSQL's dialect, with parameters as `$1`."""
    statement = _STATEMENTS.get(statement, statement)
    for pattern, replacement in _REWRITES:
        statement = pattern.sub(replacement, statement)
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"${found[1] or count}"

    return _PARAMETER.sub(number, statement)


# Connection


def read_url(url: str) -> tuple[dict[str, Any], str]:
    """Return the parameters of a connection, and the schema: the first of `options=-c search_path=...`."""
    found = conninfo.conninfo_to_dict(url)
    named = re.search(r"search_path=(\w+)", str(found.get("options", "")))
    return {**_PARAMETERS, **found}, named[1] if named is not None else DEFAULT_SCHEMA


def shared_name(schema: str, what: str | int) -> str:
    """Return a name that no other schema has, of at most 63 bytes, for sessions and notifications.

    The sessions of a process have that of its number as their `application_name`: they are ended when it is removed.
    """
    return f"reverie:{what}:{schema.encode('ascii', 'replace').decode()}"[:63]


def _error_class(error: psycopg.Error) -> type[sqlite3.Error]:
    """Return the class for an error that does not pass."""
    if isinstance(error, psycopg.IntegrityError):
        return sqlite3.IntegrityError
    return sqlite3.DataError if isinstance(error, psycopg.DataError) else sqlite3.OperationalError


class _Text(StrDumper):
    """Text of a parameter. A NUL character, which PostgreSQL cannot hold, becomes the symbol for it."""

    def dump(self, obj: str) -> Any:  # noqa: ANN401 - the driver's
        return super().dump(obj.replace("\0", "\u2400") if "\0" in obj else obj)


class _Number(TextLoader):
    """A `numeric` as an int, or as a float if it has a fraction."""

    def load(self, data: Any) -> Any:  # noqa: ANN401 - the driver's
        text = str(super().load(data))
        return float(text) if "." in text or "N" in text else int(text)


class _Rows:
    """Result of a statement: the part of `sqlite3.Cursor` that the store uses."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)


class PostgresConnection:
    """A connection to a database, with the part of the interface of `sqlite3.Connection` that the store uses.

    Used by one thread at a time. After `BEGIN IMMEDIATE` statements are sent without waiting for their results, so an
    error of one may be raised by a later one, or by `commit`.
    """

    def __init__(self, url: str, role: Role) -> None:
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._role: Final = role
        self._parameters, self.schema = read_url(url)
        self._session: tuple[int, str] | None = None
        """Id and start of the server's process for the last connection."""
        self._pipeline = contextlib.ExitStack()
        self._is_pipelined = False
        self.in_transaction = False
        self._sharer: int | None = None
        """Number of the process that appends to the shared log in this transaction."""
        self._open()

    def _open(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Return the connection, made again if it was lost."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        if self.in_transaction:
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
        if made.info.server_version < OLDEST_VERSION or made.info.parameter_status("server_encoding") != "UTF8":
            raise sqlite3.NotSupportedError("it takes PostgreSQL 14 or newer, and a database in UTF8")
        made.execute(f"SET search_path = {sql.Identifier(self.schema).as_string()}")
        made.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )
        if self._role == "reader":
            made.execute("SET default_transaction_isolation = 'repeatable read'")
            made.execute("SET default_transaction_read_only = on")
        if self._role in ("writer", "sharer"):
            self._lock(made)

    def _lock(self, made: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Take the lock of the store. Raises ServerInUse if another process holds it, or for a writer, shares it."""
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
            "SELECT pid::bigint, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        ).fetchone()

    def _take_lock(self, made: "psycopg.Connection[tuple[Any, ...]]", *, is_shared: bool) -> None:
        made.execute(f"SET lock_timeout = {SHARE_WAIT_MS if is_shared else LOCK_WAIT_MS}")
        kind = "pg_advisory_lock_shared" if is_shared else "pg_advisory_lock"
        try:
            made.execute(f"SELECT {kind}($1::integer, hashtext($2))", (_LOCK_CLASS, self.schema))
        except psycopg.errors.LockNotAvailable:
            raise ServerInUse("another process writes to this store: stop that one, or set another store.url") from None
        finally:
            made.execute("RESET lock_timeout")

    def set_process(self, number: int) -> None:
        """Let this be a session of that process, from now on."""
        name = self._parameters["application_name"] = shared_name(self.schema, number)
        with self._sqlite_errors():
            self._open().execute("SELECT set_config('application_name', $1, false)", (name,))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of a sharer alone. Raises ServerInUse if others share it."""
        with self._sqlite_errors():
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

    def begin_shared(self, number: int, last: int) -> tuple[int | None, list[tuple[Any, ...]]]:
        """Begin a transaction in which no other sharer appends. After its commit it is announced that this process has.

        Returns the number of transactions that this process has committed with it (None: it was removed, and may write
        nothing), and the rows of the log after the position `last`, each with its transaction.
        """
        with self._sqlite_errors():
            made = self._open()
            pipeline = self._pipeline.enter_context(made.pipeline())
            self._is_pipelined = True
            made.execute("BEGIN", prepare=False)
            self.in_transaction = True
            # Else each reading of the log's parts would be planned anew, while the others wait.
            made.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            made.execute("SELECT pg_advisory_xact_lock($1::integer, hashtext($2))", (LOG_LOCK, self.schema))
            counted = made.execute(
                "UPDATE process SET commits = commits + 1 WHERE number = $1 RETURNING commits", (number,)
            )
            self._sharer = number
            news = made.execute(_NEWS, (last,))
            pipeline.sync()  # from here on the session counts as idle, see `HUNG_MS`
            found = counted.fetchone()
            return None if found is None else int(found[0]), news.fetchall()

    def read_news(self, last: int) -> list[tuple[Any, ...]]:
        """Return the rows of the log after the position `last`, as `begin_shared`."""
        with self._sqlite_errors():
            return self._open().execute(_NEWS, (last,)).fetchall()

    def count_commits(self, number: int) -> int | None:
        """Return how many transactions the process has committed. None: it was removed."""
        with self._sqlite_errors():
            found = self._open().execute("SELECT commits FROM process WHERE number = $1", (number,)).fetchone()
            return None if found is None else int(found[0])

    def begin_parts(self, span: int) -> int:
        """Begin parts of the log for so many positions if it needs them, and return their number."""
        with self._sqlite_errors():
            self._open().execute(f"SET lock_timeout = {PART_WAIT_MS}")
            ((begun,),) = self.execute("SELECT begin_parts(?)", (span,))
            return int(begun)

    def replace_part(self, part: int, copy: int) -> None:
        """Put a copy in the place of a part of the log, within a transaction."""
        with self._sqlite_errors():
            made = self._open()
            made.execute(f"SET LOCAL lock_timeout = {PART_WAIT_MS}")
            made.execute("SELECT replace_part($1, $2)", (part, copy))

    def schema_version(self) -> int:
        """Return the version of the schema. 0: there is none."""
        ((found,),) = self.execute("SELECT to_regclass('schema_version')::text")
        return int(next(iter(self.execute("SELECT version FROM schema_version")))[0]) if found is not None else 0

    def migrate(self, steps: Sequence[tuple[int, str]]) -> None:
        """Execute these migrations, each with its number, in one transaction, and remove all processes.

        None of them is connected, but one of an older version may have been cut off, and come back.
        """
        with self._sqlite_errors():
            made = self._open()
            made.execute(f"CREATE SCHEMA IF NOT EXISTS {sql.Identifier(self.schema).as_string()}")
            with made.transaction():
                made.execute(_REMOVE_PROCESSES, prepare=False)
                for number, script in steps:
                    made.execute(script, prepare=False)
                    made.execute("DELETE FROM schema_version")
                    made.execute("INSERT INTO schema_version (version) VALUES ($1)", (number,))

    def execute(self, statement: str, params: Sequence[Any] = ()) -> _Rows:
        """Execute one statement, and return all its rows."""
        if statement == "COMMIT":
            self.commit()
            return _Rows(())
        with self._sqlite_errors():
            made = self._open()
            if statement.startswith("BEGIN"):
                if statement == "BEGIN IMMEDIATE":
                    self._pipeline.enter_context(made.pipeline())
                    self._is_pipelined = True
                made.execute("BEGIN", prepare=False)
                self.in_transaction = True
                return _Rows(())
            translated = translate(statement)
            # Planned for these words: a rare one is looked up, and one that all texts have is read from the end.
            prepare = False if "match_query($" in translated else None
            cursor = made.execute(translated, params, prepare=prepare)
            return _Rows(cursor.fetchall() if translated.lstrip().startswith(("SELECT", "WITH")) else ())

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement with each of the rows."""
        with self._sqlite_errors():
            made = self._open()
            # Within a pipeline another one would wait for its results.
            with contextlib.nullcontext() if self._is_pipelined else made.pipeline():
                translated = translate(statement)
                for row in rows:
                    made.execute(translated, row)

    def executescript(self, script: str) -> None:
        """Execute several statements, each of which ends with `;` at the end of a line."""
        for one in script.split(";\n"):
            if statement := one.strip():
                self.execute(statement)

    def commit(self) -> None:
        """Commit the transaction, if there is one."""
        if self.in_transaction:
            with self._sqlite_errors():
                made = self._open()
                made.execute("COMMIT", prepare=False)
                if self._sharer is not None:
                    # Not within the transaction: that would hold the server's lock of notifications until the disk has
                    # it. If this is lost, the others look by themselves (`gateway.store.store.FOLLOW_S`).
                    made.execute("SELECT pg_notify($1, $2)", (shared_name(self.schema, LOG_NEWS), str(self._sharer)))
                self._pipeline.close()
            self._is_pipelined, self.in_transaction, self._sharer = False, False, None

    def rollback(self) -> None:
        """Roll the transaction back, if there is one. A lost connection is made again by the next statement."""
        with contextlib.suppress(psycopg.Error):  # of a statement before
            self._pipeline.close()
        if self.in_transaction:
            self._is_pipelined, self.in_transaction, self._sharer = False, False, None
            made = self._connection
            if made is not None and not made.closed:
                with self._sqlite_errors():
                    made.rollback()  # forgets what was prepared, too: some of it was not, after an error

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._connection is not None:
            self._connection.close()

    def __del__(self) -> None:
        self.close()  # the call that opened it was cancelled

    @contextlib.contextmanager
    def _sqlite_errors(self) -> Iterator[None]:
        """Raise errors of the driver as those of `sqlite3`."""
        try:
            yield
        except psycopg.Error as error:
            text = str(error).partition("\n")[0]
            state = error.sqlstate or ""
            lost = not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            if lost or state.startswith(_UNAVAILABLE) or (state == _READ_ONLY and self._role in ("writer", "sharer")):
                raise ServerUnavailable(f"the database cannot be used ({text}): see that its server runs") from error
            raise _error_class(error)(text) from error
