"""A llama.cpp server: chat completions that say where a prompt is kept, and read it in ahead of time.

Obeys llama.cpp tools/server/README.md (`id_slot`, `cache_prompt`, `n_predict` 0, `timings`).
"""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agent.glimpse import presentable_text
from agent.models.base import ModelError, ModelMessage, ModelRequest, ModelUnusable, StreamChunk, StreamEnd, TextPart
from agent.models.http import DEFAULT_TIMEOUT_S
from agent.models.llamacpp_service import LlamaCppService
from agent.models.llamacpp_slots import LlamaCppSlots, prompt_prefix
from agent.models.llamacpp_warm import PromptPreloader
from agent.models.openai import OpenAIModel, count_tool_calls
from gateway.events import Usage

logger = logging.getLogger(__name__)
_LOSS_SHARE = 0.5
"""Of what a slot held: when less is found there again, it was emptied meanwhile."""
_MAX_LOSSES = 2
"""In a row, before we believe it."""


class LlamaCppModel:
    """One llama.cpp server.

    Each conversation (`ModelRequest.place`) keeps a slot as long as there are enough. After an answer, and with
    `max_output_tokens` 0, prompts are read in ahead of the next message (`agent.models.llamacpp_warm`): never while
    anybody waits for an answer, and what is under way then is broken off, within one batch of the server.

    A server that empties idle slots forgets what was pinned to them (ggml-org/llama.cpp#28139; its default with a
    unified cache): when this is seen, conversations are not pinned any more, and it is said how to start it instead.
    """

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
        leaks: bool = True,
        slot_files: Path | None = None,
    ) -> None:
        """As `OpenAIModel`. `slot_files`: the server's `--slot-save-path`, for files that last a moment.

        Raises ValueError.
        """
        self._chat = OpenAIModel(
            name=name,
            model=model,
            base_url=base_url,
            api_key=api_key,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
            timeout_s=timeout_s,
            family="llamacpp",
            sampling=sampling,
            reuse=False,  # llama.cpp may close a connection just when it is used again (measured)
            takes_images=takes_images,
            identity_in=identity_in,
            leaks=leaks,
        )
        self._service = LlamaCppService(base_url=base_url, api_key=api_key, timeout_s=timeout_s)
        self._slot_files = slot_files
        self._slots: LlamaCppSlots | None = None
        self._asks_for_slots = True
        self._loss_count = 0
        self._slot_requests: dict[int, ModelRequest] = {}
        """What each slot was last asked."""
        self._preloader = PromptPreloader(self._preload, self._copy_prefixes)
        self._model = model
        self.name = name
        self.label = self._chat.label
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = "llamacpp"
        self.takes_tools = True
        self.takes_images = takes_images

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        if not request.max_output_tokens:
            yield StreamEnd(stop_reason="end", usage=await self._preloader.preload(request), model=self._model)
            return
        async with self._preloader.pause(request.conversation_id):
            await self._find_slots()
            slot = self._slots.acquire(request) if self._slots is not None else None
            held = self._slots.held_tokens(slot) if self._slots is not None and slot is not None else 0
            words: list[str] = []
            end: StreamEnd | None = None
            try:
                body = self._build_body(request, slot)
                async with aclosing(self._chat.stream_body(body, earlier_calls=count_tool_calls(request))) as chunks:
                    async for chunk in chunks:
                        if isinstance(chunk, StreamEnd):
                            end = chunk
                            break
                        words += [chunk.text] if isinstance(chunk, TextPart) else []
                        yield chunk
            finally:
                if slot is not None:
                    self._release_slot(slot, end.usage if end is not None else None)
        assert end is not None
        if slot is not None:
            self._detect_slot_loss(slot, request, held, end.usage)
        self._preloader.learn_prefix(request)
        said = "".join(words)
        called = end.stop_reason == "tools" or (
            end.may_leak_calls and bool(said.strip()) and not presentable_text(said)
        )
        if not called:  # else the next request is on its way, with other words behind this one
            self._preloader.schedule(_with_answer(request, said))
        yield end

    async def count_tokens(self, request: ModelRequest) -> int:
        """Tokens of the request's prompt, by the server's own template and tokenizer.

        Raises a ModelError; `ModelUnusable` if the server is too old to count.
        """
        return await self._service.count_tokens(self._chat.build_body(request))

    async def start(self) -> None:
        await self._chat.start()

    async def aclose(self) -> None:
        await self._preloader.aclose()
        await self._chat.aclose()
        await self._service.aclose()

    def _build_body(self, request: ModelRequest, slot: int | None) -> dict[str, object]:
        body: dict[str, object] = self._chat.build_body(request) | {"cache_prompt": True}
        return body if slot is None else body | {"id_slot": slot}

    async def _find_slots(self) -> None:
        if not self._asks_for_slots:
            return
        try:
            total = await self._service.count_slots()
        except ModelUnusable:
            total = 0  # it is no llama.cpp after all, or hides them: everything else works without
        except ModelError as error:
            logger.debug("%s does not tell its slots now: %s", self.label, error)
            return
        self._asks_for_slots = False
        if total > 1:
            self._slots = LlamaCppSlots(total)

    def _release_slot(self, slot: int, usage: Usage | None) -> None:
        if self._slots is not None:
            total = None if usage is None else usage.input_tokens + usage.cache_read_tokens + usage.output_tokens
            self._slots.release(slot, tokens=total)

    def _detect_slot_loss(self, slot: int, request: ModelRequest, held: int, usage: Usage) -> None:
        """Find out whether the server forgets what slots held."""
        before, self._slot_requests[slot] = self._slot_requests.get(slot), request
        if before is None or not held or not _is_extension(request, before):
            return
        self._loss_count = self._loss_count + 1 if usage.cache_read_tokens < held * _LOSS_SHARE else 0
        if self._loss_count >= _MAX_LOSSES:
            self._slots = None
            logger.warning(
                "%s empties idle slots (llama.cpp#28139), so conversations are not pinned to them; "
                "start it with --no-cache-idle-slots to keep each one's prompt",
                self.label,
            )

    async def _preload(self, request: ModelRequest, begins: list[ModelRequest]) -> Usage:
        """Have a prompt evaluated and nothing answered. One that is nobody's goes to a slot that is nobody's."""
        await self._find_slots()
        if self._slots is None:
            return await self._evaluate(request, None)
        if not request.conversation_id:
            return await self._prepare_slot(request, begins, wanted=prompt_prefix(request)) or Usage()
        slot, usage = self._slots.acquire(request), None
        try:
            usage = await self._evaluate(request, slot)
            return usage
        finally:
            if slot is not None:
                self._release_slot(slot, usage)

    async def _copy_prefixes(self, begins: list[ModelRequest]) -> bool:
        if self._slots is None:
            return False
        return await self._prepare_slot(begins[-1], begins) is not None

    async def _prepare_slot(
        self, request: ModelRequest, begins: list[ModelRequest], *, wanted: str = ""
    ) -> Usage | None:
        assert self._slots is not None
        slots, known = self._slots, frozenset(map(prompt_prefix, begins))
        slot = slots.acquire_spare(known, wanted=wanted) if prompt_prefix(request) else None
        if slot is None:
            return None
        reached = ""
        try:
            usage = await self._evaluate(request, slot)
            reached = prompt_prefix(request)
        finally:
            slots.release_prepared(slot, reached)
        if self._slot_files is not None:
            try:
                await self._copy_slot(slot, reached, known | {reached}, self._slot_files / f"reverie-{reached}")
            except ModelError as error:
                self._slot_files = None
                logger.debug("%s does not copy slots: %s", self.label, error)
        return usage

    async def _copy_slot(self, source: int, prefix: str, known: frozenset[str], file: Path) -> None:
        """Put what a slot holds into all others that need it: 2 ms each, where evaluating takes seconds."""
        assert self._slots is not None
        try:
            await self._service.transfer_slot_file(source, "save", file.name)
            while (slot := self._slots.acquire_spare(known)) is not None:
                reached = ""
                try:
                    await self._service.transfer_slot_file(slot, "restore", file.name)
                    reached = prefix
                finally:
                    self._slots.release_prepared(slot, reached)
        finally:
            file.unlink(missing_ok=True)  # noqa: ASYNC240 - as quick as any other look-up

    async def _evaluate(self, request: ModelRequest, slot: int | None) -> Usage:
        body = self._build_body(request, slot) | {"n_predict": 0}
        usage = Usage()
        async with aclosing(self._chat.stream_body(body, earlier_calls=0)) as chunks:
            async for chunk in chunks:
                usage = chunk.usage if isinstance(chunk, StreamEnd) else usage
        return replace(usage, output_tokens=0)


def _with_answer(request: ModelRequest, words: str) -> ModelRequest:
    """What the next message will come behind."""
    said = (ModelMessage(role="assistant", parts=(TextPart(text=words.strip()),)),) if words.strip() else ()
    return replace(request, conversation=(*request.conversation, *said), aside="", now="", max_output_tokens=0)


def _is_extension(request: ModelRequest, before: ModelRequest) -> bool:
    """Whether it begins with all that the one before was."""
    said = before.conversation
    return (
        (request.tools, request.blocks) == (before.tools, before.blocks)
        and request.conversation[: len(said)] == said
        and not (before.aside or before.now)
    )
