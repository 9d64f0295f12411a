"""Client of Anthropic's Messages API, streamed.

Obeys platform.claude.com/docs/en/api/messages and build-with-claude/{streaming,extended-thinking}.
Sampling parameters are never sent: newer models refuse them. Responses come first, without IO, then
the model. Unknown events, blocks and deltas are tolerated, the usage of `message_delta` is
cumulative, content is chosen by type and never by position.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from pydantic import AliasPath, BaseModel, ConfigDict, Field, SecretStr

from agent.models.adapt import Json, parse_tool_input
from agent.models.anthropic_wire import (
    THINKING_TYPES,
    AnthropicRequest,
    ThinkingAnswer,
    ThinkingStore,
    build_anthropic_request,
    build_least_effort,
    build_options,
    find_capabilities,
    find_known_capabilities,
    write_thinking,
)
from agent.models.base import (
    Effort,
    ModelBusy,
    ModelRequest,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ThinkingMode,
)
from agent.models.http import (
    DEFAULT_TIMEOUT_S,
    HalfJoiner,
    ModelHttpClient,
    RemoteModel,
    SseEvent,
    StreamText,
    anthropic_headers,
    join_endpoint,
    parse_event,
    report_unread,
)
from agent.prompt import join_surrogates
from gateway.core.events import Usage
from gateway.core.text_safety import replace_half_escapes
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


class _AnthropicUsage(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    iterations: "list[_AnthropicUsage] | None" = None
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation_1h: int | None = Field(
        None, validation_alias=AliasPath("cache_creation", "ephemeral_1h_input_tokens")
    )
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _InputTransformation(BaseModel):
    path: str = ""
    reason: str = ""


class _AnthropicMessage(BaseModel):
    model: str | None = None
    usage: _AnthropicUsage | None = None
    input_transformations: list[_InputTransformation] | None = None
    stop_reason: str | None = None


class _AnthropicDelta(BaseModel):
    type: str = ""
    text: StreamText = ""
    partial_json: StreamText = ""
    thinking: StreamText = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_category: str | None = Field(None, validation_alias=AliasPath("stop_details", "category"))


class AnthropicEvent(BaseModel):
    """Any event of the stream; `type` says which other fields are set."""

    type: str
    message: _AnthropicMessage | None = None
    index: int = 0
    content_block: Json | None = None
    delta: _AnthropicDelta | None = None
    usage: _AnthropicUsage | None = None


class AnthropicResponse:
    """State of one response while it streams."""

    def __init__(self, *, model: str) -> None:
        self._model = model
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, str] = {}
        self.usage, self._told_usage = Usage(), _AnthropicUsage()
        self.text_halves, self._thinking_halves = HalfJoiner(), HalfJoiner()
        self._stop: str | None = None
        self.thinking = ""
        """Thinking in the newest event."""
        self.unread = 0
        """Events that could not be read."""
        self.is_complete = False
        """`message_stop` has come: nothing was cut off."""
        self.notes: list[str] = []
        """Log lines for the operator: what the provider left out of the request, and why it
        declined to answer."""

    def add_event(self, event: AnthropicEvent | None) -> str:
        """Process one event; None: it cannot be read. Return its text."""
        self.thinking = ""
        if event is None:
            self.unread += 1
        elif event.type == "message_start" and event.message is not None:
            self._start_message(event.message)
        elif event.type == "content_block_start" and event.content_block is not None:
            self._blocks[event.index] = event.content_block
            if event.content_block.get("type") == "text":
                return str(event.content_block.get("text") or "")
        elif event.type == "content_block_delta" and event.delta is not None:
            return self._add_delta(event.index, event.delta)
        elif event.type == "message_delta":
            self._add_usage(event.usage)
            if event.delta is not None:
                self._stop = event.delta.stop_reason or self._stop
                if category := event.delta.stop_category:
                    self.notes.append(f"declined to answer: {_safe_word(category)}")
        elif event.type == "message_stop":
            self.is_complete = True
        return ""

    def add_whole_response(self, data: bytes) -> None:
        """Process a response without content that came in one piece. Raises ValueError if it is not
        a message.
        """
        message = _AnthropicMessage.model_validate_json(data)
        self._start_message(message)
        self._stop = message.stop_reason
        self.is_complete = True

    def _start_message(self, message: _AnthropicMessage) -> None:
        self._model = message.model or self._model
        self._add_usage(message.usage)
        for dropped in message.input_transformations or ():
            self.notes.append(
                f"left out {_safe_word(dropped.path)} of the request: {_safe_word(dropped.reason)}"
            )

    def _add_delta(self, index: int, delta: _AnthropicDelta) -> str:
        block = self._blocks.get(index)
        if block is None:
            return ""
        if delta.type == "input_json_delta":
            self._arguments[index] = self._arguments.get(index, "") + delta.partial_json
        elif delta.type == "thinking_delta":
            self.thinking = self._thinking_halves.join(delta.thinking)
            block["thinking"] = f"{block.get('thinking') or ''}{self.thinking}"
        elif delta.type == "signature_delta":
            block["signature"] = f"{block.get('signature') or ''}{delta.signature}"
        elif delta.type == "text_delta":
            text = self.text_halves.join(delta.text)
            block["text"] = f"{block.get('text') or ''}{text}"
            return text
        return ""

    def _add_usage(self, reported: _AnthropicUsage | None) -> None:
        """Update the usage; fields that are missing keep their last value."""
        if reported is None:
            return
        new = Counter[str]()
        # The bill is the sum of the iterations; the totals beside them leave some out.
        for part in reported.iterations or [reported]:
            new.update(part.model_dump(exclude_none=True))
        self._told_usage = told = self._told_usage.model_copy(update=new)
        self.usage = Usage(
            input_tokens=told.input_tokens or 0,
            cache_read_tokens=told.cache_read_input_tokens or 0,
            cache_write_tokens=told.cache_creation_input_tokens or 0,
            cache_write_1h_tokens=told.cache_creation_1h or 0,
            output_tokens=told.output_tokens or 0,
        )

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls in their order, arguments as the model wrote them."""
        return tuple(
            ToolCall(
                id=str(block.get("id")),
                name=str(block.get("name")),
                arguments=self._arguments_json(index, block),
            )
            for index, block in sorted(self._blocks.items())
            if block.get("type") == "tool_use"
        )

    def text(self) -> str:
        return "".join(
            str(block.get("text") or "")
            for _, block in sorted(self._blocks.items())
            if block.get("type") == "text"
        )

    def raw_content(self) -> list[Json]:
        """Return the content for sending back verbatim, without blank texts: the API refuses
        those.
        """
        content = []
        for index, block in sorted(self._blocks.items()):
            if block.get("type") == "tool_use":
                content.append(
                    block | {"input": parse_tool_input(self._arguments_json(index, block))}
                )
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
        return StreamEnd(stop_reason=stop, usage=self.usage, model=self._model)

    def _arguments_json(self, index: int, block: Json) -> str:
        written = replace_half_escapes(join_surrogates(self._arguments.get(index, "")))
        return written or json.dumps(block.get("input") or {}, ensure_ascii=False)


