"""When something comes, and comes again: schedules, and how they are written. Pure.

A schedule has one canonical text, which the log keeps:

    at 2026-11-22T09:00:00+01:00        once
    every 3600                          so many seconds after each other, from a first time on
    cron 0 9 * * 1-5 Europe/Zurich      five fields, in the local time of a place

The fields of cron and what becomes of them when clocks change are Debian's (cron(8), crontab(5)): what names its hour
and minute runs once a day also then: a time that does not exist runs as soon as the gap is over, one that comes twice
runs the first time. What runs every so many minutes or hours goes by time that has really passed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
    for time in _cron_times(schedule, due):
        if time > now:
            return DueTimes(last=last, missed=missed, next=time)
        if missed == MAX_MISSED:
            return DueTimes(last=_last_cron_time(schedule, time, now), missed=missed, next=next_time(schedule, now))
        last, missed = time, missed + 1
    return DueTimes(last=last, missed=missed, next=None)


def _last_cron_time(schedule: CronSchedule, came: datetime, now: datetime) -> datetime:
    """The newest time up to `now`, of which `came` is one: by halves, because in between there may be any number."""
    over = now
    while over - came > timedelta(seconds=1):
        middle = came + (over - came) / 2
        time = next_time(schedule, middle)
        if time is not None and time <= now:
            came = time
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
