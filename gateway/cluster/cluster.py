"""Which process does what: leases, and the members of one gateway.

Whoever holds a lease does everything under it. `channel:NAME`: it receives, decides, takes the
turns of that channel's conversations and delivers. `agent:ID`: the agent's inner conversation, its
dreams and reminders. `upkeep`: care for the store. What passes from one process to another is a
fact in the log, and nothing else.

A gateway with a store in SQLite is one process, which holds everything: that is `Cluster` itself.
The processes that share a store in PostgreSQL are each a `DatabaseCluster`
(`gateway/cluster/database.py`).
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from gateway.core.events import Address, ChannelName, ConversationId
from gateway.core.facts import is_inner
from gateway.core.i18n import N_

if TYPE_CHECKING:
    from gateway.core.api_models import ProcessReport

LeaseName = str
UPKEEP: Final[LeaseName] = "upkeep"
"""Lease for what is done once for the whole gateway, e.g. retention."""
EVERYTHING: Final[LeaseName] = ""
"""All leases together: a process that is the only one takes them at once."""
CHANNEL_PREFIX: Final = "channel:"
AGENT_PREFIX: Final = "agent:"


HELD_ELSEWHERE: Final = N_(
    "Another of my processes holds that room, so this can be done only there."
)
"""For people whose command needs the process that holds a channel."""


def channel_lease(channel: ChannelName) -> LeaseName:
    """Return the lease of a channel: its connection, its conversations and its posts."""
    return f"{CHANNEL_PREFIX}{channel}"


def agent_lease(agent: str) -> LeaseName:
    """Return the lease of what an agent does by itself."""
    return f"{AGENT_PREFIX}{agent}"


def lease_of(conversation: ConversationId) -> LeaseName:
    """Return the lease whose holder takes the turns of a conversation."""
    at = Address.parse(conversation)
    return agent_lease(at.room) if is_inner(conversation) else channel_lease(at.channel)


class LeaseListener(Protocol):
    """Whoever works under leases."""

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        """Begin to work under this lease. The previous holder has ended, or can write nothing any
        more.
        """

    async def on_lease_ending(self, lease: LeaseName) -> None:
        """End all work under this lease: another process takes it when this returns."""


class Cluster:
    """A gateway of one process: it holds every lease."""

    number: int = 0
    """Number of this process; 0: it is the only one, and has none."""
    is_shared: bool = False
    """True: other processes may share the store, now or later."""
    ops: str = ""
    """See `ProcessRecord`; whoever listens sets it, and the others know it a second later."""
    taken_leases = 0
    """How often this process has taken a lease since it started."""

    def __init__(self) -> None:
        self.fenced = asyncio.Event()
        """Set when other processes have removed this one: it holds nothing any more, and may write
        nothing."""

    def holds(self, lease: LeaseName) -> bool:  # noqa: ARG002 - the contract
        """Return whether this process holds the lease."""
        return True

    def takes_turns_of(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - the contract
        """Return whether this process takes the turns of a conversation."""
        return True

    def describe(self) -> "ProcessReport | None":
        """Return all processes and leases, as last read, and their ages now. None: this process is
        the only one, and shares nothing.
        """
        return None

    async def start(self, listener: LeaseListener, leases: Iterable[LeaseName]) -> None:  # noqa: ARG002 - the contract
        """Take those of these leases that it is to hold, now and later."""
        await listener.on_lease_acquired(EVERYTHING)

    def want(self, leases: Iterable[LeaseName]) -> None:
        """Set the leases that there are, whoever takes them. Work under one that is not among them
        is ended.
        """

    async def drain(self) -> None:
        """End the work under all leases, and release each. It takes no more."""

    async def confirm(self) -> bool:
        """Return whether this process is one of the gateway's still. Waits while that is not known.

        For what must not be done any more by a process that was silent for so long that others have
        taken over.
        """
        return True
