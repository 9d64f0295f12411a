"""A llama.cpp server: chat completions that say where a prompt is kept, and read it in ahead of time.

Obeys llama.cpp tools/server/README.md (`id_slot`, `cache_prompt`, `n_predict` 0, `timings`).

Reading prompts in ahead of time, never at anybody's cost.

One at a time, the newest first, and only while nobody waits for an answer: who does breaks off what is under way
(the server keeps what it has evaluated, so that it goes on there later). When nothing is asked for any more, slots
that hold nothing are prepared with what all conversations of an agent begin with.

Which conversation is kept in which slot of a llama.cpp server. Pure.

A slot holds one evaluated prompt, and what the next one shares with it from the beginning need not be evaluated
again. Nothing is shared between slots, so two rules make the most of them:

- A conversation keeps its slot, and when there are too few, the one that was quiet for longest loses its own.
- A slot that holds nothing is prepared with what all conversations of an agent begin with. Until it is, a new
  conversation rather takes over one that begins in this way, if that costs its conversation less than it saves.

A server that chooses by itself (`id_slot` -1) takes the slot that is most alike, also if that is another conversation's
(ggml-org/llama.cpp discussion 13606; measured: two conversations in turn evaluate their history again each time).

What a llama.cpp server tells of itself, and counts.

Obeys llama.cpp tools/server/README.md (`/props`, `/v1/chat/completions/input_tokens`, `/apply-template`, `/tokenize`).
"""

import asyncio
import hashlib
import itertools
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from agent.models.base import ModelError, ModelMessage, ModelRequest, ModelUnusable, StreamChunk, StreamEnd, TextPart
from agent.models.http import DEFAULT_TIMEOUT_S, ModelHttpClient, strip_version
from agent.models.openai import OpenAIModel, count_tool_calls
from agent.turn import presentable_text
from gateway.core.events import Usage

M = TypeVar("M", bound=BaseModel)


class _ServerProps(BaseModel):
    total_slots: int = 0


class _InputTokens(BaseModel):
    input_tokens: int


class _AppliedTemplate(BaseModel):
    prompt: str


class _TokenizedPrompt(BaseModel):
    tokens: list[object]


class LlamaCppService:
    """The endpoints beside the conversations."""

    def __init__(self, *, base_url: str, api_key: str, timeout_s: float) -> None:
        self._secret = "" if api_key.lower() == "none" else api_key
        self._timeout_s = timeout_s
        self._root = strip_version(base_url)
        self._props = self._open_api("/props")
        self._input_tokens = self._open_api("/v1/chat/completions/input_tokens")
        self._template = self._open_api("/apply-template")
        self._tokenize = self._open_api("/tokenize")

    def _open_api(self, path: str) -> ModelHttpClient:
        headers = {"authorization": f"Bearer {self._secret}"} if self._secret else {}
        url = self._root + path
        return ModelHttpClient(url=url, headers=headers, secret=self._secret, timeout_s=self._timeout_s, reuse=False)

    async def count_slots(self) -> int:
        """Return how many prompts are kept at the same time. 0: it does not say. Raises a ModelError."""
        return self._parse_answer(_ServerProps, await self._props.get()).total_slots

    async def count_tokens(self, body: Mapping[str, object]) -> int:
        """Return the tokens of a chat completion's prompt, by the server's own template and tokenizer.

        Raises a ModelError; `ModelUnusable` if the server is too old to count.
        """
        asked = {key: value for key, value in body.items() if not key.startswith("stream")}
        try:
            return self._parse_answer(_InputTokens, await self._input_tokens.post(asked)).input_tokens
        except ModelUnusable:  # builds without it answer 404
            prompt = self._parse_answer(_AppliedTemplate, await self._template.post(asked)).prompt
        written = {"content": prompt, "add_special": True, "parse_special": True}
        return len(self._parse_answer(_TokenizedPrompt, await self._tokenize.post(written)).tokens)

    async def transfer_slot_file(self, slot: int, action: Literal["save", "restore"], name: str) -> None:
        """Write what a slot holds to a file of the server's `--slot-save-path`, or read it from there.

        Raises a ModelError; `Busy` (501) if it has no such path.
        """
        api = self._open_api(f"/slots/{slot}?action={action}")
        try:
            await api.post({"filename": name})
        finally:
            await api.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        for api in (self._props, self._input_tokens, self._template, self._tokenize):
            await api.aclose()

    def _parse_answer(self, kind: type[M], answer: bytes) -> M:
        try:
            return kind.model_validate_json(answer)
        except ValidationError:
            raise ModelUnusable(f"{self._props.host} does not answer as llama.cpp does") from None


_CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class _LlamaCppSlot:
    prefix: str = ""
    """What its prompt begins with, as `prompt_prefix` names it. Empty: it holds nothing."""
    conversation_id: str = ""
    """Whose conversation it keeps. Empty: nobody's."""
    tokens: int = 0
    """Of the prompt and the answer."""
    last_used: int = 0
    """When it was last taken, by counting. 0: never."""
    is_busy: bool = False


def prompt_prefix(request: ModelRequest) -> str:
    """Name what a request begins with: its tools and first block. Empty if it has neither."""
    if not request.blocks and not request.tools:
        return ""
    first = [block.text for block in request.blocks[:1]]
    told = json.dumps([[(t.name, t.description, t.schema) for t in request.tools], first])
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()


class LlamaCppSlots:
    """What we know of a server's slots."""

    def __init__(self, total: int) -> None:
        self._slots = [_LlamaCppSlot() for _ in range(total)]
        self._count = 0

    def acquire(self, request: ModelRequest) -> int | None:
        """Choose a slot for a request and keep it busy. None: all that could be taken are busy."""
        prefix = prompt_prefix(request)
        free = [number for number, slot in enumerate(self._slots) if not slot.is_busy]
        if not free:
            return None
        worth = sum(len(block.text) for block in request.blocks[:1]) / _CHARS_PER_TOKEN
        number = min(free, key=lambda number: self._rank(self._slots[number], request.conversation_id, prefix, worth))
        slot = self._slots[number]
        if slot.conversation_id != request.conversation_id or not slot.conversation_id:
            slot.tokens = 0
        slot.conversation_id, slot.prefix, slot.is_busy = request.conversation_id, prefix, True
        self._count += 1
        slot.last_used = self._count
        return number

    def _rank(self, slot: _LlamaCppSlot, place: str, prefix: str, worth: float) -> tuple[int, int]:
        if place and slot.conversation_id == place:
            return (0, 0)
        if slot.prefix == prefix and not slot.conversation_id:
            return (1, slot.last_used)
        if slot.prefix == prefix and slot.tokens <= 2 * worth:
            return (2, slot.last_used)
        if not slot.conversation_id:
            return (3, slot.last_used)
        return (4, slot.last_used)

    def held_tokens(self, number: int) -> int:
        """How many tokens of its conversation the slot holds. 0: it is new there."""
        return self._slots[number].tokens

    def release(self, number: int, *, tokens: int | None) -> None:
        """A slot is free again, and holds so many tokens. None: nobody knows how far it came."""
        slot = self._slots[number]
        slot.is_busy = False
        slot.tokens = slot.tokens if tokens is None else tokens

    def acquire_spare(self, known: frozenset[str], *, wanted: str = "") -> int | None:
        """Choose a slot, and keep it busy, that keeps nobody's conversation and begins with nothing of `known`.

        With `wanted`, a prefix: rather one that begins with it already, and if there is none and none is left, one of
        those that begin alike. Another agent's last one is never taken.
        """
        free = {
            number: slot.prefix
            for number, slot in enumerate(self._slots)
            if not slot.is_busy and not slot.conversation_id
        }
        alike = Counter(free.values())
        for number in sorted(free, key=lambda number: (free[number] != wanted, free[number] in known)):
            prefix = free[number]
            if not prefix or prefix not in known or (wanted and (prefix == wanted or alike[prefix] > 1)):
                self._slots[number].is_busy = True
                return number
        return None

    def release_prepared(self, number: int, prefix: str) -> None:
        """A slot begins with this now, and is free. Empty: it did not come that far."""
        self._slots[number].is_busy = False
        self._slots[number].prefix = prefix


