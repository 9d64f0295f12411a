"""Requests in the dialect of the Messages API. Pure: a `ModelRequest` in, JSON-ready values out.

Obeys platform.claude.com/docs/en: api/messages, agents-and-tools/tool-use/handle-tool-calls (results of all calls
first, in the very next message), build-with-claude/prompt-caching (marks, `max_tokens: 0`), build-with-claude/vision
and build-with-claude/mid-conversation-system-messages (behind a user message, and last or before the assistant's).
"""

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.models.anthropic_marks import apply_breakpoints
from agent.models.anthropic_thinking import Json, PrefixHash, RecallThinking, RequestSuffix
from agent.models.base import Image, MessagePart, ModelMessage, ModelRequest, TextPart, ToolCall, ToolResult

_EMPTY_USER_TEXT = "(nothing yet)"
"""A request needs words of the user, also if only what is in front of them is to be read."""
_INVALID_ID_CHARS = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)

_IndexedParts = list[tuple[int, MessagePart]]
"""Pieces, each with the number of the `ModelMessage` that it is of."""


@dataclass(slots=True, kw_only=True)
class AnthropicRequest:
    """One request in the API's dialect."""

    body: Json
    suffix: RequestSuffix
    has_system_messages: bool
    """There are system messages among the messages."""
    has_breakpoints: bool
    """Something is marked for the cache."""
    recalled_call_ids: tuple[str, ...]
    """Answers that are sent with their thinking, by the ids of their first calls."""
    ephemeral_from: int | None
    """Which `ModelMessage` the first of them is; None: there is none."""
    _prefix: PrefixHash
    _messages: Sequence[Json]

    def digest(self) -> str:
        """Return what thinking in the answer is bound to: everything but the marks. Takes as long as writing it."""
        return self._prefix.digest(self._messages)


def build_anthropic_request(
    request: ModelRequest,
    *,
    model: str,
    recall: RecallThinking = lambda _: None,
    options: Mapping[str, object] | None = None,
    systems: bool = False,
) -> AnthropicRequest:
    """Write a request out. `options` go into the body as they are; `systems`: the model takes system messages.

    A mark at a place that is not there or takes none is left out.
    """
    tools: list[Json] = [
        {"name": t.name, "description": t.description, "input_schema": json.loads(t.schema)} for t in request.tools
    ]
    system: list[Json] = [{"type": "text", "text": block.text} for block in request.blocks]
    laid = _MessageLayout(PrefixHash([model, tools, system]), systems=systems)
    loop = find_tool_loop_start(request.conversation)
    for role, parts in _merge_roles(request.conversation):
        laid.add_message(role, parts, recall if parts[0][0] >= loop else lambda _: None)
    told = laid.add_suffix(RequestSuffix(request.aside, request.now))
    messages = laid.messages
    if not request.max_output_tokens and not (messages and messages[-1]["role"] in {"user", "system"}):
        messages = _with_suffix(messages, RequestSuffix(now=_EMPTY_USER_TEXT), systems=False)
    body: Json = {"model": model, "max_tokens": request.max_output_tokens, **(options or {})}
    if request.max_output_tokens:
        body["stream"] = True  # refused with 0
    marks = request.breakpoints
    if request.answer_only and tools:  # with another `tool_choice` messages are read from no cache, and by nobody later
        body["tool_choice"] = {"type": "none"}
        marks = tuple([mark for mark in marks if mark.behind != "said"])
    with_marks = apply_breakpoints(marks, tools, system, messages, laid.places)
    body |= {key: value for key, value in with_marks.items() if value}
    return AnthropicRequest(
        body=body,
        suffix=told,
        has_system_messages=any(message["role"] == "system" for message in messages),
        has_breakpoints=bool(marks),
        recalled_call_ids=tuple(laid.recalled_call_ids),
        ephemeral_from=laid.ephemeral_from,
        _prefix=laid.prefix,
        _messages=messages,
    )


def find_tool_loop_start(conversation: Sequence[ModelMessage]) -> int:
    """Where the tool loop begins that the conversation ends in; its length if it ends in none.

    Thinking is sent back within its loop only, so what later turns repeat of it does not depend on who remembers it.
    """
    place = len(conversation)
    while place > 1 and any(isinstance(part, ToolResult) for part in conversation[place - 1].parts):
        place -= 2
    return place


