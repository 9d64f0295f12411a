"""What goes on the wire: https://platform.openai.com/docs/guides/prompt-caching, and templates' oddities."""

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from agent.models.base import CacheBreakpoint, ModelMessage, TextPart, ToolResult
from agent.models.openai import OpenAIDialect, build_chat_request, find_dialect
from gateway.core.tool_spec import ToolCall
from tests.kits.models import BLOCKS, TOOL, assistant, request, user

PLAIN = OpenAIDialect()
MARKS = (
    CacheBreakpoint(behind="block", index=1, lifetime="1h"),
    CacheBreakpoint(behind="block", index=3, lifetime="5m"),
    CacheBreakpoint(behind="said", index=2, lifetime="5m"),
)
CALL = ToolCall(id="c", name="look_up", arguments="{}")
LOOP = (
    ModelMessage(role="assistant", parts=(CALL,)),
    ModelMessage(role="user", parts=(ToolResult(id="c", text="found"), ToolResult(id="d", text=""))),
)


def wire(asked: Any, dialect: OpenAIDialect = PLAIN) -> list[dict[str, Any]]:
    body: Any = json.loads(json.dumps(build_chat_request(asked, model="m", dialect=dialect)))
    return list(body["messages"])


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
    ],
)
def test_who_is_told_what_to_cache(where: str, model: str, expected: tuple[bool, bool]) -> None:
    dialect = find_dialect(where, model)
    assert (dialect.is_openai, dialect.takes_breakpoints) == expected


def test_marks_become_breakpoints_and_only_those_are_written() -> None:
    said = (user("hi"), assistant("hello"), user("and", "you?"))
    asked = replace(request(*said), breakpoints=MARKS, now="It is late.")
    dialect = OpenAIDialect(is_openai=True, takes_breakpoints=True)
    assert build_chat_request(asked, model="m", dialect=dialect)["prompt_cache_options"] == {"mode": "explicit"}
    messages = wire(asked, dialect)
    assert breakpoints(messages) == [(0, 1, "12h"), (0, 3, "30m"), (3, 1, "30m")]
    assert messages[3]["content"][2]["text"].strip() == "It is late."
    unmarked = replace(asked, breakpoints=())
    assert "prompt_cache_options" not in build_chat_request(unmarked, model="m", dialect=dialect)
    assert [words(m["content"]) for m in wire(unmarked, dialect)] == [words(m["content"]) for m in wire(asked)]
    assert breakpoints(wire(asked)) == []


def test_a_mark_behind_tool_results_and_none_on_the_assistant() -> None:
    dialect = OpenAIDialect(is_openai=True, takes_breakpoints=True)
    marks = (CacheBreakpoint(behind="tools", lifetime="1h"), CacheBreakpoint(behind="said", index=1, lifetime="5m"))
    asked = replace(request(user("hi"), *LOOP, tools=(TOOL,)), breakpoints=marks)
    assert breakpoints(wire(asked, dialect)) == []
    results = replace(asked, conversation=(user("hi"), LOOP[0], ModelMessage(role="user", parts=LOOP[1].parts[:1])))
    marked = replace(results, breakpoints=(CacheBreakpoint(behind="said", index=2, lifetime="5m"),))
    assert breakpoints(wire(marked, dialect)) == [(3, 0, "30m")]


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


def test_now_is_the_users_last_words() -> None:
    asked = replace(request(user("hi"), assistant("hello")), now="It is late.")
    assert wire(asked)[-1] == {"role": "user", "content": "It is late."}


def test_the_same_request_gives_the_same_bytes() -> None:
    asked = replace(request(user("hi"), *LOOP, tools=(TOOL,)), breakpoints=MARKS)
    for dialect in (PLAIN, OpenAIDialect(is_openai=True, takes_breakpoints=True)):
        first, second = (json.dumps(build_chat_request(asked, model="m", dialect=dialect)) for _ in range(2))
        assert first == second
    assert TextPart(text="hi") in asked.conversation[0].parts
