"""Abilities of a channel that another process holds, over a real database."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from channels import base
from channels.base import Channel, Rejected, provisional_id
from gateway.access.channels import Channels
from gateway.access.remote import build_remote_channel, serve_channels
from gateway.cluster.cluster import CallFailed, channel_lease
from gateway.cluster.database import DatabaseCluster
from gateway.core.clock import SystemClock
from gateway.core.events import Address, Attachment, ChannelName, MessageId, RoomId, SenderId
from gateway.core.scopes import PUBLIC
from tests.gateway.cluster.test_database import Group, Services
from tests.kits.far_channel import FarChannel
from tests.kits.settings import live_settings
from tests.kits.waiting import until
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.integration
NAME = ChannelName("irc.test")
ROOM = Address(channel=NAME, room=RoomId("#room"))


class Ends:
    """An edge with a channel, and a worker."""

    def __init__(self, group: Group, edge: DatabaseCluster, worker: DatabaseCluster) -> None:
        self.group, self.edge, self.worker = group, edge, worker
        self.adapter = FarChannel(NAME)
        self.far: Any = build_remote_channel(FarChannel(NAME), worker, SystemClock())
        self.there: dict[ChannelName, Channel] = {NAME: self.adapter}
        self.here = Channels(live_settings(), {NAME: self.far})
        serve_channels(edge, self.there)
        serve_channels(worker, self.here)


@pytest.fixture
async def ends(postgresql: PostgresServer) -> AsyncIterator[Ends]:
    async with Group(postgresql, f"channels{os.getpid()}") as group:
        made = Ends(group, await group.join("edge", "edge"), await group.join("worker", "worker"))
        await made.edge.start(Services(), [channel_lease(NAME)])
        await made.worker.start(Services(), [channel_lease(NAME)])
        await until(lambda: made.worker.holder(channel_lease(NAME)) is not None and len(made.worker.members) == 2)
        await until(lambda: made.edge.holds(channel_lease(NAME)))
        yield made


async def test_what_a_worker_does_in_a_channel_is_done_by_the_edge(ends: Ends) -> None:
    recorded = list[tuple[MessageId, int]]()

    async def announce(message: MessageId) -> None:
        recorded.append((message, len(ends.adapter.done)))

    data = os.urandom(3_000_000)
    ends.adapter.answers = {"preview": "5", "download": data, "membership": "reads_all", "audience": "everybody"}
    assert await ends.far.preview(ROOM, "He\0llo", None, announce=announce) == "5"
    assert recorded == [(provisional_id("hint"), 0)], "before it is shown"
    assert await ends.far.download(ROOM, Attachment(id="1", form="file"), limit_bytes=len(data)) == data
    assert await ends.here.membership(ROOM, SenderId("1")) == "reads_all"
    assert await ends.here.scope_of(ROOM) == PUBLIC
    ends.adapter.error = Rejected("you are banned: \0 ü")
    with pytest.raises(Rejected, match="you are banned: \0 ü"):
        await ends.far.join(ROOM)


async def test_what_another_version_asks_in_its_own_way_is_surely_not_done(ends: Ends) -> None:
    room = '{"channel": "irc.test", "room": "#room"}'
    for arguments, more in ((f'{{"at": {room}, "weather": "fair"}}', {}), ("{}", {}), (f'{{"at": {room}}}', {"a": 1})):
        call = {"channel": NAME, "method": "join", "arguments": arguments, **more}
        with pytest.raises(CallFailed, match="its version knows other calls") as told:
            await ends.worker.call(ends.edge.number, "channel", call, timeout_s=5)
        assert told.value.is_refused
    assert ends.adapter.done == []


async def test_an_action_that_is_cancelled_ends_at_the_edge(ends: Ends) -> None:
    ends.adapter.block.clear()
    joining = asyncio.create_task(ends.far.join(ROOM))
    await ends.adapter.blocked.wait()
    joining.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await joining
    await until(lambda: ends.adapter.is_cancelled)


async def _outcome(ends: Ends) -> type[base.SendError] | None:
    """Let the worker join the room. Return how that failed; None: it is done."""
    try:
        await ends.far.join(ROOM)
    except base.SendError as error:
        return type(error)
    return None


async def _is_outcome(ends: Ends, wanted: type[base.SendError] | None) -> bool:
    return await _outcome(ends) is wanted


async def test_a_channel_whose_edge_leaves_is_not_reachable_and_then_is_held_by_another(ends: Ends) -> None:
    await ends.edge.leave()
    await until(lambda: _is_outcome(ends, base.Unreachable))
    assert await ends.here.scope_of(ROOM) is None
    before = len(ends.adapter.done)
    other = await ends.group.join("other", "edge")
    serve_channels(other, ends.there)
    await other.start(Services(), [channel_lease(NAME)])
    await until(lambda: _is_outcome(ends, None))
    assert ends.adapter.done[before:] == [("join", ROOM)]
