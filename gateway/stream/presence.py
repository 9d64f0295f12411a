"""How near the people are whom the agent serves, told from when they spoke to it. Pure: times come in.

Whose words count: verified owners' and admins', if the operator named any; else anybody's who is heard. Only what was
said to the agent counts, and nothing of bots, so neither its own posts nor what it tells itself keep anybody near.

Follows how near the agents' people are, and says when that changes.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Final

from channels.aio import with_timeout
from gateway.core.clock import Clock
from gateway.core.events import Message, PresenceLevel
from gateway.core.identity import AccessPolicy, Role, has_administrator, role_of
from gateway.store import StoreReader
from gateway.store.types import PendingCounts

SMOOTHING_S: Final = 300.0
"""Messages are counted with weights that fall off with this time, in seconds: an exponentially weighted mean."""
FOCUSED_PER_MIN: Final = 1.5
"""So many messages a minute are a conversation that somebody is in the middle of..."""
UNFOCUSED_PER_MIN: Final = 0.75
"""...until they are fewer than this: the distance keeps it from going back and forth."""
MAX_NAMED_PLACES: Final = 8
"""Places that a digest names."""
MAX_PLACE_NAME_CHARS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepHours:
    """When people sleep if they are silent: from `start` to `end` of each day, over midnight if that is earlier."""

    start: time
    end: time
    zone: tzinfo

    def nights_around(self, at: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The nights from the one before this moment to the second one after it, in order. They do not overlap."""
        today = at.astimezone(self.zone).date()
        for days in range(-1, 3):
            begins = today + timedelta(days=days)
            ends = begins + timedelta(days=self.end <= self.start)
            # A time of day that a change of the clocks leaves out is as much later as was left out (PEP 495, fold=0).
            yield (
                datetime.combine(begins, self.start, self.zone).astimezone(UTC),
                datetime.combine(ends, self.end, self.zone).astimezone(UTC),
            )

    def contains(self, at: datetime) -> bool:
        """Whether it is night."""
        return any(start <= at < end for start, end in self.nights_around(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class PresencePolicy:
    """What the operator says of the people."""

    idle_s: float = 900.0
    """After so much silence they are idle..."""
    away_s: float = 14_400.0
    """...and after so much away. Not less than `idle_s`."""
    sleep_hours: SleepHours | None = None
    """None: they are never taken to sleep."""


def shows_presence(message: Message, role: Role, *, named: bool) -> bool:
    """Whether a message shows that the agent's people are there. `named`: the operator named owners or admins."""
    if message.sender.is_bot or message.kind == "room":
        return False
    return role in ("owner", "admin") if named else role != "blocked"


def presence_times(said: Iterable[tuple[Message, Role]], now: datetime, *, named: bool) -> list[datetime]:
    """When those were said that count, oldest first. A platform whose clock is ahead of ours does not know better."""
    return sorted(min(message.sent, now) for message, role in said if shows_presence(message, role, named=named))


class PresenceEstimator:
    """Follows one agent's people."""

    def __init__(self, habits: PresencePolicy) -> None:
        self.policy = habits
        """May be others from some moment on."""
        self._fixed_level: PresenceLevel | None = None
        self._last_spoken: datetime | None = None
        self._per_min = 0.0
        """At `_last`."""
        self._focused_until: datetime | None = None
        """None: they are not."""
        self._absence: timedelta | None = None
        self._came_back_at: datetime | None = None
        """When they last came back from a long silence."""

    def record(self, at: datetime) -> None:
        """One of them spoke to the agent then. One that is told late counts as said together with the newest."""
        at = at if self._last_spoken is None else max(at, self._last_spoken)
        silent_s = math.inf if self._last_spoken is None else (at - self._last_spoken).total_seconds()
        if self._last_spoken is not None and silent_s >= self.policy.idle_s:
            self._absence, self._came_back_at = at - self._last_spoken, at
        elif self._came_back_at is not None and (at - self._came_back_at).total_seconds() >= self.policy.idle_s:
            self._absence = None  # that was long ago: others have been here since
        self._per_min = self._per_min * math.exp(-silent_s / SMOOTHING_S) + 60.0 / SMOOTHING_S
        goes_on = self._focused_until is not None and at < self._focused_until
        if self._per_min >= FOCUSED_PER_MIN or (goes_on and self._per_min >= UNFOCUSED_PER_MIN):
            left_s = SMOOTHING_S * math.log(self._per_min / UNFOCUSED_PER_MIN)
            self._focused_until = at + timedelta(seconds=left_s)
        else:
            self._focused_until = None
        self._last_spoken = at

    def reset(self, times: Iterable[datetime]) -> None:
        """Begin anew with when they spoke lately, oldest first, as the log tells. Nobody comes back by that."""
        self._last_spoken, self._per_min, self._focused_until = None, 0.0, None
        for at in times:
            self.record(at)
        self._absence = None

    def set_level(self, level: PresenceLevel | None) -> None:
        """From now on they are what somebody says they are. None: what their words show."""
        self._fixed_level = level

    def level(self, at: datetime) -> PresenceLevel:
        """How near they are at that moment, which is not before anything that was heard."""
        if self._fixed_level is not None:
            return self._fixed_level
        if self._focused_until is not None and at < self._focused_until:
            return "focused"
        silent_s = math.inf if self._last_spoken is None else (at - self._last_spoken).total_seconds()
        if silent_s < self.policy.idle_s:
            return "present"
        if self.policy.sleep_hours is not None and self.policy.sleep_hours.contains(at):
            return "sleeping"
        return "idle" if silent_s < self.policy.away_s else "away"

    def next_change(self, at: datetime) -> datetime | None:
        """When, after that moment, the level becomes another one if nobody says anything. None: never."""
        now = self.level(at)
        return next(
            (then for then in sorted(self._iter_change_moments(at)) if then > at and self.level(then) != now), None
        )

    @property
    def came_back(self) -> bool:
        """They were silent for long until just now, and nobody was told yet."""
        return self._absence is not None

    def take_absence(self) -> timedelta | None:
        """How long they had been silent when they came back. None: they had not, or that was told before.

        It is told once, so that it can be said in the first turn after it.
        """
        absent, self._absence = self._absence, None
        return absent

    def _iter_change_moments(self, at: datetime) -> Iterator[datetime]:
        """Every moment at which time alone can change the level, for two days at least."""
        if self._fixed_level is not None:
            return
        if self._focused_until is not None:
            yield self._focused_until
        if self._last_spoken is not None:
            yield self._last_spoken + timedelta(seconds=self.policy.idle_s)
            yield self._last_spoken + timedelta(seconds=self.policy.away_s)
        for night in self.policy.sleep_hours.nights_around(at) if self.policy.sleep_hours is not None else ():
            yield from night


def render_away_note(gap: timedelta, pending: Sequence[PendingCounts]) -> str:
    """What the agent is told when its person is back. Numbers only; `pending`: what they may be told of."""
    gone = f"They were away for {_format_absence(gap)}."
    if not pending:
        return f"{gone} Nothing is unread elsewhere."
    places = [f"{_clean_place_name(one.conversation)} {_format_line_count(one)}" for one in pending[:MAX_NAMED_PLACES]]
    more = len(pending) - MAX_NAMED_PLACES
    if more > 0:
        places.append(f"and {more} more place{'s' if more > 1 else ''}")
    return f"{gone} Meanwhile unread: {', '.join(places)}."


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
    # What is told here has the operator's weight, and people name rooms.
    return "".join(char if char.isprintable() and char not in "[]():," else "_" for char in name[:MAX_PLACE_NAME_CHARS])


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
