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

from agent.models.base import ModelError, Request
from gateway.events import Usage

_log = logging.getLogger(__name__)
_MOST = 64
"""Prompts that wait to be read in; the oldest are forgotten."""
_AGENTS = 8
"""Whose common beginnings are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    request: Request
    told: asyncio.Future[Usage] | None
    """Somebody waits to hear of it."""


class Warmer:
    """What is to be read in, and the task that does it."""

    def __init__(
        self,
        read_in: Callable[[Request, list[Request]], Awaitable[Usage]],
        spread: Callable[[list[Request]], Awaitable[bool]],
    ) -> None:
        """`read_in`: has one prompt evaluated, which must not cost any of the agents' beginnings.

        `spread`: prepares an empty slot with the last of the agents' beginnings. False: there is none.
        """
        self._read_in = read_in
        self._spread = spread
        self._due: OrderedDict[tuple[str, str], _Due] = OrderedDict()
        self._begins: OrderedDict[str, Request] = OrderedDict()
        self._asked = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def read_in(self, request: Request) -> Usage:
        """Have it read in when nobody waits for an answer. No tokens at all: that moment did not come in time.

        Raises a ModelError.
        """
        self.know(request)
        told: asyncio.Future[Usage] = asyncio.get_running_loop().create_future()
        self._put(request, told)
        try:
            return await told
        finally:
            if (due := self._due.get(_whose(request))) is not None and due.told is told:
                del self._due[_whose(request)]  # cancelled: nobody waits any more

    def after(self, request: Request) -> None:
        """Have it read in, and nobody waits to hear of it."""
        self._put(request, None)

    def know(self, request: Request) -> None:
        """Learn what the conversations of an agent have in common: the leading blocks that all of them had so far."""
        before = self._begins.pop(request.shared_key, None)
        blocks = tuple(block for block in request.blocks if block.ttl == "long")
        if before is not None and before.tools == request.tools:
            pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before.blocks, blocks, strict=False))
            blocks = tuple(one for one, _ in pairs) or blocks
        self._begins[request.shared_key] = replace(
            request, blocks=blocks, conversation=(), aside="", now="", marks=(), place="", max_output_tokens=0
        )
        if len(self._begins) > _AGENTS:
            self._begins.popitem(last=False)

    @asynccontextmanager
    async def quiet(self, place: str) -> AsyncGenerator[None]:
        """Nothing is read in meanwhile; what was to be for this conversation is not wanted any more."""
        self._asked += 1
        self._drop((place, ""))
        try:
            await self._stop()
            yield
        finally:
            self._asked -= 1
            self._begin()

    async def aclose(self) -> None:
        """Break off what is under way and forget the rest."""
        self._closed = True
        await self._stop()
        for whose in list(self._due):
            self._drop(whose)

    def _put(self, request: Request, told: asyncio.Future[Usage] | None) -> None:
        self._drop(_whose(request))
        self._due[_whose(request)] = _Due(request=request, told=told)
        if len(self._due) > _MOST:
            self._drop(next(iter(self._due)))
        self._begin()

    def _drop(self, whose: tuple[str, str]) -> None:
        due = self._due.pop(whose, None)
        if due is not None and due.told is not None and not due.told.done():
            due.told.set_result(Usage())

    def _begin(self) -> None:
        if self._closed:
            for whose in list(self._due):
                self._drop(whose)
        elif not self._asked and self._task is None and self._begins:
            self._task = asyncio.create_task(self._work())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if self._due and not task.cancelled():
            self._begin()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])  # not `await task`: whether it or we are cancelled must stay apart

    async def _work(self) -> None:
        try:
            while self._due:
                whose, due = next(reversed(self._due.items()))
                await self._one(due)
                if self._due.get(whose) is due:
                    del self._due[whose]
            while not self._due and await self._spread(list(self._begins.values())):
                pass
        except ModelError as error:
            _log.debug("nothing is read in ahead of time: %s", error)
            for whose in list(self._due):
                self._drop(whose)

    async def _one(self, due: _Due) -> None:
        try:
            usage = await self._read_in(due.request, list(self._begins.values()))
        except ModelError as error:
            if due.told is None or due.told.done():
                raise
            due.told.set_exception(error)
        else:
            if due.told is not None and not due.told.done():
                due.told.set_result(usage)


def _whose(request: Request) -> tuple[str, str]:
    """Name what there is at most one prompt of: a conversation, or an agent's beginning that is nobody's."""
    return request.place, "" if request.place else request.shared_key
