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
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Final, NamedTuple

from cronsim import CronSim, CronSimError

from gateway.core.frozen import frozen
from gateway.core.moments import (
    MAX_AHEAD,
    TIME_EXAMPLES,
    InvalidTime,
    ceil_to_second,
    parse_duration,
    parse_moment,
    parse_timezone,
)

MIN_INTERVAL_S: Final = 60
"""Shortest interval; cron fields cannot express a shorter one."""
DAY_S: Final = 86_400
_WEEKDAY: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
_EACH: Final = re.compile(
    rf"({_WEEKDAY})|(?:noon|midnight|morning|afternoon|evening)\b|\d{{1,2}}(?::\d\d| ?[ap]m)\b"
)
"""A weekday, or a time of day, that comes again."""
_WEEKDAYS: Final = re.compile(rf"(?:every )?({_WEEKDAY}(?:(?:, and|,| and) ?{_WEEKDAY})+)")
"""Several weekdays, e.g. `monday, tuesday and friday`."""
_AND: Final = re.compile(
    r"(?:and|or|und|oder|y|o|,)\b.*|.*\b(?:and|or|und|oder|after|pasado)", re.IGNORECASE
)
"""What is no text of its own: the rest of a time that is understood in part alone."""
_OPENING: Final = re.compile(
    r"^\s*(?:(?:me|us|to|that|about|of|mich|uns|nos|que|dass)\s+)+|^[\s:,-]+", re.IGNORECASE
)
"""What stands in front of what somebody is to be reminded of."""
_IN_ENGLISH: Final = tuple(
    (re.compile(rf"\b(?:{words})\b"), english)
    for words, english in (
        ("heute abend|esta noche", "tonight"),
        ("por la mañana", "in the morning"),
        ("por la tarde", "in the afternoon"),
        ("heute|hoy", "today"),
        ("morgen|mañana", "tomorrow"),
        ("jede[nrs]?|alle|cada|todos los|todas las", "every"),
        ("um|a las?", "at"),
        (r"(?:at )?(\d{1,2}(?:[:.]\d\d)?) uhr", r"at \1"),
        ("mittags?|mediodía", "noon"),
        (r"en (?=\d|una? |media )", "in "),
        ("eine[rn]? halben?|media", "half an"),
        ("eine[rnm]?|una?", "one"),
        ("nächste[nr]?|(?:el )?próximo", "next"),
        ("und|y", "and"),
        ("minuten?|minutos?", "minutes"),
        ("stunden?|horas?", "hours"),
        ("tag|tagen?|días?", "days"),
        ("wochen?|semanas?", "weeks"),
        ("(?:am |el )?(?:montags?|lunes)", "monday"),
        ("(?:am |el )?(?:dienstags?|martes)", "tuesday"),
        ("(?:am |el )?(?:mittwochs?|miércoles)", "wednesday"),
        ("(?:am |el )?(?:donnerstags?|jueves)", "thursday"),
        ("(?:am |el )?(?:freitags?|viernes)", "friday"),
        ("(?:am |el )?(?:samstags?|sonnabends?|sábados?)", "saturday"),
        ("(?:am |el )?(?:sonntags?|domingos?)", "sunday"),
    )
)
"""Words of times in the languages of the catalogs, in the order in which they are replaced."""
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
    if found := re.fullmatch(r"cron \d+ \d+ \* \* (\*|\d) \S+", text):
        return "every 1d" if found[1] == "*" else "every 7d"
    if found := re.fullmatch(r"cron \d+ \d+ \* \* ([A-Z]{3}(?:,[A-Z]{3})*) \S+", text):
        return f"every {found[1].title().replace(',', ', ')}"
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
    if days := _WEEKDAYS.match(repeats.lower()):
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
    for size in range(min(len(words) - 1, 8), 0, -1):
        for time_words, others in (
            (words[:size], words[size:]),
            (words[-size:], words[:-size]),
        ):
            when = _to_english(" ".join(time_words).rstrip(":,"))
            is_repeated = when.lower().startswith("every ")
            spoken = SpokenTime(every=when) if is_repeated else SpokenTime(at=when)
            with contextlib.suppress(InvalidTime):
                parse_spoken_time(spoken, now, timezone)
                rest = _OPENING.sub("", " ".join(others))
                return None if _AND.fullmatch(rest) else (spoken, rest)
    return None


def _to_english(when: str) -> str:
    """Return a German or Spanish time in English, in lower case; another text as it is."""
    english = when.lower()
    for words, replacement in _IN_ENGLISH:
        english = words.sub(replacement, english)
    return when if english == when.lower() else english


def _parse_weekdays(
    days: str, clock: str, now: datetime, timezone: str
) -> tuple[CronSchedule, datetime]:
    """Return the schedule of several weekdays at one time of day, and its first time, UTC. `clock`
    empty: at nine in the morning. Raises InvalidTime.
    """
    names = [found[:3] for found in re.findall(_WEEKDAY, days)]
    one = parse_moment(f"next {names[0]} {clock}".strip(), now, parse_timezone(timezone))
    schedule = parse_cron(f"{one.minute} {one.hour} * * {','.join(names)}", timezone)
    first = next_time(schedule, now)
    assert first is not None
    return schedule, first


def _parse_interval(text: str, at: str) -> tuple[int, str]:
    """Return the seconds between two times, and the first time as it is written. Raises
    InvalidTime.
    """
    plain = text.lower().removeprefix("every ")
    once = plain.removeprefix("other ")
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
