"""Presence of the people whom the agents serve, estimated from the times of their messages.

Messages of verified owners and admins count if the operator named any; else those of everybody who
is accepted. Only messages to the agent count, and none of bots, so neither the agent's own posts
nor its notes to itself keep anybody present.

`PresenceEstimator` and the functions are pure: times are arguments. `PresenceTracker` reads the
clock and reports changes of the level.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from channels.aio import with_timeout
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, Message, PresenceLevel
from gateway.core.identity import AccessPolicy, Role, has_administrator, role_of
from gateway.core.text_safety import escape_frame
from gateway.store import LogEntry, StoreReader
from gateway.store.types import PendingCounts, judged_events
from gateway.stream.routing import PrivacyCache

SMOOTHING_S: Final = 300.0
"""Time constant, in seconds, of the exponentially weighted mean of messages."""
FOCUSED_PER_MIN: Final = 1.5
"""Messages a minute at which somebody is in the middle of a conversation (level "focused")..."""
UNFOCUSED_PER_MIN: Final = 0.75
"""...until there are fewer than this: the distance prevents quick changes back and forth."""
MAX_NAMED_PLACES: Final = 8
"""Places named in a note."""
MAX_PLACE_NAME_CHARS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepHours:
    """Hours in which silent people are taken to be asleep: from `start` to `end`, over midnight if
    `end` is earlier.
    """

    start: time
    end: time
    zone: tzinfo

    def nights_around(self, at: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the nights from the one before this moment to the second one after it, in order.

        They do not overlap.
        """
        today = at.astimezone(self.zone).date()
        for days in range(-1, 3):
            begins = today + timedelta(days=days)
            ends = begins + timedelta(days=self.end <= self.start)
            # A local time that a clock change skips is later by the length of the skip (PEP 495,
            # fold=0).
            yield (
                datetime.combine(begins, self.start, self.zone).astimezone(UTC),
                datetime.combine(ends, self.end, self.zone).astimezone(UTC),
            )

    def contains(self, at: datetime) -> bool:
        """Return whether it is night."""
        return any(start <= at < end for start, end in self.nights_around(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class PresencePolicy:
    """Settings about people's presence."""

    idle_s: float = 900.0
    """Seconds of silence after which people are idle..."""
    away_s: float = 14_400.0
    """...and after which they are away. Not less than `idle_s`."""
    sleep_hours: SleepHours | None = None
    """None: they are never taken to be asleep."""


def build_presence_policy(settings: Settings) -> PresencePolicy:
    """Build the presence policy."""
    presence, night = settings.attention.presence, None
    if presence.sleep is not None:
        start, _, end = presence.sleep.partition("-")
        night = SleepHours(
            start=time.fromisoformat(start),
            end=time.fromisoformat(end),
            zone=ZoneInfo(presence.timezone),
        )
    return PresencePolicy(idle_s=presence.idle, away_s=presence.away, sleep_hours=night)


def shows_presence(message: Message, role: Role, *, named: bool) -> bool:
    """Return whether a message shows that the agent's people are present.

    `named`: the operator named owners or admins.
    """
    if message.sender.is_bot or message.kind == "room":
        return False
    return role in ("owner", "admin") if named else role != "blocked"


def presence_times(
    messages: Iterable[tuple[Message, Role]], now: datetime, *, named: bool
) -> list[datetime]:
    """Return the times of the messages that count, oldest first, none after `now`: a platform's
    clock may be ahead.
    """
    return sorted(
        min(message.sent, now)
        for message, role in messages
        if shows_presence(message, role, named=named)
    )


class PresenceEstimator:
    """Presence of one agent's people."""

    def __init__(self, policy: PresencePolicy) -> None:
        self.policy = policy
        """May be replaced at any time."""
        self._fixed_level: PresenceLevel | None = None
        self._last_spoken: datetime | None = None
        self._per_min = 0.0
        """Messages a minute at `_last_spoken`."""
        self._focused_until: datetime | None = None
        """None: not focused."""
        self._absence: timedelta | None = None
        self._came_back_at: datetime | None = None
        """Time at which they last came back from a long silence."""

    def record(self, at: datetime) -> None:
        """Record a message to the agent. One older than the newest counts as sent together with
        it.
        """
        at = at if self._last_spoken is None else max(at, self._last_spoken)
        silent_s = (
            math.inf if self._last_spoken is None else (at - self._last_spoken).total_seconds()
        )
        if self._last_spoken is not None and silent_s >= self.policy.idle_s:
            self._absence, self._came_back_at = at - self._last_spoken, at
        elif (
            self._came_back_at is not None
            and (at - self._came_back_at).total_seconds() >= self.policy.idle_s
        ):
            self._absence = None  # that was long ago: others have been present since
        self._per_min = self._per_min * math.exp(-silent_s / SMOOTHING_S) + 60.0 / SMOOTHING_S
        goes_on = self._focused_until is not None and at < self._focused_until
        if self._per_min >= FOCUSED_PER_MIN or (goes_on and self._per_min >= UNFOCUSED_PER_MIN):
            left_s = SMOOTHING_S * math.log(self._per_min / UNFOCUSED_PER_MIN)
            self._focused_until = at + timedelta(seconds=left_s)
        else:
            self._focused_until = None
        self._last_spoken = at

    def reset(self, times: Iterable[datetime]) -> None:
        """Start again from these recent times, oldest first, read from the log. This is no return
        from an absence.
        """
        self._last_spoken, self._per_min, self._focused_until = None, 0.0, None
        for at in times:
            self.record(at)
        self._absence = None

    def set_level(self, level: PresenceLevel | None) -> None:
        """Fix the level. None: estimate it from messages."""
        self._fixed_level = level

    def level(self, at: datetime) -> PresenceLevel:
        """Return the level at that moment, which is not before any recorded message."""
        if self._fixed_level is not None:
            return self._fixed_level
        if self._focused_until is not None and at < self._focused_until:
            return "focused"
        silent_s = (
            math.inf if self._last_spoken is None else (at - self._last_spoken).total_seconds()
        )
        if silent_s < self.policy.idle_s:
            return "present"
        if self.policy.sleep_hours is not None and self.policy.sleep_hours.contains(at):
            return "sleeping"
        return "idle" if silent_s < self.policy.away_s else "away"

    def next_change(self, at: datetime) -> datetime | None:
        """Return the next time after `at` at which the level changes if nobody writes. None:
        never.
        """
        now = self.level(at)
        return next(
            (
                then
                for then in sorted(self._iter_change_moments(at))
                if then > at and self.level(then) != now
            ),
            None,
        )

    @property
    def came_back(self) -> bool:
        """True if they came back from a long silence and `take_absence` was not called since."""
        return self._absence is not None

    def take_absence(self) -> timedelta | None:
        """Return the length of the silence that has just ended, once. None: there was none, or it
        was returned before.

        Once only, so that it is rendered in the first turn after it.
        """
        absent, self._absence = self._absence, None
        return absent

    def _iter_change_moments(self, at: datetime) -> Iterator[datetime]:
        """Yield every moment at which time alone can change the level, for two days at least."""
        if self._fixed_level is not None:
            return
        if self._focused_until is not None:
            yield self._focused_until
        if self._last_spoken is not None:
            yield self._last_spoken + timedelta(seconds=self.policy.idle_s)
            yield self._last_spoken + timedelta(seconds=self.policy.away_s)
        for night in (
            self.policy.sleep_hours.nights_around(at) if self.policy.sleep_hours is not None else ()
        ):
            yield from night


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
ENOUGH_MESSAGES: Final = 100
"""Messages that are enough: older ones say nothing about the present rate."""
RECHECK_S: Final = 600.0
"""Longest wait without looking at the clock: it may be set, and a machine may sleep."""


class PresenceListener(Protocol):
    """Whoever goes by the presence of people: `gateway.runtime.agents.Agents`."""

    def set_presence(self, level: PresenceLevel) -> None:
        """Take note of a new level. Returns at once."""


class PresenceTracker:
    """Presence for all agents: they serve the same people."""

    listener: PresenceListener | None = None
    """Whoever is told each new level."""

    def __init__(
        self,
        live: LiveSettings,
        clock: Clock,
        access_policy: AccessPolicy,
    ) -> None:
        self._live = live
        self._estimator = PresenceEstimator(live.derive(build_presence_policy))
        self._clock = clock
        self._policy = access_policy
        self._reported_level: PresenceLevel = "present"
        self._wake = asyncio.Event()
        live.on_change(lambda _: self._on_reloaded)

    @property
    def level(self) -> PresenceLevel:
        """Level at this moment."""
        self._estimator.policy = self._live.derive(build_presence_policy)
        return self._estimator.level(self._clock.now())

    def _on_reloaded(self) -> None:
        self._refresh()
        self._wake.set()

    def on_judged(self, entries: Sequence[LogEntry]) -> None:
        """Record accepted messages. Subscribes to `Judgement` and `Message`."""
        for event, _, judged in judged_events(entries):
            if not isinstance(event, Message) or event.kind == "room":
                continue
            if not event.history and judged.fate != "refused":
                self.record_message(event, role_of(self._policy, event.at, event.sender))

    def record_message(self, message: Message, role: Role) -> None:
        """Record a message if it shows that people are present."""
        if shows_presence(message, role, named=has_administrator(self._policy)):
            self._estimator.record(min(message.sent, self._clock.now()))
            self._refresh()
            self._wake.set()

    def set_level(self, level: PresenceLevel | None) -> None:
        """Fix the level. None: estimate it from messages."""
        self._estimator.set_level(level)
        self._refresh()
        self._wake.set()

    @property
    def came_back(self) -> bool:
        """True if they were away until just now and `take_absence` was not called since."""
        return self._estimator.came_back

    def take_absence(self) -> timedelta | None:
        """Return how long they were away until just now; once only."""
        return self._estimator.take_absence()

    async def render_away_note(
        self, conversation: ConversationId, places: PrivacyCache, reader: StoreReader
    ) -> str:
        """Return the note to an owner who was away until now, in numbers; only in a direct chat.
        Empty: none.
        """
        if not (self.came_back and places.is_known_direct(conversation)):
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
        """Read the times of recent messages from the log. This is no return from an absence."""
        recent = await self._load_messages(reader)
        self._estimator.reset(
            presence_times(recent, self._clock.now(), named=has_administrator(self._policy))
        )
        self._refresh()

    async def _load_messages(self, reader: StoreReader) -> list[tuple[Message, Role]]:
        """Return the recent messages to the agent that count, newest first."""
        found, before = list[tuple[Message, Role]](), None
        for _ in range(PAGES):
            page = await reader.newest_entries(PAGE, before=before, kinds=ADDRESSED_KINDS)
            for one in reversed(page):
                if not isinstance(one.fact, Message):
                    continue
                role = role_of(self._policy, one.fact.at, one.fact.sender)
                if shows_presence(one.fact, role, named=has_administrator(self._policy)):
                    judged = await reader.find_judgement(one.seq)
                    found += (
                        [(one.fact, role)]
                        if judged is not None and judged.fate != "refused"
                        else []
                    )
                if len(found) == ENOUGH_MESSAGES:
                    return found
            if (
                len(page) < PAGE
                or (self._clock.now() - page[0].at).total_seconds() > self._estimator.policy.away_s
            ):
                break  # anybody who wrote before that is away
            before = page[0].seq
        return found

    async def run(self) -> None:
        """Report changes of the level that the passing of time brings, until cancelled."""
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
            if self.listener is not None:
                self.listener.set_presence(level)
