"""What probes find out about models, against servers that refuse what the real ones refuse."""

import asyncio
import json
from typing import Any

import pytest

from agent.models.settings import ModelConfig, ProviderSettings
from gateway.config.model_check import list_models, probe_model
from gateway.config.secrets import load_price_table
from gateway.core.findings import Finding
from reverie.testing.servers.gemini_api import GeminiApi, exhausted
from reverie.testing.servers.llama_api import LlamaApi
from reverie.testing.servers.minimax_api import MiniMaxApi
from reverie.testing.servers.model_api import Answer, ModelApi, failure, spend_limit
from reverie.testing.servers.vertex_api import VertexApi, google_error
from tests.gateway.cli.probes.test_platforms import fixes, levels, sound
from tests.kits.models import parse_provider

KEY = "sk-ant-test-only-0123456789abcdef"
LISTED: list[dict[str, Any]] = [
    {"id": "claude-sonnet-5-5", "max_input_tokens": 1_000_000},
    {"id": "claude-haiku-5-5"},
]


def provider(url: str, kind: str = "anthropic", **more: Any) -> ProviderSettings:
    return parse_provider({"kind": kind, "base_url": url, "api_key": KEY} | more)


async def probe(
    one: ProviderSettings, name: str | None = "claude-sonnet-5-5", **more: Any
) -> list[Finding]:
    config = ModelConfig.model_validate({"provider": "p", "name": name} | more)
    found, _ = await probe_model(
        config, one, load_price_table(None), where="llm.models.main", keys=("main", "p")
    )
    return found


@pytest.mark.parametrize(
    ("kind", "server", "name", "least"),
    [
        ("anthropic", ModelApi, "claude-sonnet-5-5", 512),
        ("openai", ModelApi, "claude-sonnet-5-5", 512),
        ("minimax", MiniMaxApi, "MiniMax-M2.7", 512),
        ("gemini", GeminiApi, "gemini-3.5-flash", 4096),
    ],
)
async def test_a_model_is_asked_for_one_token(
    kind: str, server: type[ModelApi], name: str, least: int
) -> None:
    async with server() as api:
        api.models, api.key = [*LISTED, {"id": name}], KEY
        seen = await probe(provider(api.url, kind), name)
        assert set(levels(seen).values()) == {"ok"}, seen
        told = [one.what for one in seen if one.code == "model.cache"]
        assert any(f"from {least} tokens on" in one for one in told)
        sent = api.seen[-1].body
        limit = sent.get("max_tokens") or sent.get("max_completion_tokens")
        assert (limit or sent["generationConfig"]["maxOutputTokens"]) == 1
        assert not api.violations
        sound(seen, KEY)


async def test_a_model_in_vertex_is_asked_with_a_token_of_the_machine() -> None:
    async with VertexApi() as api:
        place = {"project": api.project, "region": api.region, "metadata_url": api.url}
        one = parse_provider({"kind": "vertex", "base_url": api.url} | place)
        seen = await probe(one)
        assert set(levels(seen).values()) == {"ok"}, seen
        assert any("from 512 tokens on" in told.what for told in seen)
        assert not api.violations
        refused = google_error(403, "PERMISSION_DENIED", "Permission denied")
        api.default = lambda _: refused
        seen = await probe(one)
        assert levels(seen)["model.key"] == "bad"
        assert "console.cloud.google.com" in fixes(seen, "model.key")
        sound(seen, api.issued[0])


async def test_a_refusal_that_only_mentions_the_model_is_told_in_the_servers_own_words() -> None:
    said = "'temperature' is not supported with this model; see gpt-5.6, gpt-4.1."
    async with ModelApi() as api:
        api.models = [{"id": "gpt-5.6"}, {"id": "gpt-4.1"}]
        api.then(Answer(status=400, body=json.dumps({"error": {"message": said}}).encode()))
        seen = await probe(provider(api.url, "openai"), "gpt-5.6")
        assert levels(seen)["model.answer"] == "bad"
        assert "model.name" not in levels(seen)
        assert any(said in one.what for one in seen)


@pytest.mark.parametrize(
    ("answer", "code", "level"),
    [
        (spend_limit(), "model.credit", "bad"),
        (failure(429, "insufficient_quota", code="insufficient_quota"), "model.credit", "bad"),
        (failure(429, "rate_limit_error"), "model.busy", "warning"),
        (failure(429, "Quota exceeded for requests_per_minute"), "model.busy", "warning"),
        (failure(401, "authentication_error"), "model.key", "bad"),
        (failure(500, "api_error"), "model.busy", "warning"),
        (Answer(status=200, cut_after=0), "model.busy", "warning"),
    ],
)
async def test_why_a_model_does_not_answer(
    answer: Answer, code: str, level: str, api: ModelApi
) -> None:
    api.then(answer)
    seen = await probe(provider(api.url))
    assert levels(seen).get(code) == level, seen
    assert "model.answer" not in levels(seen)
    sound(seen, KEY)


