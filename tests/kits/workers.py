"""The processes of one gateway as whole object graphs over one log, in one Python process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from agent.models.base import Model
from channels.console import ConsoleChannel
from gateway import app
from gateway.cluster.cluster import LeaseName, ProcessRole, agent_lease
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock
from gateway.core.events import ConversationId, Message
from gateway.core.facts import TurnRecord
from gateway.core.redaction import Redactor
from gateway.runtime.agents import load_chosen_models
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.runtime.models import open_model_services
from gateway.store import Store, StoreTasks
from tests.kits.cluster import ManualCluster
from tests.kits.gateway import CONSOLE, Held, Screen

AGENT = agent_lease("reverie")


class Worker:
    """One process: its services, its model, and what its console shows."""

    def __init__(self, gateway: "app._Gateway", cluster: ManualCluster, model: Held, tasks: StoreTasks) -> None:
        self.gateway, self.cluster, self.model, self.tasks = gateway, cluster, model, tasks
        self.agents = gateway.agents
        self.agent = gateway.agents.by_id["reverie"]
        self.subscriptions: list[object] = []

    async def on_lease_acquired(self, lease: LeaseName) -> None:
        await self.agents.on_lease_acquired(lease)

    async def on_lease_ending(self, lease: LeaseName) -> None:
        await self.agents.on_lease_ending(lease, 0.0)

    def kill(self) -> None:
        """End it as `kill -9` does: it writes nothing more."""
        self.cluster.kill()
        everyone = self.gateway.store._writer.subscriptions
        everyone[:] = [one for one in everyone if one not in self.subscriptions]
        self.tasks.cancel()


class Team:
    """All processes of a gateway. The first one has the console."""

    def __init__(self, store: Store, screen: Screen, console: ConsoleChannel) -> None:
        self.store, self.screen, self.console = store, screen, console
        self.peers: list[ManualCluster] = []
        self.workers: list[Worker] = []
        self.console_run: asyncio.Task[None] | None = None

    async def move_console(self, worker: "Worker") -> None:
        """Let this process have the console."""
        if self.console_run is not None:
            self.console_run.cancel()
            await asyncio.wait([self.console_run])
        self.console_run = asyncio.create_task(self.console.run(partial(worker.gateway.intake.accept, CONSOLE)))
        await worker.gateway.outbox.open_channel(CONSOLE)

    async def say(self, text: str, *, sender: str = "ann", room: str | None = None) -> Message:
        return await self.console.receive_message(text, sender=sender, room=room)

    async def turns(self) -> list[TurnRecord]:
        return [one.fact for one in await self.store.entries(kinds=["turn_ended"]) if isinstance(one.fact, TurnRecord)]

    async def until(self, is_so: Callable[[], bool | Awaitable[bool]]) -> None:
        """Return once something is so."""
        async with asyncio.timeout(60):
            while not (await found if isinstance(found := is_so(), Awaitable) else found):
                await asyncio.sleep(0.005)

    async def until_turns(self, count: int) -> list[TurnRecord]:
        async def is_so() -> bool:
            return len(await self.turns()) >= count

        await self.until(is_so)
        return await self.turns()

    async def asked(self, count: int) -> "Worker":
        """Return the worker whose model was asked last, once all together were asked so often."""

        def asked_by() -> list[Worker]:
            return [one for one in self.workers for _ in one.model.requests]

        before = asked_by()
        await self.until(lambda: len(asked_by()) >= count)
        after = asked_by()
        for one in before:
            after.remove(one)
        return (after or before)[-1]

    def runner(self, place: ConversationId) -> "Worker | None":
        """Return the worker that runs a turn there."""
        return next((one for one in self.workers if place in one.agents.delegation.running), None)


@contextlib.asynccontextmanager
async def team(
    settings: Settings, *models: Held, roles: tuple[ProcessRole, ...] = (), store: Store | None = None
) -> AsyncIterator[Team]:
    """Run a process for each model; the first leads the agent. `roles`: of the processes, else each does all."""
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        log = store
        if log is None:
            log = await stack.enter_async_context(await Store.open(settings.store.path, clock))
        screen = Screen()
        console = ConsoleChannel(CONSOLE, screen.show)
        found = Team(log, screen, console)
        for number, model in enumerate(models):
            role = roles[number] if roles else "all"
            found.workers.append(await stack.enter_async_context(_opened(settings, found, model, role)))
        first = found.workers[0]
        await found.move_console(first)
        leader = next(one for one in found.workers if one.cluster.role != "edge")
        await leader.cluster.grant(AGENT)
        yield found
        for one in found.workers:
            if not one.cluster.is_gone:
                await one.cluster.end(*one.cluster.leases)
        for one in found.workers:
            one.kill()
        assert found.console_run is not None
        found.console_run.cancel()


@contextlib.asynccontextmanager
async def _opened(settings: Settings, found: Team, model: Model, role: ProcessRole) -> AsyncIterator[Worker]:
    live, clock, cluster = LiveSettings(settings), SystemClock(), ManualCluster(found.peers, role=role)
    async with open_model_services(live, clock, model=model) as services, StoreTasks(found.store) as tasks:
        before = len(found.store._writer.subscriptions)
        gateway = app._Gateway(
            store=found.store,
            clock=clock,
            channels={CONSOLE: found.console},
            make=None,
            model_services=services,
            states=await load_dmn_states(found.store, ["reverie"], clock.now()),
            chosen=await load_chosen_models(found.store, settings),
            redactor=Redactor(),
            tasks=tasks,
            cluster=cluster,
        )
        await gateway.load()
        await gateway.places.load()
        assert isinstance(model, Held)
        worker = Worker(gateway, cluster, model, tasks)
        worker.subscriptions += found.store._writer.subscriptions[before:]
        cluster.listener = worker
        yield worker
        tasks.cancel()