logger = logging.getLogger(__name__)
_MAX_WAITING = 64
"""Prompts that wait to be read in; the oldest are forgotten."""
_MAX_AGENTS = 8
"""Whose common beginnings are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreloadJob:
    request: ModelRequest
    done: asyncio.Future[Usage] | None
    """Somebody waits to hear of it."""


class PromptPreloader:
    """What is to be read in, and the task that does it."""

    def __init__(
        self,
        read_in: Callable[[ModelRequest, list[ModelRequest]], Awaitable[Usage]],
        spread: Callable[[list[ModelRequest]], Awaitable[bool]],
    ) -> None:
        """`read_in`: has one prompt evaluated, which must not cost any of the agents' beginnings.

        `spread`: prepares an empty slot with the last of the agents' beginnings. False: there is none.
        """
        self._preload = read_in
        self._copy_prefixes = spread
        self._jobs: OrderedDict[tuple[str, str], _PreloadJob] = OrderedDict()
        self._prefixes: OrderedDict[str, ModelRequest] = OrderedDict()
        self._waiting_answers = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def preload(self, request: ModelRequest) -> Usage:
        """Have it read in when nobody waits for an answer. No tokens at all: that moment did not come in time.

        Raises a ModelError.
        """
        self.learn_prefix(request)
        told: asyncio.Future[Usage] = asyncio.get_running_loop().create_future()
        self._enqueue(request, told)
        try:
            return await told
        finally:
            if (due := self._jobs.get(_job_key(request))) is not None and due.done is told:
                del self._jobs[_job_key(request)]  # cancelled: nobody waits any more

    def schedule(self, request: ModelRequest) -> None:
        """Have it read in, and nobody waits to hear of it."""
        self._enqueue(request, None)

    def learn_prefix(self, request: ModelRequest) -> None:
        """Learn what the conversations of an agent have in common: the leading blocks that all of them had so far."""
        before = self._prefixes.pop(request.shared_key, None)
        blocks = tuple(block for block in request.blocks if block.ttl == "long")
        if before is not None and before.tools == request.tools:
            pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before.blocks, blocks, strict=False))
            blocks = tuple(one for one, _ in pairs) or blocks
        self._prefixes[request.shared_key] = replace(
            request,
            blocks=blocks,
            conversation=(),
            aside="",
            now="",
            breakpoints=(),
            conversation_id="",
            max_output_tokens=0,
        )
        if len(self._prefixes) > _MAX_AGENTS:
            self._prefixes.popitem(last=False)

    @asynccontextmanager
    async def pause(self, place: str) -> AsyncGenerator[None]:
        """Nothing is read in meanwhile; what was to be for this conversation is not wanted any more."""
        self._waiting_answers += 1
        self._drop((place, ""))
        try:
            await self._cancel_task()
            yield
        finally:
            self._waiting_answers -= 1
            self._start_task()

    async def aclose(self) -> None:
        """Break off what is under way and forget the rest."""
        self._closed = True
        await self._cancel_task()
        for whose in list(self._jobs):
            self._drop(whose)

    def _enqueue(self, request: ModelRequest, told: asyncio.Future[Usage] | None) -> None:
        self._drop(_job_key(request))
        self._jobs[_job_key(request)] = _PreloadJob(request=request, done=told)
        if len(self._jobs) > _MAX_WAITING:
            self._drop(next(iter(self._jobs)))
        self._start_task()

    def _drop(self, whose: tuple[str, str]) -> None:
        due = self._jobs.pop(whose, None)
        if due is not None and due.done is not None and not due.done.done():
            due.done.set_result(Usage())

    def _start_task(self) -> None:
        if self._closed:
            for whose in list(self._jobs):
                self._drop(whose)
        elif not self._waiting_answers and self._task is None and self._prefixes:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if self._jobs and not task.cancelled():
            self._start_task()

    async def _cancel_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # not `await task`: whether it or we are cancelled must stay apart

    async def _run(self) -> None:
        try:
            while self._jobs:
                whose, due = next(reversed(self._jobs.items()))
                await self._preload_one(due)
                if self._jobs.get(whose) is due:
                    del self._jobs[whose]
            while not self._jobs and await self._copy_prefixes(list(self._prefixes.values())):
                pass
        except ModelError as error:
            logger.debug("nothing is read in ahead of time: %s", error)
            for whose in list(self._jobs):
                self._drop(whose)

    async def _preload_one(self, due: _PreloadJob) -> None:
        try:
            usage = await self._preload(due.request, list(self._prefixes.values()))
        except ModelError as error:
            if due.done is None or due.done.done():
                raise
            due.done.set_exception(error)
        else:
            if due.done is not None and not due.done.done():
                due.done.set_result(usage)


def _job_key(request: ModelRequest) -> tuple[str, str]:
    """Name what there is at most one prompt of: a conversation, or an agent's beginning that is nobody's."""
    return request.conversation_id, "" if request.conversation_id else request.shared_key


_LOSS_SHARE = 0.5
"""Of what a slot held: when less is found there again, it was emptied meanwhile."""
_MAX_LOSSES = 2
"""In a row, before we believe it."""


class LlamaCppModel:
    """One llama.cpp server.

    Each conversation (`ModelRequest.place`) keeps a slot as long as there are enough. After an answer, and with
    `max_output_tokens` 0, prompts are read in ahead of the next message (`agent.models.llamacpp`): never while
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
