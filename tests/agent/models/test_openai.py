"""Chat completions (platform.openai.com/docs/api-reference/chat), with what compatible servers do,
and thinking."""

import itertools
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from agent.models.base import (
    CacheBreakpoint,
    ModelBusy,
    ModelMessage,
    ModelUnusable,
    RequestRefused,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.models.config import build_model
from agent.models.openai import (
    ChatCompletionChunk,
    ChatCompletionResponse,
    OpenAIDialect,
    OpenAIModel,
    build_chat_request,
    find_dialect,
)
from agent.models.settings import ModelConfig
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from gateway.core.tool_spec import ToolCall
from reverie.testing.servers.model_api import Answer, ModelApi
from reverie.testing.servers.model_api_rules import mistral
from tests.kits.models import (
    BLOCKS,
    TOOL,
    against,
    ask,
    assistant,
    chat_body,
    end,
    make,
    parse_provider,
    request,
    text,
    user,
)

RESULT = ToolResult(id="c", text="found")


def client(url: str) -> OpenAIModel:
    model = make("openai", url)
    assert isinstance(model, OpenAIModel)
    return model


async def test_a_request_on_the_wire() -> None:
    async with against(client) as (api, model):
        said = (user("hi"), assistant("hello"), user("stable", "volatile"))
        assert (
            text(await ask(model, request(*said, tools=(TOOL,)))) == "You said: stable\n\nvolatile"
        )
        seen = api.seen[0]
        assert seen.path == "/v1/chat/completions"
        assert seen.headers["authorization"].startswith("Bearer sk-")
        assert [m["role"] for m in seen.body["messages"]] == ["system", "user", "assistant", "user"]
        assert seen.body["messages"][0]["content"].startswith("You are Reverie.\n\nYou can look")
        assert seen.body["tools"][0]["function"]["parameters"] == {
            "properties": {},
            "type": "object",
        }
        assert seen.body["max_tokens"] == 100
        assert "prompt_cache_key" not in seen.body


def refused(message: str, param: str | None = None) -> Answer:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return Answer(status=400, body=json.dumps({"error": error}).encode())


UNSUPPORTED = "Unsupported parameter: '{}' is not supported with this model. Use '{}' instead."
OTHER = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}


@pytest.mark.parametrize(
    "message",
    [
        UNSUPPORTED,
        "Unrecognized request argument supplied: {}",
        "{}: Extra inputs are not permitted",
    ],
)
@pytest.mark.parametrize("field", OTHER)
async def test_the_limit_is_sent_in_the_field_that_the_server_takes(
    field: str, message: str
) -> None:
    async with against(client, strict=False) as (api, model):
        wrong = refused(message.format(field, OTHER[field]), field)
        api.default = lambda body: wrong if field in body else Answer(text="Hello.")
        assert isinstance(model, OpenAIModel)
        model._dialect = OpenAIDialect(takes_max_completion_tokens=field == "max_completion_tokens")
        assert text(await ask(model)) == text(await ask(model)) == "Hello."
        assert [field in seen.body for seen in api.seen] == [True, False, False]
        assert all(seen.body[OTHER[field]] == 100 for seen in api.seen[1:])


async def test_other_fields_that_are_refused_are_left_out_and_needed_ones_are_not() -> None:
    async with against(client) as (api, model):
        api.then(refused("Unsupported parameter: 'stream_options'", "stream_options"))
        assert text(await ask(model)) == text(await ask(model)) == "You said: hi"
        assert ["stream_options" in seen.body for seen in api.seen] == [True, False, False]
        api.then(refused("Unsupported parameter: 'messages'", "messages"))
        with pytest.raises(RequestRefused):
            await ask(model)
        api.then(
            *[
                refused(
                    "max_tokens is too large: 100. This model takes at most 10 completion tokens"
                )
            ]
            * 3
        )
        with pytest.raises(RequestRefused):
            await ask(model)
        assert len(api.seen) == 5
        assert "max_tokens" in api.seen[-1].body


