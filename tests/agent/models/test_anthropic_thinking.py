"""Thinking in tool loops, and what it is bound to: platform.claude.com/docs/en/build-with-claude/preserved-thinking."""

import asyncio
import json
import logging
from dataclasses import replace

import pytest

from agent.models.anthropic import AnthropicModel
from agent.models.anthropic_wire import Json, RequestSuffix, ThinkingAnswer, ThinkingStore, build_anthropic_request
from agent.models.base import CacheBreakpoint, Model, ModelMessage, ModelRequest, RequestRefused, TextPart, ToolResult
from gateway.core.tool_spec import ToolCall
from tests.agent.models.test_anthropic import CALLS, LOOP, RESULTS, calls, marks, opus, other, roles
from tests.kits.models import TOOL, against, ask, assistant, end, request, text, user
from tests.servers.messages_cache import MessagesCache
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer
from tests.servers.model_api_seen import Seen


def thinks(ident: str = "", words: str = "Let me see.") -> Answer:
    """Two calls, or the one with this id."""
    asked = ((ident, "look_up", "{}"),) if ident else tuple((c.id, c.name, c.arguments) for c in CALLS)
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


def test_a_tool_loop_sends_thinking_back_verbatim() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(thinks())
        chunks = await ask(model, request(user("hi"), tools=(TOOL,)))
        assert (text(chunks), tuple(chunks[-3:-1]), end(chunks).stop_reason) == ("Let me see.", CALLS, "tools")
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

    against(opus, story)


def test_redacted_thinking_and_thinking_between_texts_go_back_too() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        content = (
            {"type": "redacted_thinking"},
            {"type": "text", "text": "Let "},
            {"type": "text", "text": " "},
            {"type": "thinking", "thinking": "hmm"},
            {"type": "text", "text": "me see."},
        )
        api.then(replace(thinks(words=""), content=content, thinking=None))
        assert text(await ask(model, request(user("hi"), tools=(TOOL,)))) == "Let  me see."
        await ask(model, request(user("hi"), calls("Let  me see."), RESULTS, tools=(TOOL,)))
        assert kinds(api.seen[1]) == ["redacted_thinking", "text", "thinking", "text", "tool_use", "tool_use"]
        assert not api.violations

    against(opus, story)


