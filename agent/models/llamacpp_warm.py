"""Reading prompts in ahead of time, never at anybody's cost.

One at a time, the newest first, and only while nobody waits for an answer: who does breaks off what is under way
(the server keeps what it has evaluated, so that it goes on there later). When nothing is asked for any more, slots
that hold nothing are prepared with what all conversations of an agent begin with.
"""

import asyncio
import itertools
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from agent.models.base import ModelError, ModelRequest
from gateway.events import Usage

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
