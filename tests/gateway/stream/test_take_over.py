"""Connections that another process takes over, on the real adapters: nothing is lost, and nothing
is said twice."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from channels.base import BeforeSend, Capabilities, Channel, Emit, PostPart, no_before_send
from channels.discord.channel import DiscordChannel
from gateway.cluster.cluster import channel_lease
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import (
    ChannelName,
    ConnectionChanged,
    DeliveryReport,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    Receipt,
)
from gateway.core.facts import MESSAGE_KINDS, PostQueued
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store
from gateway.stream.outbox import LOST_IN_CRASH_TEXT, Outbox
from reverie.testing.platforms.base import Kit
from reverie.testing.waiting import until
from tests.channels.conformance.platforms.discord import DiscordKit
from tests.channels.conformance.platforms.irc import ScriptedIrcKit
from tests.channels.conformance.platforms.telegram import TelegramKit
from tests.channels.discord.faults_kit import Hurried
from tests.kits.cluster import ManualCluster, shared_stores
from tests.kits.places import PlayedChannels
from tests.kits.store import ENGINE, turn
from tests.kits.supervisor import EmitIntake, append_batch, supervise
from tests.kits.tasks import LooseTasks

PLATFORMS: dict[str, type[Kit]] = {
    "irc": ScriptedIrcKit,
    "telegram": TelegramKit,
    "discord": DiscordKit,
}


@pytest.fixture(
    autouse=True, params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)]
)
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with one file that stands for the log of both processes, and with two stores in
    one database."""
    ENGINE.server = request.getfixturevalue("postgresql") if request.param == "postgresql" else None
    yield
    ENGINE.server = None


UNHELD = ChannelName("irc.unheld")


class StandIn:
    """What stands for a channel that another process holds. It sends nothing."""

    capabilities = Capabilities(platform="stand-in", formatting="")

    def __init__(self, name: ChannelName) -> None:
        self.name = name

    async def run(self, emit: Emit) -> None:
        raise AssertionError(f"not used here: {emit}")

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text,)

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        raise AssertionError(f"{self.name} sends {part} by {going}")


