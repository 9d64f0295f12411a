"""A whole gateway without platforms, for long stories: real store and minds, real models, a strict
fake of their API.

Somebody speaks by `Home.say`, a turn is taken by `Home.take`, and a process ends and another one
begins between `Home.begin` and `Home.end`. Without a socket a turn takes some milliseconds: bodies
go to the fake as they are.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from agent.models.anthropic import AnthropicModel
from agent.models.http import ModelHttpClient, SseEvent, SseParser, error_from_response
from agent.signals import TurnEnded
from gateway import app
from gateway.cluster.cluster import EVERYTHING
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement, TurnRecord, dedup_key
from gateway.core.redaction import Redactor
from gateway.core.tool import ToolContext, build_tool
from gateway.runtime.agent import Agent
from gateway.runtime.agents import Agents
from gateway.runtime.models import ModelServices, open_model_services
from gateway.runtime.turn_handle import TurnHandle
from gateway.store import LogEntry, NewEntry, Store
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import UNBOUNDED, UNHURRIED
from reverie.testing.servers.messages_cache import MessagesCache, Ticket
from reverie.testing.servers.model_api import Answer, Json, MessagesSide
from tests.kits.commands import TABLE
from tests.kits.tasks import ListedTasks

BEGIN = datetime(2026, 3, 2, 6, 30, tzinfo=UTC)
CHANNEL = ChannelName("irc.libera")
ROOM = Address(channel=CHANNEL, room=RoomId("#long"))
HEADERS = {"x-api-key": "test", "anthropic-version": "2023-06-01"}


def tokens(text: str) -> int:
    """Of the simulated model: one for each four characters."""
    return -(-len(text) // 4)


async def _read_file(_: ToolContext, *, path: str) -> str:
    raise AssertionError(path)


READ_FILE = build_tool(_read_file, "Read a file of the project.", name="read_file")


@dataclass
class Provider:
    """The strict Messages API without its sockets."""

    answer: Callable[[Json], Answer]
    clock: ManualClock
    window: int | None = None
    count: Callable[[str], int] = tokens
    complaints: list[str] = field(default_factory=list)
    """What it refused, but for prompts that were too long."""
    overflows: int = 0
    requests: int = 0
    kept: int = 2_000
    """After so many requests a new cache begins: it forgets nothing by itself."""
    hangs: Callable[[Json], bool] = lambda _: False
    """Whether it never answers this."""
    billed: Callable[[Json, Ticket], None] = lambda _body, _ticket: None
    """Called with each request that is answered."""

    def __post_init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        cache = MessagesCache(self.count)
        self.side = MessagesSide(cache=cache, clock=self.clock.monotonic, window=self.window)

    def ask(self, body: Json, headers: Mapping[str, str]) -> list[bytes]:
        """Answer as the server would. Raises a ModelError."""
        self.requests += 1
        if self.requests % self.kept == 0:
            self._renew()
        wrong = self.side.refuse("/v1/messages", headers, body, 0)
        if wrong is not None:
            if "prompt is too long" in wrong.message:
                self.overflows += 1
            else:
                self.complaints.append(wrong.message)
            told = json.dumps(wrong.wire("req_0")).encode()
            raise error_from_response(wrong.status, {}, told, where="fake", secret="")
        reply = self.side.reply(self.answer(body), headers, body)
        reply.began()
        assert reply.ticket is not None
        self.billed(body, reply.ticket)
        return reply.events


class NoSocket(ModelHttpClient):
    """The way to a `Provider`."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(url="http://127.0.0.1/v1/messages", headers=HEADERS)
        self._provider = provider

    async def stream_events(
        self, body: Mapping[str, object], **_: object
    ) -> AsyncGenerator[SseEvent]:
        assert isinstance(body, dict)
        parser = SseParser()
        if self._provider.hangs(body):
            await asyncio.Event().wait()
        for piece in self._provider.ask(body, HEADERS):
            for event in parser.feed(piece):
                yield event


def settings(
    folder: Path,
    *,
    window: int = 200_000,
    output: int = 4_096,
    model: str = "claude-opus-4-8",
    url: str = "http://127.0.0.1:9",
    recall_tokens: int = 150,
    agents: Mapping[str, str] = MappingProxyType({"ana": "*"}),
    **optimization: Any,
) -> Settings:
    """Agents with one Claude model: of each, in which rooms it is. `optimization`: of
    `llm.context_optimization`."""
    for agent in agents:
        (folder / agent).mkdir(exist_ok=True)
        (folder / agent / "SOUL.md").write_text(
            f"{agent} is calm. {'Knows of gardens. ' * 20}", encoding="utf-8"
        )
    provider = {"kind": "anthropic", "base_url": url, "api_key": "test"}
    main = {"provider": "p", "name": model, "context_tokens": window, "max_output_tokens": output}
    off = {"token_counter": {"enabled": False}, "workspace_cache": {"enabled": False}}
    return parse_config(
        {
            "channels": {CHANNEL: {"platform": "console", "rooms": [ROOM.room]}},
            "agents": [
                {
                    "id": agent,
                    "workspace": agent,
                    "bindings": [{"match": {"room": rooms}, "listen": "all"}],
                }
                for agent, rooms in agents.items()
            ],
            "llm": {
                "providers": {"p": provider},
                "models": {"main": main},
                "context_optimization": {**off, **optimization},
            },
            "recall": {"ambient_tokens": recall_tokens},
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "rates": UNHURRIED, "budgets": UNBOUNDED},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        folder,
    )


