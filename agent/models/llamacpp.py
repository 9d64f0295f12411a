"""Client of a llama.cpp server: chat completions with pinned slots, and prompts evaluated ahead of
time.

Obeys llama.cpp tools/server/README.md (`id_slot`, `cache_prompt`, `n_predict` 0, `timings`,
`/props`, `/v1/chat/completions/input_tokens`, `/apply-template`, `/tokenize`, `/slots`).

A slot holds one evaluated prompt. The beginning that the next prompt shares with it is not
evaluated again. Slots share nothing with each other, hence two rules:

- A conversation keeps its slot. When there are too few, the conversation that was quiet for longest
  loses its slot.
- An empty slot is prepared with the prefix that all conversations of an agent share. Until then, a
  new conversation takes over a slot with that prefix, if its conversation loses less than this one
  saves.

A server that chooses slots itself (`id_slot` -1) takes the most similar one, also if that belongs
to another conversation (ggml-org/llama.cpp discussion 13606; measured: two conversations in turn
evaluate their history again each time).

Prompts are evaluated ahead of time one after the other, newest first, and only while no answer is
awaited. A request for an answer cancels the one under way; the server keeps what it has evaluated,
and continues there later. When no prompt is left, empty slots are prepared with the agents'
prefixes.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

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
from agent.models.openai import OpenAIModel, count_tool_calls
from agent.turn import presentable_text
from gateway.core.events import Usage

logger = logging.getLogger(__name__)

_LOSS_SHARE = 0.5
"""Share of a slot's tokens: if fewer are read from the cache, the slot was emptied meanwhile."""
_MAX_LOSSES = 2
"""Losses in a row that prove it."""


