"""Chat completions, streamed: OpenAI, vLLM, Ollama and other compatible servers.

Obeys platform.openai.com/docs/api-reference/chat, guides/images-vision and guides/prompt-caching
(breakpoints stand on parts of system, user and tool messages, never on the assistant's; at most
four are written). Quirks of other servers are named in comments where they are handled. Requests
come first, then responses, both without IO, then the model.

Thinking comes as `reasoning_content` (DeepSeek, llama.cpp, SGLang), `reasoning` (vLLM, Ollama) or
both and `reasoning_details` (OpenRouter), or as parts of the content (Mistral); it is never part of
the text. Servers that do not parse a model's reasoning leave it in the text, and `strip_thinking`
takes it out. The marks are those of SGLang's parsers (srt/parser/reasoning_parser.py): `<think>` of
DeepSeek, Qwen and most others, `[THINK]` of Mistral. Where the chat template writes the opening
mark itself (DeepSeek-R1), the text holds only the closing one.
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, Field, SecretStr

from agent.models.adapt import (
    Json,
    append_suffix,
    find_tool_loop_start,
    parse_tool_input,
    read_kept,
    write_kept,
)
from agent.models.base import (
    EMPTY_USER_TEXT,
    PARTIAL_GROWTH,
    ModelBusy,
    ModelMessage,
    ModelRequest,
    PartialText,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolResult,
)
from agent.models.http import (
    DEFAULT_TIMEOUT_S,
    HalfJoiner,
    ModelHttpClient,
    RemoteModel,
    SseEvent,
    StreamText,
    encode_json,
    is_window_full,
    join_endpoint,
    parse_event,
    report_unread,
)
from gateway.core.events import Usage
from gateway.core.frozen import frozen
from gateway.core.tool_spec import Image, ToolCall, ToolSpec

logger = logging.getLogger(__name__)

_OPENAI_HOSTS = re.compile(r"([a-z0-9-]+\.)?api\.openai\.com(:443)?")
"""Matches the hosts of OpenAI, also by region (eu.api.openai.com): it takes fields that strict
compatible servers refuse, and its reasoning models refuse `max_tokens`."""
_BREAKPOINT_MODELS = re.compile(r"gpt-(5\.([6-9]|\d\d)|([6-9]|\d\d)(?!\d))")
"""Matches models that cache at breakpoints only: gpt-5.6 and later."""
_LIFETIMES = {"1h": "12h", "5m": "30m"}
"""OpenAI's lifetime for each of ours: the shortest that keeps an entry at least as long."""
_UNSUPPORTED = re.compile(
    r"unsupported|not supported|not support|unrecognized|unrecognised|unknown|unexpected|not "
    r"permitted|not allowed"
    r"|invalid (?:parameter|argument|field)|is required|field required|missing|instead|deprecated",
    re.IGNORECASE,
)
"""Matches a refusal of a field, or a demand for another one."""
_REQUIRED_FIELDS = frozenset({"model", "messages", "stream", "tools"})
"""Fields without which an answer is of no use."""
_RETURNED_FIELDS = ("reasoning_content", "reasoning_details", "extra_content")
"""Fields of messages and calls that some servers send and want back, and others refuse."""
_WANTS_THINKING = re.compile(
    r"reasoning[_ ]content\W.{0,60}(?:passed back|missing|required)|missing.{0,40}reasoning[_ "
    r"]content",
    re.IGNORECASE,
)
"""Matches a demand for the thinking of earlier answers: DeepSeek since V4 (api-docs.deepseek.com,
thinking mode, wants it in all later requests), Kimi."""
_WANTS_SHORT_IDS = re.compile(
    r"tool call ids?\b.{0,120}\blength (?:of )?9\b", re.IGNORECASE | re.DOTALL
)
"""Matches Mistral's demand for ids of nine letters and digits, and that of its chat templates."""
_WANTS_ANSWER = re.compile(r"role '?user'? after role '?tool", re.IGNORECASE)
"""Matches Mistral's refusal of a user's message right behind results (mistral-common,
validator.py)."""
_BETWEEN: Json = {"role": "assistant", "content": "OK."}
"""Message that stands between them for a server that wants one."""
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)
_MAX_ID_CHARS = 40  # OpenAI refuses a longer id (`string too long`): vLLM's have 46 characters
_NO_THINKING = " "
"""Stands for thinking that is not known where some is demanded: DeepSeek V4 Pro refuses an empty
text."""


