"""The processes that share a store in PostgreSQL: who is there, who holds which lease, and calls between them.

A member has a row in `process`, holds a session lock on its number, and gives a sign of life each second. Whoever sees
that another one is dead removes it, under the lock of the log: nothing that it appends can come after that
(gateway/store/postgresql.py). Then its leases are free, and the member with the fewest takes them. `find_dead`,
`find_claims` and `find_lease_to_move` decide that; all ages are told by the clock of the server.

Calls are rows of the table `call`, each told by a notification
(https://www.postgresql.org/docs/current/sql-notify.html). A message may be lost, with a crash of the server, or come
twice, after a lost connection: the caller asks again, and the receiver knows what it has taken.

Imported only for a store in PostgreSQL.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, sql
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from channels.aio import cancel_and_wait, with_timeout
from gateway.cluster.cluster import (
    AGENT_PREFIX,
    CHANNEL_PREFIX,
    CallFailed,
    Cluster,
    Handler,
    LeaseListener,
    LeaseName,
    LeaseStatus,
    Member,
    MemberStatus,
    ProcessRole,
)
from gateway.core.clock import Clock, SystemClock
from gateway.store import StoreUnavailable
from gateway.store.postgresql import LOG_LOCK, LOG_NEWS, read_url, shared_name

logger = logging.getLogger("reverie.cluster")

HEARTBEAT_S: Final = 1.0
SILENT_S: Final = 2.0
"""Age of its last sign of life after which a member without a session is dead: its session was not just made again."""
HUNG_S: Final = 5.0
"""The same for a member with a session. Nobody is judged by a process whose own signs came late meanwhile."""
CONFIRMED_S: Final = 1.8
"""Age of the own last sign of life up to which nobody can have removed this process: less than `SILENT_S`."""
STARTING_S: Final = 60.0
"""The same for a member that is starting: it holds nothing, and on a busy machine its start may block it for long."""
CLAIM_S: Final = 2.0
"""Time in which a free lease is left to the member that is to take it."""
RETRY_S: Final = 10.0
"""Time for which a process leaves a lease to others after it could not begin its work."""
_MOVED_S: Final = 60.0
"""Time for which a lease that was given away and came back is kept: the others do not take it."""
_REPEAT_S: Final = 3.0
"""Time after which a caller without a reply asks whether its call has arrived."""
_LATE_S: Final = 10.0
"""Time after the deadline of a call in which a message about it may still come."""
_KEPT_REPLY_CHARS: Final = 16_384
"""Length of a reply beyond which the caller tells that it has it, so that it is not kept."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""Pauses between attempts to connect: shorter than the life of a member that gives no sign."""
_LOCK_WAIT_MS: Final = 500
"""Time for which signs of life wait for a long transaction of the store, which locks the log and its process."""
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
    "enable_seqscan": "off",  # a plan that was made for an empty table of calls
    "jit": "off",
    "TimeZone": "UTC",
}
"""The same from the server's side, which then releases the lock of the session."""

# Decisions


def find_dead(members: Iterable[MemberStatus], me: int, *, steady_s: float) -> list[int]:
    """Return the numbers of the members that are to be removed.

    `steady_s`: seconds for which the signs of this process itself have come in time.
    """
    if steady_s < HUNG_S:
        return []
    return [one.member.number for one in members if one.member.number != me and one.age_s > _find_limit(one)]


def _find_limit(one: MemberStatus) -> float:
    if not one.is_ready:
        return STARTING_S
    return HUNG_S if one.has_session else SILENT_S


def is_in_time(own_s: float, server_s: float) -> bool:
    """Return whether a sign of life of this process came in time, and the clock of the server was not set meanwhile.

    Both are the seconds since the sign before: by the clock of this process, and by that of the server.
    """
    return own_s <= SILENT_S and abs(server_s - own_s) <= SILENT_S


def _kind(lease: LeaseName) -> str:
    return lease.partition(":")[0]


def _may_hold(member: Member, lease: LeaseName) -> bool:
    """Return whether a member of its role takes such a lease."""
    other: ProcessRole = "worker" if lease.startswith(CHANNEL_PREFIX) else "edge"
    return member.role != other and not member.is_draining


def _count(member: Member, kind: str) -> int:
    return sum(_kind(one) == kind for one in member.leases)


