"""The Messages API over real sockets: requests, streams, errors, context editing, and what each
model can do."""

import asyncio
import json
import logging
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from agent.models.adapt import Json, append_suffix, parse_tool_input
from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import (
    RequestSuffix,
    ThinkingAnswer,
    build_anthropic_request,
    build_options,
    find_capabilities,
    find_unsupported_setting,
)
from agent.models.base import (
    AnswerUnreadable,
    CacheBreakpoint,
    Effort,
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    PromptTooLong,
    RequestRefused,
    TextPart,
    ThinkingMode,
    ToolResult,
)
from agent.models.config import build_model, check_models
from agent.models.http import error_from_response
from agent.models.settings import ModelConfig
from gateway.core.clock import ManualClock
from gateway.core.events import CacheTtl, Usage
from gateway.core.tool_spec import ToolCall
from gateway.plugins.providers import AnthropicConfig
from reverie.testing.servers import messages_prompt, model_api_rules
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import Answer, ModelApi, Seen, failure, spend_limit
from tests.kits.models import KEY, TOOL, against, ask, assistant, end, request, text, user

OPUS = "claude-opus-5-5"
"""Takes system messages; thinks always, and is bound to what was in front of it."""
CALLS = (
    ToolCall(id="a", name="look_up", arguments='{"word":"x"}'),
    ToolCall(id="b", name="look_up", arguments="{}"),
)
RESULTS = ModelMessage(
    role="user",
    parts=(
        TextPart(text="now answer"),
        ToolResult(id="a", text="ok"),
        ToolResult(id="b", text="failed", is_error=True),
    ),
)


def opus(url: str) -> AnthropicModel:
    return AnthropicModel(name="main", model=OPUS, base_url=url, api_key=KEY)


def other(url: str) -> AnthropicModel:
    return AnthropicModel(name="main", model="m-1", base_url=url, api_key=KEY)


def calls(words: str = "Let me see.") -> ModelMessage:
    return ModelMessage(role="assistant", parts=(TextPart(text=words), *CALLS))


def marks(body: dict[str, Any]) -> list[tuple[str, str]]:
    messages = (b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"])
    blocks = [*body.get("tools", []), *body.get("system", []), *messages]
    return [
        (
            b.get("text") or b.get("name") or b.get("tool_use_id") or b["type"],
            b["cache_control"]["ttl"],
        )
        for b in blocks
        if "cache_control" in b
    ]


def marked(asked: ModelRequest, *places: tuple[Any, int, CacheTtl]) -> ModelRequest:
    return replace(
        asked,
        breakpoints=tuple(CacheBreakpoint(behind=b, index=i, lifetime=t) for b, i, t in places),
    )


def roles(body: dict[str, Any]) -> str:
    return " ".join(message["role"] for message in body["messages"])


async def test_a_request_on_the_wire() -> None:
    async with against(other) as (api, model):
        said = (user("one"), user("two", " "), assistant("hello"), user("stable", "fresh"))
        assert text(await ask(model, request(*said, tools=(TOOL,)))) == "You said: stable\nfresh"
        seen = api.seen[0]
        assert seen.path == "/v1/messages"
        assert seen.headers["x-api-key"] == KEY
        assert seen.headers["anthropic-version"] == "2023-06-01"
        assert seen.body.keys() == {"model", "max_tokens", "stream", "tools", "system", "messages"}
        assert seen.body["max_tokens"] == 100
        assert seen.body["tools"][0]["input_schema"] == {"properties": {}, "type": "object"}
        assert [[b["text"] for b in m["content"]] for m in seen.body["messages"]] == [
            ["one", "two"],
            ["hello"],
            ["stable", "fresh"],
        ]
        assert "cache_control" not in json.dumps(seen.body)  # nobody asked for it


LOOP = (user("hi"), calls(), RESULTS)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], []),
        (
            [("tools", 0, "1h"), ("block", 2, "1h"), ("block", 3, "5m"), ("said", 2, "5m")],
            [
                ("look_up", "1h"),
                ("Keep it short here.", "1h"),
                ("This is #python.", "5m"),
                ("now answer", "5m"),
            ],
        ),
        ([("said", 1, "5m")], [("look_up", "5m")]),
        ([("said", 0, "1h"), ("said", 2, "5m")], [("hi", "1h"), ("now answer", "5m")]),
        ([("block", 4, "1h"), ("block", -1, "1h"), ("said", 3, "5m"), ("said", -1, "5m")], []),
    ],
)
async def test_marks_are_where_the_plan_wants_them_or_nowhere(
    places: list[tuple[Any, int, CacheTtl]], expected: list[tuple[str, str]]
) -> None:
    async with against(other) as (api, model):
        asked = replace(marked(request(*LOOP, tools=(TOOL,)), *places), now="It is late.")
        await ask(model, asked)
        assert marks(api.seen[0].body) == expected
        assert not api.violations


