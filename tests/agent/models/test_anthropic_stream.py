"""Answers of the Messages API: platform.claude.com/docs/en/build-with-claude/streaming and api/messages."""

import json
import logging
from typing import Any

import pytest

from agent.models.anthropic_stream import AnthropicEvent, AnthropicResponse
from agent.models.base import Model, ModelBusy, ModelError, ModelUnusable, PromptTooLong, RequestRefused
from gateway.core.events import Usage
from tests.agent.models.test_anthropic import LOOP, opus, other
from tests.kits.models import TOOL, against, ask, end, request, text, user
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer

BILLED: dict[str, Any] = {
    "input_tokens": 3,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 5},
    "output_tokens": 5,
}


@pytest.mark.parametrize(
    ("told", "hour"),
    [(BILLED, 5), (BILLED | {"cache_creation": None}, 0), (BILLED | {"cache_creation": {}}, 0)],
)
def test_usage_is_cumulative_and_does_not_overlap(told: dict[str, Any], hour: int) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", usage=told))
        expected = Usage(
            input_tokens=3, cache_read_tokens=90, cache_write_tokens=7, cache_write_1h_tokens=hour, output_tokens=5
        )
        assert end(await ask(model)).usage == expected

    against(other, story)


def test_what_a_later_count_leaves_out_keeps_its_value() -> None:
    reading = AnthropicResponse(model="m")
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"model": "m-2", "usage": BILLED | {"output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 4}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 9}},
        {"type": "message_delta", "delta": {}, "usage": None},
    ]
    for event in events:
        reading.add_event(AnthropicEvent.model_validate_json(json.dumps(event)))
    usage = Usage(input_tokens=3, cache_read_tokens=90, cache_write_tokens=7, cache_write_1h_tokens=5, output_tokens=9)
    assert (reading.build_end().usage, reading.build_end().stop_reason, reading.build_end().model) == (
        usage,
        "length",
        "m-2",
    )


@pytest.mark.parametrize(
    ("told", "stop"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "end"),
        ("pause_turn", "end"),
        ("max_tokens", "length"),
        ("refusal", "refused"),
        ("tool_use", "end"),
        ("new", "end"),
    ],
)
def test_stop_reasons(told: str, stop: str) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", stop=told), Answer(stop=told))
        assert end(await ask(model)).stop_reason == stop
        assert [type(chunk).__name__ for chunk in await ask(model)] == ["StreamEnd"]

    against(other, story)


@pytest.mark.parametrize(
    ("details", "note"),
    [
        ({"type": "refusal", "category": "cyber", "explanation": None}, "declined to answer: cyber"),
        ({"type": "refusal", "category": "not a\nword"}, "declined to answer: ?"),
        ({"type": "refusal", "category": None}, ""),
        (None, ""),
    ],
)
def test_why_it_refused_is_in_the_log(details: Any, note: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(stop="refusal", stop_details=details))
        assert end(await ask(model)).stop_reason == "refused"

    with caplog.at_level(logging.INFO, "agent.models.anthropic"):
        against(opus, story)
    assert [r.getMessage().partition(" declined")[1:] for r in caplog.records] == [
        (" declined", note.removeprefix("declined"))
    ] * bool(note)


def test_what_the_provider_left_out_of_the_request_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        dropped = {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "model_binding_mismatch"}
        api.then(Answer(text="hi", dropped=(dropped, {"type": "later"})))
        assert text(await ask(model)) == "hi"

    with caplog.at_level(logging.INFO, "agent.models.anthropic"):
        against(opus, story)
    assert [r.getMessage().partition(" left out ")[2] for r in caplog.records] == [
        "messages.1.content.0 of the request: model_binding_mismatch",
        "? of the request: ?",
    ]


def test_a_call_that_the_limit_cut_is_not_a_call() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(calls=(("a", "look_up", '{"wo'),), stop="max_tokens"))
        assert [type(chunk).__name__ for chunk in await ask(model, request(tools=(TOOL,)))] == ["StreamEnd"]

    against(other, story)


def test_content_is_chosen_by_type_and_blocks_nobody_knows_are_passed_over() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        content = ({"type": "fallback"}, {"type": "redacted_thinking"}, {"type": "text", "text": "one "})
        api.then(Answer(content=content, thinking="secret thoughts", text="two"))
        assert text(await ask(model)) == "one two"

    against(opus, story)


def test_a_block_that_is_not_taken_back_is_left_out_with_the_thinking_beside_it() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        calls = (("a", "look_up", '{"word":"x"}'), ("b", "look_up", "{}"))
        api.then(Answer(content=({"type": "fallback"},), thinking="hmm", text="Let me see.", calls=calls))
        await ask(model, request(user("hi"), tools=(TOOL,)))
        assert end(await ask(model, request(*LOOP, tools=(TOOL,)))).stop_reason == "end"
        assert len(api.violations) == 1

    against(opus, story)


def test_blocks_may_come_without_deltas_and_deltas_without_blocks() -> None:
    reading = AnthropicResponse(model="m")
    call = {"type": "tool_use", "id": "a", "name": "look_up", "input": {"word": "é"}}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 1, "content_block": call},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}},
        {"type": "content_block_start", "index": 2},
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "lost"}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {}}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    said = [reading.add_event(AnthropicEvent.model_validate_json(json.dumps(event))) for event in events]
    assert ("".join(said), reading.text()) == ("hi", "hi")
    assert [call.arguments for call in reading.tool_calls()] == ['{"word": "é"}']
    assert [block["type"] for block in reading.raw_content()] == ["text", "tool_use"]
    assert (reading.is_complete, reading.build_end().stop_reason) == (True, "tools")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", ModelBusy),
        ("api_error", ModelBusy),
        ("timeout_error", ModelBusy),
        ("rate_limit_error", ModelBusy),
        ("invalid_request_error", RequestRefused),
        ("request_too_large", PromptTooLong),
        ("authentication_error", ModelUnusable),
        ("billing_error", ModelUnusable),
        ("never_seen", ModelBusy),
    ],
)
@pytest.mark.parametrize("after", [0, 4, 6])
def test_an_error_after_200(kind: str, expected: type[ModelError], after: int) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi, and more than a piece", error_after=(after, kind)))
        with pytest.raises(expected):
            await ask(model)
        assert len(api.seen) == 1

    against(other, story)


_EVENTS = 8
"""Start, ping, one that nobody knows, the text's three, delta and stop."""


@pytest.mark.parametrize("after", range(_EVENTS))
def test_what_was_cut_off_is_not_an_answer(after: int) -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", cut_after=after), Answer(text="hi", garbled_after=after))
        for _ in range(2):
            with pytest.raises(ModelBusy):
                await ask(model)

    against(other, story)


def test_an_answer_that_was_whole_counts_although_the_connection_broke() -> None:
    async def story(api: ModelApi, model: Model) -> None:
        api.then(Answer(text="hi", cut_after=_EVENTS))
        assert text(await ask(model)) == "hi"
        assert text(await ask(model)) == "You said: hi"

    against(other, story)