@pytest.mark.parametrize(
    ("host", "field"),
    [
        ("api.openai.com", "max_completion_tokens"),
        ("eu.api.openai.com", "max_completion_tokens"),
        ("api.openai.com:443", "max_completion_tokens"),
        ("api.openai.com.example.org", "max_tokens"),
        ("notapi.openai.com", "max_tokens"),
    ],
)
async def test_regional_hosts_are_openai_itself(
    host: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with against(client, strict=False) as (api, _):
        # A real proxy request over plain HTTP: the name stays in the URL, the bytes come to the
        # fake server.
        monkeypatch.setenv("http_proxy", api.url.removesuffix("/v1"))
        model = client(f"http://{host}/v1")
        try:
            assert text(await ask(model))
        finally:
            await model.aclose()
        assert field in api.seen[-1].body


@pytest.mark.parametrize("key", ["", "none"])
async def test_no_key_is_sent_if_there_is_none(key: str) -> None:
    async with ModelApi() as api:
        provider = parse_provider({"kind": "openai", "base_url": f"{api.url}/v1", "api_key": key})
        models = {"main": ModelConfig(provider="p", name="m")}
        async with aclosing(build_model("main", models, {"p": provider}, ManualClock())) as model:
            await ask(model)
        assert "authorization" not in api.seen[0].headers


async def test_a_tool_loop() -> None:
    async with against(client) as (api, model):
        calls = (("a", "look_up", '{"word": "naïve, and longer"}'), ("b", "look_up", "{}"))
        api.then(Answer(text="Let me see.", calls=calls, thinking="hmm"))
        chunks = await ask(model, request(tools=(TOOL,)))
        assert text(chunks) == "Let me see."
        asked = tuple(ToolCall(id=i, name=n, arguments=a) for i, n, a in calls)
        assert tuple(chunks[-3:-1]) == asked
        assert end(chunks).stop_reason == "tools"
        results = ModelMessage(
            role="user",
            parts=(*(ToolResult(id=c.id, text="ok") for c in asked), TextPart(text="now answer")),
        )
        follow = request(
            user("hi"), ModelMessage(role="assistant", parts=asked), results, tools=(TOOL,)
        )
        assert end(await ask(model, follow)).stop_reason == "end"
        roles = [m["role"] for m in api.seen[1].body["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "tool", "user"]
        assert api.seen[1].body["messages"][2]["content"] == ""


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 60},
            },
            Usage(input_tokens=40, cache_read_tokens=60, output_tokens=7),
        ),
        (
            {
                "prompt_tokens": 100,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
            },
            Usage(input_tokens=10, cache_read_tokens=60, cache_write_tokens=30),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_cache_hit_tokens": 4,
                "completion_tokens": 1,
                "prompt_tokens_details": None,
            },
            Usage(input_tokens=5, cache_read_tokens=4, output_tokens=1),
        ),
        ({}, Usage()),
    ],
)
async def test_usage_does_not_overlap(told: dict[str, object], expected: Usage) -> None:
    async with against(client) as (api, model):
        api.then(Answer(text="hi", usage=told))
        assert end(await ask(model)).usage == expected


def test_usage_in_the_last_choice_as_kimi_tells_it() -> None:
    incoming = ChatCompletionResponse(model="kimi-k2")
    told = {"prompt_tokens": 100, "completion_tokens": 7, "cached_tokens": 60}
    choice = {"delta": {}, "finish_reason": "stop", "usage": told}
    incoming.add_chunk(ChatCompletionChunk.model_validate({"choices": [choice]}))
    usage = incoming.build_end().usage
    assert usage == Usage(input_tokens=40, cache_read_tokens=60, output_tokens=7)


@pytest.mark.parametrize(
    ("told", "stop"),
    [
        ("stop", "end"),
        ("length", "length"),
        ("content_filter", "refused"),
        ("tool_calls", "end"),
        ("new", "end"),
    ],
)
async def test_finish_reasons(told: str, stop: str) -> None:
    async with against(client) as (api, model):
        api.then(Answer(text="hi", stop=told))
        assert end(await ask(model)).stop_reason == stop


