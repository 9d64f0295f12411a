"""Waits for a condition."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


async def until(
    holds: Callable[[], Any | Awaitable[Any]], *, limit_s: float = 120.0, every_s: float = 0.002
) -> None:
    """Return once `holds()`, or what it awaits, is true. Looks again every `every_s`. Raises
    TimeoutError.
    """
    async with asyncio.timeout(limit_s):
        while True:
            found = holds()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(every_s)
