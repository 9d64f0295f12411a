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
        sees: bool = False,
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
        self._dialect = dialect_of(self._api.where, model, identity_in=identity_in)
        self._secret = secret
        self._model = model
        self._leaks = leaks
        self._sampling = dict(sampling or {})
        self._held = not self._dialect.openai and _UNOPENED.search(model) is not None
        self._thought: OrderedDict[str, tuple[Said, Json]] = OrderedDict()
        self.name = name
        self.label = f"{model} at {self._api.where}"
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = family
        self.takes_tools = True
        self.sees = sees

    async def stream(self, request: Request) -> AsyncGenerator[Chunk]:
        if not request.max_output_tokens:
            yield End(stop="end", usage=Usage(), model=self._model)
            return
        tried, begun = {self._dialect}, False
        while True:
            body = self.body(request)
            try:
                async with aclosing(self.answer(body, earlier_calls=count_calls(request))) as chunks:
                    async for chunk in chunks:
                        begun = begun or isinstance(chunk, Text)
                        yield replace(chunk, fleeting=self._fleeting(request)) if isinstance(chunk, End) else chunk
            except Malformed as error:
                other = without_field(self._dialect, body, error.told)
                if begun or other is None or other in tried:
                    raise
                _log.warning("%s: asked in another way from now on: %s", self.label, error.reason)
                self._dialect = other
                tried.add(other)
            else:
                return

    def _fleeting(self, request: Request) -> int | None:
        """Which answer is the first that is handed back with its thinking, as only its loop does."""
        said = request.conversation
        return next((place for place in range(loop_begins(said), len(said)) if self._recall(said[place])), None)

    def body(self, request: Request) -> Json:
        """Return what `request` is on the wire."""
        body = translate(request, model=self._model, dialect=self._dialect, recall=self._recall) | self._sampling
        return {field: value for field, value in body.items() if field not in self._dialect.without}

    async def answer(self, body: Json, *, earlier_calls: int) -> AsyncGenerator[Chunk]:  # noqa: C901 - in their order
        """As `stream`, for a request that is written already."""
        answer = Answer(earlier_calls=earlier_calls, model=self._model)
        aloud = Unthought(held=self._held)
        done, raw = False, self._dialect.openai
        words: list[str] = []
        async with aclosing(self._api.events(body)) as events:
            async for event in events:
                # Read on after the end, so that the connection can be used again.
                done = done or event.data.strip() == "[DONE]"
                if done:
                    continue
                text = answer.take(self._parse(event.data))
                if answer.newly_thought:
                    yield Reasoned(text=answer.newly_thought)
                if not text:
                    continue
                if text := text if raw or answer.thought else self._heard(aloud, text):
                    words.append(text)
                    yield Text(text=text)
        if answer.stop is None:
            raise Busy(f"{self._api.where} cut the answer off")
        if text := self._heard(aloud, None):
            words.append(text)
            yield Text(text=text)
        end = answer.end()
        asked = body.get("max_tokens") or body.get("max_completion_tokens")
        said = bool(words or answer.calls())
        full = window_full(end, said=said, asked=asked if isinstance(asked, int) else 0, window=self.context_tokens)
        if answer.overflowed or full:
            yield Began(usage=end.usage)
            raise TooLong(f"{self._api.where} filled its window before the answer was whole")
        if end.stop == "tools":
            self._remember("".join(words), answer)
            for call in answer.calls():
                yield call
        yield replace(end, leaks=self._leaks)

    async def start(self) -> None:
        self._api.open()

    async def aclose(self) -> None:
        await self._api.aclose()

    def _heard(self, aloud: Unthought, text: str | None) -> str:
        """Return what of `text` (None: the end) is no thinking."""
        try:
            return aloud.finish() if text is None else aloud.feed(text)
        except ThinksAloud:
            self._held = True
            raise Busy(f"{self.label} was thinking aloud") from None

    def _remember(self, words: str, answer: Answer) -> None:
        calls, thinking = answer.calls(), answer.thinking()
        if thinking:
            self._thought[calls[0].id] = (_essence(words, *calls), thinking)
        while len(self._thought) > _REMEMBERED:
            self._thought.popitem(last=False)

    def _recall(self, said: Said) -> Json | None:
        calls = [part for part in said.parts if isinstance(part, ToolCall)]
        words = "".join(part.text for part in said.parts if isinstance(part, Text))
        known, thinking = self._thought.get(calls[0].id, (None, {})) if calls else (None, {})
        return thinking if known == _essence(words, *calls) else None

    def _parse(self, data: str) -> "ChunkIn":
        try:
            chunk = ChunkIn.model_validate_json(data)
        except ValidationError:
            raise Busy(f"{self._api.where} sent a garbled stream") from None
        if chunk.error is not None:
            raise stream_failure(data, where=self._api.where, secret=self._secret)
        return chunk


def _essence(words: str, *calls: ToolCall) -> Said:
    """What must be the same for an answer to be the one that is remembered."""
    return Said(role="assistant", parts=(Text(text=words.strip()), *calls))


def count_calls(request: Request) -> int:
    """Tool calls in the conversation: a new one without an id gets one that none of them has."""
    return sum(isinstance(part, ToolCall) for said in request.conversation for part in said.parts)
