"""Responses of the Messages API, parsed event by event. No IO.

Obeys platform.claude.com/docs/en/build-with-claude/streaming: unknown events, blocks and deltas are tolerated, the
usage of `message_delta` is cumulative, content is chosen by type and never by position.
"""

import json
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field

from agent.models.anthropic_wire import Json, parse_tool_input
from agent.models.base import StreamEnd
from gateway.core.events import Usage
from gateway.core.tool_spec import ToolCall

_STOP_REASONS: dict[str, Literal["end", "tools", "length", "refused"]] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "pause_turn": "end",  # comes with server tools only, and none are declared
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class _AnthropicCacheCreation(BaseModel):
    ephemeral_1h_input_tokens: int | None = None


class _AnthropicUsage(BaseModel):
    iterations: "list[_AnthropicUsage] | None" = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _AnthropicCacheCreation | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _InputTransformation(BaseModel):
    path: str = ""
    reason: str = ""


class _AppliedEdit(BaseModel):
    cleared_input_tokens: int = Field(default=0, ge=0)
    cleared_tool_uses: int = Field(default=0, ge=0)


class _ContextManagement(BaseModel):
    applied_edits: list[_AppliedEdit] | None = None


class _StopDetails(BaseModel):
    category: str | None = None


class _AnthropicMessage(BaseModel):
    model: str | None = None
    usage: _AnthropicUsage | None = None
    input_transformations: list[_InputTransformation] | None = None
    stop_reason: str | None = None
    context_management: _ContextManagement | None = None


class _AnthropicDelta(BaseModel):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class AnthropicEvent(BaseModel):
    """Any event of the stream; `type` says which other fields are set."""

    type: str
    message: _AnthropicMessage | None = None
    index: int = 0
    content_block: Json | None = None
    delta: _AnthropicDelta | None = None
    usage: _AnthropicUsage | None = None
    context_management: _ContextManagement | None = None