@frozen
class OpenAIDialect:
    """Differences between one server and the others."""

    is_openai: bool = False
    takes_breakpoints: bool = False
    """True: it caches at breakpoints, written as OpenAI's, or at another server as Anthropic's:
    OpenRouter passes those on (openrouter.ai/docs, prompt-caching)."""
    takes_max_completion_tokens: bool = False
    dropped_fields: frozenset[str] = frozenset()
    wants_thinking: bool = False
    """True: it wants the thinking of all answers back. False: at most that of the tool loop under
    way."""
    takes_short_ids: bool = False
    """True: it takes ids of calls of nine letters and digits only."""
    wants_answer: bool = False
    """True: it wants an answer between the results of tools and a message of the user."""
    identity_in: Literal["system", "user"] = "system"
    """Place of the blocks: a system message, or the beginning of the first user message."""


def find_dialect(
    where: str, model: str, *, identity_in: Literal["system", "user"] = "system"
) -> OpenAIDialect:
    """Return the dialect of the server `where` (host and port) for `model`."""
    openai = _OPENAI_HOSTS.fullmatch(where) is not None
    routed_claude = where == "openrouter.ai" and model.startswith("anthropic/")
    return OpenAIDialect(
        is_openai=openai,
        takes_max_completion_tokens=openai,
        takes_breakpoints=routed_claude or (openai and bool(_BREAKPOINT_MODELS.match(model))),
        identity_in=identity_in,
    )


def adapt_dialect(dialect: OpenAIDialect, body: Json, refusal: str) -> OpenAIDialect | None:
    """Return the dialect that avoids a refusal with this text. None: it names nothing that could be
    different.

    Of fields only whole names count, and only if the field itself is refused, not its value.
    """
    if _WANTS_THINKING.search(refusal):
        return replace(dialect, wants_thinking=True)
    if _WANTS_SHORT_IDS.search(refusal):
        return replace(dialect, takes_short_ids=True)
    if _WANTS_ANSWER.search(refusal):
        return replace(dialect, wants_answer=True)
    if not _UNSUPPORTED.search(refusal):
        return None
    fields = (*body, *_RETURNED_FIELDS)
    named = [
        field
        for field in fields
        if re.search(rf"(?<![A-Za-z_]){re.escape(field)}(?![A-Za-z_])", refusal)
    ]
    if "max_tokens" in named or ("max_tokens" in body and "max_completion_tokens" in refusal):
        return replace(dialect, takes_max_completion_tokens=True)
    if "max_completion_tokens" in named:
        return replace(dialect, takes_max_completion_tokens=False)
    if dialect.takes_breakpoints and "prompt_cache_" in refusal:
        return replace(
            dialect, takes_breakpoints=False, dropped_fields=dialect.dropped_fields | {*named}
        )
    dropped = {field for field in named if field not in _REQUIRED_FIELDS}
    return replace(dialect, dropped_fields=dialect.dropped_fields | dropped) if dropped else None


