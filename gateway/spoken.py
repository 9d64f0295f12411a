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
from gateway.schedules import LONGEST, At, BadSchedule, Every, Schedule, coming, zone

_MOST_CHARS: Final = 100
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNIT: Final = r"(s|m|h|d|w|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?)"
_PIECE: Final = re.compile(rf"(\d+(?:\.\d+)?)\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?")
_LOCAL: Final = re.compile(r"(?:(today|tomorrow),?\s+(?:at\s+)?|at\s+)?(\d{1,2}):(\d{2})")
_HOW: Final = "write e.g. 2026-11-22T09:00, 18:30, tomorrow 9:00 or in 2h30m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """When, in somebody's words. Empty: nothing was said of that."""

    at: str = ""
    """A time: ISO 8601 with or without a time zone, a time of day, or how long from now."""
    every: str = ""
    """How long between two times; the first is `at`, or as long from now."""
    cron: str = ""
    """Five fields, as `gateway.schedules` reads them."""
    timezone: str = ""
    """Where `at` or `cron` are read, if that is not where everything is."""


def understood(spoken: Spoken, now: datetime, timezone: str) -> tuple[Schedule, datetime]:
    """The schedule that is meant, and its first time, UTC.

    `timezone` holds where none is named. Raises BadSchedule, also for what is past or more than five years ahead.
    """
    at, repeats, fields = (text.strip() for text in (spoken.at, spoken.every, spoken.cron))
    place = spoken.timezone.strip() or timezone
    where = zone(place)
    if fields and (at or repeats):
        raise BadSchedule("Give `cron` alone, or `every` with or without `at` as its first time.")
    if fields:
        schedule: Schedule = schedules.cron(fields, place)
        first = coming(schedule, now)
        if first is None or first - now > LONGEST:
            raise BadSchedule("That cron expression does not come within five years.")
        return schedule, first
    if not at and not repeats:
        raise BadSchedule(f"Say when: `at`, `every` or `cron`; {_HOW}.")
    first = moment(at, now, where) if at else None
    if not repeats:
        assert first is not None
        return At(time=first), first.astimezone(UTC)
    schedule = _every(repeats)
    return schedule, first.astimezone(UTC) if first is not None else coming(schedule, _whole(now)) or now


def _every(text: str) -> Every:
    seconds = float(text) if text.isascii() and text.isdigit() and len(text) < _MOST_CHARS else _length(text)
    if seconds is None:
        raise BadSchedule("`every` takes how long between two times, e.g. 90 min, 2h or 1 day.")
    return schedules.every(int(min(seconds, LONGEST.total_seconds() + 1)))


def moment(text: str, now: datetime, where: ZoneInfo) -> datetime:
    """The time that is meant, in whole seconds, as clocks there show it. Raises BadSchedule, also for what is past."""
    first = _relative(text, now, where) or _time_of_day(text, now, where) or _iso(text, where)
    if first is None:
        raise BadSchedule(f"That is no time that is understood here; {_HOW}.")
    if first <= now:
        raise BadSchedule(f"That is past: it is now {now.astimezone(where):%Y-%m-%dT%H:%M} ({where.key}).")
    if first - now > LONGEST:
        raise BadSchedule("That is more than five years ahead, which is too far.")
    return first


def _relative(text: str, now: datetime, where: ZoneInfo) -> datetime | None:
    seconds = _length(re.sub(r"^in\s+", "", text.lower()))
    if seconds is None:
        return None
    return _there(_whole(now + timedelta(seconds=min(seconds, 2 * LONGEST.total_seconds()))), where)


def _time_of_day(text: str, now: datetime, where: ZoneInfo) -> datetime | None:
    match = _LOCAL.fullmatch(text.lower())
    if match is None:
        return None
    try:
        wanted = time(int(match[2]), int(match[3]))
    except ValueError:
        raise BadSchedule(f"There is no such time of day; {_HOW}.") from None
    today = now.astimezone(where).date()
    first = _local(datetime.combine(today, wanted), where)
    if match[1] == "tomorrow" or (match[1] is None and first <= now):
        return _local(datetime.combine(today + timedelta(days=1), wanted), where)
    return first


def _iso(text: str, where: ZoneInfo) -> datetime | None:
    """ISO 8601 with a time of day: a date alone does not say when."""
    if len(text) > _MOST_CHARS or not re.match(r"[\dW-]+[T ]\d", text):
        return None
    try:
        read = _whole(datetime.fromisoformat(text))
        read.astimezone(UTC)
        return read if read.tzinfo is not None else _local(read, where)
    except (ValueError, OverflowError):  # also where the calendar ends: years 1 and 9999
        return None


def _local(naive: datetime, where: ZoneInfo) -> datetime:
    return _there(naive.replace(tzinfo=where).astimezone(UTC), where)  # through UTC, or it might not exist


def _there(moment: datetime, where: ZoneInfo) -> datetime:
    """As clocks there show it, with the offset of that day: what is written down reads the same for ever."""
    seen = moment.astimezone(where)
    return seen.replace(tzinfo=timezone(seen.utcoffset() or timedelta()))


def _whole(moment: datetime) -> datetime:
    """The next whole second."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)


def _length(text: str) -> float | None:
    """How many seconds `2h30m`, `90 min` or `1 day and 3 hours` are; None for what is none of that."""
    text = text.lower()
    if not text or len(text) > _MOST_CHARS:
        return None
    total, end = 0.0, 0
    while end < len(text):
        match = _PIECE.match(text, end)
        if match is None:
            return None
        total, end = total + float(match[1]) * _UNITS[match[2][0]], match.end()
    return total
