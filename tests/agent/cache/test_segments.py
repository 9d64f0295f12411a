"""Segments of requests: those reused from the request before, and those that are new."""

from dataclasses import replace

import pytest

from agent.cache.plan import describe_difference, segment_prompt
from agent.models.base import ModelRequest
from agent.prompt import PromptInput, PromptTurn, build_request
from agent.tokens.counter import PromptSize, count_heuristically, measure_prompt
from agent.tools import ENDING_TOOLS
from gateway.core.tool_spec import Image
from tests.gateway.stream.test_media import png

Replies = list[str]


def talk(replies: Replies) -> list[PromptTurn]:
    return [
        PromptTurn(input_text=f"line {number} " + "of talk " * number, reply=text)
        for number, text in enumerate(replies)
    ]


def request(past: list[PromptTurn]) -> ModelRequest:
    brief = PromptInput(persona="Ana.", card="# Where", history=tuple(past[:-1]), input_text=past[-1].input_text)
    return build_request(brief, tools=ENDING_TOOLS, max_output_tokens=10, key="a", plain=False)


def size(made: ModelRequest) -> PromptSize:
    return measure_prompt(made, count_heuristically)


@pytest.mark.parametrize(
    "replies", [["", "", "", ""], ["yes", "", "", ""], ["yes", "no", "yes", ""], ["", "yes", "", "no", "", ""]]
)
def test_what_is_taken_over_is_what_would_be_made(replies: Replies) -> None:
    past = talk(replies)
    for end in range(2, len(past)):
        old, new = request(past[:end]), request(past[: end + 1])
        anew, taken = (
            segment_prompt(new, size(new)),
            segment_prompt(new, size(new), (old, segment_prompt(old, size(old)))),
        )
        assert [replace_tokens(one) for one in taken] == [replace_tokens(one) for one in anew]
        assert sum(one.tokens for one in taken) == size(new).total
        marked = [one.number for one in taken if one.behind == "said" and one.takes_breakpoint]
        assert marked == list(range(len(new.conversation)))


def replace_tokens(unit: object) -> object:
    return unit._replace(tokens=0)  # type: ignore[attr-defined]  # a named tuple


def test_a_silent_crowd_keeps_the_tokens_of_each_line() -> None:
    past = talk(["", "", ""])
    old, new = request(past[:2]), request(past)
    laid = segment_prompt(old, size(old))
    taken = segment_prompt(new, size(new), (old, laid))
    assert [one.tokens for one in taken[: len(laid) - 1]] == [one.tokens for one in laid[:-1]]


def test_what_was_counted_in_another_way_is_not_taken_over() -> None:
    past = talk(["yes", "no", "yes"])
    old, new = request(past[:2]), request(past)
    coarse = size(old)
    coarse = replace(coarse, conversation=tuple(2 * tokens for tokens in coarse.conversation))
    assert segment_prompt(new, size(new), (old, segment_prompt(old, coarse))) == segment_prompt(new, size(new))


def test_a_shorter_and_another_request_take_over_only_what_they_share() -> None:
    past = talk(["yes", "", "yes"])
    long, short = request(past), request(past[1:])
    assert segment_prompt(short, size(short), (long, segment_prompt(long, size(long)))) == segment_prompt(
        short, size(short)
    )
    cut = replace(long, conversation=long.conversation[:1])
    assert segment_prompt(cut, size(cut), (long, segment_prompt(long, size(long)))) == segment_prompt(cut, size(cut))


def test_a_conversation_with_its_first_image_is_not_the_one_that_was_cached() -> None:
    """Claude keeps them apart (build-with-claude/prompt-caching); what stands in front of it is the same."""
    old = request(talk(["yes", "no", "yes"]))
    picture = Image(media_type="image/png", data=png(8, 8), description="red")
    *front, last = old.conversation
    new = replace(old, conversation=(*front, replace(last, parts=(*last.parts, picture))))
    before, now = segment_prompt(old, size(old)), segment_prompt(new, size(new), (old, segment_prompt(old, size(old))))
    blocks = sum(unit.behind != "said" for unit in before)
    assert now == segment_prompt(new, size(new))
    assert [one.digest for one in now[:blocks]] == [one.digest for one in before[:blocks]]
    assert {one.digest for one in now[blocks:]}.isdisjoint(one.digest for one in before[blocks:])
    assert "no images before" in describe_difference(old, new)