async def test_a_server_that_takes_no_tools_is_found(api: ModelApi) -> None:
    said = "tools param requires --jinja flag"
    api.rule = lambda body: said if body.get("tools") else None
    seen = await probe(provider(api.url, "llamacpp"))
    assert levels(seen)["model.answer"] == "bad"
    assert any(said in one.what for one in seen)


async def test_what_gemini_says_is_known_from_its_details() -> None:
    listed: list[dict[str, Any]] = [{"id": "gemini-3.5-flash", "max_input_tokens": 1_048_576}]
    async with GeminiApi() as api:
        api.models, api.key = listed, "AIza-another"
        one = provider(api.url, "gemini")
        assert levels(await probe(one, "gemini-3.5-flash")) == {"model.key": "bad"}
        api.key = KEY
        assert levels(await probe(one, "gemini-9"))["model.name"] == "bad"
        offered = await list_models(one)
        assert (offered.names, offered.context_tokens) == (
            ("gemini-3.5-flash",),
            {"gemini-3.5-flash": 1_048_576},
        )
        api.then(exhausted("9s", "GenerateRequestsPerDayPerProjectPerModel-FreeTier"))
        assert levels(await probe(one, "gemini-3.5-flash"))["model.credit"] == "bad"
        seen = await probe(one, "gemini-3.5-flash", context_tokens=2_000_000)
        assert levels(seen)["model.context"] == "warning"
        sound(seen, KEY)


async def test_a_reasoning_model_for_which_one_token_is_not_enough_is_fine(api: ModelApi) -> None:
    said = (
        b'{"error": {"message": "Could not finish: max_tokens or model output limit was '
        b'reached. Try more."}}'
    )
    api.then(Answer(status=400, body=said))
    seen = await probe(provider(api.url, "openai"), "gpt-6-sol")
    assert levels(seen)["model.answer"] == "ok"


async def test_a_window_that_is_too_large_and_a_name_without_a_price_are_warned_of(
    api: ModelApi,
) -> None:
    api.models = [{"id": "qwen", "max_model_len": 32_768}]
    seen = await probe(provider(api.url, "openai"), "qwen")
    found = levels(seen)
    assert (found["model.context"], found["model.price"]) == ("warning", "warning")
    assert "32768" in fixes(seen, "model.context")


@pytest.mark.parametrize(
    ("url", "name", "costs"),
    [
        ("http://127.0.0.1:11434/v1", "qwen", 0),
        ("http://192.168.1.20:8000/v1", "gpt-oss:20b", 0),
        ("http://[::1]:8000/v1", "deepseek-r1", 0),
        ("http://ollama:11434/v1", "qwen", 0),
        ("http://nas.local/v1", "qwen", 0),
        ("http://127.0.0.1:4000/v1", "claude-opus-5-5", 4),
        ("http://8.8.8.8/v1", "qwen", 5),
        ("https://llm.example.com/v1", "qwen", 5),
    ],
)
def test_a_server_of_ones_own_costs_nothing_unless_the_table_prices_the_name(
    url: str, name: str, costs: float
) -> None:
    config = ModelConfig(provider="p", name=name)
    own, keyed = (provider(url, "openai", api_key=key) for key in ("none", KEY))
    assert own.find_price(load_price_table(None), config).input_usd == costs
    kept = load_price_table(None).find(name, provider="openai")
    assert keyed.find_price(load_price_table(None), config) == kept


@pytest.mark.parametrize(
    ("name", "warned"),
    [("kimi-k2", True), ("openai/gpt-oss-20b", True), ("qwen3-coder", False), ("my-model", False)],
)
async def test_a_model_whose_calls_are_not_read_from_text_needs_a_server_that_parses_them(
    name: str, warned: bool, api: ModelApi
) -> None:
    api.models = [{"id": name}]
    seen = await probe(provider(api.url, "openai"), name)
    assert (levels(seen).get("model.calls") == "warning") == warned
    assert ("--tool-call-parser" in fixes(seen, "model.calls")) == warned


async def test_llamacpp_and_the_embedded_model_and_a_script_answer() -> None:
    async with LlamaApi() as api:
        seen = await probe(provider(api.url, "llamacpp"), None)
        assert levels(seen)["model.answer"] == "ok", seen
        assert "model.cache" not in levels(seen)
    scripted = parse_provider({"kind": "scripted"})
    assert levels(await probe(scripted, None))["model.answer"] == "ok"


async def test_a_server_that_says_nothing_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.config.model_check.PROBE_TIMEOUT_S", 0.4)
    monkeypatch.setattr("gateway.config.model_check._LIST_TIMEOUT_S", 0.2)
    never = asyncio.Event()

    async def silence(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    try:
        one = provider(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "openai")
        assert levels(await probe(one)) == {"net.timeout": "bad"}
        assert levels((await list_models(one)).findings) == {"net.timeout": "bad"}
    finally:
        never.set()
        server.close()