class _MessageLayout:
    """The messages, as far as they are laid out."""

    def __init__(self, prefix: PrefixHash, *, systems: bool) -> None:
        self.prefix = prefix
        self.messages: list[Json] = []
        self.places: dict[int, list[tuple[int, int]]] = {}
        """Of each `ModelMessage`: message and block of all that it became."""
        self.recalled_call_ids: list[str] = []
        self.ephemeral_from: int | None = None
        self._takes_system_messages = systems
        self._suffix = RequestSuffix()

    def add_message(self, role: str, parts: _IndexedParts, recall: RecallThinking) -> None:
        content = self._recall_content(parts, recall) if role == "assistant" else None
        if content is None:
            content = _render_content(parts)
        for index, (number, _) in enumerate(content):
            self.places.setdefault(number, []).append((len(self.messages), index))
        self.messages.append({"role": role, "content": [block for _, block in content]})

    def _recall_content(self, parts: _IndexedParts, recall: RecallThinking) -> list[tuple[int, Json]] | None:
        """Return an answer as it came, what was told in front of it told again; None: that is not to be had."""
        thought = recall(ModelMessage(role="assistant", parts=tuple(part for _, part in parts)))
        if thought is None:
            return None
        before = _with_suffix(self.messages, thought.suffix, systems=self._takes_system_messages)
        if self.prefix.digest(before) != thought.prefix_digest:
            return None
        self.messages = before
        self.recalled_call_ids.append(thought.calls[0].id)
        self.ephemeral_from = parts[0][0] if self.ephemeral_from is None else self.ephemeral_from
        self._suffix = RequestSuffix(
            *[f"{old}\n{new}".strip() for old, new in zip(self._suffix, thought.suffix, strict=True)]
        )
        return [(parts[-1][0], block) for block in thought.content]

    def add_suffix(self, told: RequestSuffix) -> RequestSuffix:
        """Tell, at the end, what of it has not been told in front of an answer. Returns that."""
        told = RequestSuffix(
            *[_remaining_suffix(new.strip(), old) for new, old in zip(told, self._suffix, strict=True)]
        )
        self.messages = _with_suffix(self.messages, told, systems=self._takes_system_messages)
        return told


def _remaining_suffix(words: str, told: str) -> str:
    return words[len(told) :].strip() if told and f"{words}\n".startswith(f"{told}\n") else words


def parse_tool_input(arguments: str) -> Json:
    """Read a call's arguments for echoing them: the API takes objects only, the model may write anything."""
    try:
        value: object = json.loads(arguments or "{}", parse_constant=_reject_constant, parse_float=_parse_finite)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"malformed_arguments": arguments}


def _reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _parse_finite(written: str) -> float:
    if math.isinf(number := float(written)):  # 1e999: what Python would write for it is not JSON
        raise ValueError(f"{written} is too large for a number")
    return number


def _merge_roles(conversation: Iterable[ModelMessage]) -> list[tuple[str, _IndexedParts]]:
    """Join neighbours of the same role, and drop those who say nothing."""
    out: list[tuple[str, _IndexedParts]] = []
    for number, said in enumerate(conversation):
        parts: _IndexedParts = [(number, p) for p in said.parts if not isinstance(p, TextPart) or p.text.strip()]
        if not parts:
            continue
        if out and out[-1][0] == said.role:
            out[-1][1].extend(parts)
        else:
            out.append((said.role, parts))
    return out


def _render_content(parts: _IndexedParts) -> list[tuple[int, Json]]:
    """Write pieces as blocks, results first."""
    blocks = [(number, _render_block(part)) for number, part in parts]
    if any(isinstance(part, ToolResult) for _, part in parts):
        blocks.sort(key=lambda block: block[1]["type"] != "tool_result")
    return blocks


def _render_block(part: MessagePart) -> Json:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case Image():
            data = base64.b64encode(part.data).decode()
            return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}
        case ToolCall():
            written = parse_tool_input(part.arguments)
            return {"type": "tool_use", "id": _sanitize_id(part.id), "name": _sanitize_id(part.name), "input": written}
        case ToolResult():
            result: Json = {"type": "tool_result", "tool_use_id": _sanitize_id(part.id), "content": part.text}
            return result | {"is_error": True} if part.is_error else result


def _sanitize_id(name: str) -> str:
    """Write another provider's id or name (`functions.look_up:0`) in the letters that this one takes."""
    return _INVALID_ID_CHARS.sub("_", name) or "_"


def _with_suffix(messages: list[Json], told: RequestSuffix, *, systems: bool) -> list[Json]:
    """Return the messages with what is told behind them. Changes none of them: they may be hashed already."""
    if told.aside:
        messages = _append_to_user(messages, told.aside)
    if not told.now:
        return messages
    if systems and messages and messages[-1]["role"] == "user":
        return [*messages, {"role": "system", "content": told.now}]
    return _append_to_user(messages, told.now)


def _append_to_user(messages: list[Json], words: str) -> list[Json]:
    """Add to the user's last words."""
    block: Json = {"type": "text", "text": words}
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": [block]}]
    content = messages[-1]["content"]
    assert isinstance(content, list)
    return [*messages[:-1], {"role": "user", "content": [*content, block]}]
