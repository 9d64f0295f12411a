"""Models and their providers, configured anew while agents think with them: used at once, and
closed once unused."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agent.cache.prompt_cache import PromptCache
from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from reverie.testing.channels import story
from reverie.testing.gateway import UNHURRIED
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.kits.model_choice import Gate, serving

Json = dict[str, Any]


class Town:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.said: Json = {
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {
                    "a": {"kind": "anthropic", "base_url": url, "api_key": "sk-first-key-of-a"},
                    "o": {"kind": "openai", "base_url": url, "api_key": "sk-first-key-of-o"},
                },
                "models": {
                    "main": {"provider": "a", "name": "claude-sonnet-5-5", "fallbacks": ["spare"]},
                    "other": {"provider": "o", "name": "gpt-5"},
                    "spare": {"provider": "o", "name": "gpt-5-mini"},
                },
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "roles": {"owner": ["console:ann"]}, "rates": UNHURRIED},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        }
        self.write()
        self.settings = read_config(folder, {}).settings
        self.live = LiveSettings(self.settings, folder, {})
        self.gate: Gate

    def write(self) -> None:
        (self.folder / "reverie.yaml").write_text(json.dumps(self.said))
        (self.folder / "reverie.yaml").chmod(0o600)

    async def reload(self) -> None:
        self.write()
        came = (
            await self.live.reload()
        )  # what changed is not in it where the gateway has seen the file by itself
        assert not came.problems, came

    @property
    def pool(self) -> dict[str, PromptCache]:
        """Models that are open, by name."""
        return {one.name: one for one in self.gate.equipment.pool.caches}

    async def hear(self, text: str) -> None:
        count = len(self.gate.screen.parts)
        await self.gate.console.receive_message(text, sender="ann")
        await self.gate.screen.until(count + 1)


@contextlib.asynccontextmanager
async def town(folder: Path) -> AsyncIterator[tuple[Town, ModelApi]]:
    async with ModelApi() as api:
        api.default = lambda _: Answer(text="I see.")
        it = Town(folder, api.url)
        async with serving(it.settings, it.live) as gate:
            it.gate = gate
            await it.hear("hello")
            yield it, api


@story
async def test_what_is_the_same_stays_with_all_that_it_knows(tmp_path: Path) -> None:
    async with town(tmp_path) as (it, _):
        before = it.pool
        it.said["llm"]["models"]["main"]["fallbacks"] = []
        it.said["llm"]["models"]["other"]["context_tokens"] = 64_000
        await it.reload()
        models = it.live.settings.llm.models
        assert (models["main"].fallbacks, models["other"].context_tokens) == ((), 64_000)
        assert it.pool == {"main": before["main"]}
        it.said["llm"]["models"]["main"]["fallbacks"] = ["spare"]
        await it.reload()
        assert it.pool["main"] is before["main"]
        assert it.pool["spare"] is not before["spare"]
        await it.hear("and now?")


@story
async def test_what_was_chosen_holds_as_long_as_it_is_configured(tmp_path: Path) -> None:
    async with town(tmp_path) as (it, api):
        await it.gate.command("model switch", name="other")
        mind = it.gate.gateway.agents.agents[0]
        await it.gate.until(lambda: mind.agent_model.name == "other")
        it.said["agents"][0]["model"] = "spare"
        it.said["llm"]["providers"]["o"]["api_key"] = "sk-second-key-of-o"
        await it.reload()
        await it.hear("who are you?")
        assert (api.seen[-1].body["model"], api.seen[-1].headers["authorization"][-20:]) == (
            "gpt-5",
            "r sk-second-key-of-o",
        )
        del it.said["llm"]["models"]["other"]
        await it.reload()
        told = (await it.gate.command("model list")).answer
        assert [line.split("`")[1] for line in told.splitlines()] == ["main", "spare"]
        await it.hear("and now?")
        assert api.seen[-1].body["model"] == "gpt-5-mini"
        assert set(it.pool) == {"spare"}
