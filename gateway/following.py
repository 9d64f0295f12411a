"""Follows how near the agents' people are, and says when that changes."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from agent.signals import PresenceLevel
from channels.tasks import with_timeout
from gateway.clock import Clock
from gateway.events import Message
from gateway.presence import PresenceEstimator, PresencePolicy, presence_times, shows_presence
from gateway.standing import AccessPolicy, Role, has_administrator, role_of
from gateway.store import StoreReader

ADDRESSED_KINDS: Final = ("direct", "mention", "reply")
PAGE: Final = 300
PAGES: Final = 10
"""So many times so many messages from before the start are looked at, at the most."""
ENOUGH_MESSAGES: Final = 100
"""Of those that count: what was said before them tells nothing of how fast people talk now."""
RECHECK_S: Final = 600.0
"""The time of day may be set, and a machine may sleep: nobody waits longer without looking at the clock."""


class PresenceTracker:
    """One for all agents: they serve the same people."""

    def __init__(
        self, habits: PresencePolicy, clock: Clock, who: AccessPolicy, changed: Callable[[PresenceLevel], None]
    ) -> None:
        """`changed` is called on the event loop with each new level."""
        self._estimator = PresenceEstimator(habits)
        self._clock = clock
        self._policy = who
        self._on_changed = changed
        self._reported_level: PresenceLevel = "present"
        self._wake = asyncio.Event()

    @property
    def level(self) -> PresenceLevel:
        """By now."""
        return self._estimator.level(self._clock.now())

    def update(self, habits: PresencePolicy) -> None:
        """Go by these from now on, and tell if that is news. Returns at once."""
        self._estimator.policy = habits
        self._refresh()
        self._wake.set()

    def record_message(self, message: Message, role: Role) -> None:
        """Somebody may have spoken to the agent."""
        if shows_presence(message, role, named=has_administrator(self._policy)):
            self._estimator.record(min(message.sent, self._clock.now()))
            self._refresh()
            self._wake.set()

    def set_level(self, level: PresenceLevel | None) -> None:
        """From now on they are what somebody says they are. None: what their words show."""
        self._estimator.set_level(level)
        self._refresh()
        self._wake.set()

    @property
    def came_back(self) -> bool:
        """They were away until just now, and nobody was told yet: see `returned`."""
        return self._estimator.came_back

    def take_absence(self) -> timedelta | None:
        """How long they were away until just now; told once."""
        return self._estimator.take_absence()

    async def load(self, reader: StoreReader) -> None:
        """Learn from the log when they spoke last. Nobody comes back by that."""
        told = await self._load_messages(reader)
        self._estimator.reset(presence_times(told, self._clock.now(), named=has_administrator(self._policy)))
        self._refresh()

    async def _load_messages(self, reader: StoreReader) -> list[tuple[Message, Role]]:
        """What people said to the agent until now, as far as it tells how near they are."""
        found, before = list[tuple[Message, Role]](), None
        for _ in range(PAGES):
            page = await reader.newest_entries(PAGE, before=before, kinds=ADDRESSED_KINDS)
            for one in reversed(page):
                if not isinstance(one.fact, Message):
                    continue
                role = role_of(self._policy, one.fact.at, one.fact.sender)
                if shows_presence(one.fact, role, named=has_administrator(self._policy)):
                    judged = await reader.find_judgement(one.seq)
                    found += [(one.fact, role)] if judged is not None and judged.fate != "refused" else []
                if len(found) == ENOUGH_MESSAGES:
                    return found
            if len(page) < PAGE or (self._clock.now() - page[0].at).total_seconds() > self._estimator.policy.away_s:
                break  # whoever spoke last before that is away
            before = page[0].seq
        return found

    async def run(self) -> None:
        """Notice what the passing of time changes, until cancelled."""
        while True:
            self._wake.clear()
            now = self._clock.now()
            change = self._estimator.next_change(now)
            wait_s = RECHECK_S if change is None else min(RECHECK_S, (change - now).total_seconds())
            if change is None:
                await self._wake.wait()
            else:
                with contextlib.suppress(TimeoutError):
                    await with_timeout(self._clock, wait_s, self._wake.wait())
            self._refresh()

    def _refresh(self) -> None:
        level = self.level
        if level != self._reported_level:
            self._reported_level = level
            self._on_changed(level)
