"""From configuration to models."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from agent.models.base import Model
from agent.models.client import Candidate
from agent.models.config import build_model, check_models
from agent.models.settings import ModelConfig
from gateway.core.clock import ManualClock
from reverie.testing.servers.model_api import ModelApi
from tests.kits.models import ask, parse_provider, text

MODELS = TypeAdapter(dict[str, ModelConfig])
GIVEN: dict[str, Any] = {
    "anthropic": {"kind": "anthropic", "api_key": "sk-secret"},
    "vllm": {
        "kind": "openai",
        "base_url": "http://127.0.0.1:8000/v1",
        "api_key": "none",
        "timeout": "5m",
    },
    "vertex": {"kind": "vertex", "project": "p", "region": "us-east5"},
    "minimax": {"kind": "minimax", "api_key": "sk-secret"},
    "google": {"kind": "gemini", "api_key": "sk-secret"},
    "llamacpp": {"kind": "llamacpp", "base_url": "http://127.0.0.1:9931"},
    "embedded": {"kind": "local"},
    "play": {"kind": "scripted", "replies": [{"match": "hi", "reply": "ho"}], "delay": "0s"},
}


def build(
    models: dict[str, Any], name: str = "main", made: dict[str, Candidate] | None = None
) -> Model:
    return build_model(
        name,
        MODELS.validate_python(models),
        {name: parse_provider(one) for name, one in GIVEN.items()},
        ManualClock(),
        made=made,
    )


@pytest.mark.parametrize(
    ("written", "waits"),
    [
        ({"kind": "openai"}, (60, 120)),
        ({"kind": "openai", "base_url": "http://127.0.0.1:11434"}, (300, 300)),
        ({"kind": "openai", "base_url": "http://127.0.0.1:11434", "timeout": "20s"}, (300, 20)),
        ({"kind": "llamacpp", "first_token": "10m"}, (600, 600)),
    ],
)
def test_how_long_a_server_may_be_silent_before_it_answers(
    written: dict[str, Any], waits: tuple[float, float]
) -> None:
    provider = parse_provider(written)
    options = provider.options("main", ModelConfig(provider="p", name="m"))
    assert (provider.first_token, options["timeout_s"]) == waits


@pytest.mark.parametrize(
    ("provider", "name", "label", "family", "limits"),
    [
        (
            "anthropic",
            "claude-sonnet-5-5",
            "claude-sonnet-5-5 at api.anthropic.com",
            "anthropic",
            (200_000, 16_384),
        ),
        (
            "vertex",
            "claude-opus-4-5@20251101",
            "claude-opus-4-5@20251101 at us-east5-aiplatform.googleapis.com",
            "anthropic",
            (200_000, 8_192),
        ),
        (
            "minimax",
            "MiniMax-M2.7",
            "MiniMax-M2.7 at api.minimax.io",
            "minimax",
            (204_800, 16_384),
        ),
        ("vllm", "qwen", "qwen at 127.0.0.1:8000", "openai", (128_000, 8_192)),
        (
            "google",
            "gemini-3.8-flash",
            "gemini-3.8-flash at generativelanguage.googleapis.com",
            "gemini",
            (200_000, 16_384),
        ),
        ("llamacpp", None, "llama.cpp at 127.0.0.1:9931", "llamacpp", (128_000, 8_192)),
        (
            "embedded",
            None,
            "SmolLM2-135M, embedded: a very small stand-in, not a capable model",
            "local",
            (8192, 160),
        ),
        ("play", None, "a scripted model (for tests and demos)", "scripted", (128_000, 8_192)),
    ],
)
def test_every_kind(
    provider: str, name: str | None, label: str, family: str, limits: tuple[int, int]
) -> None:
    model = build({"main": {"provider": provider, "name": name}})
    assert (model.name, model.label, model.family) == ("main", label, family)
    assert (model.context_tokens, model.max_output_tokens) == limits
    assert model.takes_tools == (provider != "embedded")


def test_the_output_limit_leaves_most_of_a_small_window_to_the_prompt() -> None:
    assert (
        build(
            {"main": {"provider": "vllm", "name": "qwen", "context_tokens": 4_096}}
        ).max_output_tokens
        == 1_024
    )


async def test_a_llama_cpp_server_gets_a_connection_per_request() -> None:
    async with ModelApi() as api:
        provider = {"x": parse_provider({"kind": "llamacpp", "base_url": api.url})}
        models = MODELS.validate_python({"main": {"provider": "x"}})
        model = build_model("main", models, provider, ManualClock())
        for _ in range(3):
            assert text(await ask(model)) == "You said: hi"
        await model.aclose()
        assert api.connections == len(api.seen) > 3  # it also asks for slots, and reads in


def test_fallbacks_follow_depth_first_and_each_once_and_can_be_shared() -> None:
    made: dict[str, Candidate] = {}
    models = {
        "main": {"provider": "play", "fallbacks": ["a", "b"]},
        "a": {"provider": "play", "fallbacks": ["c"]},
        "b": {"provider": "play", "fallbacks": ["c"]},
        "c": {"provider": "play"},
    }
    build(models, made=made)
    assert list(made) == ["main", "a", "c", "b"]
    before = dict(made)
    build(models, "a", made=made)
    assert made == before


@pytest.mark.parametrize(
    ("models", "path", "words"),
    [
        ({"main": {"provider": "nobody"}}, ("models", "main", "provider"), "llm.providers"),
        ({"main": {"provider": "anthropic"}}, ("models", "main", "name"), "needs a name"),
        ({"main": {"provider": "vertex"}}, ("models", "main", "name"), "needs a name"),
        ({"main": {"provider": "minimax"}}, ("models", "main", "name"), "needs a name"),
        ({"main": {"provider": "google"}}, ("models", "main", "name"), "needs a name"),
        (
            {"main": {"provider": "play", "fallbacks": ["x"]}},
            ("models", "main", "fallbacks"),
            "'x' in llm.models",
        ),
        (
            {"main": {"provider": "play", "fallbacks": ["main"]}},
            ("models", "main", "fallbacks"),
            "main -> main",
        ),
        (
            {
                "main": {"provider": "play", "fallbacks": ["b"]},
                "b": {"provider": "play", "fallbacks": ["main"]},
            },
            ("models", "main", "fallbacks"),
            "main -> b -> main",
        ),
        (
            {"main": {"provider": "play", "context_tokens": 100, "max_output_tokens": 100}},
            ("models", "main", "max_output_tokens"),
            "smaller",
        ),
    ],
)
def test_wrong_settings_are_found_with_their_place(
    models: dict[str, Any], path: tuple[str, ...], words: str
) -> None:
    providers = {name: parse_provider(one) for name, one in GIVEN.items()}
    found = check_models(MODELS.validate_python(models), providers)
    assert found[0][0] == path
    assert words in found[0][1]
    with pytest.raises(ValueError, match="llm"):
        build(models)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "openai", "base_url": "localhost:8000"},
        {"kind": "openai", "api_key": "sk-secret\nsk-secret"},
        {"kind": "openai", "timeout": 0},
        {"kind": "openai", "temperature": 1},
        {"kind": "scripted", "replies": [{"match": "(", "reply": ""}]},
        {"kind": "other"},
    ],
)
def test_wrong_providers_are_refused_without_showing_the_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_provider(wrong)
    assert "sk-secret" not in str(caught.value)


def test_a_key_does_not_show() -> None:
    assert "sk-secret" not in repr([parse_provider(one) for one in GIVEN.values()])


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://api.anthropic.com", "anthropic"),
        ("https://api.anthropic.com/v1", "anthropic"),
        ("https://generativelanguage.googleapis.com", "gemini"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "openai"),
        ("http://127.0.0.1:9931", "llamacpp"),
        ("http://gpu.lan:8080/v1", "llamacpp"),
        ("http://127.0.0.1:8000/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openai"),
        ("https://api.minimax.io/v1", "minimax"),
        ("https://api.anthropic.com.example.org", "openai"),
    ],
)
def test_a_kind_that_is_left_out_is_told_by_the_address(url: str, kind: str) -> None:
    assert parse_provider({"base_url": url}).kind == kind
    assert parse_provider({"kind": "openai", "base_url": url}).kind == "openai"


@pytest.mark.parametrize(
    "wrong", [{}, {"api_key": "sk-secret"}, {"base_url": 7}, {"base_url": "localhost"}]
)
def test_without_an_address_there_must_be_a_kind(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse_provider(wrong)


@pytest.mark.parametrize(
    ("provider", "name", "expected"),
    [
        ({"kind": "anthropic"}, "claude-sonnet-5-5", True),
        ({"kind": "openai"}, "gpt-6-astra", True),
        ({"kind": "openai"}, "gpt-5.5", False),
        ({"base_url": "http://127.0.0.1:8000"}, "gpt-6-astra", False),
        ({"kind": "gemini"}, "gemini-3.8-flash", False),
        ({"kind": "local"}, None, False),
        ({"kind": "vertex", "project": "p"}, "claude-sonnet-5-5", True),
        ({"kind": "minimax"}, "MiniMax-M3", False),
    ],
)
def test_who_is_told_what_to_cache(
    provider: dict[str, Any], name: str | None, expected: bool
) -> None:
    caching = parse_provider(provider).traits(name or "").caching
    assert (caching == "marks") == expected
