"""What real chat completion APIs refuse with 400, and pictures that either API does. Pure: a body in, a complaint out.

Sources: platform.claude.com/docs/en/build-with-claude/vision; platform.openai.com/docs/api-reference/chat and
guides/images-vision; llama.cpp#13516 and vllm#13978 (content, tool_calls).
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_IMAGE_TYPES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_IMAGE_BYTES = 5 * 1024 * 1024
"""Of one image, as base64."""
_MAGIC = {"image/jpeg": b"\xff\xd8\xff", "image/png": b"\x89PNG\r\n\x1a\n", "image/gif": b"GIF8", "image/webp": b"RIFF"}
_DATA_URL = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)

_OPENAI_KEYS = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "max_tokens",
    "temperature",
    "top_p",
    "repeat_penalty",
    "cache_prompt",  # this and the rest: llama.cpp
    "id_slot",
    "n_predict",
}


def openai(body: Json) -> str | None:
    """Check a chat completion request, as a strict compatible server would."""
    return next(_openai(body), None)


def picture(media_type: str, data: str) -> Iterator[str]:
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
            yield from picture(url[1], url[2])
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
    if body.get("tool_choice", "auto") not in ("auto", "none", "required"):
        yield "Invalid value for 'tool_choice'"
    if "tool_choice" in body and not body.get("tools"):
        yield "'tool_choice' is only allowed when 'tools' are specified."
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
