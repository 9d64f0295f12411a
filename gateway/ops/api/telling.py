"""From what happens to frames of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from agent.glimpse import presentable
from gateway.events import ConversationId
from gateway.ops.api import facts
from gateway.ops.api.events import (
    EVENTS,
    ChannelEvent,
    DmnEvent,
    Event,
    LogEvent,
    LostEvent,
    ReloadedEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
)
from gateway.ops.api.reading import Desk
from gateway.ops.api.written import clean, entitle
from gateway.ops.happening import Changed, Frame, Grew, Happened, Logged, Reread, Turned, Used, Wrote
from gateway.ops.onlookers import Running
from gateway.orders import MindSeen
from gateway.records import Handled, Seq, TurnEnded, TurnId
from gateway.store import StoreError

MOST_BEFORE = 1_000
"""Events that are told of what is in the log already."""
TEXT_CHARS = 4_000
"""Of a text in an event."""
WHOLE_CHARS = 32_000
"""Of what a tool is given, and gives, and of what grows: whoever looks on wants to see what the model sees and says."""
FATES_BACK = 200
"""Notifications of a place whose fates are looked at when a turn there has ended."""
_UNFINISHED = re.compile(r"[!-~]+\Z")
"""The last word. It may become a secret, and until it is whole nothing takes it out."""


class Telling:
    """Knows what was told last. Implements `gateway.ops.stream.Teller`."""

    def __init__(self, desk: Desk) -> None:
        self._backend = desk
        self._services = desk.services
        self._sent_text: dict[TurnId, str] = {}
        """By turn: what was told of the answer that grows."""
        self._growing: dict[TurnId, tuple[Running, str]] = {}
        """By turn: all that is there of it."""
        self._thinking: dict[TurnId, tuple[Running, str]] = {}
        """By turn: the last word that was thought, which may go on."""
        self._recorded: set[TurnId] = set()
        """Turns whose end was told from the log, and which are still under way."""
        self._minds = {one.agent: _still(one) for one in self._services.list_minds()}
        self._channels = {one.channel: one for one in self._services.stats.snapshot().channels}

    async def encode(self, happened: Sequence[Happened]) -> list[Frame]:
        frames, ended = list[Frame](), list[tuple[Seq, ConversationId, TurnEnded | Handled]]()
        for one in happened:
            if isinstance(one, Wrote):
                if rest := list(self._build_closing_events(one)):
                    frames.append(self._encode_frame(rest))
                for seq, events in facts.of_append(one.entries, one.written):
                    frames.append(self._encode_frame(events, seq))
                for entry, done in zip(one.entries, one.written, strict=True):
                    fact = entry.fact
                    if done.is_new and isinstance(fact, TurnEnded | Handled) and entry.conversation is not None:
                        ended.append((done.seq, entry.conversation, fact))
                        self._recorded.add(fact.turn)
            elif events := list(self._build_events(one)):
                frames.append(self._encode_frame(events))
        self._forget_ended_turns()
        if ended:
            frames += await self._encode_fates(ended)
        changes = [*self._build_mind_events(), *self._build_channel_events()]
        return [*frames, self._encode_frame(changes)] if changes else frames

    async def encode_backlog(self, after: int) -> tuple[int, list[Frame]]:
        reader, most = await self._backend.open_reader(), MOST_BEFORE
        newest = await reader.newest_entries(1)
        last = newest[-1].seq if newest else 0
        end = last + 1  # what is written meanwhile is told as it happens
        missed = await reader.count_missed(after, last)
        told = [(one.seq, facts.of_event(one)) for one in await reader.notifications(most, after=after, before=end)]
        told += [(one.seq, [facts.of_turn(one)]) for one in await reader.recent_turns(most, after=after, before=end)]
        for kept in await reader.newest_entries(most, after=after, before=end, kinds=["post", "delivery"]):
            told.append((kept.seq, [*facts.of_fact(kept.fact, kept.seq, kept.at, kept.conversation or "")]))
        newest_told = sorted(told, key=lambda one: one[0])[-most:]
        lost = missed - len(newest_told)
        first = [Frame(seq=0, data=self.encode_lost(lost), event_count=1)] if lost > 0 else []
        return last, [*first, *(self._encode_frame(events, seq) for seq, events in newest_told)]

    def encode_lost(self, count: int) -> bytes:
        return self._encode_frame([LostEvent(at=self._services.clock.now(), count=count)]).data

    def _encode_frame(self, events: Sequence[Event], seq: int = 0) -> Frame:
        """As they go over the wire. Whoever goes on from a position has been told all of it."""
        lines = list[str]()
        for place, event in enumerate(events, start=1):
            if seq and place == len(events):
                lines.append(f"id: {seq}\n")
            chars = WHOLE_CHARS if isinstance(event, ToolEvent | TextEvent | ThinkingEvent) else TEXT_CHARS
            dumped = event.model_dump(mode="json")
            entitle(dumped, self._services.titles.title)
            told = clean(dumped, self._services.redact, chars)
            data = json.dumps(told, ensure_ascii=False, separators=(",", ":"))  # one line: JSON escapes line ends
            lines.append(f"event: {EVENTS[type(event)]}\ndata: {data}\n\n")
        return Frame(seq=seq, data="".join(lines).encode("utf-8", "replace"), event_count=len(events))

    def _build_events(self, one: Turned | Grew | Used | Logged | Reread | Changed) -> Iterator[Event]:
        match one:
            case Turned():
                yield from self._build_turn_events(one)
            case Grew():
                yield from self._build_growth_events(one)
            case Used(running=running, tool=tool):
                yield from self._flush_turn(running.turn, one.at)
                yield ToolEvent(**_in(running, one.at), **asdict(tool))
            case Logged():
                yield LogEvent(at=one.at, level=one.level, logger=one.logger, message=one.message)
            case Reread():
                yield ReloadedEvent(at=one.at, taken=one.taken, later=one.later, problems=one.problems)
            case Changed():
                pass

    def _forget_ended_turns(self) -> None:
        """Nothing of turns that are over: their ends were told above, or there was too much to tell of."""
        running = {one.turn for one in self._services.turn_tracker.running}
        self._recorded &= running
        for told in (self._sent_text, self._growing, self._thinking):
            for turn in told.keys() - running:
                del told[turn]

    def _build_turn_events(self, one: Turned) -> Iterator[Event]:
        running = one.running
        yield from self._flush_turn(running.turn, one.at)
        if one.state == "ended" and running.turn in self._recorded:  # the log has told it, with what it cost
            self._recorded.discard(running.turn)
            return
        yield facts.turned(running, one.at, one.state)

    def _build_growth_events(self, one: Grew) -> Iterator[Event]:
        running = one.running
        if one.thinking:
            thought = self._thinking.get(running.turn, (running, ""))[1] + one.thinking
            whole = _UNFINISHED.sub("", thought)
            self._thinking[running.turn] = running, thought[len(whole) :]
            yield from _thought(running, one.at, whole)
        if one.text:
            self._growing[running.turn] = running, one.text
            text = _UNFINISHED.sub("", presentable(one.text)).rstrip()
            yield from self._build_text_events(running, one.at, self._services.redact(text))

    def _build_closing_events(self, one: Wrote) -> Iterator[Event]:
        """What is to be told before the end of the turns that are written down."""
        for entry in one.entries:
            if isinstance(entry.fact, TurnEnded):
                yield from self._flush_turn(entry.fact.turn, entry.at)

    def _flush_turn(self, turn: TurnId, at: datetime) -> Iterator[Event]:
        """The last words of an answer that does not grow any more, and of what was thought."""
        running, word = self._thinking.pop(turn, (None, ""))
        if running is not None:
            yield from _thought(running, at, word)
        running, whole = self._growing.pop(turn, (None, ""))
        if running is not None:
            yield from self._build_text_events(running, at, self._services.redact(presentable(whole)).rstrip())
        self._sent_text.pop(turn, None)

    def _build_text_events(self, running: Running, at: datetime, now: str) -> Iterator[Event]:
        before = self._sent_text.get(running.turn, "")
        begins = not before or not now.startswith(before)
        if now != before:
            delta = now if begins else now[len(before) :]
            yield TextEvent(**_in(running, at), autonomous=running.autonomous, delta=delta, begins=begins)
        self._sent_text[running.turn] = now

    async def _encode_fates(self, ended: Sequence[tuple[Seq, ConversationId, TurnEnded | Handled]]) -> list[Frame]:
        """What became of what a turn or a decision dealt with, or looked at."""
        try:
            reader = await self._backend.open_reader()
            told = dict[int, Event]()
            for seq, place, fact in ended:
                for event in await reader.notifications(FATES_BACK, before=fact.upto + 1, conversation=place):
                    if seq in (event.dealt_seq, event.after_seq):
                        told[event.seq] = facts.became(event, self._services.clock.now())
                for where, upto in fact.looked if isinstance(fact, TurnEnded) else ():
                    for event in await reader.notifications(FATES_BACK, before=upto + 1, conversation=where):
                        if event.unread is not None and event.unread < event.judged.urgency:
                            told[event.seq] = facts.became(event, self._services.clock.now())
        except StoreError:
            return []  # whoever asks for the notifications is told
        return [self._encode_frame([*told.values()])] if told else []

    def _build_mind_events(self) -> Iterator[Event]:
        now: datetime | None = None
        for one in self._services.list_minds():
            still = _still(one)
            if self._minds.get(one.agent) != still:
                now = now or self._services.clock.now()
                yield DmnEvent(at=now, **one.model_dump())
            self._minds[one.agent] = still

    def _build_channel_events(self) -> Iterator[Event]:
        for one in self._services.stats.snapshot().channels:
            before = self._channels.get(one.channel)
            if before is None or (before.state, before.since, before.reason) != (one.state, one.since, one.reason):
                yield ChannelEvent(at=self._services.clock.now(), **asdict(one))
            self._channels[one.channel] = one


def _thought(running: Running, at: datetime, words: str) -> Iterator[Event]:
    if words:
        yield ThinkingEvent(**_in(running, at), autonomous=running.autonomous, delta=words)


def _in(running: Running, at: datetime) -> dict[str, Any]:
    """What every event of a turn says."""
    return {"at": at, "turn": running.turn, "agent": running.agent, "conversation": running.conversation}


def _still(one: MindSeen) -> MindSeen:
    """Without what changes by itself."""
    return one.model_copy(update={"next_tick_s": None})