def build_chat_request(request: ModelRequest, *, model: str, dialect: OpenAIDialect) -> Json:
    """Build a chat completion, as `encode_body` takes it. The same request gives the same bytes.

    `content` is always there, and a string unless there are images or breakpoints; `tool_calls` is
    left out when empty: chat templates break on both (llama.cpp#13516, vllm#13978). Blocks become
    one system message at the beginning, the only place where every template takes one.
    """
    body: Json = {
        "model": model,
        "messages": _encode_messages(request, model, dialect),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = _encode_tools(request.tools)
        if request.answer_only:
            body["tool_choice"] = "none"
    body["max_completion_tokens" if dialect.takes_max_completion_tokens else "max_tokens"] = (
        request.max_output_tokens
    )
    if request.thinks_less:
        body["reasoning_effort"] = "low"
    if dialect.is_openai:
        body["prompt_cache_key"] = request.shared_key
    if dialect.is_openai and dialect.takes_breakpoints and request.breakpoints:
        body["prompt_cache_options"] = {"mode": "explicit"}  # only planned breakpoints are written
    return body


@lru_cache(maxsize=16)
def _encode_tools(tools: tuple[ToolSpec, ...]) -> bytes:
    return encode_json(
        [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": json.loads(tool.schema),
                },
            }
            for tool in tools
        ]
    )


def _encode_messages(request: ModelRequest, model: str, dialect: OpenAIDialect) -> bytes:
    """Return the messages as JSON. That of a message which looks the same in every later request
    is kept with it.
    """
    marks = (
        {(mark.behind, mark.index): mark.lifetime for mark in request.breakpoints}
        if dialect.takes_breakpoints
        else {}
    )
    head = [
        _text_part(text if not index else f"\n\n{text}")
        | _breakpoint_field(marks.get(("block", index)), dialect)
        for index, text in enumerate(block.text for block in request.blocks)
    ]
    pieces, last_role = list[bytes](), "system"
    if head and dialect.identity_in == "system":
        pieces.append(encode_json({"role": "system", "content": _to_content(head, dialect)}))
        head = []
    conversation, form = append_suffix(request), f"{model} {dialect}"
    loop = find_tool_loop_start(conversation)
    for index, message in enumerate(conversation):
        lifetime = marks.get(("said", index)) if marks else None
        is_fixed = not head and lifetime is None and index < loop
        written = message.wire.get(form) if is_fixed else None
        if written is None:
            if message.role == "assistant":
                thinking = thinking_fields(message, model, dialect, in_loop=index >= loop)
                rendered = [_assistant_message(message, model, dialect) | thinking]
            else:
                is_said = index < len(request.conversation)
                stable = len(request.conversation[index].parts) if is_said else 0
                rendered = _user_messages(message, stable, lifetime, head, dialect)
                head = head if not rendered or rendered[-1]["role"] != "user" else []
            written = b",".join([encode_json(one) for one in rendered])
            if is_fixed and not any(isinstance(part, Image) for part in message.parts):
                message.wire[form] = written
        if written:
            pieces.append(written)
            last_role = message.role
    if head or last_role != "user":
        nothing = [*head, _join_after(head, _text_part(EMPTY_USER_TEXT))]
        pieces.append(encode_json({"role": "user", "content": _to_content(nothing, dialect)}))
    return b"[" + b",".join(pieces) + b"]"


def _user_messages(
    source: ModelMessage,
    stable: int,
    lifetime: str | None,
    head: list[Json],
    dialect: OpenAIDialect,
) -> list[Json]:
    """Render tool results as messages of their own, then the rest. `stable`: number of parts before
    the breakpoint.
    """
    messages: list[Json] = []
    pieces: list[Json] = []
    last: Json | None = None
    for index, part in enumerate(source.parts):
        if isinstance(part, ToolResult):
            piece = _text_part(part.text)
            messages.append(
                {"role": "tool", "tool_call_id": _wire_id(part.id, dialect), "content": [piece]}
            )
        elif isinstance(part, TextPart):
            piece = _text_part(part.text)
            pieces.append(piece)
        elif isinstance(part, Image) and part.pages and not dialect.is_openai:
            piece = _text_part(part.description)
            pieces.append(piece)
        elif isinstance(part, Image):
            url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
            piece = {"type": "image_url", "image_url": {"url": url}}
            if part.pages:
                piece = {"type": "file", "file": {"filename": "document.pdf", "file_data": url}}
            pieces.append(piece)
        else:
            continue
        last = piece if index < stable else last
    if last is not None and last.get("text") != "":
        last |= _breakpoint_field(lifetime, dialect)
    for message in messages:
        content = message["content"]
        assert isinstance(content, list)
        message["content"] = _to_content(content, dialect)
    if pieces:
        messages += [_BETWEEN] if messages and dialect.wants_answer else []
        plain = all(piece["type"] == "text" for piece in pieces)
        joined = (
            [_join_after(pieces[:index], piece) for index, piece in enumerate(pieces)]
            if plain
            else pieces
        )
        content = [*head, *([_join_after(head, joined[0]), *joined[1:]])]
        messages.append({"role": "user", "content": _to_content(content, dialect)})
    return messages


