"""Schedules: single, repeating and cron times, and their text form. Pure.

A schedule has one canonical text, which the log keeps:

    at 2026-11-22T09:00:00+01:00        once
    every 3600                          repeating with so many seconds between, from a first time on
    every 172800 09:00:00 Europe/Zurich the same in whole days, always at that local time
    cron 0 9 * * 1-5 Europe/Zurich      five fields, in the local time of a place

The cron fields and their behaviour at clock changes are Debian's (cron(8), crontab(5)): an entry
with a fixed hour and minute runs once a day even then: a time that does not exist runs as soon as
the gap is over, one that comes twice runs the first time. An entry for every so many minutes or
hours follows the time that has really passed. Days with a local time keep it, as in
`gateway.core.moments`.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Final, NamedTuple

from cronsim import CronSim, CronSimError

from gateway.core.frozen import frozen
from gateway.core.moments import (
    MAX_AHEAD,
    TIME_EXAMPLES,
    WEEKDAY,
    WEEKDAYS,
    InvalidTime,
    ceil_to_second,
    parse_duration,
    parse_moment,
    parse_timezone,
    to_english,
)

MIN_INTERVAL_S: Final = 60
"""Shortest interval; cron fields cannot express a shorter one."""
DAY_S: Final = 86_400
_EACH: Final = re.compile(
    rf"({WEEKDAY})|(?:noon|midnight|morning|afternoon|evening)\b|\d{{1,2}}(?::\d\d| ?[ap]m)\b"
)
"""A weekday, or a time of day, that comes again."""
_WEEKDAYS: Final = re.compile(rf"(?:every )?({WEEKDAY}(?:(?:, and|,| and) ?{WEEKDAY})+)")
"""Several weekdays, e.g. `monday, tuesday and friday`."""
_MONTHLY: Final = re.compile(
    r"(?:(?:every|on|the|am|el) )*(?:(\d{1,2}|first|second|third|fourth|last)(?:st|nd|rd|th|\.)?"
    rf" (?:({WEEKDAY}|days?) )?of |1 )?(month|year)\b"
)
"""A day of each month, or the day on which something began, each month or year."""
_ORDINALS: Final = {"first": "1", "second": "2", "third": "3", "fourth": "4", "last": "L"}
_REST_OF_TIME: Final = re.compile(
    r"(?:and|or|oder|o|,|at \d|in the (?:morning|afternoon|evening|night))(?!\w).*"
    r"|.*\b(?:and|or|oder|o|after|pasado|every|other|second|next|last|at|on|in)"
)
"""What is no text of its own: the rest of a time that is understood in part alone."""
_MAX_SPOKEN_WORDS: Final = 10
"""Length of the time in a line of `split_reminder`."""
_OPENING: Final = re.compile(
    r"^\s*(?:(?:me|us|to|that|about|of|mich|uns|nos|que|dass)\s+)+|^[\s:,-]+", re.IGNORECASE
)
"""What stands in front of what somebody is to be reminded of."""
MAX_MISSED: Final = 1_000
"""Largest count of missed times; more count as this many."""
_MAX_CRON_CHARS: Final = 100
"""Length of the five cron fields together."""
_CRON_FIELDS: Final = 5
_CRON_MACROS: Final = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
}


@frozen
class OnceSchedule:
    """Schedule with a single time."""

    time: datetime
    """Aware, in whole seconds, with the offset of the writer's place."""


@frozen
class IntervalSchedule:
    """Schedule that repeats at a fixed interval, or, with a local time, after a number of days."""

    seconds: int
    """At least `MIN_INTERVAL_S`; with `local` a number of days, whose length the clock may
    change."""
    local: time | None = None
    """Time of the day, in whole seconds. None: all that counts is the time that passes."""
    timezone: str = ""
    """IANA name. Empty: without `local`."""

    def after(self, own: datetime, count: int = 1) -> datetime:
        """Return the time so many intervals after one of its own, UTC."""
        step = timedelta(seconds=count * self.seconds)
        if self.local is None:
            return own.astimezone(UTC) + step
        zone = parse_timezone(self.timezone)
        day = own.astimezone(zone).date() + step
        return datetime.combine(day, self.local, zone).astimezone(UTC)