@pytest.mark.parametrize("why", ["error", "abort", "insufficient_system_resource"])
async def test_an_answer_that_the_server_broke_off_is_not_whole(why: str) -> None:
    async with against(client) as (api, model):
        api.then(Answer(text="Half an ans", stop=why))
        with pytest.raises(ModelBusy):
            await ask(model)


async def test_mistral_gets_short_ids_and_an_answer_between_results_and_words() -> None:
    async with against(client) as (api, model):
        api.rule = mistral
        asked = ModelMessage(
            role="assistant", parts=(ToolCall(id="call_1", name="look_up", arguments="{}"),)
        )
        found = ModelMessage(
            role="user", parts=(ToolResult(id="call_1", text="ok"), TextPart(text="and this?"))
        )
        for said in ((user("hi"), asked, found), (user("hi"), asked, found, assistant("Yes.")) * 2):
            await ask(model, request(*said, tools=(TOOL,)))
        first, second = (
            [message["role"] for message in seen.body["messages"]] for seen in api.seen[-2:]
        )
        assert first == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert second[: len(first)] == first
        assert len(api.seen) == 4


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", ModelBusy),
        ("authentication_error", ModelUnusable),
        ("never_seen", ModelBusy),
    ],
)
async def test_an_error_inside_the_stream(kind: str, expected: type[Exception]) -> None:
    async with against(client) as (api, model):
        api.then(Answer(text="hi", error_after=(3, kind)))
        with pytest.raises(expected):
            await ask(model)


def test_calls_without_index_or_id_as_some_servers_send_them() -> None:
    incoming = ChatCompletionResponse(model="m")
    for call in (
        '{"id":"x","function":{"name":"a","arguments":"{"}}',
        '{"function":{"arguments":"}"}}',
        '{"id":"y","function":{"name":"b","arguments":null}}',
        '{"id":"","function":{"name":"c","arguments":"{}"}}',
    ):
        incoming.add_chunk(
            ChatCompletionChunk.model_validate_json(
                '{"choices":[{"delta":{"tool_calls":[' + call + "]}}]}"
            )
        )
    incoming.add_chunk(
        ChatCompletionChunk.model_validate_json('{"choices":[{"delta":{},"finish_reason":"stop"}]}')
    )
    assert incoming.tool_calls(()) == [
        ToolCall(id="x", name="a", arguments="{}"),
        ToolCall(id="y", name="b", arguments="{}"),
        ToolCall(id="call_2", name="c", arguments="{}"),
    ]
    assert incoming.build_end().stop_reason == "tools"
    nameless = ChatCompletionResponse(model="m")
    nameless.add_chunk(
        ChatCompletionChunk.model_validate_json(
            '{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a"}}]}}]}'
        )
    )
    assert nameless.tool_calls(LOOP) == [ToolCall(id="call_1", name="a", arguments="{}")]


