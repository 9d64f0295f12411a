"""Presence of the people whom the agents serve, by how long they have been silent.

Messages of verified owners and admins count if the operator named any; else those of everybody who
is accepted. Only messages to the agent count, and none of bots, so neither the agent's own posts
nor its notes to itself keep anybody present.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, time, timedelta
from math import inf
from typing import Final
from zoneinfo import ZoneInfo

from gateway.config.models import PresenceConfig
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, Message, PresenceLevel
from gateway.core.identity import AccessPolicy, Role, has_administrator, role_of
from gateway.core.text_safety import escape_frame
from gateway.store import LogEntry, StoreReader
from gateway.store.types import PendingCounts, judged_events
from gateway.stream.routing import PrivacyCache

MAX_NAMED_PLACES: Final = 8
"""Places named in a note."""
MAX_PLACE_NAME_CHARS: Final = 80


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


def shows_presence(message: Message, role: Role, *, named: bool) -> bool:
    """Return whether a message shows that the agent's people are present.

    `named`: the operator named owners or admins.
    """
    if message.sender.is_bot or message.kind == "room":
        return False
    return role in ("owner", "admin") if named else role != "blocked"


def render_away_note(gap: timedelta, pending: Sequence[PendingCounts]) -> str:
    """Return the note for the agent when its people are back.

    Numbers only; `pending`: unread counts that may be shown.
    """
    gone = f"Your owner was away for {_format_absence(gap)}."
    if not pending:
        return gone
    places = [
        f"{_clean_place_name(one.conversation)} {_format_line_count(one)}"
        for one in pending[:MAX_NAMED_PLACES]
    ]
    more = len(pending) - MAX_NAMED_PLACES
    if more > 0:
        places.append(f"and {more} more place{'s' if more > 1 else ''}")
    return f"{gone} Unread elsewhere: {', '.join(places)}."


def _format_line_count(one: PendingCounts) -> str:
    count = one.urgent + one.normal + one.low + one.ambient
    yours = f" ({one.urgent} for you)" if one.urgent else ""
    return f"{count} line{'s' if count != 1 else ''}{yours}"


def _format_absence(gap: timedelta) -> str:
    minutes = max(1, round(gap.total_seconds() / 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min"


def _clean_place_name(name: str) -> str:
    # The note has the operator's authority, and anybody can name a room.
    return escape_frame(name[:MAX_PLACE_NAME_CHARS], "[]():,")


ADDRESSED_KINDS: Final = ("direct", "mention", "reply")
PAGE: Final = 300
PAGES: Final = 10
"""At most this many pages of this size of earlier messages are read at the start."""
RECHECK_S: Final = 300.0
"""Time between two looks at what the passing of time has changed."""


class PresenceTracker:
    """Presence for all agents: they serve the same people."""

    def __init__(
        self,
        live: LiveSettings,
        clock: Clock,
        access_policy: AccessPolicy,
    ) -> None:
        self._live, self._clock, self._policy = live, clock, access_policy
        self._fixed_level: PresenceLevel | None = None
        self._last_spoken: datetime | None = None
        self._absence: tuple[timedelta, datetime] | None = None
        """How long they were silent before they came back, and when that was."""
        self._reported_level: PresenceLevel = "present"
        self._listeners = list[Callable[[PresenceLevel], None]]()
        live.on_change(lambda _: self._refresh)

    def add_listener(self, listener: Callable[[PresenceLevel], None]) -> None:
        """Call this with each new level. It must return at once."""
        self._listeners.append(listener)

    @property
    def level(self) -> PresenceLevel:
        """Level at this moment."""
        now, last = self._clock.now(), self._last_spoken
        silent_s = inf if last is None else (now - last).total_seconds()
        return self._fixed_level or level_by_silence(self._config, silent_s, now)

    @property
    def _config(self) -> PresenceConfig:
        return self._live.settings.attention.presence

    def on_judged(self, entries: Sequence[LogEntry]) -> None:
        """Record accepted messages. Subscribes to `Judgement` and `Message`."""
        for event, _, judged in judged_events(entries):
            if isinstance(event, Message) and not event.history and judged.fate != "refused":
                self.record_message(event)

    def record_message(self, message: Message) -> None:
        """Record a message if it shows that people are present. One older than the newest counts as
        sent together with it.
        """
        if not self._shows_presence(message):
            return
        at, last = min(message.sent, self._clock.now()), self._last_spoken
        if last is not None and (at - last).total_seconds() >= self._config.idle:
            self._absence = at - last, at
        self._last_spoken = at if last is None else max(at, last)
        self._refresh()

    def set_level(self, level: PresenceLevel | None) -> None:
        """Fix the level. None: estimate it from messages."""
        self._fixed_level = level
        self._refresh()

    def take_absence(self) -> timedelta | None:
        """Return the length of the silence that has just ended, once. None: there was none, or it
        was returned before, or they have been back for long.
        """
        (absent, back_at), self._absence = self._absence or (None, self._clock.now()), None
        is_new = (self._clock.now() - back_at).total_seconds() < self._config.idle
        return absent if is_new else None

    async def render_away_note(
        self, conversation: ConversationId, places: PrivacyCache, reader: StoreReader
    ) -> str:
        """Return the note to an owner who was away until now, in numbers; only in a direct chat.
        Empty: none.
        """
        if self._absence is None or not places.is_known_direct(conversation):
            return ""
        newest = await places.newest_message(conversation)
        if newest is None or role_of(self._policy, newest.at, newest.sender) != "owner":
            return ""
        absence = self.take_absence()
        if absence is None:
            return ""
        pending = [one for one in await reader.pending_counts() if one.conversation != conversation]
        return render_away_note(
            absence, [one for one in pending if not await places.is_private(one.conversation)]
        )

    async def load(self, reader: StoreReader) -> None:
        """Read from the log when people wrote last. This is no return from an absence."""
        self._last_spoken = await self._find_last_spoken(reader)
        self._refresh()

    async def _find_last_spoken(self, reader: StoreReader) -> datetime | None:
        before, now = None, self._clock.now()
        for _ in range(PAGES):
            page = await reader.newest_entries(PAGE, before=before, kinds=ADDRESSED_KINDS)
            for one in reversed(page):
                if isinstance(one.fact, Message) and self._shows_presence(one.fact):
                    judged = await reader.find_judgement(one.seq)
                    if judged is not None and judged.fate != "refused":
                        return min(one.fact.sent, now)
            if len(page) < PAGE or (now - page[0].at).total_seconds() > self._config.away:
                break  # anybody who wrote before that is away
            before = page[0].seq
        return None

    async def run(self) -> None:
        """Report changes of the level that the passing of time brings, until cancelled."""
        while True:
            await self._clock.sleep(RECHECK_S)
            self._refresh()

    def _shows_presence(self, message: Message) -> bool:
        role = role_of(self._policy, message.at, message.sender)
        return shows_presence(message, role, named=has_administrator(self._policy))

    def _refresh(self) -> None:
        level = self.level
        if level != self._reported_level:
            self._reported_level = level
            for listener in self._listeners:
                listener(level)
