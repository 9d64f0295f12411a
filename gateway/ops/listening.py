"""One of those who listen to what happens, and the ear for warnings."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.ops.happening import EventEncoder, SseFrame

MAX_BUFFER_BYTES: Final = 1_000_000
"""Of one listener, beyond what is handed to its connection."""
ENCODING_FAILED: Final = "what happened could not be told"


class EventSubscriber:
    """One of those who listen."""

    def __init__(self) -> None:
        self.replayed_up_to = 0
        """What is told of the log up to here was told already."""
        self._frames: deque[SseFrame] = deque()
        self._bytes = 0
        self._lost_count = 0
        self._has_news = asyncio.Event()

    def offer(self, frames: Sequence[SseFrame], lost: int) -> None:
        """Take as much as there is room for."""
        self._lost_count += lost
        for frame in frames:
            if self._bytes + len(frame.data) > MAX_BUFFER_BYTES:
                self._lost_count += frame.event_count
            else:
                self._frames.append(frame)
                self._bytes += len(frame.data)
        self._has_news.set()

    async def next_chunk(self, teller: EventEncoder, patience_s: float) -> bytes:
        """What has come meanwhile. Empty: nothing, for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._has_news.wait()
        self._has_news.clear()
        told = [frame.data for frame in self._frames if not 0 < frame.seq <= self.replayed_up_to]
        if self._lost_count:
            told.append(teller.encode_lost(self._lost_count))
        self._frames.clear()
        self._bytes, self._lost_count = 0, 0
        return b"".join(told)


class WarningLogHandler(logging.Handler):
    """Hears warnings, from any thread, while somebody listens."""

    def __init__(self, logged: Callable[[str, str, str], None]) -> None:
        """`logged` is called on the event loop with the level, the logger's name and the message."""
        super().__init__(logging.WARNING)
        self._on_warning = logged
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Hear from now on."""
        self._loop = asyncio.get_running_loop()
        logging.getLogger("reverie").addHandler(self)

    def stop(self) -> None:
        """Hear nothing more. More than once is as good as once."""
        logging.getLogger("reverie").removeHandler(self)
        self._loop = None

    def emit(self, record: logging.LogRecord) -> None:
        loop = self._loop
        if loop is None or loop.is_closed() or record.msg == ENCODING_FAILED:
            return
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # a bug in whoever logs
            message = str(record.msg)
        with contextlib.suppress(RuntimeError):  # it is just being closed
            loop.call_soon_threadsafe(self._on_warning, record.levelname.lower(), record.name, message)
