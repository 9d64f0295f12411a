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

LEAST_S: Final = 60
"""Between two times. Cron cannot be written closer."""
LONGEST: Final = timedelta(days=5 * 365 + 1)
"""How far ahead a first time may be: five years."""
MOST_MISSED: Final = 1_000
"""How many times that passed are counted; more are this many."""
_MOST_CHARS: Final = 100
"""Of the fields of cron, together."""
_FIELDS: Final = 5


class BadSchedule(ValueError):
    """No schedule. The message is a sentence that says what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Once."""

    time: datetime
    """Aware, in whole seconds, as its writer saw the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Again and again, so long after each other."""

    seconds: int
    """At least `LEAST_S`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """Whenever the local time fits. Made by `cron`, which checks it."""

    fields: str
    """Minute, hour, day of the month, month, day of the week; one space between them."""
    timezone: str
    """IANA name."""


Schedule = At | Every | Cron


class Passed(NamedTuple):
    """All times of a schedule that have come, as one."""

    last: datetime
    """The newest of them, UTC."""
    missed: int
    """How many came before it, at most `MOST_MISSED`."""
    next: datetime | None
    """The first that has not come yet, UTC. None: there is none."""


def cron(fields: str, timezone: str) -> Cron:
    """A schedule of cron's. Raises BadSchedule."""
    written = " ".join(fields.upper().split())
    zone(timezone)
    if len(written) > _MOST_CHARS or written.count(" ") != _FIELDS - 1:
        raise BadSchedule(
            "Cron takes five fields: minute, hour, day of the month, month and day of the week, "
            "e.g. `0 9 * * 1-5` for 9:00 from Monday to Friday."
        )
    try:
        CronSim(written, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise BadSchedule(f"{error} in that cron expression; e.g. `0 9 * * 1-5` or `*/15 8-18 * * *`.") from None
    return Cron(fields=written, timezone=timezone)


def every(seconds: int) -> Every:
    """A schedule that repeats. Raises BadSchedule if that is too often, or hardly ever."""
    if seconds < LEAST_S:
        raise BadSchedule("Something can repeat once a minute at most; write e.g. every `5m`.")
    if seconds > LONGEST.total_seconds():
        raise BadSchedule("Something must repeat within five years; write e.g. every `30d`.")
    return Every(seconds=seconds)


def zone(name: str) -> ZoneInfo:
    """A time zone. Raises BadSchedule for a name that is none; no name is taken for a path."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also a folder of zones, and what cannot be a key
        raise BadSchedule("No such time zone; write an IANA name, e.g. Europe/Zurich or UTC.") from None


def parse(text: str) -> Schedule:
    """Read what `written` wrote. Raises BadSchedule for anything else."""
    kind, _, rest = text.partition(" ")
    try:
        match kind:
            case "at":
                time = datetime.fromisoformat(rest)
                if time.tzinfo is not None and not time.microsecond:
                    return At(time=time)
            case "every":
                return every(int(rest))
            case "cron":
                fields, _, timezone = rest.rpartition(" ")
                return cron(fields, timezone)
    except BadSchedule:
        raise
    except ValueError:
        pass
    raise BadSchedule("A schedule is `at TIME`, `every SECONDS` or `cron FIELDS TIMEZONE`.")


def written(schedule: Schedule) -> str:
    """The canonical text."""
    match schedule:
        case At():
            return f"at {schedule.time.isoformat(timespec='seconds')}"
        case Every():
            return f"every {schedule.seconds}"
        case Cron():
            return f"cron {schedule.fields} {schedule.timezone}"


def told(schedule: Schedule) -> str:
    """In a few words, for people."""
    match schedule:
        case At():
            return "once"
        case Every():
            return f"every {lasting(schedule.seconds)}"
        case Cron():
            return written(schedule)


def again(text: str) -> str:
    """The same of what `written` wrote; the text itself if it cannot be read any more."""
    try:
        return told(parse(text))
    except BadSchedule:  # e.g. a time zone that is gone
        return text


def lasting(seconds: int) -> str:
    """How long that is, e.g. `1d 2h`."""
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def coming(schedule: Schedule, after: datetime) -> datetime | None:
    """The first time later than `after`, UTC; None: there is none (any more).

    What repeats every so many seconds is counted from `after`: hand in a time at which it came.
    """
    match schedule:
        case At():
            return schedule.time.astimezone(UTC) if schedule.time > after else None
        case Every():
            return after.astimezone(UTC) + timedelta(seconds=schedule.seconds)
        case Cron():
            return next(_times(schedule, after), None)


def passed(schedule: Schedule, due: datetime, now: datetime) -> Passed:
    """Take all times from `due` up to `now` as one; `due` itself has come, whatever the clock says by now.

    The work is bounded however long ago `due` is.
    """
    due, now = due.astimezone(UTC), max(now, due).astimezone(UTC)
    match schedule:
        case At():
            return Passed(last=due, missed=0, next=None)
        case Every():
            step = timedelta(seconds=schedule.seconds)
            count = (now - due) // step
            last = due + count * step
            return Passed(last=last, missed=min(count, MOST_MISSED), next=last + step)
        case Cron():
            return _passed(schedule, due, now)


def _passed(schedule: Cron, due: datetime, now: datetime) -> Passed:
    last, missed = due, 0
    for time in _times(schedule, due):
        if time > now:
            return Passed(last=last, missed=missed, next=time)
        if missed == MOST_MISSED:
            return Passed(last=_last(schedule, time, now), missed=missed, next=coming(schedule, now))
        last, missed = time, missed + 1
    return Passed(last=last, missed=missed, next=None)


def _last(schedule: Cron, came: datetime, now: datetime) -> datetime:
    """The newest time up to `now`, of which `came` is one: by halves, because in between there may be any number."""
    over = now
    while over - came > timedelta(seconds=1):
        middle = came + (over - came) / 2
        time = coming(schedule, middle)
        if time is not None and time <= now:
            came = time
        else:
            over = middle
    return came


def _times(schedule: Cron, after: datetime) -> Iterator[datetime]:
    """Its times later than `after`, UTC, each later than the one before. Ends if there is none for 50 years."""
    for local in CronSim(schedule.fields, after.astimezone(zone(schedule.timezone))):
        time = local.astimezone(UTC)
        if time > after:  # in an hour that comes twice it begins with the first
            after = time
            yield time
