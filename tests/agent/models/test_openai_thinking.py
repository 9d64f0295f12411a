"""Thoughts in raw text, as srt/parser/reasoning_parser.py of SGLang knows them."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import Model, ModelBusy, ModelMessage, TextPart, ToolResult
from agent.models.openai import OpenAIModel
from agent.models.openai_stream import ChatCompletionChunk, ChatCompletionResponse, ThinkingFilter, UnmarkedThinking
from gateway.core.tool_spec import ToolCall
from tests.kits.models import TOOL, against, ask, assistant, end, make, request, text, user
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer


def said(*pieces: str, held: bool = False) -> str:
    filtered = ThinkingFilter(held=held)
    return "".join([filtered.feed(piece) for piece in pieces] + [filtered.finish()])


@pytest.mark.parametrize("held", [False, True])
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
        ("", ""),
    ],
)
def test_what_is_said(told: str, words: str, *, held: bool) -> None:
    assert said(told, held=held) == words
    assert said(*told, held=held) == words


@pytest.mark.parametrize("told", ["hm, hm\n</think>\n\nHello.", "hm</think>", "hm[/THINK]Hello."])
def test_a_thought_whose_beginning_is_missing(told: str) -> None:
    with pytest.raises(UnmarkedThinking):
        said(*told)
    assert said(*told, held=True) == told.replace("[/THINK]", "</think>").partition("</think>")[2].strip()


@given(st.text(), st.text(alphabet="<>/think\n "), st.lists(st.integers(0, 40)))
def test_how_it_is_cut_does_not_matter(words: str, thought: str, cuts: list[int]) -> None:
    whole = f"<think>{thought}</think>{words}"
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert said(*pieces, held=True) == said(whole, held=True)


@given(st.text(alphabet=st.characters(exclude_characters="<[")), st.integers(1, 5))
def test_words_without_marks_come_through_at_once(words: str, size: int) -> None:
    filtered = ThinkingFilter(held=False)
    out = "".join(filtered.feed(words[at : at + size]) for at in range(0, len(words), size))
    assert out == words.lstrip()
    assert filtered.finish() == ""


def chunk(**delta: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("deltas", "handed_back"),
    [
        ([{"reasoning_content": "a"}, {"reasoning_content": "b"}], {"reasoning_content": "ab"}),
        ([{"reasoning_content": "a", "reasoning": "a"}], {"reasoning_content": "a"}),
        ([{"reasoning_content": "", "reasoning": "a"}], {}),
        (
            [{"reasoning": "a", "reasoning_details": [{"type": "x", "data": "1"}]}, {"reasoning_details": [{"b": 2}]}],
            {"reasoning_details": [{"type": "x", "data": "1"}, {"b": 2}]},
        ),
        ([{"reasoning": {"odd": 1}, "reasoning_details": "odd"}], {}),
        ([{"content": "hi"}], {}),
    ],
)
def test_three_fields_one_thought(deltas: list[dict[str, object]], handed_back: dict[str, object]) -> None:
    answer = ChatCompletionResponse(earlier_calls=0, model="m")
    assert "".join(answer.add_chunk(ChatCompletionChunk.model_validate_json(chunk(**delta))) for delta in deltas) in {
        "",
        "hi",
    }
    assert answer.thinking_fields() == handed_back


CALL = ToolCall(id="a", name="look_up", arguments="{}")
LOOP = (
    user("hi"),
    ModelMessage(role="assistant", parts=(TextPart(text="Let me see."), CALL)),
    ModelMessage(role="user", parts=(ToolResult(id="a", text="found"),)),
)


def test_thinking_goes_back_within_its_tool_loop_only() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="Let me see.", thinking="hm", calls=(("a", "look_up", "{}"),)))
        assert text(await ask(model, request(tools=(TOOL,)))) == "Let me see."
        assert end(await ask(model, request(*LOOP, tools=(TOOL,)))).ephemeral_from == 1
        assert api.seen[1].body["messages"][2]["reasoning_content"] == "hm"
        later = (*LOOP, assistant("It is there."), user("thanks"))
        assert end(await ask(model, request(*later, tools=(TOOL,)))).ephemeral_from is None
        other = ModelMessage(role="assistant", parts=(TextPart(text="Something else."), CALL))
        await ask(model, request(LOOP[0], other, LOOP[2], tools=(TOOL,)))
        for seen in api.seen[2:]:
            assert "reasoning_content" not in seen.body["messages"][2]

    against(lambda url: make("openai", url), story)


def test_a_model_that_turns_out_to_think_aloud_is_asked_again_and_held_back() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(*[Answer(text="They greet me, so\n</think>\n\nHello, how are you?")] * 2)
        with pytest.raises(ModelBusy, match="aloud"):
            await ask(model)
        assert text(await ask(model)) == "Hello, how are you?"

    against(lambda url: make("openai", url), story)


def test_names_that_are_known_to_think_aloud_are_held_back_at_once() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="They greet me.</think>Hello."))
        assert text(await ask(model)) == "Hello."

    against(lambda url: OpenAIModel(name="m", model="DeepSeek-R1-Distill-Qwen-7B", base_url=url), story)


def test_what_a_server_parses_itself_is_not_looked_at_again() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(thinking="hm", text="<think> begins it, </think> ends it."))
        assert text(await ask(model)) == "<think> begins it, </think> ends it."

    against(lambda url: make("openai", url), story)
