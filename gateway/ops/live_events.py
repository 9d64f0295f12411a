"""From what happens to frames of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Events as they happen, for everybody who listens: written in batches, serialised once for all.

While nobody listens nothing is kept and nothing is looked at. Each listener has a bounded buffer; what does not fit is
counted, and the listener is told how much that was.

From what is in the log to the events that are told of it. Pure.

What is told of a running gateway as it happens: one model for each kind of event. Pure.

The name of an event is its class's in `EVENT_NAMES`. `at` is when it happened, UTC.

One of those who listen to what happens, and the ear for warnings.

What happens, as it is noted for whoever listens, and what becomes of it on the wire. Pure.
"""

import asyncio
import contextlib
import json
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol

from agent.turn import presentable_text
from gateway.context.observer import RunningTurn, ToolProgress, TurnTracker
from gateway.core.clock import Clock
from gateway.core.control_messages import DmnStatus
from gateway.core.events import ConversationId, DeliveryReport, Time, Usage
from gateway.core.facts import Fact, Judgement, PostQueued, Seq, TurnId, TurnRecord, UnreadDismissed
from gateway.ops.api_schemas import (
    ApiBackend,
    ApiModel,
    BilledTokens,
    ChannelStatus,
    UrgencyLevel,
    add_titles,
    find_actor,
    find_outcome,
    redact_tree,
    render_fact_text,
)
from gateway.ops.api_views import token_fields
from gateway.store import AppendResult, NewEntry, StoreError
from gateway.store.format import hide_codes
from gateway.store.overview import NotificationRow, TurnRow


class ApiEvent(ApiModel):
    """Something happened."""

    at: Time


class NotificationEvent(ApiEvent):
    """Something was noticed."""

    seq: int
    type: str
    kind: str
    conversation: str | None
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    who: str
    text: str
    urgency: UrgencyLevel


class FateEvent(ApiEvent):
    """What became of it, by now."""

    seq: int
    """Of the notification."""
    conversation: str | None
    fate: str
    rule: str


class TurnEvent(ApiEvent, BilledTokens):
    """A turn began (then nothing is known of what it costs) or ended."""

    turn: str
    agent: str
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    state: Literal["started", "ended"]
    autonomous: bool
    cause: str
    outcome: str
    """Empty: it has only begun, or it ended without a trace."""
    model: str


class _TurnPartEvent(ApiEvent):
    turn: str
    agent: str
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""


class TextEvent(_TurnPartEvent):
    """The answer has grown."""

    autonomous: bool
    delta: str
    begins: bool
    """What was told of this turn before is over: another answer begins, or the same one anew."""


class ThinkingEvent(_TurnPartEvent):
    """So much more was thought."""

    autonomous: bool
    delta: str


class ToolEvent(_TurnPartEvent):
    """A tool is carried out."""

    call: str
    name: str
    state: Literal["started", "ended"]
    arguments: str
    result: str
    error: bool


class PostEvent(ApiEvent):
    """Something is to be said."""

    seq: int
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    text: str


class DeliveryEvent(ApiEvent):
    """How a post ended."""

    seq: int
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class DmnEvent(ApiEvent, DmnStatus):
    """An agent's network has changed."""


class ChannelEvent(ApiEvent, ChannelStatus):
    """A connection has changed."""


class ReloadedEvent(ApiEvent):
    """The configuration was read again. Keys, never values."""

    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


class LogEvent(ApiEvent):
    """A warning, or worse."""

    level: str
    logger: str
    message: str


class LostEvent(ApiEvent):
    """So many events were not told: there were too many for whoever reads."""

    count: int


EVENT_NAMES: Final[dict[type[ApiEvent], str]] = {
    NotificationEvent: "notification",
    FateEvent: "fate",
    TurnEvent: "turn",
    TextEvent: "text",
    ThinkingEvent: "thinking",
    ToolEvent: "tool",
    PostEvent: "post",
    DeliveryEvent: "delivery",
    DmnEvent: "dmn",
    ChannelEvent: "channel",
    ReloadedEvent: "reloaded",
    LogEvent: "log",
    LostEvent: "lost",
}


