"""The table of what Claude models take, held against what the strict API refuses."""

import asyncio
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import Effort, ThinkingMode, build_options, find_capabilities, find_unsupported_setting
from agent.models.base import CacheBreakpoint
from agent.models.config import AnthropicConfig, LocalConfig, ModelConfig, build_model, check_models
from gateway.core.clock import ManualClock
from tests.kits.models import KEY, ask, end, request
from tests.servers import messages_models, messages_rules
from tests.servers.model_api import ModelApi

MODELS = """
    claude-fable-5-2 claude-mythos-5-2 claude-haiku-5-5 claude-sonnet-5-5 claude-fable-5-1 claude-opus-5-5
    claude-mythos-5-1 claude-sonnet-5 claude-fable-5 claude-mythos-5 claude-opus-5 claude-opus-4-8 claude-opus-4-7
    claude-mythos-preview claude-opus-4-6 claude-sonnet-4-6 claude-haiku-4-5 claude-haiku-4-5-20251001
    claude-opus-4-5 claude-opus-4-5-20251101 claude-sonnet-4-5 claude-sonnet-4-5-20250929
""".split()  # noqa: SIM905 - a table
"""All that the SDK names (anthropic 2.11.0, types/model_param.py)."""
EFFORTS: tuple[Effort | None, ...] = (None, *get_args(Effort))
THINKING: tuple[ThinkingMode, ...] = get_args(ThinkingMode)


def refused(model: str, told: dict[str, Any]) -> bool:
    body = {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    return messages_rules.check(body | told) is not None


@pytest.mark.parametrize("model", MODELS)
def test_what_the_table_lets_through_is_taken_and_what_it_refuses_is_refused(model: str) -> None:
    assert messages_models.known(model)
    for effort, thinking in product(EFFORTS, THINKING):
        if found := find_unsupported_setting(model, effort, thinking):
            literal = {} if thinking == "default" else {"thinking": {"type": thinking.replace("off", "disabled")}}
            assert refused(model, literal | ({"output_config": {"effort": effort}} if effort else {}))
            assert found[1].startswith(model)
            with pytest.raises(ValueError, match=model):
                build_options(model, effort, thinking)
        else:
            assert not refused(model, build_options(model, effort, thinking)), (effort, thinking)
    message = {"role": "system", "content": "late"}
    said = {"messages": [{"role": "user", "content": "hi"}, message]}
    assert refused(model, said) == (not find_capabilities(model).takes_system_messages)


def test_nothing_is_said_that_need_not_be() -> None:
    for model in (*MODELS, "gpt", ""):
        assert build_options(model, None, "default") == {}
    assert build_options("claude-opus-4-8", "low", "off") == {"output_config": {"effort": "low"}}  # it does not think
    assert build_options("claude-haiku-5-5", None, "off") == {"thinking": {"type": "disabled"}}
    assert build_options("claude-sonnet-5-5", "low", "between_tools") == {
        "output_config": {"effort": "low"},
        "thinking": {"type": "between_tools"},
    }
    assert build_options("new", "max", "off") == {"output_config": {"effort": "max"}, "thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("anthropic/Claude-Sonnet-5-5", "claude-sonnet-5-5"),
        ("claude-opus-5-20260101", "claude-opus-5"),
        ("claude-opus-5", "claude-opus-5"),
        ("claude-opus-5-5", "claude-opus-5-5"),
        ("claude-mythos-preview", "claude-mythos-preview"),
        ("claude-opus-6", ""),
        ("claude-opus-50", ""),
        ("claude-3-5-haiku-latest", ""),
        ("gpt-6", ""),
    ],
)
def test_a_model_is_known_by_whatever_name_it_goes(name: str, same: str) -> None:
    assert find_capabilities(name) is find_capabilities(same)


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "message"),
    [
        ("claude-opus-5-5", None, "off", "claude-opus-5-5 always thinks; leave thinking out"),
        (
            "claude-sonnet-5-5",
            None,
            "off",
            "claude-sonnet-5-5 always thinks; leave thinking out or write between_tools for the least of it",
        ),
        (
            "claude-sonnet-5-5",
            "max",
            "between_tools",
            "claude-sonnet-5-5 takes thinking: between_tools up to effort high only; lower effort or leave it out",
        ),
        (
            "claude-haiku-5-5",
            None,
            "between_tools",
            "claude-haiku-5-5 does not know thinking: between_tools; leave thinking out",
        ),
        ("claude-haiku-4-5", "low", "default", "claude-haiku-4-5 has no effort 'low'; leave effort out"),
        (
            "claude-opus-4-6",
            "xhigh",
            "default",
            "claude-opus-4-6 has no effort 'xhigh'; write one of low, medium, high, max",
        ),
    ],
)
def test_what_a_wrong_setting_is_told(model: str, effort: Effort | None, thinking: ThinkingMode, message: str) -> None:
    asked = ModelConfig(provider="a", name=model, effort=effort, thinking=thinking)
    field = "effort" if "has no effort" in message else "thinking"
    provider = AnthropicConfig(kind="anthropic")
    assert check_models({"main": asked}, {"a": provider}) == [(("models", "main", field), message)]
    with pytest.raises(ValueError, match=r"llm\.models\.main"):
        build_model("main", {"main": asked}, {"a": provider}, ManualClock())
    with pytest.raises(ValueError, match=model):
        AnthropicModel(name="main", model=model, effort=effort, thinking=thinking)


def test_models_of_other_kinds_have_neither() -> None:
    for field, value in (("effort", "low"), ("thinking", "off")):
        asked = ModelConfig.model_validate({"provider": "e", field: value})
        message = "is for models of kind anthropic, and e is local; leave it out"
        assert check_models({"main": asked}, {"e": LocalConfig(kind="local")}) == [(("models", "main", field), message)]


def test_every_request_says_the_same_of_thinking_so_that_the_cache_is_one() -> None:
    async def run() -> None:
        async with ModelApi() as api, asyncio.timeout(120):
            config = ModelConfig(provider="a", name="claude-haiku-5-5", effort="low", thinking="off")
            provider = AnthropicConfig.model_validate({"kind": "anthropic", "base_url": api.url, "api_key": KEY})
            model = build_model("main", {"main": config}, {"a": provider}, ManualClock())
            await ask(model)
            marks = (CacheBreakpoint(behind="block", index=1, lifetime="1h"),)
            warm = replace(request(), conversation=(), max_output_tokens=0, breakpoints=marks)
            assert end(await ask(model, warm)).usage.output_tokens == 0
            await model.aclose()
            for seen in api.seen:
                assert seen.body["output_config"] == {"effort": "low"}
                assert seen.body["thinking"] == {"type": "disabled"}
            assert not api.violations

    asyncio.run(run())
