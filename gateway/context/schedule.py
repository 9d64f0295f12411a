"""When something comes, and comes again: schedules, and how they are written. Pure.

A schedule has one canonical text, which the log keeps:

    at 2026-11-22T09:00:00+01:00        once
    every 3600                          so many seconds after each other, from a first time on
    cron 0 9 * * 1-5 Europe/Zurich      five fields, in the local time of a place

The fields of cron and what becomes of them when clocks change are Debian's (cron(8), crontab(5)): what names its hour
and minute runs once a day also then: a time that does not exist runs as soon as the gap is over, one that comes twice
runs the first time. What runs every so many minutes or hours goes by time that has really passed.

When something is to come, as people and models write it. Pure.

Local times are read as RFC 5545 (3.3.5) reads them: one that comes twice is the first, one that does not exist is
taken by the clock as it was before the gap.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MIN_INTERVAL_S: Final = 60
"""Between two times. Cron cannot be written closer."""
MAX_AHEAD: Final = timedelta(days=5 * 365 + 1)
"""How far ahead a first time may be: five years."""
MAX_MISSED: Final = 1_000
"""How many times that passed are counted; more are this many."""
_MAX_CRON_CHARS: Final = 100
"""Of the fields of cron, together."""
_CRON_FIELDS: Final = 5


class ScheduleError(ValueError):
    """No schedule. The message is a sentence that says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnceSchedule:
    """Once."""

    time: datetime
    """Aware, in whole seconds, as its writer saw the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSchedule:
    """Again and again, so long after each other."""

    seconds: int
    """At least `MIN_INTERVAL_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """Whenever the local time fits. Made by `parse_cron`, which checks it."""

    fields: str
    """Minute, hour, day of the month, month, day of the week; one space between them."""
    timezone: str
    """IANA name."""


Schedule = OnceSchedule | IntervalSchedule | CronSchedule


class DueTimes(NamedTuple):
    """All times of a schedule that have come, as one."""

    last: datetime
    """The newest of them, UTC."""
    missed: int
    """How many came before it, at most `MAX_MISSED`."""
    next: datetime | None
    """The first that has not come yet, UTC. None: there is none."""


def parse_cron(fields: str, timezone: str) -> CronSchedule:
    """A schedule of cron's. Raises BadSchedule."""
    written = " ".join(fields.upper().split())
    parse_timezone(timezone)
    if len(written) > _MAX_CRON_CHARS or written.count(" ") != _CRON_FIELDS - 1:
        raise ScheduleError(
            "Cron takes five fields: minute, hour, day of the month, month and day of the week, "
            "e.g. `0 9 * * 1-5` for 9:00 from Monday to Friday."
        )
    try:
        CronSim(written, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ScheduleError(f"{error} in that cron expression; e.g. `0 9 * * 1-5` or `*/15 8-18 * * *`.") from None
    return CronSchedule(fields=written, timezone=timezone)


def build_interval(seconds: int) -> IntervalSchedule:
    """A schedule that repeats. Raises BadSchedule if that is too often, or hardly ever."""
    if seconds < MIN_INTERVAL_S:
        raise ScheduleError("Something can repeat once a minute at most; write e.g. every `5m`.")
    if seconds > MAX_AHEAD.total_seconds():
        raise ScheduleError("Something must repeat within five years; write e.g. every `30d`.")
    return IntervalSchedule(seconds=seconds)


def parse_timezone(name: str) -> ZoneInfo:
    """A time zone. Raises BadSchedule for a name that is none; no name is taken for a path."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also a folder of zones, and what cannot be a key
        raise ScheduleError("No such time zone; write an IANA name, e.g. Europe/Zurich or UTC.") from None


def parse_schedule(text: str) -> Schedule:
    """Read what `format_schedule` wrote. Raises BadSchedule for anything else."""
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
    """The canonical text."""
    match schedule:
        case OnceSchedule():
            return f"at {schedule.time.isoformat(timespec='seconds')}"
        case IntervalSchedule():
            return f"every {schedule.seconds}"
        case CronSchedule():
            return f"cron {schedule.fields} {schedule.timezone}"


def describe_schedule(schedule: Schedule) -> str:
    """In a few words, for people."""
    match schedule:
        case OnceSchedule():
            return "once"
        case IntervalSchedule():
            return f"every {format_duration(schedule.seconds)}"
        case CronSchedule():
            return format_schedule(schedule)


def describe_schedule_text(text: str) -> str:
    """The same of what `format_schedule` wrote; the text itself if it cannot be read any more."""
    try:
        return describe_schedule(parse_schedule(text))
    except ScheduleError:  # e.g. a time zone that is gone
        return text


def format_duration(seconds: int) -> str:
    """How long that is, e.g. `1d 2h`."""
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def next_time(schedule: Schedule, after: datetime) -> datetime | None:
    """The first time later than `after`, UTC; None: there is none (any more).

    What repeats every so many seconds is counted from `after`: hand in a time at which it came.
    """
    match schedule:
        case OnceSchedule():
            return schedule.time.astimezone(UTC) if schedule.time > after else None
        case IntervalSchedule():
            return after.astimezone(UTC) + timedelta(seconds=schedule.seconds)
        case CronSchedule():
            return next(_cron_times(schedule, after), None)


def collapse_due_times(schedule: Schedule, due: datetime, now: datetime) -> DueTimes:
    """Take all times from `due` up to `now` as one; `due` itself has come, whatever the clock says by now.

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
            return DueTimes(last=_last_cron_time(schedule, moment, now), missed=missed, next=next_time(schedule, now))
        last, missed = moment, missed + 1
    return DueTimes(last=last, missed=missed, next=None)


def _last_cron_time(schedule: CronSchedule, came: datetime, now: datetime) -> datetime:
    """The newest moment up to `now`, of which `came` is one: by halves, because in between there may be any number."""
    over = now
    while over - came > timedelta(seconds=1):
        middle = came + (over - came) / 2
        moment = next_time(schedule, middle)
        if moment is not None and moment <= now:
            came = moment
        else:
            over = middle
    return came


def _cron_times(schedule: CronSchedule, after: datetime) -> Iterator[datetime]:
    """Its times later than `after`, UTC, each later than the one before. Ends if there is none for 50 years."""
    for local in CronSim(schedule.fields, after.astimezone(parse_timezone(schedule.timezone))):
        time = local.astimezone(UTC)
        if time > after:  # in an hour that comes twice it begins with the first
            after = time
            yield time


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
    """Five fields, as `gateway.context.schedule` reads them."""
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
        schedule: Schedule = parse_cron(fields, place)
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
    return build_interval(int(min(seconds, MAX_AHEAD.total_seconds() + 1)))


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
