"""Channels restarted in the middle of traffic, on the real adapters."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.aio import run_to_completion
from channels.base import BeforeSend, Capabilities, Channel, Denied, Emit, PostPart, no_before_send
from channels.discord.channel import DiscordChannel
from channels.irc.config import IrcConfig
from gateway.config.loader import ConfigError, parse_config
from gateway.config.models import Settings
from gateway.core.clock import Clock, ManualClock, SystemClock, new_id
from gateway.core.events import (
    ChannelName,
    ConnectionChanged,
    DeliveryReport,
    EventId,
    Message,
    Notification,
    Post,
    PostKey,
    Receipt,
)
from gateway.core.facts import MESSAGE_KINDS, CursorMoved, PostQueued
from gateway.core.fields import ConfigSection
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store
from gateway.stream.outbox import Outbox
from gateway.stream.supervisor import (
    CHANGED_TEXT,
    NOT_RUNNING_TEXT,
    REMOVED_TEXT,
    AdapterSpec,
    ChannelRun,
    Step,
    build_adapter_specs,
    decide,
)
from reverie.testing.console import ConsoleChannel
from reverie.testing.platforms.base import Kit
from reverie.testing.waiting import until
from tests.channels.conformance.platforms.console import ConsoleKit
from tests.channels.conformance.platforms.discord import DiscordKit
from tests.channels.conformance.platforms.irc import ScriptedIrcKit
from tests.channels.conformance.platforms.telegram import TelegramKit
from tests.channels.discord.faults_kit import Hurried
from tests.kits.places import PlayedChannels
from tests.kits.supervisor import EmitIntake, append_batch, supervise
from tests.kits.tasks import LooseTasks

# Kit of the supervisor: a channel with log, outbox and supervisor; both sides talk constantly


class Line:
    """One account at work."""

    def __init__(self, kit: Kit, channel: Channel, store: Store, clock: Clock) -> None:
        self.kit, self.store, self.clock = kit, store, clock
        self.tasks = LooseTasks()
        self.links: list[tuple[bool, str]] = []
        self.told: list[str] = []
        """Notices to owners."""
        self.said = self.posted = 0
        self.slow_s = 0.0
        """Seconds that an append takes."""
        name = channel.name
        self.outbox = Outbox(store, {name: channel}, clock, self.tasks, redactor=Redactor())
        self.stats = GatewayStats({name: channel.capabilities.platform}, clock.now())
        self.runner = supervise(
            PlayedChannels({name: channel}),
            settings(),
            self.outbox,
            self.tasks,
            stats=self.stats,
            told=self.told,
        )

    async def emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Append as the intake does; links go to the outbox."""
        await asyncio.sleep(self.slow_s)
        await append_batch(self.outbox, self.stats, self.kit.name, batch, cursor)
        for event in batch:
            if isinstance(event, ConnectionChanged):
                self.links.append((event.up, event.reason))
                self.outbox.set_link_up(event.channel, event.up)

    async def talk(self, pause_s: float) -> None:
        """Let alice write a line and the bot another, again and again."""
        while True:
            await self.kit.say(f"line {self.said}")
            self.said += 1
            await run_to_completion(self.post(f"post {self.posted}"))
            await asyncio.sleep(pause_s)

    async def more(self, count: int) -> None:
        """Return once so many more lines were sent."""
        wanted = self.said + count
        await until(lambda: self.said >= wanted)

    async def post(self, text: str) -> None:
        now, to = self.clock.now(), self.kit.address("room")
        post = Post(key=PostKey(text.replace(" ", "")), to=to, text=text)
        entry = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=to.conversation, key=f"post:{post.key}"
        )
        await self.store.append([entry])
        self.posted += 1

    async def heard(self) -> list[str]:
        """Return alice's lines in the log, in its order."""
        facts = [one.fact for one in await self.store.entries(kinds=MESSAGE_KINDS)]
        return [fact.text for fact in facts if isinstance(fact, Message)]

    async def states(self) -> list[str]:
        facts = [one.fact for one in await self.store.entries(kinds=("delivery",))]
        return [fact.state for fact in facts if isinstance(fact, DeliveryReport)]

    async def settled(self) -> None:
        """Return once all lines are in the log, and all posts are delivered."""
        try:
            async with asyncio.timeout(30):
                while len(await self.heard()) < self.said or len(await self.states()) < self.posted:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            lost = {f"line {number}" for number in range(self.said)} - set(await self.heard())
            raise AssertionError(
                f"lost: {sorted(lost)} of {self.said}; {len(await self.states())} of {self.posted} "
                "delivered"
            ) from None


