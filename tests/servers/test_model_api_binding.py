"""Thinking is bound to what it came after: build-with-claude/preserved-thinking. No sockets."""

from typing import Any

import pytest

from tests.servers.messages_prompt import CONTROLS, UNCHECKED, Json, Verdict, blocks, verify
from tests.servers.model_api import Answer, message

TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "name": "look_up", "input": {}}
THOUGHT = {"type": "thinking", "thinking": "hm"}
HIDDEN = {"type": "redacted_thinking"}


def asked(model: str = "claude-opus-5-5") -> Json:
    return {
        "model": model,
        "max_tokens": 100,
        "system": "You are Reverie.",
        "tools": [TOOL],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "messages": [{"role": "user", "content": "hi"}],
    }


def answered(body: Json, *content: Json, result: str = "found") -> Json:
    """Let the model answer with `content`, and go on with a tool's result, or with words where there was no call."""
    said = message(Answer(content=content), body, {}, "msg_1")["content"]
    calls = [block["id"] for block in said if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": ident, "content": result} for ident in calls]
    content_next = results or [{"type": "text", "text": "go on"}]
    turns = [{"role": "assistant", "content": said}, {"role": "user", "content": content_next}]
    return {**body, "messages": [*body["messages"], *turns]}


def call(ident: str) -> Json:
    return CALL | {"id": ident}


def loop(model: str = "claude-opus-5-5") -> Json:
    """Two rounds, with thinking before and between the calls."""
    first = answered(asked(model), THOUGHT, {"type": "text", "text": "Let me see."}, call("a"), HIDDEN, call("b"))
    return answered(first, {"type": "thinking", "thinking": "so"}, call("c"))


def changed(body: Json, place: int, index: int, **change: Any) -> Json:
    messages = [dict(m) for m in body["messages"]]
    content = [dict(b) for b in messages[place]["content"]]
    content[index] |= change
    messages[place]["content"] = content
    return body | {"messages": messages}


def without(body: Json, *places: tuple[int, int]) -> Json:
    messages = [
        m
        if isinstance(m["content"], str)
        else m | {"content": [b for j, b in enumerate(m["content"]) if (i, j) not in places]}
        for i, m in enumerate(body["messages"])
    ]
    return body | {"messages": messages}


def thinking(body: Json) -> int:
    return sum("thinking" in block["type"] for m in body["messages"] for block in blocks(m["content"]))


def test_what_came_is_taken_back() -> None:
    body = loop()
    assert verify(body, []) == Verdict(None, body, [])


@pytest.mark.parametrize(
    ("name", "body"),
    [
        (
            "marks move",
            loop() | {"system": [{"type": "text", "text": "You are Reverie.", "cache_control": {"type": "x"}}]},
        ),
        ("marks come", changed(loop(), 2, 0, cache_control={"type": "ephemeral"})),
        ("another effort", loop() | {"output_config": {"effort": "low"}}),
        ("the oldest thinking is gone", without(loop(), (1, 0))),
        ("the two oldest are gone", without(loop(), (1, 0), (1, 3))),
        ("all of it is gone", without(loop(), (1, 0), (1, 3), (3, 0))),
        ("more is said", loop() | {"messages": [*loop()["messages"], {"role": "user", "content": "more"}]}),
    ],
)
def test_what_keeps_thinking_valid(name: str, body: Json) -> None:
    assert verify(body, []).wrong is None, name


EDITED = [
    ("The `system` prompt differs", 1, loop() | {"system": "You are Reverie!"}),
    ("The `tools` differ", 1, loop() | {"tools": [TOOL, TOOL | {"name": "more"}]}),
    ("The `tools` differ", 1, loop() | {"tools": []}),
    (
        "An earlier message differs",
        1,
        loop() | {"messages": [{"role": "user", "content": "ho"}, *loop()["messages"][1:]]},
    ),
    ("An earlier message differs", 1, changed(loop(), 1, 1, text="Let me look.")),  # its own thinking is in front
    ("An earlier message differs", 3, changed(loop(), 2, 0, content="stubbed")),
    ("An earlier message differs", 3, without(loop(), (1, 3))),  # out of the middle of the run
]


@pytest.mark.parametrize(("why", "place", "body"), EDITED)
def test_editing_what_came_before_invalidates_thinking(why: str, place: int, body: Json) -> None:
    wrong = verify(body, []).wrong
    assert wrong is not None
    index = 3 if "look." in str(body["messages"][1]["content"]) else 0
    kind = body["messages"][place]["content"][index]["type"]
    assert wrong.startswith(
        f"messages.{place}.content.{index}: Invalid `signature` in `{kind}` block. The block is bound to a different "
        "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior`"
    )
    assert why in wrong


@pytest.mark.parametrize(("why", "place", "body"), EDITED)
def test_invalid_thinking_can_be_dropped_instead(why: str, place: int, body: Json) -> None:
    mild = body | {"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}}
    verdict = verify(mild, [CONTROLS])
    assert verdict.wrong is None, why
    assert verdict.dropped[0]["path"].startswith(f"messages.{place}.content.")
    assert {told["reason"] for told in verdict.dropped} == {"prefix_binding_mismatch"}
    assert {told["type"] for told in verdict.dropped} == {"thinking_dropped"}

    assert thinking(body) - thinking(verdict.body) == len(verdict.dropped)
    assert verify(verdict.body, [CONTROLS]).dropped == []


@pytest.mark.parametrize("model", ["claude-mythos-5-1", "claude-opus-5", "claude-sonnet-4-5"])
def test_other_models_do_not_check_the_prefix(model: str) -> None:
    body = loop(model) | {"system": "another"}
    assert verify(body, []).wrong is None
    assert verify(changed(body, 3, 0, thinking="edited"), []).wrong is not None


def test_thinking_that_was_changed_is_refused() -> None:
    body = loop()
    latest = verify(changed(body, 3, 0, thinking="edited"), []).wrong
    assert latest == (
        "messages.3.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
        "modified. These blocks must remain as they were in the original response."
    )
    for change in (
        {"thinking": "edited"},
        {"signature": ""},
        {"signature": "AAAA" + "B" * 80},
        {"signature": "no base64"},
    ):
        earlier = verify(changed(body, 1, 0, **change), []).wrong
        assert earlier == "messages.1.content.0: Invalid `signature` in `thinking` block"
    assert verify(changed(body, 1, 3, data="x"), []).wrong is not None


def test_a_model_that_cannot_read_it_drops_it_silently() -> None:
    body = loop("claude-fable-5-1") | {"model": "claude-opus-5"}
    verdict = verify(body, [])
    assert (verdict.wrong, verdict.dropped) == (None, [])
    assert [len(m["content"]) for m in verdict.body["messages"][1::2]] == [3, 1]
    told = verify(body, [CONTROLS]).dropped
    assert [block["reason"] for block in told] == ["model_binding_mismatch"] * 3
    older = loop("claude-opus-5") | {"model": "claude-fable-5-1", "system": "another"}
    assert verify(older, []).body == older, "a newer one reads what older ones thought"


def test_a_server_that_is_not_claude_signs_alike_and_checks_nothing() -> None:
    body = loop("m-1")
    assert body["messages"][1]["content"][0]["signature"] == UNCHECKED
    edited = changed(body | {"system": "another"}, 3, 0, thinking="edited")
    assert verify(edited, []) == Verdict(None, edited, [])


def test_the_newest_models_show_no_thinking_unless_asked() -> None:
    silent = asked() | {"thinking": {"type": "adaptive"}}
    (thought, *_) = answered(silent, THOUGHT, call("a"))["messages"][1]["content"]
    assert thought["thinking"] == ""
    assert len(thought["signature"]) > 40
    body = answered(silent, THOUGHT, call("a"))
    assert verify(body, []).wrong is None
    (thought, *_) = answered(asked("claude-opus-4-5") | {"thinking": {}}, THOUGHT)["messages"][1]["content"]
    assert thought["thinking"] == "hm"