class LlamaCppModel:
    """One llama.cpp server.

    Each conversation (`ModelRequest.conversation_id`) keeps a slot as long as there are enough.
    After an answer, and with `max_output_tokens` 0, prompts are evaluated ahead of the next
    message, but never while an answer is awaited: a request cancels what is under way, within one
    batch of the server.

    A server that empties idle slots loses pinned prompts (ggml-org/llama.cpp#28139; its default
    with a unified cache). Once this is detected, conversations are not pinned any more, and a
    warning in the log gives the option to start it with.
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
        may_leak_calls: bool = True,
        slot_files: Path | None = None,
        proxy: SecretStr | None = None,
    ) -> None:
        """As `OpenAIModel`. `slot_files`: the server's `--slot-save-path`, for files that last a
        moment.

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
            may_leak_calls=may_leak_calls,
            proxy=proxy,
        )
        self._service = LlamaCppService(
            base_url=base_url, api_key=api_key, timeout_s=timeout_s, proxy=proxy
        )
        self._slot_files = slot_files
        self._slots: LlamaCppSlots | None = None
        self._asks_for_slots = True
        self._loss_count = 0
        self._slot_requests: dict[int, ModelRequest] = {}
        """Last request of each slot."""
        self._preloader = PromptPreloader(self)
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
            yield StreamEnd(
                stop_reason="end", usage=await self._preloader.preload(request), model=self._model
            )
            return
        async with self._preloader.pause(request.conversation_id):
            await self._find_slots()
            slot = self._slots.acquire(request) if self._slots is not None else None
            held = (
                self._slots.held_tokens(slot) if self._slots is not None and slot is not None else 0
            )
            pieces: list[str] = []
            end: StreamEnd | None = None
            try:
                body = self._build_body(request, slot)
                async with aclosing(
                    self._chat.stream_body(body, earlier_calls=count_tool_calls(request))
                ) as chunks:
                    async for chunk in chunks:
                        if isinstance(chunk, StreamEnd):
                            end = chunk
                            break
                        pieces += [chunk.text] if isinstance(chunk, TextPart) else []
                        yield chunk
            finally:
                if slot is not None:
                    self._release_slot(slot, end.usage if end is not None else None)
        assert end is not None
        if slot is not None:
            self._detect_slot_loss(slot, request, held, end.usage)
        self._preloader.learn_prefix(request)
        text = "".join(pieces)
        called = end.stop_reason in {"tools", "length"} or (
            end.may_leak_calls and bool(text.strip()) and not presentable_text(text)
        )
        if (
            not called
        ):  # otherwise the next request follows at once, with other messages behind this one
            self._preloader.schedule(_with_answer(request, text))
        yield end

    async def count_tokens(self, request: ModelRequest) -> int:
        """Return the tokens of the request's prompt, by the server's own template and tokenizer.

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
            total = 0  # not llama.cpp after all, or it hides them: everything else works without
        except ModelError as error:
            logger.debug("%s does not tell its slots now: %s", self.label, error)
            return
        self._asks_for_slots = False
        if total > 1:
            self._slots = LlamaCppSlots(total)

    def _release_slot(self, slot: int, usage: Usage | None) -> None:
        if self._slots is not None:
            total = (
                None
                if usage is None
                else usage.input_tokens + usage.cache_read_tokens + usage.output_tokens
            )
            self._slots.release(slot, tokens=total)

    def _detect_slot_loss(self, slot: int, request: ModelRequest, held: int, usage: Usage) -> None:
        """Detect whether the server loses the prompts in its slots; if so, stop pinning and log
        it.
        """
        before, self._slot_requests[slot] = self._slot_requests.get(slot), request
        if before is None or not held or not _is_extension(request, before):
            return
        self._loss_count = (
            self._loss_count + 1 if usage.cache_read_tokens < held * _LOSS_SHARE else 0
        )
        if self._loss_count >= _MAX_LOSSES:
            self._slots = None
            logger.warning(
                "%s empties idle slots (llama.cpp#28139), so conversations are not pinned to them; "
                "start it with --no-cache-idle-slots to keep each one's prompt",
                self.label,
            )

    async def evaluate_ahead(self, request: ModelRequest, prefixes: list[ModelRequest]) -> Usage:
        """Evaluate a prompt without an answer, and without overwriting any of the agents' prefixes.

        A prompt without a conversation goes to a slot without one.
        """
        await self._find_slots()
        if self._slots is None:
            return await self._evaluate(request, None)
        if not request.conversation_id:
            return (
                await self._prepare_slot(request, prefixes, wanted=prompt_prefix(request))
                or Usage()
            )
        slot, usage = self._slots.acquire(request), None
        try:
            usage = await self._evaluate(request, slot)
            return usage
        finally:
            if slot is not None:
                self._release_slot(slot, usage)

    async def copy_prefixes(self, prefixes: list[ModelRequest]) -> bool:
        """Prepare an empty slot with the last of these prefixes. False: there is no empty slot."""
        if self._slots is None:
            return False
        return await self._prepare_slot(prefixes[-1], prefixes) is not None

    async def _prepare_slot(
        self, request: ModelRequest, prefixes: list[ModelRequest], *, wanted: str = ""
    ) -> Usage | None:
        assert self._slots is not None
        slots, known = self._slots, frozenset(map(prompt_prefix, prefixes))
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
                await self._copy_slot(
                    slot, reached, known | {reached}, self._slot_files / f"reverie-{reached}"
                )
            except ModelError as error:
                self._slot_files = None
                logger.debug("%s does not copy slots: %s", self.label, error)
        return usage

    async def _copy_slot(self, source: int, prefix: str, known: frozenset[str], file: Path) -> None:
        """Copy the prompt of a slot into all others that need it: 2 ms each, while evaluating takes
        seconds.
        """
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


def _is_extension(request: ModelRequest, before: ModelRequest) -> bool:
    """Return True if `request` begins with everything that `before` had."""
    earlier = before.conversation
    return (
        (request.tools, request.blocks) == (before.tools, before.blocks)
        and request.conversation[: len(earlier)] == earlier
        and not (before.aside or before.now)
    )


_CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class _LlamaCppSlot:
    prefix: str = ""
    """Beginning of its prompt, as `prompt_prefix` names it. Empty: the slot is empty."""
    conversation_id: str = ""
    """Conversation that it holds. Empty: none."""
    tokens: int = 0
    """Tokens of the prompt and the answer."""
    last_used: int = 0
    """Number of its last acquisition. 0: never acquired."""
    is_busy: bool = False


def prompt_prefix(request: ModelRequest) -> str:
    """Return a hash of the request's tools and first block. Empty if it has neither."""
    if not request.blocks and not request.tools:
        return ""
    first = [block.text for block in request.blocks[:1]]
    content = json.dumps([[(t.name, t.description, t.schema) for t in request.tools], first])
    return hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()