def _assistant_message(source: ModelMessage, model: str, dialect: OpenAIDialect) -> Json:
    calls = [
        {
            "id": _wire_id(part.id, dialect),
            "type": "function",
            "function": {"name": part.name, "arguments": _echo_arguments(part.arguments)},
            **_returned_fields(part.extra, model, dialect),
        }
        for part in source.parts
        if isinstance(part, ToolCall)
    ]
    message: Json = {
        "role": "assistant",
        "content": "".join(p.text for p in source.parts if isinstance(p, TextPart)),
    }
    return message | {"tool_calls": calls} if calls else message


def thinking_fields(
    source: ModelMessage, model: str, dialect: OpenAIDialect, *, in_loop: bool
) -> Json:
    """Return the fields that send the thinking of an answer back to `model`. Empty: it is not sent.

    In the tool loop under way (`in_loop`) a server gets what it has sent itself: OpenRouter its
    `reasoning_details` unchanged (openrouter.ai/docs, reasoning-tokens), others
    `reasoning_content`. One that demands thinking gets it for every answer, plain ones too:
    DeepSeek counts those of a turn with calls.
    """
    if source.role != "assistant":
        return {}
    fields = (
        _returned_fields(source.thinking, model, dialect)
        if in_loop or dialect.wants_thinking
        else {}
    )
    if dialect.wants_thinking and "reasoning_details" not in fields:
        known: Json = json.loads(source.thinking) if source.thinking else {}
        fields["reasoning_content"] = (
            known.get("reasoning_content") or known.get("reasoning") or _NO_THINKING
        )
    return fields


def _returned_fields(written: str, model: str, dialect: OpenAIDialect) -> Json:
    """Return what `write_kept` wrote for the same model, as far as the server takes it back."""
    kept, taken = read_kept(written, model), set(_RETURNED_FIELDS) - dialect.dropped_fields
    return {key: value for key, value in kept.items() if key in taken}


def _wire_id(written: str, dialect: OpenAIDialect) -> str:
    """Return the id of a call in a form that the server takes: always the same for the same id."""
    if _SHORT_ID.fullmatch(written) if dialect.takes_short_ids else len(written) <= _MAX_ID_CHARS:
        return written
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def _join_after(before: list[Json], piece: Json) -> Json:
    """Put a blank line between a text and the parts before it."""
    return piece | {"text": f"\n\n{piece['text']}"} if before and piece["type"] == "text" else piece


