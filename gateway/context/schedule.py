"""Schedules: single, repeating and cron times, their text form, and the phrases in which people
write them. Pure.

A schedule has one canonical text, which the log keeps:

    at 2026-11-22T09:00:00+01:00        once
    every 3600                          repeating with so many seconds between, from a first time on
    cron 0 9 * * 1-5 Europe/Zurich      five fields, in the local time of a place

The cron fields and their behaviour at clock changes are Debian's (cron(8), crontab(5)): an entry
with a fixed hour and minute runs once a day even then: a time that does not exist runs as soon as
the gap is over, one that comes twice runs the first time. An entry for every so many minutes or
hours follows the time that has really passed.

Local times in phrases follow RFC 5545 (3.3.5): one that comes twice is the first, one that does not
exist is taken with the offset before the gap.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MIN_INTERVAL_S: Final = 60
"""Shortest interval; cron fields cannot express a shorter one."""
MAX_AHEAD: Final = timedelta(days=5 * 365 + 1)
"""Longest time ahead of a first time: five years."""
MAX_MISSED: Final = 1_000
"""Largest count of missed times; more count as this many."""
_MAX_CRON_CHARS: Final = 100
"""Length of the five cron fields together."""
_CRON_FIELDS: Final = 5

_MAX_SPOKEN_CHARS: Final = 100
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNIT: Final = r"(s|m|h|d|w|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?)"
_DURATION_PIECE: Final = re.compile(rf"(\d+(?:\.\d+)?)\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?")
_ONE: Final = re.compile(r"\b(half an?|an?|one) +(?=[a-z])")
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = re.compile(
    r"\b(?:(?:on|this|next) +)?(today|tonight|tomorrow|\d{4}-\d{2}-\d{2}"
    r"|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?)\b,?"
)
_CLOCK: Final = re.compile(
    r"(at +)?(\d{1,2})(?::(\d{2}))? *(am|pm|a\.m\.|p\.m\.)?"
    r"|(?:(?:at|in the|this) +)?(noon|midnight|morning|afternoon|evening)"
)
_NAMED_HOURS: Final = {
    "midnight": 0,
    "morning": 9,
    "noon": 12,
    "afternoon": 15,
    "evening": 18,
    "tonight": 20,
}
_DEFAULT_HOUR: Final = 9
"""The hour of a day that is named alone."""
_CRON_MACROS: Final = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
}
_EXAMPLES: Final = (
    "write e.g. 2026-11-22T09:00, 18:30, 9am, tomorrow 9:00, monday, noon or in 2h30m"
)


class ScheduleError(ValueError):
    """The text is no valid schedule. The message is a sentence that says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceSchedule:
    """Schedule with a single time."""

    time: datetime
    """Aware, in whole seconds, with the offset of the writer's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSchedule:
    """Schedule that repeats at a fixed interval."""

    seconds: int
    """At least `MIN_INTERVAL_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """Schedule of all local times that match. Made by `parse_cron`, which checks it."""

    fields: str
    """Minute, hour, day of the month, month, day of the week; one space between them."""
    timezone: str
    """IANA name."""


Schedule = OnceSchedule | IntervalSchedule | CronSchedule


class DueTimes(NamedTuple):
    """All times of a schedule that have passed, combined."""

    last: datetime
    """The newest of them, UTC."""
    missed: int
    """Number of times before it, at most `MAX_MISSED`."""
    next: datetime | None
    """The first time still to come, UTC. None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTime:
    """Time phrases as a person or a model wrote them. Empty: not given."""

    at: str = ""
    """A time: ISO 8601 with or without a time zone, a day, a time of day or both, or a delay from
    now."""
    every: str = ""
    """Interval; the first time is `at`, or one interval from now."""
    cron: str = ""
    """Five fields, as `parse_cron` takes them."""
    timezone: str = ""
    """Time zone of `at` or `cron`. Empty: the default one."""


def parse_cron(fields: str, timezone: str) -> CronSchedule:
    """Parse cron fields. Raises ScheduleError."""
    written = " ".join(fields.upper().split())
    written = _CRON_MACROS.get(written, written)
    parse_timezone(timezone)
    if len(written) > _MAX_CRON_CHARS or written.count(" ") != _CRON_FIELDS - 1:
        raise ScheduleError(
            "Cron takes five fields: minute, hour, day of the month, month and day of the week, "
            "e.g. `0 9 * * 1-5` for 9:00 from Monday to Friday."
        )
    try:
        CronSim(written, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ScheduleError(
            f"{error} in that cron expression; e.g. `0 9 * * 1-5` or `*/15 8-18 * * *`."
        ) from None
    return CronSchedule(fields=written, timezone=timezone)


def build_interval(seconds: int) -> IntervalSchedule:
    """Return a repeating schedule. Raises ScheduleError if the interval is too short or longer than
    five years.
    """
    if seconds < MIN_INTERVAL_S:
        raise ScheduleError("Something can repeat once a minute at most; write e.g. every `5m`.")
    if seconds > MAX_AHEAD.total_seconds():
        raise ScheduleError("Something must repeat within five years; write e.g. every `30d`.")
    return IntervalSchedule(seconds=seconds)


def parse_timezone(name: str) -> ZoneInfo:
    """Return a time zone. Raises ScheduleError for an unknown name; a name is never taken as a
    path.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also a folder of zones, and what cannot be a key
        raise ScheduleError(
            "No such time zone; write an IANA name, e.g. Europe/Zurich or UTC."
        ) from None


def parse_schedule(text: str) -> Schedule:
    """Parse the canonical text of `format_schedule`. Raises ScheduleError for anything else."""
    kind, _, rest = text.partition(" ")
    try:
        match kind:
            case "at":
                time = datetime.fromisoformat(rest)
                if time.tzinfo is not None and not time.microsecond:
                    return OnceSchedule(time=time)
            case "every":
                return build_interval(int(rest))
            case "cron":
                fields, _, timezone = rest.rpartition(" ")
                return parse_cron(fields, timezone)
    except ScheduleError:
        raise
    except ValueError:
        pass
    raise ScheduleError("A schedule is `at TIME`, `every SECONDS` or `cron FIELDS TIMEZONE`.")


def format_schedule(schedule: Schedule) -> str:
    """Return the canonical text."""
    match schedule:
        case OnceSchedule():
            return f"at {schedule.time.isoformat(timespec='seconds')}"
        case IntervalSchedule():
            return f"every {schedule.seconds}"
        case CronSchedule():
            return f"cron {schedule.fields} {schedule.timezone}"


def describe_schedule(schedule: Schedule) -> str:
    """Return a few words for people."""
    match schedule:
        case OnceSchedule():
            return "once"
        case IntervalSchedule():
            return f"every {format_duration(schedule.seconds)}"
        case CronSchedule():
            return format_schedule(schedule)


def describe_schedule_text(text: str) -> str:
    """Describe a canonical text; return the text itself if it cannot be parsed any more."""
    try:
        return describe_schedule(parse_schedule(text))
    except ScheduleError:  # e.g. a time zone that exists no more
        return text


def format_duration(seconds: int) -> str:
    """Format a duration, e.g. `1d 2h`."""
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def next_time(schedule: Schedule, after: datetime) -> datetime | None:
    """Return the first time later than `after`, UTC; None: there is none.

    An interval is counted from `after`: pass one of its own times.
    """
    match schedule:
        case OnceSchedule():
            return schedule.time.astimezone(UTC) if schedule.time > after else None
        case IntervalSchedule():
            return after.astimezone(UTC) + timedelta(seconds=schedule.seconds)
        case CronSchedule():
            return next(_cron_times(schedule, after), None)


def collapse_due_times(schedule: Schedule, due: datetime, now: datetime) -> DueTimes:
    """Combine all times from `due` up to `now`. `due` itself has passed, whatever the clock says by
    now.

    The work is bounded however long ago `due` is.
    """
    due, now = due.astimezone(UTC), max(now, due).astimezone(UTC)
    match schedule:
        case OnceSchedule():
            return DueTimes(last=due, missed=0, next=None)
        case IntervalSchedule():
            step = timedelta(seconds=schedule.seconds)
            count = (now - due) // step
            last = due + count * step
            return DueTimes(last=last, missed=min(count, MAX_MISSED), next=last + step)
        case CronSchedule():
            return _collapse_cron_times(schedule, due, now)


def _collapse_cron_times(schedule: CronSchedule, due: datetime, now: datetime) -> DueTimes:
    last, missed = due, 0
    for moment in _cron_times(schedule, due):
        if moment > now:
            return DueTimes(last=last, missed=missed, next=moment)
        if missed == MAX_MISSED:
            end = (now + timedelta(minutes=1)).astimezone(parse_timezone(schedule.timezone))
            before = CronSim(schedule.fields, end, reverse=True)
            last = next(time for local in before if (time := local.astimezone(UTC)) <= now)
            return DueTimes(last=last, missed=missed, next=next_time(schedule, now))
        last, missed = moment, missed + 1
    return DueTimes(last=last, missed=missed, next=None)


def _cron_times(schedule: CronSchedule, after: datetime) -> Iterator[datetime]:
    """Yield the times later than `after`, UTC, in order. Ends if there is none for 50 years."""
    for local in CronSim(schedule.fields, after.astimezone(parse_timezone(schedule.timezone))):
        time = local.astimezone(UTC)
        if time > after:  # in an hour that comes twice CronSim begins with the first one
            after = time
            yield time


def parse_spoken_time(
    spoken: SpokenTime, now: datetime, timezone: str
) -> tuple[Schedule, datetime]:
    """Return the schedule that is meant, and its first time, UTC.

    `timezone`: used where the phrases name none. Raises ScheduleError, also for times that are past
    or more than five years ahead.
    """
    at, repeats, fields = (text.strip() for text in (spoken.at, spoken.every, spoken.cron))
    place = spoken.timezone.strip() or timezone
    zone = parse_timezone(place)
    if fields and (at or repeats):
        raise ScheduleError("Give `cron` alone, or `every` with or without `at` as its first time.")
    if fields:
        schedule: Schedule = parse_cron(fields, place)
        first = next_time(schedule, now)
        if first is None or first - now > MAX_AHEAD:
            raise ScheduleError("That cron expression does not come within five years.")
        return schedule, first
    if not at and not repeats:
        raise ScheduleError(f"Say when: `at`, `every` or `cron`; {_EXAMPLES}.")
    first = parse_moment(at, now, zone) if at else None
    if not repeats:
        assert first is not None
        return OnceSchedule(time=first), first.astimezone(UTC)
    schedule = _parse_interval(repeats)
    return schedule, first.astimezone(UTC) if first is not None else next_time(
        schedule, _ceil_to_second(now)
    ) or now


def _parse_interval(text: str) -> IntervalSchedule:
    seconds = (
        float(text)
        if text.isascii() and text.isdigit() and len(text) < _MAX_SPOKEN_CHARS
        else _parse_duration(text)
    )
    if seconds is None:
        raise ScheduleError("`every` takes how long between two times, e.g. 90 min, 2h or 1 day.")
    return build_interval(int(min(seconds, MAX_AHEAD.total_seconds() + 1)))


def parse_moment(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the time that is meant, in whole seconds, in that time zone.

    Raises ScheduleError, also for a past time.
    """
    first = (
        _parse_relative(text, now, zone)
        or _parse_iso(text, zone)
        or _parse_day_and_time(text, now, zone)
    )
    if first is None:
        raise ScheduleError(f"That is no time that is understood here; {_EXAMPLES}.")
    if first <= now:
        raise ScheduleError(
            f"That is past: it is now {now.astimezone(zone):%Y-%m-%dT%H:%M} ({zone.key})."
        )
    if first - now > MAX_AHEAD:
        raise ScheduleError("That is more than five years ahead, which is too far.")
    return first


def parse_past_moment(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the time since which something is asked for: so long ago, or the last such day or time
    of day.

    Raises ScheduleError, also for a future time.
    """
    written = " ".join(text.lower().split()).removesuffix(" ago")
    seconds = _parse_duration(written)
    if seconds is not None:
        return now - timedelta(seconds=min(seconds, MAX_AHEAD.total_seconds()))
    today = now.astimezone(zone).date()
    written = written.replace("yesterday", (today - timedelta(days=1)).isoformat())
    day = _DAY.search(written)
    if day is not None and day[0] == written:
        written += " midnight"
    found = _parse_iso(text.strip(), zone) or _parse_day_and_time(written, now, zone)
    if found is not None and found > now:  # the next such time of day, or weekday, was taken
        found -= timedelta(days=1 if day is None else 7 * (day[1][:3] in _WEEKDAYS))
    if found is not None and found <= now:
        return found.astimezone(UTC)
    raise ScheduleError("Write since when: 2h, 3d, 08:00, yesterday, or 2026-03-04T07:00.")


def _parse_relative(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    seconds = _parse_duration(re.sub(r"^in\s+", "", text.lower()))
    if seconds is None:
        return None
    return _with_fixed_offset(
        _ceil_to_second(now + timedelta(seconds=min(seconds, 2 * MAX_AHEAD.total_seconds()))), zone
    )


def _parse_day_and_time(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Parse a day (`monday`, at 9:00), a time of day (`9am`, the next one) or both (`tomorrow at
    noon`, `9:30 on fri`).

    A bare number is no time.
    """
    if len(text) > _MAX_SPOKEN_CHARS:
        return None
    written = " ".join(text.lower().split())
    day = _DAY.search(written)
    rest = (
        written
        if day is None
        else " ".join(f"{written[: day.start()]} {written[day.end() :]}".split())
    )
    clock = _CLOCK.fullmatch(rest)
    if (rest and clock is None) or (day is None and (clock is None or clock[0].isdecimal())):
        return None
    named = "tonight" if day is not None and day[1] == "tonight" else ""
    try:
        wanted = _time_of_day(clock, named)
        today = now.astimezone(zone).date()
        date = today if day is None else _resolve_day(day[1], today)
    except ValueError:
        raise ScheduleError(f"There is no such day or time of day; {_EXAMPLES}.") from None
    first = _to_local(datetime.combine(date, wanted), zone)
    if first <= now and day is None:
        return _to_local(datetime.combine(date + timedelta(days=1), wanted), zone)
    is_next = (
        day is not None and day[1][:3] in _WEEKDAYS and (first <= now or day[0].startswith("next"))
    )
    if is_next and date == today:
        return _to_local(datetime.combine(date + timedelta(days=7), wanted), zone)
    return first


def _time_of_day(clock: re.Match[str] | None, named: str) -> time:
    """Return the time of a match of `_CLOCK`. None: the hour of the `named` part of a day. Raises
    ValueError.
    """
    if clock is None or clock[5]:
        return time(_NAMED_HOURS.get(named if clock is None else clock[5], _DEFAULT_HOUR))
    hour, half = int(clock[2]), (clock[4] or "").replace(".", "")
    if half:
        if not 1 <= hour <= 12:  # noqa: PLR2004 - of a clock face
            raise ValueError
        hour = hour % 12 + 12 * (half == "pm")
    elif named and hour < 12:  # noqa: PLR2004 - as above
        hour += 12
    return time(hour, int(clock[3] or 0))


def _resolve_day(word: str, today: date) -> date:
    """Return the day that `_DAY` has found; of a weekday the next one, today included. Raises
    ValueError.
    """
    if word[:3] in _WEEKDAYS:
        return today + timedelta(days=(_WEEKDAYS.index(word[:3]) - today.weekday()) % 7)
    if word[0].isdigit():
        return date.fromisoformat(word)
    return today + timedelta(days=word == "tomorrow")


def _parse_iso(text: str, zone: ZoneInfo) -> datetime | None:
    """Parse ISO 8601 with a time of day."""
    if len(text) > _MAX_SPOKEN_CHARS or not re.match(r"[\dW-]+[T ]\d", text):
        return None
    try:
        moment = _ceil_to_second(datetime.fromisoformat(text))
        moment.astimezone(UTC)
        return moment if moment.tzinfo is not None else _to_local(moment, zone)
    except (ValueError, OverflowError):  # also where the calendar ends: years 1 and 9999
        return None


def _to_local(naive: datetime, zone: ZoneInfo) -> datetime:
    # Through UTC, because the local time might not exist.
    return _with_fixed_offset(naive.replace(tzinfo=zone).astimezone(UTC), zone)


def _with_fixed_offset(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the time in that zone with the fixed offset of that day, so that its text never
    changes its meaning.
    """
    local = moment.astimezone(zone)
    return local.replace(tzinfo=timezone(local.utcoffset() or timedelta()))


def _ceil_to_second(moment: datetime) -> datetime:
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)


def _parse_duration(text: str) -> float | None:
    """Return the seconds of e.g. `2h30m`, `90 min`, `half an hour` or `1 day and 3 hours`; None: it
    is no duration.
    """
    if not text or len(text) > _MAX_SPOKEN_CHARS:
        return None
    text = _ONE.sub(lambda match: "0.5 " if match[1].startswith("half") else "1 ", text.lower())
    total, end = 0.0, 0
    while end < len(text):
        match = _DURATION_PIECE.match(text, end)
        if match is None:
            return None
        total, end = total + float(match[1]) * _UNITS[match[2][0]], match.end()
    return total
