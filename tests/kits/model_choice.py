"""A gateway on real parts whose agents think with strict fakes of real providers, and the commands
about that."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol

from channels.console import ConsoleChannel
from gateway import app
from gateway.commands.context import CommandCall
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock
from gateway.core.events import Address, Command, EventId, RoomId, Sender, SenderId
from gateway.core.facts import Fact, TurnRecord, dedup_key
from gateway.core.redaction import Redactor
from gateway.runtime.agents import load_chosen_models
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.runtime.models import ModelServices, open_model_services
from gateway.store import LogEntry, NewEntry, Store
from gateway.store.effects import CommandEffect
from tests.kits.commands import answer_of
from tests.kits.gateway import CONSOLE, Screen, settings
from tests.servers.model_api import Json, ModelApi

P = ParamSpec("P")
ANN = Address(channel=CONSOLE, room=RoomId("ann"))
"""Where ann, an owner, is alone with the agent."""


def configured(
    tmp: Path,
    api: ModelApi,
    models: Mapping[str, Json] | None = None,
    *,
    tight: ModelApi | None = None,
    optimization: Json | None = None,
    **more: Any,
) -> Settings:
    """An agent that thinks with `main`.

    `models`: others, each at one of the providers `o` (OpenAI's), `a` (Anthropic's) and `t` (the
    same, at `tight`).
    """
    return settings(
        tmp,
        llm={
            "providers": {
                "o": {"kind": "openai", "base_url": api.url, "api_key": "sk-secret-o"},
                "a": {"kind": "anthropic", "base_url": api.url, "api_key": "sk-secret-a"},
                "t": {
                    "kind": "anthropic",
                    "base_url": (tight or api).url,
                    "api_key": "sk-secret-t",
                },
            },
            "models": {
                "main": {"provider": "o", "name": "gpt-first", "context_tokens": 32_000},
                "other": {"provider": "a", "name": "claude-sonnet-5-5"},
                **(models or {}),
            },
            "context_optimization": optimization or {},
        },
        access={"dm": "open", "roles": {"owner": ["console:ann"]}},
        **more,
    )


class GoOn(Protocol):
    """What follows a command's answer."""

    async def __call__(self, durable: bool, settles: bool = True) -> None:
        """Make it durable, and settle it."""


@dataclass
class Gate:
    """One life of it."""

    gateway: app._Gateway
    equipment: ModelServices
    screen: Screen
    console: ConsoleChannel
    store: Store
    stop: asyncio.Event
    ids: "itertools.count[int]" = field(default_factory=itertools.count)

    at: Address = ANN

    async def command(
        self, name: str, /, *, cut: Literal["", "before", "behind"] = "", **given: str
    ) -> CommandEffect:
        """As the desk and the intake carry one out. `cut`: before it is durable, or right behind
        that."""
        answer, go_on = await self.begin(name, **given)
        if cut != "behind":
            await go_on(cut != "before")
        else:
            await go_on(durable=True, settles=False)
        return answer

    async def begin(self, name: str, /, **given: str) -> tuple[CommandEffect, "GoOn"]:
        """The same up to its answer, and what makes it durable and settles it."""
        asked = Command(
            id=EventId(f"c{next(self.ids)}-{id(self)}"),
            at=ANN,
            sender=Sender(id=SenderId("ann"), name="ann", verified=True),
            name=name.partition(" ")[0],
            args="",
            sent=datetime.now(UTC),
            origin="native",
            direct=True,
        )
        sub = name.partition(" ")[2]
        ask = CommandCall(
            command=asked, role="owner", rule="roles", global_role="owner", sub=sub, arguments=given
        )
        answer = await answer_of(ask, self.gateway.command_context)

        async def go_on(durable: bool, settles: bool = True) -> None:
            noticed = NewEntry(
                fact=asked, at=asked.sent, conversation=ANN.conversation, key=dedup_key(asked)
            )
            entries = [noticed, *answer.entries(noticed)]
            written = (await self.store.append(entries))[0] if durable else None
            if settles:
                answer.settle(written)

        return answer, go_on

    async def facts(self, *kinds: str) -> list[Fact]:
        return [one.fact for one in await self.log(*kinds)]

    async def log(self, *kinds: str) -> list[LogEntry]:
        return await self.store.entries(kinds=kinds or None, limit=1_000_000)

    async def turns(self) -> list[TurnRecord]:
        return [fact for fact in await self.facts("turn_ended") if isinstance(fact, TurnRecord)]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once this holds."""
        async with asyncio.timeout(120):
            while not holds():
                await asyncio.sleep(0.005)

    async def took(self, count: int) -> None:
        """Return once so many turns are in the log."""
        async with asyncio.timeout(120):
            while len(await self.turns()) < count:
                await asyncio.sleep(0.005)

    async def calm(self) -> None:
        """Return once nothing runs and nothing waits."""
        state = self.gateway.agents.agents[0]
        await self.until(lambda: not state.state.running and not state.state.waiting)


@contextlib.asynccontextmanager
async def serving(made: Settings, live: LiveSettings | None = None) -> AsyncIterator[Gate]:
    """Start, and stop as SIGTERM would."""
    clock, screen, live = SystemClock(), Screen(), live or LiveSettings(made)
    console = ConsoleChannel(CONSOLE, screen.show)
    async with (
        open_model_services(live, clock, model=None) as equipment,
        await Store.open(made.store.path, clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        gateway = app._Gateway(
            store=store,
            clock=clock,
            channels={CONSOLE: console},
            make=None,
            model_services=equipment,
            states=await load_dmn_states(store, [agent.id for agent in made.agents], clock.now()),
            chosen=await load_chosen_models(store, made),
            redactor=Redactor(),
            tasks=tasks,
        )
        stop = asyncio.Event()
        served = tasks.create_task(gateway.serve(stop, asyncio.get_running_loop().create_future()))
        try:
            yield Gate(gateway, equipment, screen, console, store, stop)
        finally:
            stop.set()
            await served
