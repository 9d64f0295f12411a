"""What has arrived and waits to be noticed.

One short window per conversation, so that a thought written in three lines is answered once.
What is unread is in the store; this holds only the windows that are open now.
"""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.core.facts import URGENT

FLOOD_DECAY_S: Final = 10.0
FLOOD_LINES: Final = 20.0
"""So many lines within that time are a flood: nobody can follow them one by one."""
FLOOD_WINDOW_S: Final = 60.0
MAX_FLOOD_METERS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyConversation:
    """Something durable is unread in a conversation."""

    conversation: ConversationId
    urgency: int
    type: str = ""
    """Its dotted type. Empty: several, or it is not known any more."""
    direct: bool | None = None
    """It came in a direct chat, as the platform says. None: the event does not tell."""
    handle_in_place: bool = False
    """It is to be dealt with there, and not by looking at it from the inner conversation."""
    is_room_talk: bool = False
    """It was said in a room, and not to the agent."""
    trusted: bool = False
    """An owner or admin said it."""


class _FloodMeter:
    """How fast people talk in a room: lines of the last seconds, fading."""

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._lines = 0.0

    def add_line(self, now_s: float) -> bool:
        """One more line; whether they come in a flood."""
        self._lines = self._lines * math.exp((self._at_s - now_s) / FLOOD_DECAY_S) + 1
        self._at_s = now_s
        return self._lines >= FLOOD_LINES


class ConversationInbox:
    """Tells when a conversation is ripe."""

    def __init__(self, clock: Clock, coalesce_s: float, notice: Callable[[ReadyConversation], None]) -> None:
        """`notice` is called on the event loop, once per window with what opened it.

        `coalesce_s`: how long an urgent line waits for more; counted from the first, so that a
        chatterer cannot hold off the answer. 0: notice at once. Talk that comes in a flood waits for `FLOOD_WINDOW_S`,
        unless something is said to the agent in between: a raid costs a turn a minute, however fast the model is.
        """
        self._clock = clock
        self._coalesce_s = coalesce_s
        self._notice = notice
        self._windows: dict[ConversationId, tuple[float, asyncio.Task[None]]] = {}
        """Until when, on the monotonic clock, and what waits."""
        self._trusted_windows: set[ConversationId] = set()
        """Where somebody has spoken in an open window whom the agent's people trust."""
        self._flood_meters: OrderedDict[ConversationId, _FloodMeter] = OrderedDict()
        self._closed = False

    def set_window(self, coalesce_s: float) -> None:
        """Windows that open from now on are so long. Returns at once."""
        self._coalesce_s = coalesce_s

    def add(self, arrival: ReadyConversation) -> None:
        """Something durable is unread here."""
        if self._closed:
            return  # the store has it: the next process takes it up
        place, wait_s = arrival.conversation, self._window_s(arrival)
        if arrival.urgency < URGENT or wait_s <= 0:
            self._notice(arrival)
            return
        if arrival.trusted:
            self._trusted_windows.add(place)
        until_s = self._clock.monotonic() + wait_s
        if place in self._windows:
            before_s, waiting = self._windows[place]
            if before_s <= until_s:
                return
            waiting.cancel()
        self._windows[place] = until_s, asyncio.create_task(self._notify_after(arrival, wait_s))

    def is_waiting(self, conversation: ConversationId) -> bool:
        """Whether something there is to be noticed soon."""
        return conversation in self._windows

    def _window_s(self, arrival: ReadyConversation) -> float:
        if not arrival.is_room_talk or arrival.urgency < URGENT:
            return self._coalesce_s
        now_s = self._clock.monotonic()
        flood = self._flood_meters.setdefault(arrival.conversation, _FloodMeter(now_s))
        self._flood_meters.move_to_end(arrival.conversation)
        if len(self._flood_meters) > MAX_FLOOD_METERS:
            self._flood_meters.popitem(last=False)
        return max(FLOOD_WINDOW_S, self._coalesce_s) if flood.add_line(now_s) else self._coalesce_s

    async def close(self) -> None:
        """Close all windows without noticing, and open none any more; what is unread stays in the store."""
        self._closed = True
        tasks = [task for _, task in self._windows.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._windows.clear()

    async def _notify_after(self, arrival: ReadyConversation, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        place = arrival.conversation
        del self._windows[place]
        trusted = place in self._trusted_windows
        self._trusted_windows.discard(place)
        self._notice(replace(arrival, trusted=trusted))