@pytest.mark.parametrize(
    "written", ["", '{"a', "[1]", "null", '{"a": NaN}', '{"a": 1e999}', "[" * 99999]
)
def test_arguments_that_are_no_object_are_echoed_as_one(written: str) -> None:
    call = ToolCall(id="c", name="look_up", arguments=written)
    asked = request(
        user("hi"),
        ModelMessage(role="assistant", parts=(call,)),
        ModelMessage(role="user", parts=(RESULT,)),
    )
    echoed = chat_body(asked)["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(echoed), dict)
    assert written in json.loads(echoed).values() or not written


def test_good_arguments_are_echoed_byte_for_byte() -> None:
    call = ToolCall(id="c", name="look_up", arguments='{ "a":1.50, "b": "é" }')
    asked = request(
        user("hi"),
        ModelMessage(role="assistant", parts=(call,)),
        ModelMessage(role="user", parts=(RESULT,)),
    )
    echoed = chat_body(asked)["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert echoed == call.arguments


def test_a_refusal_is_told_as_one() -> None:
    incoming = ChatCompletionResponse(model="m")
    told = incoming.add_chunk(
        ChatCompletionChunk.model_validate_json('{"choices":[{"delta":{"refusal":"I cannot."}}]}')
    )
    incoming.add_chunk(
        ChatCompletionChunk.model_validate_json('{"choices":[{"delta":{},"finish_reason":"stop"}]}')
    )
    assert (told, incoming.build_end().stop_reason) == ("I cannot.", "refused")


PLAIN = OpenAIDialect()
MARKS = (
    CacheBreakpoint(behind="block", index=1, lifetime="1h"),
    CacheBreakpoint(behind="block", index=3, lifetime="5m"),
    CacheBreakpoint(behind="said", index=2, lifetime="5m"),
)
CALL = ToolCall(id="c", name="look_up", arguments="{}")
LOOP = (
    ModelMessage(role="assistant", parts=(CALL,)),
    ModelMessage(
        role="user", parts=(ToolResult(id="c", text="found"), ToolResult(id="d", text=""))
    ),
)


def wire(asked: Any, dialect: OpenAIDialect = PLAIN) -> list[dict[str, Any]]:
    return list(chat_body(asked, dialect=dialect)["messages"])


def breakpoints(messages: list[dict[str, Any]]) -> list[tuple[int, int, str]]:
    return [
        (place, part, piece["prompt_cache_breakpoint"]["ttl"])
        for place, message in enumerate(messages)
        if isinstance(message["content"], list)
        for part, piece in enumerate(message["content"])
        if "prompt_cache_breakpoint" in piece
    ]


def words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(piece["text"] for piece in content)


@pytest.mark.parametrize(
    ("where", "model", "expected"),
    [
        ("api.openai.com", "gpt-5.6-terra", (True, True)),
        ("eu.api.openai.com:443", "gpt-6.1-sol", (True, True)),
        ("api.openai.com", "gpt-6-astra", (True, True)),
        ("api.openai.com", "gpt-10", (True, True)),
        ("api.openai.com", "gpt-5.5", (True, False)),
        ("api.openai.com", "gpt-5", (True, False)),
        ("api.openai.com", "gpt-4o", (True, False)),
        ("127.0.0.1:8000", "gpt-6-astra", (False, False)),
        ("api.openai.com.example.org", "gpt-6-astra", (False, False)),
        ("openrouter.ai", "anthropic/claude-sonnet-5.5", (False, True)),
        ("openrouter.ai", "openai/gpt-6-astra", (False, False)),
    ],
)
def test_who_is_told_what_to_cache(where: str, model: str, expected: tuple[bool, bool]) -> None:
    dialect = find_dialect(where, model)
    assert (dialect.is_openai, dialect.takes_breakpoints) == expected


def test_marks_become_breakpoints_and_only_those_are_written() -> None:
    said = (user("hi"), assistant("hello"), user("and", "you?"))
    asked = replace(request(*said), breakpoints=MARKS, now="It is late.")
    dialect = OpenAIDialect(is_openai=True, takes_breakpoints=True)
    assert build_chat_request(asked, model="m", dialect=dialect)["prompt_cache_options"] == {
        "mode": "explicit"
    }
    messages = wire(asked, dialect)
    assert breakpoints(messages) == [(0, 1, "12h"), (0, 3, "30m"), (3, 1, "30m")]
    assert messages[3]["content"][2]["text"].strip() == "It is late."
    unmarked = replace(asked, breakpoints=())
    assert "prompt_cache_options" not in build_chat_request(unmarked, model="m", dialect=dialect)
    assert [words(m["content"]) for m in wire(unmarked, dialect)] == [
        words(m["content"]) for m in wire(asked)
    ]
    assert breakpoints(wire(asked)) == []
    routed = wire(asked, OpenAIDialect(takes_breakpoints=True))
    marked = [piece.pop("cache_control", None) for piece in routed[0]["content"]]
    assert [mark and mark["ttl"] for mark in marked] == [None, "1h", None, "5m"]
    assert [words(m["content"]) for m in routed] == [words(m["content"]) for m in messages]


@pytest.mark.parametrize("dialect", [PLAIN, OpenAIDialect(is_openai=True, takes_breakpoints=True)])
def test_identity_in_the_first_user_message(dialect: OpenAIDialect) -> None:
    dialect = replace(dialect, identity_in="user")
    said = (user("hi"), assistant("hello"), user("and you?"))
    short, long = (wire(request(*said[:size]), dialect) for size in (1, 3))
    assert [m["role"] for m in long] == ["user", "assistant", "user"]
    assert words(long[0]["content"]) == "\n\n".join([*(block.text for block in BLOCKS), "hi"])
    assert long[:1] == short


@pytest.mark.parametrize("identity_in", ["system", "user"])
def test_there_is_always_a_user_and_he_is_last(identity_in: Any) -> None:
    dialect = OpenAIDialect(identity_in=identity_in)
    for said in ((), (user("hi"), assistant("hello")), (assistant("hello"),), (user("hi"), *LOOP)):
        messages = wire(replace(request(), conversation=said), dialect)
        assert any(m["role"] == "user" for m in messages)
        assert messages[-1]["role"] in {"user", "tool"}
        assert all(isinstance(m["content"], str) for m in messages)
        assert [m["role"] for m in messages[1:]].count("system") == 0
        roles = [m["role"] for m in messages]
        assert all(a != b or a == "tool" for a, b in itertools.pairwise(roles))
        assert sum(BLOCKS[0].text in m["content"] for m in messages) == 1


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("Hello.", "Hello."),
        ("<think>hm</think>Hello.", "Hello."),
        ("\n<think>\nhm, <b>\n</think>\n\nHello.\n", "Hello.\n"),
        ("<think></think><think>again</think> Hello.", "Hello."),
        ("[THINK]hm[/THINK]Hello.", "Hello."),
        ("<think>never ended", ""),
        ("<think>", ""),
        ("<thinner", "<thinner"),
        ("<th", "<th"),
        ("Write `</think>` to end it.", "Write `</think>` to end it."),
        ("It begins with <think> there.", "It begins with <think> there."),
        ("hm, hm\n</think>\n\nHello.", "Hello."),
        ("hm</think>", ""),
        ("hm[/THINK]Hello.", "Hello."),
        (
            "<|channel|>analysis<|message|>hm<|end|><|channel|>final<|message|>Hello.<|return|>",
            "Hello.",
        ),
        ("<|im_start|>assistant\nHello.<|im_end|>\n", "Hello."),
        ("Hello.</s>", "Hello."),
        ("It ends with `</s>`", "It ends with `</s>`"),
        ("</s>", "</s>"),
    ],
)
async def test_thinking_in_the_text_is_no_answer(told: str, words: str) -> None:
    async with against(client) as (api, model):
        api.then(Answer(deltas=tuple({"content": char} for char in told), text=""))
        chunks = await ask(model)
        assert text(chunks) == words
        assert not isinstance(chunks[0], TextPart)
        assert len(api.seen) == 1


