"""Live events of a running gateway as server-sent events.

Format: https://html.spec.whatwg.org/multipage/server-sent-events.html.

`EventBroadcaster` collects what happens while at least one client listens. Every `BATCH_INTERVAL_S`
it serializes that once, and keeps the newest events. A client that reads too slowly to find the
next one there receives the number of those that it missed as a `LostEvent`. One that connects again
asks for what it shows anew.
"""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from agent.tools import read_call
from agent.turn import presentable_text
from gateway.config.reload import ReloadResult
from gateway.context.observer import (
    AnswerGrew,
    Progress,
    RunningTurn,
    ThinkingGrew,
    ToolProgress,
)
from gateway.core import api_models as models
from gateway.core.control_messages import DmnStatus
from gateway.core.events import DeliveryReport
from gateway.core.facts import Judgement, PostQueued, Seq, TurnId, TurnRecord
from gateway.core.metrics import ChannelStats
from gateway.plugins.dashboard.api_views import (
    Api,
    build_delivery,
    build_notification,
    build_running_turn,
)
from gateway.plugins.http import HttpRoute
from gateway.store import LogEntry, total_cost_usd
from gateway.store.format import describe_contents
from gateway.store.overview import NotificationRow

logger = logging.getLogger("reverie.ops")


def build_entry_events(entry: LogEntry, event: LogEntry | None = None) -> Iterator[models.ApiEvent]:
    """Yield the events of a new entry. `event`: the notification that it judges."""
    match entry.fact:
        case Judgement() as judged if event is not None:
            yield build_notification(
                NotificationRow(
                    seq=event.seq,
                    at=event.at,
                    fact=event.fact,
                    conversation=event.conversation,
                    judged=judged,
                    place=entry.conversation,
                    unread=judged.urgency,
                )
            )
        case TurnRecord() as turn:
            yield models.TurnSummary(
                at=entry.at,
                seq=entry.seq,
                turn=turn.turn,
                agent=turn.agent,
                conversation=entry.conversation or "",
                autonomous=turn.autonomous,
                cause=turn.cause,
                outcome=turn.outcome,
                model=turn.model,
                requests=turn.requests,
                tools=tuple(read_call(call)[0] for step in turn.steps for call in step.calls),
                **models.token_fields(turn.usage, total_cost_usd(turn.accounts)),
            )
        case PostQueued(post=post) as queued:
            yield models.PostRecord(
                at=entry.at,
                seq=entry.seq,
                conversation=post.to.conversation,
                text=describe_contents(queued),
            )
        case DeliveryReport() as report:
            yield build_delivery(entry, report)


GatewayEvent = Sequence[LogEntry] | models.ApiEvent
"""What waits to be serialized: the new entries of one append, or an event."""

_EVENT_NAMES: Final = {kind: name for name, kind in models.EVENT_MODELS.items()}


MAX_LONG_TEXT_CHARS = 32_000
"""Longest arguments and results of tools, answers and thinking: clients want to see what the model
sees and writes."""
_LAST_WORD = re.compile(r"[!-~]+\Z")
"""Last word of a growing text. It may be the beginning of a secret, which is redacted only when it
is complete."""


@dataclass(slots=True)
class _GrowingAnswer:
    running: RunningTurn
    text: str = ""
    """The whole answer so far."""
    sent: str = ""
    """What was sent of it, redacted."""
    thinking: str = ""
    """What was not sent yet: its last word may continue."""


def _turn_fields(running: RunningTurn) -> dict[str, Any]:
    return {
        "turn": running.turn,
        "agent": running.agent,
        "conversation": running.conversation,
        "autonomous": running.autonomous,
    }


def _without_countdown(one: DmnStatus) -> DmnStatus:
    """Return the status without the countdown, which changes all the time."""
    return one.model_copy(update={"next_tick_s": None})


MAX_BUFFER_BYTES: Final = 1_000_000
"""Events that are kept for all clients, in addition to the buffers of their connections."""
ENCODING_FAILED: Final = "what happened could not be told"


class WarningLogHandler(logging.Handler):
    """Log handler that passes on warnings of any thread."""

    def __init__(self, logged: Callable[[str, str, str], None]) -> None:
        """`logged` is called on the event loop, which is this one, with level, logger name and
        message.
        """
        super().__init__(logging.WARNING)
        self._on_warning, self._loop = logged, asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        message = str(record.msg)
        with contextlib.suppress(TypeError, ValueError):  # a bug in the code that logs
            message = record.getMessage()
        level = record.levelname.lower()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            if record.msg != ENCODING_FAILED:
                self._loop.call_soon_threadsafe(self._on_warning, level, record.name, message)


BATCH_INTERVAL_S: Final = 0.1
"""Seconds between two batches."""
KEEPALIVE_S: Final = 15.0
"""Seconds of silence after which a comment is sent, to detect clients that are gone."""
MAX_PENDING: Final = 5_000
"""Most events of one batch; the rest is counted as lost."""


