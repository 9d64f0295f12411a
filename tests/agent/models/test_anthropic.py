"""Requests to the Messages API, over real sockets: https://platform.claude.com/docs/en/api/messages."""

import itertools
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import build_anthropic_request, parse_tool_input
from agent.models.base import (
    CacheBreakpoint,
    Model,
    ModelMessage,
    ModelRequest,
    RequestRefused,
    TextPart,
    ToolResult,
    append_suffix,
)
from gateway.core.events import CacheTtl
from gateway.core.tool_spec import Image, ToolCall
from tests.kits.models import KEY, TOOL, against, ask, assistant, end, request, text, user
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer

OPUS = "claude-opus-5-5"
"""Takes system messages; thinks always, and is bound to what was in front of it."""
CALLS = (ToolCall(id="a", name="look_up", arguments='{"word":"x"}'), ToolCall(id="b", name="look_up", arguments="{}"))
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
        (b.get("text") or b.get("name") or b.get("tool_use_id") or b["type"], b["cache_control"]["ttl"])
        for b in blocks
        if "cache_control" in b
    ]


def marked(asked: ModelRequest, *places: tuple[Any, int, CacheTtl]) -> ModelRequest:
    return replace(asked, breakpoints=tuple(CacheBreakpoint(behind=b, index=i, lifetime=t) for b, i, t in places))


def roles(body: dict[str, Any]) -> str:
    return " ".join(message["role"] for message in body["messages"])


def test_a_request_on_the_wire() -> None:
    async def story(api: ModelApi, model: Model) -> None:
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

    against(other, story)