async def test_what_holds_for_one_request_is_a_system_message_behind_everything() -> None:
    async with against(opus) as (api, model):
        asked = marked(request(user("hi"), assistant("ho"), user("and?")), ("said", 2, "5m"))
        await ask(model, replace(asked, now="It is late."))
        body = api.seen[0].body
        assert body["messages"][-1] == {"role": "system", "content": "It is late."}
        assert roles(body) == "user assistant user system"
        assert marks(body) == [("and?", "5m")]
        await ask(model, replace(request(*LOOP, tools=(TOOL,)), now="It is late."))
        assert roles(api.seen[1].body) == "user assistant user system"
        for empty in (replace(asked, now=" \n"), replace(asked, now="")):
            await ask(model, empty)
            assert roles(api.seen[-1].body) == "user assistant user"


@pytest.mark.parametrize(
    "complaint",
    [
        (
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` '
            "parameter"
        ),
        "messages.1.role: Input should be 'user' or 'assistant'",
    ],
)
async def test_however_that_is_said_but_not_behind_words_that_were_passed_on(
    complaint: str,
) -> None:
    async with against(opus) as (api, model):
        body = json.dumps(
            {"type": "error", "error": {"type": "invalid_request_error", "message": complaint}}
        ).encode()
        api.then(
            Answer(text="hi", error_after=(5, "invalid_request_error"), error_says=complaint),
            Answer(status=400, body=body),
            Answer(text="hi"),
            Answer(status=400, body=body),
        )
        asked = replace(request(user("hi")), now="It is late.")
        with pytest.raises(RequestRefused):
            await ask(model, asked)
        assert text(await ask(model, asked)) == "hi"
        with pytest.raises(RequestRefused):  # there is no other way to say it
            await ask(model, asked)
        assert [roles(seen.body) for seen in api.seen] == [
            "user system",
            "user system",
            "user",
            "user",
        ]


@pytest.mark.parametrize("systems", [True, False])
@pytest.mark.parametrize("said", [(), (user("hi"),), (user("hi"), assistant("ho")), LOOP])
def test_what_is_told_last_is_what_every_dialect_tells(
    said: tuple[ModelMessage, ...], systems: bool
) -> None:
    asked = replace(request(), conversation=said, now="It is late.")
    body: Any = build_anthropic_request(asked, model="m-1", takes_system_messages=systems).body
    last = body["messages"][-1]
    told = last["content"] if isinstance(last["content"], str) else last["content"][-1]["text"]
    assert told == "It is late."
    if not systems:
        plain: Any = build_anthropic_request(
            replace(asked, conversation=append_suffix(asked), now=""), model="m-1"
        ).body
        assert body == plain


@pytest.mark.parametrize(
    "written",
    ["", "{}", '{"a": 1}', "[1]", '{"a', '{"a": NaN}', '{"a": 1e999}', "null", "[" * 99999],
)
def test_whatever_the_model_wrote_is_echoed_as_an_object(written: str) -> None:
    read = parse_tool_input(written)
    assert isinstance(read, dict)
    json.dumps(read, allow_nan=False)


async def test_a_warm_up_reads_the_prompt_and_says_nothing() -> None:
    async with against(opus) as (api, model):
        asked = replace(request(tools=(TOOL,)), conversation=(), max_output_tokens=0)
        chunks = await ask(model, marked(asked, ("block", 1, "1h")))
        assert (len(chunks), end(chunks).stop_reason, end(chunks).usage.output_tokens) == (
            1,
            "length",
            0,
        )
        assert end(chunks).usage.input_tokens > 0
        body = api.seen[0].body
        assert (body["max_tokens"], "stream" in body, roles(body)) == (0, False, "user")
        assert marks(body) == [("You can look things up.", "1h")]
        said = (user("hi"), assistant("ho"))
        await ask(model, marked(replace(asked, conversation=said), ("said", 1, "5m")))
        assert roles(api.seen[1].body) == "user assistant user"
        assert not api.violations


def said(message: str, status: int = 400, kind: str = "invalid_request_error") -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_011"}
    return Answer(status=status, body=json.dumps(body).encode())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (failure(400, "invalid_request_error"), RequestRefused),
        (said("prompt is too long: 200001 tokens > 200000 maximum"), PromptTooLong),
        (said("Your credit balance is too low to access the Anthropic API."), ModelUnusable),
        (failure(401, "authentication_error"), ModelUnusable),
        (failure(402, "billing_error"), ModelUnusable),
        (failure(403, "permission_error"), ModelUnusable),
        (failure(404, "not_found_error"), ModelUnusable),
        (failure(409, "conflict_error"), ModelBusy),
        (failure(413, "request_too_large"), PromptTooLong),
        (failure(429, "rate_limit_error", retry_after_s=2), ModelBusy),
        (failure(429, "rate_limit_error"), ModelBusy),
        (spend_limit(), ModelUnusable),
        (failure(500, "api_error"), ModelBusy),
        (failure(504, "timeout_error"), ModelBusy),
        (failure(529, "overloaded_error"), ModelBusy),
    ],
)
async def test_every_status(answer: Answer, expected: type[ModelError]) -> None:
    async with against(opus) as (api, model):
        api.then(answer)
        with pytest.raises(ModelError) as raised:
            await ask(model)
        assert type(raised.value) is expected
        assert f"answered {answer.status}" in raised.value.reason
        assert raised.value.reason.endswith(("(req_scripted)", "(req_011)"))
        assert len(api.seen) == 1


async def test_a_hint_comes_with_the_error() -> None:
    async with against(opus) as (api, model):
        api.then(
            failure(429, "rate_limit_error", retry_after_s=7),
            Answer(
                status=429,
                headers={"retry-after-ms": "1500", "retry-after": "2", "request-id": "req_head"},
            ),
        )
        with pytest.raises(ModelBusy) as first:
            await ask(model)
        with pytest.raises(ModelBusy) as second:
            await ask(model)
        assert (first.value.retry_after_s, second.value.retry_after_s) == (7.0, 1.5)
        assert second.value.reason.endswith("(req_head)")


@pytest.mark.parametrize(
    "request_id",
    ["", KEY, f"req_{KEY}", "two words", "a\nb", "x" * 81, "\u00e9", "{}"],
    ids=range(8),
)
def test_a_reason_holds_neither_secrets_nor_what_is_no_request_id(request_id: str) -> None:
    body = {
        "error": {"type": "authentication_error", "message": f"bad key {KEY}"},
        "request_id": request_id,
    }
    error = error_from_response(401, {}, json.dumps(body).encode(), where="x", secret=KEY)
    assert error.reason == "x answered 401: bad key ***"


@pytest.mark.parametrize(
    "beta", [None, " ", "prompt-caching-2024-07-31,extended-cache-ttl-2025-04-11"]
)
async def test_a_beta_header_is_sent_only_where_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch, beta: str | None
) -> None:
    monkeypatch.delenv("ANTHROPIC_CACHE_BETA", raising=False)
    if beta is not None:
        monkeypatch.setenv("ANTHROPIC_CACHE_BETA", beta)
    async with against(opus) as (api, model):
        assert text(await ask(model)) == "You said: hi"
        wanted = beta.strip() if beta else ""
        assert [seen.headers.get("anthropic-beta", "") for seen in api.seen] == [wanted]


async def test_who_takes_no_cache_control_is_asked_without_marks_from_then_on() -> None:
    async with against(opus) as (api, model):
        marks = (
            CacheBreakpoint(behind="block", index=0, lifetime="1h"),
            CacheBreakpoint(behind="said", index=0, lifetime="5m"),
        )
        marked = replace(request(), breakpoints=marks)
        api.then(said("system.0.cache_control: Extra inputs are not permitted"))
        assert text(await ask(model, marked)) == text(await ask(model, marked)) == "You said: hi"
        assert ["cache_control" in json.dumps(seen.body) for seen in api.seen] == [
            True,
            False,
            False,
        ]
        api.then(said("cache_control is still not taken"))
        with pytest.raises(RequestRefused):
            await ask(model, marked)
        assert len(api.seen) == 4


BILLED: dict[str, Any] = {
    "input_tokens": 3,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 5},
    "output_tokens": 5,
}


@pytest.mark.parametrize(
    ("told", "hour"),
    [(BILLED, 5), (BILLED | {"cache_creation": None}, 0), (BILLED | {"cache_creation": {}}, 0)],
)
async def test_usage_is_cumulative_and_does_not_overlap(told: dict[str, Any], hour: int) -> None:
    async with against(other) as (api, model):
        api.then(Answer(text="hi", usage=told))
        expected = Usage(
            input_tokens=3,
            cache_read_tokens=90,
            cache_write_tokens=7,
            cache_write_1h_tokens=hour,
            output_tokens=5,
        )
        assert end(await ask(model)).usage == expected


@pytest.mark.parametrize(
    ("told", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("pause_turn", "end"),
        ("max_tokens", "length"),
        ("refusal", "refused"),
        ("tool_use", "end"),
        ("new", "end"),
    ],
)
async def test_stop_reasons(told: str, stop: str) -> None:
    async with against(other) as (api, model):
        api.then(Answer(text="hi", stop=told), Answer(stop=told))
        assert end(await ask(model)).stop_reason == stop
        assert [type(chunk).__name__ for chunk in await ask(model)] == ["StreamEnd"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", ModelBusy),
        ("api_error", ModelBusy),
        ("timeout_error", ModelBusy),
        ("rate_limit_error", ModelBusy),
        ("invalid_request_error", RequestRefused),
        ("request_too_large", PromptTooLong),
        ("authentication_error", ModelUnusable),
        ("billing_error", ModelUnusable),
        ("never_seen", ModelBusy),
    ],
)
@pytest.mark.parametrize("after", [0, 4, 6])
async def test_an_error_after_200(kind: str, expected: type[ModelError], after: int) -> None:
    async with against(other) as (api, model):
        api.then(Answer(text="hi, and more than a piece", error_after=(after, kind)))
        with pytest.raises(expected):
            await ask(model)
        assert len(api.seen) == 1


"""Start, ping, one that nobody knows, the text's three, delta and stop."""


async def test_halves_of_a_character_are_joined_and_one_alone_is_replaced() -> None:
    async with against(other) as (api, model):
        api.then(
            Answer(text="eleven char\ud83e\udde9 and\ud83e that, to here: \ud83e")
        )  # cut every twelve
        chunks = await ask(model)
        assert text(chunks) == "eleven char\U0001f9e9 and\ufffd that, to here: \ufffd"
        assert all(chunk.text.encode() for chunk in chunks if isinstance(chunk, TextPart))
        api.then(
            Answer(
                calls=(("a", "look_up", '{"word": "cut \\\\ud83d and \\ud83d, \\ud83e\\udde9"}'),)
            )
        )
        called = [
            chunk
            for chunk in await ask(model, request(tools=(TOOL,)))
            if isinstance(chunk, ToolCall)
        ]
        assert json.loads(called[0].arguments) == {"word": "cut \\ud83d and \ufffd, \U0001f9e9"}


async def test_an_event_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with against(other) as (api, model):
        odd = {"type": "text", "text": ["no", "text"]}
        api.then(Answer(content=(odd,), text="Hello."), Answer(content=(odd,)))
        assert text(await ask(model)) == "Hello."
        assert "1 events that cannot be read" in caplog.text
        with pytest.raises(AnswerUnreadable):
            await ask(model)


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
    return model_api_rules.check(body | told) is not None


@pytest.mark.parametrize("model", MODELS)
def test_what_the_table_lets_through_is_taken_and_what_it_refuses_is_refused(model: str) -> None:
    assert messages_prompt.known(model)
    for effort, thinking in product(EFFORTS, THINKING):
        if found := find_unsupported_setting(model, effort, thinking):
            literal = (
                {}
                if thinking == "default"
                else {"thinking": {"type": thinking.replace("off", "disabled")}}
            )
            assert refused(
                model, literal | ({"output_config": {"effort": effort}} if effort else {})
            )
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
    assert build_options("claude-opus-4-8", "low", "off") == {
        "output_config": {"effort": "low"}
    }  # it does not think
    assert build_options("claude-haiku-5-5", None, "off") == {"thinking": {"type": "disabled"}}
    assert build_options("claude-sonnet-5-5", "low", "between_tools") == {
        "output_config": {"effort": "low"},
        "thinking": {"type": "between_tools"},
    }
    assert build_options("new", "max", "off") == {
        "output_config": {"effort": "max"},
        "thinking": {"type": "disabled"},
    }


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
            (
                "claude-sonnet-5-5 always thinks; leave thinking out or write between_tools for the "
                "least of it"
            ),
        ),
        (
            "claude-sonnet-5-5",
            "max",
            "between_tools",
            (
                "claude-sonnet-5-5 takes thinking: between_tools up to effort high only; lower effort "
                "or leave it out"
            ),
        ),
        (
            "claude-haiku-5-5",
            None,
            "between_tools",
            "claude-haiku-5-5 does not know thinking: between_tools; leave thinking out",
        ),
        (
            "claude-haiku-4-5",
            "low",
            "default",
            "claude-haiku-4-5 has no effort 'low'; leave effort out",
        ),
        (
            "claude-opus-4-6",
            "xhigh",
            "default",
            "claude-opus-4-6 has no effort 'xhigh'; write one of low, medium, high, max",
        ),
    ],
)
def test_what_a_wrong_setting_is_told(
    model: str, effort: Effort | None, thinking: ThinkingMode, message: str
) -> None:
    asked = ModelConfig(provider="a", name=model, effort=effort, thinking=thinking)
    field = "effort" if "has no effort" in message else "thinking"
    provider = AnthropicConfig(kind="anthropic")
    assert check_models({"main": asked}, {"a": provider}) == [(("models", "main", field), message)]
    with pytest.raises(ValueError, match=r"llm\.models\.main"):
        build_model("main", {"main": asked}, {"a": provider}, ManualClock())
    with pytest.raises(ValueError, match=model):
        AnthropicModel(name="main", model=model, effort=effort, thinking=thinking)


async def test_every_request_says_the_same_of_thinking_so_that_the_cache_is_one() -> None:
    async with ModelApi() as api, asyncio.timeout(120):
        config = ModelConfig(provider="a", name="claude-haiku-5-5", effort="low", thinking="off")
        provider = AnthropicConfig.model_validate(
            {"kind": "anthropic", "base_url": api.url, "api_key": KEY}
        )
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


def thinks(ident: str = "", words: str = "Let me see.") -> Answer:
    """Two calls, or the one with this id."""
    asked = (
        ((ident, "look_up", "{}"),) if ident else tuple((c.id, c.name, c.arguments) for c in CALLS)
    )
    return Answer(text=words, calls=asked, thinking="hmm")


def kinds(seen: Seen, place: int = -1) -> list[str]:
    """Of the blocks of an assistant's message."""
    content = [m["content"] for m in seen.body["messages"] if m["role"] == "assistant"][place]
    return [block["type"] for block in content]


def again(before: ModelRequest, ident: str) -> ModelRequest:
    """Go on with the loop."""
    call = ToolCall(id=ident, name="look_up", arguments="{}")
    said = ModelMessage(role="assistant", parts=(TextPart(text="Let me see."), call))
    done = ModelMessage(role="user", parts=(ToolResult(id=ident, text="found"),))
    return replace(before, conversation=(*before.conversation, said, done))


async def test_a_tool_loop_sends_thinking_back_verbatim() -> None:
    async with against(opus) as (api, model):
        api.then(thinks())
        chunks = await ask(model, request(user("hi"), tools=(TOOL,)))
        assert (text(chunks), tuple(chunks[-3:-1]), end(chunks).stop_reason) == (
            "Let me see.",
            CALLS,
            "tools",
        )
        for _ in range(2):
            assert end(await ask(model, request(*LOOP, tools=(TOOL,)))).stop_reason == "end"
        assert api.seen[0].message is not None
        for seen in api.seen[1:]:
            assert seen.body["messages"][1]["content"] == api.seen[0].message["content"]
            assert kinds(seen) == ["thinking", "text", "tool_use", "tool_use"]
            results = seen.body["messages"][2]["content"]
            assert [b["type"] for b in results] == ["tool_result", "tool_result", "text"]
            assert results[1]["is_error"] is True
        assert not api.violations


@pytest.mark.parametrize(
    "change", [{"words": "Other words."}, {"first": "edited"}, {"tool": "Look up two words."}]
)
async def test_thinking_is_left_out_once_what_it_is_bound_to_has_changed(
    change: dict[str, str],
) -> None:
    async with against(opus) as (api, model):
        api.then(thinks())
        await ask(model, request(user("hi"), tools=(TOOL,)))
        said = (user(change.get("first", "hi")), calls(change.get("words", "Let me see.")), RESULTS)
        await ask(
            model,
            request(
                *said, tools=(replace(TOOL, description=change.get("tool", TOOL.description)),)
            ),
        )
        assert kinds(api.seen[-1]) == ["text", "tool_use", "tool_use"]


BOUND = "The block is bound to a different conversation. Remove the block, or set more."


@pytest.mark.parametrize(
    "complaint",
    [
        f"messages.1.content.0: Invalid `signature` in `thinking` block. {BOUND}",
        f"messages.1.content.0: Invalid `signature` in `redacted_thinking` block. {BOUND}",
        (
            "messages.1: `thinking` or `redacted_thinking` blocks in the latest assistant message "
            "cannot be modified."
        ),
    ],
)
async def test_what_the_api_does_not_take_back_is_left_out_for_the_rest_of_the_loop(
    complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with against(opus) as (api, model):
        body = json.dumps(
            {"type": "error", "error": {"type": "invalid_request_error", "message": complaint}}
        )
        first = request(user("hi"), tools=(TOOL,))
        api.then(thinks("a"), Answer(status=400, body=body.encode()), thinks("b"))
        with caplog.at_level(logging.INFO):
            await ask(model, first)
            assert end(await ask(model, again(first, "a"))).stop_reason == "tools"
            await ask(model, again(again(first, "a"), "b"))
        assert [kinds(seen)[0] for seen in api.seen[1:]] == ["thinking", "text", "text"]
        assert (
            len([r for r in caplog.records if "does not take its thinking back" in r.getMessage()])
            == 1
        )
        new = replace(first, conversation=(user("hi", "and this"),))
        api.then(thinks("c"))  # another loop thinks again
        await ask(model, new)
        await ask(model, again(new, "c"))
        assert kinds(api.seen[-1])[0] == "thinking"
        later = replace(first, conversation=(*LOOP, assistant("ok"), user("more")))
        api.then(replace(thinks(), calls=thinks("d").calls))  # also behind the one that does not
        await ask(model, later)
        await ask(model, again(later, "d"))
        assert kinds(api.seen[-1])[0] == "thinking"
        assert not api.violations


async def test_a_loop_whose_older_results_are_shortened_is_refused_once_and_thinks_on() -> None:
    async with against(opus) as (api, model):
        first = request(user("hi"), tools=(TOOL,))
        api.then(*map(thinks, "abcd"))
        await ask(model, first)
        await ask(model, again(first, "a"))
        before = again(again(first, "a"), "b")
        shorter = ModelMessage(role="user", parts=(ToolResult(id="a", text="[cut]"),))
        before = replace(
            before, conversation=(*before.conversation[:2], shorter, *before.conversation[3:])
        )
        await ask(model, before)
        await ask(model, again(before, "c"))
        await ask(model, again(again(before, "c"), "d"))
        assert (len(api.seen), len(api.violations)) == (6, 1)
        sent = [kinds(api.seen[-1], place)[0] for place in range(4)]
        assert sent == ["text", "text", "thinking", "thinking"]


@pytest.mark.parametrize("now", ["", "It is late."])
async def test_a_loop_reads_what_it_wrote_and_the_next_turn_what_was_in_front_of_it(
    now: str,
) -> None:
    """Marks as a plan sets them: behind the newest words, and where the request before was
    marked."""

    def asked(*said: ModelMessage, now: str = now) -> ModelRequest:
        behind = (len(said) - 1, len(said) - 3) if len(said) > 1 else (0,)
        marks = tuple(
            CacheBreakpoint(behind="said", index=place, lifetime="5m") for place in sorted(behind)
        )
        return replace(request(*said, tools=(TOOL,)), breakpoints=marks, now=now)

    cache = MessagesCache(lambda text: len(text) // 4 + 1)
    async with ModelApi(cache=cache, clock=lambda: 0.0) as api, asyncio.timeout(120):
        model = opus(api.url)
        hello = user("hello " * 1000)
        api.then(thinks("a"), thinks("b"), Answer(text="Done."))
        first = asked(hello)
        loops = [first.conversation]
        for ident in ("a", "b"):
            loops.append(again(replace(first, conversation=loops[-1]), ident).conversation)
        billed = [end(await ask(model, asked(*said))).usage for said in loops]
        billed.append(
            end(await ask(model, asked(hello, assistant("Done."), user("thanks"), now=""))).usage
        )
        await model.aclose()
        read = [usage.cache_read_tokens for usage in billed]
        written = [usage.cache_write_tokens for usage in billed]
        assert read[0] == 0
        assert read[1] == written[0] > 1500
        assert read[2] == read[1] + written[1]
        assert read[3] == written[0]
        assert not api.violations


@pytest.mark.parametrize(
    "last", [{"type": "thinking"}, {"type": "fallback"}, {"type": "text", "text": ""}]
)
def test_what_takes_no_mark_gets_none(last: Json) -> None:
    content: tuple[Json, ...] = ({"type": "thinking"}, {"type": "text", "text": "words"}, last)
    thought = ThinkingAnswer(
        suffix=RequestSuffix(), text="Let me see.", calls=CALLS, content=content
    )
    asked = replace(
        request(*LOOP), breakpoints=(CacheBreakpoint(behind="said", index=1, lifetime="5m"),)
    )
    assert marks(
        dict(build_anthropic_request(asked, model="m", recall=lambda _: thought).body)
    ) == [("words", "5m")]
    bare = replace(thought, content=content[:1])
    assert marks(dict(build_anthropic_request(asked, model="m", recall=lambda _: bare).body)) == []
