"""A turn with tools, on the wire: each request begins with the bytes of the one before, also across turns."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.anthropic import AnthropicModel
from agent.models.base import Model, ModelMessage, TextPart, ToolResult
from agent.models.openai import OpenAIModel
from agent.prompt import (
    PromptInput,
    PromptTurn,
    build_request,
    estimate_step_tokens,
    make_call_ids_unique,
    render_steps,
)
from agent.prompts import load_prompt
from agent.turn import take_turn
from gateway.core.events import ToolCallRecord, TurnStep
from gateway.core.tool_spec import ToolCall
from tests.agent.models.test_anthropic import opus
from tests.kits.models import KEY, against
from tests.kits.scripted_turn import Drawer, Host, brief, kept
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer
from tests.servers.model_api_seen import Seen

ASKED_FOR = "Asked for in this turn so far:"
STEPS = st.lists(
    st.builds(
        TurnStep,
        text=st.text(max_size=9),
        calls=st.lists(st.builds(ToolCallRecord), min_size=1, max_size=3).map(tuple),
        heard=st.text(max_size=9),
    ),
    max_size=3,
).map(tuple)


def plain(url: str) -> AnthropicModel:
    return AnthropicModel(name="main", model="claude-opus-4-8", base_url=url, api_key=KEY, timeout_s=10)


def openai(url: str) -> OpenAIModel:
    return OpenAIModel(name="main", model="m-1", base_url=url, api_key=KEY, timeout_s=10)


def told(*heard: str) -> Callable[[int], Any]:
    left = list(heard)

    async def news(_: int) -> str:
        return left.pop(0) if left else ""

    return news


def grows(before: Seen, after: Seen) -> bool:
    """Whether everything that was sent is sent again, in front: all but what holds for one request, and the end."""
    rest = [{key: value for key, value in seen.body.items() if key != "messages"} for seen in (before, after)]
    old, new = (json.dumps(lasting(seen.body["messages"]), sort_keys=True) for seen in (before, after))
    return rest[0] == rest[1] and new.startswith(old.removesuffix("]"))


def lasting(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the directive and the list of what was asked for, which stand at the end."""
    *earlier, last = messages
    if last["role"] == "system" and last["content"] == load_prompt("synthesise"):
        *earlier, last = earlier
    if isinstance(last["content"], str):
        content: Any = last["content"].split(ASKED_FOR)[0].rstrip()
    else:
        content = [one for one in last["content"] if not one.get("text", "").startswith(ASKED_FOR)]
    return [*earlier, {**last, "content": content}] if content else earlier


async def turn(model: Model, asked: PromptInput, *heard: str) -> PromptTurn:
    outcome = await take_turn(asked, model, Drawer(), Host(news=told(*heard)), key="ana")
    return kept(asked.input_text, outcome.text, outcome.steps)


@pytest.mark.parametrize("make", [plain, openai])
def test_the_next_turn_begins_with_the_bytes_of_the_last_request(make: Callable[[str], Model]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        again = (("call_0", "look_up", '{"word": "a"}'), ("call_1", "jot", "{}"))
        api.then(Answer(text="Let me see.", calls=again), Answer(calls=again[:1]), Answer(text="Done."))
        first = await turn(model, brief(), "[x] bob (guest): wait")
        api.then(Answer(calls=again), Answer(text="More."))
        second = await turn(model, brief("[x] ann (guest): more?", first))
        api.then(Answer(text="Last."))
        await turn(model, brief("[x] ann (guest): and?", first, second))
        assert len(api.seen) == 6
        assert all(grows(before, after) for before, after in pairwise(api.seen))
        assert not api.violations

    against(make, story)


@pytest.mark.parametrize("make", [plain, openai])
@pytest.mark.parametrize("last", ["stay_silent", "yield_to_user"])
def test_what_ends_a_turn_is_not_repeated_but_what_was_done_beside_it_is(
    make: Callable[[str], Model], last: str
) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="Hm.", calls=(("a", "jot", "{}"), ("b", last, "{}"))), Answer(text="Yes."))
        first = await turn(model, brief())
        await turn(model, brief("[x] ann (guest): more?", first))
        assert grows(api.seen[0], api.seen[1])
        wire = json.dumps(api.seen[1].body["messages"])
        assert (wire.count("jot is done"), last in wire) == (1, False)
        assert not api.violations

    against(make, story)


