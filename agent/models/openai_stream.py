"""Streamed chat completions, parsed chunk by chunk. No IO.

Obeys platform.openai.com/docs/api-reference/chat-streaming, and tolerates the quirks of compatible servers. Thinking
comes as `reasoning_content` (DeepSeek, llama.cpp, SGLang), `reasoning` (vLLM, Ollama) or both and `reasoning_details`
(OpenRouter); it is never part of the text.

Servers that do not parse a model's reasoning leave it in the text, and `ThinkingFilter` takes it out. The marks are
those of SGLang's parsers (srt/parser/reasoning_parser.py): `<think>` of DeepSeek, Qwen and most others, `[THINK]` of
Mistral. Where the chat template writes the opening mark itself (DeepSeek-R1), the text holds only the closing one.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from agent.models.base import StreamEnd
from gateway.core.events import Usage
from gateway.core.tool_spec import ToolCall

StopReason = Literal["end", "tools", "length", "refused"]
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tools",
    "function_call": "tools",
    "content_filter": "refused",
    "model_context_window_exceeded": "length",  # Z.ai
}


class _FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str | None = None


class _ToolCallDelta(BaseModel):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None


class _ChatDelta(BaseModel):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCallDelta] | None = None
    reasoning_content: object | None = None
    reasoning: object | None = None
    reasoning_details: object | None = None


class _ChatChoice(BaseModel):
    delta: _ChatDelta | None = None
    finish_reason: str | None = None


class _PromptTokensDetails(BaseModel):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _ChatUsage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptTokensDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's own name for the tokens read from its cache."""


class _LlamaCppTimings(BaseModel):
    """Tokens that llama.cpp found in the slot, evaluated and generated for one answer."""

    cache_n: int
    prompt_n: int
    predicted_n: int = 0


class ChatCompletionChunk(BaseModel):
    """One `data:` line."""

    model: str | None = None
    choices: list[_ChatChoice] | None = None
    usage: _ChatUsage | None = None
    timings: _LlamaCppTimings | None = None
    error: object | None = None


@dataclass
class _PartialToolCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class ChatCompletionResponse:
    """State of one response while it streams."""

    def __init__(self, *, earlier_calls: int, model: str) -> None:
        self._earlier_calls = earlier_calls
        self._model = model
        self._calls: dict[int, _PartialToolCall] = {}
        self._index_map: dict[int, int] = {}
        """By index on the wire: the index under which a call is kept, if another call had it already."""
        self._usage = Usage()
        self._timings: _LlamaCppTimings | None = None
        self._reasoning: list[str] = []
        self.new_thinking = ""
        """Thinking in the newest chunk."""
        self._hands_back = False
        self._details: list[object] = []
        self._refused = False
        self.stop_reason: StopReason | None = None
        """None: not received yet."""
        self.is_window_full = False
        """True: the server reports that its window was full before the answer was whole."""

    def add_chunk(self, chunk: ChatCompletionChunk) -> str:
        """Process one chunk. Return its text."""
        self.new_thinking = ""
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            self._usage = _usage_from_chat(chunk.usage)
        self._timings = chunk.timings or self._timings
        text = ""
        for choice in chunk.choices or []:
            delta = choice.delta or _ChatDelta()
            text += (delta.content or "") + (delta.refusal or "")
            self._add_thinking(delta)
            for call in delta.tool_calls or []:
                self._add_call(call)
            if choice.finish_reason:
                self.stop_reason = _STOP_REASONS.get(choice.finish_reason, "end")
                self.is_window_full = choice.finish_reason == "model_context_window_exceeded"
            self._refused = self._refused or bool(delta.refusal)
        return text

    def _add_thinking(self, delta: _ChatDelta) -> None:
        reasoning = (delta.reasoning_content, delta.reasoning)
        self._reasoning.append(next((text for text in reasoning if isinstance(text, str) and text), ""))
        self.new_thinking += self._reasoning[-1]
        self._hands_back = self._hands_back or bool(delta.reasoning_content)
        if isinstance(delta.reasoning_details, list):
            self._details.extend(delta.reasoning_details)

    @property
    def has_thinking(self) -> bool:
        """True if thinking came in a field of its own."""
        return any(self._reasoning) or bool(self._details)

    def thinking_fields(self) -> dict[str, object]:
        """Return the fields that send the thinking back, in the form that the server wants; empty: none.

        OpenRouter wants its `reasoning_details` unchanged (openrouter.ai/docs, reasoning-tokens). Servers that send
        `reasoning_content` take it back (api-docs.deepseek.com, thinking mode with tools, demands it).
        """
        if self._details:
            return {"reasoning_details": self._details}
        text = "".join(self._reasoning)
        return {"reasoning_content": text} if text and self._hands_back else {}

    def _add_call(self, piece: _ToolCallDelta) -> None:
        # Some servers leave the index out: then an id begins a call, and a piece without one continues the last call.
        index = piece.index
        if index is None:
            index = len(self._calls) if piece.id or not self._calls else max(self._calls)
        call = self._calls.setdefault(self._index_map.get(index, index), _PartialToolCall(id="", name=""))
        # Others give every call the index 0 (ollama#15457, Gemini): another id and name begin another call.
        if call.id and piece.id and piece.id != call.id and piece.function and piece.function.name:
            self._index_map[index] = max(self._calls) + 1
            call = self._calls[self._index_map[index]] = _PartialToolCall(id="", name="")
        call.id = call.id or piece.id or ""
        if piece.function is not None:
            call.name = call.name or piece.function.name or ""
            call.arguments.append(piece.function.arguments or "")

    def tool_calls(self) -> list[ToolCall]:
        """Return the calls in their order. A call without an id gets one that the conversation does not have."""
        return [
            ToolCall(
                id=call.id or f"call_{self._earlier_calls + index}",
                name=call.name,
                arguments="".join(call.arguments) or "{}",
            )
            for index, (_, call) in enumerate(sorted(self._calls.items()))
        ]

    def build_end(self) -> StreamEnd:
        """Return the end of the stream. Call it once `stop_reason` is known."""
        stop = "refused" if self._refused else self.stop_reason or "end"
        if stop == "end" and self._calls:
            stop = "tools"  # Ollama and older vLLM send `stop` after tool calls
        if stop == "tools" and not self._calls:
            stop = "end"
        return StreamEnd(
            stop_reason=stop,
            usage=self._usage if self._timings is None else _usage_from_timings(self._timings),
            model=self._model,
        )


