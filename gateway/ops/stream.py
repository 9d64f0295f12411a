"""Events as they happen, for everybody who listens: written in batches, serialised once for all.

While nobody listens nothing is kept and nothing is looked at. Each listener has a bounded buffer; what does not fit is
counted, and the listener is told how much that was.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, Literal

from gateway.clock import Clock
from gateway.ops.happening import (
    AnswerGrown,
    ConfigReloaded,
    EventEncoder,
    GatewayEvent,
    LogAppended,
    SseFrame,
    StatusChanged,
    ToolStateChanged,
    TurnStateChanged,
    WarningLogged,
)
from gateway.ops.listening import ENCODING_FAILED, EventSubscriber, WarningLogHandler
from gateway.ops.onlookers import RunningTurn, ToolProgress, TurnTracker
from gateway.records import TurnId
from gateway.store import AppendResult, NewEntry

logger = logging.getLogger("reverie.ops")

BATCH_INTERVAL_S: Final = 0.1
"""Between two batches."""
KEEPALIVE_S: Final = 15.0
"""So often something is written while nothing happens, so that whoever has gone is found out."""
MAX_PENDING: Final = 5_000
"""Things that happen within one batch."""
SSE_RETRY: Final = b"retry: 2000\n\n"
SSE_KEEPALIVE: Final = b": nothing happens\n\n"


class EventBroadcaster:
    """Where it all comes together. Implements `gateway.ops.onlookers.TurnObserver`, and hears the store."""

    def __init__(self, clock: Clock, onlookers: TurnTracker, teller: Callable[[], EventEncoder]) -> None:
        """`teller` is made anew whenever somebody begins to listen while nobody did."""
        self._clock, self._onlookers, self._make = clock, onlookers, teller
        self._encoder: EventEncoder | None = None
        self._subscribers: set[EventSubscriber] = set()
        self._pending: list[GatewayEvent] = []
        self._growing: dict[TurnId, AnswerGrown] = {}
        """What of `pending` goes on growing."""
        self._lost_count = 0
        self._has_news = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self._log_handler = WarningLogHandler(self.on_warning)

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """For `Store.hear`."""
        if self._subscribers:
            self._enqueue(LogAppended(entries, written))

    def turn_changed(self, running: RunningTurn, state: Literal["started", "ended"]) -> None:
        self._growing.pop(running.turn, None)
        self._enqueue(TurnStateChanged(running, state, self._clock.now()))

    def answer_grew(self, running: RunningTurn, text: str) -> None:
        self._find_growing(running).text = text

    def thinking_grew(self, running: RunningTurn, text: str) -> None:
        self._find_growing(running).thinking += text

    def tool_changed(self, running: RunningTurn, tool: ToolProgress) -> None:
        self._growing.pop(running.turn, None)
        self._enqueue(ToolStateChanged(running, tool, self._clock.now()))

    def on_status_changed(self) -> None:
        """A connection has changed."""
        if self._subscribers:
            self._enqueue(StatusChanged())

    def on_reloaded(self, taken: Sequence[str], later: Sequence[str], problems: Sequence[str]) -> None:
        """The configuration was read again."""
        if self._subscribers:
            self._enqueue(ConfigReloaded(self._clock.now(), tuple(taken), tuple(later), tuple(filter(None, problems))))

    def on_warning(self, level: str, name: str, message: str) -> None:
        """Something was logged."""
        if self._subscribers:
            self._enqueue(WarningLogged(self._clock.now(), level, name, message))

    async def subscribe(self, after: int | None = None) -> AsyncGenerator[bytes]:
        """All that happens from now on, or what stands in the log behind `after` first."""
        listener = EventSubscriber()
        self._subscribers.add(listener)
        teller = self._start()
        try:
            yield SSE_RETRY
            if after is not None:
                listener.replayed_up_to, frames = await teller.encode_backlog(after)
                for frame in frames:
                    yield frame.data
            while True:
                data = await listener.next_chunk(teller, KEEPALIVE_S)
                yield data or SSE_KEEPALIVE
        finally:
            self._subscribers.discard(listener)
            if not self._subscribers:
                self._stop()

    async def close(self) -> None:
        """Tell nothing more."""
        self._stop()

    def _start(self) -> EventEncoder:
        if self._encoder is None:
            self._encoder = self._make()
        if self._flushing is None:
            self._onlookers.observer = self
            self._log_handler.start()
            self._flushing = asyncio.create_task(self._flush(self._encoder))
        return self._encoder

    def _stop(self) -> None:
        self._onlookers.observer = None
        self._log_handler.stop()
        if self._flushing is not None:
            self._flushing.cancel()
        self._flushing, self._encoder = None, None
        self._pending.clear()
        self._growing.clear()

    def _enqueue(self, happened: GatewayEvent) -> None:
        if len(self._pending) < MAX_PENDING:
            self._pending.append(happened)
        else:
            self._lost_count += 1
        self._has_news.set()

    def _find_growing(self, running: RunningTurn) -> AnswerGrown:
        found = self._growing.get(running.turn)
        if found is None:
            found = self._growing[running.turn] = AnswerGrown(running, self._clock.now())
            self._enqueue(found)
        return found

    async def _flush(self, teller: EventEncoder) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            happened, self._pending, lost, self._lost_count = self._pending, [], self._lost_count, 0
            self._growing.clear()
            frames = list[SseFrame]()
            try:
                frames = await teller.encode(happened)
            except Exception:  # a bug, or a store that cannot be read just now: who listens is told that it is missing
                logger.exception(ENCODING_FAILED)
                lost += len(happened)
            for listener in self._subscribers:
                listener.offer(frames, lost)
            await asyncio.sleep(BATCH_INTERVAL_S)
