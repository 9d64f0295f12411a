"""Presence of the people whom the agents serve, by how long they have been silent.

Messages of verified owners and admins count if the operator named any; else those of everybody who
is accepted. Only messages to the agent count, and none of bots, so neither the agent's own posts
nor its notes to itself keep anybody present.
"""

from collections.abc import Sequence
from datetime import datetime, time
from math import inf
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from gateway.config.models import PresenceConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import Message, PresenceLevel
from gateway.core.facts import Seq
from gateway.core.identity import ADMIN_ROLES, AccessPolicy, has_administrator, identify
from gateway.store import LogEntry, StoreReader
from gateway.store.active import judged_events


def is_night(config: PresenceConfig, at: datetime) -> bool:
    """Return whether silent people are taken to be asleep at that moment."""
    if config.sleep is None:
        return False
    begin, _, end = config.sleep.partition("-")
    start, stop = time.fromisoformat(begin), time.fromisoformat(end)
    now = at.astimezone(ZoneInfo(config.timezone)).time()
    return start <= now < stop if start < stop else now >= start or now < stop


def level_by_silence(config: PresenceConfig, silent_s: float, at: datetime) -> PresenceLevel:
    """Return the level of people who have not written to the agent for so long."""
    if silent_s < config.idle:
        return "present"
    if is_night(config, at):
        return "sleeping"
    return "idle" if silent_s < config.away else "away"


PAGE: Final = 300
PAGES: Final = 10
"""At most this many pages of this size of earlier messages are read at the start."""


class Return(NamedTuple):
    """End of an absence."""

    seq: Seq
    """The message with which they came back."""
    at: datetime
    gone_since: datetime


class PresenceTracker:
    """Presence for all agents: they serve the same people."""

    def __init__(
        self,
        live: LiveSettings,
        clock: Clock,
        access_policy: AccessPolicy,
    ) -> None:
        self._clock, self._policy = clock, access_policy
        self._fixed_level: PresenceLevel | None = None
        self._last_spoken: datetime | None = None
        self.last_return: Return | None = None
        """When they last came back. None: not lately."""
        live.follow(self._use)

    @property
    def level(self) -> PresenceLevel:
        """Level at this moment."""
        now, last = self._clock.now(), self._last_spoken
        silent_s = inf if last is None else (now - last).total_seconds()
        return self._fixed_level or level_by_silence(self._config, silent_s, now)

    def _use(self, settings: Settings) -> None:
        self._config = settings.attention.presence

    def on_judged(self, entries: Sequence[LogEntry]) -> None:
        """Record accepted messages that show that people are present. One older than the newest
        counts as sent together with it. Subscribes to `Judgement` and `Message`.
        """
        for event, entry, judged in judged_events(entries):
            if not isinstance(event, Message) or event.history or judged.fate == "refused":
                continue
            if not self._shows_presence(event, judged.role):
                continue
            at, last = min(event.sent, self._clock.now()), self._last_spoken
            if last is not None and (at - last).total_seconds() >= self._config.idle:
                self.last_return = Return(entry.cause or entry.seq, at, last)
            self._last_spoken = at if last is None else max(at, last)

    def set_level(self, level: PresenceLevel | None) -> None:
        """Fix the level. None: estimate it from messages."""
        self._fixed_level = level

    async def load(self, reader: StoreReader) -> None:
        """Read from the log when people wrote last, and whether they had just come back then."""
        before, now, later = None, self._clock.now(), None
        for _ in range(PAGES):
            page = await reader.newest_entries(
                PAGE, before=before, kinds=("direct", "mention", "reply")
            )
            for one in reversed(page):
                if not isinstance(one.fact, Message):
                    continue
                role = identify(self._policy, one.fact.at, one.fact.sender).role
                if not self._shows_presence(one.fact, role):
                    continue
                judged = await reader.find_judgement(one.seq)
                if judged is None or judged.fate == "refused":
                    continue
                sent = min(one.fact.sent, now)
                if later is None:
                    self._last_spoken = sent
                elif (later.at - sent).total_seconds() >= self._config.idle:
                    self.last_return = later._replace(gone_since=sent)
                    return
                later = Return(one.seq, sent, sent)
                if (now - sent).total_seconds() >= self._config.idle:
                    return  # whoever came back before that is back for long
            if len(page) < PAGE or (
                later is None and (now - page[0].at).total_seconds() > self._config.away
            ):
                return  # anybody who wrote before that is away
            before = page[0].seq

    def _shows_presence(self, message: Message, role: str) -> bool:
        if message.sender.is_bot or message.kind == "room":
            return False
        return role in ADMIN_ROLES or (role != "blocked" and not has_administrator(self._policy))