class LlamaCppSlots:
    """State of a server's slots, as far as this client knows it."""

    def __init__(self, total: int) -> None:
        self._slots = [_LlamaCppSlot() for _ in range(total)]
        self._count = 0

    def acquire(self, request: ModelRequest) -> int | None:
        """Choose a slot for a request and mark it busy. None: all slots are busy."""
        prefix = prompt_prefix(request)
        free = [number for number, slot in enumerate(self._slots) if not slot.is_busy]
        if not free:
            return None
        prefix_tokens = sum(len(block.text) for block in request.blocks[:1]) / _CHARS_PER_TOKEN
        number = min(
            free,
            key=lambda number: self._rank(
                self._slots[number], request.conversation_id, prefix, prefix_tokens
            ),
        )
        slot = self._slots[number]
        if slot.conversation_id != request.conversation_id or not slot.conversation_id:
            slot.tokens = 0
        slot.conversation_id, slot.prefix, slot.is_busy = request.conversation_id, prefix, True
        self._count += 1
        slot.last_used = self._count
        return number

    def _rank(
        self, slot: _LlamaCppSlot, conversation_id: str, prefix: str, prefix_tokens: float
    ) -> tuple[int, int]:
        if conversation_id and slot.conversation_id == conversation_id:
            return (0, 0)
        if slot.prefix == prefix and not slot.conversation_id:
            return (1, slot.last_used)
        if slot.prefix == prefix and slot.tokens <= 2 * prefix_tokens:
            return (2, slot.last_used)
        if not slot.conversation_id:
            return (3, slot.last_used)
        return (4, slot.last_used)

    def held_tokens(self, number: int) -> int:
        """Return the number of tokens of its conversation in the slot. 0: the conversation is new
        there.
        """
        return self._slots[number].tokens

    def release(self, number: int, *, tokens: int | None) -> None:
        """Mark a slot free, with this number of tokens in it. None: unknown."""
        slot = self._slots[number]
        slot.is_busy = False
        slot.tokens = slot.tokens if tokens is None else tokens

    def acquire_spare(self, known: frozenset[str], *, wanted: str = "") -> int | None:
        """Choose a slot without a conversation whose prefix is not in `known`, and mark it busy.

        With `wanted`, a prefix: a slot that has it already is preferred; if neither that nor
        another is left, one of several with the same prefix is taken. The last slot with another
        agent's prefix is never taken.
        """
        free = {
            number: slot.prefix
            for number, slot in enumerate(self._slots)
            if not slot.is_busy and not slot.conversation_id
        }
        alike = Counter(free.values())
        for number in sorted(
            free, key=lambda number: (free[number] != wanted, free[number] in known)
        ):
            prefix = free[number]
            if (
                not prefix
                or prefix not in known
                or (wanted and (prefix == wanted or alike[prefix] > 1))
            ):
                self._slots[number].is_busy = True
                return number
        return None

    def release_prepared(self, number: int, prefix: str) -> None:
        """Mark a slot free, with this prefix in it. Empty: it was not evaluated that far."""
        self._slots[number].is_busy = False
        self._slots[number].prefix = prefix


_MAX_WAITING = 64
"""Prompts that wait to be evaluated; the oldest are dropped."""
_MAX_AGENTS = 8
"""Agents whose prefixes are kept."""


_PreloadJob = tuple[ModelRequest, asyncio.Future[Usage] | None]
"""A prompt, and the result for the caller that waits for it. None: nobody waits."""