PositionedEvents = tuple[Seq, Sequence[ApiEvent]]
"""What is told of the entries up to a position of the log."""


def build_append_events(entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> list[PositionedEvents]:
    """What is told of an append."""
    seqs = {id(entry): done.seq for entry, done in zip(entries, written, strict=True)}
    told = list[PositionedEvents]()
    for entry, done in zip(entries, written, strict=True):
        if done.is_new and (events := list(_build_entry_events(entry, done.seq, seqs))):
            told.append((done.seq, events))
    return told


def _build_entry_events(entry: NewEntry, seq: Seq, seqs: dict[int, Seq]) -> Iterator[ApiEvent]:
    if isinstance(entry.fact, Judgement) and isinstance(entry.cause, NewEntry):
        yield from _notification_events(
            NotificationRow(
                seq=seqs[id(entry.cause)],
                at=entry.cause.at,
                fact=entry.cause.fact,
                conversation=entry.cause.conversation,
                judged=entry.fact,
                place=entry.conversation,
                unread=entry.fact.urgency,
            )
        )
    else:
        yield from build_fact_events(entry.fact, seq, entry.at, entry.conversation or "")


def build_notification_events(event: NotificationRow) -> list[ApiEvent]:
    """What is told of a notification that is in the log already."""
    return list(_notification_events(event))


def _notification_events(event: NotificationRow) -> Iterator[ApiEvent]:
    yield NotificationEvent(
        at=event.at,
        seq=event.seq,
        type=event.judged.type,
        kind=event.fact.kind,
        conversation=event.conversation,
        who=find_actor(event.fact),
        text=render_fact_text(event.fact),
        urgency=event.judged.urgency,
    )
    yield build_fate_event(event)


def build_fate_event(event: NotificationRow, at: datetime | None = None) -> FateEvent:
    """What became of it. `at`: when that was seen; None: at once."""
    return FateEvent(
        at=at or event.at,
        seq=event.seq,
        conversation=event.conversation,
        fate=find_outcome(event).value,
        rule=event.judged.rule,
    )


def build_fact_events(fact: Fact, seq: Seq, at: datetime, conversation: str) -> Iterator[ApiEvent]:
    """What is told of everything else."""
    match fact:
        case TurnRecord():
            yield TurnEvent(
                at=at,
                turn=fact.turn,
                agent=fact.agent,
                conversation=conversation,
                state="ended",
                autonomous=fact.autonomous,
                cause=fact.cause,
                outcome=fact.outcome,
                model=fact.model,
                **token_fields(fact.usage, sum(one.cost_usd or 0.0 for one in fact.accounts)),
            )
        case PostQueued(post=post):
            yield PostEvent(at=at, seq=seq, conversation=post.to.conversation, text=hide_codes(post.text))
        case DeliveryReport():
            yield DeliveryEvent(
                at=at, seq=seq, conversation=fact.at.conversation, outcome=fact.state, reason=fact.reason
            )
        case _:
            pass


def build_recorded_turn_event(one: TurnRow) -> TurnEvent:
    """What is told of a turn that is in the log already."""
    return TurnEvent(
        at=one.at,
        turn=one.turn,
        agent=one.agent,
        conversation=one.conversation,
        state="ended",
        autonomous=one.autonomous,
        cause=one.cause,
        outcome=one.outcome,
        model=one.model,
        **token_fields(one.usage, one.cost_usd),
    )


def build_live_turn_event(running: RunningTurn, at: datetime, state: Literal["started", "ended"]) -> TurnEvent:
    """A turn began, or ended without a record."""
    return TurnEvent(
        at=at,
        turn=running.turn,
        agent=running.agent,
        conversation=running.conversation,
        state=state,
        autonomous=running.autonomous,
        cause=running.cause,
        outcome="",
        model="",
        **token_fields(Usage(), 0.0),
    )


@dataclass(frozen=True, slots=True)
class LogAppended:
    """This was appended to the log."""

    entries: Sequence[NewEntry]
    written: Sequence[AppendResult]


@dataclass(frozen=True, slots=True)
class TurnStateChanged:
    """A turn began or is over."""

    running: RunningTurn
    state: Literal["started", "ended"]
    at: datetime


@dataclass(slots=True)
class AnswerGrown:
    """An answer has grown to this, and so much more was thought."""

    running: RunningTurn
    at: datetime
    text: str = ""
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class ToolStateChanged:
    """A tool began or ended."""

    running: RunningTurn
    tool: ToolProgress
    at: datetime


@dataclass(frozen=True, slots=True)
class WarningLogged:
    """A warning, or worse, was logged."""

    at: datetime
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class ConfigReloaded:
    """The configuration was read again: keys that count, keys that count later, what is wrong with it."""

    at: datetime
    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """Something has changed that is looked at when it is told: connections, the agents' networks."""


GatewayEvent = (
    LogAppended | TurnStateChanged | AnswerGrown | ToolStateChanged | WarningLogged | ConfigReloaded | StatusChanged
)


class SseFrame(NamedTuple):
    """Events as they go over the wire."""

    seq: int
    """The position of the log up to which this tells. 0: it is not in the log."""
    data: bytes
    event_count: int


class EventEncoder(Protocol):
    """Makes frames."""

    async def encode(self, happened: Sequence[GatewayEvent]) -> list[SseFrame]:
        """Of what happened."""

    async def encode_backlog(self, after: int) -> tuple[int, list[SseFrame]]:
        """Of what is in the log behind `after`; and the last position of the log."""

    def encode_lost(self, count: int) -> bytes:
        """That so many events are missing."""


MAX_BACKLOG_EVENTS = 1_000
"""Events that are told of what is in the log already."""
MAX_EVENT_TEXT_CHARS = 4_000
"""Of a text in an event."""
MAX_LONG_TEXT_CHARS = 32_000
"""Of what a tool is given, and gives, and of what grows: whoever looks on wants to see what the model sees and says."""
MAX_FATES_REVISITED = 200
"""Notifications of a place whose fates are looked at when a turn there has ended."""
_LAST_WORD = re.compile(r"[!-~]+\Z")
"""The last word. It may become a secret, and until it is whole nothing takes it out."""


class SseEncoder:
    """Knows what was told last. Implements `gateway.ops.stream.Teller`."""

    def __init__(self, desk: ApiBackend) -> None:
        self._backend = desk
        self._services = desk.services
        self._sent_text: dict[TurnId, str] = {}
        """By turn: what was told of the answer that grows."""
        self._growing: dict[TurnId, tuple[RunningTurn, str]] = {}
        """By turn: all that is there of it."""
        self._thinking: dict[TurnId, tuple[RunningTurn, str]] = {}
        """By turn: the last word that was thought, which may go on."""
        self._recorded: set[TurnId] = set()
        """Turns whose end was told from the log, and which are still under way."""
        self._minds = {one.agent: _without_countdown(one) for one in self._services.list_minds()}
        self._channels = {one.channel: one for one in self._services.stats.snapshot().channels}

    async def encode(self, happened: Sequence[GatewayEvent]) -> list[SseFrame]:
        frames, ended = list[SseFrame](), list[tuple[Seq, ConversationId, TurnRecord | UnreadDismissed]]()
        for one in happened:
            if isinstance(one, LogAppended):
                if rest := list(self._build_closing_events(one)):
                    frames.append(self._encode_frame(rest))
                for seq, events in build_append_events(one.entries, one.written):
                    frames.append(self._encode_frame(events, seq))
                for entry, done in zip(one.entries, one.written, strict=True):
                    fact = entry.fact
                    if (
                        done.is_new
                        and isinstance(fact, TurnRecord | UnreadDismissed)
                        and entry.conversation is not None
                    ):
                        ended.append((done.seq, entry.conversation, fact))
                        self._recorded.add(fact.turn)
            elif events := list(self._build_events(one)):
                frames.append(self._encode_frame(events))
        self._forget_ended_turns()
        if ended:
            frames += await self._encode_fates(ended)
        changes = [*self._build_mind_events(), *self._build_channel_events()]
        return [*frames, self._encode_frame(changes)] if changes else frames

    async def encode_backlog(self, after: int) -> tuple[int, list[SseFrame]]:
        reader, most = await self._backend.open_reader(), MAX_BACKLOG_EVENTS
        newest = await reader.newest_entries(1)
        last = newest[-1].seq if newest else 0
        end = last + 1  # what is written meanwhile is told as it happens
        missed = await reader.count_missed(after, last)
        told = [
            (one.seq, build_notification_events(one))
            for one in await reader.notifications(most, after=after, before=end)
        ]
        told += [
            (one.seq, [build_recorded_turn_event(one)])
            for one in await reader.recent_turns(most, after=after, before=end)
        ]
        for kept in await reader.newest_entries(most, after=after, before=end, kinds=["post", "delivery"]):
            told.append((kept.seq, [*build_fact_events(kept.fact, kept.seq, kept.at, kept.conversation or "")]))
        newest_told = sorted(told, key=lambda one: one[0])[-most:]
        lost = missed - len(newest_told)
        first = [SseFrame(seq=0, data=self.encode_lost(lost), event_count=1)] if lost > 0 else []
        return last, [*first, *(self._encode_frame(events, seq) for seq, events in newest_told)]

    def encode_lost(self, count: int) -> bytes:
        return self._encode_frame([LostEvent(at=self._services.clock.now(), count=count)]).data

    def _encode_frame(self, events: Sequence[ApiEvent], seq: int = 0) -> SseFrame:
        """As they go over the wire. Whoever goes on from a position has been told all of it."""
        lines = list[str]()
        for place, event in enumerate(events, start=1):
            if seq and place == len(events):
                lines.append(f"id: {seq}\n")
            chars = (
                MAX_LONG_TEXT_CHARS
                if isinstance(event, ToolEvent | TextEvent | ThinkingEvent)
                else MAX_EVENT_TEXT_CHARS
            )
            dumped = event.model_dump(mode="json")
            add_titles(dumped, self._services.titles.title)
            told = redact_tree(dumped, self._services.redact, chars)
            data = json.dumps(told, ensure_ascii=False, separators=(",", ":"))  # one line: JSON escapes line ends
            lines.append(f"event: {EVENT_NAMES[type(event)]}\ndata: {data}\n\n")
        return SseFrame(seq=seq, data="".join(lines).encode("utf-8", "replace"), event_count=len(events))

    def _build_events(
        self, one: TurnStateChanged | AnswerGrown | ToolStateChanged | WarningLogged | ConfigReloaded | StatusChanged
    ) -> Iterator[ApiEvent]:
        match one:
            case TurnStateChanged():
                yield from self._build_turn_events(one)
            case AnswerGrown():
                yield from self._build_growth_events(one)
            case ToolStateChanged(running=running, tool=tool):
                yield from self._flush_turn(running.turn, one.at)
                yield ToolEvent(**_turn_fields(running, one.at), **asdict(tool))
            case WarningLogged():
                yield LogEvent(at=one.at, level=one.level, logger=one.logger, message=one.message)
            case ConfigReloaded():
                yield ReloadedEvent(at=one.at, taken=one.taken, later=one.later, problems=one.problems)
            case StatusChanged():
                pass

    def _forget_ended_turns(self) -> None:
        """Nothing of turns that are over: their ends were told above, or there was too much to tell of."""
        running = {one.turn for one in self._services.turn_tracker.running}
        self._recorded &= running
        for told in (self._sent_text, self._growing, self._thinking):
            for turn in told.keys() - running:
                del told[turn]

    def _build_turn_events(self, one: TurnStateChanged) -> Iterator[ApiEvent]:
        running = one.running
        yield from self._flush_turn(running.turn, one.at)
        if one.state == "ended" and running.turn in self._recorded:  # the log has told it, with what it cost
            self._recorded.discard(running.turn)
            return
        yield build_live_turn_event(running, one.at, one.state)

    def _build_growth_events(self, one: AnswerGrown) -> Iterator[ApiEvent]:
        running = one.running
        if one.thinking:
            thought = self._thinking.get(running.turn, (running, ""))[1] + one.thinking
            whole = _LAST_WORD.sub("", thought)
            self._thinking[running.turn] = running, thought[len(whole) :]
            yield from _build_thinking_events(running, one.at, whole)
        if one.text:
            self._growing[running.turn] = running, one.text
            text = _LAST_WORD.sub("", presentable_text(one.text)).rstrip()
            yield from self._build_text_events(running, one.at, self._services.redact(text))

    def _build_closing_events(self, one: LogAppended) -> Iterator[ApiEvent]:
        """What is to be told before the end of the turns that are written down."""
        for entry in one.entries:
            if isinstance(entry.fact, TurnRecord):
                yield from self._flush_turn(entry.fact.turn, entry.at)

    def _flush_turn(self, turn: TurnId, at: datetime) -> Iterator[ApiEvent]:
        """The last words of an answer that does not grow any more, and of what was thought."""
        running, word = self._thinking.pop(turn, (None, ""))
        if running is not None:
            yield from _build_thinking_events(running, at, word)
        running, whole = self._growing.pop(turn, (None, ""))
        if running is not None:
            yield from self._build_text_events(running, at, self._services.redact(presentable_text(whole)).rstrip())
        self._sent_text.pop(turn, None)

    def _build_text_events(self, running: RunningTurn, at: datetime, now: str) -> Iterator[ApiEvent]:
        before = self._sent_text.get(running.turn, "")
        begins = not before or not now.startswith(before)
        if now != before:
            delta = now if begins else now[len(before) :]
            yield TextEvent(**_turn_fields(running, at), autonomous=running.autonomous, delta=delta, begins=begins)
        self._sent_text[running.turn] = now

    async def _encode_fates(
        self, ended: Sequence[tuple[Seq, ConversationId, TurnRecord | UnreadDismissed]]
    ) -> list[SseFrame]:
        """What became of what a turn or a decision dealt with, or looked at."""
        try:
            reader = await self._backend.open_reader()
            told = dict[int, ApiEvent]()
            for seq, place, fact in ended:
                for event in await reader.notifications(MAX_FATES_REVISITED, before=fact.upto + 1, conversation=place):
                    if seq in (event.dealt_seq, event.after_seq):
                        told[event.seq] = build_fate_event(event, self._services.clock.now())
                for where, upto in fact.looked if isinstance(fact, TurnRecord) else ():
                    for event in await reader.notifications(MAX_FATES_REVISITED, before=upto + 1, conversation=where):
                        if event.unread is not None and event.unread < event.judged.urgency:
                            told[event.seq] = build_fate_event(event, self._services.clock.now())
        except StoreError:
            return []  # whoever asks for the notifications is told
        return [self._encode_frame([*told.values()])] if told else []

    def _build_mind_events(self) -> Iterator[ApiEvent]:
        now: datetime | None = None
        for one in self._services.list_minds():
            still = _without_countdown(one)
            if self._minds.get(one.agent) != still:
                now = now or self._services.clock.now()
                yield DmnEvent(at=now, **one.model_dump())
            self._minds[one.agent] = still

    def _build_channel_events(self) -> Iterator[ApiEvent]:
        for one in self._services.stats.snapshot().channels:
            before = self._channels.get(one.channel)
            if before is None or (before.state, before.since, before.reason) != (one.state, one.since, one.reason):
                yield ChannelEvent(at=self._services.clock.now(), **asdict(one))
            self._channels[one.channel] = one


def _build_thinking_events(running: RunningTurn, at: datetime, words: str) -> Iterator[ApiEvent]:
    if words:
        yield ThinkingEvent(**_turn_fields(running, at), autonomous=running.autonomous, delta=words)


def _turn_fields(running: RunningTurn, at: datetime) -> dict[str, Any]:
    """What every event of a turn says."""
    return {"at": at, "turn": running.turn, "agent": running.agent, "conversation": running.conversation}


def _without_countdown(one: DmnStatus) -> DmnStatus:
    """Without what changes by itself."""
    return one.model_copy(update={"next_tick_s": None})


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
    """Where it all comes together. Implements `gateway.context.observer.TurnObserver`, and hears the store."""

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
