"""From what happens to frames of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from agent.glimpse import presentable_text
from gateway.events import ConversationId
from gateway.ops.api import facts
from gateway.ops.api.events import (
    EVENT_NAMES,
    ApiEvent,
    ChannelEvent,
    DmnEvent,
    LogEvent,
    LostEvent,
    ReloadedEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
)
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.written import add_titles, redact_tree
from gateway.ops.happening import (
    AnswerGrown,
    ConfigReloaded,
    GatewayEvent,
    LogAppended,
    SseFrame,
    StatusChanged,
    ToolStateChanged,
    TurnStateChanged,
    WarningLogged,
)
from gateway.ops.onlookers import RunningTurn
from gateway.orders import DmnStatus
from gateway.records import Seq, TurnId, TurnRecord, UnreadDismissed
from gateway.store import StoreError

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
                for seq, events in facts.build_append_events(one.entries, one.written):
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
            (one.seq, facts.build_notification_events(one))
            for one in await reader.notifications(most, after=after, before=end)
        ]
        told += [
            (one.seq, [facts.build_recorded_turn_event(one)])
            for one in await reader.recent_turns(most, after=after, before=end)
        ]
        for kept in await reader.newest_entries(most, after=after, before=end, kinds=["post", "delivery"]):
            told.append((kept.seq, [*facts.build_fact_events(kept.fact, kept.seq, kept.at, kept.conversation or "")]))
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
        yield facts.build_live_turn_event(running, one.at, one.state)

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
                        told[event.seq] = facts.build_fate_event(event, self._services.clock.now())
                for where, upto in fact.looked if isinstance(fact, TurnRecord) else ():
                    for event in await reader.notifications(MAX_FATES_REVISITED, before=upto + 1, conversation=where):
                        if event.unread is not None and event.unread < event.judged.urgency:
                            told[event.seq] = facts.build_fate_event(event, self._services.clock.now())
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