class PromptPreloader:
    """Queue of prompts to evaluate ahead of time, and the task that evaluates them."""

    def __init__(self, model: LlamaCppModel) -> None:
        self._model = model
        self._jobs: OrderedDict[tuple[str, str], _PreloadJob] = OrderedDict()
        self._prefixes: OrderedDict[str, ModelRequest] = OrderedDict()
        self._waiting_answers = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def preload(self, request: ModelRequest) -> Usage:
        """Evaluate the prompt once no answer is awaited. Usage without tokens: it was dropped
        before that.

        Raises a ModelError.
        """
        self.learn_prefix(request)
        done: asyncio.Future[Usage] = asyncio.get_running_loop().create_future()
        self._enqueue(request, done)
        try:
            return await done
        finally:
            if (job := self._jobs.get(_job_key(request))) is not None and job[1] is done:
                del self._jobs[_job_key(request)]  # cancelled: nobody waits any more

    def schedule(self, request: ModelRequest) -> None:
        """Queue the prompt, without waiting for it."""
        self._enqueue(request, None)

    def learn_prefix(self, request: ModelRequest) -> None:
        """Update the prefix of an agent: the leading blocks that all its conversations had so
        far.
        """
        before = self._prefixes.pop(request.shared_key, None)
        blocks = tuple(block for block in request.blocks if block.ttl == "long")
        if before is not None and before.tools == request.tools:
            pairs = itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(before.blocks, blocks, strict=False)
            )
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
    async def pause(self, conversation_id: str) -> AsyncGenerator[None]:
        """Pause evaluation, and drop the queued prompt of this conversation."""
        self._waiting_answers += 1
        self._drop((conversation_id, ""))
        try:
            await self._cancel_task()
            yield
        finally:
            self._waiting_answers -= 1
            self._start_task()

    async def aclose(self) -> None:
        """Cancel the evaluation under way and drop the queue."""
        self._closed = True
        await self._cancel_task()
        for key in list(self._jobs):
            self._drop(key)

    def _enqueue(self, request: ModelRequest, done: asyncio.Future[Usage] | None) -> None:
        self._drop(_job_key(request))
        self._jobs[_job_key(request)] = request, done
        if len(self._jobs) > _MAX_WAITING:
            self._drop(next(iter(self._jobs)))
        self._start_task()

    def _drop(self, key: tuple[str, str]) -> None:
        _, done = self._jobs.pop(key, (None, None))
        if done is not None and not done.done():
            done.set_result(Usage())

    def _start_task(self) -> None:
        if self._closed:
            for key in list(self._jobs):
                self._drop(key)
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
            await asyncio.wait(
                [task]
            )  # not `await task`: its cancellation and ours must stay distinct

    async def _run(self) -> None:
        try:
            while self._jobs:
                key, job = next(reversed(self._jobs.items()))
                await self._preload_one(*job)
                if self._jobs.get(key) is job:
                    del self._jobs[key]
            while not self._jobs and await self._model.copy_prefixes([*self._prefixes.values()]):
                pass
        except ModelError as error:
            logger.debug("nothing is read in ahead of time: %s", error)
            for key in list(self._jobs):
                self._drop(key)

    async def _preload_one(self, request: ModelRequest, done: asyncio.Future[Usage] | None) -> None:
        try:
            usage = await self._model.evaluate_ahead(request, [*self._prefixes.values()])
        except ModelError as error:
            if done is None or done.done():
                raise
            done.set_exception(error)
        else:
            if done is not None and not done.done():
                done.set_result(usage)


def _job_key(request: ModelRequest) -> tuple[str, str]:
    """Return the key of which the queue holds one prompt: a conversation, or the prefix of an
    agent.
    """
    return request.conversation_id, "" if request.conversation_id else request.shared_key


class LlamaCppService:
    """Endpoints of the server other than chat completions."""

    def __init__(
        self, *, base_url: str, api_key: str, timeout_s: float, proxy: SecretStr | None
    ) -> None:
        secret = "" if api_key.lower() == "none" else api_key
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self._root = strip_version(base_url)
        self._api = ModelHttpClient(
            url=f"{self._root}/props",
            headers=headers,
            secret=secret,
            timeout_s=timeout_s,
            reuse=False,
            proxy=proxy,
        )

    async def count_slots(self) -> int:
        """Return the number of slots. 0: the server does not report it. Raises a ModelError."""
        found = self._parse_answer(await self._api.get()).get("total_slots", 0)
        return found if isinstance(found, int) else 0

    async def count_tokens(self, body: Mapping[str, object]) -> int:
        """Return the tokens of a chat completion's prompt, by the server's own template and
        tokenizer.

        Raises a ModelError; `ModelUnusable` if the server is too old to count.
        """
        query = {key: value for key, value in body.items() if not key.startswith("stream")}
        try:
            answer = await self._post("/v1/chat/completions/input_tokens", query)
            if isinstance(tokens := answer.get("input_tokens"), int):
                return tokens
        except ModelUnusable:  # builds without this endpoint answer 404
            answer = await self._post("/apply-template", query)
            if isinstance(prompt := answer.get("prompt"), str):
                written = {"content": prompt, "add_special": True, "parse_special": True}
                answer = await self._post("/tokenize", written)
                if isinstance(pieces := answer.get("tokens"), list):
                    return len(pieces)
        raise self._foreign_server()

    async def transfer_slot_file(
        self, slot: int, action: Literal["save", "restore"], name: str
    ) -> None:
        """Write the prompt of a slot to a file in the server's `--slot-save-path`, or read it from
        there.

        Raises a ModelError; `ModelBusy` (501) if the server has no such path.
        """
        await self._post(f"/slots/{slot}?action={action}", {"filename": name})

    async def aclose(self) -> None:
        """Close all connections."""
        await self._api.aclose()

    async def _post(self, path: str, body: object) -> dict[str, object]:
        return self._parse_answer(await self._api.post(body, url=self._root + path))

    def _parse_answer(self, answer: bytes) -> dict[str, object]:
        with contextlib.suppress(ValueError):
            if isinstance(value := json.loads(answer), dict):
                return value
        raise self._foreign_server()

    def _foreign_server(self) -> ModelUnusable:
        return ModelUnusable(f"{self._api.host} does not answer as llama.cpp does")
