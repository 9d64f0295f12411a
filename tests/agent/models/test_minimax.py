"""MiniMax (platform.minimax.io/docs), against a fake that refuses what its reference does not know."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import (
    CacheBreakpoint,
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelUnusable,
    PartialText,
    PromptTooLong,
    RequestRefused,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.models.config import build_model
from agent.models.minimax import MiniMaxModel, translate_error
from agent.models.settings import ModelConfig
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from gateway.core.tool_spec import Image, ToolCall
from reverie.testing.servers.minimax_api import MiniMaxApi, base_resp, error_object
from reverie.testing.servers.model_api import Answer
from tests.kits.models import (
    BLOCKS,
    KEY,
    TOOL,
    ask,
    assistant,
    end,
    parse_provider,
    request,
    text,
    user,
)

MARKS = (
    CacheBreakpoint(behind="block", index=1, lifetime="1h"),
    CacheBreakpoint(behind="said", index=0, lifetime="5m"),
)
CALL = ("call_function_a_1", "look_up", '{"word": "tea"}')
RESULT = ModelMessage(role="user", parts=(ToolResult(id=CALL[0], text="a drink"),))


@asynccontextmanager
async def minimax(
    model: str = "MiniMax-M2.7", *, cumulative: bool = False
) -> AsyncIterator[tuple[MiniMaxApi, MiniMaxModel]]:
    async with (
        MiniMaxApi(cumulative=cumulative) as api,
        aclosing(MiniMaxModel(name="main", model=model, base_url=api.url, api_key=KEY)) as one,
    ):
        yield api, one


def called(chunks: list[Any]) -> ModelMessage:
    """The answer as the next request repeats it."""
    parts = tuple(one for one in chunks if isinstance(one, TextPart | ToolCall))
    return ModelMessage(role="assistant", parts=parts, thinking=end(chunks).thinking)


async def test_blocks_become_one_system_message_without_marks() -> None:
    async with minimax() as (api, model):
        asked = replace(
            request(user("hi"), assistant("hello"), user("tea?"), tools=(TOOL,)), breakpoints=MARKS
        )
        assert text(await ask(model, asked)) == "You said: tea?"
        body = api.seen[0].body
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", "user", "assistant", "user"]
        assert body["messages"][0]["content"] == "\n\n".join(block.text for block in BLOCKS)
        assert "cache" not in json.dumps(body)
        assert (body["max_completion_tokens"], body["reasoning_split"]) == (100, True)
        assert "thinking" not in body
        assert api.seen[0].headers["authorization"] == f"Bearer {KEY}"
        assert not api.violations


async def test_less_thinking_is_asked_for_in_minimax_own_field() -> None:
    async with minimax() as (api, model):
        await ask(model, replace(request(), thinks_less=True))
        assert api.seen[0].body["thinking"] == {"type": "disabled"}
        assert not api.violations


@pytest.mark.parametrize("cumulative", [False, True])
async def test_thinking_is_never_text_and_goes_back_whole_within_its_tool_loop(
    cumulative: bool,
) -> None:
    thought = "The user asks about tea, so I look the word up."
    async with minimax(cumulative=cumulative) as (api, model):
        api.then(Answer(text="Let me look that up.", thinking=thought, calls=(CALL,)))
        first = await ask(model, request(tools=(TOOL,)))
        assert text(first) == "Let me look that up."
        shown = [one.text for one in first if isinstance(one, PartialText)]
        assert all("Let me look that up.".startswith(one) for one in shown)
        assert "".join(one.text for one in first if isinstance(one, ThinkingDelta)) == thought
        said = called(first)
        api.then(Answer(text="A drink."))
        last = await ask(model, request(user("hi"), said, RESULT, tools=(TOOL,)))
        assert text(last) == "A drink."
        (sent,) = api.seen[1].body["messages"][2]["reasoning_details"]
        assert (sent["text"], sent["format"]) == (thought, "MiniMax-response-v1")
        later = request(user("hi"), said, RESULT, assistant("A drink."), user("ok"), tools=(TOOL,))
        await ask(model, later)
        assert not any("reasoning_details" in one for one in api.seen[2].body["messages"])
        assert not api.violations


@pytest.mark.parametrize("cumulative", [False, True])
async def test_a_text_that_repeats_itself_is_whole(cumulative: bool) -> None:
    async with minimax(cumulative=cumulative) as (api, model):
        api.then(Answer(text="ho ho ho ho " * 4))
        assert text(await ask(model)) == "ho ho ho ho " * 4


async def test_thinking_that_a_server_leaves_in_the_text_is_not_shown() -> None:
    async with minimax() as (api, model):
        api.then(
            error_object(400, 2013, "invalid params, unknown field reasoning_split"),
            Answer(text="A drink.", thinking="Tea is a drink."),
        )
        chunks = await ask(model)
        assert text(chunks) == "A drink."
        assert not any("Tea is" in one.text for one in chunks if isinstance(one, PartialText))
        assert "reasoning_split" not in api.seen[1].body


async def test_usage_counts_what_the_server_has_cached_by_itself() -> None:
    async with minimax() as (api, model):
        reported = {
            "total_tokens": 1659,
            "prompt_tokens": 1366,
            "completion_tokens": 293,
            "prompt_tokens_details": {"cached_tokens": 114},
        }
        api.then(Answer(text="A drink.", usage=reported))
        usage = end(await ask(model)).usage
        assert usage == Usage(input_tokens=1252, cache_read_tokens=114, output_tokens=293)


async def test_pictures_are_for_m3() -> None:
    picture = Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n rest", description="[cat]")
    look = ModelMessage(role="user", parts=(TextPart(text="look"), picture))
    async with minimax("MiniMax-M3") as (api, model):
        assert text(await ask(model, request(look)))
        assert api.seen[0].body["messages"][1]["content"][1]["type"] == "image_url"
        assert not api.violations
    provider = parse_provider({"kind": "minimax"})
    for name, sees in (("MiniMax-M3", True), ("MiniMax-M2.7-highspeed", False)):
        entry = ModelConfig(provider="m", name=name)
        built = build_model("main", {"main": entry}, {"m": provider}, ManualClock())
        assert (built.takes_images, built.family, built.context_tokens) == (
            sees,
            "minimax",
            204_800,
        )


ERRORS: list[tuple[int, str, type[ModelError]]] = [
    (1000, "unknown error", ModelBusy),
    (1001, "request timeout", ModelBusy),
    (1002, "rate limit exceeded(RPM)", ModelBusy),
    (1004, "login fail", ModelUnusable),
    (1008, "insufficient balance", ModelUnusable),
    (1013, "internal service error", ModelBusy),
    (1026, "input new_sensitive", RequestRefused),
    (1027, "output new_sensitive", RequestRefused),
    (1033, "system error", ModelBusy),
    (1039, "token limit", ModelBusy),
    (1041, "conn limit", ModelBusy),
    (2013, "invalid params, context window exceeds limit", PromptTooLong),
    (2013, "invalid params, unknown model 'x'", ModelUnusable),
    (2013, "invalid params, binding: expr_path=messages", RequestRefused),
    (2049, "invalid api key", ModelUnusable),
    (2056, "usage limit exceeded, 5-hour usage limit reached", ModelUnusable),
    (2061, "your current token plan not support model", ModelUnusable),
    (9999, "a code of later", ModelBusy),
]


@pytest.mark.parametrize("form", ["native", "stream", "object"])
@pytest.mark.parametrize(("code", "message", "expected"), ERRORS)
async def test_a_code_says_what_to_do_wherever_it_stands(
    code: int, message: str, expected: type[ModelError], form: str
) -> None:
    answers = {
        "native": base_resp(code, message),
        "stream": Answer(text="A drink.", error_after=(3, str(code)), error_says=message),
        "object": error_object(500, code, message),
    }
    async with minimax() as (api, model):
        api.default = lambda _: answers[form]
        with pytest.raises(expected) as caught:
            await ask(model)
        error = caught.value
        assert message in error.reason
        assert str(code) in error.reason
        about_content = isinstance(error, RequestRefused) and error.caused_by_prompt
        assert about_content == (code in (1026, 1027))
        no_credit = isinstance(error, ModelUnusable) and error.no_credit
        assert no_credit == (code in (1008, 2056))


async def test_an_error_keeps_the_id_that_support_asks_for() -> None:
    async with minimax() as (api, model):
        api.then(error_object(400, 2013, "invalid params"))
        with pytest.raises(RequestRefused, match="0640ba838096cbdbe96fe03bc1654ebe"):
            await ask(model)
        told = base_resp(1008, "insufficient balance")
        api.then(replace(told, headers=told.headers | {"trace-id": "0640ba8346a7d50d"}))
        with pytest.raises(ModelUnusable, match="0640ba8346a7d50d"):
            await ask(model)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.integers() | st.text(),
        lambda one: (
            st.lists(one)
            | st.dictionaries(
                st.sampled_from(["base_resp", "status_code", "error", "message", "http_code"]), one
            )
        ),
    ).map(lambda one: json.dumps(one).encode())
)
def test_any_body_is_an_error_with_a_status_or_none(body: bytes) -> None:
    told = translate_error(500, body)
    assert told is None or isinstance(json.loads(told[1]), dict)


async def test_an_answer_that_is_no_stream_is_no_error_of_minimax() -> None:
    async with minimax() as (api, model):
        api.then(replace(base_resp(0, ""), body=b'{"base_resp": {"status_code": 0}}'))
        with pytest.raises(ModelUnusable, match="base_url"):
            await ask(model)


async def test_joined_blocks_and_the_cache_are_told_once_for_a_provider(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = parse_provider({"base_url": "https://api.minimaxi.com/v1"})
    assert provider.kind == "minimax"
    entry = ModelConfig(provider="m", name="MiniMax-M2.7", fallbacks=("b",))
    models = {"a": entry, "b": ModelConfig(provider="m", name="MiniMax-M2.5")}
    made: dict[str, Any] = {}
    with caplog.at_level(logging.INFO, "agent.models.config"):
        for name in ("a", "b", "a"):
            build_model(name, models, {"m": provider}, ManualClock(), made=made)
    (told,) = [one.getMessage() for one in caplog.records if "joined" in one.getMessage()]
    assert "marks" in told
    assert "caches" in told
