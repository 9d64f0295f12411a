"""The processes of one gateway as whole object graphs over one log, in one Python process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial

from channels.aio import cancel_and_wait
from channels.console import ConsoleChannel
from gateway import app
from gateway.cluster.cluster import Cluster, LeaseName, ProcessRole, agent_lease
from gateway.cluster.database import DatabaseCluster
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock
from gateway.core.events import ConversationId, Message
from gateway.core.facts import DmnDirective, TurnRecord
from gateway.core.redaction import Redactor
from gateway.runtime.agents import load_chosen_models
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.runtime.models import open_model_services
from gateway.store import NewEntry, ServerStore, Store, StoreTasks
from tests.kits.cluster import ManualCluster
from tests.kits.gateway import CONSOLE, Held, Screen

AGENT = agent_lease("reverie")


class Worker:
    """One process: its services, its model, and its log."""

    def __init__(self, gateway: "app._Gateway", model: Held | None, tasks: StoreTasks) -> None:
        self.gateway, self.tasks = gateway, tasks
        self.model = model or Held()
        """What answers, unless the configured models do."""
        self.cluster: Cluster = gateway.cluster
        self.agents, self.store = gateway.agents, gateway.store
        self.agent = gateway.agents.by_id["reverie"]
        self.subscriptions: list[object] = []
        self.is_gone = False

    @property
    def manual(self) -> ManualCluster:
        """Leases as the test grants them."""
        assert isinstance(self.cluster, ManualCluster)
        return self.cluster

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        await self.agents.on_lease_acquired(lease)
        self.gateway.reminders.notify_changed()

    async def on_lease_ending(self, lease: LeaseName) -> None:
        await self.agents.on_lease_ending(lease, 0.0)

    async def kill(self) -> None:
        """End it as `kill -9` does. When the others learn of it, all that it could write is in the log."""
        self.is_gone = self.manual.is_frozen = True
        everyone = self.store._writer.subscriptions
        everyone[:] = [one for one in everyone if one not in self.subscriptions]
        self.tasks.cancel()
        if self.tasks._running:
            await asyncio.wait(self.tasks._running)
        last = DmnDirective(agent="nobody", what="wake", by="a test")
        await self.store.append([NewEntry(fact=last, at=datetime.now(UTC))])
        self.manual.kill()

    async def lose(self) -> None:
        """Cut it off from the others: it goes on, and does not know that it is to be removed."""
        self.is_gone = True
        assert isinstance(self.cluster, DatabaseCluster)
        await cancel_and_wait(*self.cluster._loops)


class Team:
    """All processes of a gateway. The first one has the console."""

    def __init__(self, screen: Screen, console: ConsoleChannel) -> None:
        self.screen, self.console = screen, console
        self.peers: list[ManualCluster] = []
        self.workers: list[Worker] = []
        self.console_run: asyncio.Task[None] | None = None
        self._console_at: Worker | None = None

    @property
    def store(self) -> Store:
        """The log, as a process has it that is not gone."""
        return next(one.store for one in self.workers if not one.is_gone)

    @property
    def leader(self) -> Worker | None:
        """The process that leads the agent."""
        return next((one for one in self.workers if one.agent.leads and not one.is_gone), None)

    async def move_console(self, worker: Worker) -> None:
        """Let this process have the console."""
        if self.console_run is not None and self._console_at is not None:
            await self.until(self.is_all_sent)
            await cancel_and_wait(self.console_run)
            await self._console_at.gateway.outbox.close_channel(CONSOLE)
        self._console_at = worker
        self.console_run = asyncio.create_task(self.console.run(partial(worker.gateway.intake.accept, CONSOLE)))
        await worker.gateway.outbox.open_channel(CONSOLE)

    async def is_all_sent(self) -> bool:
        """Return whether no post waits."""
        return not await self.store.undelivered_posts()

    async def say(self, text: str, *, sender: str = "ann", room: str | None = None) -> Message:
        return await self.console.receive_message(text, sender=sender, room=room)

    async def turns(self) -> list[TurnRecord]:
        return [one.fact for one in await self.store.entries(kinds=["turn_ended"]) if isinstance(one.fact, TurnRecord)]

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        """Return once something is so."""
        async with asyncio.timeout(60):
            while not (await found if isinstance(found := is_so(), Awaitable) else found):
                await asyncio.sleep(0.005)

    async def asked(self, count: int) -> Worker:
        """Return the worker whose model was asked last, once all together were asked so often."""

        def asked_by() -> list[Worker]:
            return [one for one in self.workers for _ in one.model.requests]

        before = asked_by()
        await self.until(lambda: len(asked_by()) >= count)
        after = asked_by()
        for one in before:
            after.remove(one)
        return (after or before)[-1]

    def runner(self, place: ConversationId) -> Worker | None:
        """Return the worker that runs a turn there."""
        return next((one for one in self.workers if place in one.agents.delegation.running), None)


@contextlib.asynccontextmanager
async def team(
    settings: Settings,
    *models: Held | None,
    roles: tuple[ProcessRole, ...] = (),
    url: str = "",
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[Team]:
    """Run a process for each model, with roles; `all` is the default. None: it uses the configured ones.

    On a file the first one that takes turns leads the agent, and the test moves the lease. `url`: of a database, whose
    members share the leases out among themselves. `now`: when what is said on the console was sent.
    """
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        screen = Screen()
        console = ConsoleChannel(CONSOLE, screen.show, now=now)
        found = Team(screen, console)
        file = None if url else await stack.enter_async_context(await Store.open(settings.store.path, clock))
        for number, model in enumerate(models):
            role = roles[number] if roles else "all"
            store, cluster = file, None
            if store is None:
                database = ServerStore(url, settings.store.path)
                opening = Store.open(database, clock, patient=True, is_shared=True)
                store = await stack.enter_async_context(await opening)
                cluster = await DatabaseCluster.join(url, role=role, name=f"process {number}", clock=clock)
                stack.push_async_callback(cluster.leave)
                await store.join(cluster.number)
            process = _opened(settings, found, store, model, cluster or ManualCluster(found.peers, role=role))
            found.workers.append(await stack.enter_async_context(process))
        await found.move_console(found.workers[0])
        leader = next(one for one in found.workers if one.cluster.role != "edge")
        if file is not None:
            await leader.manual.grant(AGENT)
        for one in found.workers:
            if isinstance(one.cluster, DatabaseCluster):
                await one.cluster.start(one, [AGENT])
        await found.until(lambda: found.leader is not None)
        await found.until(lambda: all(len(one.cluster.members) == len(models) for one in found.workers))
        yield found
        for one in found.workers:
            if isinstance(one.cluster, DatabaseCluster) and not one.is_gone:
                await one.cluster.drain()
                await one.agents.stop(0.0)
            elif not one.is_gone:
                await one.manual.end(*one.manual.leases)
        for one in found.workers:
            one.tasks.cancel()
        assert found.console_run is not None
        await cancel_and_wait(found.console_run)


@contextlib.asynccontextmanager
async def _opened(
    settings: Settings, found: Team, store: Store, model: Held | None, cluster: Cluster
) -> AsyncIterator[Worker]:
    live, clock = LiveSettings(settings), SystemClock()
    async with open_model_services(live, clock, model=model) as services, StoreTasks(store) as tasks:
        before = len(store._writer.subscriptions)
        gateway = app._Gateway(
            store=store,
            clock=clock,
            channels={CONSOLE: found.console},
            make=None,
            model_services=services,
            states=await load_dmn_states(store, ["reverie"], clock.now()),
            chosen=await load_chosen_models(store, settings),
            redactor=Redactor(),
            tasks=tasks,
            cluster=cluster,
        )
        await gateway.load()
        await gateway.places.load()
        await services.restore_cadences(store)
        tasks.create_task(gateway.reminders.run())
        worker = Worker(gateway, model, tasks)
        worker.subscriptions += store._writer.subscriptions[before:]
        if isinstance(cluster, ManualCluster):
            cluster.listener = worker
        yield worker
        tasks.cancel()