async def test_arguments_may_come_as_an_object() -> None:
    called = {"index": 0, "id": "a", "function": {"name": "look_up", "arguments": {"q": "tea"}}}
    async with against(client) as (api, model):
        api.then(Answer(deltas=({"tool_calls": [called]},), text="", stop="tool_calls"))
        calls = [
            one for one in await ask(model, request(tools=(TOOL,))) if isinstance(one, ToolCall)
        ]
        assert [json.loads(one.arguments) for one in calls] == [{"q": "tea"}]


def chunk(**delta: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("deltas", "known"),
    [
        ([{"reasoning_content": "a"}, {"reasoning_content": "b"}], {"reasoning_content": "ab"}),
        ([{"reasoning_content": "a", "reasoning": "a"}], {"reasoning_content": "a"}),
        ([{"reasoning_content": "", "reasoning": "a"}], {"reasoning": "a"}),
        (
            [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}],
            {"reasoning": "a"},
        ),
        (
            [
                {"reasoning": "a", "reasoning_details": [{"type": "x", "data": "1"}]},
                {"reasoning_details": [{"b": 2}]},
            ],
            {"reasoning_details": [{"type": "x", "data": "1"}, {"b": 2}]},
        ),
        ([{"reasoning": {"odd": 1}, "reasoning_details": "odd"}], {}),
        ([{"content": "hi"}], {}),
    ],
)
def test_three_fields_one_thought(
    deltas: list[dict[str, object]], known: dict[str, object]
) -> None:
    answer = ChatCompletionResponse(model="m")
    assert "".join(
        answer.add_chunk(ChatCompletionChunk.model_validate_json(chunk(**delta)))
        for delta in deltas
    ) in {
        "",
        "hi",
    }
    assert answer.thinking() == known


