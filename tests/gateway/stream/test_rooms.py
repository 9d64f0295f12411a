"""Rooms of a channel that another process holds: both processes follow one log, and the holder
alone goes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from channels.base import Rejected
from gateway.access.channels import Channels
from gateway.cluster.cluster import HELD_ELSEWHERE, channel_lease
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    EventId,
    Notification,
    Post,
    PostKey,
    RoomId,
)
from gateway.core.facts import Fact, PostQueued, RoomAccessChanged
from gateway.core.i18n import _, use_language
from gateway.core.identity import RosterState
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store
from gateway.stream.outbox import Outbox
from gateway.stream.rooms import FAILED_TEXT, RoomMembership
from reverie.testing.console import ConsoleChannel
from tests.kits.cluster import ManualCluster
from tests.kits.policies import PlayedPolicy
from tests.kits.settings import live_settings
from tests.kits.store import NOW, opened
from tests.kits.tasks import LooseTasks

NAME = ChannelName("irc.test")
ROOM = Address(channel=NAME, room=RoomId("#room"))


class Watched(ConsoleChannel):
    """Notes where it goes."""

    refusal = ""
    is_broken = False
    outbox: Outbox

    def __init__(self) -> None:
        super().__init__(NAME, lambda part: self.went.append(f"send {part.body}"))
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


@contextlib.asynccontextmanager
async def processes(
    path: Path, *, approved: bool = True
) -> AsyncIterator[tuple[Watched, list[RoomMembership], Store]]:
    """Two processes on one log: the first one holds the channel."""
    rooms = frozenset({ROOM.conversation} if approved else ())
    policy = PlayedPolicy(
        dm_policy="open", roles={}, open_rooms={}, roster=lambda: RosterState(rooms=rooms)
    )
    clock, tasks, peers = ManualClock(NOW), LooseTasks(), list[ManualCluster]()
    async with await opened(path / "s.db") as store:
        adapters, members = (Watched(), Watched()), list[RoomMembership]()
        for adapter, held in zip(adapters, ([channel_lease(NAME)], []), strict=True):
            channels = Channels(live_settings(), {NAME: adapter}, ManualCluster(peers, *held))
            outbox = Outbox(store, channels, clock, tasks, redactor=Redactor())
            adapter.outbox = outbox
            members.append(RoomMembership(store, channels, tasks, outbox, policy))

        async def emit(batch: object, *, cursor: str | None = None) -> None:
            del batch, cursor

        running = asyncio.create_task(adapters[0].run(emit))
        try:
            await asyncio.sleep(0)
            yield adapters[0], members, store
            while tasks.running:
                await asyncio.wait(tasks.running)
            assert adapters[1].went == []
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_only_the_process_that_holds_the_channel_goes(tmp_path: Path) -> None:
    async with processes(tmp_path) as (adapter, (holder, other), _store):
        assert [one.is_inside(ROOM) for one in (holder, other)] == [True, None]
        assert await other.leave(ROOM) == await other.enter(ROOM) == HELD_ELSEWHERE
        assert await holder.leave(ROOM) == ""
        assert holder.was_sent_out(ROOM)
        holder.rejoin(NAME)
        other.rejoin(NAME)
        assert adapter.went == ["leave #room"], "told to stay out"
        adapter.refusal = "banned (474)"
        assert await holder.enter(ROOM) == "banned (474)"
        adapter.is_broken = True
        with use_language("de"):
            assert await holder.enter(ROOM) == _(FAILED_TEXT) != FAILED_TEXT


@pytest.mark.parametrize("approved", [True, False])
async def test_what_the_log_says_is_done_once(tmp_path: Path, *, approved: bool) -> None:
    async with processes(tmp_path, approved=approved) as (adapter, _members, store):
        changed = RoomAccessChanged(room=ROOM, open=approved, by="x")
        await store.append([NewEntry(fact=changed, at=NOW)])
    assert adapter.went == ["join #room" if approved else "leave #room"]
    (tmp_path / "2").mkdir()
    async with processes(tmp_path / "2", approved=approved) as (adapter, _members, store):
        up: Notification = ConnectionChanged(
            id=EventId("1"), channel=NAME, up=True, reason="", sent=NOW
        )
        await store.append([NewEntry(fact=up, at=NOW)])
    assert adapter.went == (["join #room"] if approved else [])


async def test_a_closed_room_is_left_once_that_was_said_there(tmp_path: Path) -> None:
    async with processes(tmp_path, approved=False) as (adapter, _members, store):
        await adapter.outbox.open(NAME)
        post = Post(key=PostKey("p"), to=ROOM, text="I leave.")
        facts: list[Fact] = [
            RoomAccessChanged(room=ROOM, open=False, by="x"),
            PostQueued(post=post),
        ]
        await store.append(
            [NewEntry(fact=fact, at=NOW, conversation=ROOM.conversation) for fact in facts]
        )
        await store.last_position()
        assert adapter.went == []
        adapter.outbox.set_link_up(NAME, up=True)
    assert adapter.went == ["send I leave.", "leave #room"]
