"""The Messages API: https://platform.claude.com/docs/en/api/messages."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import MAX_MARKS, choose_marks, tool_input
from agent.models.base import Block, Busy, Malformed, Model, ModelError, Said, Text, ToolCall, ToolResult, Unusable
from gateway.events import Usage
from tests.agent.models_kit import BLOCKS, KEY, TOOL, against, ask, assistant, end, make, request, text, user
from tests.servers.model_api import Answer, ModelApi


def client(url: str) -> AnthropicModel:
    model = make("anthropic", url)
    assert isinstance(model, AnthropicModel)
    return model


def marks(body: dict[str, Any]) -> list[tuple[str, str]]:
    blocks = [*body.get("tools", []), *body["system"], *(b for m in body["messages"] for b in m["content"])]
    return [
        (b.get("text") or b.get("name") or b["type"], b["cache_control"]["ttl"]) for b in blocks if "cache_control" in b
    ]


def test_a_request_on_the_wire() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        said = (user("one"), user("two", " "), assistant("hello"), user("stable", "volatile"))
        assert text(await ask(model, request(*said, tools=(TOOL,)))) == "You said: stable\nvolatile"
        seen = api.seen[0]
        assert seen.path == "/v1/messages"
        assert seen.headers["x-api-key"] == KEY
        assert seen.headers["anthropic-version"] == "2023-06-01"
        assert "temperature" not in seen.body
        assert seen.body["max_tokens"] == 100
        assert seen.body["tools"][0]["input_schema"] == {"properties": {}, "type": "object"}
        assert [[b["text"] for b in m["content"]] for m in seen.body["messages"]] == [
            ["one", "two"],
            ["hello"],
            ["stable", "volatile"],
        ]
        assert marks(seen.body) == [
            ("You can look things up.", "1h"),
            ("Keep it short here.", "1h"),
            ("This is #python.", "5m"),
            ("hello", "5m"),
        ]

    against(client, story)


@given(st.integers(0, 3), st.lists(st.sampled_from(["long", "short"])), st.integers(1, 50))
def test_marks_are_at_most_four_and_in_order(tools: int, ttls: list[Any], messages: int) -> None:
    blocks = tuple(Block(name=str(i), text="x", ttl=ttl) for i, ttl in enumerate(ttls))
    chosen = choose_marks(tools=tools, blocks=blocks, messages=messages)
    order = ["1h"] * chosen.last_tool + [t for _, t in chosen.blocks] + ["5m"] * (chosen.message is not None)
    assert len(order) <= MAX_MARKS
    assert order == sorted(order, key=["1h", "5m"].index)
    assert [i for i, _ in chosen.blocks] == sorted({i for i, _ in chosen.blocks})


@pytest.mark.parametrize(
    ("tools", "blocks", "messages", "expected"),
    [
        (1, (), 1, (True, (), None)),
        (1, BLOCKS, 1, (False, ((1, "1h"), (2, "1h"), (3, "5m")), None)),
        (0, BLOCKS[:1], 3, (False, ((0, "1h"),), 1)),
        (1, BLOCKS[3:], 3, (True, ((0, "5m"),), 1)),
        (0, (BLOCKS[3], BLOCKS[0]), 1, (False, ((1, "1h"),), None)),
    ],
)
def test_where_marks_go(tools: int, blocks: tuple[Block, ...], messages: int, expected: object) -> None:
    chosen = choose_marks(tools=tools, blocks=blocks, messages=messages)
    assert (chosen.last_tool, chosen.blocks, chosen.message) == expected


CALLS = (ToolCall(id="a", name="look_up", arguments='{"word":"x"}'), ToolCall(id="b", name="look_up", arguments="{}"))
RESULTS = Said(
    role="user",
    parts=(Text(text="now answer"), ToolResult(id="a", text="ok"), ToolResult(id="b", text="failed", error=True)),
)


def loop(words: str = "Let me see.", first: str = "hi") -> tuple[Said, ...]:
    return (user(first), Said(role="assistant", parts=(Text(text=words), *CALLS)), RESULTS)


def thinks() -> Answer:
    return Answer(text="Let me see.", calls=tuple((c.id, c.name, c.arguments) for c in CALLS), thinking="hmm")


def test_a_tool_loop_sends_thinking_back_verbatim() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(thinks())
        chunks = await ask(model, request(user("hi"), tools=(TOOL,)))
        assert (text(chunks), tuple(chunks[-3:-1]), end(chunks).stop) == ("Let me see.", CALLS, "tools")
        for _ in range(2):
            assert end(await ask(model, request(*loop(), tools=(TOOL,)))).stop == "end"
        for seen in api.seen[1:]:
            content = seen.body["messages"][1]["content"]
            assert content[0] == {"type": "thinking", "thinking": "hmm", "signature": "c2lnbmVk"}
            assert [b["type"] for b in content] == ["thinking", "text", "tool_use", "tool_use"]
            results = seen.body["messages"][2]["content"]
            assert [b["type"] for b in results] == ["tool_result", "tool_result", "text"]
            assert results[1]["is_error"] is True

    against(client, story)


@pytest.mark.parametrize("change", [{"words": "Other words."}, {"first": "edited"}])
def test_thinking_is_left_out_once_what_it_is_bound_to_has_changed(change: dict[str, str]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(thinks())
        await ask(model, request(user("hi"), tools=(TOOL,)))
        await ask(model, request(*loop(**change), tools=(TOOL,)))
        assert [b["type"] for b in api.seen[1].body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]

    against(client, story)


def test_usage_is_cumulative_and_does_not_overlap() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        told = {"input_tokens": 3, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7, "output_tokens": 5}
        api.then(Answer(text="hi", usage=told))
        expected = Usage(input_tokens=3, cache_read_tokens=90, cache_write_tokens=7, output_tokens=5)
        assert end(await ask(model)).usage == expected

    against(client, story)


@pytest.mark.parametrize(
    ("told", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("pause_turn", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
        ("tool_use", "end"),
        ("new", "end"),
    ],
)
def test_stop_reasons(told: str, stop: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", stop=told), Answer(stop=told))
        assert end(await ask(model)).stop == stop
        assert [type(chunk).__name__ for chunk in await ask(model)] == ["End"]

    against(client, story)


def test_a_call_that_the_limit_cut_is_not_a_call() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(calls=(("a", "look_up", '{"wo'),), stop="max_tokens"))
        assert [type(chunk).__name__ for chunk in await ask(model, request(tools=(TOOL,)))] == ["End"]

    against(client, story)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", Busy),
        ("api_error", Busy),
        ("invalid_request_error", Malformed),
        ("authentication_error", Unusable),
        ("never_seen", Busy),
    ],
)
def test_an_error_after_200(kind: str, expected: type[ModelError]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", error_after=(4, kind)))
        with pytest.raises(expected):
            await ask(model)

    against(client, story)


@pytest.mark.parametrize(
    "written", ["", "{}", '{"a": 1}', "[1]", '{"a', '{"a": NaN}', '{"a": 1e999}', "null", "[" * 99999]
)
def test_whatever_the_model_wrote_is_echoed_as_an_object(written: str) -> None:
    read = tool_input(written)
    assert isinstance(read, dict)
    json.dumps(read, allow_nan=False)


def test_the_fake_server_bites() -> None:
    async def story(_: ModelApi, model: Model) -> None:
        for wrong in (loop()[:2], loop()[1:], (user("hi"), loop()[1], user("no result"))):
            with pytest.raises(Malformed):
                await ask(model, request(*wrong, tools=(TOOL,)))

    against(client, story)
