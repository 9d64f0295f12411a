"""OpenAI-compatible streaming chat completions: OpenAI, vLLM, Ollama and their kin."""

import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from pydantic import ValidationError

from agent.models.anthropic_wire import find_tool_loop_start
from agent.models.base import (
    ModelBusy,
    ModelMessage,
    ModelRequest,
    PromptTooLong,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
    ToolCall,
)
from agent.models.failures import error_from_stream, is_window_full
from agent.models.http import DEFAULT_TIMEOUT_S, ModelHttpClient, join_endpoint
from agent.models.openai_answer import ChatCompletionChunk, ChatCompletionResponse
from agent.models.openai_thinking import ThinkingFilter, UnmarkedThinking
from agent.models.openai_wire import Json, build_chat_request, drop_field, find_dialect
from gateway.events import Usage

logger = logging.getLogger(__name__)
_MAX_ANSWERS = 256
"""Answers with thinking kept for their tool loops: a loop has tens at most, a gateway a few at a time."""
_THINKS_UNMARKED = re.compile(r"deepseek-r1|\br1\b|qwq|thinking", re.IGNORECASE)
"""Models whose template writes `<think>` itself, so that a server that does not parse it sends only `</think>`."""


class OpenAIModel:
    """One model behind `/v1/chat/completions`.

    Text is what the model says, never what it thinks, in a field of its own or marked in the text. Within a tool loop
    the thinking is handed back to servers that told it in a field: `ModelMessage` has no place for it, so the instance
    remembers such answers by their first call's id. Tool calls are yielded whole, right before `StreamEnd`, and only if
    the model stopped for them: what a length limit cut is not a call. A stream without a finish reason was cut, and
    raises `ModelBusy`; so does one that turns out to have been thinking aloud, once: from then on text is held back
    until its end. With `max_output_tokens` 0 nobody is asked: such servers cache what they have answered, and cannot
    answer nothing.
    """

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
        family: str = "openai",
        sampling: Mapping[str, float] | None = None,
        reuse: bool = True,
        takes_images: bool = False,
        identity_in: Literal["system", "user"] = "system",
        leaks: bool = False,
    ) -> None:
        """`api_key` empty or `none`: none is sent. `sampling` goes into every request. `leaks`: as `StreamEnd.leaks`.

        Raises ValueError.

        `reuse` False: for llama.cpp, which may close a connection just when it is used again (measured).
        """
        secret = "" if api_key.lower() == "none" else api_key
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        url = join_endpoint(base_url, "/chat/completions")
        self._api = ModelHttpClient(url=url, headers=headers, secret=secret, timeout_s=timeout_s, reuse=reuse)
        self._dialect = find_dialect(self._api.host, model, identity_in=identity_in)
        self._secret = secret
        self._model = model
        self._leaks = leaks
        self._sampling = dict(sampling or {})
        self._holds_text = not self._dialect.is_openai and _THINKS_UNMARKED.search(model) is not None
        self._thinking: OrderedDict[str, tuple[ModelMessage, Json]] = OrderedDict()
        self.name = name
        self.label = f"{model} at {self._api.host}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = family
        self.takes_tools = True
        self.takes_images = takes_images

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if not request.max_output_tokens:
            yield StreamEnd(stop_reason="end", usage=Usage(), model=self._model)
            return
        tried, begun = {self._dialect}, False
        while True:
            body = self.build_body(request)
            try:
                async with aclosing(self.stream_body(body, earlier_calls=count_tool_calls(request))) as chunks:
                    async for chunk in chunks:
                        begun = begun or isinstance(chunk, TextPart)
                        yield (
                            replace(chunk, ephemeral_from=self._find_ephemeral_from(request))
                            if isinstance(chunk, StreamEnd)
                            else chunk
                        )
            except RequestRefused as error:
                other = drop_field(self._dialect, body, error.provider_message)
                if begun or other is None or other in tried:
                    raise
                logger.warning("%s: asked in another way from now on: %s", self.label, error.reason)
                self._dialect = other
                tried.add(other)
            else:
                return

    def _find_ephemeral_from(self, request: ModelRequest) -> int | None:
        """Which answer is the first that is handed back with its thinking, as only its loop does."""
        said = request.conversation
        return next(
            (place for place in range(find_tool_loop_start(said), len(said)) if self._recall_thinking(said[place])),
            None,
        )

    def build_body(self, request: ModelRequest) -> Json:
        """Return what `request` is on the wire."""
        body = (
            build_chat_request(request, model=self._model, dialect=self._dialect, recall=self._recall_thinking)
            | self._sampling
        )
        return {field: value for field, value in body.items() if field not in self._dialect.dropped_fields}

    async def stream_body(self, body: Json, *, earlier_calls: int) -> AsyncGenerator[StreamChunk]:  # noqa: C901 - in their order
        """As `stream`, for a request that is written already."""
        answer = ChatCompletionResponse(earlier_calls=earlier_calls, model=self._model)
        aloud = ThinkingFilter(held=self._holds_text)
        done, raw = False, self._dialect.is_openai
        words: list[str] = []
        async with aclosing(self._api.stream_events(body)) as events:
            async for event in events:
                # Read on after the end, so that the connection can be used again.
                done = done or event.data.strip() == "[DONE]"
                if done:
                    continue
                text = answer.add_chunk(self._parse_chunk(event.data))
                if answer.new_thinking:
                    yield ThinkingDelta(text=answer.new_thinking)
                if not text:
                    continue
                if text := text if raw or answer.has_thinking else self._filter_thinking(aloud, text):
                    words.append(text)
                    yield TextPart(text=text)
        if answer.stop_reason is None:
            raise ModelBusy(f"{self._api.host} cut the answer off")
        if text := self._filter_thinking(aloud, None):
            words.append(text)
            yield TextPart(text=text)
        end = answer.build_end()
        asked = body.get("max_tokens") or body.get("max_completion_tokens")
        said = bool(words or answer.tool_calls())
        full = is_window_full(end, said=said, asked=asked if isinstance(asked, int) else 0, window=self.context_tokens)
        if answer.is_window_full or full:
            yield StreamStart(usage=end.usage)
            raise PromptTooLong(f"{self._api.host} filled its window before the answer was whole")
        if end.stop_reason == "tools":
            self._remember_thinking("".join(words), answer)
            for call in answer.tool_calls():
                yield call
        yield replace(end, may_leak_calls=self._leaks)

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()

    def _filter_thinking(self, aloud: ThinkingFilter, text: str | None) -> str:
        """Return what of `text` (None: the end) is no thinking."""
        try:
            return aloud.finish() if text is None else aloud.feed(text)
        except UnmarkedThinking:
            self._holds_text = True
            raise ModelBusy(f"{self.label} was thinking aloud") from None

    def _remember_thinking(self, words: str, answer: ChatCompletionResponse) -> None:
        calls, thinking = answer.tool_calls(), answer.thinking_fields()
        if thinking:
            self._thinking[calls[0].id] = (_identity_message(words, *calls), thinking)
        while len(self._thinking) > _MAX_ANSWERS:
            self._thinking.popitem(last=False)

    def _recall_thinking(self, said: ModelMessage) -> Json | None:
        calls = [part for part in said.parts if isinstance(part, ToolCall)]
        words = "".join(part.text for part in said.parts if isinstance(part, TextPart))
        known, thinking = self._thinking.get(calls[0].id, (None, {})) if calls else (None, {})
        return thinking if known == _identity_message(words, *calls) else None

    def _parse_chunk(self, data: str) -> "ChatCompletionChunk":
        try:
            chunk = ChatCompletionChunk.model_validate_json(data)
        except ValidationError:
            raise ModelBusy(f"{self._api.host} sent a garbled stream") from None
        if chunk.error is not None:
            raise error_from_stream(data, where=self._api.host, secret=self._secret)
        return chunk


def _identity_message(words: str, *calls: ToolCall) -> ModelMessage:
    """What must be the same for an answer to be the one that is remembered."""
    return ModelMessage(role="assistant", parts=(TextPart(text=words.strip()), *calls))


def count_tool_calls(request: ModelRequest) -> int:
    """Tool calls in the conversation: a new one without an id gets one that none of them has."""
    return sum(isinstance(part, ToolCall) for said in request.conversation for part in said.parts)
