"""Task groups for tests."""

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any


class LooseTasks(asyncio.TaskGroup):
    """Tasks of the running loop that nobody waits for: it need not be entered, and a failed task
    ends no other."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[asyncio.Task[Any]] = []

    @property
    def running(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.begun if not task.done()]

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        self.begun.append(asyncio.get_running_loop().create_task(coro, name=name, context=context))
        return self.begun[-1]


class ListedTasks(asyncio.TaskGroup):
    """A task group that can cancel what it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[asyncio.Task[Any]] = []

    def create_task(
        self,
        coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        self.begun.append(super().create_task(coro, name=name, context=context))
        return self.begun[-1]

    def cancel(self) -> None:
        for task in self.begun:
            task.cancel()