def find_claims(me: int, members: Sequence[Member], free: Mapping[LeaseName, float]) -> list[LeaseName]:
    """Return the free leases that this process is to take. `free`: with the seconds for which they have been free.

    Each is for the member with the fewest of its kind, of these for the one with the lowest number. One that is left
    lying for `CLAIM_S` is for everybody.
    """
    counts = {(one.number, kind): _count(one, kind) for one in members for kind in map(_kind, free)}
    claims = []
    for lease, free_s in sorted(free.items()):
        numbers = [one.number for one in members if _may_hold(one, lease)]
        if me not in numbers:
            continue
        kind = _kind(lease)
        chosen = me if free_s > CLAIM_S else min(numbers, key=lambda number: (counts[number, kind], number))
        counts[chosen, kind] += 1
        if chosen == me:
            claims.append(lease)
    return claims


def find_lease_to_move(
    me: Member, members: Iterable[Member], movable: Collection[LeaseName], *, free: int = 0
) -> LeaseName | None:
    """Return the lease of an agent that this process is to give away: it has two more than another member.

    `free`: number of leases of agents that have no holder. They may be for that other member.
    """
    others = [one for one in members if one.number != me.number and _may_hold(one, AGENT_PREFIX)]
    agent = _kind(AGENT_PREFIX)
    fewest = min((_count(one, agent) for one in others), default=math.inf)
    agents = [lease for lease in movable if lease.startswith(AGENT_PREFIX)]
    return max(agents, default=None) if _count(me, agent) >= fewest + free + 2 else None


# The process as a member

_JOIN: Final = """
WITH made AS (
    INSERT INTO process (name, role, host, pid, version) VALUES ($1, $2, $3, $4, $5) RETURNING number
) INSERT INTO heartbeat (number) SELECT number FROM made RETURNING number
"""
_BEAT: Final = (
    "UPDATE heartbeat SET seen = clock_timestamp() "
    "FROM (SELECT set_config('synchronous_commit', 'off', true)) AS later WHERE number = $1 "
    "RETURNING extract(epoch FROM seen)::double precision"
)
"""The sign of life. Its commit does not wait for the disk."""
_LOCK_KEY: Final = "hashtext({number}::text || ':' || {schema}::text)"
_READ_MEMBERS: Final = f"""
SELECT number, name, role, host, pid, version, ops, started, ready, draining, seen,
    extract(epoch FROM clock_timestamp() - seen)::double precision,
    ({_LOCK_KEY.format(number="number", schema="$1")}::bigint & 4294967295)::oid IN (
        SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = {_MEMBER_LOCK} AND objsubid = 2 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
FROM process JOIN heartbeat USING (number) ORDER BY number
"""  # noqa: S608 - constants only
_READ_LEASES: Final = """
SELECT name, number, since, previous, gap_s, CASE WHEN number IS NULL THEN
    extract(epoch FROM clock_timestamp() - coalesce(free_since, since))::double precision END
FROM lease ORDER BY name
"""
_CLAIM: Final = """
UPDATE lease SET number = $1, since = clock_timestamp(), free_since = NULL,
    gap_s = extract(epoch FROM clock_timestamp() - lost_at)
WHERE name IN (SELECT name FROM lease WHERE name = ANY($2) AND number IS NULL ORDER BY name FOR UPDATE SKIP LOCKED)
RETURNING name
"""
_RELEASE: Final = """
UPDATE lease SET number = NULL, previous = $2, lost_at = clock_timestamp(), free_since = clock_timestamp()
WHERE number = $1 AND name = ANY($3)
"""
_FREE: Final = """
UPDATE lease SET number = NULL, previous = process.name, lost_at = heartbeat.seen, free_since = clock_timestamp()
FROM process JOIN heartbeat USING (number) WHERE lease.number = process.number AND process.number = ANY($1)
"""
_SEND: Final = """
WITH sent AS (
    INSERT INTO call (to_number, from_number, id, kind, body)
    SELECT number, $2, $3, $4, $5 FROM process WHERE number = $1 RETURNING position
) SELECT pg_notify($6, '') FROM sent
"""
_RECEIVE: Final = """
WITH taken AS (DELETE FROM call WHERE to_number = $1 RETURNING *)
SELECT from_number, id, kind, body, extract(epoch FROM clock_timestamp() - at)::double precision
FROM taken ORDER BY position
"""
_Connection: TypeAlias = "AsyncConnection[tuple[Any, ...]]"
_MessageKind = Literal["request", "tell", "ask", "missing", "reply", "cancel"]
"""What a message says, and its body.

- `request`: carry this out. `[seconds left, [method, arguments]]`
- `tell`: carry this out, and do not reply. As above.
- `ask`: have you got it?
- `missing`: no, send it again.
- `reply`: `{"result": ...}` or `{"failed": reason, "is_refused": ...}`
- `cancel`: nobody waits any more.
"""


