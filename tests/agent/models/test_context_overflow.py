"""A conversation that does not fit the window, in the words of each provider: it is folded, and asked again."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agent.models.base import Model, PromptTooLong, RequestRefused, StreamChunk, StreamEnd, StreamStart
from agent.models.failover import FailoverModel
from agent.models.http import error_from_response, error_from_stream, is_window_full
from agent.models.openai import OpenAIModel
from gateway.core.events import Usage
from tests.agent.cache.test_client import ANSWER, Bench, story
from tests.agent.cache.test_client import request as kept
from tests.agent.models.test_anthropic import other
from tests.agent.models.test_lost_requests import BROKEN, Patient
from tests.kits.models import KEY, against, ask, end, request
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer

OVERFLOWS = (
    (400, "prompt is too long: 208310 tokens > 200000 maximum"),  # Anthropic
    (400, "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"),
    (400, "Input is too long for requested model."),  # Bedrock
    (400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."),
    (400, "Your input exceeds the context window of this model. Please adjust your input and try again."),
    (400, "Input tokens exceed the configured limit of 272000 tokens. (context_length_exceeded)"),
    (400, "Invalid 'messages[1].content': string too long. (string_above_max_length)"),
    (429, "Request too large for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, Requested 37000."),
    (413, "Request too large for model `x`: Limit 6000, Requested 9000, please reduce your message size"),  # Groq
    (400, "Please reduce the length of the messages or completion."),
    (400, "the request exceeds the available context size, try increasing it"),  # llama.cpp
    (500, "Context size has been exceeded."),
    (400, "The decoder prompt (length 140000) is longer than the maximum model length of 131072."),  # vLLM
    (400, "Input prompt (6000 tokens) is too long and exceeds limit of 4096"),
    (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),  # SGLang
    (400, "prompt too long; exceeded max context length by 12 tokens"),  # Ollama
    (400, "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575)."),  # Gemini
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),  # xAI
    (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),  # Mistral
    (400, "Your request exceeded model token limit: 131072 (requested: 180000)"),  # Moonshot
    (400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"),  # DashScope
    (400, "invalid params, context window exceeds limit"),  # MiniMax
    (400, "Prompt exceeds max length"),  # Z.ai
    (400, "prompt token count of 137000 exceeds the limit of 128000"),  # GitHub
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"),  # TGI
    (400, "Trying to keep the first 9000 tokens when context the overflows. The context length is 4096"),  # LM Studio
    (400, "too many tokens: size limit exceeded by 5000 tokens"),  # Cohere
)
OTHERS = (
    (400, "max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens for claude-opus-5-5"),
    (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens."),
    (400, "tools.0.custom.name: String should have at most 128 characters"),
    (400, "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum"),
    (400, "Too many images: 101 > 100"),
)


def named(status: int, message: str) -> Exception:
    body = json.dumps({"error": {"message": message}}).encode()
    return error_from_response(status, {}, body, where="here", secret=KEY, now=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(("status", "message"), OVERFLOWS)
def test_every_provider_s_words_for_it(status: int, message: str) -> None:
    assert isinstance(named(status, message), PromptTooLong)


@pytest.mark.parametrize(("status", "message"), OTHERS)
def test_other_limits_are_not_taken_for_it(status: int, message: str) -> None:
    assert isinstance(named(status, message), RequestRefused)


@pytest.mark.parametrize(
    "told",
    [
        {"error": {"type": "exceed_context_size_error", "code": 400, "message": "no room", "n_ctx": 4096}},
        {"error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "no room"}},
        {"error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}},
        {"error": {"type": "request_too_large", "message": "no room"}},
    ],
)
def test_codes_say_it_too_also_in_the_middle_of_a_stream(told: object) -> None:
    assert isinstance(error_from_stream(json.dumps(told), where="here", secret=KEY), PromptTooLong)


def ended(stop: str = "length", prompt: int = 500, output: int = 100) -> StreamEnd:
    usage = Usage(input_tokens=prompt // 2, cache_read_tokens=prompt - prompt // 2, output_tokens=output)
    return StreamEnd(stop_reason=stop, usage=usage, model="m")  # type: ignore[arg-type]  # parametrized


@pytest.mark.parametrize(
    ("one", "spoke", "full"),
    [
        (ended(), True, False),
        (ended(), False, False),  # it thought until it had what it may have
        (ended(output=50), False, False),  # or what the server lets it
        (ended(output=3), False, True),
        (ended(output=3), True, False),
        (ended(prompt=950, output=45), True, True),
        (ended(prompt=900), True, False),  # there was room for just that
        (ended(prompt=950), True, False),  # the window is larger than it is said to be
        (ended(prompt=900, output=99), True, True),
        (ended(prompt=990, output=0), False, True),
        (ended(prompt=990, output=5, stop="end"), True, False),
        (ended(prompt=0, output=0), False, False),  # nobody told how much it was
    ],
)
def test_an_answer_that_was_cut_by_the_window(one: StreamEnd, spoke: bool, full: bool) -> None:
    assert is_window_full(one, has_content=spoke, requested=100, window=1_000) is full
    assert not is_window_full(one, has_content=spoke, requested=0, window=1_000)


def openai(url: str) -> OpenAIModel:
    return OpenAIModel(name="main", model="m-1", base_url=url, context_tokens=1_000)


def spent(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output}


async def hear(model: Model, take: Callable[[StreamChunk], None]) -> None:
    async for chunk in model.stream(request()):
        take(chunk)


@pytest.mark.parametrize(
    "cut",
    [
        Answer(stop="length", usage=spent(500, 0)),
        Answer(text="It is", stop="length", usage=spent(990, 4)),
        Answer(text="It is", stop="model_context_window_exceeded", usage=spent(500, 4)),
        Answer(thinking="Let me see", stop="length", usage=spent(600, 9)),
    ],
)
def test_a_server_that_just_stops_when_its_window_is_full(cut: Answer) -> None:
    async def tell(api: ModelApi, model: Model) -> None:
        api.then(cut)
        seen: list[StreamChunk] = []
        with pytest.raises(PromptTooLong, match="filled its window"):
            await hear(model, seen.append)
        assert isinstance(seen[-1], StreamStart)
        assert seen[-1].usage is not None
        assert seen[-1].usage.input_tokens == (cut.usage or {})["prompt_tokens"]

    against(openai, tell)


@pytest.mark.parametrize(
    "whole",
    [
        Answer(text="It is", stop="length", usage=spent(500, 100)),
        Answer(text="It is", stop="length", usage=spent(900, 100)),  # which is all of the window
        Answer(usage={}),
    ],
)
def test_an_answer_of_the_length_that_was_asked_for_is_an_answer(whole: Answer) -> None:
    async def tell(api: ModelApi, model: Model) -> None:
        api.then(whole)
        assert end(await ask(model)).stop_reason in {"length", "end"}

    against(openai, tell)


def test_claude_says_so() -> None:
    async def tell(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="It is", stop="model_context_window_exceeded"))
        with pytest.raises(PromptTooLong, match="filled its window"):
            await ask(model)

    against(other, tell)


def test_what_an_answer_cost_that_found_no_room_is_accounted_for() -> None:
    async def test(bench: Bench) -> None:
        cut = replace(ANSWER, text="It is", stop="model_context_window_exceeded")
        bench.api.then(BROKEN, cut)
        model = FailoverModel([bench.keeper], clock=Patient(), random=lambda: 0.0, attempts=4)
        with pytest.raises(PromptTooLong) as caught:
            await ask(model, kept("irc/#a", "hello"))
        broken, full = caught.value.accounts
        assert broken.usage.cache_write_tokens > 0
        assert full.usage.cache_read_tokens == broken.usage.cache_write_tokens
        assert full.usage.output_tokens == len("It is") // 4 + 1
        assert full.cost_usd

    story(test)
