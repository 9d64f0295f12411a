"""What the real model APIs refuse with 400. Pure: a request's body in, a complaint or None out.

Sources: platform.claude.com/docs/en/api/messages, handle-tool-calls, prompt-caching;
platform.openai.com/docs/api-reference/chat; llama.cpp#13516 and vllm#13978 (content, tool_calls).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

Json = dict[str, Any]

_ANTHROPIC_KEYS = {"model", "max_tokens", "stream", "system", "tools", "messages", "tool_choice", "thinking"}
_OPENAI_KEYS = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "max_tokens",
    "temperature",
    "top_p",
    "repeat_penalty",
}


def anthropic(body: Json) -> str | None:
    """Check a Messages request."""
    return next(_anthropic(body), None)


def openai(body: Json) -> str | None:
    """Check a chat completion request, as a strict compatible server would."""
    return next(_openai(body), None)


def _anthropic(body: Json) -> Iterator[str]:
    for key in body.keys() - _ANTHROPIC_KEYS:
        yield f"{key}: Extra inputs are not permitted"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "max_tokens: Field required"
    if not body.get("model"):
        yield "model: Field required"
    messages = body.get("messages") or []
    if not messages or messages[0]["role"] != "user":
        yield "messages: first message must use the user role"
    if messages and messages[-1]["role"] != "user":
        yield "This model does not support assistant message prefill"
    for before, after in pairwise(messages):
        if before["role"] == after["role"]:  # the API merges them; our clients have no reason to rely on that
            yield "messages: roles must alternate"
    yield from _texts([*(body.get("system") or []), *(b for m in messages for b in m["content"])])
    yield from _pairs(messages)
    yield from _marks(body, messages)


def _texts(blocks: list[Json]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            yield "text content blocks must contain non-whitespace text"
        if block["type"] == "tool_use" and not isinstance(block["input"], dict):
            yield "tool_use.input: Input should be a valid dictionary"


def _pairs(messages: list[Json]) -> Iterator[str]:
    asked: set[str] = set()
    for message in messages:
        kinds = [block["type"] for block in message["content"]]
        answered = {block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"}
        if asked - answered:
            yield "`tool_use` ids were found without `tool_result` blocks immediately after"
        if answered - asked:
            yield "unexpected `tool_use_id` found in `tool_result` blocks"
        if "tool_result" in kinds[len(answered) :]:
            yield "tool_result blocks must come first in content"
        asked = {block["id"] for block in message["content"] if block["type"] == "tool_use"}
    if asked:
        yield "`tool_use` ids were found without `tool_result` blocks immediately after"


def _marks(body: Json, messages: list[Json]) -> Iterator[str]:
    blocks = [*(body.get("tools") or []), *(body.get("system") or []), *(b for m in messages for b in m["content"])]
    marked = [block for block in blocks if "cache_control" in block]
    if len(marked) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
    ttls = [block["cache_control"].get("ttl", "5m") for block in marked]
    if ttls != sorted(ttls, key=["1h", "5m"].index):
        yield "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    if any(block.get("type") in {"thinking", "redacted_thinking"} for block in marked):
        yield "cache_control: thinking blocks cannot be marked"


def _openai(body: Json) -> Iterator[str]:
    for key in body.keys() - _OPENAI_KEYS:
        yield f"Unrecognized request argument supplied: {key}"
    if "max_tokens" not in body:
        yield "max_tokens is required here"
    messages = body.get("messages") or []
    if not messages or messages[-1]["role"] == "assistant":
        yield "the last message must not be the assistant's"
    if body.get("tools") == []:
        yield "[] is too short - 'tools'"
    before = ""
    asked: set[str] = set()
    for place, message in enumerate(messages):
        role = message["role"]
        if not isinstance(message.get("content"), str):
            yield "content must be a string"
        if role == "system" and place:
            yield "System message must be at the beginning."
        if role in {"user", "assistant"} and role == before:
            yield "Conversation roles must alternate user/assistant/user/assistant/..."
        if role == "tool":
            if message["tool_call_id"] not in asked:
                yield "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            asked.discard(message["tool_call_id"])
        elif asked:
            yield "An assistant message with 'tool_calls' must be followed by tool messages for each 'tool_call_id'"
        if message.get("tool_calls") == []:
            yield "[] is too short - 'messages.tool_calls'"
        if role == "assistant":
            asked = {call["id"] for call in message.get("tool_calls") or []}
        before = role
    if asked:
        yield "An assistant message with 'tool_calls' must be followed by tool messages for each 'tool_call_id'"
