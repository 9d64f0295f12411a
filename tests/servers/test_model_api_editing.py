"""The fake's context editing, against platform.claude.com/docs/en/build-with-claude/context-editing."""

from typing import Any

import pytest

from tests.servers.messages_editing import BETA, PLACEHOLDER, edited
from tests.servers.messages_rules import check
from tests.servers.test_model_api_rules import HEADERS, body, text, user

Json = dict[str, Any]
MANAGED = HEADERS | {"anthropic-beta": BETA}
TOOLS = "clear_tool_uses_20250919"
THOUGHTS = {"type": "clear_thinking_20251015"}


def clear(**more: Any) -> Json:
    return {"type": TOOLS, **more}


def amount(kind: str, value: object) -> Json:
    return {"type": kind, "value": value}


def managed(*edits: Json, **more: Any) -> Json:
    return body(user(text()), context_management={"edits": list(edits)}, **more)


ADAPTIVE = {"thinking": {"type": "adaptive"}}
FULL = clear(
    trigger=amount("input_tokens", 30_000),
    keep=amount("tool_uses", 3),
    clear_at_least=amount("input_tokens", 5_000),
    exclude_tools=["web_search"],
    clear_tool_inputs=False,
)


@pytest.mark.parametrize("accepted", [managed(), managed(clear()), managed(FULL), managed(THOUGHTS, FULL, **ADAPTIVE)])
def test_what_is_documented_is_accepted_with_the_beta_and_only_then(accepted: Json) -> None:
    assert check(accepted, MANAGED) is None
    assert check(accepted, HEADERS) is not None


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("must be first", managed(clear(), THOUGHTS, **ADAPTIVE)),
        ("requires `thinking`", managed(THOUGHTS)),
        ("duplicate", managed(clear(), clear())),
        ("does not match any", managed({"type": "clear_everything"})),
        ("Extra inputs", managed(clear(placeholder="x"))),
        ("Extra inputs", body(user(text()), context_management={"edits": [], "keep": "all"})),
        ("trigger.type", managed(clear(trigger=amount("messages", 5)))),
        ("of the documented form", managed(clear(trigger=5))),
        ("trigger.value", managed(clear(trigger=amount("input_tokens", "many")))),
        ("keep.type", managed(clear(keep=amount("input_tokens", 5)))),
        ("keep.value", managed(clear(keep=amount("tool_uses", 0)))),
        ("clear_at_least.type", managed(clear(clear_at_least=amount("tool_uses", 5)))),
        ("exclude_tools", managed(clear(exclude_tools=[5]))),
        ("clear_tool_inputs", managed(clear(clear_tool_inputs="all"))),
        ("keep.type", managed({**THOUGHTS, "keep": amount("tool_uses", 1)}, **ADAPTIVE)),
        ("not support context management", {**managed(clear()), "model": "m-1"}),
    ],
)
def test_what_is_refused(said: str, wrong: Json) -> None:
    complaint = check(wrong, MANAGED)
    assert complaint is not None
    assert said in complaint.message


def used(number: int, name: str = "look_up") -> list[Json]:
    call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": {"n": number}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "found " * 100}
    thought = {"type": "thinking", "thinking": "hmm", "signature": "s"}
    return [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]


def size(whole: Json) -> int:
    return len(str(whole["messages"]))


def contents(whole: Json) -> list[str]:
    blocks = [block for message in whole["messages"] for block in message["content"] if isinstance(block, dict)]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


LONG = [user(text()), *used(0), *used(1, "note"), *used(2), *used(3)]


@pytest.mark.parametrize(
    ("edit", "gone"),
    [
        (clear(trigger=amount("input_tokens", 1)), [0]),
        (clear(trigger=amount("input_tokens", 1), keep=amount("tool_uses", 1)), [0, 1, 2]),
        (clear(trigger=amount("tool_uses", 3), keep=amount("tool_uses", 2)), [0, 1]),
        (clear(trigger=amount("tool_uses", 4), keep=amount("tool_uses", 2)), []),
        (clear(keep=amount("tool_uses", 1)), []),
        (clear(trigger=amount("input_tokens", 1), keep=amount("tool_uses", 1), exclude_tools=["note"]), [0, 2]),
        (clear(trigger=amount("input_tokens", 1), clear_at_least=amount("input_tokens", 500)), [0]),
        (clear(trigger=amount("input_tokens", 1), clear_at_least=amount("input_tokens", 5_000)), []),
    ],
)
def test_which_results_are_left_out(edit: Json, gone: list[int]) -> None:
    whole = body(*LONG, context_management={"edits": [edit]})
    read, applied = edited(whole, size)
    assert [place for place, content in enumerate(contents(read)) if content == PLACEHOLDER] == gone
    assert PLACEHOLDER not in contents(whole)
    saved = size(whole) - size(read)
    assert applied == ([{"type": TOOLS, "cleared_tool_uses": len(gone), "cleared_input_tokens": saved}] if gone else [])


def test_inputs_and_thinking_are_left_out_where_that_is_asked() -> None:
    inputs = clear(trigger=amount("input_tokens", 1), keep=amount("tool_uses", 3), clear_tool_inputs=True)
    edits = [{**THOUGHTS, "keep": amount("thinking_turns", 1)}, inputs]
    read, applied = edited(body(*LONG, context_management={"edits": edits}), size)
    kinds = [[block["type"] for block in message["content"]] for message in read["messages"][1::2]]
    assert kinds == [["tool_use"], ["tool_use"], ["tool_use"], ["thinking", "tool_use"]]
    assert [message["content"][-1]["input"] for message in read["messages"][1::2]] == [{}, {"n": 1}, {"n": 2}, {"n": 3}]
    assert [one.get("cleared_thinking_turns", one.get("cleared_tool_uses")) for one in applied] == [3, 1]
    same, nothing = edited(body(*LONG, context_management={"edits": [THOUGHTS]}), size)
    assert nothing == []
    assert same["messages"] == body(*LONG)["messages"]