class _Message(NamedTuple):
    """A message to another process."""

    to: int
    call: str
    kind: _MessageKind
    body: str = ""
    deadline: float = math.inf
    """Of a `tell`, by the clock's `monotonic`."""


@dataclass(slots=True)
class _Work:
    """Work under a lease, of this process."""

    ending: asyncio.Event = field(default_factory=asyncio.Event)
    is_settled: bool = False
    """True: it has begun."""
    task: "asyncio.Task[None] | None" = None

    @property
    def is_over(self) -> bool:
        """Whether the work has ended, and the lease is to be released."""
        return self.task is not None and self.task.done()


@dataclass(slots=True, eq=False)
class _Pending:
    """A call of this process that waits for its reply."""

    to: int
    method: str
    body: str
    deadline: float
    """Of the clock's `monotonic`."""
    reply: "asyncio.Future[str]"
    attempts: int = 0
    """How often its request was given to the database. 0: it was surely not carried out."""


@dataclass(slots=True, eq=False)
class _Taken:
    """A call of another process that this one has taken."""

    until: float
    """Time of the clock's `monotonic` after which no message about it comes any more."""
    task: "asyncio.Task[str] | None"
    """None: it is done."""
    reply: str | None = None
    """None: there is none yet, or nobody wants it any more."""
    is_ended: bool = False
    """True: its caller does not wait for it, or not any more."""