@contextlib.asynccontextmanager
async def line(tmp: Path, kit: Kit, channel: Channel, clock: Clock) -> AsyncIterator[Line]:
    """Return whether the channel is up."""
    async with await Store.open(tmp / "log.db", clock) as store:
        it = Line(kit, channel, store, clock)
        await it.outbox.open()
        it.runner.start(EmitIntake(lambda _: it.emit))
        try:
            await until(lambda: it.links)
            yield it
        finally:
            await it.outbox.drain(0)
            await it.runner.close()
            await it.outbox.close()
            for task in list(it.tasks.running):
                task.cancel()
            await asyncio.gather(*it.tasks.running, return_exceptions=True)


# Channels restarted in the middle of traffic, on the real adapters


def _discord(kit: Kit, clock: Clock) -> Channel:
    """Two sessions must not begin within five seconds of each other, so time passes faster
    there."""
    made = kit.make()
    assert isinstance(made, DiscordChannel)
    return type(made)(kit.name, made._config, clock, random=lambda: 0.0)


def _same(kit: Kit, clock: Clock) -> Channel:
    del clock
    return kit.make()


PLATFORMS: dict[str, tuple[type[Kit], Callable[[Kit, Clock], Channel], Callable[[], Clock]]] = {
    "irc": (ScriptedIrcKit, _same, SystemClock),
    "telegram": (TelegramKit, _same, SystemClock),
    "discord": (DiscordKit, _discord, lambda: Hurried(5)),
}


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
    ("slow_s", "times"),
    [
        (0.0, 6),
        (0.3, 2),
        *(pytest.param(*one, marks=pytest.mark.system) for one in ((0.0, 20), (0.3, 5))),
    ],
)
async def test_restarts_amid_traffic_lose_nothing_and_double_nothing(
    tmp_path: Path, platform: str, slow_s: float, times: int
) -> None:
    """`slow_s`: so long that a channel is cut while its events are being appended."""
    kind, make, clocks = PLATFORMS[platform]
    kit, clock = kind(), clocks()
    kit.patience_s = 20.0
    async with kit.connection(), line(tmp_path, kit, make(kit, clock), clock) as it:
        talking, it.slow_s = it.tasks.create_task(it.talk(0.04)), slow_s
        for number in range(times):
            await it.more(number % 7)
            assert await it.runner.restart(kit.name, "somebody wants it") == ("up", "")
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
        await it.settled()
        assert await it.heard() == [f"line {number}" for number in range(it.said)]
        seen = [kit.plain(one) for one in await kit.seen("room", it.posted)]
        assert seen == [f"post {number}" for number in range(it.posted)]
        assert set(await it.states()) == {"sent"}
        assert [up for up, _ in it.links] == [True, *([False, True] * times)]
        print(f"{platform}: {times} restarts, {it.said} lines, {it.posted} posts")


class Moody:
    """A channel that is refused, or up, or neither, on demand."""

    def __init__(self, mood: str = "up") -> None:
        self.console = ConsoleChannel(ChannelName("moody"), lambda _: None)
        self.name, self.capabilities = self.console.name, self.console.capabilities
        self.mood = mood
        self.runs = 0
        self.thrown_off: asyncio.Future[None] = asyncio.Future()
        """Raise the error of this while it is up."""
        self.split, self.send = self.console.split, self.console.send

    async def run(self, emit: Emit) -> None:
        self.runs += 1
        if self.mood == "refused":
            raise Denied("the token is refused")
        if self.mood == "up":
            self.thrown_off = asyncio.Future()
            running = asyncio.create_task(self.console.run(emit))
            try:
                await asyncio.wait({running, self.thrown_off}, return_when=asyncio.FIRST_COMPLETED)
                self.thrown_off.result()
                return
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        now = datetime.now(UTC)
        if self.mood == "away":
            await emit(
                [
                    ConnectionChanged(
                        id=EventId(new_id(now)),
                        channel=self.name,
                        up=False,
                        reason="cannot connect",
                        sent=now,
                    )
                ]
            )
        await asyncio.Event().wait()


