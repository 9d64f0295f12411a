"""An idle day of a whole gateway, with and without money for keeping prompts cached."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from gateway.config.loader import ConfigFiles, read_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from reverie.testing.gateway import Gateway
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import ModelApi

MORNING = datetime(2026, 3, 1, 6, 0, tzinfo=UTC)
CONFIG = """\
channels: {irc.libera: {platform: console, rooms: ["#garden"]}}
agents: [{id: ana, workspace: ana}]
llm:
  providers: {p: {kind: anthropic, base_url: "%s", api_key: test}}
  models: {main: {provider: p, name: claude-sonnet-5-5}}
  context_optimization:
    prompt_cache: {policy: fixed, long_ttl: 5m, %s}
    token_counter: {backend: tiktoken}
attention: {coalesce: 0}
access: {dm: open}
tools:
  off: [bash, "job*", "*_file", glob, grep, view_image, "web_*", load_skill, react, "*_own", read_room, who, set_topic]
ops: {port: 0}
"""


@contextlib.asynccontextmanager
async def garden(
    tmp: Path, knobs: str, *, config: str = CONFIG
) -> AsyncIterator[tuple[Gateway, ModelApi]]:
    clock = ManualClock(MORNING)
    async with ModelApi(
        cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic
    ) as api:
        (tmp / "reverie.yaml").write_text(config % (api.url, knobs))
        (tmp / "reverie.yaml").chmod(0o600)
        (tmp / "ana").mkdir()
        (tmp / "ana" / "SOUL.md").write_text("Calm. " + "Knows of gardens. " * 600)
        settings = read_config(tmp, {}).settings
        async with (
            asyncio.timeout(60),
            Gateway(
                settings, clock=clock, live=LiveSettings(settings, ConfigFiles(tmp, {}))
            ) as made,
        ):
            yield made, api


async def ask(made: Gateway) -> None:
    await made.ask("reverie, hello", sender="ann", room="#garden")


async def idle(made: Gateway, api: ModelApi, for_s: float, step_s: float = 5.0) -> None:
    for _ in range(round(for_s / step_s)):
        seen = len(api.seen)
        assert isinstance(made.clock, ManualClock)
        made.clock.advance(step_s)
        for _ in range(12):
            await asyncio.sleep(0)
        if len(api.seen) > seen:  # wait until it has been answered
            await asyncio.sleep(0.02)


def refreshed(api: ModelApi) -> int:
    return sum(one.body["max_tokens"] == 0 for one in api.seen)


@pytest.mark.system
async def test_a_budget_keeps_the_prompt_and_its_cost_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async with garden(tmp_path, "keep_warm_usd: 0.5") as (made, api):
        for _ in range(4):
            await ask(made)
            await idle(made, api, 900.0)
        await ask(made)
        tickets = [
            one.ticket for one in api.seen if one.ticket is not None and one.body["max_tokens"]
        ]
        assert api.violations == []
        assert refreshed(api) > 0
        assert tickets[-1].usage.cache_read_input_tokens == tickets[-2].path[-1].tokens
        asked = len(api.seen)
        await idle(made, api, 12 * 3_600.0, step_s=10.0)
        assert len(api.seen) - asked < 24
        later = len(api.seen)
        await idle(made, api, 12 * 3_600.0, step_s=60.0)
        assert len(api.seen) == later
        (url,) = re.findall(r"http://\S+/metrics", caplog.text)
        async with httpx.AsyncClient() as client:
            metrics = (await client.get(url)).text
        (counted,) = re.findall(r"^llm_requests_total\{.*\} (\d+)", metrics, re.MULTILINE)
        assert float(counted) == len(api.seen)
        kept = [one for one in caplog.messages if "is kept warm" in one]
        assert len(kept) == refreshed(api)


@pytest.mark.system
async def test_nothing_is_kept_warm_at_a_model_that_a_room_no_longer_uses(tmp_path: Path) -> None:
    other = "models: {other: {provider: p, name: claude-opus-4-8}, main: "
    config = CONFIG.replace("models: {main: ", other).replace(
        "dm: open", 'dm: open, roles: {owner: ["irc.libera:ann"]}'
    )
    async with garden(tmp_path, "keep_warm_usd: 0.5", config=config) as (made, api):
        for _ in range(4):
            await ask(made)
            await idle(made, api, 900.0)
        before = refreshed(api)
        await ask(made)
        assert "other" in await made.ask("!model here other", sender="ann", room="#garden")
        await ask(made)
        await idle(made, api, 900.0)
        models = [one.body["model"] for one in api.seen if one.body["max_tokens"] == 0]
        assert before > 0
        assert "claude-sonnet-5-5" not in models[before:]
