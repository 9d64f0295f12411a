"""From a message to its price: a gateway that asks the strict Messages API, and every place where
the bill is shown."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.core.events import Usage
from reverie.testing.gateway import Gateway, settings
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
