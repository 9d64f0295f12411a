"""The processes that share a store in PostgreSQL: who is there, and who holds which lease.

A member has a row in `process`, holds a session lock on its number, and gives a sign of life each
second. Whoever sees that another one is dead removes it, under the lock of the log: nothing that it
appends can come after that (gateway/store/postgres_log.py). Then its leases are free, and the
member with the fewest takes them. `find_dead` and `find_claims` decide that; all ages are told by
the clock of the server. News of members and of the log come as notifications
(https://www.postgresql.org/docs/current/sql-notify.html).

Imported only for a store in PostgreSQL.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, sql
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from channels.aio import cancel_and_wait
from gateway import __version__
from gateway.cluster.cluster import (
    Cluster,
    LeaseListener,
    LeaseName,
    lease_of,
)
from gateway.core.api_models import LeaseRecord, ProcessRecord, ProcessReport
from gateway.core.events import ConversationId
from gateway.store import StoreUnavailable
from gateway.store.postgres_log import LOG_LOCK, LOG_NEWS, read_url, shared_name

logger = logging.getLogger("reverie.cluster")

HEARTBEAT_S: Final = 1.0
SILENT_S: Final = 2.0
"""Age of its last sign of life after which a member without a session is dead: its session was not
just made again."""
HUNG_S: Final = 5.0
"""The same for a member with a session. Nobody is judged by a process whose own signs came late
meanwhile."""
CONFIRMED_S: Final = 1.8
"""Age of the own last sign of life up to which nobody can have removed this process: less than
`SILENT_S`."""
STARTING_S: Final = 60.0
"""The same for a member that is starting: it holds nothing, and on a busy machine its start may
block it for long."""
CLAIM_S: Final = 2.0
"""Time in which a free lease is left to the member that is to take it."""
RETRY_S: Final = 10.0
"""Time for which a process leaves a lease to others after it could not begin its work."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""Pauses between attempts to connect: shorter than the life of a member that gives no sign."""
_LOCK_WAIT_MS: Final = 500
"""Time for which signs of life wait for a long transaction of the store, which locks the log and
its process."""
_MEMBER_LOCK: Final = 0x52455650
"""First key of the lock that the session of a member holds: `REVP`."""
_CLIENT_PARAMETERS: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}
"""A server that has vanished is noticed within 5 seconds."""
_SESSION_SETTINGS: Final = {
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "jit": "off",
    "TimeZone": "UTC",
}
"""The same from the server's side, which then releases the lock of the session."""

# Decisions


def find_dead(members: Iterable[ProcessRecord], me: int, *, steady_s: float) -> list[int]:
    """Return the numbers of the members that are to be removed.

    `steady_s`: seconds for which the signs of this process itself have come in time.
    """
    if steady_s < HUNG_S:
        return []
    limits_s = {"starting": STARTING_S, "cut off": SILENT_S}
    return [
        one.number
        for one in members
        if one.number != me and one.age_s > limits_s.get(one.state, HUNG_S)
    ]


def is_in_time(own_s: float, server_s: float) -> bool:
    """Return whether a sign of life of this process came in time, and the clock of the server was
    not set meanwhile.

    Both are the seconds since the sign before: by the clock of this process, and by that of the
    server.
    """
    return own_s <= SILENT_S and abs(server_s - own_s) <= SILENT_S


def _kind(lease: LeaseName) -> str:
    return lease.partition(":")[0]


def find_claims(
    me: int, members: Sequence[ProcessRecord], free: Mapping[LeaseName, float]
) -> list[LeaseName]:
    """Return the free leases that this process is to take. `free`: with the seconds for which they
    have been free.

    Each is for the member with the fewest of its kind, of these for the one with the lowest number.
    One that is left lying for `CLAIM_S` is for everybody.
    """
    counts = Counter((one.number, _kind(lease)) for one in members for lease in one.leases)
    numbers = [one.number for one in members if one.state == "running"]
    claims = []
    for lease, free_s in sorted(free.items()) if me in numbers else ():
        chosen, kind = me, _kind(lease)
        if free_s <= CLAIM_S:
            chosen = min(numbers, key=lambda number: (counts[number, kind], number))
        counts[chosen, kind] += 1
        if chosen == me:
            claims.append(lease)
    return claims


# The process as a member

