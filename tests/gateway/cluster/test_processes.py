"""Processes of one gateway, whole, on one real database: whoever holds a channel does everything
for it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from agent.models.scripted import Script, ScriptRule
from agent.signals import DmnMode
from channels.aio import cancel_and_wait
from gateway import app
from gateway.cluster.cluster import HELD_ELSEWHERE, agent_lease, channel_lease
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock
from gateway.core.control_messages import CommandRequest
from gateway.core.events import Address, ChannelName, RoomId, SenderId
from gateway.core.facts import TurnRecord
from gateway.core.redaction import Redactor
from gateway.plugins.approvals import UNDECIDED, ApprovalEnded, ApprovalRequested
from gateway.plugins.reminders import ReminderSet
from gateway.plugins.reminders.schedule import OnceSchedule, format_schedule
from gateway.runtime.agents import NOTHING_RUNNING
from gateway.runtime.models import open_model_services
from gateway.store import LogEntry, NewEntry, Store, StoreTasks
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import UNHURRIED, Held, Screen, settings
from tests.kits.cluster import ManualCluster, shared_stores
from tests.kits.commands import TABLE
from tests.kits.store import ENGINE
from tests.servers.real_postgresql import PostgresServer

pytestmark = pytest.mark.integration
ONE, TWO = ChannelName("one"), ChannelName("two")
AGENT = agent_lease("reverie")


class Process:
    """One process: its services, its model, and its consoles."""

    def __init__(
        self, gateway: "app.GatewayServices", model: Held, cluster: ManualCluster, screen: Screen
    ) -> None:
        self.gateway, self.model, self.cluster, self.screen = gateway, model, cluster, screen
        self.store, self.agent = gateway.store, gateway.agents.by_id["reverie"]
        self._runs = dict[ChannelName, asyncio.Task[None]]()

    async def take(self, *leases: str) -> None:
        """Hold these leases from now on."""
        for lease in leases:
            await self.cluster.grant(lease)
            name = ChannelName(lease.partition(":")[2])
            if lease == channel_lease(name):
                console = self.console(name)
                self._runs[name] = asyncio.create_task(
                    console.run(partial(self.gateway.intake.accept, name))
                )
                await self.gateway.outbox.open(name)
                self.gateway.outbox.set_link_up(name, up=True)

    async def give(self, *leases: str) -> None:
        """Give them back, as at an end by SIGTERM."""
        await self.cluster.end(*leases)
        for name in [name for name in self._runs if channel_lease(name) in leases]:
            await cancel_and_wait(self._runs.pop(name))
            await self.gateway.outbox.close_channel(name)

    def console(self, name: ChannelName) -> ConsoleChannel:
        found = self.gateway.channels[name]
        assert isinstance(found, ConsoleChannel)
        return found

    async def say(
        self, text: str, name: ChannelName = ONE, sender: str = "ann", room: str | None = None
    ) -> None:
        await self.console(name).receive_message(text, sender=sender, room=room)

    async def orders(self, *words: str, place: str = "") -> str:
        order = CommandRequest(words=words, by="olga", place=place)
        return "\n".join((await self.gateway.dispatcher.carry_out(order)).lines)

    async def turns(self) -> list[TurnRecord]:
        return [
            one.fact
            for one in await self.store.entries(kinds=["turn_ended"])
            if isinstance(one.fact, TurnRecord)
        ]

    async def close(self) -> None:
        await self.give(*self.cluster.leases)
        await self.gateway.agents.stop(0.0)


async def _is_asked(one: "Process") -> bool:
    return bool(await one.store.rows(UNDECIDED))


async def until(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not (await found if isinstance(found := is_so(), Awaitable) else found):
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def engine(postgresql: PostgresServer) -> Iterator[None]:
    ENGINE.server = postgresql
    yield
    ENGINE.server = None


@contextlib.asynccontextmanager
async def process(
    made: Settings, store: Store, script: Script | None, peers: list[ManualCluster]
) -> AsyncIterator[Process]:
    live, clock, model, screen = LiveSettings(made), SystemClock(), Held(script), Screen()
    model.go.set()
    async with (
        open_model_services(live, clock, model=model) as services,
        StoreTasks(store) as tasks,
    ):
        gateway = app.GatewayServices(
            commands=TABLE,
            store=store,
            clock=clock,
            channels={name: ConsoleChannel(name, screen.show) for name in (ONE, TWO)},
            make=None,
            model_services=services,
            states={},
            chosen={},
            redactor=Redactor(),
            tasks=tasks,
            cluster=ManualCluster(peers),
        )
        await gateway.load()
        await gateway.handle.places.load()
        for work in gateway.plugins.works("run"):
            tasks.create_task(work)
        peers[-1].listener = gateway
        gateway.agents.start()
        made_process = Process(gateway, model, peers[-1], screen)
        yield made_process
        await made_process.close()
        tasks.cancel()


@contextlib.asynccontextmanager
async def two(
    tmp: Path, script: Script | None = None, **more: object
) -> AsyncIterator[tuple[Process, Process]]:
    """The first one holds channel `one`, the second one channel `two` and the agent."""
    console = {"platform": "console", "rooms": ["ops", "hall"]}
    access = {"dm": "open", "rates": UNHURRIED, "roles": {"owner": ["one:root", "two:root"]}}
    made = settings(tmp, channels={"one": console, "two": console}, **{"access": access, **more})  # type: ignore[arg-type]
    peers = list[ManualCluster]()
    async with (
        shared_stores(tmp / f"p{os.getpid()}.db", SystemClock()) as (first, second),
        process(made, first, script, peers) as one,
        process(made, second, script, peers) as other,
    ):
        following = asyncio.create_task(follow(first, second))
        await one.take(channel_lease(ONE))
        await other.take(channel_lease(TWO), AGENT)
        yield one, other
        await cancel_and_wait(following)


async def follow(*stores: Store) -> None:
    """As the notifications of the database do."""
    while True:
        for one in stores:
            await one.follow()
        await asyncio.sleep(0.01)


async def test_who_holds_a_channel_answers_there_and_an_order_holds_everywhere(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as (one, other):
        await one.say("hello", ONE)
        await other.say("hello", TWO)
        await one.screen.until(1)
        await other.screen.until(1)
        assert [part.to.channel for part in (*one.screen.parts, *other.screen.parts)] == [ONE, TWO]
        assert len(one.model.requests) == len(other.model.requests) == 1

        assert await one.orders("dmn", "pause") == "reverie is paused."
        await until(lambda: other.agent.state.mode is DmnMode.PAUSED)
        await other.say("wake up", TWO, sender="root")
        await other.screen.until(2)
        await until(lambda: one.agent.state.mode is not DmnMode.PAUSED)
        assert len(one.model.requests) == 1

        await one.say("!say two/hall Good morning.", ONE, sender="root")
        await until(lambda: "Good morning." in other.screen.said("hall"))
        for words in (("stop",), ("rewind",), ("compact",)):
            assert await one.orders(*words, place="two/ann") == HELD_ELSEWHERE
        assert await one.orders("restart", "two") == HELD_ELSEWHERE
        assert await other.orders("stop", place="two/ann") == NOTHING_RUNNING


async def test_a_reminder_is_fired_by_the_holder_of_the_agent_and_told_by_that_of_the_channel(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as (one, other):
        at, now = Address(channel=ONE, room=RoomId("ann")), datetime.now(UTC)
        await one.say("hello")
        await one.screen.until(1)
        fact = ReminderSet(
            reminder="AAAAAA",
            agent="reverie",
            at=at,
            text="the bread",
            by=SenderId("ann"),
            asked_by="ann",
            schedule=format_schedule(OnceSchedule(time=now)),
            due=now - timedelta(seconds=1),
        )
        await one.store.append([NewEntry(fact=fact, at=now, conversation=at.conversation)])
        await one.screen.until(2)
        assert len(one.model.requests) == 2
        assert not other.model.requests
        assert len(await one.store.entries(kinds=["alarm"])) == 1


async def test_an_approval_is_given_where_the_admin_is(tmp_path: Path) -> None:
    script = Script(
        rules=(
            ScriptRule(match="please run it", calls=(("bash", '{"command": "true"}'),)),
            ScriptRule(match="denied|refused", reply="I was not allowed."),
            ScriptRule(match="", reply="It is done."),
        )
    )
    tools = {
        "bash": {"sandbox": "off"},
        "approvals": {"room": "two/ops"},
        "rules": [{"tool": "bash", "role": "guest", "approval": "always"}],
    }
    async with two(tmp_path, script, tools=tools) as (one, other):
        for count, (verdict, told) in enumerate(
            (("approve", "It is done."), ("deny", "I was not allowed.")), 1
        ):
            await one.say("please run it")
            await until(lambda: _is_asked(one))
            waiting = LogEntry.from_row(*await one.store.rows(UNDECIDED))
            assert isinstance(waiting.fact, ApprovalRequested)
            await other.say(f"!{verdict} {waiting.fact.approval}", TWO, sender="root", room="ops")
            await until(lambda: len(one.screen.said("ann")) >= count)  # noqa: B023 - awaited at once
            assert told in one.screen.said("ann")
        ended = [fact.fact for fact in await one.store.entries(kinds=["approval_ended"])]
        assert [fact.verdict for fact in ended if isinstance(fact, ApprovalEnded)] == [
            "once",
            "denied",
        ]
