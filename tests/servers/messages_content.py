"""What the Messages API refuses of messages: blocks, roles, pairs of calls and results. Pure.

Sources: see `messages_rules`. Complaints name the place as the API does, `messages.1.content.0`.
"""

import re
from collections.abc import Iterator

from tests.servers.messages_models import Profile
from tests.servers.messages_prompt import THINKING, Json, blocks
from tests.servers.model_api_rules import picture

_NO_DOCUMENTS_FROM = "2026-10-21"
"""The version since which assistant messages hold no document (docs/en/api/migration-2026-10-21)."""
_CLEAR_AT = "mid-conversation-system-clear-at-2026-08-21"
_MAX_IMAGES = 100
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_BLOCK_KEYS = {
    "text": {"text", "citations", "cache_control"},
    "image": {"source", "cache_control"},
    "document": {"source", "title", "context", "citations", "cache_control"},
    "tool_use": {"id", "name", "input", "cache_control"},
    "tool_result": {"tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
}
_NEEDED = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
}
_MAY_SAY = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "document", "tool_use", *THINKING},
    "system": {"text"},
}


def conversation(messages: list[Json], model: Profile, version: str, betas: list[str]) -> Iterator[str]:
    """Check `messages`."""
    if not messages:
        yield "messages: at least one message is required"
        return
    for place, message in enumerate(messages):
        yield from _message(f"messages.{place}", message, version, betas)
    if messages[0]["role"] == "system":
        yield "messages.0: use the top-level 'system' parameter for the initial system prompt"
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    if messages[-1]["role"] == "assistant":
        if not model.prefill:
            yield (
                "This model does not support assistant message prefill. The conversation must end with a user message."
            )
        last = blocks(messages[-1]["content"])
        if last and last[-1]["type"] == "text" and last[-1]["text"] != last[-1]["text"].rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"
    yield from _systems(messages, model)
    yield from _pairs(messages)
    shown = sum(block["type"] == "image" for message in messages for block in blocks(message["content"]))
    if shown > _MAX_IMAGES:
        yield f"Too many images: {shown} > {_MAX_IMAGES}"


def _message(where: str, message: Json, version: str, betas: list[str]) -> Iterator[str]:
    role = message.get("role")
    if role not in _MAY_SAY:
        yield f"{where}.role: Input should be 'user', 'assistant' or 'system'"
        return
    for key in message.keys() - {"role", "content"}:
        if not (role == "system" and key == "clear_at" and _CLEAR_AT in betas):
            yield f"{where}.{key}: Extra inputs are not permitted"
    if message.get("clear_at", "next_user_message") != "next_user_message":
        yield f"{where}.clear_at: Input should be 'next_user_message'"
    content = message.get("content")
    if not isinstance(content, list | str):
        yield f"{where}.content: Input should be a valid list"
        return
    if not content:
        yield f"{where}: all messages must have non-empty content except for the optional final assistant message"
    for index, block in enumerate(blocks(content)):
        if block.get("type") == "text" and len(block) == 2 and block["text"].strip():
            continue  # nearly all of them
        place = f"{where}.content.{index}"
        yield from _block(place, block)
        if block["type"] not in _MAY_SAY[role]:
            yield f"{place}: {block['type']} blocks are only permitted in {_owner(block['type'])} messages"
        if block["type"] == "document" and role == "assistant" and version >= _NO_DOCUMENTS_FROM:
            yield f"{place}: document blocks are only permitted in user messages"
    if role == "assistant" and content and blocks(content)[-1]["type"] in THINKING:
        yield f"{where}: The final block in an assistant message cannot be `{blocks(content)[-1]['type']}`."


def _owner(kind: str) -> str:
    return "user" if kind in _MAY_SAY["user"] else "assistant"


def _block(place: str, block: Json) -> Iterator[str]:
    kind = block.get("type")
    if kind not in _BLOCK_KEYS:
        yield f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
        return
    for key in block.keys() - _BLOCK_KEYS[kind] - {"type"}:
        yield f"{place}.{kind}.{key}: Extra inputs are not permitted"
    for key in _NEEDED.get(kind, ()):
        if key not in block:
            yield f"{place}.{kind}.{key}: Field required"
    if kind == "text":
        if not block["text"] and "cache_control" in block:
            yield f"{place}.text: cache_control cannot be set for empty text blocks"
        if not block["text"]:
            yield "messages: text content blocks must be non-empty"
        if not block["text"].strip():
            yield "messages: text content blocks must contain non-whitespace text"
    elif kind == "image":
        yield from _image(place, block.get("source") or {})
    elif kind == "tool_use":
        if not isinstance(block["input"], dict):
            yield f"{place}.tool_use.input: Input should be a valid dictionary"
        if not _ID.fullmatch(block["id"]):
            yield f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    elif kind == "tool_result" and not isinstance(block.get("content", ""), str):
        for index, inner in enumerate(block["content"]):
            within = f"{place}.tool_result.content.{index}"
            if inner.get("type") not in {"text", "image", "document"}:
                yield f"{within}: Input tag '{inner.get('type')}' does not match any of the expected tags"
            if "cache_control" in inner:
                yield f"{within}.{inner['type']}.cache_control: Extra inputs are not permitted"
            yield from _block(within, inner)


def _image(place: str, source: Json) -> Iterator[str]:
    if source.keys() != {"type", "media_type", "data"}:
        yield f"{place}.image.source: Extra inputs are not permitted"
    elif source["type"] != "base64":  # URLs are taken there; this fake fetches nothing
        yield f"{place}.image.source.type: Input should be 'base64'"
    else:
        for wrong in picture(source["media_type"], source["data"]):
            yield f"{place}.image.source.base64: {wrong}"


def _systems(messages: list[Json], model: Profile) -> Iterator[str]:
    for place, message in enumerate(messages):
        if message["role"] != "system":
            continue
        if not model.system_messages:
            yield "role 'system' is not supported on this model"
        before = messages[place - 1]["role"] if place else ""
        after = messages[place + 1]["role"] if place + 1 < len(messages) else "assistant"
        if before != "user" or after != "assistant":
            yield (
                f"messages.{place}: role 'system' must directly follow a user message, "
                "and be the last message or be followed by an assistant message"
            )


def merged(messages: list[Json]) -> list[tuple[str, list[Json]]]:
    """Return role and content; neighbours of the same role are one message to the API, system messages none."""
    out: list[tuple[str, list[Json]]] = []
    for message in messages:
        content = blocks(message["content"])
        if message["role"] == "system":
            continue
        if out and out[-1][0] == message["role"]:
            out[-1] = (message["role"], out[-1][1] + content)
        else:
            out.append((message["role"], content))
    return out


def _pairs(messages: list[Json]) -> Iterator[str]:
    asked: list[str] = []
    ever: set[str] = set()
    for place, (_, content) in enumerate(merged(messages)):
        answers = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if missing := [ident for ident in asked if ident not in answers]:
            yield (
                f"messages.{place - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message."
            )
        for ident in answers:
            if ident not in asked:
                yield (
                    f"messages.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {ident}. Each "
                    "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
        if len(set(answers)) < len(answers):
            yield f"messages.{place}: each tool_use must have a single result."
        if any(block["type"] == "tool_result" for block in content[len(answers) :]):
            yield f"messages.{place}: tool_result blocks must come first in content"
        asked = [block["id"] for block in content if block["type"] == "tool_use"]
        if ever & set(asked) or len(set(asked)) < len(asked):
            yield f"messages.{place}: `tool_use` ids must be unique"
        ever |= set(asked)
    if asked:
        yield f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(asked)}."
