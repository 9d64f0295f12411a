"""Context editing of the Messages API: what it refuses, and what it makes of a request. Pure.

Source: platform.claude.com/docs/en/build-with-claude/context-editing. Only clearing is played, of tool results and of
thinking. The client's request stays whole, so each request is edited anew, and whatever thinking is bound to is what
was sent. Where the documentation is silent this errs to the caller's disadvantage: nothing is remembered of what was
cleared before, results that the model has not read yet are cleared like all others, and cleared bytes are other bytes.
"""

from collections.abc import Callable, Iterator

from tests.servers.messages_models import Profile
from tests.servers.messages_prompt import THINKING, Json, blocks

BETA = "context-management-2025-06-27"
PLACEHOLDER = "[cleared]"
_TOOLS, _THOUGHTS = "clear_tool_uses_20250919", "clear_thinking_20251015"
_KEYS = {
    _TOOLS: {"type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"},
    _THOUGHTS: {"type", "keep"},
}
_TRIGGER_TOKENS = 100_000
_KEEP = 3


def management(body: Json, model: Profile) -> Iterator[str]:
    """Check `context_management`."""
    wanted = body.get("context_management")
    if wanted is None:
        return
    if not model.clears:
        yield "context_management: this model does not support context management"
    for key in wanted.keys() - {"edits"}:
        yield f"context_management.{key}: Extra inputs are not permitted"
    kinds = [edit.get("type") for edit in wanted.get("edits") or []]
    for place, edit in enumerate(wanted.get("edits") or []):
        where = f"context_management.edits.{place}"
        kind = edit.get("type")
        if kind not in _KEYS:
            yield f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
            return
        for key in edit.keys() - _KEYS[kind]:
            yield f"{where}.{kind}.{key}: Extra inputs are not permitted"
        if kinds.count(kind) > 1:
            yield f"{where}: duplicate edit {kind}"
        if kind == _THOUGHTS:
            yield from _thoughts(where, edit, place, body)
        else:
            yield from _tools(where, edit)


def _thoughts(where: str, edit: Json, place: int, body: Json) -> Iterator[str]:
    if place:
        yield f"{where}: {_THOUGHTS} must be first in `edits`"
    if (body.get("thinking") or {}).get("type") not in {"enabled", "adaptive"}:
        yield f"{where}: {_THOUGHTS} requires `thinking` to be enabled or adaptive"
    keep = edit.get("keep", "all")
    if keep != "all":
        yield from _amount(f"{where}.keep", keep, {"thinking_turns"}, 1)


def _tools(where: str, edit: Json) -> Iterator[str]:
    yield from _amount(f"{where}.trigger", edit.get("trigger"), {"input_tokens", "tool_uses"}, 1)
    yield from _amount(f"{where}.keep", edit.get("keep"), {"tool_uses"}, 1)
    yield from _amount(f"{where}.clear_at_least", edit.get("clear_at_least"), {"input_tokens"}, 0)
    excluded = edit.get("exclude_tools") or []
    if not isinstance(excluded, list) or not all(isinstance(name, str) for name in excluded):
        yield f"{where}.exclude_tools: Input should be a valid list of strings"
    if not isinstance(edit.get("clear_tool_inputs", False), bool):
        yield f"{where}.clear_tool_inputs: Input should be a valid boolean"


def _amount(where: str, told: Json | None, kinds: set[str], least: int) -> Iterator[str]:
    if told is None:
        return
    if told.keys() != {"type", "value"} or told["type"] not in kinds:
        yield f"{where}.type: Input should be {' or '.join(repr(kind) for kind in sorted(kinds))}"
    elif not isinstance(told["value"], int) or isinstance(told["value"], bool) or told["value"] < least:
        yield f"{where}.value: Input should be an integer greater than or equal to {least}"


def edited(body: Json, count: Callable[[Json], int]) -> tuple[Json, list[Json]]:
    """Return the request as the model reads it, and `applied_edits`. `count`: tokens of a request's prompt."""
    applied: list[Json] = []
    for edit in (body.get("context_management") or {}).get("edits") or []:
        after, what = _forgotten(body, edit) if edit["type"] == _THOUGHTS else _cleared(body, edit, count(body))
        saved = count(body) - count(after)
        if sum(what.values()) and saved >= (edit.get("clear_at_least") or {"value": 0})["value"]:
            body = after
            applied.append({"type": edit["type"], **what, "cleared_input_tokens": saved})
    return body, applied


def _cleared(body: Json, edit: Json, tokens: int) -> tuple[Json, Json]:
    """Return it without the results of old tool uses, if it is past the trigger."""
    used = {
        block["id"]: block["name"]
        for message in body["messages"]
        for block in blocks(message["content"])
        if block["type"] == "tool_use" and block["name"] not in (edit.get("exclude_tools") or [])
    }
    trigger = edit.get("trigger") or {"type": "input_tokens", "value": _TRIGGER_TOKENS}
    if (tokens if trigger["type"] == "input_tokens" else len(used)) <= trigger["value"]:
        return body, {"cleared_tool_uses": 0}
    keep = (edit.get("keep") or {"value": _KEEP})["value"]
    gone = set(list(used)[: max(0, len(used) - keep)])

    def bare(block: Json) -> Json:
        if block["type"] == "tool_result" and block["tool_use_id"] in gone:
            return {**block, "content": PLACEHOLDER}
        if block["type"] == "tool_use" and block["id"] in gone and edit.get("clear_tool_inputs"):
            return {**block, "input": {}}
        return block

    messages = [{**one, "content": [bare(block) for block in blocks(one["content"])]} for one in body["messages"]]
    return {**body, "messages": messages}, {"cleared_tool_uses": len(gone)}


def _forgotten(body: Json, edit: Json) -> tuple[Json, Json]:
    """Return it without the thinking of old turns."""
    keep = edit.get("keep", "all")
    places = [
        place
        for place, message in enumerate(body["messages"])
        if any(block["type"] in THINKING for block in blocks(message["content"]))
    ]
    old = [] if keep == "all" else places[: max(0, len(places) - keep["value"])]
    messages = [
        {**one, "content": [b for b in blocks(one["content"]) if place not in old or b["type"] not in THINKING]}
        for place, one in enumerate(body["messages"])
    ]
    return {**body, "messages": messages} if old else body, {"cleared_thinking_turns": len(old)}