class AnthropicResponse:
    """State of one response while it streams."""

    def __init__(self, *, model: str) -> None:
        self._model = model
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, str] = {}
        self._usage = Usage()
        self._stop: str | None = None
        self._cleared = 0
        self.thinking = ""
        """Thinking in the newest event."""
        self.is_complete = False
        """`message_stop` has come: nothing was cut off."""
        self.notes: list[str] = []
        """Log lines for the operator: what the provider cleared from the request, and why it declined to answer."""

    @property
    def usage(self) -> Usage:
        """Usage as reported so far."""
        return self._usage

    def add_event(self, event: AnthropicEvent) -> str:
        """Process one event. Return its text."""
        self.thinking = ""
        if event.type == "message_start" and event.message is not None:
            self._start_message(event.message)
        elif event.type == "content_block_start" and event.content_block is not None:
            self._blocks[event.index] = event.content_block
            if event.content_block.get("type") == "text":
                return str(event.content_block.get("text") or "")
        elif event.type == "content_block_delta" and event.delta is not None:
            return self._add_delta(event.index, event.delta)
        elif event.type == "message_delta":
            self._add_usage(event.usage)
            self._add_edits(event.context_management)
            if event.delta is not None:
                self._stop = event.delta.stop_reason or self._stop
                self._note_stop_details(event.delta.stop_details)
        elif event.type == "message_stop":
            self.is_complete = True
        return ""

    def add_whole_response(self, data: bytes) -> None:
        """Process a response without content that came in one piece. Raises ValueError if it is not a message."""
        message = _AnthropicMessage.model_validate_json(data)
        self._start_message(message)
        self._add_edits(message.context_management)
        self._stop = message.stop_reason
        self.is_complete = True

    def _start_message(self, message: _AnthropicMessage) -> None:
        self._model = message.model or self._model
        self._add_usage(message.usage)
        for dropped in message.input_transformations or ():
            self.notes.append(f"left out {_safe_word(dropped.path)} of the request: {_safe_word(dropped.reason)}")

    def _add_edits(self, management: _ContextManagement | None) -> None:
        """Record what the provider cleared from the prompt."""
        for edit in (management.applied_edits or ()) if management is not None else ():
            self._cleared += edit.cleared_input_tokens
            self.notes.append(f"left out {edit.cleared_tool_uses} tool results, {edit.cleared_input_tokens} tokens")

    def _note_stop_details(self, details: _StopDetails | None) -> None:
        if details is not None and details.category:
            self.notes.append(f"declined to answer: {_safe_word(details.category)}")

    def _add_delta(self, index: int, delta: _AnthropicDelta) -> str:
        block = self._blocks.get(index)
        if block is None:
            return ""
        if delta.type == "input_json_delta":
            self._arguments[index] = self._arguments.get(index, "") + delta.partial_json
        elif delta.type == "thinking_delta":
            block["thinking"] = f"{block.get('thinking') or ''}{delta.thinking}"
            self.thinking = delta.thinking
        elif delta.type == "signature_delta":
            block["signature"] = f"{block.get('signature') or ''}{delta.signature}"
        elif delta.type == "text_delta":
            block["text"] = f"{block.get('text') or ''}{delta.text}"
            return delta.text
        return ""

    def _add_usage(self, reported: _AnthropicUsage | None) -> None:
        """Update the usage; fields that are missing keep their last value."""
        if reported is None:
            return
        if reported.iterations:  # the bill is their sum; the totals beside them leave some out
            self._usage = Usage()
            reported = _sum_usage(reported.iterations)
        old = self._usage
        read, written = reported.cache_read_input_tokens, reported.cache_creation_input_tokens
        written_1h = reported.cache_creation.ephemeral_1h_input_tokens if reported.cache_creation else None
        self._usage = Usage(
            input_tokens=old.input_tokens if reported.input_tokens is None else reported.input_tokens,
            cache_read_tokens=old.cache_read_tokens if read is None else read,
            cache_write_tokens=old.cache_write_tokens if written is None else written,
            cache_write_1h_tokens=old.cache_write_1h_tokens if written_1h is None else written_1h,
            output_tokens=old.output_tokens if reported.output_tokens is None else reported.output_tokens,
        )

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls in their order, arguments as the model wrote them."""
        return tuple(
            ToolCall(id=str(block.get("id")), name=str(block.get("name")), arguments=self._arguments_json(index, block))
            for index, block in sorted(self._blocks.items())
            if block.get("type") == "tool_use"
        )

    def text(self) -> str:
        """Return the text of all blocks."""
        texts = (block.get("text") for _, block in sorted(self._blocks.items()) if block.get("type") == "text")
        return "".join(str(text or "") for text in texts)

    def raw_content(self) -> list[Json]:
        """Return the content for sending back verbatim, without blank texts: the API refuses those."""
        content = []
        for index, block in sorted(self._blocks.items()):
            if block.get("type") == "tool_use":
                content.append(block | {"input": parse_tool_input(self._arguments_json(index, block))})
            elif block.get("type") != "text" or str(block.get("text") or "").strip():
                content.append(block)
        return content

    @property
    def is_window_full(self) -> bool:
        """True if the window was full before the answer was whole."""
        return self._stop == "model_context_window_exceeded"

    def build_end(self) -> StreamEnd:
        """Return the end of the stream. Call it once the response is complete."""
        stop = _STOP_REASONS.get(self._stop or "", "end")
        if stop == "tools" and not self.tool_calls():
            stop = "end"
        return StreamEnd(stop_reason=stop, usage=self._usage, model=self._model, cleared_tokens=self._cleared)

    def _arguments_json(self, index: int, block: Json) -> str:
        written = self._arguments.get(index, "")
        return written or json.dumps(block.get("input") or {}, ensure_ascii=False)


def _sum_usage(parts: Sequence[_AnthropicUsage]) -> _AnthropicUsage:
    return _AnthropicUsage(
        input_tokens=sum(part.input_tokens or 0 for part in parts),
        cache_creation_input_tokens=sum(part.cache_creation_input_tokens or 0 for part in parts),
        cache_creation=_AnthropicCacheCreation(
            ephemeral_1h_input_tokens=sum(
                part.cache_creation.ephemeral_1h_input_tokens or 0 for part in parts if part.cache_creation is not None
            )
        ),
        cache_read_input_tokens=sum(part.cache_read_input_tokens or 0 for part in parts),
        output_tokens=sum(part.output_tokens or 0 for part in parts),
    )


def _safe_word(word: str) -> str:
    """Return a word of the provider for a log line; "?" if it is anything but a word."""
    return word if re.fullmatch(r"[\w.\[\]-]{1,80}", word, re.ASCII) else "?"