class EventBroadcaster:
    """Serializes events, and distributes them to all subscribers."""

    def __init__(self, api: Api) -> None:
        """It subscribes to the store, and observes turns, while a client listens."""
        self.api, self._clock = api, api.gateway.clock
        self.listener_count = 0
        self._kept = deque[tuple[int, bytes]]()
        """The newest events, each with the number of those before it."""
        self._kept_bytes, self._event_count = 0, 0
        self._is_told = asyncio.Event()
        """Set, and replaced by another one, when there are new events."""
        self._pending: list[GatewayEvent] = []
        self._growing: dict[TurnId, _GrowingAnswer] = {}
        self._minds: dict[str, DmnStatus] = {}
        self._channels: dict[str, ChannelStats] = {}
        """What was sent last of agents and connections."""
        self._lost_count = 0
        self._has_news = asyncio.Event()
        self._subscriptions = contextlib.ExitStack()

    def on_progress(self, running: RunningTurn, news: Progress) -> None:
        """Take what happens in a turn, as `gateway.context.observer.ProgressListener`."""
        match news:
            case AnswerGrew(text):
                self._find_growing(running).text = text
            case ThinkingGrew(text):
                self._find_growing(running).thinking += text
            case ToolProgress():
                for rest in self._finish_growing(running.turn):
                    self._enqueue(rest)
                self._enqueue(
                    models.ToolEvent(
                        turn=running.turn,
                        agent=running.agent,
                        conversation=running.conversation,
                        at=self._clock.now(),
                        **asdict(news),
                    )
                )
            case "started":  # its end is told by the log, with its cost
                self._enqueue(build_running_turn(running, self._clock.now()))

    def wake(self) -> None:
        """Have connections and DMN status compared with what was sent last."""
        self._has_news.set()

    def on_reloaded(self, result: ReloadResult) -> None:
        """Queue a reload of the configuration: keys in effect, keys in effect later, problems."""
        problems = filter(None, [*map(str, result.problems), result.read_error])
        self._enqueue(
            models.ReloadedEvent(
                at=self._clock.now(),
                taken=result.applied,
                later=result.after_restart,
                problems=tuple(problems),
            )
        )

    def on_warning(self, level: str, name: str, message: str) -> None:
        self._enqueue(
            models.LogEvent(at=self._clock.now(), level=level, logger=name, message=message)
        )

    async def subscribe(self) -> AsyncGenerator[bytes]:
        """Yield chunks from now on."""
        if not self.listener_count:
            self._start()
        self.listener_count += 1
        place = self._event_count
        try:
            yield b"retry: 2000\n\n"
            while True:
                if place == self._event_count:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(KEEPALIVE_S):
                            await self._is_told.wait()
                chunks = list[bytes]()
                for start, data in [*self._kept, (self._event_count, b"")]:
                    if start > place:
                        lost = models.LostEvent(at=self._clock.now(), count=start - place)
                        chunks.append(self._serialize(lost))
                    if start >= place:
                        place = start + bool(data)
                        chunks.append(data)
                yield b"".join(chunks) or b": nothing happens\n\n"
        finally:
            self.listener_count -= 1
            if not self.listener_count:
                self._stop()

    async def close(self) -> None:
        """Stop sending events, and close the connection to the store."""
        self._stop()
        await self.api.close()

    def _start(self) -> None:
        self._minds = {one.agent: _without_countdown(one) for one in self.api.agents.dmn_status()}
        self._channels = {one.channel: one for one in self.api.stats.snapshot().channels}
        listeners, logs = self.api.turn_tracker.listeners, logging.getLogger("reverie")
        listeners.append(self.on_progress)
        self._subscriptions.callback(listeners.remove, self.on_progress)
        self._subscriptions.callback(self.api.gateway.store.subscribe(self._enqueue))
        logs.addHandler(handler := WarningLogHandler(self.on_warning))
        self._subscriptions.callback(logs.removeHandler, handler)
        self._subscriptions.callback(asyncio.create_task(self._flush()).cancel)

    def _stop(self) -> None:
        """May be called more than once."""
        self._subscriptions.close()
        self._pending.clear()
        self._growing.clear()
        self._kept.clear()
        self._kept_bytes = 0

    def _enqueue(self, happened: GatewayEvent) -> None:
        if not self.listener_count:
            return
        if len(self._pending) < MAX_PENDING:
            self._pending.append(happened)
        else:
            self._lost_count += 1
        self._has_news.set()

    def _find_growing(self, running: RunningTurn) -> _GrowingAnswer:
        self._has_news.set()
        return self._growing.setdefault(running.turn, _GrowingAnswer(running))

    async def _flush(self) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            happened, self._pending, lost, self._lost_count = self._pending, [], self._lost_count, 0
            try:
                for data in [self._serialize(one) for one in self._build_events(happened)]:
                    self._kept.append((self._event_count, data))
                    self._kept_bytes += len(data)
                    self._event_count += 1
            except Exception:  # a bug: clients are sent the number of lost events
                logger.exception(ENCODING_FAILED)
                lost += len(happened)
            self._event_count += lost
            while self._kept_bytes > MAX_BUFFER_BYTES:
                self._kept_bytes -= len(self._kept.popleft()[1])
            is_told, self._is_told = self._is_told, asyncio.Event()
            is_told.set()
            await asyncio.sleep(BATCH_INTERVAL_S)

    def _serialize(self, event: models.ApiEvent) -> bytes:
        is_long = isinstance(event, models.ToolEvent | models.TextEvent | models.ThinkingEvent)
        data = self.api.dump(to_jsonable_python(event), MAX_LONG_TEXT_CHARS if is_long else 4_000)
        return f"event: {_EVENT_NAMES[type(event)]}\ndata: {data}\n\n".encode("utf-8", "replace")

    def _build_events(self, happened: Sequence[GatewayEvent]) -> Iterator[models.ApiEvent]:
        """Yield what happened, then what has grown, and what has changed of agents and
        connections.
        """
        for one in happened:
            if not isinstance(one, Sequence):
                yield one
                continue
            by_seq = {entry.seq: entry for entry in one}
            for entry in one:
                if isinstance(entry.fact, TurnRecord):
                    yield from self._finish_growing(entry.fact.turn)
            for entry in one:
                yield from build_entry_events(entry, by_seq.get(entry.cause or Seq(0)))
        for answer in self._growing.values():
            yield from self._build_growth_events(answer)
        # The end of other turns was sent before, or its event was lost.
        running = {one.turn for one in self.api.turn_tracker.running}
        self._growing = {turn: one for turn, one in self._growing.items() if turn in running}
        yield from self._build_mind_events()
        yield from self._build_channel_events()

    def _finish_growing(self, turn: TurnId) -> Iterator[models.ApiEvent]:
        """Yield the rest of an answer and of its thinking."""
        if (answer := self._growing.pop(turn, None)) is not None:
            yield from self._build_growth_events(answer, is_complete=True)

    def _build_growth_events(
        self, answer: _GrowingAnswer, *, is_complete: bool = False
    ) -> Iterator[models.ApiEvent]:
        """Yield what was not sent yet, without the last word unless it is complete."""
        thought, text = answer.thinking, presentable_text(answer.text)
        if not is_complete:
            thought, text = _LAST_WORD.sub("", thought), _LAST_WORD.sub("", text)
        at, fields = self._clock.now(), _turn_fields(answer.running)
        if thought:
            answer.thinking = answer.thinking[len(thought) :]
            yield models.ThinkingEvent(**fields, at=at, delta=thought)
        before, answer.sent = answer.sent, self.api.gateway.redactor(text.rstrip())
        if answer.sent != before:
            begins = not before or not answer.sent.startswith(before)
            delta = answer.sent if begins else answer.sent[len(before) :]
            yield models.TextEvent(**fields, at=at, delta=delta, begins=begins)

    def _build_mind_events(self) -> Iterator[models.ApiEvent]:
        now = self._clock.now()
        for one in self.api.agents.dmn_status():
            before, self._minds[one.agent] = self._minds.get(one.agent), _without_countdown(one)
            if self._minds[one.agent] != before:
                yield models.DmnEvent(at=now, **one.model_dump())

    def _build_channel_events(self) -> Iterator[ChannelStats]:
        for one in self.api.stats.snapshot().channels:
            before = self._channels.get(one.channel)
            if before is None or (before.state, before.since, before.reason) != (
                one.state,
                one.since,
                one.reason,
            ):
                yield one
            self._channels[one.channel] = one


EVENTS_PATH: Final = "/api/events"
STALLED_READER_S: Final = 30.0
"""Seconds without reading after which the client of a stream is considered gone."""
MAX_STREAMS: Final = 16


class EventResponse(StreamingResponse):
    """A response that continues until the client disconnects, stops reading, or the server
    closes.
    """

    body_iterator: AsyncGenerator[bytes]

    async def stream_response(self, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(STALLED_READER_S):
                await send(message)

        async with contextlib.aclosing(self.body_iterator):
            with contextlib.suppress(TimeoutError):
                await super().stream_response(send_soon)


def build_events_route(events: EventBroadcaster) -> HttpRoute:
    """Return the path of the live events."""

    async def listen(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if events.listener_count >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} others listen already: end one of them")
        return EventResponse(events.subscribe(), media_type="text/event-stream")

    return HttpRoute(EVENTS_PATH, listen, "read")