def _safe_word(word: str) -> str:
    """Return a word of the provider for a log line; "?" if it is anything but a word."""
    return word if re.fullmatch(r"[\w.\[\]-]{1,80}", word, re.ASCII) else "?"


_KNOWN_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)
"""Names of the events that are parsed; others, such as `ping`, are skipped."""
_CUT_ENDING = (
    SseEvent(
        name="message_delta",
        data='{"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}',
    ),
    SseEvent(name="message_stop", data='{"type": "message_stop"}'),
)
"""End of an answer that was broken off because it went on behind its limit."""
_NO_SYSTEM = re.compile(
    r"role .?system.? is not supported|unexpected role .?system|role: input should be",
    re.IGNORECASE,
)
"""Matches a refusal of system messages: today's API, older versions, and servers that validate
against a schema."""
_WANTS_THINKING = re.compile(r"\.thinking\W.{0,60}passed back", re.IGNORECASE)
"""Matches DeepSeek's demand for the thinking of all answers (api-docs.deepseek.com, thinking
mode)."""
_THINKING_REFUSED = re.compile(r"`(redacted_)?thinking`|\.content\.\d+: Input tag .* expected tags")
"""Matches the API's refusal (400) of returned thinking: it changed, it moved, or a block beside it
cannot be returned.
"""

