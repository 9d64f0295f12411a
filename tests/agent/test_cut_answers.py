"""Answers that the output limit has cut, at each kind of provider."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.base import Model
from agent.models.gemini import GeminiModel
from agent.models.llamacpp import LlamaCppModel
from agent.models.openai import OpenAIModel
from agent.turn import MAX_CUT_ANSWERS
from agent.turn_context import TurnOutcome
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.kits.evidence import calls
from tests.kits.models import KEY, against
from tests.kits.scripted_turn import Drawer, brief, take_turn

LIMIT = 4_096
Make = Callable[[str], Model]


def claude(url: str) -> AnthropicModel:
    return AnthropicModel(
        name="main", model="claude-sonnet-5-5", base_url=url, api_key=KEY, max_output_tokens=LIMIT
    )


def chat(url: str) -> OpenAIModel:
    return OpenAIModel(name="main", model="m-1", base_url=url, api_key=KEY, max_output_tokens=LIMIT)


def llama(url: str) -> LlamaCppModel:
    return LlamaCppModel(name="main", base_url=url, max_output_tokens=LIMIT)


def gemini(url: str) -> GeminiModel:
    return GeminiModel(
        name="main", model="gemini-3.8-flash", base_url=url, api_key=KEY, max_output_tokens=LIMIT
    )


KINDS = pytest.mark.parametrize("make", [claude, chat, llama, gemini])
HALF_CALLS = pytest.mark.parametrize("make", [claude, chat, llama])  # calls of Gemini come whole


def cut(make: Make, text: str = "", call: str = "", **more: Any) -> Answer:
    """An answer that ends in the middle. `call`: arguments of a call, as far as they came."""
    written = (("w", "look_up", call),) if call else ()
    used = {"prompt_tokens": 900, "completion_tokens": LIMIT}
    told = {"usage": used, **more} if make in (chat, llama) else more
    stop = "max_tokens" if make is claude else "MAX_TOKENS" if make is gemini else "length"
    return Answer(text=text, calls=written, stop=stop, **told)


def asked(api: ModelApi) -> list[dict[str, Any]]:
    """The requests for an answer: llama.cpp is also asked for its slots, and to read ahead."""
    paths = "/chat/completions", "/messages", ":streamGenerateContent?alt=sse"
    return [
        seen.body
        for seen in api.seen
        if seen.path.endswith(paths) and seen.body.get("n_predict") != 0
    ]


async def taken(
    api: ModelApi, model: Model, *answers: Answer, tools: Drawer | None = None
) -> TurnOutcome:
    api.then(*answers)
    ended = await take_turn(brief(), model, tools or Drawer(), key="ana")
    assert not api.violations
    return ended


@HALF_CALLS
async def test_a_cut_call_is_refused_with_the_limit_and_the_turn_goes_on(make: Make) -> None:
    async with against(make) as (api, model):
        tools, half = Drawer(), '{"word": "once upon a ti'
        ended = await taken(
            api, model, cut(make, "I write it now.", half), Answer(text="In pieces."), tools=tools
        )
        assert (ended.outcome, ended.text, tools.used) == ("replied", "In pieces.", [])
        (call,) = calls(ended)
        assert call.error
        assert f"{LIMIT} tokens (max_output_tokens)" in call.result
        assert call.result in json.dumps(asked(api)[1])


@HALF_CALLS
async def test_a_model_that_only_writes_cut_calls_is_made_to_answer(make: Make) -> None:
    async with against(make) as (api, model):
        halves = [
            cut(make, call=f'{{"word": "{number} once') for number in range(MAX_CUT_ANSWERS + 1)
        ]
        ended = await taken(api, model, *halves, Answer(text="It does not fit."))
        assert (ended.text, len(asked(api))) == ("It does not fit.", MAX_CUT_ANSWERS + 2)
        assert "No more tool calls are carried out" in json.dumps(asked(api)[-1])


@KINDS
async def test_a_cut_text_is_known_as_half(make: Make) -> None:
    async with against(make) as (api, model):
        ended = await taken(api, model, cut(make, "It was a dark and sto"))
        assert (ended.outcome, ended.text, ended.cause) == (
            "replied",
            "It was a dark and sto",
            "cut",
        )
        assert f"max_output_tokens ({LIMIT})" in ended.reason


@KINDS
async def test_thinking_that_takes_all_is_asked_again_with_less_of_it(make: Make) -> None:
    async with against(make) as (api, model):
        ended = await taken(api, model, cut(make, thinking="Hm. " * 50), Answer(text="42."))
        assert (ended.outcome, ended.text) == ("replied", "42.")
        first, again = asked(api)
        effort = (
            (again.get("output_config") or {}).get("effort")
            or again.get("reasoning_effort")
            or again["generationConfig"]["thinkingConfig"]["thinkingLevel"]
        )
        assert effort.lower() == "low"
        assert not {"output_config", "reasoning_effort"} & first.keys()
        assert "thinkingConfig" not in first.get("generationConfig", {})
        assert f"limit of {LIMIT} tokens (max_output_tokens)" in json.dumps(again)