def moody(
    tmp_path: Path, channel: Moody, clock: Clock
) -> contextlib.AbstractAsyncContextManager[Line]:
    kit = ConsoleKit()
    kit.name = channel.name
    return line(tmp_path, kit, channel, clock)


async def test_a_refused_channel_can_be_restarted_once_the_operator_has_seen_to_it(
    tmp_path: Path,
) -> None:
    channel = Moody()
    async with moody(tmp_path, channel, SystemClock()) as it:
        channel.mood = "refused"
        refused = "refused", "the token is refused"
        assert await it.runner.restart(channel.name, "x") == refused
        assert it.stats.snapshot().channels[0].state == "refused"
        assert await it.runner.restart(channel.name, "x") == refused
        channel.mood = "up"
        assert await it.runner.restart(channel.name, "x") == ("up", "")
        assert it.stats.snapshot().channels[0].state == "up"
        assert channel.runs == 4


async def test_a_refused_channel_is_tried_again_and_owners_are_told_once_of_both_ends(
    tmp_path: Path,
) -> None:
    channel, clock = Moody(), ManualClock()
    async with moody(tmp_path, channel, clock) as it:
        channel.mood = "refused"
        await it.runner.restart(channel.name, "x")
        for runs, wait_s in ((3, 60.0), (4, 120.0), (5, 240.0), (6, 480.0), (7, 600.0)):
            await asyncio.sleep(0.01)
            clock.advance(wait_s - 1)
            await asyncio.sleep(0.01)
            assert channel.runs == runs - 1
            clock.advance(1)
            await until(lambda: channel.runs >= runs)  # noqa: B023 - run at once
        assert it.told == [
            "The platform refuses the connection of moody: the token is refused. I keep trying."
        ]
        assert it.stats.snapshot().channels[0].state == "refused"
        channel.mood = "up"
        await asyncio.sleep(0.01)
        clock.advance(600)
        await until(lambda: it.stats.snapshot().channels[0].state == "up")
        assert it.told[1:] == ["moody works again."]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (lambda ended: ended.set_exception(KeyError("a bug")), "KeyError"),
        (lambda ended: ended.cancel(), "CancelledError"),
        (lambda ended: ended.set_result(None), "RuntimeError"),
    ],
    ids=["raises", "waits for cancelled work", "returns"],
)
async def test_a_bug_in_an_adapter_begins_that_channel_anew_and_owners_are_told(
    tmp_path: Path, end: Callable[[asyncio.Future[None]], object], error: str
) -> None:
    channel, clock = Moody(), ManualClock()
    async with moody(tmp_path, channel, clock) as it:
        end(channel.thrown_off)
        await until(lambda: it.stats.snapshot().channels[0].state != "up")
        await asyncio.sleep(0.01)
        assert channel.runs == 1
        clock.advance(1)
        await until(lambda: it.stats.snapshot().channels[0].state == "up")
        assert channel.runs == 2
        broke = (
            f"moody stopped because of an error (internal error: {error}). I start it again; "
            "my log says more."
        )
        assert it.told == [broke, "moody works again."]
        channel.thrown_off.set_exception(KeyError("a bug"))
        await until(lambda: it.stats.snapshot().channels[0].state != "up")
        await asyncio.sleep(0.01)
        clock.advance(0.9)
        await asyncio.sleep(0.01)
        assert channel.runs == 2, "each time it waits longer"
        clock.advance(2)
        await until(lambda: channel.runs == 3)


@pytest.mark.parametrize(
    ("mood", "reason"), [("silent", "it has not answered yet"), ("away", "cannot connect")]
)
async def test_what_takes_long_is_told_and_goes_on(tmp_path: Path, mood: str, reason: str) -> None:
    channel, clock = Moody(), ManualClock()
    async with moody(tmp_path, channel, clock) as it:
        channel.mood = mood
        came = asyncio.create_task(it.runner.restart(channel.name, "by somebody"))
        await until(lambda: channel.runs >= 2)
        assert it.runner.is_restarting(channel.name)
        assert await it.runner.restart(channel.name, "by another") == ("busy", "")
        while not came.done():
            clock.advance(5)
            await asyncio.sleep(0.001)
        assert await came == ("down", reason)
        assert it.links[1] == (False, "by somebody")
        assert channel.runs == 2
        assert not it.runner.is_restarting(channel.name)


