"""A new skill or tool of a server changes no byte of what is cached for all in front of
it."""

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from reverie.testing.gateway import IRC, UNBOUNDED, UNHURRIED, Gateway
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from tests.gateway.system.prompt_cache.test_prompt_bytes import bare
from tests.kits.mcp import OWN


@dataclass
class Asked:
    """A gateway, and a model that calls what it is told to."""

    gateway: Gateway
    api: ModelApi
    calls: list[tuple[str, Json]] = field(default_factory=list)
    """Made by the next answers, one each."""
    results: list[str] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.api.default = self._answer

    def _answer(self, body: Json) -> Answer:
        self.count += 1
        newest = next(one for one in reversed(body["messages"]) if one["role"] == "user")
        self.results += [
            one["content"] for one in newest["content"] if one["type"] == "tool_result"
        ]
        if self.calls:
            name, args = self.calls.pop(0)
            return Answer(calls=((f"toolu_{self.count}", name, json.dumps(args)),))
        return Answer(text="Yes.")

    async def ask(self) -> Json:
        """Somebody asks; the last request of that turn."""
        await self.gateway.ask("reverie, go on", sender="olga", room="#garden")
        assert [one.complaint for one in self.api.violations] == []
        return self.api.seen[-1].body


def settings(folder: Path, provider: Json, **tools: Any) -> Settings:
    """One agent, whose owner is olga."""
    return parse_config(
        {
            "channels": {IRC: {"platform": "console", "rooms": ["#garden"]}},
            "agents": [
                {
                    "id": "ana",
                    "workspace": "workspace",
                    "bindings": [{"private": False}],
                }
            ],
            "llm": {
                "providers": {"p": provider},
                "models": {
                    "main": {"provider": "p", "name": "claude-opus-5-5", "context_tokens": 100_000}
                },
                "context_optimization": {
                    "workspace_cache": {"enabled": False},
                    "token_counter": {"enabled": False},
                },
            },
            "tools": {"rules": [{"tool": "*", "approval": "never"}], **tools},
            "dmn": {"daily_cost_usd": 1_000, "daily_turns": 10_000},
            "attention": {"coalesce": 0},
            "access": {
                "dm": "open",
                "rates": UNHURRIED,
                "budgets": UNBOUNDED,
                "roles": {"owner": [f"{IRC}:olga"]},
            },
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        folder,
    )


@contextlib.asynccontextmanager
async def asking(folder: Path, clock: ManualClock, **tools: Any) -> AsyncIterator[Asked]:
    """Everything up, and down at the end."""
    cache = MessagesCache(lambda text: -(-len(text) // 4))
    async with ModelApi(cache=cache, clock=clock.monotonic) as api:
        provider = {"kind": "anthropic", "base_url": api.url, "api_key": "test"}
        (folder / "workspace").mkdir(exist_ok=True)
        (folder / "workspace" / "SOUL.md").write_text("Calm. " + "Knows of gardens. " * 200)
        async with Gateway(settings(folder, provider, **tools), clock=clock) as gateway:
            yield Asked(gateway, api)


def front(body: Json) -> str:
    """Tools and identity as they are sent. Marks are no part of what is cached, and may move."""
    return json.dumps(bare([body["tools"], body["system"][0]]))


def before_history(body: Json) -> str:
    """All that stands in front of what was said."""
    return json.dumps(bare([body["tools"], body["system"]]))


def now(body: Json) -> str:
    """What holds for this request only."""
    return json.dumps(body["messages"][-1])


async def test_a_server_whose_list_changes_is_told_of_behind_all_that_is_cached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    own = {
        "command": [sys.executable, OWN, "stdio", str(tmp_path)],
        "role": "member",
        "approval": "never",
    }
    async with asking(tmp_path, clock, mcp={"own": own}) as it:
        before = await it.ask()
        assert "mcp_own_grow" in before_history(before)
        it.calls = [("call_capability", {"capability": "mcp_own_grow", "args": {}})]
        await it.ask()
        async with asyncio.timeout(120):
            while not (
                waits := re.search("`approve ([0-9a-f]{8})`", caplog.text)
            ):  # what owners are told
                after = await it.ask()
                assert before_history(after) == before_history(before)
                assert "mcp_own_extra" not in now(after)
                clock.advance(1)  # it is asked again after a moment
            await it.gateway.ask(f"!approve {waits[1]}", sender="olga", room="#garden")
            while "mcp_own_extra" not in now(after := await it.ask()):
                assert before_history(after) == before_history(before)
                clock.advance(1)
        assert before_history(after) == before_history(before)
        it.calls = [("call_capability", {"capability": "mcp_own_extra", "args": {}})]
        await it.ask()
        assert "I am new" in it.results[-1]
        clock.advance(7_300)
        cold = await it.ask()
        assert "mcp_own_extra" in before_history(cold)
        assert "mcp_own_extra" not in now(cold)
        assert front(cold) == front(before)
