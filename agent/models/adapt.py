"""Requests in the form that a model or its API can take. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agent.models.base import MessagePart, Model, ModelMessage, ModelRequest, TextPart, ToolResult
from agent.tokens.counter import measure_prompt
from gateway.core.tool_spec import Image, ToolCall

Json = dict[str, object]


def adapt_request(request: ModelRequest, model: Model) -> ModelRequest:
    """Return `request` as `model` can take it: within its output limit; without tools or images if
    it takes none.

    Without tools, results become text of the user, and calls become a note of the assistant.
    Without images, their descriptions stand in their place.
    """
    if request.max_output_tokens > model.max_output_tokens:
        request = replace(request, max_output_tokens=model.max_output_tokens)
    if not model.takes_images and measure_prompt(request).images:
        request = replace(
            request,
            conversation=tuple(
                _map_parts(message, _replace_image) for message in request.conversation
            ),
        )
    return request if model.takes_tools else strip_tools(request)


def strip_tools(request: ModelRequest) -> ModelRequest:
    """Return the request without tools; calls and results become text."""
    conversation = tuple(
        [_map_parts(message, _replace_tool_use) for message in request.conversation]
    )
    return replace(request, tools=(), answer_only=False, conversation=conversation)


def _map_parts(message: ModelMessage, change: Callable[[MessagePart], MessagePart]) -> ModelMessage:
    """Apply `change` to all parts. Returns the same object if nothing changed: callers rely on
    that.
    """
    parts = tuple([change(part) for part in message.parts])
    same = all(new is old for new, old in zip(parts, message.parts, strict=True))
    return message if same else ModelMessage(role=message.role, parts=parts)


def _replace_image(part: MessagePart) -> MessagePart:
    return TextPart(text=part.description) if isinstance(part, Image) else part


def _replace_tool_use(part: MessagePart) -> MessagePart:
    if isinstance(part, Image):
        return part
    return TextPart(
        text=f"(used the tool {part.name})" if isinstance(part, ToolCall) else part.text
    )


def append_suffix(request: ModelRequest) -> tuple[ModelMessage, ...]:
    """Return the conversation with `aside` and `now` as the user's last text, for APIs without a
    better place.
    """
    suffix = tuple([TextPart(text=text) for text in (request.aside, request.now) if text.strip()])
    if not suffix:
        return request.conversation
    *before, last = request.conversation or (ModelMessage(role="user", parts=()),)
    if last.role != "user":
        before, last = [*before, last], ModelMessage(role="user", parts=())
    return (*before, ModelMessage(role="user", parts=(*last.parts, *suffix)))


def find_tool_loop_start(conversation: Sequence[ModelMessage]) -> int:
    """Return the index at which the tool loop begins that the conversation ends in; its length if
    it ends in none.

    Thinking is sent back within its loop only, so the prompts of later turns do not depend on what
    is remembered.
    """
    start = len(conversation)
    while start > 1 and any(isinstance(part, ToolResult) for part in conversation[start - 1].parts):
        start -= 2
    return start


def write_kept(fields: Json, model: str) -> str:
    """Return as text what belongs to an answer of `model`, and only the same model reads back (e.g.
    signatures). Empty: nothing.
    """
    return json.dumps({"model": model} | fields) if fields else ""


def read_kept(written: str, model: str) -> dict[str, Any]:
    """Return what `write_kept` wrote for the same model; else nothing."""
    kept: dict[str, Any] = json.loads(written) if written else {}
    return kept if kept.get("model") == model else {}


def parse_tool_input(arguments: str) -> Json:
    """Parse a call's arguments for sending them back: the API takes objects only, but the model may
    write anything.
    """
    try:
        value: object = json.loads(arguments or "{}")
        json.dumps(value, allow_nan=False)  # Python reads NaN and 1e999, which JSON does not have
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"malformed_arguments": arguments}