_JOIN: Final = """
WITH made AS (
    INSERT INTO process (name, host, pid, version) VALUES ($1, $2, $3, $4) RETURNING number
) INSERT INTO heartbeat (number) SELECT number FROM made RETURNING number
"""
_BEAT: Final = (
    "UPDATE heartbeat SET seen = clock_timestamp() "
    "FROM (SELECT set_config('synchronous_commit', 'off', true)) AS later WHERE number = $1 "
    "RETURNING extract(epoch FROM seen)::double precision"
)
"""The sign of life. Its commit does not wait for the disk."""
_LOCK_KEY: Final = "hashtext({number}::text || ':' || {schema}::text)"
_MEMBER_FIELDS: Final = (
    *("number", "name", "host", "pid", "version", "ops", "started"),
    *("age_s", "state"),
)
"""Fields of `ProcessRecord`, in the order of the columns of `_READ_MEMBERS` behind the first."""
_READ_MEMBERS: Final = f"""
SELECT seen, number, name, host, pid, version, ops, started,
    extract(epoch FROM clock_timestamp() - seen)::double precision,
    CASE WHEN NOT ready THEN 'starting'
    WHEN ({_LOCK_KEY.format(number="number", schema="$1")}::bigint & 4294967295)::oid NOT IN (
        SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = {_MEMBER_LOCK}
            AND objsubid = 2 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ) THEN 'cut off' WHEN draining THEN 'stopping' ELSE 'running' END
FROM process JOIN heartbeat USING (number) ORDER BY number
"""  # noqa: S608 - constants only
_READ_LEASES: Final = """
SELECT name, number, since, CASE WHEN number IS NULL THEN
    extract(epoch FROM clock_timestamp() - coalesce(free_since, since))::double precision END
FROM lease ORDER BY name
"""
_CLAIM: Final = """
UPDATE lease SET number = $1, since = clock_timestamp(), free_since = NULL
WHERE name IN (SELECT name FROM lease WHERE name = ANY($2) AND number IS NULL
    ORDER BY name FOR UPDATE SKIP LOCKED)
RETURNING name
"""
_RELEASE: Final = """
UPDATE lease SET number = NULL, free_since = clock_timestamp() WHERE number = $1 AND name = ANY($2)
"""
_FREE: Final = """
UPDATE lease SET number = NULL, free_since = clock_timestamp() WHERE number = ANY($1)
"""
_Connection: TypeAlias = "AsyncConnection[tuple[Any, ...]]"


@dataclass(slots=True)
class _Work:
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    @property
    def is_over(self) -> bool:
        """Whether the work has ended, and the lease is to be released."""
        return self.task is not None and self.task.done()


