"""Rooms of a channel that another process holds: both processes follow one log, and the holder alone goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from channels.base import Channel, Rejected
from channels.console import ConsoleChannel
from gateway.access.remote import build_remote_channel, serve_channels
from gateway.cluster.cluster import channel_lease
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, ConnectionChanged, EventId, Notification, RoomId
from gateway.core.facts import RoomAccessChanged
from gateway.core.i18n import _, use_language
from gateway.core.identity import RosterState
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store
from gateway.stream.outbox import Outbox
from gateway.stream.rooms import FAILED_TEXT, SILENT_TEXT, UNREACHED_TEXT, RoomMembership
from tests.kits.cluster import ManualCluster
from tests.kits.policies import PlayedPolicy
from tests.kits.store import NOW, opened
from tests.kits.tasks import LooseTasks

NAME = ChannelName("irc.test")
ROOM = Address(channel=NAME, room=RoomId("#room"))


class Watched(ConsoleChannel):
    """Notes where it goes."""

    refusal = ""
    is_broken = False

    def __init__(self) -> None:
        super().__init__(NAME, lambda _part: None)
        self.went: list[str] = []

    async def join(self, at: Address) -> None:
        self.went.append(f"join {at.room}")
        if self.is_broken:
            raise RuntimeError("a bug")
        if self.refusal:
            raise Rejected(self.refusal)
        await super().join(at)

    async def leave(self, at: Address) -> None:
        self.went.append(f"leave {at.room}")
        await super().leave(at)


@dataclass
class Processes:
    """Two processes on one log, without the outbox of the one that holds nothing."""

    store: Store
    adapter: Watched
    peers: list[ManualCluster]
    holder: RoomMembership
    other: RoomMembership
    tasks: LooseTasks

    async def done(self) -> None:
        while self.tasks.running:
            await asyncio.wait(self.tasks.running)


@contextlib.asynccontextmanager
async def processes(path: Path, *, approved: bool = True) -> AsyncIterator[Processes]:
    rooms = frozenset({ROOM.conversation} if approved else ())
    policy = PlayedPolicy(dm_policy="open", roles={}, open_rooms={}, roster=lambda: RosterState(rooms=rooms))
    clock, tasks, peers = ManualClock(NOW), LooseTasks(), list[ManualCluster]()
    async with await opened(path / "s.db") as store:
        adapter = Watched()
        clusters = ManualCluster(peers, channel_lease(NAME)), ManualCluster(peers)
        far = build_remote_channel(Watched(), clusters[1], clock)
        members = list[RoomMembership]()
        ends: tuple[Channel, Channel] = adapter, far
        for cluster, channel in zip(clusters, ends, strict=True):
            channels = {NAME: channel}
            serve_channels(cluster, channels)
            outbox = Outbox(store, channels, clock, tasks, redactor=Redactor())
            members.append(RoomMembership(store, channels, tasks, outbox, policy, cluster=cluster))

        async def emit(batch: object, *, cursor: str | None = None) -> None:
            del batch, cursor

        running = asyncio.create_task(adapter.run(emit))
        try:
            await asyncio.sleep(0)
            yield Processes(store, adapter, peers, members[0], members[1], tasks)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_room_is_left_and_entered_by_the_process_that_holds_the_channel(tmp_path: Path) -> None:
    async with processes(tmp_path) as it:
        assert await it.other.is_inside(ROOM) is True
        assert await it.other.leave(ROOM) == ""
        assert [await one.was_sent_out(ROOM) for one in (it.holder, it.other)] == [True, True]
        it.holder.rejoin(NAME)
        it.other.rejoin(NAME)
        await it.done()
        assert await it.holder.is_inside(ROOM) is False, "told to stay out"
        assert await it.other.enter(ROOM) == ""
        assert await it.other.was_sent_out(ROOM) is False
        assert it.adapter.went == ["leave #room", "join #room"]
        it.adapter.refusal = "banned (474)"
        assert await it.other.enter(ROOM) == "banned (474)"


@pytest.mark.parametrize("approved", [True, False])
async def test_what_the_log_says_is_done_once(tmp_path: Path, *, approved: bool) -> None:
    async with processes(tmp_path, approved=approved) as it:
        changed = RoomAccessChanged(room=ROOM, open=approved, by="x")
        await it.store.append([NewEntry(fact=changed, at=NOW)])
        await it.done()
        assert it.adapter.went == ["join #room" if approved else "leave #room"]
        up: Notification = ConnectionChanged(id=EventId("1"), channel=NAME, up=True, reason="", sent=NOW)
        await it.store.append([NewEntry(fact=up, at=NOW)])
        await it.done()
        assert it.adapter.went[1:] == (["join #room"] if approved else [])


async def test_while_nobody_holds_the_channel_it_goes_nowhere_and_that_is_told(tmp_path: Path) -> None:
    async with processes(tmp_path) as it:
        it.peers[0].kill()
        assert await it.other.enter(ROOM) == UNREACHED_TEXT
        assert await it.other.leave(ROOM) == UNREACHED_TEXT
        assert await it.other.was_sent_out(ROOM) is False
        assert await it.other.is_inside(ROOM) is None
        assert it.adapter.went == []


async def test_a_process_that_does_not_run_the_channel_yet_refuses(tmp_path: Path) -> None:
    async with processes(tmp_path) as it:
        it.peers[0].leases.clear()
        it.peers[1].leases.add(channel_lease(NAME))
        assert await it.other.enter(ROOM) == UNREACHED_TEXT
        assert it.adapter.went == []


async def test_a_failure_is_told_in_the_language_of_whoever_asked(tmp_path: Path) -> None:
    async with processes(tmp_path) as it:
        it.adapter.is_broken = True
        with use_language("de"):
            assert await it.other.enter(ROOM) == _(FAILED_TEXT) != FAILED_TEXT
            it.peers[0].is_frozen = True
            entering = asyncio.create_task(it.other.enter(ROOM))
            await asyncio.sleep(0)
            it.peers[0].kill()
            assert await entering == _(SILENT_TEXT) != SILENT_TEXT