logger = logging.getLogger(__name__)


class AnthropicModel(RemoteModel):
    """One Claude model.

    Cache breakpoints come from `ModelRequest.breakpoints` alone. What holds for one request only is
    sent as a system message if the model takes those, else at the end of the user's text; in both
    cases behind the breakpoints.

    Thinking is never yielded as text. If the model thought before it called tools, the API wants
    that thinking back verbatim in the rest of the tool loop, behind exactly the same prefix. This
    instance remembers such answers by the id of their first call, and sends them back unchanged if
    the message has the same text and calls. The suffix of the original request (`aside` and `now`)
    is part of that prefix and is repeated at its place. Otherwise (after a restart, or the 257th
    such answer) the answer is sent without thinking, which the API allows. If the API refuses
    returned thinking, as after older results were shortened, the request is sent once more without
    it, and only the thinking of later answers is sent back (`ThinkingStore.forget`). A server that
    demands the thinking of all answers (DeepSeek) gets it from `ModelMessage.thinking`, from then
    on.

    Tool calls are yielded right before `StreamEnd`, and only if the model stopped for them or was
    stopped by the output limit, which leaves the last one incomplete.
    """

    family = "anthropic"

    def __init__(
        self,
        *,
        name: str,
        model: str,
        api_key: str = "",
        base_url: str = "https://api.anthropic.com",
        context_tokens: int = 200_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        takes_images: bool = True,
        effort: Effort | None = None,
        thinking: ThinkingMode = "default",
        may_leak_calls: bool = False,
        proxy: SecretStr | None = None,
        api: ModelHttpClient | None = None,
    ) -> None:
        """`api_key` empty: none is sent. `effort` None: the model's default.

        `may_leak_calls`: as in `StreamEnd`. `api`: sends the requests, in place of one for
        `base_url` and `api_key`.

        Raises ValueError for a bad URL or key, and for settings that the model is known to refuse.
        """
        super().__init__(
            api
            or ModelHttpClient(
                url=join_endpoint(base_url, "/messages"),
                headers=anthropic_headers(api_key),
                secret=api_key,
                timeout_s=timeout_s,
                proxy=proxy,
            ),
            name=name,
            model=model,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
            takes_images=takes_images,
            may_leak_calls=may_leak_calls,
        )
        self._options = build_options(model, effort, thinking)
        self._takes_system_messages = find_capabilities(model).takes_system_messages
        self._takes_breakpoints = True
        self._wants_thinking = False
        self._thinking_store = ThinkingStore()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:  # noqa: C901 - in their order
        while True:
            options = self._options | (
                build_least_effort(self._model) if request.thinks_less else {}
            )
            wire = build_anthropic_request(
                request if self._takes_breakpoints else replace(request, breakpoints=()),
                model=self._model,
                recall=self._thinking_store.recall,
                options=options,
                takes_system_messages=self._takes_system_messages,
                wants_thinking=self._wants_thinking,
            )
            answer = AnthropicResponse(model=self._model)
            begun = False
            try:
                async with aclosing(
                    self._stream_text(wire, answer, request.max_output_tokens)
                ) as texts:
                    async for chunk in texts:
                        begun = begun or isinstance(chunk, TextPart)
                        yield chunk
                break
            except RequestRefused as error:
                if begun or not self._adapt_to_refusal(
                    wire, f"{error.reason} {error.provider_message}"
                ):
                    raise
        if rest := answer.text_halves.join("", final=True):
            yield TextPart(text=rest)
        for note in answer.notes:
            logger.info("%s %s", self.label, note)
        if answer.unread:
            report_unread(
                answer.unread,
                where=self.label,
                has_content=bool(answer.text() or answer.tool_calls()),
            )
        if answer.is_window_full:
            yield StreamStart(usage=answer.usage)
            raise PromptTooLong(f"{self._api.host} filled its window before the answer was whole")
        end = replace(
            answer.build_end(),
            ephemeral_from=wire.ephemeral_from,
            may_leak_calls=self._may_leak_calls,
        )
        if end.stop_reason in {"tools", "length"} and answer.tool_calls():
            self._remember_thinking(request, wire, answer)
            if (
                find_known_capabilities(self._model) is None
            ):  # Claude itself never wants it after the loop
                end = replace(end, thinking=write_thinking(answer.raw_content(), self._model))
            for call in answer.tool_calls():
                yield call
        yield end

    async def _stream_text(  # noqa: C901 - in their order
        self, wire: AnthropicRequest, answer: AnthropicResponse, most: int
    ) -> AsyncGenerator[StreamStart | ThinkingDelta | TextPart]:
        """Send the request, fill `answer` and yield its text meanwhile. `most`: the limit of output
        tokens.
        """
        if "stream" not in wire.body:
            try:
                answer.add_whole_response(await self._api.fetch(wire.body))
            except ValueError:
                raise ModelBusy(f"{self._api.host} sent a garbled answer") from None
            return
        try:
            async with aclosing(
                self._api.stream_events(wire.body, max_tokens=most, ending=_CUT_ENDING)
            ) as events:
                async for event in events:
                    if event.name not in _KNOWN_EVENTS:
                        continue
                    if text := answer.add_event(self._parse_event(event.data)):
                        yield TextPart(text=text)
                    if answer.thinking or event.name == "content_block_start":
                        yield ThinkingDelta(text=answer.thinking)
                    if event.name == "message_start":
                        yield StreamStart(usage=answer.usage)
        except ModelBusy:
            if not answer.is_complete:  # otherwise only the end of the connection was missing
                raise
        if not answer.is_complete:
            raise ModelBusy(f"{self._api.host} cut the answer off")

    def _parse_event(self, data: str) -> AnthropicEvent | None:
        event = parse_event(AnthropicEvent, data)
        if event is not None and event.type == "error":
            raise self._api.read_stream_error(data)
        return event

    def _adapt_to_refusal(self, wire: AnthropicRequest, reason: str) -> bool:
        """Change how requests are written, if that avoids the refusal. True: send the request
        again.
        """
        if wire.has_system_messages and _NO_SYSTEM.search(reason):
            logger.info(
                "%s takes no system messages: told in the user's words from now on", self.label
            )
            self._takes_system_messages = False
            return True
        if not self._wants_thinking and _WANTS_THINKING.search(reason):
            logger.info("%s wants the thinking of all answers back: sent from now on", self.label)
            self._wants_thinking = True
            return True
        if wire.recalled_call_ids and _THINKING_REFUSED.search(reason):
            logger.info("%s does not take its thinking back: sent without it", self.label)
            self._thinking_store.forget(wire.recalled_call_ids)
            return True
        if self._takes_breakpoints and "cache_control" in reason and wire.has_breakpoints:
            logger.warning(
                "%s takes no cache_control: nothing is marked for its cache any more", self.label
            )
            self._takes_breakpoints = False
            return True
        return False

    def _remember_thinking(
        self, request: ModelRequest, wire: AnthropicRequest, answer: AnthropicResponse
    ) -> None:
        content = answer.raw_content()
        if any(block.get("type") in THINKING_TYPES for block in content):
            remembered = ThinkingAnswer(
                suffix=wire.suffix,
                text=answer.text().strip(),
                calls=answer.tool_calls(),
                content=content,
            )
            self._thinking_store.remember(remembered, request.conversation)