@dataclass
class Home:
    """One gateway, in one process after the other."""

    settings: Settings
    clock: ManualClock
    provider: Provider | None
    """None: the model is asked over its socket."""
    files: Callable[[str], str]
    """What `read_file` finds at a path."""
    opened: Callable[[Path, ManualClock], Awaitable[Store]] = Store.open
    said: int = 0

    async def begin(self) -> None:
        self._held = contextlib.AsyncExitStack()
        equipment = await self._held.enter_async_context(
            open_model_services(LiveSettings(self.settings), self.clock, model=None)
        )
        for cache in equipment.pool.caches:
            model = cache._model
            assert isinstance(model, AnthropicModel)
            if self.provider is not None:
                model._api = NoSocket(self.provider)
        self.store = await self._held.enter_async_context(
            await self.opened(self.settings.store.path, self.clock)
        )
        self._tasks = await self._held.enter_async_context(ListedTasks())
        self.minds = self._wired(equipment)
        await self._gateway.inbox.close()  # nobody but `take` begins a turn
        await self._gateway.load()
        await self._gateway.recover_knowledge()
        await self._gateway.plugins.on_lease(EVERYTHING)
        await equipment.restore_cadences(self.store)

    def _wired(self, equipment: ModelServices) -> Agents:
        """As the gateway wires itself, but that replies are delivered to nobody."""
        channels = {CHANNEL: ConsoleChannel(CHANNEL, lambda _: None, now=self.clock.now)}
        gateway = self._gateway = app.GatewayServices(
            commands=TABLE,
            redactor=Redactor(()),
            store=self.store,
            clock=self.clock,
            channels=channels,
            make=None,
            model_services=equipment,
            states={},
            chosen={},
            tasks=self._tasks,
        )
        minds = gateway.agents
        self.places = gateway.handle.places
        for mind in minds.by_id.values():
            self._give(mind)
        return minds

    def _give(self, mind: Agent) -> None:
        """Let the agent have `read_file`, too."""

        async def read_file(_: ToolContext, *, path: str) -> str:
            return self.files(path)

        mind.context.tools._tools[READ_FILE.spec.name] = replace(READ_FILE, handler=read_file)
        mind.context.tools.pin_specs()

    async def end(self) -> None:
        await self._gateway.plugins.stop()
        self._tasks.cancel()  # what is to be saved some time later
        await self._held.aclose()

    async def kill(self) -> None:
        """As `kill -9` does: nothing more is written down. What still waits is for the event loop
        to end."""
        await self.store.close()
        for model in {id(mind.model): mind.model for mind in self.minds.by_id.values()}.values():
            await model.aclose()

    async def restart(self) -> None:
        await self.end()
        await self.begin()

    async def say(
        self,
        text: str,
        *,
        place: Address = ROOM,
        who: str = "ann",
        kind: Literal["direct", "mention", "room"] = "mention",
    ) -> None:
        """Somebody says something; durable when this returns."""
        self.said += 1
        sender, now = Sender(id=SenderId(who), name=who), self.clock.now()
        message = Message(
            id=MessageId(f"m{self.said}"), at=place, sender=sender, text=text, sent=now, kind=kind
        )
        came = NewEntry(
            fact=message, at=now, conversation=place.conversation, key=dedup_key(message)
        )
        urgency: Literal[0, 3] = 3 if kind != "room" else 0
        judged = Judgement(
            type="t",
            urgency=urgency,
            fate="due" if urgency else "context",
            rule="test",
            role="guest",
        )
        await self.store.append(
            [came, NewEntry(fact=judged, at=now, conversation=place.conversation, cause=came)]
        )

    async def take(self, place: Address = ROOM) -> TurnEnded:
        mind = self.minds.agent_for(place.conversation)
        return await mind.take_turn(
            place.conversation, autonomous=False, continuing=False, handle=TurnHandle()
        )

    async def ended(self, place: Address = ROOM) -> list[tuple[LogEntry, TurnRecord]]:
        found = await self.log("turn_ended", place=place.conversation)
        return [(one, one.fact) for one in found if isinstance(one.fact, TurnRecord)]

    async def log(
        self, *kinds: str, place: ConversationId | None = None, after: int = 0
    ) -> list[LogEntry]:
        return await self.store.entries(
            kinds=kinds, conversation=place, limit=1_000_000, after=after
        )


@contextlib.asynccontextmanager
async def at_home(home: Home) -> AsyncIterator[Home]:
    """Begin, and end whatever happens."""
    await home.begin()
    try:
        yield home
    finally:
        await home.end()
