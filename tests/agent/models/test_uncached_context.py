"""What is called to mind for one request: told in the user's words, behind all that is cached, and never again."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import RequestSuffix, ThinkingAnswer, build_anthropic_request
from agent.models.base import CacheBreakpoint, Model, ModelMessage, ModelRequest, TextPart, ToolResult, append_suffix
from agent.models.openai import OpenAIDialect, build_chat_request
from agent.tokens.counter import FRAME_TOKENS, measure_prompt
from gateway.core.events import RequestUsage
from gateway.core.tool_spec import ToolCall
from tests.agent.cache.test_client import IDENTITY, Bench, story
from tests.agent.models.test_anthropic import CALLS, LOOP, OPUS, RESULTS, again, kinds, opus, other, roles, thinks
from tests.agent.tokens.test_request_size import Bytes
from tests.kits.models import TOOL, against, ask, assistant, request, user
from tests.servers.messages_prompt import blocks
from tests.servers.messages_rules import check
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer
from tests.servers.model_api_rules import openai as refused_by_openai

ASIDE = "(Called to mind: Ann said that her cat is Ada.)"
NOW = "It is late."
RECALLING = replace(request(user("hi")), aside=ASIDE, now=NOW)


def contents(body: Any) -> list[tuple[str, list[str]]]:
    """Role and words of each message."""
    return [(m["role"], [str(b.get("text", b["type"])) for b in blocks(m["content"])]) for m in body["messages"]]


def test_it_stands_behind_the_marked_words_and_in_front_of_what_holds_now() -> None:
    asked = replace(RECALLING, breakpoints=(CacheBreakpoint(behind="said", index=0, lifetime="5m"),))
    told = build_anthropic_request(asked, model="m", takes_system_messages=True).body
    assert contents(told) == [("user", ["hi", ASIDE]), ("system", [NOW])]
    told = build_anthropic_request(asked, model="m").body
    assert contents(told) == [("user", ["hi", ASIDE, NOW])]
    messages: Any = told["messages"]
    assert ["cache_control" in block for block in messages[0]["content"]] == [True, False, False]


def test_it_is_never_a_system_message() -> None:
    bare = build_anthropic_request(replace(RECALLING, now=""), model="m", takes_system_messages=True)
    assert contents(bare.body) == [("user", ["hi", ASIDE])]
    assert not bare.has_system_messages
    unasked = replace(RECALLING, conversation=(user("hi"), assistant("yes")))
    assert contents(build_anthropic_request(unasked, model="m", takes_system_messages=True).body)[1:] == [
        ("assistant", ["yes"]),
        ("user", [ASIDE]),
        ("system", [NOW]),
    ]


def test_it_stands_behind_results() -> None:
    asked = replace(request(user("hi"), LOOP[1], RESULTS, tools=(TOOL,)), aside=ASIDE)
    assert contents(build_anthropic_request(asked, model="m", takes_system_messages=True).body)[-1] == (
        "user",
        ["tool_result", "tool_result", "now answer", ASIDE],
    )
    body = build_chat_request(asked, model="m", dialect=OpenAIDialect())
    assert refused_by_openai(dict(body)) is None
    messages: Any = body["messages"]
    assert [message["role"] for message in messages[-3:]] == ["tool", "tool", "user"]
    assert messages[-1]["content"] == f"now answer\n\n{ASIDE}"


def test_other_dialects_tell_it_as_the_user_s_last_words() -> None:
    assert append_suffix(RECALLING) == (
        ModelMessage(role="user", parts=(TextPart(text="hi"), TextPart(text=ASIDE), TextPart(text=NOW))),
    )
    assert append_suffix(replace(RECALLING, now=" ", conversation=())) == (user(ASIDE),)
    marked = replace(RECALLING, breakpoints=(CacheBreakpoint(behind="said", index=0, lifetime="5m"),))
    body = build_chat_request(marked, model="gpt-6", dialect=OpenAIDialect(is_openai=True, takes_breakpoints=True))
    messages: Any = body["messages"]
    assert ["prompt_cache_breakpoint" in piece for piece in messages[-1]["content"]] == [True, False, False]


def test_without_it_a_request_is_what_it_was() -> None:
    bare = replace(RECALLING, aside="")
    for systems in (True, False):
        told = json.dumps(build_anthropic_request(bare, model="m", takes_system_messages=systems).body)
        assert told == json.dumps(
            build_anthropic_request(replace(bare, aside=" \n"), model="m", takes_system_messages=systems).body
        )
        assert told == json.dumps(
            build_anthropic_request(RECALLING, model="m", takes_system_messages=systems).body
        ).replace(f', {{"type": "text", "text": "{ASIDE}"}}', "")
    assert append_suffix(replace(bare, now="")) == bare.conversation


def test_it_is_measured() -> None:
    whole, bare = measure_prompt(RECALLING, Bytes().count), measure_prompt(replace(RECALLING, aside=""), Bytes().count)
    assert whole.total - bare.total == whole.now - bare.now == Bytes().count(ASIDE) + FRAME_TOKENS


Make = Callable[[str], AnthropicModel]


@pytest.mark.parametrize("make", [opus, other])
@pytest.mark.parametrize("now", ["", NOW])
def test_it_stays_in_front_of_the_thinking_that_came_after_it(make: Make, now: str) -> None:
    async def tell(api: ModelApi, model: Model) -> None:
        first = replace(request(user("hi"), tools=(TOOL,)), aside=ASIDE, now=now)
        api.then(thinks("a"), thinks("b"), thinks("c"), Answer(text="Done."))
        await ask(model, first)
        await ask(model, again(first, "a"))
        last = replace(again(again(first, "a"), "b"), aside=f"{ASIDE}\nAnd that it is old.")
        await ask(model, last)
        await ask(model, again(last, "c"))
        for seen in api.seen[1:]:
            assert {kinds(seen, place)[0] for place in range(roles(seen.body).count("assistant"))} == {"thinking"}
            assert seen.body["messages"][: len(api.seen[0].body["messages"])] == api.seen[0].body["messages"]
        told = [json.dumps(seen.body["messages"]) for seen in api.seen]
        assert [(one.count(ASIDE), one.count("it is old")) for one in told] == [(1, 0), (1, 0), (1, 1), (1, 1)]
        assert not api.violations
        await ask(model, replace(first, conversation=(user("hi"), assistant("Done."), user("thanks")), aside=""))
        assert ASIDE not in json.dumps(api.seen[-1].body)
        assert not api.violations

    against(make, tell)


@pytest.mark.parametrize("systems", [True, False])
def test_an_answer_that_is_forgotten_does_not_spoil_the_next(systems: bool) -> None:
    """Both stand in one loop, and what was told in front of the first is not to be told again."""
    second = ToolCall(id="c", name="look_up", arguments="{}")
    front = request(*LOOP, tools=(TOOL,))
    kept = ThinkingAnswer(
        prefix_digest=build_anthropic_request(
            replace(front, aside=ASIDE, now=NOW), model="m", takes_system_messages=systems
        ).digest(),
        suffix=RequestSuffix(ASIDE, NOW),
        text="",
        calls=(second,),
        content=({"type": "thinking"},),
    )
    gone = ThinkingAnswer(
        prefix_digest="another", suffix=RequestSuffix("something else", "long ago"), text="", calls=CALLS, content=()
    )
    answers = {"a": gone, "c": kept}

    def recall(one: ModelMessage) -> ThinkingAnswer | None:
        return next((answers[part.id] for part in one.parts if isinstance(part, ToolCall)), None)

    results = ModelMessage(role="user", parts=(ToolResult(id="c", text="found"),))
    asked = request(*LOOP, ModelMessage(role="assistant", parts=(second,)), results, tools=(TOOL,))
    assert build_anthropic_request(
        asked, model="m", recall=recall, takes_system_messages=systems
    ).recalled_call_ids == ("c",)


def test_one_that_changes_with_each_turn_costs_nothing_of_what_is_cached() -> None:
    async def tell(bench: Bench) -> None:
        said: list[ModelMessage] = []
        accounts: list[RequestUsage] = []
        for number in range(8):
            said.append(user(f"{number} " + "and so on " * 80))
            asked = ModelRequest(
                blocks=(IDENTITY,),
                conversation=tuple(said),
                aside=f"(Called to mind: {'words ' * number}{number})" if number % 3 else "",
                now=f"It is {number}." if number % 2 else "",
                max_output_tokens=100,
                shared_key="ana",
                conversation_id="irc/#a",
            )
            accounts.append(await bench.ask(asked))
            said.append(assistant("Yes."))
            bench.clock.advance(30)
        assert [account.missed for account in accounts] == [""] * 8
        for before, account in pairwise(accounts):
            cached = before.usage.cache_read_tokens + before.usage.cache_write_tokens
            assert account.usage.cache_read_tokens == cached > 0
        assert not bench.api.violations

    story(tell)


WORDS = st.sampled_from(["", " ", "a", "two\nlines"])
LOOPS = st.lists(st.tuples(WORDS, st.integers(1, 2), WORDS), max_size=3)


@given(turns=st.lists(st.tuples(WORDS, LOOPS, WORDS), min_size=1, max_size=3), aside=WORDS, now=WORDS, data=st.data())
def test_every_request_that_holds_it_is_a_valid_one(
    turns: list[tuple[str, list[tuple[str, int, str]], str]], aside: str, now: str, data: st.DataObject
) -> None:
    said: list[ModelMessage] = []
    for number, (heard, loops, reply) in enumerate(turns):
        said.append(user(f"turn {number}", heard))
        for step, (words, calls, behind) in enumerate(loops):
            idents = [f"t{number}_{step}_{place}" for place in range(calls)]
            asked = tuple(ToolCall(id=ident, name="look_up", arguments="{}") for ident in idents)
            results = tuple(ToolResult(id=ident, text="found") for ident in idents)
            said.append(ModelMessage(role="assistant", parts=(TextPart(text=words), *asked)))
            said.append(ModelMessage(role="user", parts=(*results, TextPart(text=behind))))
        said.append(assistant(reply or "yes"))
    cut = data.draw(st.sampled_from([place for place, one in enumerate(said) if one.role == "user"]))
    asking = replace(request(*said[: cut + 1], tools=(TOOL,)), aside=aside, now=now)
    for model, systems in ((OPUS, True), ("claude-sonnet-5", False)):
        body: Any = build_anthropic_request(asking, model=model, takes_system_messages=systems).body
        assert check(body) is None
    assert refused_by_openai(dict(build_chat_request(asking, model="m", dialect=OpenAIDialect()))) is None
