"""From a message to its price: a gateway that asks the strict Messages API, and every place where
the bill is shown."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from gateway.config.loader import ConfigFiles, read_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from reverie.testing.gateway import Gateway, settings
from reverie.testing.servers.llama_api import LlamaApi
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import ModelApi

ROOT = Path(__file__).resolve().parents[4]
MODEL = "claude-sonnet-5-5"
ME = f'{{agent="reverie",model="{MODEL}",provider="anthropic"}}'
SOUL = "# Calm\n" + "You take your time, and you say what you mean in few words. " * 150


def tokens(text: str) -> int:
    return -(-len(text) // 4)


def asking(tmp: Path, url: str, *, remembers: bool) -> Gateway:
    """A gateway whose model is behind `url`; unless it `remembers`, its persona is read anew at
    every turn."""
    (tmp / "workspace").mkdir()
    (tmp / "workspace" / "SOUL.md").write_text(SOUL)
    made = settings(
        tmp,
        agents=[{"id": "reverie", "workspace": str(tmp / "workspace")}],
        llm={
            "providers": {"a": {"kind": "anthropic", "base_url": url, "api_key": "k"}},
            "models": {"main": {"provider": "a", "name": MODEL}},
            "context_optimization": {
                "workspace_cache": {"enabled": remembers},
                "token_counter": {"backend": "tiktoken"},
            },
        },
        access={"dm": "open", "roles": {"admin": ["console:root"]}},
    )
    return Gateway(made)


def billed(api: ModelApi) -> Usage:
    """What the provider says that it will ask for."""
    found = [seen.ticket.usage for seen in api.seen if seen.ticket is not None]
    return Usage(
        input_tokens=sum(one.input_tokens for one in found),
        cache_read_tokens=sum(one.cache_read_input_tokens for one in found),
        cache_write_tokens=sum(one.cache_creation_input_tokens for one in found),
        cache_write_1h_tokens=sum(one.ephemeral_1h_input_tokens for one in found),
    )


def ledger(tmp: Path, *options: str) -> str:
    """As the gateway tells it on the command line."""
    config = {
        "channels": {"c": {"platform": "console"}},
        "agents": [{"id": "a"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": str(tmp / "reverie.db")},
    }
    (tmp / "reverie.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "gateway.cli.main", "cache", "--config", str(tmp), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


async def test_what_is_billed_is_what_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async with (
        ModelApi(cache=MessagesCache(tokens)) as api,
        asking(tmp_path, api.url, remembers=True) as gateway,
    ):
        for words, sender, room in (
            ("reverie: hello", "ann", "lobby"),
            ("reverie: and again", "bob", "lobby"),
            ("in private", "ann", None),
        ):
            await gateway.ask(words, sender=sender, room=room)
        assert not api.violations
        bill = billed(api)
        assert bill.cache_read_tokens > 2_000, "the persona is the same everywhere"

        port = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", caplog.text)
        assert port
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(port[0])).text
        samples = dict(
            line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
        )
        prompt = bill.input_tokens + bill.cache_read_tokens + bill.cache_write_tokens
        assert float(samples[f"llm_requests_total{ME}"]) == 3
        assert float(samples[f"llm_cache_read_tokens_total{ME}"]) == bill.cache_read_tokens
        assert float(samples[f"llm_cache_creation_tokens_total{ME}"]) == bill.cache_write_tokens
        assert (
            float(samples['llm_cache_hit_ratio{agent="reverie"}'])
            == bill.cache_read_tokens / prompt
        )
        assert float(samples[f"llm_cost_usd_total{ME}"]) > 0
        assert float(samples[f"llm_prompt_tokens_estimated{ME}"]) > 1_000
        assert float(samples[f"llm_prompt_tokens_drift_count{ME}"]) == 3
        misses = float(samples[f'workspace_cache_misses_total{{path="{tmp_path}/workspace"}}'])
        hits = float(samples[f'workspace_cache_hits_total{{path="{tmp_path}/workspace"}}'])
        assert (misses > 0, hits > 0, hits + misses) == (True, True, 3)

        told = await asyncio.to_thread(ledger, tmp_path, "--json", "--by", "sender", "--last", "9")
        found = json.loads(told)["data"]
        usage = found["total"]["usage"]
        assert usage["cache_read_tokens"] == bill.cache_read_tokens
        assert usage["cache_write_1h_tokens"] == bill.cache_write_1h_tokens
        assert usage["input_tokens"] == bill.input_tokens
        assert found["total"]["cost_usd"] == pytest.approx(
            float(samples[f"llm_cost_usd_total{ME}"]), abs=1e-8
        )
        assert [one["key"] for one in found["sums"]] == ["console:ann", "console:bob"]
        assert [one["conversation"] for one in found["requests"]] == [
            "console/lobby",
            "console/lobby",
            "console/ann",
        ]
        assert [one["account"]["missed"] for one in found["requests"]] == [""] * 3
        assert [one["name"] for one in found["requests"][2]["account"]["blocks"]][:2] == [
            "tools",
            "identity",
        ]


async def test_a_changed_persona_is_found_in_its_block_at_its_byte(tmp_path: Path) -> None:
    async with (
        ModelApi(cache=MessagesCache(tokens)) as api,
        asking(tmp_path, api.url, remembers=False) as gateway,
    ):
        await gateway.ask("reverie: hello", sender="ann", room="lobby")
        (tmp_path / "workspace" / "SOUL.md").write_text(
            SOUL.replace("your time", "your own time", 1)
        )
        await gateway.ask("reverie: hello again", sender="ann", room="lobby")
        first, second = (
            "".join(block["text"] for block in seen.body["system"]) for seen in api.seen
        )
        differs = next(
            place
            for place, pair in enumerate(zip(first, second, strict=False))
            if pair[0] != pair[1]
        )
        shown = await asyncio.to_thread(ledger, tmp_path, "--last", "1")
        missed = re.search(r"missed: .*identity.*byte (\d+)", shown)
        assert missed
        assert int(missed[1]) == differs
        await gateway.ask("!cache", sender="root", room="lobby")
        assert "- Last cache miss (" in gateway.screen.parts[2].body
        assert f"byte {differs}" in gateway.screen.parts[2].body


# An idle day of a whole gateway, with and without money for keeping prompts cached.

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


# What is read in before anybody has said anything: the common beginning, on a local model.


async def test_the_first_person_does_not_pay_for_the_identity_on_a_local_model(
    tmp_path: Path,
) -> None:
    (tmp_path / "ana").mkdir()
    (tmp_path / "ana" / "IDENTITY.md").write_text("You are Ana . " + "Knows of gardens . " * 200)
    async with LlamaApi() as api:
        llm = {
            "providers": {"p": {"kind": "llamacpp", "base_url": api.url, "api_key": "k"}},
            "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
            "context_optimization": {"token_counter": {"backend": "tiktoken"}},
        }
        made = settings(tmp_path, llm=llm, agents=[{"id": "ana", "workspace": "ana"}])
        async with Gateway(made, clock=ManualClock()) as gateway:
            await gateway.until(lambda: any(api.held))
            read_in, *_ = api.read_in
            await gateway.ask("reverie, hello")
        first = api.answered[0].body
        beginning = read_in.body["messages"][0]["content"]
        assert first["messages"][0]["content"].startswith(beginning)
        assert read_in.body.get("tools") == first.get("tools")
        shared = len(beginning.split())
        number = api.completions.index(api.answered[0])
        assert shared > 600
        assert api.timings[number]["cache_n"] >= shared
