"""When something is to come, as people and models write it. Pure.

Local times are read as RFC 5545 (3.3.5) reads them: one that comes twice is the first, one that does not exist is
taken by the clock as it was before the gap.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo

from gateway import schedules
from gateway.schedules import (
    MAX_AHEAD,
    IntervalSchedule,
    OnceSchedule,
    Schedule,
    ScheduleError,
    next_time,
    parse_timezone,
)

_MAX_SPOKEN_CHARS: Final = 100
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNIT: Final = r"(s|m|h|d|w|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?)"
_DURATION_PIECE: Final = re.compile(rf"(\d+(?:\.\d+)?)\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?")
_TIME_OF_DAY: Final = re.compile(r"(?:(today|tomorrow),?\s+(?:at\s+)?|at\s+)?(\d{1,2}):(\d{2})")
_EXAMPLES: Final = "write e.g. 2026-11-22T09:00, 18:30, tomorrow 9:00 or in 2h30m"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTime:
    """When, in somebody's words. Empty: nothing was said of that."""

    at: str = ""
    """A time: ISO 8601 with or without a time zone, a time of day, or how long from now."""
    every: str = ""
    """How long between two times; the first is `at`, or as long from now."""
    cron: str = ""
    """Five fields, as `gateway.schedules` reads them."""
    timezone: str = ""
    """Where `at` or `cron` are read, if that is not where everything is."""


def parse_spoken_time(spoken: SpokenTime, now: datetime, timezone: str) -> tuple[Schedule, datetime]:
    """The schedule that is meant, and its first time, UTC.

    `timezone` holds where none is named. Raises BadSchedule, also for what is past or more than five years ahead.
    """
    at, repeats, fields = (text.strip() for text in (spoken.at, spoken.every, spoken.cron))
    place = spoken.timezone.strip() or timezone
    where = parse_timezone(place)
    if fields and (at or repeats):
        raise ScheduleError("Give `cron` alone, or `every` with or without `at` as its first time.")
    if fields:
        schedule: Schedule = schedules.parse_cron(fields, place)
        first = next_time(schedule, now)
        if first is None or first - now > MAX_AHEAD:
            raise ScheduleError("That cron expression does not come within five years.")
        return schedule, first
    if not at and not repeats:
        raise ScheduleError(f"Say when: `at`, `every` or `cron`; {_EXAMPLES}.")
    first = parse_moment(at, now, where) if at else None
    if not repeats:
        assert first is not None
        return OnceSchedule(time=first), first.astimezone(UTC)
    schedule = _parse_interval(repeats)
    return schedule, first.astimezone(UTC) if first is not None else next_time(schedule, _ceil_to_second(now)) or now


def _parse_interval(text: str) -> IntervalSchedule:
    seconds = (
        float(text) if text.isascii() and text.isdigit() and len(text) < _MAX_SPOKEN_CHARS else _parse_duration(text)
    )
    if seconds is None:
        raise ScheduleError("`every` takes how long between two times, e.g. 90 min, 2h or 1 day.")
    return schedules.build_interval(int(min(seconds, MAX_AHEAD.total_seconds() + 1)))


def parse_moment(text: str, now: datetime, where: ZoneInfo) -> datetime:
    """The time that is meant, in whole seconds, as clocks there show it. Raises BadSchedule, also for what is past."""
    first = _parse_relative(text, now, where) or _parse_time_of_day(text, now, where) or _parse_iso(text, where)
    if first is None:
        raise ScheduleError(f"That is no time that is understood here; {_EXAMPLES}.")
    if first <= now:
        raise ScheduleError(f"That is past: it is now {now.astimezone(where):%Y-%m-%dT%H:%M} ({where.key}).")
    if first - now > MAX_AHEAD:
        raise ScheduleError("That is more than five years ahead, which is too far.")
    return first


def _parse_relative(text: str, now: datetime, where: ZoneInfo) -> datetime | None:
    seconds = _parse_duration(re.sub(r"^in\s+", "", text.lower()))
    if seconds is None:
        return None
    return _with_fixed_offset(
        _ceil_to_second(now + timedelta(seconds=min(seconds, 2 * MAX_AHEAD.total_seconds()))), where
    )


def _parse_time_of_day(text: str, now: datetime, where: ZoneInfo) -> datetime | None:
    match = _TIME_OF_DAY.fullmatch(text.lower())
    if match is None:
        return None
    try:
        wanted = time(int(match[2]), int(match[3]))
    except ValueError:
        raise ScheduleError(f"There is no such time of day; {_EXAMPLES}.") from None
    today = now.astimezone(where).date()
    first = _to_local(datetime.combine(today, wanted), where)
    if match[1] == "tomorrow" or (match[1] is None and first <= now):
        return _to_local(datetime.combine(today + timedelta(days=1), wanted), where)
    return first


def _parse_iso(text: str, where: ZoneInfo) -> datetime | None:
    """ISO 8601 with a time of day: a date alone does not say when."""
    if len(text) > _MAX_SPOKEN_CHARS or not re.match(r"[\dW-]+[T ]\d", text):
        return None
    try:
        read = _ceil_to_second(datetime.fromisoformat(text))
        read.astimezone(UTC)
        return read if read.tzinfo is not None else _to_local(read, where)
    except (ValueError, OverflowError):  # also where the calendar ends: years 1 and 9999
        return None


def _to_local(naive: datetime, where: ZoneInfo) -> datetime:
    return _with_fixed_offset(naive.replace(tzinfo=where).astimezone(UTC), where)  # through UTC, or it might not exist


def _with_fixed_offset(moment: datetime, where: ZoneInfo) -> datetime:
    """As clocks there show it, with the offset of that day: what is written down reads the same for ever."""
    seen = moment.astimezone(where)
    return seen.replace(tzinfo=timezone(seen.utcoffset() or timedelta()))


def _ceil_to_second(moment: datetime) -> datetime:
    """The next whole second."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)


def _parse_duration(text: str) -> float | None:
    """How many seconds `2h30m`, `90 min` or `1 day and 3 hours` are; None for what is none of that."""
    text = text.lower()
    if not text or len(text) > _MAX_SPOKEN_CHARS:
        return None
    total, end = 0.0, 0
    while end < len(text):
        match = _DURATION_PIECE.match(text, end)
        if match is None:
            return None
        total, end = total + float(match[1]) * _UNITS[match[2][0]], match.end()
    return total