def _breakpoint_field(lifetime: str | None, dialect: OpenAIDialect) -> Json:
    if lifetime is None:
        return {}
    if not dialect.is_openai:
        return {"cache_control": {"type": "ephemeral", "ttl": lifetime}}
    return {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": _LIFETIMES[lifetime]}}


def _to_content(pieces: list[Json], dialect: OpenAIDialect) -> str | list[Json]:
    """Return a string, which all servers take, if possible."""
    if dialect.takes_breakpoints or any(piece["type"] != "text" for piece in pieces):
        return [
            piece for piece in pieces if piece.get("text") != ""
        ] or ""  # parts without text are refused
    return "".join(str(piece["text"]) for piece in pieces)


def _echo_arguments(written: str) -> str:
    """Return a call's arguments as the model wrote them, if they are an object.

    vLLM (entrypoints/chat_utils.py parses them) and Ollama (`invalid tool call arguments`) answer
    400 to others.
    """
    read = parse_tool_input(written)
    return (
        json.dumps(read, ensure_ascii=False)
        if read == {"malformed_arguments": written}
        else written or "{}"
    )


StopReason = Literal["end", "tools", "length", "refused"]
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tools",
    "function_call": "tools",
    "content_filter": "refused",
    "model_context_window_exceeded": "length",  # Z.ai
    "model_length": "length",  # Mistral
}
_WINDOW_FULL = frozenset({"model_context_window_exceeded", "model_length"})
_BROKEN_OFF = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons of answers that are not whole: OpenRouter and Mistral; SGLang; DeepSeek."""


class _ToolCallDelta(BaseModel):
    index: int | None = None
    id: StreamText | None = None
    name: StreamText | None = Field(None, validation_alias=AliasPath("function", "name"))
    # Mistral's may also be an object (docs.mistral.ai/api, FunctionCall).
    arguments: object = Field(None, validation_alias=AliasPath("function", "arguments"))
    extra_content: object | None = None
    """Gemini's signature of its thinking, which comes back with the call (ai.google.dev,
    thought-signatures)."""


class _ChatDelta(BaseModel):
    content: object | None = None
    refusal: StreamText | None = None
    tool_calls: list[_ToolCallDelta] | None = None
    reasoning_content: object | None = None
    reasoning: object | None = None
    reasoning_details: object | None = None


class _ChatUsage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = Field(
        None,
        validation_alias=AliasChoices(
            AliasPath("prompt_tokens_details", "cached_tokens"),
            "prompt_cache_hit_tokens",  # DeepSeek's own name
            "cached_tokens",  # Kimi's (platform.kimi.ai/docs/api/chat)
        ),
    )
    cache_write_tokens: int | None = Field(
        None, validation_alias=AliasPath("prompt_tokens_details", "cache_write_tokens")
    )


class _ChatChoice(BaseModel):
    delta: _ChatDelta | None = None
    finish_reason: str | None = None
    usage: _ChatUsage | None = None
    """Kimi has it here, in the last chunk."""


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
    extra: object | None = None


class ChatCompletionResponse:
    """State of one response while it streams."""

    def __init__(self, *, model: str) -> None:
        self._asked_model = self._model = model
        self.calls: dict[int, _PartialToolCall] = {}
        self._index_map: dict[int, int] = {}
        """By index on the wire: the index under which a call is kept, if another call had it
        already."""
        self._usage = Usage()
        self._timed_usage: Usage | None = None
        self._reasoning: list[str] = []
        self.text_halves, self._thinking_halves = HalfJoiner(), HalfJoiner()
        self.new_thinking = ""
        """Thinking in the newest chunk."""
        self.has_thinking = self._hands_back = False
        """True if thinking came in a field of its own, and whether it is taken back there."""
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
        for usage in (chunk.usage, *[choice.usage for choice in chunk.choices or []]):
            self._usage = self._usage if usage is None else _usage_from_chat(usage)
        if (timings := chunk.timings) is not None:
            self._timed_usage = Usage(
                input_tokens=timings.prompt_n,
                cache_read_tokens=timings.cache_n,
                output_tokens=timings.predicted_n,
            )
        text = ""
        for choice in chunk.choices or []:
            delta = choice.delta or _ChatDelta()
            content = delta.content
            said, thought = content or "", ""
            if not isinstance(said, str):
                said, thought = _read_content(content)
            text += said + (delta.refusal or "")
            self._add_thinking(delta, thought)
            for call in delta.tool_calls or []:
                self._add_call(call)
            if choice.finish_reason and choice.finish_reason not in _BROKEN_OFF:
                self.stop_reason = _STOP_REASONS.get(choice.finish_reason, "end")
                self.is_window_full = choice.finish_reason in _WINDOW_FULL
            self._refused = self._refused or bool(delta.refusal)
        return self.text_halves.join(text) if text else ""

    def _add_thinking(self, delta: _ChatDelta, in_content: str) -> None:
        reasoning = (delta.reasoning_content, delta.reasoning, in_content)
        for thought in reasoning:
            if isinstance(thought, str) and thought:
                self._reasoning.append(self._thinking_halves.join(thought))
                self.new_thinking += self._reasoning[-1]
                break
        self._hands_back = self._hands_back or bool(delta.reasoning_content)
        if isinstance(delta.reasoning_details, list):
            self._details.extend(delta.reasoning_details)
        self.has_thinking = self.has_thinking or bool(self.new_thinking or self._details)

    def thinking(self) -> Json:
        """Return the thinking in the field in which the server takes it back, or as `reasoning`;
        empty: none.
        """
        if self._details:
            return {"reasoning_details": self._details}
        text = "".join(self._reasoning)
        return {"reasoning_content" if self._hands_back else "reasoning": text} if text else {}

    def _add_call(self, piece: _ToolCallDelta) -> None:
        # Some servers leave the index out: then an id or a name begins a call, and a piece without
        # them continues the last call.
        index = piece.index
        if index is None:
            begins = piece.id or piece.name or not self.calls
            index = len(self.calls) if begins else max(self.calls)
        call = self.calls.setdefault(
            self._index_map.get(index, index), _PartialToolCall(id="", name="")
        )
        # Others give every call the index 0 (ollama#15457, Gemini): another id and name begin
        # another call.
        if call.id and piece.id and piece.id != call.id and piece.name:
            self._index_map[index] = max(self.calls) + 1
            call = self.calls[self._index_map[index]] = _PartialToolCall(id="", name="")
        call.id = call.id or piece.id or ""
        call.extra = piece.extra_content or call.extra
        call.name = call.name or piece.name or ""
        call.arguments.append(
            piece.arguments
            if isinstance(piece.arguments, str)
            else json.dumps(piece.arguments)
            if piece.arguments
            else ""
        )

    def tool_calls(self, conversation: Sequence[ModelMessage]) -> list[ToolCall]:
        """Return the calls in their order. A call without an id gets one that the conversation does
        not have: the number of the calls so far is in it.
        """
        said = conversation if self.calls else ()
        earlier = sum(isinstance(part, ToolCall) for message in said for part in message.parts)
        return [
            ToolCall(
                id=call.id or f"call_{earlier + index}",
                name=call.name,
                arguments="".join(call.arguments) or "{}",
                extra=write_kept(
                    {"extra_content": call.extra} if call.extra else {}, self._asked_model
                ),
            )
            for index, (_, call) in enumerate(sorted(self.calls.items()))
        ]

    def build_end(self) -> StreamEnd:
        """Return the end of the stream. Call it once `stop_reason` is known."""
        stop = "refused" if self._refused else self.stop_reason or "end"
        if stop == "end" and self.calls:
            stop = "tools"  # Ollama and older vLLM send `stop` after tool calls
        if stop == "tools" and not self.calls:
            stop = "end"
        return StreamEnd(
            stop_reason=stop,
            usage=self._timed_usage or self._usage,
            model=self._model,
            thinking=write_kept(self.thinking(), self._asked_model) if self.calls else "",
        )


def _read_content(content: object) -> tuple[str, str]:
    """Return the text and the thinking of content: a string, or parts (docs.mistral.ai,
    capabilities/reasoning).
    """
    if isinstance(content, str):
        return content, ""
    text = thinking = ""
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "thinking":
            thinking += _read_content(part.get("thinking"))[0]
        else:
            text += _read_content(part.get("text") if isinstance(part, dict) else part)[0]
    return text, thinking


def _usage_from_chat(usage: _ChatUsage) -> Usage:
    """Convert the usage. `prompt_tokens` includes tokens read from and written to the cache; ours
    do not overlap.
    """
    read, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    return Usage(
        input_tokens=max(0, (usage.prompt_tokens or 0) - read - written),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=usage.completion_tokens or 0,
    )


_THINKING_MARKS = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_CLOSING_MARK = re.compile(
    r"(?<![`'\"])(?:</think>|\[/THINK\]|<\|channel\|>final<\|message\|>)(?![`'\"])"
)
"""Not in quotes, as in an answer about such marks. The last one: gpt-oss'."""
# The tokens around an answer where a server was started with the template of another model.
_TURN_MARKS = re.compile(
    r"\A(?:<\|im_start\|>|<\|start_header_id\|>)assistant(?:<\|end_header_id\|>)?\s*"
    r"|\s*(?:<\|(?:im_end|eot_id|end|end_of_text|endoftext|return)\|>|<end_of_turn>|</s>)\s*\Z"
)