LOOP = (user("hi"), calls(), RESULTS)
PICTURE = Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n...", description="a picture")


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], []),
        (
            [("tools", 0, "1h"), ("block", 2, "1h"), ("block", 3, "5m"), ("said", 2, "5m")],
            [("look_up", "1h"), ("Keep it short here.", "1h"), ("This is #python.", "5m"), ("now answer", "5m")],
        ),
        ([("said", 1, "5m")], [("look_up", "5m")]),
        ([("said", 0, "1h"), ("said", 2, "5m")], [("hi", "1h"), ("now answer", "5m")]),
        ([("block", 4, "1h"), ("block", -1, "1h"), ("said", 3, "5m"), ("said", -1, "5m")], []),
    ],
)
def test_marks_are_where_the_plan_wants_them_or_nowhere(
    places: list[tuple[Any, int, CacheTtl]], expected: list[tuple[str, str]]
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        asked = replace(marked(request(*LOOP, tools=(TOOL,)), *places), now="It is late.")
        await ask(model, asked)
        assert marks(api.seen[0].body) == expected
        assert not api.violations

    against(other, story)


def test_marks_behind_what_is_merged_or_moved_or_says_nothing() -> None:
    said: tuple[ModelMessage, ...]
    said = (
        user("one"),
        user(" "),
        user("two"),
        assistant("yes"),
        ModelMessage(role="user", parts=(TextPart(text="see"), PICTURE)),
    )
    asked = marked(request(*said), ("said", 0, "1h"), ("said", 1, "1h"), ("said", 4, "5m"))
    body = build_anthropic_request(asked, model="m-1").body
    assert marks(body) == [("one", "1h"), ("image", "5m")]
    # Results go first, so the last block that they became is in front of words that were said before them.
    said = (user("hi"), calls(), user("wait"), ModelMessage(role="user", parts=RESULTS.parts[1:]))
    assert marks(build_anthropic_request(marked(request(*said), ("said", 3, "5m")), model="m-1").body) == [("b", "5m")]
    assert marks(build_anthropic_request(marked(request(user("hi")), ("tools", 0, "1h")), model="m-1").body) == []


def test_what_holds_for_one_request_is_a_system_message_behind_everything() -> None:
    async def story(api: ModelApi, model: Model) -> None:
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

    against(opus, story)


def test_or_the_users_last_words_where_the_model_takes_none() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        asked = marked(request(user("hi"), assistant("ho"), user("and?")), ("said", 2, "5m"))
        await ask(model, replace(asked, now="It is late."))
        content = api.seen[0].body["messages"][-1]["content"]
        assert [block["text"] for block in content] == ["and?", "It is late."]
        assert marks(api.seen[0].body) == [("and?", "5m")]
        assert not api.violations

    against(other, story)


def test_a_model_that_unexpectedly_takes_no_system_messages_is_asked_once_more_and_never_again_so() -> None:
    async def story(api: ModelApi, model: AnthropicModel) -> None:
        asked = replace(request(user("hi")), now="It is late.")
        assert text(await ask(model, asked)) == "You said: hi\nIt is late."
        assert text(await ask(model, asked)) == "You said: hi\nIt is late."
        assert [roles(seen.body) for seen in api.seen] == ["user system", "user", "user"]
        assert [wrong.complaint for wrong in api.violations] == ["role 'system' is not supported on this model"]

    # By its name Opus 5.5, but whoever serves it under that name does not know system messages yet.
    against(lambda url: AnthropicModel(name="main", model=f"proxy/{OPUS}", base_url=url, api_key=KEY), story)


@pytest.mark.parametrize(
    "complaint",
    [
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter',
        "messages.1.role: Input should be 'user' or 'assistant'",
    ],
)
def test_however_that_is_said_but_not_behind_words_that_were_passed_on(complaint: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": complaint}}).encode()
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
        assert [roles(seen.body) for seen in api.seen] == ["user system", "user system", "user", "user"]

    against(opus, story)


@pytest.mark.parametrize("systems", [True, False])
@pytest.mark.parametrize("said", [(), (user("hi"),), (user("hi"), assistant("ho")), LOOP])
def test_what_is_told_last_is_what_every_dialect_tells(said: tuple[ModelMessage, ...], systems: bool) -> None:
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
    "written", ["", "{}", '{"a": 1}', "[1]", '{"a', '{"a": NaN}', '{"a": 1e999}', "null", "[" * 99999]
)
def test_whatever_the_model_wrote_is_echoed_as_an_object(written: str) -> None:
    read = parse_tool_input(written)
    assert isinstance(read, dict)
    json.dumps(read, allow_nan=False)


def test_the_fake_server_bites() -> None:
    async def story(_: ModelApi, model: Model) -> None:
        for wrong in (LOOP[:2], LOOP[1:], (user("hi"), LOOP[1], user("no result"))):
            with pytest.raises(RequestRefused):
                await ask(model, request(*wrong, tools=(TOOL,)))

    against(other, story)


def test_a_loop_that_another_provider_began_goes_on_here() -> None:
    async def story(_: ModelApi, model: Model) -> None:
        call = ToolCall(id="functions.look_up:0", name="functions.look_up", arguments="")
        said = (
            ModelMessage(role="assistant", parts=(call,)),
            ModelMessage(role="user", parts=(ToolResult(id=call.id, text="ok"),)),
        )
        assert text(await ask(model, request(user("hi"), *said, tools=(TOOL,)))) == "You said: ok"

    against(opus, story)


def test_a_warm_up_reads_the_prompt_and_says_nothing() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        asked = replace(request(tools=(TOOL,)), conversation=(), max_output_tokens=0)
        chunks = await ask(model, marked(asked, ("block", 1, "1h")))
        assert (len(chunks), end(chunks).stop_reason, end(chunks).usage.output_tokens) == (1, "length", 0)
        assert end(chunks).usage.input_tokens > 0
        body = api.seen[0].body
        assert (body["max_tokens"], "stream" in body, roles(body)) == (0, False, "user")
        assert marks(body) == [("You can look things up.", "1h")]
        said = (user("hi"), assistant("ho"))
        await ask(model, marked(replace(asked, conversation=said), ("said", 1, "5m")))
        assert roles(api.seen[1].body) == "user assistant user"
        assert not api.violations

    against(opus, story)


def calls_to_write_out(messages: int) -> int:
    """Return how many functions are called to write out a request of so many messages."""
    said = tuple(user(f"{n} " + "words " * 30) if n % 2 == 0 else assistant("words " * 30) for n in range(messages))
    last = messages - 1
    asked = marked(
        request(*said, tools=(TOOL,) * 20), ("block", 1, "1h"), ("said", last - 2, "5m"), ("said", last, "5m")
    )
    build_anthropic_request(asked, model=OPUS, takes_system_messages=True)  # what is remembered is remembered now
    calls = itertools.count()
    sys.setprofile(lambda *_: next(calls) and None)
    try:
        build_anthropic_request(asked, model=OPUS, takes_system_messages=True)
    finally:
        sys.setprofile(None)
    return next(calls)


def test_writing_a_request_out_takes_no_more_than_in_proportion_to_its_messages() -> None:
    assert calls_to_write_out(801) < 2.2 * calls_to_write_out(401) < 100_000
