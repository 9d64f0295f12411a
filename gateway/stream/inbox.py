"""Inbox: what is due by the log, and windows in which a conversation collects urgent messages
before a turn starts.

One short window per conversation, so that a thought written in three lines is answered once. Unread
events are in the store; this holds only the open windows.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Final

from gateway.access.limits import UsageLimiter
from gateway.cluster.cluster import Cluster
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    MembershipChanged,
    Message,
    MessageId,
    Sender,
    SenderId,
    TaskFinished,
)
from gateway.core.facts import NORMAL, URGENT, TurnRecord
from gateway.core.frozen import frozen
from gateway.core.identity import ADMIN_ROLES
from gateway.core.ratelimit import LruDict, SlidingWindows
from gateway.store import LogEntry
from gateway.store.active import judged_events
from gateway.stream.attention import SPEAKS_UP

FLOOD_S: Final = 10.0
FLOOD_LINES: Final = 20
"""Lines within that time that are a flood: nobody can follow them one by one."""
FLOOD_WINDOW_S: Final = 60.0
TALK_QUIET_S: Final = 180.0
"""Time without talk in a room after which the agent looks at what was not said to it
(`speaks_up`): until then others may answer."""
TALK_REST_S: Final = 600.0
"""Least time between two such looks at a room."""
CHATTER_REST_S: Final = 3_600.0
"""The same where nothing but talk without a question is new."""


@frozen
class ReadyConversation:
    """A conversation with durable unread events."""

    conversation: ConversationId
    urgency: int
    type: str = ""
    """Dotted type of the event. Empty: several, or unknown by now."""
    direct: bool | None = None
    """True if it came in a direct chat, as the platform says. None: the event does not say."""
    handle_in_place: bool = False
    """True if it must be handled there, and not from the inner conversation."""
    promised: bool = False
    """True if the time came there for which somebody asked, and no turn has told them."""
    is_room_talk: bool = False
    """True if it was written in a room, and not to the agent."""
    awaits_quiet: bool = False
    """True if it is announced once nobody writes there any more."""
    trusted: bool = False
    authors: Mapping[MessageId, SenderId] = field(default_factory=dict)
    sender: Sender | None = None
    """Author of the message. None: it is no message, or several."""


def ready_conversations(entries: Iterable[LogEntry]) -> Iterator[ReadyConversation]:
    """Yield the conversations in which an event of these entries is due.

    Invitations start no turn.
    """
    for event, entry, judged in judged_events(entries):
        if judged.fate != "due" or entry.conversation is None:
            continue
        if isinstance(event, MembershipChanged) and event.change == "invite":
            continue
        direct: bool | None = getattr(event, "direct", None)
        yield ReadyConversation(
            conversation=entry.conversation,
            urgency=judged.urgency,
            type=judged.type,
            direct=event.kind == "direct" if isinstance(event, Message) else direct,
            handle_in_place=isinstance(event, Alarm | TaskFinished) and event.at is not None,
            is_room_talk=event.kind == "room",
            awaits_quiet=judged.rule.startswith(SPEAKS_UP),
            trusted=judged.role in ADMIN_ROLES,
            authors={event.id: event.sender.id}
            if isinstance(event, Message) and event.kind != "room"
            else {},
            sender=event.sender if isinstance(event, Message) else None,
        )


class ConversationInbox:
    """Announces a conversation when its window ends, with the event that opened it."""

    _announce: Callable[[ReadyConversation], None]

    def __init__(
        self,
        clock: Clock,
        live: LiveSettings,
        limits: UsageLimiter | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """For `attention.coalesce` seconds an urgent line waits for more, counted from the first;
        0: no wait.

        So nobody can delay the answer by writing on. Talk in a flood waits for `FLOOD_WINDOW_S`,
        unless a message to the agent comes in between: a raid costs one turn a minute, however fast
        the model is. What is beyond its author's rate of turns waits until that allows one.
        `limits` None: there is no such rate. `cluster` None: this is the only process.
        """
        self._clock = clock
        self._live = live
        self._limits = limits
        self._cluster = cluster or Cluster()
        self._windows: dict[
            ConversationId, tuple[float, ReadyConversation, asyncio.Task[None]]
        ] = {}
        """End on the monotonic clock, what is to be announced, and the task that waits for it."""
        self._room_lines = SlidingWindows(FLOOD_S)
        self._talks: dict[ConversationId, tuple[float, ReadyConversation, asyncio.Task[None]]] = {}
        """Room talk that was not to the agent: time of the last line, what is to be announced, and
        the task that waits."""
        self._looked_s = LruDict[ConversationId, float](1_000)
        """Time at which an agent has looked there unasked."""
        self._closed = False

    def subscribe(self, handler: Callable[[ReadyConversation], None]) -> None:
        """Announce to this handler what is ready for attention. It must return at once. To be
        called once, before the first event.
        """
        self._announce = handler

    def on_judged(self, entries: Sequence[LogEntry]) -> None:
        """Add the conversations in which an event is due. Subscribes to `Judgement` and all
        notifications.
        """
        for arrival in ready_conversations(entries):
            if arrival.awaits_quiet or self._cluster.takes_turns_of(arrival.conversation):
                self.add(arrival)
            else:
                self._announce(arrival)

    def add(self, arrival: ReadyConversation) -> None:
        """Open or shorten the window of a conversation with durable unread events; below urgent,
        announce at once.
        """
        if self._closed:
            return  # the store has it: the next process finds it there
        if arrival.awaits_quiet:
            self._await_quiet(arrival)
            return
        if arrival.urgency < URGENT:
            self._announce(arrival)
            return
        place, sender = arrival.conversation, arrival.sender
        wait_s, now_s = self._live.settings.attention.coalesce, self._clock.monotonic()
        if arrival.is_room_talk:
            self._room_lines.add(place, now_s)
            if self._room_lines.count(place, now_s) >= FLOOD_LINES:
                wait_s = max(FLOOD_WINDOW_S, wait_s)
        before_s, first, waiting = self._windows.get(place, (math.inf, arrival, None))
        if self._limits is not None and sender is not None and not arrival.trusted:
            wait_s = self._limits.plan_turn(Address.parse(place), sender, wait_s, before_s - now_s)
        until_s = now_s + wait_s
        if wait_s <= 0:
            self._announce(arrival)
            return
        trusted, authors = first.trusted or arrival.trusted, {**first.authors, **arrival.authors}
        opened = replace(first, trusted=trusted, authors=authors)
        if waiting is None or before_s > until_s:
            if waiting is not None:
                waiting.cancel()
            before_s = until_s
            waiting = asyncio.create_task(self._notify_after(place, wait_s))
        self._windows[place] = before_s, opened, waiting

    def _await_quiet(self, arrival: ReadyConversation) -> None:
        place = arrival.conversation
        _, before, waiting = self._talks.get(place, (0.0, arrival, None))
        waiting = waiting or asyncio.create_task(self._notify_when_quiet(place))
        loudest = max(before, arrival, key=lambda one: one.urgency)
        self._talks[place] = self._clock.monotonic(), loudest, waiting

    async def _notify_when_quiet(self, place: ConversationId) -> None:
        while (left_s := self._quiet_in_s(place)) > 0:
            await self._clock.sleep(min(left_s, TALK_QUIET_S))
        self._announce(self._talks.pop(place)[1])

    def _quiet_in_s(self, place: ConversationId) -> float:
        last_s, arrival, _ = self._talks[place]
        rest_s = TALK_REST_S if arrival.urgency >= NORMAL else CHATTER_REST_S
        from_s = max(last_s + TALK_QUIET_S, self._looked_s.get(place, -math.inf) + rest_s)
        return from_s - self._clock.monotonic()

    def on_turns(self, entries: Sequence[LogEntry]) -> None:
        """Record which rooms the agents have looked at unasked. Subscribes to `TurnRecord`."""
        for entry in entries:
            if not isinstance(entry.fact, TurnRecord) or entry.conversation is None:
                continue
            here = [entry.conversation] if entry.fact.cause == "noticed" else []
            for place in (*here, *dict(entry.fact.looked)):
                self._looked_s.put(place, self._clock.monotonic())

    def is_talking(self, conversation: ConversationId) -> bool:
        """Return whether room talk there waits until nobody writes any more."""
        return conversation in self._talks

    def is_waiting(self, conversation: ConversationId) -> bool:
        """Return whether a window is open there."""
        return conversation in self._windows

    async def close(self) -> None:
        """Close all windows without a word, and open none any more; the events stay unread in the
        store.
        """
        self._closed = True
        await self.close_windows(lambda _: True)

    async def close_windows(self, of: Callable[[ConversationId], bool]) -> None:
        """Close these windows without a word; the events stay unread in the store."""
        tasks = [
            windows.pop(place)[2]
            for windows in (self._windows, self._talks)
            for place in [*windows]
            if of(place)
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _notify_after(self, place: ConversationId, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        self._announce(self._windows.pop(place)[1])