@pytest.mark.parametrize("make", [plain, openai])
def test_a_turn_that_goes_on_by_itself_ends_on_the_side_of_the_user(make: Callable[[str], Model]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(calls=(("a", "look_up", "{}"),)), Answer(text="Done."), Answer(text="More."))
        first = await turn(model, brief("(nothing new)", kept("hello", "Hi.", ()), now="Go on with it."))
        await turn(model, brief("next", kept("hello", "Hi.", ()), first))
        roles = [message["role"] for message in api.seen[1].body["messages"]]
        assert roles[-1] != "assistant"
        assert not any(pair == ("assistant", "assistant") for pair in pairwise(roles))
        assert not api.violations

    against(make, story)


@pytest.mark.parametrize("make", [plain, openai])
def test_a_history_may_begin_with_what_was_said_unasked(make: Callable[[str], Model]) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        unasked = kept("", "By the way.", ())
        await turn(model, brief("what?", unasked, unasked))
        said = [message["content"] for message in api.seen[0].body["messages"] if message["role"] == "assistant"]
        assert [("By the way." in str(content), str(content).count("way")) for content in said] == [(True, 1)] * 2
        assert not api.violations

    against(make, story)


def test_thinking_stays_in_its_loop_and_later_turns_are_taken_without() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        call = (("a", "look_up", "{}"),)
        api.then(Answer(text="Hm.", calls=call, thinking="hmm"), Answer(text="Done."))
        first = await turn(model, brief(now="It is late."))
        api.then(Answer(calls=(("b", "look_up", "{}"),), thinking="hmm"), Answer(text="More."))
        await turn(model, brief("[x] ann (guest): more?", first))
        thinking = [json.dumps(seen.body["messages"]).count('"thinking": "') for seen in api.seen]
        assert thinking == [0, 1, 0, 1]
        assert "It is late." not in json.dumps(api.seen[2].body)
        assert not api.violations

    against(opus, story)


@given(st.lists(st.tuples(st.text(max_size=9), STEPS, st.text(max_size=9)), max_size=4))
def test_history_is_what_the_loops_said(turns: list[tuple[str, tuple[TurnStep, ...], str]]) -> None:
    """Sides alternate, each call has its result right behind it, and only what is not blank is said."""
    history = tuple(kept(heard, reply, steps) for heard, steps, reply in turns)
    request = build_request(brief("now?", *history), tools=(), max_output_tokens=9, key="k", plain=False)
    sides = request.conversation
    assert [said.role for said in sides] == [("user", "assistant")[place % 2] for place in range(len(sides))]
    for asked, answer in zip(sides[1::2], sides[2::2], strict=False):
        calls = [part.id for part in asked.parts if isinstance(part, ToolCall)]
        assert [part.id for part in answer.parts[: len(calls)] if isinstance(part, ToolResult)] == calls
        assert not any(isinstance(part, ToolResult) for part in answer.parts[len(calls) :])


@given(STEPS)
def test_a_model_without_tools_is_told_what_arrived(steps: tuple[TurnStep, ...]) -> None:
    simple = PromptTurn(input_text="hello", reply="Hi.", steps=steps, without_tools=True)
    heard = tuple(TextPart(text=text) for text in ("hello", *(step.heard for step in steps if step.heard)))
    assert simple.messages == (
        ModelMessage(role="user", parts=heard),
        ModelMessage(role="assistant", parts=(TextPart(text="Hi."),)),
    )


@given(STEPS)
def test_steps_are_measured_as_they_are_repeated(steps: tuple[TurnStep, ...]) -> None:
    said = [part for side in render_steps(steps) for part in side.parts]
    letters = sum(len(part.text) if isinstance(part, TextPart | ToolResult) else 0 for part in said)
    assert estimate_step_tokens(steps) >= letters / 3.5 - len(said)
    assert (estimate_step_tokens(steps) == 0) == (said == [])


@given(st.lists(st.lists(st.text(alphabet="a:_/2", max_size=3), min_size=1, max_size=3), max_size=5))
def test_every_id_is_told_apart(rounds: list[list[str]]) -> None:
    conversation: tuple[ModelMessage, ...] = ()
    for ids in rounds:
        calls = make_call_ids_unique([ToolCall(id=ident, name="x", arguments="{}") for ident in ids], conversation)
        conversation = (*conversation, ModelMessage(role="assistant", parts=calls))
    plain = [
        part.id.replace(":", "_").replace("/", "_")
        for said in conversation
        for part in said.parts
        if isinstance(part, ToolCall)
    ]
    assert len(set(plain)) == len(plain)
    assert all(plain)