THINKING_CALL = ToolCall(id="a", name="look_up", arguments="{}")
THINKING_LOOP = (
    user("hi"),
    ModelMessage(role="assistant", parts=(TextPart(text="Let me see."), THINKING_CALL)),
    ModelMessage(role="user", parts=(ToolResult(id="a", text="found"),)),
)


async def test_thinking_goes_back_within_its_tool_loop_only() -> None:
    async with against(lambda url: make("openai", url)) as (api, model):
        api.then(Answer(text="Let me see.", thinking="hm", calls=(("a", "look_up", "{}"),)))
        chunks = await ask(model, request(tools=(TOOL,)))
        assert text(chunks) == "Let me see."
        loop = (
            THINKING_LOOP[0],
            replace(THINKING_LOOP[1], thinking=end(chunks).thinking),
            THINKING_LOOP[2],
        )
        assert end(await ask(model, request(*loop, tools=(TOOL,)))).ephemeral_from == 1
        assert api.seen[1].body["messages"][2]["reasoning_content"] == "hm"
        later = (*loop, assistant("It is there."), user("thanks"))
        assert end(await ask(model, request(*later, tools=(TOOL,)))).ephemeral_from is None
        async with aclosing(OpenAIModel(name="other", model="m-2", base_url=api.url)) as other:
            await ask(other, request(*loop, tools=(TOOL,)))
        for seen in api.seen[2:]:
            assert "reasoning_content" not in seen.body["messages"][2]


@pytest.mark.parametrize(
    "demand",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        (
            "thinking is enabled but reasoning_content is missing in assistant tool call message at "
            "index 2"
        ),
        {
            "message": "Provider returned error",
            "metadata": {"raw": "The reasoning_content must be passed back"},
        },
    ],
)
async def test_thinking_that_a_server_demands_goes_with_every_answer_from_then_on(
    demand: object,
) -> None:
    async with against(lambda url: make("openai", url)) as (api, model):
        body = json.dumps(
            {"error": {"message": demand} if isinstance(demand, str) else demand}
        ).encode()
        api.then(Answer(status=400, body=body))
        later = request(*THINKING_LOOP, assistant("It is there."), user("thanks"), tools=(TOOL,))
        assert end(await ask(model, later)).ephemeral_from is None
        for message in api.seen[1].body["messages"]:
            assert (message["role"] == "assistant") == bool(message.get("reasoning_content"))
        api.then(Answer(status=400, body=body))
        with pytest.raises(RequestRefused):  # it has what it demands, so there is nothing to change
            await ask(model, later)


def thinking_part(*texts: object) -> dict[str, object]:
    return {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": text} for text in texts]}
        ]
    }


async def test_content_in_parts_as_mistrals_reasoning_models_write_it() -> None:
    async with against(client) as (api, model):
        parts = {"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo. "}]}
        api.then(
            Answer(deltas=(thinking_part("h", "m"), thinking_part("!"), parts), text="How are you?")
        )
        chunks = await ask(model)
        assert text(chunks) == "Hello. How are you?"
        assert "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingDelta)) == "hm!"


ODD: tuple[Any, ...] = (
    {"content": "a", "tool_calls": "none"},
    {"tool_calls": [7]},
    {"tool_calls": [{"index": "x"}]},
)


async def test_a_chunk_that_cannot_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with against(client) as (api, model):
        api.then(Answer(deltas=ODD, text="Hello."))
        assert text(await ask(model)) == "Hello."
        assert len(api.seen) == 1
        assert [record.getMessage().partition(" sent ")[2] for record in caplog.records] == [
            "3 events that cannot be read: left out of the answer"
        ]