class DatabaseCluster(Cluster):
    """This process, as one of those that share a store in PostgreSQL. Made by `join`."""

    is_shared = True

    def __init__(self, url: str, role: ProcessRole, name: str, clock: Clock) -> None:
        super().__init__()
        parameters, self._schema = read_url(url)
        self._parameters: Final = {**parameters, **_CLIENT_PARAMETERS}
        self.role = role
        self._name, self._clock = name, clock
        self._loops: Final = list[asyncio.Task[None]]()

        self._listener: LeaseListener | None = None
        """None: it has not started."""
        self._wanted = frozenset[LeaseName]()
        self._is_draining = False
        self._written = False, False, ""
        """State in the database: whether it has started, and drains, and its `ops`."""
        self._member_listeners: Final = list[Callable[[], None]]()
        self._log_listeners: Final = list[Callable[[], None]]()
        self._members: Sequence[Member] = ()
        self._statuses: Sequence[MemberStatus] = ()
        self._signs: Mapping[int, datetime] = {}
        """When each member gave its last sign of life, by the server's clock."""
        self._leases: Sequence[LeaseStatus] = ()
        self._holders: Mapping[LeaseName, int] = {}
        self._read_at = 0.0
        """Time of the loop at which all that was read."""
        self._work: Final = dict[LeaseName, _Work]()
        self._barred_until: Final = dict[LeaseName, float]()
        self._moved_at: Final = dict[LeaseName, float]()
        self._steady_since = math.inf
        self._seen_at_s = -math.inf
        """Time of `_boot_s` of the newest sign of life that the database has."""
        self._signed = asyncio.Event()
        """Set when it has the next one, or this process was removed; then replaced by a new event."""
        self._wake: Final = asyncio.Event()
        self._passes: Final = list[asyncio.Future[None]]()
        """Wait for the end of the next pass."""

        self._handlers: Final = dict[str, Handler]()
        self._pending: Final = dict[str, _Pending]()
        self._taken: Final = dict[tuple[int, str], _Taken]()
        self._outgoing: Final = deque[_Message]()
        """A request gets its body when it is sent."""
        self._has_outgoing, self._is_flushed = asyncio.Event(), asyncio.Event()
        self._is_flushed.set()

    @classmethod
    async def join(cls, url: str, *, role: ProcessRole, name: str, clock: Clock) -> Self:
        """Make this process a member. It takes no lease and no call before `start`.

        The tables exist already. A process of that name on this host, which did not sign off, is removed: whoever has
        the name now holds its lock (`gateway.core.process_files`). Raises StoreUnavailable if the database cannot be
        used. To be ended with `leave`.
        """
        made = cls(url, role, name, clock)
        try:
            connection = await made._connect()
            try:
                cursor = await connection.execute(
                    _JOIN,
                    (name, role, socket.gethostname(), os.getpid(), version("reverie-gateway")),
                )
                ((made.number,),) = await cursor.fetchall()
                await made._read(connection)
                if left := made._find_predecessors():
                    await made._remove(connection, left)
            finally:
                await connection.close()
        except psycopg.Error as error:
            raise StoreUnavailable(f"the database cannot be used ({_first_line(error)})") from error
        made._loops.append(asyncio.create_task(made._keep("signs of life", made._beat)))
        return made

    def _find_predecessors(self) -> list[int]:
        """Return the numbers that earlier processes of this name have left, as they were killed."""
        return [
            one.member.number
            for one in self._statuses
            if (one.member.name, one.host) == (self._name, socket.gethostname())
            and one.member.number != self.number
            and (one.pid == os.getpid() or not _is_running(one.pid))
        ]

    async def start(self, listener: LeaseListener, leases: Iterable[LeaseName]) -> None:
        """Take calls, and those of these leases that it is to hold."""
        self._listener = listener
        self.want(leases)
        self._loops.append(asyncio.create_task(self._keep("calls to this process", self._listen)))
        self._loops.append(asyncio.create_task(self._keep("calls of this process", self._send_all)))

    def want(self, leases: Iterable[LeaseName]) -> None:
        """Set the leases that there are, whoever takes them. Work under one that is not among them is ended."""
        self._wanted = frozenset(leases)
        self._wake.set()

    def add_member_listener(self, listener: Callable[[], None]) -> None:
        """Call this on the loop after members or holders have changed."""
        self._member_listeners.append(listener)

    def add_log_listener(self, listener: Callable[[], None]) -> None:
        """Call this on the loop after another process has appended to the log, or may have."""
        self._log_listeners.append(listener)

    async def drain(self) -> None:
        """End the work under all leases, together, and release each when its work has ended. It takes no more.

        Signs of life and calls continue. Returns when it holds nothing; or, while the database is away, some seconds
        after all work has ended: the others take it for dead.
        """
        self._is_draining = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_S):
                while not (self._written[1] or self.fenced.is_set()):
                    await self._next_pass()  # so that no released lease is left to this one
        for work in self._work.values():
            work.ending.set()
        if tasks := [work.task for work in self._work.values() if work.task is not None]:
            await asyncio.wait(tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * SILENT_S):
                while self._work:
                    await self._next_pass()

    async def leave(self) -> None:
        """Stop being a member, at once: release what it holds, end its calls, close all connections. Idempotent.

        If the database cannot be reached, the others remove this process.
        """
        if len(self._loops) > 1 and not self.fenced.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._is_flushed.wait()
        is_member = bool(self._loops) and not self.fenced.is_set()
        await cancel_and_wait(*self._loops)
        self._loops.clear()
        ended = self._end_all("this process stops")
        if is_member:
            try:
                async with asyncio.timeout(2 * SILENT_S), contextlib.AsyncExitStack() as stack:
                    connection = await self._connect()
                    stack.push_async_callback(connection.close)
                    await connection.execute(_BEAT, (self.number,))
                    async with connection.transaction():
                        await self._delete_processes(connection, [self.number])
            except (psycopg.Error, TimeoutError) as error:
                logger.warning("this process could not sign off from the database: %s", _first_line(error))
        await asyncio.gather(*ended, return_exceptions=True)

    # Members and leases

    @property
    def members(self) -> Sequence[Member]:
        return self._members

    def holds(self, lease: LeaseName) -> bool:
        work = self._work.get(lease)
        return work is not None and not work.is_over

    def holder(self, lease: LeaseName) -> Member | None:
        number = self.number if self.holds(lease) else self._holders.get(lease)
        if number == self.number and not self.holds(lease):
            return None  # it is being released
        return next((one for one in self._members if one.number == number), None)

    def describe(self) -> tuple[Sequence[MemberStatus], Sequence[LeaseStatus]]:
        """Return all members and leases, as last read, and their ages now."""
        later_s = asyncio.get_running_loop().time() - self._read_at
        return (
            [replace(one, age_s=one.age_s + later_s) for one in self._statuses],
            [
                one if one.free_s is None else replace(one, free_s=one.free_s + later_s)
                for one in self._leases
                if one.free_s is None or one.name in self._wanted
            ],
        )

    async def confirm(self) -> bool:
        while not self.fenced.is_set() and _boot_s() - self._seen_at_s > CONFIRMED_S:
            self._wake.set()
            await self._signed.wait()
        return not self.fenced.is_set()

    async def _beat(self, connection: _Connection) -> None:
        """Give signs of life, and bring leases and members up to date, until this process is removed."""
        await connection.execute(
            f"SELECT pg_try_advisory_lock_shared($1::integer, {_LOCK_KEY.format(number='$2', schema='$3')})",
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
            signed, self._signed = self._signed, asyncio.Event()
            signed.set()
            now = loop.time(), signs[0][0]
            if not is_in_time(now[0] - before[0], now[1] - before[1]):
                self._steady_since = loop.time()
            before = now
            if await self._update(connection):
                self._wake.set()
            self._forget_calls()
            self._end_pass()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._wake.wait()

    async def _update(self, connection: _Connection) -> bool:
        """Bring the database and this process to what they are to be. Returns whether there may be more to do."""
        await self._write_own(connection)
        before = self._members
        await self._read(connection)
        self._begin_and_end_work()
        if self._members != before:
            self._end_calls_with({one.number for one in before} - {one.number for one in self._members})
            self._call_all(self._member_listeners)
        loop_s = asyncio.get_running_loop().time()
        dead = find_dead(self._statuses, self.number, steady_s=loop_s - self._steady_since)
        if dead and await self._remove(connection, dead):
            return True
        if self._is_draining or self._listener is None:
            return False
        free = {
            one.name: one.free_s
            for one in self._leases
            if one.free_s is not None and one.name in self._wanted and self._barred_until.get(one.name, 0) <= loop_s
        }
        claims = find_claims(self.number, self._awake(), free)
        if not claims:
            return False
        taken = await (await connection.execute(_CLAIM, (self.number, claims))).fetchall()
        await self._notify_members(connection)
        return bool(taken)

    def _awake(self) -> list[Member]:
        return [one.member for one in self._statuses if one.age_s <= SILENT_S]

    async def _write_own(self, connection: _Connection) -> None:
        """Write what has changed in this process: its state, the leases that it wants, those that it releases."""
        changed = False
        state = self._listener is not None, self._is_draining, self.ops
        if state != self._written:
            with contextlib.suppress(psycopg.errors.LockNotAvailable):
                await connection.execute(
                    "UPDATE process SET ready = $2, draining = $3, ops = $4 WHERE number = $1", (self.number, *state)
                )
                self._written, changed = state, True
        over = [lease for lease, work in self._work.items() if work.is_over]
        if over:
            kept = [lease for lease in over if lease in self._wanted]
            await connection.execute(_RELEASE, (self.number, self._name, kept))
            await connection.execute("DELETE FROM lease WHERE number = $1 AND name = ANY($2)", (self.number, over))
            for lease in over:
                del self._work[lease]
            changed = True
        if self._listener is not None and (new := self._wanted - {one.name for one in self._leases}):
            await connection.execute(
                "INSERT INTO lease (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING", (sorted(new),)
            )
            changed = True
        if changed:
            await self._notify_members(connection)

    async def _read(self, connection: _Connection) -> None:
        """Read who is there, and who holds what."""
        leases = await (await connection.execute(_READ_LEASES)).fetchall()
        members = await (await connection.execute(_READ_MEMBERS, (self._schema,))).fetchall()
        self._read_at = asyncio.get_running_loop().time()
        self._holders = {name: number for name, number, *_ in leases if number is not None}
        held = dict[int, set[LeaseName]]()
        for lease, number in self._holders.items():
            held.setdefault(number, set()).add(lease)
        signs, statuses = {}, []
        for (
            number,
            name,
            role,
            host,
            pid,
            its_version,
            ops,
            started,
            ready,
            draining,
            seen,
            age_s,
            has_session,
        ) in members:
            signs[number] = seen
            member = Member(
                number=number,
                name=name,
                role=role,
                started=started,
                is_draining=draining or not ready,
                is_starting=not ready,
                leases=frozenset(held.get(number, ())),
            )
            statuses.append(
                MemberStatus(
                    member=member,
                    host=host,
                    pid=pid,
                    version=its_version,
                    age_s=age_s,
                    has_session=has_session,
                    is_ready=ready,
                    ops=ops,
                )
            )
        self._statuses, self._signs = statuses, signs
        self._members = tuple(one.member for one in statuses)
        by_number = {one.number: one for one in self._members}
        self._leases = [
            LeaseStatus(
                name=name,
                holder=by_number.get(number),
                since=since,
                previous=previous,
                gap_s=gap_s,
                free_s=free_s,
            )
            for name, number, since, previous, gap_s, free_s in leases
        ]

    def _begin_and_end_work(self) -> None:
        """Begin the work under leases that were taken, and end that under those to be given away."""
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
        now_s = asyncio.get_running_loop().time()
        if all(work.is_settled and not work.ending.is_set() for work in self._work.values()):
            movable = [lease for lease in mine if now_s - self._moved_at.get(lease, -math.inf) > _MOVED_S]
            me = next((one for one in self._members if one.number == self.number), None)
            free = sum(one.free_s is not None and one.name.startswith(AGENT_PREFIX) for one in self._leases)
            moved = find_lease_to_move(me, self._awake(), movable, free=free) if me is not None else None
            if moved is not None:
                self._moved_at[moved] = now_s
                self._work[moved].ending.set()

    async def _work_under(self, lease: LeaseName, work: _Work) -> None:
        """Work from the take-over of a lease until it is to be released."""
        assert self._listener is not None
        try:
            await self._listener.on_lease_acquired(lease)
        except Exception:
            logger.exception("%s: the work under this lease could not begin; another process is to take it", lease)
            self._barred_until[lease] = asyncio.get_running_loop().time() + RETRY_S
            return
        work.is_settled = True
        self._wake.set()
        await work.ending.wait()
        try:
            await self._listener.on_lease_ending(lease)
        except Exception:
            logger.exception("%s: the work under this lease did not end as it should; it is released", lease)

    async def _remove(self, connection: _Connection, dead: Sequence[int]) -> bool:
        """Remove the members that have given no sign of life since they were judged. Returns whether there were any."""
        names = [shared_name(self._schema, number) for number in dead]
        signs = [self._signs[number] for number in dead]
        # A process that hangs may hold the lock of the log.
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY($1)", (names,)
        )
        try:
            async with connection.transaction():
                await connection.execute(
                    "SELECT pg_advisory_xact_lock($1::integer, hashtext($2))", (LOG_LOCK, self._schema)
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
        for one in self._statuses:
            if one.member.number in gone:
                logger.warning(
                    "process %d (%s) was removed: no sign of life for %.1f s%s",
                    one.member.number,
                    one.member.name,
                    one.age_s,
                    "" if one.has_session else ", and its connection is lost",
                )
        return bool(gone)

    async def _delete_processes(self, connection: _Connection, numbers: Sequence[int]) -> None:
        """Delete these processes, and free their leases."""
        await connection.execute(_FREE, (numbers,))
        await connection.execute("DELETE FROM process WHERE number = ANY($1)", (numbers,))
        await connection.execute(
            "DELETE FROM call WHERE NOT EXISTS (SELECT FROM process WHERE process.number = to_number)"
        )
        await self._notify_members(connection)

    async def _notify_members(self, connection: _Connection) -> None:
        await connection.execute("SELECT pg_notify($1, '')", (shared_name(self._schema, "members"),))

    @staticmethod
    def _call_all(listeners: Iterable[Callable[[], None]]) -> None:
        for listener in listeners:
            try:
                listener()
            except Exception:
                logger.exception("what follows from news of other processes failed")

    def _fence(self) -> None:
        """Stop everything: the others have removed this process."""
        logger.error("this process was removed by another one, which had seen no sign of life of it: it ends")
        self.fenced.set()
        self._signed.set()
        self._end_all("this process was removed from the gateway")
        for one in self._loops:
            if one is not asyncio.current_task():
                one.cancel()

    def _end_all(self, reason: str) -> list["asyncio.Task[Any]"]:
        """End work and calls, without a word to anybody. Returns the tasks that end now."""
        tasks: list[asyncio.Task[Any]] = [work.task for work in self._work.values() if work.task is not None]
        tasks += [taken.task for taken in self._taken.values() if taken.task is not None]
        for taken in self._taken.values():
            taken.is_ended = True
        for task in tasks:
            task.cancel()
        self._work.clear()
        self._taken.clear()
        for pending in self._pending.values():
            self._fail(pending, reason, is_refused=not pending.attempts)
        self._end_pass()
        return tasks

    def _next_pass(self) -> "asyncio.Future[None]":
        """Return a future that is done when the next pass has ended."""
        self._passes.append(asyncio.get_running_loop().create_future())
        return self._passes[-1]

    def _end_pass(self) -> None:
        for one in self._passes:
            if not one.done():
                one.set_result(None)
        self._passes.clear()

    # Calls

    def serve(self, method: str, handler: Handler) -> None:
        self._handlers[method] = handler

    async def call(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        self.calls += 1
        try:
            return await self._call(to, method, arguments, timeout_s=timeout_s)
        except CallFailed:
            self.failed_calls += 1
            raise

    async def _call(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        body = json.dumps([method, arguments])
        if self.fenced.is_set() or not self._loops:
            raise CallFailed("this process is no member of the gateway any more", is_refused=True)
        if timeout_s <= 0:
            raise CallFailed(f"there is no time left for {method}", is_refused=True)
        if to == self.number:
            try:
                reply = await with_timeout(self._clock, timeout_s, self._carry_out(to, *json.loads(body)))
            except TimeoutError:
                raise _no_answer(method, to, timeout_s) from None
            return _read_reply(reply)
        call, loop = uuid.uuid4().hex, asyncio.get_running_loop()
        deadline = self._clock.monotonic() + timeout_s
        pending = self._pending[call] = _Pending(to, method, body, deadline, loop.create_future())
        self._send(_Message(to, call, "request"))
        timer = asyncio.create_task(self._clock.sleep(timeout_s))
        must_tell = True
        """Whether the receiver has to hear that nobody waits any more."""
        try:
            while not pending.reply.done():
                if timer.done():
                    raise _no_answer(method, to, timeout_s, is_refused=not pending.attempts)
                waits: set[asyncio.Future[Any]] = {pending.reply, timer}
                done, _ = await asyncio.wait(waits, timeout=_REPEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    self._send(_Message(to, call, "ask"))
            must_tell = len(pending.reply.result()) > _KEPT_REPLY_CHARS
            return _read_reply(pending.reply.result())
        finally:
            timer.cancel()
            del self._pending[call]
            if must_tell and pending.attempts:
                self._send(_Message(to, call, "cancel"))

    def tell(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> None:  # noqa: ANN401 - JSON
        body, deadline = json.dumps([method, arguments]), self._clock.monotonic() + timeout_s
        if not self.fenced.is_set() and self._loops:
            self._send(_Message(to, uuid.uuid4().hex, "tell", body, deadline))

    def _send(self, message: _Message) -> None:
        self._outgoing.append(message)
        self._has_outgoing.set()
        self._is_flushed.clear()

    async def _send_all(self, connection: _Connection) -> None:
        """Send messages, in their order, as long as the connection lasts. The next one begins where it has ended."""
        while True:
            await self._has_outgoing.wait()
            while self._outgoing:
                await self._send_one(connection, self._outgoing[0])
                self._outgoing.popleft()
            self._has_outgoing.clear()
            self._is_flushed.set()

    async def _send_one(self, connection: _Connection, message: _Message) -> None:
        """Send a message to a process that there is. Raises psycopg.Error if the connection is lost."""
        to, call, kind, body, deadline = message
        pending = self._pending.get(call)
        if kind in ("request", "ask") and pending is None:
            return  # nobody waits for it any more
        if kind == "request" and pending is not None:
            body, deadline = pending.body, pending.deadline
            pending.attempts += 1
        if kind in ("request", "tell"):
            left_s = deadline - self._clock.monotonic()
            if kind == "tell" and left_s <= 0:
                return
            body = f"[{left_s}, {body}]"
        reason = f"there is no process {to}"
        try:
            parameters = (to, self.number, call, kind, body, shared_name(self._schema, to))
            sent = await (await connection.execute(_SEND, parameters)).fetchall()
        except psycopg.Error as error:
            if connection.closed:
                raise
            logger.warning("a message to process %d could not be sent: %s", to, _first_line(error))
            sent, reason = [], f"the database does not take the call ({_first_line(error)})"
        if not sent and pending is not None:
            self._fail(pending, reason, is_refused=kind == "request" and pending.attempts == 1)

    async def _listen(self, connection: _Connection) -> None:
        """Take messages, and look at the members when something has changed, as long as the connection lasts."""
        own, members, log = [shared_name(self._schema, what) for what in (self.number, "members", LOG_NEWS)]
        told = {own, members, log}
        for name in told:
            await connection.execute(f"LISTEN {sql.Identifier(name).as_string()}", prepare=False)
        while True:
            if log in told:
                self._call_all(self._log_listeners)
            if members in told:
                self._wake.set()
            if own in told:
                for row in await (await connection.execute(_RECEIVE, (self.number,))).fetchall():
                    self._take(*row)
            news = [(one.channel, one.payload) async for one in connection.notifies(stop_after=1)]
            told = {channel for channel, sender in news if channel != log or sender != str(self.number)}

    def _take(self, sender: int, call: str, kind: _MessageKind, body: str, age_s: float) -> None:
        """Take a message, which was sent `age_s` ago. One that comes twice, or too late, changes nothing."""
        pending, taken = self._pending.get(call), self._taken.get((sender, call))
        if kind == "reply" and pending is not None and not pending.reply.done():
            pending.reply.set_result(body)
        elif kind == "missing" and pending is not None:
            self._send(_Message(sender, call, "request"))
        elif kind in ("request", "tell") and taken is None:
            timeout_s, asked = json.loads(body)
            if (left_s := timeout_s - age_s) > 0:
                task = asyncio.create_task(self._carry_out_within(sender, asked, left_s))
                until = self._clock.monotonic() + left_s + _LATE_S
                self._taken[sender, call] = _Taken(until, task, is_ended=kind == "tell")
                task.add_done_callback(lambda task: self._reply(sender, call, task))
        elif kind in ("request", "ask") and taken is not None and taken.reply is not None:
            self._send(_Message(sender, call, "reply", taken.reply))
        elif kind == "ask" and taken is None:
            self._send(_Message(sender, call, "missing"))
        elif kind == "cancel" and taken is not None:
            self._end_taken(taken)

    def _end_taken(self, taken: _Taken) -> None:
        """End a call whose caller does not wait any more. What is left is the memory that it was taken."""
        taken.is_ended, taken.reply = True, None
        if taken.task is not None:
            taken.task.cancel()

    def _reply(self, sender: int, call: str, task: "asyncio.Task[str]") -> None:
        taken = self._taken.get((sender, call))
        if taken is None:
            return
        taken.task = None
        if taken.is_ended:
            return
        taken.reply = _failure("internal error: CancelledError") if task.cancelled() else task.result()
        self._send(_Message(sender, call, "reply", taken.reply))

    async def _carry_out_within(self, sender: int, asked: tuple[str, Any], limit_s: float) -> str:
        """Return the reply to a call: whatever becomes of it within the time."""
        try:
            return await with_timeout(self._clock, limit_s, self._carry_out(sender, *asked))
        except TimeoutError:
            return _failure(f"it was not done within {limit_s:.1f} s")

    async def _carry_out(self, sender: int, method: str, arguments: Any) -> str:  # noqa: ANN401 - JSON
        handler = self._handlers.get(method)
        if handler is None:
            return _failure(f"process {self.number} carries out no {method}", is_refused=True)
        try:
            return json.dumps({"result": await handler(sender, arguments)})
        except CallFailed as error:
            return _failure(error.reason, is_refused=error.is_refused)
        except Exception as error:
            logger.exception("a call of %s by process %d failed", method, sender)
            return _failure(f"internal error: {type(error).__name__}")

    def _end_calls_with(self, gone: Collection[int]) -> None:
        """End the calls to processes that are gone, and those from them."""
        for pending in self._pending.values():
            if pending.to in gone:
                self._fail(pending, f"process {pending.to} is gone", is_refused=not pending.attempts)
        for (sender, _), taken in self._taken.items():
            if sender in gone:
                self._end_taken(taken)

    def _fail(self, pending: _Pending, reason: str, *, is_refused: bool) -> None:
        if not pending.reply.done():
            pending.reply.set_result(_failure(reason, is_refused=is_refused))

    def _forget_calls(self) -> None:
        """Forget the calls about which no message can come any more."""
        now = self._clock.monotonic()
        for key in [key for key, taken in self._taken.items() if taken.until < now and taken.task is None]:
            del self._taken[key]

    # Connections

    async def _connect(self) -> _Connection:
        """Connect, in the name of this process. Raises psycopg.Error."""
        connection = await AsyncConnection.connect(**self._parameters, autocommit=True, prepare_threshold=1)
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
                "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS setting (name, value)",
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


async def read_processes(url: str) -> tuple[Sequence[MemberStatus], Sequence[LeaseStatus]]:
    """Read the processes that share a store, and its leases, from outside. Raises StoreUnavailable."""
    reader = DatabaseCluster(url, "all", "", SystemClock())
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


_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux alone has one that goes on while the machine is suspended."""


def _boot_s() -> float:
    """Return the time since the machine was started, with that for which it was suspended where that is known."""
    return time.clock_gettime(_BOOT_CLOCK)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _failure(reason: str, *, is_refused: bool = False) -> str:
    return json.dumps({"failed": reason, "is_refused": is_refused})


def _read_reply(body: str) -> Any:  # noqa: ANN401 - JSON
    """Return the result of a call. Raises CallFailed."""
    reply = json.loads(body)
    if "failed" in reply:
        raise CallFailed(reply["failed"], is_refused=reply["is_refused"])
    return reply["result"]


def _no_answer(method: str, to: int, timeout_s: float, *, is_refused: bool = False) -> CallFailed:
    return CallFailed(f"no answer to {method} from process {to} within {timeout_s:g} s", is_refused=is_refused)
