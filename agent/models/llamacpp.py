"""Client of a llama.cpp server: chat completions with pinned slots, and prompts evaluated ahead of
time.

Obeys llama.cpp tools/server/README.md (`id_slot`, `cache_prompt`, `n_predict` 0, `timings`,
`/props`, `/v1/chat/completions/input_tokens`, `/apply-template`, `/tokenize`).

A slot holds one evaluated prompt. The beginning that the next prompt shares with it is not
evaluated again. Slots share nothing with each other, hence two rules:

- A conversation keeps its slot. When there are too few, the conversation that was quiet for longest
  loses its slot.
- While there are empty slots, one is kept ready with the prefix of each agent, for its next new
  conversation.

A server that chooses slots itself (`id_slot` -1) takes the most similar one, also if that belongs
to another conversation (ggml-org/llama.cpp discussion 13606; measured: two conversations in turn
evaluate their history again each time).

Prompts are evaluated ahead of time one after the other, newest first, and only while no answer is
awaited. A request for an answer cancels the one under way; the server keeps what it has evaluated,
and continues there later.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pydantic import BaseModel, SecretStr

from agent.models.base import (
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    StreamChunk,
    StreamEnd,
    TextPart,
)
from agent.models.http import DEFAULT_TIMEOUT_S, ModelHttpClient, strip_version
from agent.models.openai import OpenAIModel
from agent.turn import presentable_text
from gateway.core.events import Usage

logger = logging.getLogger(__name__)

_MAX_LOSSES = 2
"""Losses in a row that prove that the server empties idle slots."""
_MAX_WAITING = 64
"""Prompts that wait to be evaluated; the oldest are dropped."""


class _Props(BaseModel):
    total_slots: int = 0


@dataclass(slots=True)
class _Slot:
    number: int
    conversation_id: str = ""
    """Conversation that it holds. Empty: none."""
    prefix: ModelRequest | None = None
    """Prefix of an agent that it is ready with. None: none."""
    is_busy: bool = False


class LlamaCppModel(OpenAIModel):
    """One llama.cpp server.

    Each conversation (`ModelRequest.conversation_id`) keeps a slot as long as there are enough.
    After an answer, and with `max_output_tokens` 0, prompts are evaluated ahead of the next
    message, but never while an answer is awaited: a request cancels what is under way, within one
    batch of the server. With `max_output_tokens` 0 the stream ends at once.

    A server that empties idle slots loses pinned prompts (ggml-org/llama.cpp#28139; its default
    with a unified cache). Once two answers in a row read nothing from the slots of their
    conversations, these are not pinned any more, and a warning in the log gives the option to start
    the server with.
    """

    family = "llamacpp"

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        model: str = "llama.cpp",
        api_key: str = "",
        context_tokens: int = 128_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        sampling: Mapping[str, float] | None = None,
        takes_images: bool = False,
        identity_in: Literal["system", "user"] = "system",
        may_leak_calls: bool = True,
        proxy: SecretStr | None = None,
    ) -> None:
        """As `OpenAIModel`. Raises ValueError."""
        super().__init__(
            name=name,
            model=model,
            base_url=base_url,
            api_key=api_key,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
            timeout_s=timeout_s,
            sampling=sampling,
            reuse=False,  # llama.cpp may close a connection just when it is used again (measured)
            takes_images=takes_images,
            identity_in=identity_in,
            may_leak_calls=may_leak_calls,
            proxy=proxy,
        )
        self._props = ModelHttpClient(
            url=f"{strip_version(base_url)}/props",
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            secret=api_key,
            timeout_s=timeout_s,
            reuse=False,
            proxy=proxy,
        )
        self._slots: list[_Slot] | None = None
        """Longest unused first. Empty: conversations are not pinned. None: not known yet."""
        self._losses = 0
        self._prefixes: dict[str, ModelRequest] = {}
        """Prompts that all conversations begin with, by agent."""
        self._waiting: OrderedDict[tuple[str, str], ModelRequest] = OrderedDict()
        """Prompts to evaluate ahead, by conversation and agent."""
        self._awaited_answers = 0
        self._preloading: asyncio.Task[None] | None = None
        self._closed = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if not request.max_output_tokens:
            if not request.conversation_id:
                self._prefixes[request.shared_key] = request
            self._evaluate_ahead(request)
            yield StreamEnd(stop_reason="end", usage=Usage(), model=self._model)
            return
        async with self._pause(request):
            await self._find_slots()
            slot, is_held = self._acquire(request)
            pieces: list[str] = []
            end: StreamEnd | None = None
            try:
                build = partial(self._build_body, slot=slot)
                async with aclosing(self.stream_built(request, build)) as chunks:
                    async for chunk in chunks:
                        if isinstance(chunk, StreamEnd):
                            end = chunk
                            break
                        pieces += [chunk.text] if isinstance(chunk, TextPart) else []
                        yield chunk
            finally:
                if slot is not None:
                    slot.is_busy = False
        assert end is not None
        if is_held:
            self._detect_slot_loss(end.usage)
        text = "".join(pieces)
        called = end.stop_reason in {"tools", "length"} or (
            end.may_leak_calls and bool(text.strip()) and not presentable_text(text)
        )
        if (
            not called
        ):  # otherwise the next request follows at once, with other messages behind this one
            self._evaluate_ahead(_with_answer(request, text))
        yield end

    async def aclose(self) -> None:
        self._closed = True
        await self._cancel_preloading()
        await super().aclose()
        await self._props.aclose()

    def _build_body(
        self, request: ModelRequest, slot: _Slot | None, **fields: object
    ) -> dict[str, object]:
        body: dict[str, object] = self.build_body(request) | {"cache_prompt": True}
        return (body if slot is None else body | {"id_slot": slot.number}) | fields

    async def _find_slots(self) -> None:
        if self._slots is not None:
            return
        total = 0
        try:
            total = _Props.model_validate_json(await self._props.fetch()).total_slots
        except (ModelUnusable, ValueError):
            pass  # not llama.cpp after all, or it hides them: everything else works without
        except ModelError as error:
            logger.debug("%s does not tell its slots now: %s", self.label, error)
            return
        self._slots = [_Slot(number) for number in range(total if total > 1 else 0)]

    def _acquire(self, request: ModelRequest) -> tuple[_Slot | None, bool]:
        """Choose a slot and mark it busy. None: all are, or there are none. The second value: the
        slot holds this conversation.
        """
        place, agent = request.conversation_id, request.shared_key
        slots = self._slots or []
        slot = min(
            (slot for slot in slots if not slot.is_busy),
            key=lambda slot: (
                slot.conversation_id != place,
                bool(slot.conversation_id),
                slot.prefix is None or slot.prefix.shared_key != agent,
                slot.prefix is not None,
            ),
            default=None,
        )
        if slot is None:
            return None, False
        slots.remove(slot)
        slots.append(slot)
        is_held = slot.conversation_id == place != ""
        slot.conversation_id, slot.prefix, slot.is_busy = place, None, True
        return slot, is_held

    def _detect_slot_loss(self, usage: Usage) -> None:
        """Detect whether the server loses the prompts in its slots; if so, stop pinning and log
        it.
        """
        self._losses = 0 if usage.cache_read_tokens else self._losses + 1
        if self._slots and self._losses >= _MAX_LOSSES:
            self._slots = []
            logger.warning(
                "%s empties idle slots (llama.cpp#28139), so conversations are not pinned to them; "
                "start it with --no-cache-idle-slots to keep each one's prompt",
                self.label,
            )

    def _evaluate_ahead(self, request: ModelRequest) -> None:
        """Queue the prompt, in place of an earlier one of its conversation."""
        key = request.conversation_id, request.shared_key
        self._waiting.pop(key, None)
        self._waiting[key] = request
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popitem(last=False)
        self._start_preloading()

    @asynccontextmanager
    async def _pause(self, request: ModelRequest) -> AsyncGenerator[None]:
        """Evaluate nothing ahead, and drop the queued prompt of this conversation."""
        self._awaited_answers += 1
        self._waiting.pop((request.conversation_id, request.shared_key), None)
        try:
            await self._cancel_preloading()
            yield
        finally:
            self._awaited_answers -= 1
            self._start_preloading()

    def _start_preloading(self) -> None:
        if not self._closed and not self._awaited_answers and self._preloading is None:
            self._preloading = asyncio.create_task(self._preload())

    async def _cancel_preloading(self) -> None:
        task, self._preloading = self._preloading, None
        if task is not None:
            task.cancel()
            # not `await task`: its cancellation and ours must stay distinct
            await asyncio.wait([task])

    async def _preload(self) -> None:
        try:
            await self._find_slots()
            while request := self._next_prompt():
                key = request.conversation_id, request.shared_key
                await self._evaluate(request)
                if self._waiting.get(key) is request:
                    del self._waiting[key]
        except ModelError as error:
            logger.debug("nothing is read in ahead of time: %s", error)
            self._waiting.clear()
        finally:
            self._preloading = None

    def _next_prompt(self) -> ModelRequest | None:
        """Return the newest prompt that waits, or a prefix that no slot is ready with while one is
        empty.
        """
        if self._waiting:
            return next(reversed(self._waiting.values()))
        ready = [
            slot.prefix
            for slot in self._slots or []
            if not slot.conversation_id and not slot.is_busy
        ]
        known = list(self._prefixes.values())
        missing = [prefix for prefix in known if prefix not in ready]
        return missing[-1] if missing and any(prefix not in known for prefix in ready) else None

    async def _evaluate(self, request: ModelRequest) -> None:
        slot, _ = self._acquire(request)
        build = partial(self._build_body, slot=slot, n_predict=0)
        try:
            async with aclosing(self.stream_built(request, build)) as chunks:
                async for _ in chunks:
                    pass
        finally:
            if slot is not None:
                slot.is_busy = False
        if slot is not None and not request.conversation_id:
            slot.prefix = request


def _with_answer(request: ModelRequest, text: str) -> ModelRequest:
    """Return the request with its answer: the beginning of the next one in its conversation."""
    answer = (
        (ModelMessage(role="assistant", parts=(TextPart(text=text.strip()),)),)
        if text.strip()
        else ()
    )
    return replace(
        request,
        conversation=(*request.conversation, *answer),
        aside="",
        now="",
        max_output_tokens=0,
    )
