"""A gateway on real parts whose agents think with strict fakes of real providers, and the commands
about that."""

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from channels.base import Channel
from gateway import app
from gateway.commands.context import CommandCall
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.events import Address, ChannelName, Command, EventId, RoomId, Sender, SenderId
from gateway.core.facts import dedup_key
from gateway.runtime.models import ModelServices
from gateway.store import NewEntry, Store
from gateway.store.effects import CommandEffect
from reverie.testing.gateway import CONSOLE, Gateway, settings
from reverie.testing.servers.model_api import Json, ModelApi
from tests.kits.commands import answer_of

COUNT = itertools.count()
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
    async def __call__(self, durable: bool, settles: bool = True) -> None:
        """Make it durable, and settle it."""


class Gate(Gateway):
    """One whose services are at hand, and whose commands end where the test wants it."""

    gateway: app.GatewayServices
    at = ANN

    async def run(self, channels: Mapping[ChannelName, Channel]) -> None:
        live = self.live or LiveSettings(self.settings)
        store = await Store.open(self.path, self.clock)
        async with app.open_services(live, self.clock, channels, store) as (self.gateway, tasks):
            with tasks.watch_failure() as failure:
                await self.gateway.serve(self.stop, failure)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.until(lambda: hasattr(self, "gateway"))
        return self

    @property
    def equipment(self) -> ModelServices:
        return self.gateway.model_services

    @property
    def store(self) -> Store:
        return self.gateway.store

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
            id=EventId(f"c{next(COUNT)}-{id(self)}"),
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
            command=asked, role="owner", global_role="owner", sub=sub, arguments=given
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

    async def calm(self) -> None:
        """Return once nothing runs and nothing waits."""
        state = self.gateway.agents.agents[0]
        await self.until(lambda: not state.state.running and not state.state.waiting)


def serving(made: Settings, live: LiveSettings | None = None) -> Gate:
    return Gate(made, live=live)
