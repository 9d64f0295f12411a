"""What a channel supervisor is given, played."""

import asyncio
from collections.abc import Callable, Sequence

from channels.base import Emit
from gateway.access.channels import Channels
from gateway.app import make_channel
from gateway.config.models import Settings
from gateway.core.events import ChannelName, ConnectionChanged, Notification
from gateway.core.facts import CursorMoved, dedup_key
from gateway.core.metrics import GatewayStats
from gateway.store import NewEntry
from gateway.stream.outbox import Outbox
from gateway.stream.rooms import RoomMembership
from gateway.stream.supervisor import AdapterFactory, ChannelSupervisor
from tests.kits.owners import NotedNotices
from tests.kits.policies import policy_of


class EmitIntake:
    """Hands each batch to the `Emit` of its channel."""

    def __init__(self, emit_of: Callable[[ChannelName], Emit]) -> None:
        self._emit_of = emit_of

    async def accept(
        self, channel: ChannelName, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        await self._emit_of(channel)(batch, cursor=cursor)


async def append_batch(
    outbox: Outbox,
    stats: GatewayStats,
    channel: ChannelName,
    batch: Sequence[Notification],
    cursor: str | None,
) -> None:
    """Append as the intake does: known events once."""
    now, entries = outbox.clock.now(), list[NewEntry]()
    for event in batch:
        place = event.at.conversation if event.at is not None else None
        entries.append(NewEntry(fact=event, at=now, conversation=place, key=dedup_key(event)))
    if cursor is not None:
        entries.append(NewEntry(fact=CursorMoved(channel=channel, value=cursor), at=now))
    await outbox.store.append(entries)
    for event in batch:
        if isinstance(event, ConnectionChanged):
            stats.record_link(event, now)


def supervise(
    channels: Channels,
    settings: Settings,
    outbox: Outbox,
    tasks: asyncio.TaskGroup,
    *,
    stats: GatewayStats,
    told: list[str] | None = None,
    make: AdapterFactory = make_channel,
    is_shared: bool = False,
) -> ChannelSupervisor:
    """Return the supervisor of these channels. `told`: notices to owners."""
    store, clock = outbox.store, outbox.clock
    return ChannelSupervisor(
        channels,
        settings,
        clock=clock,
        stats=stats,
        outbox=outbox,
        notices=NotedNotices(told),
        membership=RoomMembership(store, channels, tasks, outbox, policy_of(settings)),
        tasks=tasks,
        make=make,
        is_shared=is_shared,
    )
