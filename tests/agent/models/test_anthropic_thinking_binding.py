"""What is remembered of thinking, and what it is bound to, without a server."""

from dataclasses import replace

import pytest

from agent.models.anthropic_wire import Json, RequestSuffix, ThinkingAnswer, ThinkingStore, build_anthropic_request
from agent.models.base import CacheBreakpoint, ModelMessage, ModelRequest
from gateway.core.tool_spec import ToolCall
from tests.agent.models.test_anthropic import CALLS, LOOP, RESULTS, marks
from tests.kits.models import TOOL, assistant, request, user


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
