"""One gateway on real parts: a SQLite file, consoles in place of platforms, and a model of the test."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from agent.models.base import Model, ModelRequest, StreamChunk
from agent.models.scripted import Script as Script
from agent.models.scripted import ScriptedModel
from agent.models.scripted import ScriptRule as ScriptRule
from channels.base import Capabilities, Channel, PostPart
from gateway import app
from gateway.config.loader import parse_config
from gateway.config.models import RatesConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock, ManualClock, SystemClock
from gateway.core.events import (
    Address,
    ChannelName,
    Message,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Fact, TurnRecord
from gateway.store import LogEntry, Store, StoreClosed, StoreMissing, StoreUnreadable
from reverie.testing.console import ConsoleChannel
from reverie.testing.simulated_time import JumpingClock

CONSOLE = ChannelName("console")
IRC, TELEGRAM, DISCORD = map(ChannelName, ("irc.libera", "telegram.main", "discord.main"))
PLATFORMS: dict[str, Capabilities] = {
    IRC: Capabilities(platform="IRC", formatting="Lines of plain text; *bold* and `code` survive."),
    TELEGRAM: Capabilities(
        platform="Telegram", formatting="Markdown is shown; 4,096 characters a message."
    ),
    DISCORD: Capabilities(
        platform="Discord", formatting="Markdown is shown; 2,000 characters a message."
    ),
}
ROOMS = ("#one", "#two", "#three")
"""On each of them."""
UNBOUNDED = {f"{whose}_usd": None for whose in ("sender", "room", "agent")}
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


def on_platforms(tmp: Path, *, bindings: object = None, **more: object) -> Settings:
    """Three platforms with three rooms each, and an owner on Telegram; lines are waited for."""
    given = bindings or [{"match": {"channel": "*"}, "private": False}]
    optimization = {
        "workspace_cache": {"enabled": False}
    }  # or a thread would watch the persona, in real time
    usual: dict[str, object] = {
        "channels": {name: {"platform": "console", "rooms": list(ROOMS)} for name in PLATFORMS},
        "agents": [{"id": "reverie", "bindings": given}],
        "llm": {
            "providers": {"s": {"kind": "scripted"}},
            "models": {"main": {"provider": "s"}},
            "context_optimization": optimization,
        },
        "attention": {},
        "access": {"dm": "open", "rates": UNHURRIED, "roles": {"owner": [f"{TELEGRAM}:olga"]}},
    }
    return settings(tmp, **{**usual, **more})  # type: ignore[arg-type] # `rooms` is none of them


class Screen:
    """What consoles have shown."""

    def __init__(self) -> None:
        self.parts: list[PostPart] = []
        self._news = asyncio.Event()

    def show(self, part: PostPart) -> None:
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


class Gateway:
    """A gateway, from start to stop, again and again. What was shown is kept for all of its lives.

    Use as `async with`: it begins, and ends as SIGTERM would have it.
    """

    def __init__(
        self,
        made: Settings,
        model: Model | Script | None = None,
        *,
        clock: Clock | None = None,
        channels: Mapping[ChannelName, Channel] | None = None,
        live: LiveSettings | None = None,
    ) -> None:
        """`model` None: the one that is configured. `clock`: what all but a scripted model goes by.
        `channels`: in place of consoles of these names. Other platforms are the configured ones.
        """
        self.settings, self.live, self.path = made, live, made.store.path
        self.clock: Clock = clock or SystemClock()
        self.model = (
            ScriptedModel(model, clock=SystemClock()) if isinstance(model, Script) else model
        )
        self.screen = Screen()
        self.consoles: Mapping[str, ConsoleChannel] = {}
        self._channels = channels

    def start(self) -> None:
        given, channels = self._channels or {}, dict[ChannelName, Channel]()
        platforms = {name: one.platform for name, one in self.settings.channels.items()}
        for name, platform in (platforms or {CONSOLE: "console"}).items():
            if platform == "console":
                console = ConsoleChannel(ChannelName(name), self.screen.show, now=self.clock.now)
                console.capabilities = PLATFORMS.get(name, console.capabilities)
                channels[console.name] = console
        channels |= given
        self.consoles = {k: one for k, one in channels.items() if isinstance(one, ConsoleChannel)}
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self.run(channels))

    async def run(self, channels: Mapping[ChannelName, Channel]) -> None:
        await app.run(
            self.settings,
            self.stop,
            clock=self.clock,
            channels=channels or None,
            model=self.model,
            live=self.live,
        )

    async def end(self) -> None:
        """As SIGTERM does."""
        self.stop.set()
        while isinstance(self.clock, ManualClock) and not isinstance(self.clock, JumpingClock):
            if self.task.done():
                break
            self.clock.advance(0.05)
            await asyncio.wait([self.task], timeout=0.001)
        await self.task

    async def kill(self) -> None:
        """As `kill -9` does: nothing more is written down, and all that was in memory is gone."""
        self.task.cancel()
        with contextlib.suppress(
            asyncio.CancelledError, StoreClosed
        ):  # a store that is cut off, too
            await self.task

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.end()

    @property
    def console(self) -> ConsoleChannel:
        """The first one."""
        return next(iter(self.consoles.values()))

    @property
    def scripted(self) -> ScriptedModel:
        assert isinstance(self.model, ScriptedModel)
        return self.model

    async def say(
        self,
        text: str,
        *,
        sender: str = "ann",
        room: str | None = None,
        on: str | None = None,
        **more: Any,
    ) -> Message:
        """Somebody says something, to the agent alone without a room; returns once it is durable.
        `on`: a platform; None: the first one.
        """
        console = self.console if on is None else self.consoles[on]
        return await console.receive_message(text, sender=sender, room=room, **more)

    async def tell(self, channel: str, event: Notification) -> None:
        """A platform tells this; returns once it is durable."""
        await self.consoles[channel].receive_events(event)

    async def ask(self, text: str, **more: Any) -> str:
        """The same; what is shown next."""
        count = len(self.screen.parts)
        await self.say(text, **more)
        await self.until(lambda: len(self.screen.parts) > count)
        return self.screen.parts[count].body

    def sent(self, room: str | None = None) -> list[str]:
        """What was shown there; None: anywhere."""
        return [part.body for part in self.screen.parts if room in (None, part.to.room)]

    async def advance(self, delay_s: float, *, step_s: float = 0.1) -> None:
        """Time passes, and what is due in it is done."""
        assert isinstance(self.clock, ManualClock)
        for _ in range(round(delay_s / step_s)):
            self.clock.advance(step_s)
            await asyncio.sleep(0.004)

    async def until(
        self, holds: Callable[[], Any | Awaitable[Any]], *, step_s: float = 0.0
    ) -> None:
        """Return once this holds. `step_s`: so much time passes meanwhile between two looks. Raises
        what ended the gateway.
        """
        async with asyncio.timeout(120):
            while not (await found if isinstance(found := holds(), Awaitable) else found):
                if self.task.done():
                    await self.task
                    raise AssertionError("the gateway has ended")
                await (self.advance(step_s, step_s=step_s) if step_s else asyncio.sleep(0.005))

    async def asked(self, count: int) -> None:
        """Return once the model has been asked `count` times."""
        await self.until(lambda: len(self.scripted.requests) >= count)

    async def took(self, count: int) -> None:
        """Return once `count` turns are in the log."""

        async def are_there() -> bool:
            return len(await self.turns()) >= count

        await self.until(are_there)

    async def entries(self, *kinds: str) -> list[LogEntry]:
        """Nothing as long as there is no store, or it is just being made."""
        try:
            async with await Store.open_readonly(self.path) as reader:
                return list(await reader.entries(kinds=kinds or None, limit=1_000_000))
        except StoreMissing:
            return []
        except StoreUnreadable:
            if self.task.done():
                raise
            return []

    async def facts(self, *kinds: str) -> list[Fact]:
        return [stored.fact for stored in await self.entries(*kinds)]

    async def turns(self) -> list[TurnRecord]:
        return [fact for fact in await self.facts("turn_ended") if isinstance(fact, TurnRecord)]


def running(
    tmp: Path,
    model: Model | Script | None = None,
    *,
    channels: Mapping[ChannelName, Channel] | None = None,
    clock: Clock | None = None,
    rooms: Sequence[str] = ("lobby",),
    **more: object,
) -> Gateway:
    """One with these `settings`, for `async with`. `model` None: a scripted one."""
    made = settings(tmp, rooms, **more)
    return Gateway(made, model or Script(), clock=clock, channels=channels)


def message(
    channel: ChannelName,
    who: str,
    text: str,
    clock: Clock,
    *,
    room: str | None = None,
    id: str,  # noqa: A002 - it is what it is
) -> Message:
    """A message with a name of its own, which a platform can tell again. Without a room it is said
    directly.
    """
    kind: Literal["direct", "mention", "room"] = "direct" if room is None else "room"
    return Message(
        id=MessageId(id),
        at=Address(channel=channel, room=RoomId(room or who)),
        sender=Sender(id=SenderId(who), name=who, verified=True),
        text=text,
        sent=clock.now(),
        kind="mention" if room is not None and "reverie" in text else kind,
    )
