"""A whole gateway in simulated time: three platforms, a real store, and a model that a test answers
for."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agent.models.base import Model, ModelRequest, StreamChunk, StreamEnd, TextPart, ToolResult
from channels.base import Part
from gateway import app
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    Message,
    MessageId,
    Notification,
    RoomId,
    Sender,
    SenderId,
    Usage,
)
from gateway.core.facts import TurnRecord, is_inner
from gateway.core.tool_spec import ToolCall
from gateway.store import LogEntry, Store, StoreClosed
from tests.kits.console_platforms import PLATFORMS, Town
from tests.kits.gateway import UNHURRIED

IRC, TELEGRAM, DISCORD = PLATFORMS
ROOMS = ("#one", "#two", "#three")
ALL = 1_000_000
"""Entries."""


def settings(folder: Path, *, provider: dict[str, Any] | None = None, **more: Any) -> Settings:
    """Three platforms with three rooms each; direct chats are open. `provider`: of the model, else
    it is scripted."""
    llm: dict[str, Any] = {
        "providers": {"p": provider or {"kind": "scripted"}},
        "models": {"main": {"provider": "p"}},
    }
    if provider is not None:
        llm["models"]["main"]["name"] = "claude-sonnet-5-5"
    optimization = {
        "workspace_cache": {"enabled": False}
    }  # or a thread would watch the persona, in real time
    return parse_config(
        {
            "channels": {name: {"platform": "console", "rooms": list(ROOMS)} for name in PLATFORMS},
            "agents": [
                {
                    "id": "reverie",
                    "bindings": more.pop(
                        "bindings", [{"match": {"channel": "*"}, "private": False}]
                    ),
                }
            ],
            "llm": {**llm, "context_optimization": optimization},
            "access": {"dm": "open", "rates": UNHURRIED, "roles": {"owner": [f"{TELEGRAM}:olga"]}},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
            **more,
        },
        folder,
    )


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request, as it reached the model."""

    at_s: float
    """On the clock's `monotonic`."""
    place: ConversationId
    heard: str
    """What is new."""
    results: tuple[str, ...]
    """Of the tools that it called, if nothing else is new."""
    request: ModelRequest


@dataclass(frozen=True, kw_only=True)
class Say:
    """What the model says to that."""

    text: str = ""
    calls: Sequence[tuple[str, str]] = ()
    """Tools, as (name, JSON)."""
    takes_s: float = 0.0


REST = Say(calls=(("yield_to_user", "{}"),))


def echo(ask: Ask) -> Say:
    """Says what it heard, and by itself rests."""
    return REST if is_inner(ask.place) else Say(text=f"You said: {ask.heard}")


class Brain:
    """A `Model`. `answer` is asked for each answer, and `asked` keeps what was asked."""

    name = label = "brain"
    context_tokens = 100_000
    max_output_tokens = 1_000
    family = "scripted"
    takes_tools = True
    takes_images = False

    def __init__(self, clock: ManualClock, answer: Callable[[Ask], Say] = echo) -> None:
        self.asked: list[Ask] = []
        self._clock = clock
        self._answer = answer

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        parts = request.conversation[-1].parts
        words = [part.text for part in parts if isinstance(part, TextPart)]
        ask = Ask(
            at_s=self._clock.monotonic(),
            place=ConversationId(request.conversation_id),
            heard="\n".join(words),
            results=tuple(part.text for part in parts if isinstance(part, ToolResult))
            if not words
            else (),
            request=request,
        )
        self.asked.append(ask)
        say = self._answer(ask)
        if say.takes_s:
            await self._clock.sleep(say.takes_s)
        if say.text:
            yield TextPart(text=say.text)
        for number, (name, arguments) in enumerate(say.calls):
            yield ToolCall(id=f"c{len(self.asked)}x{number}", name=name, arguments=arguments)
        usage = Usage(input_tokens=100, output_tokens=10)
        yield StreamEnd(stop_reason="tools" if say.calls else "end", usage=usage, model="brain")

    async def start(self) -> None:
        """Nothing takes long here."""

    async def aclose(self) -> None:
        """Nothing is held here."""


@dataclass
class World:
    """A gateway, from start to stop, again and again. What was shown is kept for all of its
    lives."""

    settings: Settings
    clock: ManualClock
    model: Model | None
    shown: list[tuple[float, Part]] = field(default_factory=list)
    towns: dict[str, Town] = field(default_factory=dict)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    def _show(self, part: Part) -> None:
        self.shown.append((self.clock.monotonic(), part))

    def begin(self) -> None:
        self._stop = asyncio.Event()
        self.towns = {name: Town(name, self._show, self.clock) for name in PLATFORMS}
        channels = {town.name: town for town in self.towns.values()}
        running = app.run(
            self.settings, self._stop, clock=self.clock, channels=channels, model=self.model
        )
        self._task = asyncio.create_task(running)

    async def end(self) -> None:
        """As SIGTERM does."""
        self._stop.set()
        assert self._task is not None
        await self._task

    async def kill(self) -> None:
        """As `kill -9` does: nothing more is written down, and all that was in memory is gone."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(
            asyncio.CancelledError, StoreClosed
        ):  # a store that is cut off, too
            await self._task

    async def tell(self, channel: str, event: Notification) -> None:
        """A platform tells this; returns once it is durable."""
        town = self.towns[channel]
        await town._up.wait()
        assert town._emit is not None
        await town._emit([event])

    def said(self, room: str) -> list[str]:
        return [part.body for _, part in self.shown if part.to.room == room]

    async def log(self, *kinds: str) -> list[LogEntry]:
        async with await Store.open_readonly(self.settings.store.path) as reader:
            return list(await reader.entries(kinds=kinds or None, limit=ALL))

    async def turns(self) -> list[TurnRecord]:
        return [
            one.fact for one in await self.log("turn_ended") if isinstance(one.fact, TurnRecord)
        ]


def message(
    channel: str,
    who: str,
    text: str,
    clock: ManualClock,
    *,
    room: str | None = None,
    id: str,  # noqa: A002 - it is what it is
) -> Message:
    """A message with a name of its own, which a platform can tell again. Without a room it is said
    directly."""
    kind: Literal["direct", "mention", "room"] = "direct" if room is None else "room"
    return Message(
        id=MessageId(id),
        at=Address(channel=ChannelName(channel), room=RoomId(room or who)),
        sender=Sender(id=SenderId(who), name=who, verified=True),
        text=text,
        sent=clock.now(),
        kind="mention" if room is not None and "reverie" in text else kind,
    )


@contextlib.asynccontextmanager
async def world(made: Settings, clock: ManualClock, model: Model | None) -> AsyncIterator[World]:
    """Begin, and end as SIGTERM would."""
    gateway = World(made, clock, model)
    gateway.begin()
    try:
        yield gateway
    finally:
        await gateway.end()
