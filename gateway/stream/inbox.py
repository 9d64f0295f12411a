"""Inbox: what is due by the log, and windows in which a conversation collects urgent messages
before a turn starts.

One short window per conversation, so that a thought written in three lines is answered once. Unread
events are in the store; this holds only the open windows.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from gateway.access.limits import UsageLimiter
from gateway.cluster.cluster import Cluster, lease_of
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    MembershipChanged,
    Message,
    MessageId,
    ReactionChanged,
    Sender,
    SenderId,
    TaskFinished,
)
from gateway.core.facts import LOW, URGENT
from gateway.core.identity import ADMIN_ROLES
from gateway.core.ratelimit import SlidingWindows
from gateway.store import LogEntry
from gateway.store.types import judged_events

FLOOD_S: Final = 10.0
FLOOD_LINES: Final = 20
"""Lines within that time that are a flood: nobody can follow them one by one."""
FLOOD_WINDOW_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
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
    is_room_talk: bool = False
    """True if it was written in a room, and not to the agent."""
    trusted: bool = False
    """True if an owner or admin wrote it."""
    authors: Mapping[MessageId, SenderId] = field(default_factory=dict)
    """Authors of the messages to the agent."""
    sender: Sender | None = None
    """Author of the message. None: it is no message, or several."""


def ready_conversations(entries: Iterable[LogEntry]) -> Iterator[ReadyConversation]:
    """Yield the conversations in which an event of these entries is due.

    Invitations start no turn, and neither do reactions, unless a rule of the operator makes them
    more urgent.
    """
    for event, entry, judged in judged_events(entries):
        if judged.fate != "due" or entry.conversation is None:
            continue
        if isinstance(event, ReactionChanged) and judged.urgency <= LOW:
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
            trusted=judged.role in ADMIN_ROLES,
            authors={event.id: event.sender.id}
            if isinstance(event, Message) and event.kind != "room"
            else {},
            sender=event.sender if isinstance(event, Message) else None,
        )


class ReadyListener(Protocol):
    """Whoever starts turns: `gateway.runtime.agents.Agents`."""

    def notice(self, arrival: ReadyConversation) -> None:
        """Announce entries that are ready for attention. Returns at once."""


class ConversationInbox:
    """Announces a conversation to its `listener` when its window ends, with the event that opened
    it.
    """

    listener: ReadyListener
    """To be set before the first event."""

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
        self._closed = False

    def on_judged(self, entries: Sequence[LogEntry]) -> None:
        """Add the conversations in which an event is due. Subscribes to `Judgement` and all
        notifications.
        """
        for arrival in ready_conversations(entries):
            if self._cluster.holds(lease_of(arrival.conversation)):
                self.add(arrival)
            else:
                self.listener.notice(arrival)

    def add(self, arrival: ReadyConversation) -> None:
        """Open or shorten the window of a conversation with durable unread events; below urgent,
        announce at once.
        """
        if self._closed:
            return  # the store has it: the next process finds it there
        place, wait_s, sender, limits = (
            arrival.conversation,
            self._window_s(arrival),
            arrival.sender,
            self._limits,
        )
        if arrival.urgency < URGENT:
            self.listener.notice(arrival)
            return
        if limits is not None and sender is not None:
            wait_s = max(wait_s, limits.turn_wait_s(Address.parse(place), sender))
        until_s = self._clock.monotonic() + wait_s
        before_s, first, waiting = self._windows.get(place, (math.inf, arrival, None))
        if before_s > until_s and limits is not None and sender is not None:
            limits.count_turn(Address.parse(place), sender)
        if wait_s <= 0:
            self.listener.notice(arrival)
            return
        trusted, authors = first.trusted or arrival.trusted, {**first.authors, **arrival.authors}
        opened = replace(first, trusted=trusted, authors=authors)
        if waiting is None or before_s > until_s:
            if waiting is not None:
                waiting.cancel()
            before_s = until_s
            waiting = asyncio.create_task(self._notify_after(place, wait_s))
        self._windows[place] = before_s, opened, waiting

    def is_waiting(self, conversation: ConversationId) -> bool:
        """Return whether a window is open there."""
        return conversation in self._windows

    def _window_s(self, arrival: ReadyConversation) -> float:
        coalesce_s = self._live.settings.attention.coalesce
        if not arrival.is_room_talk or arrival.urgency < URGENT:
            return coalesce_s
        now_s = self._clock.monotonic()
        self._room_lines.add(arrival.conversation, now_s)
        is_flood = self._room_lines.count(arrival.conversation, now_s) >= FLOOD_LINES
        return max(FLOOD_WINDOW_S, coalesce_s) if is_flood else coalesce_s

    async def close(self) -> None:
        """Close all windows without a word, and open none any more; the events stay unread in the
        store.
        """
        self._closed = True
        await self.close_windows(lambda _: True)

    async def close_windows(self, of: Callable[[ConversationId], bool]) -> None:
        """Close these windows without a word; the events stay unread in the store."""
        tasks = [self._windows.pop(place)[2] for place in [*self._windows] if of(place)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _notify_after(self, place: ConversationId, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        self.listener.notice(self._windows.pop(place)[1])