def _usage_from_timings(timings: _LlamaCppTimings) -> Usage:
    return Usage(input_tokens=timings.prompt_n, cache_read_tokens=timings.cache_n, output_tokens=timings.predicted_n)


def _usage_from_chat(usage: _ChatUsage) -> Usage:
    """Convert the usage. `prompt_tokens` includes tokens read from and written to the cache; ours do not overlap."""
    details = usage.prompt_tokens_details or _PromptTokensDetails()
    read = details.cached_tokens or usage.prompt_cache_hit_tokens or 0
    written = details.cache_write_tokens or 0
    return Usage(
        input_tokens=max(0, (usage.prompt_tokens or 0) - read - written),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=usage.completion_tokens or 0,
    )


_THINKING_MARKS = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_CLOSING_MARK = re.compile(r"(?<![`'\"])(?:</think>|\[/THINK\])(?![`'\"])")
"""Not in quotes, as in an answer about such marks."""
_MARK_CHARS = 16
"""Characters that hold a closing mark and the character before it."""


class UnmarkedThinking(Exception):
    """Text that was already returned was thinking: the opening mark was missing."""


class ThinkingFilter:
    """Removes thinking from the text of an answer while it streams.

    Thinking stands before the answer; marks behind the first words are part of the answer. `held`: return nothing
    before the end, because the opening mark may be missing. Otherwise a closing mark without an opening one raises
    `UnmarkedThinking`: text that was returned cannot be taken back, so the answer must be requested again, held.
    """

    def __init__(self, *, held: bool) -> None:
        self._holds_text = held
        self._text = ""
        """Not returned yet."""
        self._close = ""
        """Mark that ends the current thinking; empty: outside of thinking."""
        self._is_answering = False
        """True once the first words of the answer have come."""
        self._tail = ""
        """End of the returned text."""

    def feed(self, text: str) -> str:
        """Process text. Return the part that is certain to be the answer."""
        self._text += text
        return "" if self._holds_text else self._release(final=False)

    def finish(self) -> str:
        """Return the rest. Thinking without an end is not part of it."""
        if not self._holds_text:
            return self._release(final=True)
        rest = self._release(final=True, closing=False)
        closed = _CLOSING_MARK.search(rest)
        return rest[closed.end() :].lstrip() if closed else rest

    def _release(self, *, final: bool, closing: bool = True) -> str:
        while not self._is_answering:
            if self._close:
                found = self._text.find(self._close)
                if found < 0:
                    self._text = self._text[-_MARK_CHARS:]
                    return ""
                self._text, self._close = self._text[found + len(self._close) :], ""
            self._text = self._text.lstrip()
            opened = next((mark for mark in _THINKING_MARKS if self._text.startswith(mark)), "")
            if opened:
                self._text, self._close = self._text.removeprefix(opened), _THINKING_MARKS[opened]
            elif not self._text or (not final and any(mark.startswith(self._text) for mark in _THINKING_MARKS)):
                return ""
            else:
                self._is_answering = True
        out, self._text = self._text, ""
        if closing:
            joined = self._tail + out
            closed = _CLOSING_MARK.search(joined)
            if closed and (final or closed.end() < len(joined)):
                raise UnmarkedThinking
            self._tail = joined[-_MARK_CHARS:]
        return out
