"""Who carries out what: leases, members, and calls between the processes of one gateway.

A gateway with a store in SQLite is one process, which holds everything: that is `Cluster` itself. The processes that
share a store in PostgreSQL are each a `DatabaseCluster` (`gateway/cluster/database.py`).

A lease is the right to do something that only one process may do at a time: to hold a connection (`channel:NAME`), to
run the DMN of an agent (`agent:ID`), to care for the store (`upkeep`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from gateway.core.events import ChannelName
from gateway.core.i18n import N_

ProcessRole = Literal["all", "edge", "worker"]
"""Edges hold connections to platforms, workers take turns; `all` does both."""
LeaseName = str
UPKEEP: Final[LeaseName] = "upkeep"
"""Lease for what is done once for the whole gateway, e.g. retention. Held by a worker."""
CHANNEL_PREFIX: Final = "channel:"
AGENT_PREFIX: Final = "agent:"


NOT_ANSWERING: Final = N_("One of my processes does not answer just now, so I changed nothing. Try again in a moment.")
"""For people whose command needs another process."""


def channel_lease(channel: ChannelName) -> LeaseName:
    """Return the lease of a connection to a platform. Held by an edge."""
    return f"{CHANNEL_PREFIX}{channel}"


def agent_lease(agent: str) -> LeaseName:
    """Return the lease of an agent's DMN. Held by a worker."""
    return f"{AGENT_PREFIX}{agent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of the gateway."""

    number: int
    """Fencing token, larger than that of every earlier process: the store takes no entry of one that was removed."""
    name: str
    """Name for people: of `--name`, or host and process id."""
    role: ProcessRole
    started: datetime
    is_draining: bool = False
    """True: it stops, or is starting, and takes nothing new."""
    is_starting: bool = False
    """True: it has had nothing yet."""
    leases: frozenset[LeaseName] = frozenset()

    @property
    def takes_turns(self) -> bool:
        """Whether it may be given turns."""
        return self.role != "edge" and not self.is_draining

    @property
    def may_run_turns(self) -> bool:
        """Whether turns may run there that it was given earlier."""
        return self.role != "edge" and not self.is_starting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStatus:
    """A member, and what is known of its process."""

    member: Member
    host: str
    pid: int
    version: str
    age_s: float
    """Seconds since its last sign of life, which comes each second."""
    has_session: bool
    """False: its connection to the database is lost."""
    is_ready: bool
    """False: it is still starting, and takes no lease."""
    ops: str = ""
    """Address of its HTTP server. Empty: it has none, or does not listen yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseStatus:
    """A lease that some process wants."""

    name: LeaseName
    holder: Member | None
    since: datetime | None
    """Time at which the holder, or the last one, took it. None: nobody has had it."""
    previous: str
    """Name of the holder before. Empty: there was none."""
    gap_s: float | None
    """Seconds from the last sign of life of the holder before, or its release, to `since`. None: there was none."""
    free_s: float | None
    """Seconds for which it has had no holder. None: it has one."""


class CallFailed(Exception):
    """A call to another process had no result. Some may have been carried out all the same."""

    def __init__(self, reason: str, *, is_refused: bool = False) -> None:
        """`is_refused`: it was surely not carried out."""
        super().__init__(reason)
        self.reason, self.is_refused = reason, is_refused


Handler = Callable[[int, Any], Awaitable[Any]]
"""Carries out a call: number of the calling process, and its arguments, a JSON value. Returns a JSON value.

It is cancelled when the caller is cancelled or gone, and after the deadline. The caller gets its exception as a
`CallFailed`.
"""


class LeaseListener(Protocol):
    """Whoever works under leases."""

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """Begin to work under this lease. The previous holder has ended, or can write nothing any more."""

    async def on_lease_ending(self, lease: LeaseName) -> None:
        """End all work under this lease: another process takes it when this returns."""


class Cluster:
    """A gateway of one process: it holds every lease, and there is nobody to call."""

    number: int = 0
    """Number of this process; 0: it is the only one, and has none."""
    role: ProcessRole = "all"
    is_shared: bool = False
    """True: other processes may share the store, now or later."""
    ops: str = ""
    """See `MemberStatus`; whoever listens sets it, and the others know it a second later."""
    taken_leases = calls = failed_calls = 0
    """How often this process has taken a lease, and called another one, since it started."""

    def __init__(self) -> None:
        self.fenced = asyncio.Event()
        """Set when other processes have removed this one: it holds nothing any more, and may write nothing."""

    @property
    def members(self) -> Sequence[Member]:
        """All processes, as last read: this one, too. Empty: it is the only one for good."""
        return ()

    def holds(self, lease: LeaseName) -> bool:  # noqa: ARG002 - the contract
        """Return whether this process holds the lease."""
        return True

    def holder(self, lease: LeaseName) -> Member | None:  # noqa: ARG002 - the contract
        """Return the member that holds the lease, as last read. None: nobody does, or there are no members."""
        return None

    def describe(self) -> tuple[Sequence[MemberStatus], Sequence[LeaseStatus]]:
        """Return all members and leases, as last read, and their ages now. Empty: this process is the only one."""
        return (), ()

    async def start(self, listener: LeaseListener, leases: Iterable[LeaseName]) -> None:
        """Take calls, and those of these leases that it is to hold."""

    def want(self, leases: Iterable[LeaseName]) -> None:
        """Set the leases that there are, whoever takes them. Work under one that is not among them is ended."""

    async def drain(self) -> None:
        """End the work under all leases, and release each. It takes no more; calls continue."""

    async def confirm(self) -> bool:
        """Return whether this process is one of the gateway's still. Waits while that is not known.

        For what must not be done any more by a process that was silent for so long that others have taken over.
        """
        return True

    def serve(self, method: str, handler: Handler) -> None:
        """Carry out the calls of this name. To be set before `start`."""

    async def call(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> Any:  # noqa: ANN401, ARG002 - JSON
        """Let a process carry out a call, and return its result.

        It is carried out at most once. Raises CallFailed: after `timeout_s`, if that process is gone, or with the
        reason of the handler's error. Cancelled, it ends there, too. A call to this process itself is carried out here.
        """
        raise CallFailed(f"there is no process {to} that carries out {method}", is_refused=True)

    def tell(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> None:  # noqa: ANN401 - JSON
        """Let another process carry out a call of which nobody needs the result. Returns at once.

        It is carried out at most once, and not at all if it cannot be sent within `timeout_s`, or that process is gone.
        """


async def ask_each_worker(
    cluster: Cluster, method: str, arguments: object, *, timeout_s: float
) -> list[tuple[Member, Any]]:
    """Return all processes that may run turns, each with its answer, or with the CallFailed in place of one."""
    workers = [one for one in cluster.members if one.may_run_turns]
    calls = [cluster.call(one.number, method, arguments, timeout_s=timeout_s) for one in workers]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for one in answers:
        if isinstance(one, BaseException) and not isinstance(one, CallFailed):
            raise one
    return [*zip(workers, answers, strict=True)]


async def ask_workers(cluster: Cluster, method: str, arguments: object, *, timeout_s: float) -> list[Any]:
    """Return the answers of all processes that may run turns. Raises CallFailed if one gives none."""
    answers = [answer for _, answer in await ask_each_worker(cluster, method, arguments, timeout_s=timeout_s)]
    for one in answers:
        if isinstance(one, CallFailed):
            raise one
    return answers