async def test_what_waits_to_be_said_goes_out_before_the_cut_and_nothing_after_it(
    tmp_path: Path,
) -> None:
    kit = ConsoleKit()
    async with kit.connection():
        channel = kit.make()
        async with line(tmp_path, kit, channel, SystemClock()) as it:
            await it.post("the answer")
            cut = asyncio.create_task(it.runner.restart(kit.name, "x"))
            while len(it.links) < 2:
                assert it.links[-1][0] or await kit.seen("room") == ["the answer"]
                await asyncio.sleep(0)
            await it.post("meanwhile")
            assert await cut == ("up", "")
            it.posted = 2
            await it.settled()
            assert await kit.seen("room") == ["the answer", "meanwhile"]
            assert await it.states() == ["sent", "sent"]


# Channels that are added, removed and replaced, each by itself

A, B, C = ChannelName("irc.a"), ChannelName("irc.b"), ChannelName("irc.c")


def irc(nick: str, **more: object) -> dict[str, object]:
    return {"platform": "irc", "host": "127.0.0.1", "port": 6667, "tls": False, "nick": nick} | more


def settings(**channels: dict[str, object]) -> Settings:
    """`a={...}`: settings of the channel `irc.a`."""
    said = {
        "channels": {f"irc.{name}": config for name, config in channels.items()},
        "agents": [{"id": "ana"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
    }
    return parse_config(said, Path("/nowhere"))


ANN, BOB = build_adapter_specs(settings(a=irc("ann"), b=irc("bob"))).values()
NICK = build_adapter_specs(settings(a=irc("nick")))[A]
NEVER_S = math.inf
"""No connection is due: it has one, or waits for nothing."""


def run(spec: AdapterSpec | None, **more: object) -> ChannelRun:
    return ChannelRun(name=A, spec=spec, **{"is_made": True, "due_s": NEVER_S, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("desired", "actual", "steps"),
    [
        ({A: ANN}, {}, {A: "make"}),
        ({A: ANN}, {A: run(None, is_made=False, is_busy=True)}, {}),
        ({A: ANN}, {A: run(None, is_made=False)}, {A: "make"}),
        ({A: ANN}, {A: run(ANN, due_s=-NEVER_S)}, {A: "run"}),
        ({A: ANN}, {A: run(ANN)}, {}),
        ({A: ANN}, {A: run(ANN, due_s=10.1)}, {}),
        ({A: ANN}, {A: run(ANN, due_s=10.0)}, {A: "run"}),
        ({A: None}, {A: run(None)}, {}),
        ({A: ANN}, {A: run(ANN, restart_why="an order")}, {A: "restart"}),
        ({A: ANN}, {A: run(ANN, restart_why="an order", due_s=99.0)}, {A: "restart"}),
        ({A: ANN}, {A: run(ANN, restart_why="an order", is_busy=True)}, {}),
        ({A: NICK}, {A: run(ANN)}, {A: "change"}),
        ({A: NICK}, {A: run(ANN, restart_why="an order", due_s=0.0)}, {A: "change"}),
        ({A: NICK}, {A: run(ANN, is_busy=True)}, {}),
        ({A: NICK}, {A: run(ANN, is_made=False)}, {A: "make"}),
        ({}, {A: run(ANN)}, {A: "remove"}),
        ({}, {A: run(ANN, due_s=99.0)}, {A: "remove"}),
        ({}, {A: run(ANN, is_busy=True)}, {}),
        ({}, {A: run(ANN, is_made=False)}, {A: "forget"}),
        ({B: BOB}, {A: run(ANN), B: run(BOB)}, {A: "remove"}),
        ({B: ANN}, {A: run(ANN, is_busy=True)}, {}),
        ({B: ANN}, {A: run(ANN, is_made=False)}, {A: "forget", B: "make"}),
        ({A: BOB, B: ANN}, {A: run(ANN), B: run(BOB)}, {A: "change", B: "change"}),
        ({A: BOB, B: ANN}, {A: run(ANN, is_made=False), B: run(BOB, is_busy=True)}, {}),
        ({}, {}, {}),
    ],
)
def test_next_steps_follow_from_what_is_desired_and_what_runs(
    desired: dict[ChannelName, AdapterSpec | None],
    actual: dict[ChannelName, ChannelRun],
    steps: dict[ChannelName, Step],
) -> None:
    """Desired are those of the settings whose lease is held. It is 10 s now."""
    assert decide(desired, actual, 10.0) == steps


class Told:
    """A channel that records what is done with it."""

    capabilities = Capabilities(platform="IRC", formatting="")

    def __init__(self, name: ChannelName, nick: str, log: list[str], cursor: str | None) -> None:
        self.name, self.nick, self.log, self.cursor = name, nick, log, cursor
        self.emit: Emit | None = None
        self.goodbye = asyncio.Event()
        """Set once it has said goodbye and ends."""
        self.goodbye.set()
        self.leaving = asyncio.Event()
        """Set once it says goodbye."""

    async def run(self, emit: Emit) -> None:
        if self.nick == "refused":
            raise Denied("the nick is refused")
        self.log.append(f"{self.name} is {self.nick}, from {self.cursor}")
        self.emit = emit
        await emit([link(self.name)])
        try:
            await asyncio.Event().wait()
        finally:
            self.leaving.set()
            await self.goodbye.wait()
            self.log.append(f"{self.nick} left")

    def apply_config(self, config: ConfigSection) -> bool:
        assert isinstance(config, IrcConfig)
        if config.nick == self.nick:
            self.log.append(f"{self.nick} is in {' '.join(config.rooms)}")
        return config.nick == self.nick

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text,)

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        await going()
        return Receipt(ids=(part.body,))  # type: ignore[arg-type] # never used


def link(name: ChannelName) -> ConnectionChanged:
    now = SystemClock().now()
    return ConnectionChanged(id=EventId(new_id(now)), channel=name, up=True, reason="", sent=now)


class Harbour:
    """Channels whose every move is recorded."""

    def __init__(self, said: Settings, store: Store, clock: Clock) -> None:
        self.log: list[str] = []
        self.broken: set[str] = set()
        self.store = store
        self.tasks = LooseTasks()
        self.channels = PlayedChannels(
            {name: self.make(name, said, clock) for name in map(ChannelName, said.channels)}
        )
        self.stats = GatewayStats(dict.fromkeys(self.channels, "IRC"), clock.now())
        outbox = Outbox(store, self.channels, clock, self.tasks, redactor=Redactor())
        self.runner = supervise(
            self.channels, said, outbox, self.tasks, stats=self.stats, make=self.make
        )
        self.runner.start(EmitIntake(self.emits))

    def make(
        self,
        name: ChannelName,
        said: Settings,
        _clock: Clock,
        cursor: str | None = None,
        before: Channel | None = None,
    ) -> Channel:
        config = said.channels[name]
        assert isinstance(config, IrcConfig)
        assert before is None or before.name == name
        if config.nick in self.broken:
            raise RuntimeError("a bug")
        return Told(name, config.nick, self.log, cursor)

    def emits(self, name: ChannelName) -> Emit:
        async def emit(batch: Sequence[Notification], *, cursor: str | None = None) -> None:
            assert cursor is None
            self.log += [
                f"{name} down: {event.reason}"
                for event in batch
                if isinstance(event, ConnectionChanged) and not event.up
            ]

        return emit

    def told(self, name: ChannelName) -> Told:
        channel = self.channels[name]
        assert isinstance(channel, Told)
        return channel

    def state(self, name: ChannelName) -> tuple[str, str]:
        (found,) = [one for one in self.stats.snapshot().channels if one.channel == name]
        return found.state, found.reason

    def take(self, **channels: dict[str, object]) -> None:
        """Apply settings as a reload does."""
        self.log.clear()
        self.runner.prepare(settings(**channels))()

    async def still(self) -> None:
        """Return once nothing changes any more."""
        async with asyncio.timeout(120):
            await asyncio.sleep(0.01)
            await until(lambda: not any(run.is_busy for run in self.runner._runs.values()))
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def harbour(tmp: Path, **channels: dict[str, object]) -> AsyncIterator[Harbour]:
    clock = SystemClock()
    async with await Store.open(tmp / "s.db", clock) as store:
        it = Harbour(settings(**channels), store, clock)
        await it.still()
        it.log.clear()
        try:
            yield it
        finally:
            await it.runner.close()
            for task in it.tasks.running:
                assert task.cancelled() or task.exception() is None


async def test_one_comes_one_changes_and_one_goes_and_the_others_are_not_touched(
    tmp_path: Path,
) -> None:
    async with harbour(tmp_path, a=irc("ann"), b=irc("bob")) as it:
        others = it.told(B)
        it.take(a=irc("ann"), b=irc("bob"), c=irc("cid"))
        await it.still()
        assert it.log == ["irc.c is cid, from None"]
        moved = CursorMoved(channel=C, value="12")
        await it.store.append([NewEntry(fact=moved, at=SystemClock().now())])
        it.take(a=irc("ann"), b=irc("bob"), c=irc("cyd"))
        await it.still()
        assert it.log == ["cid left", f"irc.c down: {CHANGED_TEXT}", "irc.c is cyd, from 12"]
        it.take(b=irc("bob"), c=irc("cyd"))
        await it.still()
        assert it.log == ["ann left", f"irc.a down: {REMOVED_TEXT}"]
        assert list(it.channels) == [B, C]
        assert it.channels[B] is others
        assert [one.channel for one in it.stats.snapshot().channels] == [B, C]


async def test_what_a_channel_can_take_as_it_is_does_not_have_it_made_anew(tmp_path: Path) -> None:
    async with harbour(tmp_path, a=irc("ann"), b=irc("bob")) as it:
        before = it.told(A)
        it.take(a=irc("ann", rooms=["#x", "#y"]), b=irc("bob"))
        await it.still()
        assert it.log == ["ann is in #x #y"]
        assert it.channels[A] is before
        it.take(a=irc("ann", rooms=["#x", "#y"]), b=irc("bob"))
        await it.still()
        assert it.log == []
        before.goodbye.clear()
        it.take(b=irc("bob"))
        await before.leaving.wait()
        it.take(a=irc("ann", rooms=["#z"]), b=irc("bob"))  # it goes already
        before.goodbye.set()
        await it.still()
        assert it.log == ["ann left", f"irc.a down: {REMOVED_TEXT}", "irc.a is ann, from None"]


async def test_who_takes_over_an_account_waits_until_it_is_free(tmp_path: Path) -> None:
    async with harbour(tmp_path, a=irc("ann"), b=irc("bob")) as it:
        slow = it.told(A)
        slow.goodbye.clear()
        it.take(b=irc("bob"), c=irc("ann"))
        await slow.leaving.wait()
        assert it.log == []
        slow.goodbye.set()
        await it.still()
        assert it.log == ["ann left", f"irc.a down: {REMOVED_TEXT}", "irc.c is ann, from None"]
        it.take(b=irc("ann"), c=irc("bob"))
        await it.still()
        assert set(it.log[:4]) == {
            "ann left",
            "bob left",
            f"irc.b down: {CHANGED_TEXT}",
            f"irc.c down: {CHANGED_TEXT}",
        }
        assert sorted(it.log[4:]) == ["irc.b is ann, from None", "irc.c is bob, from None"]


async def test_one_that_cannot_be_made_is_out_until_it_changes(tmp_path: Path) -> None:
    async with harbour(tmp_path, a=irc("ann"), b=irc("bob")) as it:
        it.broken.add("bug")
        it.take(a=irc("bug"), b=irc("bob"))
        await it.still()
        assert it.state(A) == ("refused", "internal error")
        assert list(it.channels) == [B]
        assert await it.runner.restart(A, "x") == ("refused", NOT_RUNNING_TEXT)
        it.take(a=irc("ann"), b=irc("bob"))
        await it.still()
        assert it.log == ["irc.a is ann, from None"]


@pytest.mark.parametrize(
    ("channels", "key", "says"),
    [
        ({}, "channels", "no channels are configured"),
        (
            {"irc.a": irc("ann"), "irc.b": irc("ann")},
            "channels.irc.b.nick",
            "the nick of channels.irc.a",
        ),
        ({"irc.a": irc("ann"), "keys": {"platform": "console"}}, "channels.keys", "console"),
        (
            {"irc.a": irc("ann", tls={"ca_file": "/nowhere/ca.pem"})},
            "channels.irc.a",
            "cannot use the TLS files",
        ),
    ],
)
async def test_what_cannot_be_is_a_problem_and_changes_nothing(
    tmp_path: Path, channels: dict[str, object], key: str, says: str
) -> None:
    async with harbour(tmp_path, a=irc("ann"), b=irc("bob")) as it:
        llm = {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}}
        new = parse_config({"channels": channels, "agents": [{"id": "ana"}], "llm": llm}, tmp_path)
        with pytest.raises(ConfigError) as bad:
            it.runner.prepare(new)
        (problem,) = bad.value.problems
        assert (problem.key, says in problem.message) == (key, True)
        await it.still()
        assert it.log == []
        assert list(it.channels) == [A, B]
