"""A gateway on real parts: a SQLite file, the console channel, the scripted model. No mocks."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path

from agent.models.base import Model, ModelRequest, StreamChunk
from agent.models.scripted import Script, ScriptedModel
from channels.base import Channel, Part
from channels.console import ConsoleChannel
from gateway import app
from gateway.config.loader import parse_config
from gateway.config.models import RatesConfig, Settings
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import ChannelName
from gateway.core.facts import Fact, TurnRecord
from gateway.store import Store

CONSOLE = ChannelName("console")
UNBOUNDED = {
    f"{whose}{span}_usd": None for whose in ("sender", "room", "agent") for span in ("", "_hour")
}
"""Budgets, where a test has strangers ask for more than these may spend."""
UNHURRIED = {whose: {"burst": 0, "per_minute": 0.0} for whose in RatesConfig.model_fields}
"""`access.rates` for stories in which people say more in a moment than anybody does."""


def settings(tmp: Path, rooms: Sequence[str] = ("lobby",), **more: object) -> Settings:
    """One console channel with a room that everybody may read, direct chats open, no waiting."""
    return parse_config(
        {
            "channels": {"console": {"platform": "console", "rooms": list(rooms)}},
            "agents": [{"id": "reverie", "bindings": [{"private": False}]}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "rates": UNHURRIED},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
            **more,
        },
        tmp,
    )


class Screen:
    """What the console has shown."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._news = asyncio.Event()

    def show(self, part: Part) -> None:
        self.parts.append(part)
        self._news.set()

    def said(self, room: str) -> list[str]:
        return [part.body for part in self.parts if part.to.room == room]

    async def until(self, count: int) -> None:
        """Return once `count` parts have been shown."""
        async with asyncio.timeout(120):
            while len(self.parts) < count:
                self._news.clear()
                await self._news.wait()


class Held(ScriptedModel):
    """One that says nothing before `go` is set: what happens meanwhile is certain to."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script, clock=SystemClock())
        self.go = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        async for chunk in super().stream(request):
            await self.go.wait()
            yield chunk


class Running:
    """A gateway under way."""

    def __init__(self, tmp: Path, model: Model | Script | None = None) -> None:
        self.screen = Screen()
        self.console = ConsoleChannel(CONSOLE, self.screen.show)
        self.model = (
            ScriptedModel(model, clock=SystemClock()) if isinstance(model, Script | None) else model
        )
        self.stop = asyncio.Event()
        self.path = tmp / "reverie.db"

    @property
    def scripted(self) -> ScriptedModel:
        assert isinstance(self.model, ScriptedModel)
        return self.model

    async def asked(self, count: int) -> None:
        """Return once the model has been asked `count` times."""
        async with asyncio.timeout(120):
            while len(self.scripted.requests) < count:
                await asyncio.sleep(0.005)

    async def took(self, count: int) -> None:
        """Return once `count` turns are in the log."""
        async with asyncio.timeout(120):
            while len(await self.turns()) < count:
                await asyncio.sleep(0.005)

    async def log(self, *kinds: str) -> list[Fact]:
        async with await Store.open_readonly(self.path) as reader:
            return [stored.fact for stored in await reader.entries(kinds=kinds or None)]

    async def turns(self) -> list[TurnRecord]:
        return [fact for fact in await self.log("turn_ended") if isinstance(fact, TurnRecord)]


@contextlib.asynccontextmanager
async def running(
    tmp: Path,
    model: Model | Script | None = None,
    *,
    channels: Mapping[ChannelName, Channel] | None = None,
    clock: Clock | None = None,
    rooms: Sequence[str] = ("lobby",),
    **more: object,
) -> AsyncIterator[Running]:
    """Start, and stop as SIGTERM would. `clock`: what all but the model goes by."""
    gateway = Running(tmp, model)
    made = settings(tmp, rooms, **more)
    task = asyncio.create_task(
        app.run(
            made,
            gateway.stop,
            clock=clock,
            channels=channels or {CONSOLE: gateway.console},
            model=gateway.model,
        )
    )
    try:
        yield gateway
    finally:
        gateway.stop.set()
        await task
