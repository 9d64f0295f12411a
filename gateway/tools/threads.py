"""Work that blocks, for tools: in a thread, and not left alone there when nobody waits for it any more."""

import asyncio
import threading
from collections.abc import Callable
from typing import Final, TypeVar

ThreadResult = TypeVar("ThreadResult")

THREAD_STOP_S: Final = 5.0
"""That work which was told to stop is waited for: a disk that does not answer must not keep the gateway from ending."""


async def run_in_thread(work: Callable[[Callable[[], bool]], ThreadResult]) -> ThreadResult:
    """Give what it makes. It is handed a question, to be asked now and then: whether to stop.

    Cancelled, it tells the work to stop and waits until it has ended, so that what it does is done, or is not.
    """
    stop = threading.Event()
    doing = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([doing], timeout=THREAD_STOP_S)
        if doing.done() and not doing.cancelled():
            doing.exception()  # nobody is told of it
        raise
