"""What the real model APIs refuse with 400. Pure: a request's body in, a complaint or None out.

Sources: platform.claude.com/docs/en/api/messages, handle-tool-calls, prompt-caching;
platform.claude.com/docs/en/build-with-claude/vision; platform.openai.com/docs/api-reference/chat and
guides/images-vision; llama.cpp#13516 and vllm#13978 (content, tool_calls).
"""

import base64
import binascii
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

Json = dict[str, Any]

_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_IMAGE_BYTES = 5 * 1024 * 1024
"""Of one image, as base64."""
_IMAGES = 100
"""In one request."""
_MAGIC = {"image/jpeg": b"\xff\xd8\xff", "image/png": b"\x89PNG\r\n\x1a\n", "image/gif": b"GIF8", "image/webp": b"RIFF"}
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)

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
    yield from _pictures(messages)


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


def _pictures(messages: list[Json]) -> Iterator[str]:
    shown = [block for message in messages for block in message["content"] if block["type"] == "image"]
    if any(block["type"] == "image" for m in messages if m["role"] == "assistant" for block in m["content"]):
        yield "image blocks are only permitted in user messages"
    if len(shown) > _IMAGES:
        yield f"Too many images: {len(shown)} > {_IMAGES}"
    for block in shown:
        source = block.get("source") or {}
        if block.keys() - {"type", "source", "cache_control"} or source.keys() != {"type", "media_type", "data"}:
            yield "image: Extra inputs are not permitted"
        elif source["type"] != "base64":
            yield "image.source.type: Input should be 'base64'"
        else:
            yield from _picture(source["media_type"], source["data"])


def _picture(media_type: str, data: str) -> Iterator[str]:
    """One image of either API: declared as what it is, whole base64, not too large."""
    if media_type not in _IMAGE_TYPES:
        yield f"media_type: Input should be one of {sorted(_IMAGE_TYPES)}"
        return
    if len(data) > _IMAGE_BYTES:
        yield f"image exceeds 5 MB maximum: {len(data)} bytes > {_IMAGE_BYTES} bytes"
    try:
        raw = base64.b64decode(data, validate=True)
    except binascii.Error:
        yield "image: invalid base64 data"
        return
    if not raw.startswith(_MAGIC[media_type]):
        yield f"image does not match the provided media type {media_type}"
    if b"broken" in raw:  # how a test makes a picture that looks like one from outside
        yield "Could not process image"


def _pieces(role: str, content: list[Json]) -> Iterator[str]:
    """The parts of a chat completion message that is no plain string."""
    if role != "user":
        yield "content must be a string"
        return
    for piece in content:
        if piece.get("type") == "text" and str(piece.get("text", "")).strip():
            continue
        if piece.get("type") != "image_url" or piece.keys() != {"type", "image_url"}:
            yield "content parts are text that is not empty and image_url"
        elif url := _DATA_URL.fullmatch(piece["image_url"]["url"]):
            yield from _picture(url[1], url[2])
        else:
            yield "image_url.url: expected a base64-encoded data URL"


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
        if isinstance(message.get("content"), list):
            yield from _pieces(role, message["content"])
        elif not isinstance(message.get("content"), str):
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