def strip_thinking(text: str) -> str:
    """Return the answer in a text that may have thinking in front, also without its opening mark or
    without an end, and without the marks of a turn around it.
    """
    text = text.lstrip()
    while opened := re.match(r"</?think>|\[/?THINK\]", text):
        if (closing := _THINKING_MARKS.get(opened[0])) is None:
            break
        text = text.partition(closing)[2].lstrip()
    if closed := _CLOSING_MARK.search(text):
        text = text[closed.end() :].lstrip()
    return _TURN_MARKS.sub("", text) or text


_CUT_ENDING = (SseEvent(name="", data='{"choices": [{"finish_reason": "length"}]}'),)
"""End of an answer that was broken off because it went on behind its limit."""


class OpenAIModel(RemoteModel):
    """One model behind `/v1/chat/completions`.

    Only the answer is yielded as text, never the thinking, in a field of its own or marked in the
    text. A server other than OpenAI's may leave thinking in the text whose mark comes behind it, so
    of its answers only `PartialText` comes before the end. `StreamEnd` has the thinking in front of
    calls. Within a tool loop it is sent back to servers that send it in a field; to one that
    refuses a request without it, always. Tool calls are yielded right before `StreamEnd`, and only
    if the model stopped for them or was stopped by the output limit, which leaves the last one
    incomplete. A stream without a finish reason was cut, and raises `ModelBusy`. With
    `max_output_tokens` 0 nothing is sent: such servers cache what they have answered, and cannot
    answer nothing.
    """

    family = "openai"
    takes_max_completion_tokens: ClassVar[bool] = False
    """True: its servers take `max_completion_tokens`, whatever their address."""
    client_type: ClassVar[type[ModelHttpClient]] = ModelHttpClient
    response_type: ClassVar[type[ChatCompletionResponse]] = ChatCompletionResponse

    def __init__(
        self,
        *,
        name: str,
        model: str,
        base_url: str,
        api_key: str = "",
        context_tokens: int = 128_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        sampling: Mapping[str, float] | None = None,
        reuse: bool = True,
        takes_images: bool = False,
        identity_in: Literal["system", "user"] = "system",
        may_leak_calls: bool = False,
        proxy: SecretStr | None = None,
    ) -> None:
        """`api_key` empty: none is sent. `sampling` goes into every request.

        `may_leak_calls`: as in `StreamEnd`. `reuse` False: a new connection for every request, for
        llama.cpp, which may close a connection just when it is used again (measured).

        Raises ValueError.
        """
        super().__init__(
            self.client_type(
                url=join_endpoint(base_url, "/chat/completions"),
                headers={"authorization": f"Bearer {api_key}"} if api_key else {},
                secret=api_key,
                timeout_s=timeout_s,
                reuse=reuse,
                proxy=proxy,
            ),
            name=name,
            model=model,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
            takes_images=takes_images,
            may_leak_calls=may_leak_calls,
        )
        self._dialect = find_dialect(self._api.host, model, identity_in=identity_in)
        if self.takes_max_completion_tokens:
            self._dialect = replace(self._dialect, takes_max_completion_tokens=True)
        self._sampling = dict(sampling or {})

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if not request.max_output_tokens:
            return self._answer_nothing()
        return self.stream_built(request, self.build_body)

    async def _answer_nothing(self) -> AsyncGenerator[StreamChunk]:
        yield StreamEnd(stop_reason="end", usage=Usage(), model=self._model)

    async def stream_built(  # noqa: C901, PLR0912, PLR0915 - in their order
        self, request: ModelRequest, build: Callable[[ModelRequest], Json]
    ) -> AsyncGenerator[StreamChunk]:
        """Stream the answer to a request, whose body `build` makes, as `stream`."""
        tried, begun = {self._dialect}, False
        while True:
            body = build(request)
            answer = self.response_type(model=self._model)
            read, done, unread, said, shown_chars = False, False, 0, "", 0
            limit = body.get("max_tokens") or body.get("max_completion_tokens")
            asked = limit if isinstance(limit, int) else 0
            try:
                async with aclosing(
                    self._api.stream_events(body, max_tokens=asked, ending=_CUT_ENDING)
                ) as events:
                    async for event in events:
                        # Read on after the end, so that the connection can be used again.
                        done = done or event.data.strip() == "[DONE]"
                        if done:
                            continue
                        chunk = parse_event(ChatCompletionChunk, event.data)
                        if chunk is None:
                            unread += 1
                            continue
                        if chunk.error is not None:
                            raise self._api.read_stream_error(event.data)
                        if not read:
                            yield StreamStart()
                        read = True
                        text = answer.add_chunk(chunk)
                        if answer.has_thinking or answer.calls:  # or there is no more to show
                            yield ThinkingDelta(text=answer.new_thinking)
                        said += text
                        begun = begun or bool(text)
                        if text and self._dialect.is_openai:
                            yield TextPart(text=text)
                        elif len(said) > shown_chars * PARTIAL_GROWTH:
                            shown_chars = len(said)
                            shown = said if answer.has_thinking else strip_thinking(said)
                            yield PartialText(text=shown)
            except RequestRefused as error:
                other = adapt_dialect(self._dialect, body, error.provider_message)
                if begun or other is None or other in tried:
                    raise
                logger.warning("%s: asked in another way from now on: %s", self.label, error.reason)
                self._dialect = other
                tried.add(other)
            else:
                break
        if answer.stop_reason is None and not (done and unread):
            raise ModelBusy(f"{self._api.host} cut the answer off")
        rest = answer.text_halves.join("", final=True)
        if not self._dialect.is_openai:
            said = rest = said + rest if answer.has_thinking else strip_thinking(said + rest)
        if rest:
            yield TextPart(text=rest)
        calls = answer.tool_calls(request.conversation)
        has_content = bool(said or calls)
        if unread:
            report_unread(unread, where=self.label, has_content=has_content)
        end = answer.build_end()
        full = is_window_full(
            end, has_content=has_content, requested=asked, window=self.context_tokens
        )
        if answer.is_window_full or full:
            yield StreamStart(usage=end.usage)
            raise PromptTooLong(f"{self._api.host} filled its window before the answer was whole")
        if end.stop_reason in {"tools", "length"}:
            for call in calls:
                yield call
        conversation, dialect = request.conversation, self._dialect
        ephemeral_from = next(
            (
                index
                for index in range(find_tool_loop_start(conversation), len(conversation))
                if not dialect.wants_thinking
                and thinking_fields(conversation[index], self._model, dialect, in_loop=True)
            ),
            None,
        )
        yield replace(end, may_leak_calls=self._may_leak_calls, ephemeral_from=ephemeral_from)

    def build_body(self, request: ModelRequest) -> Json:
        body = (
            build_chat_request(request, model=self._model, dialect=self._dialect) | self._sampling
        )
        return {
            field: value
            for field, value in body.items()
            if field not in self._dialect.dropped_fields
        }
