"""Waiting for one of several things on a clock that was handed in."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.clock import Clock

ResultT = TypeVar("ResultT")


async def with_timeout(clock: Clock, limit_s: float, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What `work` gives, or TimeoutError after `limit_s`. `work` is cancelled and gone in any other case."""
    working, timer = asyncio.create_task(work), asyncio.create_task(clock.sleep(limit_s))
    try:
        await asyncio.wait({working, timer}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError
        return working.result()
    finally:
        await cancel_and_wait(working, timer)


async def wait_first(task: asyncio.Task[None], work: Coroutine[Any, Any, object]) -> None:
    """Return when either ends; leaves `task` running."""
    other = asyncio.create_task(work)
    try:
        await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(other)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them and see them gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def run_to_completion(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """What `work` gives. Cancelled, and however often, it goes to its end first.

    For what is short, and must not be half done.
    """
    working, cancelled = asyncio.ensure_future(work), None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return working.result()
    if not working.cancelled():
        working.exception()  # nobody is told of it
    raise cancelled