@pytest.mark.parametrize("make", [opus, other])
@pytest.mark.parametrize("change", [{"words": "Other words."}, {"first": "edited"}, {"tool": "Look up two words."}])
def test_thinking_is_left_out_once_what_it_is_bound_to_has_changed(
    change: dict[str, str], make: "type[AnthropicModel]"
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(thinks())
        await ask(model, request(user("hi"), tools=(TOOL,)))
        said = (user(change.get("first", "hi")), calls(change.get("words", "Let me see.")), RESULTS)
        await ask(model, request(*said, tools=(replace(TOOL, description=change.get("tool", TOOL.description)),)))
        assert kinds(api.seen[1]) == ["text", "tool_use", "tool_use"]
        assert not api.violations

    against(make, story)


def test_marks_are_no_part_of_what_thinking_is_bound_to() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(thinks())
        marks = tuple(CacheBreakpoint(behind="said", index=place, lifetime="5m") for place in range(3))
        await ask(model, replace(request(user("hi"), tools=(TOOL,)), breakpoints=marks[:1]))
        await ask(model, replace(request(*LOOP, tools=(TOOL,)), breakpoints=marks[1:]))
        thought, *_, last = api.seen[1].body["messages"][1]["content"]
        assert thought["type"] == "thinking"
        assert "cache_control" in last
        await ask(model, request(*LOOP, tools=(TOOL,)))
        assert kinds(api.seen[2])[0] == "thinking"
        assert "cache_control" not in json.dumps(api.seen[2].body)  # what is remembered was not marked
        assert not api.violations

    against(opus, story)


@pytest.mark.parametrize("make", [opus, other])
def test_what_was_told_for_one_request_stays_in_front_of_the_thinking_that_came_after_it(
    make: "type[AnthropicModel]",
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        first = replace(request(user("hi"), tools=(TOOL,)), now="It is late.")
        api.then(thinks("a"), thinks("b"), thinks("c"))
        await ask(model, first)
        await ask(model, again(first, "a"))
        last = replace(again(again(first, "a"), "b"), now="It is late.\nAnswer now.")
        await ask(model, last)
        await ask(model, replace(again(last, "c"), now="It is later."))
        for seen in api.seen[1:]:
            assert {kinds(seen, place)[0] for place in range(roles(seen.body).count("assistant"))} == {"thinking"}
            assert seen.body["messages"][: len(api.seen[0].body["messages"])] == api.seen[0].body["messages"]
        told = [json.dumps(seen.body["messages"]) for seen in api.seen]
        assert [(t.count("It is late."), t.count("Answer now."), t.count("It is later.")) for t in told] == [
            (1, 0, 0),
            (1, 0, 0),
            (1, 1, 0),
            (1, 1, 1),
        ]
        assert not api.violations

    against(make, story)


BOUND = "The block is bound to a different conversation. Remove the block, or set more."


@pytest.mark.parametrize(
    "complaint",
    [
        f"messages.1.content.0: Invalid `signature` in `thinking` block. {BOUND}",
        f"messages.1.content.0: Invalid `signature` in `redacted_thinking` block. {BOUND}",
        "messages.1: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified.",
    ],
)
def test_what_the_api_does_not_take_back_is_left_out_for_the_rest_of_the_loop(
    complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        body = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": complaint}})
        first = request(user("hi"), tools=(TOOL,))
        api.then(thinks("a"), Answer(status=400, body=body.encode()), thinks("b"))
        with caplog.at_level(logging.INFO):
            await ask(model, first)
            assert end(await ask(model, again(first, "a"))).stop_reason == "tools"
            await ask(model, again(again(first, "a"), "b"))
        assert [kinds(seen)[0] for seen in api.seen[1:]] == ["thinking", "text", "text"]
        assert len([r for r in caplog.records if "left out for the rest of this loop" in r.getMessage()]) == 1
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

    against(opus, story)


def test_a_refusal_that_nothing_can_be_left_out_for_is_told() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        body = {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "Invalid `signature` in `thinking`"},
        }
        api.then(Answer(status=400, body=json.dumps(body).encode()))
        with pytest.raises(RequestRefused):
            await ask(model)
        assert len(api.seen) == 1

    against(opus, story)


@pytest.mark.parametrize("now", ["", "It is late."])
def test_a_loop_reads_what_it_wrote_and_the_next_turn_what_was_in_front_of_it(now: str) -> None:
    """Marks as a plan sets them: behind the newest words, and where the request before was marked."""

    def asked(*said: ModelMessage, now: str = now) -> ModelRequest:
        behind = (len(said) - 1, len(said) - 3) if len(said) > 1 else (0,)
        marks = tuple(CacheBreakpoint(behind="said", index=place, lifetime="5m") for place in sorted(behind))
        return replace(request(*said, tools=(TOOL,)), breakpoints=marks, now=now)

    async def run() -> None:
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
            billed.append(end(await ask(model, asked(hello, assistant("Done."), user("thanks"), now=""))).usage)
            await model.aclose()
            read = [usage.cache_read_tokens for usage in billed]
            written = [usage.cache_write_tokens for usage in billed]
            assert read[0] == 0
            assert read[1] == written[0] > 1500
            assert read[2] == read[1] + written[1]
            assert read[3] == written[0]
            assert not api.violations

    asyncio.run(run())


def after(asked: ModelRequest, *calls: ToolCall, content: tuple[Json, ...] = ()) -> ThinkingAnswer:
    """Answer a request with calls and these words."""
    digest = build_anthropic_request(asked, model="m").digest()
    return ThinkingAnswer(
        prefix_digest=digest,
        suffix=RequestSuffix(asked.aside, asked.now),
        text="Let me see.",
        calls=calls,
        content=content,
    )


def test_what_only_begins_alike_is_told_whole() -> None:
    asked = replace(request(user("hi"), tools=(TOOL,)), now="It is 1")
    thought = after(asked, *CALLS)
    later = build_anthropic_request(
        replace(request(*LOOP), tools=(TOOL,), now="It is 10"), model="m", recall=lambda _: thought
    )
    assert (later.recalled_call_ids, later.suffix) == (("a",), RequestSuffix(now="It is 10"))


def test_marks_change_nothing_that_thinking_is_bound_to() -> None:
    places = [CacheBreakpoint(behind="tools", lifetime="1h"), CacheBreakpoint(behind="block", index=0, lifetime="1h")]
    places += [
        CacheBreakpoint(behind="said", index=0, lifetime="5m"),
        CacheBreakpoint(behind="said", index=2, lifetime="5m"),
    ]
    asked = request(*LOOP, tools=(TOOL,))
    marked = build_anthropic_request(replace(asked, breakpoints=tuple(places)), model="m")
    assert len(marks(dict(marked.body))) == 4
    assert marked.digest() == build_anthropic_request(asked, model="m").digest()


@pytest.mark.parametrize("last", [{"type": "thinking"}, {"type": "fallback"}, {"type": "text", "text": ""}])
def test_what_takes_no_mark_gets_none(last: Json) -> None:
    content: tuple[Json, ...] = ({"type": "thinking"}, {"type": "text", "text": "words"}, last)
    thought = after(request(user("hi")), *CALLS, content=content)
    asked = replace(request(*LOOP), breakpoints=(CacheBreakpoint(behind="said", index=1, lifetime="5m"),))
    assert marks(dict(build_anthropic_request(asked, model="m", recall=lambda _: thought).body)) == [("words", "5m")]
    bare = replace(thought, content=content[:1])
    assert marks(dict(build_anthropic_request(asked, model="m", recall=lambda _: bare).body)) == []


@pytest.mark.parametrize("systems", [True, False])
def test_one_that_is_forgotten_does_not_spoil_the_next(systems: bool) -> None:
    said = (*LOOP, assistant("ok"), user("more"))
    second = ToolCall(id="c", name="look_up", arguments="{}")
    forgotten = ThinkingAnswer(
        prefix_digest="another", suffix=RequestSuffix(now="long ago"), text="", calls=CALLS, content=[]
    )
    kept = after(request(*said), second, content=({"type": "thinking"},))
    answers = {"a": forgotten, "c": kept}

    def recall(one: ModelMessage) -> ThinkingAnswer | None:
        return next((answers[part.id] for part in one.parts if isinstance(part, ToolCall)), None)

    asked = request(*said, ModelMessage(role="assistant", parts=(second,)), RESULTS)
    assert build_anthropic_request(
        asked, model="m", recall=recall, takes_system_messages=systems
    ).recalled_call_ids == ("c",)


def test_as_many_as_loops_need_are_remembered() -> None:
    thoughts = ThinkingStore()
    said = [ModelMessage(role="assistant", parts=(ToolCall(id=str(n), name="x", arguments="{}"),)) for n in range(300)]
    for one in said:
        (call,) = one.parts
        assert isinstance(call, ToolCall)
        thoughts.remember(
            ThinkingAnswer(prefix_digest="", suffix=RequestSuffix(), text="", calls=(call,), content=[]), (user("hi"),)
        )
    assert [n for n, one in enumerate(said) if thoughts.recall(one)] == list(range(300 - 256, 300))
    assert thoughts.recall(user("hi")) is None
