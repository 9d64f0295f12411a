"""Requests in the dialect of chat completions. Pure: a `ModelRequest` in, JSON-ready values out.

Obeys platform.openai.com/docs/api-reference/chat, guides/images-vision and guides/prompt-caching (breakpoints stand on
parts of system, user and tool messages, never on the assistant's; at most four are written); for the oddities of
others see the comments where they are met.
"""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from agent.models.anthropic_wire import find_tool_loop_start, parse_tool_input
from agent.models.base import Image, ModelMessage, ModelRequest, TextPart, ToolCall, ToolResult, append_suffix

Json = dict[str, object]
RecallFields = Callable[[ModelMessage], Json | None]
"""Given an assistant's `ModelMessage` with calls: fields with the thinking that came with it, or None."""

_OPENAI_HOSTS = re.compile(r"([a-z0-9-]+\.)?api\.openai\.com(:443)?")
"""OpenAI itself, also by region (eu.api.openai.com): takes fields that strict compatible servers refuse, and
its reasoning models refuse `max_tokens`."""
_BREAKPOINT_MODELS = re.compile(r"gpt-(5\.([6-9]|\d\d)|([6-9]|\d\d)(?!\d))")
"""Models that cache up to breakpoints only: gpt-5.6 and later."""
_LIFETIMES = {"1h": "12h", "5m": "30m"}
"""Ours, in what OpenAI has; each is the least that it keeps an entry."""
_UNSUPPORTED = re.compile(
    r"unsupported|not supported|not support|unrecognized|unrecognised|unknown|unexpected|not permitted|not allowed"
    r"|invalid (?:parameter|argument|field)|is required|field required|missing|instead|deprecated",
    re.IGNORECASE,
)
"""How servers say that they take no such field, or want another one."""
_REQUIRED_FIELDS = frozenset({"model", "messages", "stream", "tools"})
"""Without these there is no answer that is of use."""
_EMPTY_USER_TEXT = "(nothing yet)"
"""In place of a user who has said nothing: templates of Qwen's answer 500 without one (vllm#36432)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIDialect:
    """What one server takes beyond what all do."""

    is_openai: bool = False
    """It is OpenAI itself."""
    takes_breakpoints: bool = False
    """It caches what it is told to."""
    takes_max_completion_tokens: bool = False
    """It wants `max_completion_tokens`, not `max_tokens`."""
    dropped_fields: frozenset[str] = frozenset()
    """Fields that it does not take."""
    identity_in: Literal["system", "user"] = "system"
    """Where the blocks go: a system message, or the beginning of the first user message."""


def find_dialect(where: str, model: str, *, identity_in: Literal["system", "user"] = "system") -> OpenAIDialect:
    """The dialect spoken at `where` (host and port) for `model`."""
    openai = _OPENAI_HOSTS.fullmatch(where) is not None
    marked = openai and bool(_BREAKPOINT_MODELS.match(model))
    return OpenAIDialect(
        is_openai=openai, takes_max_completion_tokens=openai, takes_breakpoints=marked, identity_in=identity_in
    )


def drop_field(dialect: OpenAIDialect, body: Json, told: str) -> OpenAIDialect | None:
    """The dialect in which a refusal that says this is not said again. None: it names no field of the request.

    Only whole fields are looked for, and only where the field itself is refused, not its value.
    """
    if not _UNSUPPORTED.search(told):
        return None
    named = [field for field in body if re.search(rf"(?<![A-Za-z_]){re.escape(field)}(?![A-Za-z_])", told)]
    if "max_tokens" in named or ("max_tokens" in body and "max_completion_tokens" in told):
        return replace(dialect, takes_max_completion_tokens=True)
    if "max_completion_tokens" in named:
        return replace(dialect, takes_max_completion_tokens=False)
    if dialect.takes_breakpoints and "prompt_cache_" in told:
        return replace(dialect, takes_breakpoints=False, dropped_fields=dialect.dropped_fields | {*named})
    dropped = {field for field in named if field not in _REQUIRED_FIELDS}
    return replace(dialect, dropped_fields=dialect.dropped_fields | dropped) if dropped else None


def build_chat_request(
    request: ModelRequest, *, model: str, dialect: OpenAIDialect, recall: RecallFields = lambda _: None
) -> Json:
    """Lay out `request` as a chat completion. The same request gives the same bytes.

    `content` is always there, and a string but where there are images or breakpoints; `tool_calls` is left out when
    empty: chat templates break on both (llama.cpp#13516, vllm#13978). Blocks become one system message at the
    beginning, the only place where every template takes one.
    """
    body: Json = {
        "model": model,
        "messages": _build_messages(request, dialect, recall),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": json.loads(t.schema)},
            }
            for t in request.tools
        ]
        if request.answer_only:
            body["tool_choice"] = "none"
    body["max_completion_tokens" if dialect.takes_max_completion_tokens else "max_tokens"] = request.max_output_tokens
    if dialect.is_openai:
        body["prompt_cache_key"] = request.shared_key
    if dialect.takes_breakpoints and request.breakpoints:
        body["prompt_cache_options"] = {"mode": "explicit"}  # nothing that was not planned is written
    return body


def _build_messages(request: ModelRequest, dialect: OpenAIDialect, recall: RecallFields) -> list[Json]:
    marks = (
        {(mark.behind, mark.index): mark.lifetime for mark in request.breakpoints} if dialect.takes_breakpoints else {}
    )
    head = [
        _text_part(text if not place else f"\n\n{text}", marks.get(("block", place)))
        for place, text in enumerate(block.text for block in request.blocks)
    ]
    messages: list[Json] = []
    if head and dialect.identity_in == "system":
        messages.append({"role": "system", "content": _to_content(head, dialect)})
        head = []
    conversation = append_suffix(request)
    loop = find_tool_loop_start(conversation)
    for place, said in enumerate(conversation):
        if (
            not head
            and not dialect.takes_breakpoints
            and len(said.parts) == 1
            and isinstance(only := said.parts[0], TextPart)
        ):
            messages.append({"role": said.role, "content": only.text})  # nearly all of them, so this is kept short
        elif said.role == "assistant":
            messages.append(_assistant_message(said, recall if place >= loop else lambda _: None))
        else:
            stable = len(request.conversation[place].parts) if place < len(request.conversation) else 0
            messages.extend(_user_messages(said, stable, marks.get(("said", place)), head, dialect))
            head = head if not messages or messages[-1]["role"] != "user" else []
    if head or not messages or messages[-1]["role"] in {"assistant", "system"}:
        messages.append(
            {"role": "user", "content": _to_content([*head, _join_after(head, _text_part(_EMPTY_USER_TEXT))], dialect)}
        )
    return messages


def _user_messages(
    said: ModelMessage, stable: int, lifetime: str | None, head: list[Json], dialect: OpenAIDialect
) -> list[Json]:
    """Results first, in messages of their own. `stable`: so many parts stand in front of the mark."""
    messages: list[Json] = []
    pieces: list[Json] = []
    last: Json | None = None
    for place, part in enumerate(said.parts):
        if isinstance(part, ToolResult):
            piece = _text_part(part.text)
            messages.append({"role": "tool", "tool_call_id": part.id, "content": [piece]})
        elif isinstance(part, TextPart):
            piece = _text_part(part.text)
            pieces.append(piece)
        elif isinstance(part, Image):
            data = base64.b64encode(part.data).decode()
            piece = {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}
            pieces.append(piece)
        else:
            continue
        last = piece if place < stable else last
    if last is not None and lifetime is not None and last.get("text") != "":
        last |= _breakpoint_field(lifetime)
    for message in messages:
        content = message["content"]
        assert isinstance(content, list)
        message["content"] = _to_content(content, dialect)
    if pieces:
        plain = all(piece["type"] == "text" for piece in pieces)
        joined = [_join_after(pieces[:place], piece) for place, piece in enumerate(pieces)] if plain else pieces
        content = [*head, *([_join_after(head, joined[0]), *joined[1:]])]
        messages.append({"role": "user", "content": _to_content(content, dialect)})
    return messages


def _assistant_message(said: ModelMessage, recall: RecallFields) -> Json:
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": _echo_arguments(part.arguments)},
        }
        for part in said.parts
        if isinstance(part, ToolCall)
    ]
    message: Json = {"role": "assistant", "content": "".join(p.text for p in said.parts if isinstance(p, TextPart))}
    return message | {"tool_calls": calls} | (recall(said) or {}) if calls else message


def _text_part(text: str, lifetime: str | None = None) -> Json:
    return {"type": "text", "text": text} | (_breakpoint_field(lifetime) if lifetime else {})


def _join_after(before: list[Json], piece: Json) -> Json:
    """Set a text apart from what stands before it."""
    return piece | {"text": f"\n\n{piece['text']}"} if before and piece["type"] == "text" else piece


def _breakpoint_field(lifetime: str) -> Json:
    return {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": _LIFETIMES[lifetime]}}


def _to_content(pieces: list[Json], dialect: OpenAIDialect) -> str | list[Json]:
    """A string, which everybody takes, where it can be one."""
    if dialect.takes_breakpoints or any(piece["type"] != "text" for piece in pieces):
        return [piece for piece in pieces if piece.get("text") != ""] or ""  # parts without text are refused
    return "".join(str(piece["text"]) for piece in pieces)


def _echo_arguments(written: str) -> str:
    """Echo a call's arguments as the model wrote them, if they are an object.

    vLLM (entrypoints/chat_utils.py parses them) and Ollama (`invalid tool call arguments`) answer 400 to others.
    """
    read = parse_tool_input(written)
    return json.dumps(read, ensure_ascii=False) if read == {"malformed_arguments": written} else written or "{}"
