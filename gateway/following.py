"""Follows how near the agents' people are, and says when that changes."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from agent.signals import Level
from channels.tasks import within
from gateway import access
from gateway.clock import Clock
from gateway.events import Message
from gateway.presence import Habits, Watcher, counts, times
from gateway.standing import administered
from gateway.store import Reader

SPOKEN: Final = ("direct", "mention", "reply")
PAGE: Final = 300
PAGES: Final = 10
"""So many times so many messages from before the start are looked at, at the most."""
ENOUGH: Final = 100
"""Of those that count: what was said before them tells nothing of how fast people talk now."""
LOOK_AGAIN_S: Final = 600.0
"""The time of day may be set, and a machine may sleep: nobody waits longer without looking at the clock."""


class Following:
    """One for all agents: they serve the same people."""

    def __init__(self, habits: Habits, clock: Clock, who: access.Policy, changed: Callable[[Level], None]) -> None:
        """`changed` is called on the event loop with each new level."""
        self._watcher = Watcher(habits)
        self._clock = clock
        self._who = who
        self._changed = changed
        self._told: Level = "present"
        self._news = asyncio.Event()

    @property
    def level(self) -> Level:
        """By now."""
        return self._watcher.level(self._clock.now())

    def become(self, habits: Habits) -> None:
        """Go by these from now on, and tell if that is news. Returns at once."""
        self._watcher.habits = habits
        self._look()
        self._news.set()

    def heard(self, message: Message, role: access.Role) -> None:
        """Somebody may have spoken to the agent."""
        if counts(message, role, named=administered(self._who)):
            self._watcher.heard(min(message.sent, self._clock.now()))
            self._look()
            self._news.set()

    def ordered(self, level: Level | None) -> None:
        """From now on they are what somebody says they are. None: what their words show."""
        self._watcher.ordered(level)
        self._look()
        self._news.set()

    @property
    def came_back(self) -> bool:
        """They were away until just now, and nobody was told yet: see `returned`."""
        return self._watcher.came_back

    def returned(self) -> timedelta | None:
        """How long they were away until just now; told once."""
        return self._watcher.since_last()

    async def begin(self, reader: Reader) -> None:
        """Learn from the log when they spoke last. Nobody comes back by that."""
        told = await self._spoken(reader)
        self._watcher.recount(times(told, self._clock.now(), named=administered(self._who)))
        self._look()

    async def _spoken(self, reader: Reader) -> list[tuple[Message, access.Role]]:
        """What people said to the agent until now, as far as it tells how near they are."""
        found, before = list[tuple[Message, access.Role]](), None
        for _ in range(PAGES):
            page = await reader.newest(PAGE, before=before, kinds=SPOKEN)
            for one in reversed(page):
                if not isinstance(one.fact, Message):
                    continue
                role = access.role_of(self._who, one.fact.at, one.fact.sender)
                if counts(one.fact, role, named=administered(self._who)):
                    judged = await reader.judgement(one.seq)
                    found += [(one.fact, role)] if judged is not None and judged.fate != "refused" else []
                if len(found) == ENOUGH:
                    return found
            if len(page) < PAGE or (self._clock.now() - page[0].at).total_seconds() > self._watcher.habits.away_s:
                break  # whoever spoke last before that is away
            before = page[0].seq
        return found

    async def run(self) -> None:
        """Notice what the passing of time changes, until cancelled."""
        while True:
            self._news.clear()
            now = self._clock.now()
            change = self._watcher.next_change(now)
            wait_s = LOOK_AGAIN_S if change is None else min(LOOK_AGAIN_S, (change - now).total_seconds())
            if change is None:
                await self._news.wait()
            else:
                with contextlib.suppress(TimeoutError):
                    await within(self._clock, wait_s, self._news.wait())
            self._look()

    def _look(self) -> None:
        level = self.level
        if level != self._told:
            self._told = level
            self._changed(level)