@frozen
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


@frozen
class SpokenTime:
    """Time phrases as a person or a model wrote them. Empty: not given."""

    at: str = ""
    """A time: ISO 8601 with or without a time zone, a day, a time of day or both, or a delay from
    now."""
    every: str = ""
    """Interval, with or without its first time, e.g. `2 days at 9:00`, `other monday` or `evening`;
    without one that is `at`, or one interval from now. Days keep the local time."""
    cron: str = ""
    """Five fields, as `parse_cron` takes them."""
    timezone: str = ""
    """Time zone of `at` or `cron`. Empty: the default one."""


def parse_cron(fields: str, timezone: str) -> CronSchedule:
    """Parse cron fields. Raises InvalidTime."""
    written = " ".join(fields.upper().split())
    written = _CRON_MACROS.get(written, written)
    parse_timezone(timezone)
    if len(written) > _MAX_CRON_CHARS or written.count(" ") != _CRON_FIELDS - 1:
        raise InvalidTime(
            "Cron takes five fields: minute, hour, day of the month, month and day of the week, "
            "e.g. `0 9 * * 1-5` for 9:00 from Monday to Friday."
        )
    try:
        CronSim(written, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidTime(
            f"{error} in that cron expression; e.g. `0 9 * * 1-5` or `*/15 8-18 * * *`."
        ) from None
    return CronSchedule(fields=written, timezone=timezone)


def build_interval(seconds: int, local: time | None = None, timezone: str = "") -> IntervalSchedule:
    """Return a repeating schedule. Raises InvalidTime if the interval is too short or longer than
    five years, and for what is no local time.
    """
    if seconds < MIN_INTERVAL_S:
        raise InvalidTime("Something can repeat once a minute at most; write e.g. every `5m`.")
    if seconds > MAX_AHEAD.total_seconds():
        raise InvalidTime("Something must repeat within five years; write e.g. every `30d`.")
    if local is not None:
        parse_timezone(timezone)
        if seconds % DAY_S or local.tzinfo is not None or local.microsecond:
            raise InvalidTime("Only whole days have a local time.")
    return IntervalSchedule(seconds=seconds, local=local, timezone=timezone)


def parse_schedule(text: str) -> Schedule:
    """Parse the canonical text of `format_schedule`. Raises InvalidTime for anything else."""
    kind, _, rest = text.partition(" ")
    try:
        match kind:
            case "at":
                once = datetime.fromisoformat(rest)
                if once.tzinfo is not None and not once.microsecond:
                    return OnceSchedule(time=once)
            case "every":
                seconds, *local = rest.split(" ", 2)
                if not local:
                    return build_interval(int(seconds))
                return build_interval(int(seconds), time.fromisoformat(local[0]), local[1])
            case "cron":
                fields, _, timezone = rest.rpartition(" ")
                return parse_cron(fields, timezone)
    except InvalidTime:
        raise
    except (ValueError, IndexError):
        pass
    raise InvalidTime(
        "A schedule is `at TIME`, `every SECONDS [TIME TIMEZONE]` or `cron FIELDS TIMEZONE`."
    )


def format_schedule(schedule: Schedule) -> str:
    """Return the canonical text."""
    match schedule:
        case OnceSchedule():
            return f"at {schedule.time.isoformat(timespec='seconds')}"
        case IntervalSchedule():
            local = schedule.local
            where = "" if local is None else f" {local.isoformat()} {schedule.timezone}"
            return f"every {schedule.seconds}{where}"
        case CronSchedule():
            return f"cron {schedule.fields} {schedule.timezone}"


def describe_schedule_text(text: str) -> str:
    """Describe a canonical text in a few words for people; return the text itself if it cannot be
    parsed any more.
    """
    try:
        schedule = parse_schedule(text)
    except InvalidTime:  # e.g. a time zone that exists no more
        return text
    if isinstance(schedule, IntervalSchedule):
        return f"every {format_duration(schedule.seconds)}"
    if found := re.fullmatch(r"cron \d+ \d+ (\d+|[*L]) (\d+|\*) ([\dA-Z,#-]+|\*) \S+", text):
        day, month, weekdays = found.groups()
        if month != "*" or day != "*" or weekdays[-2:-1] == "#" or weekdays.endswith("L"):
            return "every month" if month == "*" else "every year"
        if len(weekdays) == 1:
            return "every 1d" if weekdays == "*" else "every 7d"
        names = re.sub(r"\d", lambda one: WEEKDAYS[int(one[0]) - 1], weekdays)
        return f"every {names.title().replace(',', ', ')}"
    return "once" if isinstance(schedule, OnceSchedule) else format_schedule(schedule)


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
    if isinstance(schedule, CronSchedule):
        return next(_cron_times(schedule, after), None)
    if isinstance(schedule, IntervalSchedule):
        return schedule.after(after)
    return schedule.time.astimezone(UTC) if schedule.time > after else None


def collapse_due_times(schedule: Schedule, due: datetime, now: datetime) -> DueTimes:
    """Combine all times from `due` up to `now`. `due` itself has passed, whatever the clock says by
    now.

    The work is bounded however long ago `due` is.
    """
    due, now = due.astimezone(UTC), max(now, due).astimezone(UTC)
    if isinstance(schedule, OnceSchedule):
        return DueTimes(last=due, missed=0, next=None)
    if isinstance(schedule, IntervalSchedule):
        count = (now - due) // timedelta(seconds=schedule.seconds)
        count += schedule.after(due, count + 1) <= now  # a day may be shorter, or longer
        count -= count > 0 and schedule.after(due, count) > now
        last = schedule.after(due, count) if count else due
        following = schedule.after(due, count + 1)
        return DueTimes(last=last, missed=min(count, MAX_MISSED), next=following)
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

    `timezone`: used where the phrases name none. Raises InvalidTime, also for times that are past
    or more than five years ahead.
    """
    at, repeats, fields = (text.strip() for text in (spoken.at, spoken.every, spoken.cron))
    place = spoken.timezone.strip() or timezone
    zone = parse_timezone(place)
    if fields and (at or repeats):
        raise InvalidTime("Give `cron` alone, or `every` with or without `at` as its first time.")
    if fields:
        schedule: Schedule = parse_cron(fields, place)
        first = next_time(schedule, now)
        if first is None or first - now > MAX_AHEAD:
            raise InvalidTime("That cron expression does not come within five years.")
        return schedule, first
    if not at and not repeats:
        raise InvalidTime(f"Say when: `at`, `every` or `cron`; {TIME_EXAMPLES}.")
    repeats = to_english(repeats)
    if monthly := _MONTHLY.match(repeats):
        return _parse_monthly(monthly, repeats[monthly.end() :], at, now, place)
    if days := _WEEKDAYS.match(repeats):
        return _parse_weekdays(days[1], f"{repeats[days.end() :]} {at}".strip(), now, place)
    every_s, at = _parse_interval(repeats, at) if repeats else (0, at)
    first = parse_moment(at, now, zone) if at else None
    if not repeats:
        assert first is not None
        return OnceSchedule(time=first), first.astimezone(UTC)
    schedule = build_interval(every_s)
    if every_s % DAY_S == 0:  # at the same local time also once the clocks have changed
        local = (first or ceil_to_second(now)).astimezone(zone).time()
        schedule = build_interval(every_s, local, place)
    return schedule, (first or next_time(schedule, ceil_to_second(now)) or now).astimezone(UTC)


def split_reminder(text: str, now: datetime, timezone: str) -> tuple[SpokenTime, str] | None:
    """Return when, and of what, a person wants to be reminded who wrote e.g. `10m tea` or `me to
    drink tea every day at noon`. None: no time to come is at the start or the end of it.
    """
    words = _OPENING.sub("", text).split()
    most = min(len(words) - 1, _MAX_SPOKEN_WORDS)
    for front, back in [(front, n - front) for n in range(most, 0, -1) for front in range(n + 1)]:
        parts = words[:front], words[(end := len(words) - back) :]
        spoken = [_to_spoken(part) for part in ([*parts[0], *parts[1]], *parts) if part]
        with contextlib.suppress(InvalidTime):
            for one in spoken:  # the whole, and each end of it
                parse_spoken_time(one, now, timezone)
            rest = _OPENING.sub("", " ".join(words[front:end]))
            return None if _REST_OF_TIME.fullmatch(to_english(rest)) else (spoken[0], rest)
    return None


def _to_spoken(words: Sequence[str]) -> SpokenTime:
    when = to_english(" ".join(words).rstrip(":,"))
    is_repeated = when.startswith("every ") or "of month" in when
    return SpokenTime(every=when) if is_repeated else SpokenTime(at=when)


def _parse_weekdays(
    days: str, clock: str, now: datetime, timezone: str
) -> tuple[CronSchedule, datetime]:
    """Return the schedule of several weekdays at one time of day, and its first time, UTC. `clock`
    empty: at nine in the morning. Raises InvalidTime.
    """
    names = [found[:3] for found in re.findall(WEEKDAY, days)]
    one = parse_moment(f"next {names[0]} {clock}".strip(), now, parse_timezone(timezone))
    schedule = parse_cron(f"{one.minute} {one.hour} * * {','.join(names)}", timezone)
    first = next_time(schedule, now)
    assert first is not None
    return schedule, first


def _parse_monthly(
    found: re.Match[str], clock: str, at: str, now: datetime, timezone: str
) -> tuple[CronSchedule, datetime]:
    """Return the schedule of what `_MONTHLY` has found, and its first time, UTC. Without a time of
    day: at nine in the morning. Raises InvalidTime.
    """
    which, weekday, unit = found.groups()
    words = f"{at} {clock}".strip() or ("9:00" if which else f"in 1 {unit}")
    one = parse_moment(words, now, parse_timezone(timezone))
    day = _ORDINALS.get(which, which or str(one.day))
    day, month, weekdays = "L" if day == "31" else day, one.month if unit == "year" else "*", "*"
    if weekday and not weekday.startswith("day"):
        number = WEEKDAYS.index(weekday[:3]) + 1
        day, weekdays = "*", f"{number}L" if day == "L" else f"{number}#{day}"
    schedule = parse_cron(f"{one.minute} {one.hour} {day} {month} {weekdays}", timezone)
    first = next_time(schedule, max(now, one.replace(second=0) - timedelta(seconds=1)))
    if first is None:
        raise InvalidTime("There is no such day in a month.")
    return schedule, first


def _parse_interval(text: str, at: str) -> tuple[int, str]:
    """Return the seconds between two times, and the first time as it is written. Raises
    InvalidTime.
    """
    plain = text.removeprefix("every ")
    once = re.sub(rf"^(?:other|second|2(?= {WEEKDAY})) ", "", plain)
    length, __, clock = once.partition(" at ")
    spoken = (f"{length}s" if length.isascii() and length.isdigit() else length, f"1 {length}")
    seconds = next((s for one in spoken if (s := parse_duration(one)) is not None), None)
    first = f"at {clock}" if clock else ""
    if seconds is None:
        if (named := _EACH.match(once)) is None:
            raise InvalidTime(
                "`every` takes how long between two times, e.g. 90 min, 2h or 1 day, or a weekday."
            )
        seconds, first = DAY_S * (7 if named[1] else 1), once
    seconds *= 1 if once == plain else 2
    return int(min(seconds, MAX_AHEAD.total_seconds() + 1)), f"{first} {at}".strip()