class DatabaseCluster(Cluster):
    """This process, as one of those that share a store in PostgreSQL. Made by `join`."""

    is_shared = True

    def __init__(self, url: str) -> None:
        super().__init__()
        parameters, self._schema = read_url(url)
        self._parameters: Final = {**parameters, **_CLIENT_PARAMETERS}
        self._loops: Final = list[asyncio.Task[None]]()

        self._listener: LeaseListener | None = None
        """None: it has not started."""
        self._wanted = frozenset[LeaseName]()
        self._is_draining = False
        self._written = False, False, ""
        """State in the database: whether it has started, and drains, and its `ops`."""
        self.log_listeners: Final = list[Callable[[], None]]()
        """Called on the loop after another process has appended to the log, or may have."""
        self._members: Sequence[ProcessRecord] = ()
        self._signs: Mapping[int, datetime] = {}
        """When each member gave its last sign of life, by the server's clock."""
        self._leases: Sequence[LeaseRecord] = ()
        self._holders: Mapping[LeaseName, int] = {}
        self._read_at = 0.0
        self._work: Final = dict[LeaseName, _Work]()
        self._barred_until: Final = dict[LeaseName, float]()
        self._steady_since = math.inf
        self._seen_at_s = -math.inf
        """Time of `_boot_s` of the newest sign of life that the database has."""
        self._news = asyncio.Event()
        """Set at the next sign of life, when leases and members are up to date after it, and when
        this process was removed; then replaced by a new event."""
        self._wake: Final = asyncio.Event()

    @classmethod
    async def join(cls, url: str, *, name: str) -> Self:
        """Make this process a member. It takes no lease before `start`.

        The tables exist already. A process of that name on this host, which did not sign off, is
        removed: whoever has the name now holds its lock (`gateway.core.control_socket`). Raises
        StoreUnavailable if the database cannot be used. To be ended with `leave`.
        """
        made = cls(url)
        try:
            connection = await made._connect()
            try:
                cursor = await connection.execute(
                    _JOIN,
                    (name, socket.gethostname(), os.getpid(), __version__),
                )
                ((made.number,),) = await cursor.fetchall()
                await made._read(connection)
                left = [
                    one.number
                    for one in made._members
                    if (one.name, one.host) == (name, socket.gethostname())
                    and one.number != made.number
                    and (one.pid == os.getpid() or not _is_running(one.pid))
                ]
                if left:
                    await made._remove(connection, left)
            finally:
                await connection.close()
        except psycopg.Error as error:
            raise StoreUnavailable(f"the database cannot be used ({_first_line(error)})") from error
        made._loops.append(asyncio.create_task(made._keep("signs of life", made._beat)))
        return made

    async def start(self, listener: LeaseListener, leases: Iterable[LeaseName]) -> None:
        """Take those of these leases that it is to hold, now and later."""
        self._listener = listener
        self.want(leases)
        self._loops.append(asyncio.create_task(self._keep("news of other processes", self._listen)))

    def want(self, leases: Iterable[LeaseName]) -> None:
        """Set the leases that there are, whoever takes them. Work under one that is not among them
        is ended.
        """
        self._wanted = frozenset(leases)
        self._wake.set()

    async def drain(self) -> None:
        """End the work under all leases, together, and release each when its work has ended. It
        takes no more.

        Signs of life continue. Returns when it holds nothing; or, while the database is away, some
        seconds after all work has ended: the others take it for dead.
        """
        self._is_draining = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                while not (self._written[1] or self.fenced.is_set()):
                    await self._news.wait()  # so that no released lease is left to this one
        for work in self._work.values():
            work.ending.set()
        if tasks := [work.task for work in self._work.values() if work.task is not None]:
            await asyncio.wait(tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * SILENT_S):
                while self._work:
                    await self._news.wait()

    async def leave(self) -> None:
        """Stop being a member, at once: release what it holds, close all connections. Idempotent.

        If the database cannot be reached, the others remove this process.
        """
        is_member = bool(self._loops) and not self.fenced.is_set()
        await cancel_and_wait(*self._loops)
        self._loops.clear()
        ended = self._end_all()
        if is_member:
            try:
                async with asyncio.timeout(2 * SILENT_S), contextlib.AsyncExitStack() as stack:
                    connection = await self._connect()
                    stack.push_async_callback(connection.close)
                    await connection.execute(_BEAT, (self.number,))
                    async with connection.transaction():
                        await self._delete_processes(connection, [self.number])
            except (psycopg.Error, TimeoutError) as error:
                logger.warning(
                    "this process could not sign off from the database: %s", _first_line(error)
                )
        await asyncio.gather(*ended, return_exceptions=True)

    # Members and leases

    def holds(self, lease: LeaseName) -> bool:
        work = self._work.get(lease)
        return work is not None and not work.is_over

    def takes_turns_of(self, conversation: ConversationId) -> bool:
        return self.holds(lease_of(conversation))

    def describe(self) -> ProcessReport:
        later_s = asyncio.get_running_loop().time() - self._read_at
        return ProcessReport(
            processes=tuple(
                one.model_copy(update={"age_s": round(one.age_s + later_s, 1)})
                for one in self._members
            ),
            leases=tuple(
                one
                if one.free_s is None
                else one.model_copy(update={"free_s": one.free_s + later_s})
                for one in self._leases
                if one.free_s is None or one.name in self._wanted
            ),
        )

    async def confirm(self) -> bool:
        while not self.fenced.is_set() and _boot_s() - self._seen_at_s > CONFIRMED_S:
            self._wake.set()
            await self._news.wait()
        return not self.fenced.is_set()

    async def _beat(self, connection: _Connection) -> None:
        """Give signs of life, and bring leases and members up to date, until this process is
        removed.
        """
        await connection.execute(
            "SELECT pg_try_advisory_lock_shared($1::integer, "
            f"{_LOCK_KEY.format(number='$2', schema='$3')})",
            (_MEMBER_LOCK, str(self.number), self._schema),
        )
        await connection.execute(f"SET lock_timeout = {_LOCK_WAIT_MS}")
        loop = asyncio.get_running_loop()
        before = math.nan, math.nan
        while True:
            self._wake.clear()
            began_s = _boot_s()
            signs = await (await connection.execute(_BEAT, (self.number,))).fetchall()
            if not signs:
                self._fence()
                return
            self._seen_at_s = began_s
            self._tell_news()
            now = loop.time(), signs[0][0]
            if not is_in_time(now[0] - before[0], now[1] - before[1]):
                self._steady_since = loop.time()
            before = now
            if await self._update(connection):
                self._wake.set()
            self._tell_news()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._wake.wait()

    async def _update(self, connection: _Connection) -> bool:
        """Bring the database and this process to what they are to be. Returns whether there may be
        more to do.
        """
        await self._write_own(connection)
        await self._read(connection)
        self._begin_and_end_work()
        loop_s = asyncio.get_running_loop().time()
        dead = find_dead(self._members, self.number, steady_s=loop_s - self._steady_since)
        if dead and await self._remove(connection, dead):
            return True
        if self._is_draining or self._listener is None:
            return False
        free = {
            one.name: one.free_s
            for one in self._leases
            if one.free_s is not None
            and one.name in self._wanted
            and self._barred_until.get(one.name, 0) <= loop_s
        }
        awake = [one for one in self._members if one.age_s <= SILENT_S]
        if not (claims := find_claims(self.number, awake, free)):
            return False
        taken = await (await connection.execute(_CLAIM, (self.number, claims))).fetchall()
        await self._notify_members(connection)
        return bool(taken)

    async def _write_own(self, connection: _Connection) -> None:
        """Write what has changed in this process: its state, the leases that it wants, those that
        it releases.
        """
        changed = False
        state = self._listener is not None, self._is_draining, self.ops
        if state != self._written:
            with contextlib.suppress(psycopg.errors.LockNotAvailable):
                await connection.execute(
                    "UPDATE process SET ready = $2, draining = $3, ops = $4 WHERE number = $1",
                    (self.number, *state),
                )
                self._written, changed = state, True
        over = [lease for lease, work in self._work.items() if work.is_over]
        if over:
            kept = [lease for lease in over if lease in self._wanted]
            await connection.execute(_RELEASE, (self.number, kept))
            await connection.execute(
                "DELETE FROM lease WHERE number = $1 AND name = ANY($2)", (self.number, over)
            )
            for lease in over:
                del self._work[lease]
            changed = True
        if self._listener is not None and (
            new := self._wanted - {one.name for one in self._leases}
        ):
            await connection.execute(
                "INSERT INTO lease (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING",
                (sorted(new),),
            )
            changed = True
        if changed:
            await self._notify_members(connection)

    async def _read(self, connection: _Connection) -> None:
        leases = await (await connection.execute(_READ_LEASES)).fetchall()
        members = await (await connection.execute(_READ_MEMBERS, (self._schema,))).fetchall()
        self._read_at = asyncio.get_running_loop().time()
        self._holders = {name: number for name, number, *_ in leases if number is not None}
        held = dict[int, set[LeaseName]]()
        for lease, number in self._holders.items():
            held.setdefault(number, set()).add(lease)
        self._signs = {number: seen for seen, number, *_ in members}
        self._members = [
            ProcessRecord(
                **dict(zip(_MEMBER_FIELDS, row, strict=True)),
                leases=tuple(sorted(held.get(row[0], ()))),
                answers=row[0] == self.number,
            )
            for _, *row in members
        ]
        names = {one.number: one.name for one in self._members}
        self._leases = [
            LeaseRecord(name=name, holder=names.get(number, ""), since=since, free_s=free_s)
            for name, number, since, free_s in leases
        ]

    def _begin_and_end_work(self) -> None:
        mine = {lease for lease, number in self._holders.items() if number == self.number}
        for lease in sorted(mine - self._work.keys()):
            logger.info("%s is in the care of this process (%d) now", lease, self.number)
            self._work[lease] = work = _Work()
            self.taken_leases += 1
            work.task = asyncio.create_task(self._work_under(lease, work))
            work.task.add_done_callback(lambda _: self._wake.set())
        for lease, work in self._work.items():
            if lease not in mine or lease not in self._wanted or self._is_draining:
                work.ending.set()

    async def _work_under(self, lease: LeaseName, work: _Work) -> None:
        assert self._listener is not None
        try:
            await self._listener.on_lease_acquired(lease)
        except Exception:
            logger.exception(
                "%s: the work under this lease could not begin; another process is to take it",
                lease,
            )
            self._barred_until[lease] = asyncio.get_running_loop().time() + RETRY_S
            return
        await work.ending.wait()
        try:
            await self._listener.on_lease_ending(lease)
        except Exception:
            logger.exception(
                "%s: the work under this lease did not end as it should; it is released", lease
            )

    async def _remove(self, connection: _Connection, dead: Sequence[int]) -> bool:
        """Remove the members that have given no sign of life since they were judged. Returns
        whether there were any.
        """
        names = [shared_name(self._schema, number) for number in dead]
        signs = [self._signs[number] for number in dead]
        # A process that hangs may hold the lock of the log.
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "
            "ANY($1)",
            (names,),
        )
        try:
            async with connection.transaction():
                await connection.execute(
                    "SELECT pg_advisory_xact_lock($1::integer, hashtext($2))",
                    (LOG_LOCK, self._schema),
                )
                cursor = await connection.execute(
                    "SELECT number FROM heartbeat "
                    "JOIN unnest($1::bigint[], $2::timestamptz[]) AS judged (number, seen) "
                    "USING (number, seen) ORDER BY number FOR UPDATE OF heartbeat",
                    (dead, signs),
                )
                gone = [number for (number,) in await cursor.fetchall()]
                if gone:
                    await self._delete_processes(connection, gone)
        except psycopg.errors.LockNotAvailable:
            return False
        for one in self._members:
            if one.number in gone:
                logger.warning(
                    "process %d (%s) was removed: no sign of life for %.1f s%s",
                    one.number,
                    one.name,
                    one.age_s,
                    ", and its connection is lost" if one.state == "cut off" else "",
                )
        return bool(gone)

    async def _delete_processes(self, connection: _Connection, numbers: Sequence[int]) -> None:
        await connection.execute(_FREE, (numbers,))
        await connection.execute("DELETE FROM process WHERE number = ANY($1)", (numbers,))
        await self._notify_members(connection)

    async def _notify_members(self, connection: _Connection) -> None:
        await connection.execute(
            "SELECT pg_notify($1, '')", (shared_name(self._schema, "members"),)
        )

    def _fence(self) -> None:
        """Stop everything: the others have removed this process."""
        logger.error(
            "this process was removed by another one, which had seen no sign of life of it: it ends"
        )
        self.fenced.set()
        self._end_all()
        for one in self._loops:
            if one is not asyncio.current_task():
                one.cancel()

    def _end_all(self) -> list["asyncio.Task[None]"]:
        """End all work, without a word to anybody. Returns the tasks that end now."""
        tasks = [work.task for work in self._work.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        self._work.clear()
        self._tell_news()
        return tasks

    def _tell_news(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _listen(self, connection: _Connection) -> None:
        """Look at the members and the log when something has changed, as long as the connection
        lasts.
        """
        members, log = (shared_name(self._schema, what) for what in ("members", LOG_NEWS))
        told = {members, log}
        for name in told:
            await connection.execute(f"LISTEN {sql.Identifier(name).as_string()}", prepare=False)
        while True:
            if log in told:
                for listener in self.log_listeners:
                    listener()
            if members in told:
                self._wake.set()
            news = [(one.channel, one.payload) async for one in connection.notifies(stop_after=1)]
            told = {
                channel for channel, sender in news if channel != log or sender != str(self.number)
            }

    # Connections

    async def _connect(self) -> _Connection:
        """Connect, in the name of this process. Raises psycopg.Error."""
        connection = await AsyncConnection.connect(
            **self._parameters, autocommit=True, prepare_threshold=1
        )
        try:
            connection.cursor_factory = AsyncRawCursor
            connection.adapters.register_dumper(int, Int8Dumper)
            connection.adapters.register_dumper(str, StrDumper)
            settings = {
                **_SESSION_SETTINGS,
                "search_path": sql.Identifier(self._schema).as_string(),
                "application_name": shared_name(self._schema, self.number),
            }
            await connection.execute(
                "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS "
                "setting (name, value)",
                (list(settings), list(settings.values())),
            )
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _keep(self, what: str, use: Callable[[_Connection], Awaitable[None]]) -> None:
        """Use a connection, and another one when it is lost, until this process is removed."""
        loop = asyncio.get_running_loop()
        pause_s, is_told = _FIRST_PAUSE_S, False
        while not self.fenced.is_set():
            began_s = loop.time()
            try:
                connection = await self._connect()
                try:
                    await use(connection)
                finally:
                    await connection.close()
            except Exception as error:
                if loop.time() - began_s > _LONGEST_PAUSE_S:
                    pause_s, is_told = _FIRST_PAUSE_S, False
                if not is_told:
                    unexpected = None if isinstance(error, psycopg.Error) else error
                    text = "%s: the connection to the database failed (%s); it is made again"
                    logger.warning(text, what, _first_line(error), exc_info=unexpected)
                is_told = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def read_processes(url: str) -> ProcessReport:
    """Read the processes that share a store, and its leases, from outside. Raises
    StoreUnavailable.
    """
    reader = DatabaseCluster(url)
    try:
        connection = await reader._connect()  # noqa: SLF001 - of this file
        try:
            await reader._read(connection)  # noqa: SLF001 - of this file
        finally:
            await connection.close()
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database cannot be used ({_first_line(error)})") from error
    reader.want(one.name for one in reader._leases)  # noqa: SLF001 - of this file
    return reader.describe()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _boot_s() -> float:
    """Return the time since the machine was started, with that for which it was suspended where
    that is known.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
