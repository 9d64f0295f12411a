"""OpenAI-compatible streaming chat completions: OpenAI, vLLM, Ollama and their kin."""

import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from pydantic import ValidationError

from agent.models.anthropic_wire import loop_begins
from agent.models.base import Began, Busy, Chunk, End, Malformed, Reasoned, Request, Said, Text, ToolCall, TooLong
from agent.models.failures import stream_failure, window_full
from agent.models.http import DEFAULT_TIMEOUT_S, Api, endpoint
from agent.models.openai_answer import Answer, ChunkIn
from agent.models.openai_thinking import ThinksAloud, Unthought
from agent.models.openai_wire import Json, dialect_of, translate, without_field
from gateway.events import Usage

_log = logging.getLogger(__name__)
_REMEMBERED = 256
"""Answers with thinking kept for their tool loops: a loop has tens at most, a gateway a few at a time."""
_UNOPENED = re.compile(r"deepseek-r1|\br1\b|qwq|thinking", re.IGNORECASE)
"""Models whose template writes `<think>` itself, so that a server that does not parse it sends only `</think>`."""


class OpenAIModel:
    """One model behind `/v1/chat/completions`.

    Text is what the model says, never what it thinks, in a field of its own or marked in the text. Within a tool loop
    the thinking is handed back to servers that told it in a field: `Said` has no place for it, so the instance
    remembers such answers by their first call's id. Tool calls are yielded whole, right before `End`, and only if the
    model stopped for them: what a length limit cut is not a call. A stream without a finish reason was cut, and raises
    `Busy`; so does one that turns out to have been thinking aloud, once: from then on text is held back until its end.
    With `max_output_tokens` 0 nobody is asked: such servers cache what they have answered, and cannot answer nothing.
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
        """`api_key` empty or `none`: none is sent. `sampling` goes into every request. `leaks`: as `End.leaks`.

        Raises ValueError.

        `reuse` False: for llama.cpp, which may close a connection just when it is used again (measured).
        """
        secret = "" if api_key.lower() == "none" else api_key
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        url = endpoint(base_url, "/chat/completions")
        self._api = Api(url=url, headers=headers, secret=secret, timeout_s=timeout_s, reuse=reuse)
        self._dialect = dialect_of(self._api.host, model, identity_in=identity_in)
        self._secret = secret
        self._model = model
        self._leaks = leaks
        self._sampling = dict(sampling or {})
        self._holds_text = not self._dialect.is_openai and _UNOPENED.search(model) is not None
        self._thinking: OrderedDict[str, tuple[Said, Json]] = OrderedDict()
        self.name = name
        self.label = f"{model} at {self._api.host}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = family
        self.takes_tools = True
        self.takes_images = takes_images

    async def stream(self, request: Request) -> AsyncGenerator[Chunk]:
        if not request.max_output_tokens:
            yield End(stop_reason="end", usage=Usage(), model=self._model)
            return
        tried, begun = {self._dialect}, False
        while True:
            body = self.build_body(request)
            try:
                async with aclosing(self.stream_body(body, earlier_calls=count_calls(request))) as chunks:
                    async for chunk in chunks:
                        begun = begun or isinstance(chunk, Text)
                        yield (
                            replace(chunk, ephemeral_from=self._find_ephemeral_from(request))
                            if isinstance(chunk, End)
                            else chunk
                        )
            except Malformed as error:
                other = without_field(self._dialect, body, error.provider_message)
                if begun or other is None or other in tried:
                    raise
                _log.warning("%s: asked in another way from now on: %s", self.label, error.reason)
                self._dialect = other
                tried.add(other)
            else:
                return

    def _find_ephemeral_from(self, request: Request) -> int | None:
        """Which answer is the first that is handed back with its thinking, as only its loop does."""
        said = request.conversation
        return next(
            (place for place in range(loop_begins(said), len(said)) if self._recall_thinking(said[place])), None
        )

    def build_body(self, request: Request) -> Json:
        """Return what `request` is on the wire."""
        body = (
            translate(request, model=self._model, dialect=self._dialect, recall=self._recall_thinking) | self._sampling
        )
        return {field: value for field, value in body.items() if field not in self._dialect.dropped_fields}

    async def stream_body(self, body: Json, *, earlier_calls: int) -> AsyncGenerator[Chunk]:  # noqa: C901 - in their order
        """As `stream`, for a request that is written already."""
        answer = Answer(earlier_calls=earlier_calls, model=self._model)
        aloud = Unthought(held=self._holds_text)
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
                    yield Reasoned(text=answer.new_thinking)
                if not text:
                    continue
                if text := text if raw or answer.has_thinking else self._filter_thinking(aloud, text):
                    words.append(text)
                    yield Text(text=text)
        if answer.stop_reason is None:
            raise Busy(f"{self._api.host} cut the answer off")
        if text := self._filter_thinking(aloud, None):
            words.append(text)
            yield Text(text=text)
        end = answer.build_end()
        asked = body.get("max_tokens") or body.get("max_completion_tokens")
        said = bool(words or answer.tool_calls())
        full = window_full(end, said=said, asked=asked if isinstance(asked, int) else 0, window=self.context_tokens)
        if answer.is_window_full or full:
            yield Began(usage=end.usage)
            raise TooLong(f"{self._api.host} filled its window before the answer was whole")
        if end.stop_reason == "tools":
            self._remember_thinking("".join(words), answer)
            for call in answer.tool_calls():
                yield call
        yield replace(end, may_leak_calls=self._leaks)

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()

    def _filter_thinking(self, aloud: Unthought, text: str | None) -> str:
        """Return what of `text` (None: the end) is no thinking."""
        try:
            return aloud.finish() if text is None else aloud.feed(text)
        except ThinksAloud:
            self._holds_text = True
            raise Busy(f"{self.label} was thinking aloud") from None

    def _remember_thinking(self, words: str, answer: Answer) -> None:
        calls, thinking = answer.tool_calls(), answer.thinking_fields()
        if thinking:
            self._thinking[calls[0].id] = (_essence(words, *calls), thinking)
        while len(self._thinking) > _REMEMBERED:
            self._thinking.popitem(last=False)

    def _recall_thinking(self, said: Said) -> Json | None:
        calls = [part for part in said.parts if isinstance(part, ToolCall)]
        words = "".join(part.text for part in said.parts if isinstance(part, Text))
        known, thinking = self._thinking.get(calls[0].id, (None, {})) if calls else (None, {})
        return thinking if known == _essence(words, *calls) else None

    def _parse_chunk(self, data: str) -> "ChunkIn":
        try:
            chunk = ChunkIn.model_validate_json(data)
        except ValidationError:
            raise Busy(f"{self._api.host} sent a garbled stream") from None
        if chunk.error is not None:
            raise stream_failure(data, where=self._api.host, secret=self._secret)
        return chunk


def _essence(words: str, *calls: ToolCall) -> Said:
    """What must be the same for an answer to be the one that is remembered."""
    return Said(role="assistant", parts=(Text(text=words.strip()), *calls))


def count_calls(request: Request) -> int:
    """Tool calls in the conversation: a new one without an id gets one that none of them has."""
    return sum(isinstance(part, ToolCall) for said in request.conversation for part in said.parts)