class Edge:
    """The services of one process that has to do with connections."""

    def __init__(self, kit: Kit, store: Store, clock: Clock, peers: list[ManualCluster]) -> None:
        self.kit, self.store, self.clock, self.cluster = kit, store, clock, ManualCluster(peers)
        self.tasks = LooseTasks()
        self.hung: Literal["", "before", "after"] = ""
        """Where the next part that is sent hangs: before it has reached the platform, or after."""
        self.is_hanging = asyncio.Event()
        name = kit.name
        self.channels = PlayedChannels({one: StandIn(one) for one in (name, UNHELD)})
        self.outbox = Outbox(
            store, self.channels, clock, self.tasks, redactor=Redactor(), cluster=self.cluster
        )
        self.stats = GatewayStats({}, clock.now())
        self.supervisor = supervise(
            self.channels,
            settings(name),
            self.outbox,
            self.tasks,
            stats=self.stats,
            make=self._make,
            is_shared=True,
        )
        self.cluster.listener = self.supervisor
        self.supervisor.start(EmitIntake(lambda _: self._emit))
        self._number = 0

    def _make(
        self,
        name: ChannelName,
        settings: Settings,
        clock: Clock,
        cursor: str | None,
        before: Channel | None,
    ) -> Channel:
        del settings, before
        if not self.cluster.holds(channel_lease(name)):
            return StandIn(name)
        channel: Any = self.kit.make(cursor)
        if isinstance(channel, DiscordChannel):
            channel = DiscordChannel(
                self.kit.name, channel._config, clock, cursor=cursor, random=lambda: 0.0
            )
        send = channel.send

        async def hang(part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
            if self.hung == "before":
                await going()
            result: Receipt = Receipt() if self.hung == "before" else await send(part, going)
            if self.hung:
                self.is_hanging.set()
                await asyncio.Event().wait()
            return result

        channel.send = hang
        return channel  # type: ignore[no-any-return] # it is one

    async def _emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        await append_batch(self.outbox, self.stats, self.kit.name, batch, cursor)

    async def take(self) -> None:
        """Acquire the lease of the connection; return once it is up."""
        await self.cluster.grant(channel_lease(self.kit.name))
        await until(lambda: self.is_up)

    @property
    def is_up(self) -> bool:
        return [one.state for one in self.stats.snapshot().channels] == ["up"]

    def reload(self, *names: ChannelName, nick: str = "reverie") -> None:
        """Follow a changed configuration."""
        self.supervisor.prepare(settings(*names, nick=nick))()

    async def give(self) -> None:
        await self.cluster.end(channel_lease(self.kit.name))

    async def kill(self) -> None:
        """End all that it does, as `kill -9` would."""
        self.cluster.kill()
        for task in self.tasks.running:
            task.cancel()
        await asyncio.gather(*self.tasks.running, return_exceptions=True)
        await self.outbox.drain(0)

    async def post(self, text: str, reply_to: MessageId | None = None) -> None:
        """Queue an answer in the room, as a turn does that runs in this process."""
        self._number += 1
        to, now = self.kit.address("room"), self.clock.now()
        post = Post(
            key=PostKey(f"{self.cluster.number}.{self._number}"),
            to=to,
            text=text,
            reply_to=reply_to,
        )
        ended = turn(to.conversation)
        queued = NewEntry(
            fact=PostQueued(post=post),
            at=now,
            conversation=to.conversation,
            key=f"post:{post.key}",
            cause=ended,
        )
        await self.store.append([ended, queued])

    async def heard(self, count: int) -> list[Message]:
        """The messages in the log, once there are so many."""
        async with asyncio.timeout(30):
            while len(found := await self.store.entries(kinds=MESSAGE_KINDS)) < count:
                await asyncio.sleep(0.01)
        return [one.fact for one in found if isinstance(one.fact, Message)]

    async def deliveries(self, count: int) -> list[DeliveryReport]:
        """The reports of posts in the log, once there are so many."""
        async with asyncio.timeout(60):
            while len(found := await self.store.entries(kinds=["delivery"])) < count:
                await asyncio.sleep(0.01)
        return [one.fact for one in found if isinstance(one.fact, DeliveryReport)]

    async def links(self) -> list[bool]:
        return [
            one.fact.up
            for one in await self.store.entries(kinds=["link"])
            if isinstance(one.fact, ConnectionChanged)
        ]

    async def close(self) -> None:
        await self.outbox.drain(0)
        await self.supervisor.close()
        await self.outbox.close()
        for task in list(self.tasks.running):
            task.cancel()
        await asyncio.gather(*self.tasks.running, return_exceptions=True)


def settings(*names: ChannelName, nick: str = "reverie") -> Settings:
    """Settings with these channels, and one that nobody ever holds. Their adapters are made by the
    kit."""
    irc = {"platform": "irc", "host": "127.0.0.1", "port": 6667, "tls": False, "nick": nick}
    said = {
        "channels": {**dict.fromkeys(names, irc), UNHELD: irc | {"nick": f"{nick}2"}},
        "agents": [{"id": "ana"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
    }
    return parse_config(said, Path("/nowhere"))


@asynccontextmanager
async def two_edges(tmp: Path, platform: str) -> AsyncIterator[tuple[Kit, Edge, Edge]]:
    kit, clock = PLATFORMS[platform](), Hurried(20) if platform == "discord" else SystemClock()
    kit.patience_s = 20.0
    peers = list[ManualCluster]()
    async with kit.connection(), shared_stores(tmp / "s.db", clock) as (first, second):
        a, b = Edge(kit, first, clock, peers), Edge(kit, second, clock, peers)
        try:
            yield kit, a, b
        finally:
            for edge in (a, b):
                await edge.close()


@pytest.mark.parametrize("platform", PLATFORMS)
async def test_a_channel_that_moves_in_order_loses_nothing_and_says_nothing_twice(
    tmp_path: Path, platform: str
) -> None:
    async with two_edges(tmp_path, platform) as (kit, a, b):
        await a.take()
        for number in range(3):
            await kit.say(f"line {number}")
            await (a, b)[number % 2].post(f"post {number}")
        await a.heard(3)
        await a.deliveries(3)
        moving = asyncio.create_task(a.give())
        await b.post("post 3")
        await moving
        await a.post("post 4")
        assert isinstance(a.channels[kit.name], StandIn)
        await b.take()
        assert not isinstance(b.channels[kit.name], StandIn)
        await kit.say("line 3")
        await a.post("post 5")
        assert {one.state for one in await b.deliveries(6)} == {"sent"}
        assert [kit.plain(one) for one in await kit.seen("room", 6)] == [
            f"post {number}" for number in range(6)
        ]
        assert [one.text for one in await b.heard(4)] == [f"line {number}" for number in range(4)]
        assert await b.links() == [True, False, True]


@pytest.mark.parametrize("hung", ["before", "after"])
@pytest.mark.parametrize("platform", PLATFORMS)
async def test_what_was_in_flight_when_its_process_was_killed_is_said_once_or_told_once(
    tmp_path: Path, platform: str, hung: Literal["before", "after"]
) -> None:
    """`hung`: the process was killed before the platform had the part, or after that."""
    async with two_edges(tmp_path, platform) as (kit, a, b):
        await a.take()
        await kit.say("are you there?")
        (question,) = await a.heard(1)
        await b.post("first")
        await a.deliveries(1)
        a.hung = hung
        await b.post("second", reply_to=MessageId(question.id))
        await b.post("third")
        await a.is_hanging.wait()
        await a.kill()
        await b.post("fourth")
        await b.take()
        await b.post("fifth")
        reports = await b.deliveries(6 if platform == "irc" else 5)
        states = {one.post: (one.state, one.reason) for one in reports}
        said = [
            kit.plain(one)
            for one in await kit.seen("room", 5 if platform != "irc" or hung == "after" else 4)
        ]
        if platform == "irc":
            assert states[PostKey("2.2")][0] == "uncertain"
            assert LOST_IN_CRASH_TEXT in states[PostKey("2.2")][1]
            assert len([one for one in said if "may not have reached you" in one]) == 1
            said = [one for one in said if "may not have reached you" not in one]
        assert [state for state, _ in states.values()].count("uncertain") == (platform == "irc")
        is_lost = platform == "irc" and hung == "before"
        assert said == ["first", *([] if is_lost else ["second"]), "third", "fourth", "fifth"]
        assert await b.links() == [True, False, True]


async def test_who_holds_a_channel_follows_its_configuration_and_others_replace_what_stands_for_it(
    tmp_path: Path,
) -> None:
    async with two_edges(tmp_path, "irc") as (kit, a, b):
        await a.take()
        before, stand_in, unheld = a.channels[kit.name], b.channels[kit.name], a.channels[UNHELD]
        for edge in (a, b):
            edge.reload(kit.name, nick="other")
        assert b.channels[kit.name] is not stand_in
        assert a.channels[UNHELD] is not unheld
        await until(lambda: a.channels[kit.name] is not before and a.is_up)
        assert await b.links() == [True, False, True]

        for edge in (a, b):
            edge.reload()
        assert kit.name not in b.channels
        await until(lambda: kit.name not in a.channels)
        await b.post("later")
        assert a.cluster.holds(channel_lease(kit.name))
        for edge in (a, b):
            edge.reload(kit.name)
        assert isinstance(b.channels[kit.name], StandIn)
        await b.deliveries(1)
        assert await kit.seen("room", 1) == ["later"]
        assert not isinstance(a.channels[kit.name], StandIn)
        await a.give()
        assert isinstance(a.channels[kit.name], StandIn)


async def test_a_lease_that_comes_before_its_configuration_and_goes_after_it_is_no_error(
    tmp_path: Path,
) -> None:
    async with two_edges(tmp_path, "irc") as (kit, a, b):
        a.reload()
        await a.cluster.grant(channel_lease(kit.name))
        assert a.channels.keys() == {UNHELD}
        a.reload(kit.name)
        await until(lambda: a.is_up)
        a.reload()
        await until(lambda: not a.stats.snapshot().channels)
        await a.give()
        await b.take()
        await b.post("hello")
        await b.deliveries(1)
        assert await kit.seen("room", 1) == ["hello"]


async def test_a_lease_that_is_taken_while_its_channel_still_starts_is_given_back_in_order(
    tmp_path: Path,
) -> None:
    async with two_edges(tmp_path, "irc") as (kit, a, b):
        for _ in range(3):
            await a.cluster.grant(channel_lease(kit.name))
            await a.give()
            assert isinstance(a.channels[kit.name], StandIn)
        await b.take()
        await a.post("hello")
        await b.deliveries(1)
        assert await kit.seen("room", 1) == ["hello"]
        assert (await b.links())[-1] is True
