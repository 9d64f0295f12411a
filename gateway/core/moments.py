"""Times as people and models write them: a moment, a past one, a duration. Pure.

Local times follow RFC 5545 (3.3.5): one that comes twice is the first, one that does not exist is
taken with the offset before the gap.
"""

import re
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo

MAX_AHEAD: Final = timedelta(days=5 * 365 + 1)
"""Longest time ahead of a first time: five years."""
_MAX_SPOKEN_CHARS: Final = 100
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNIT: Final = r"(s|m|h|d|w|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?|weeks?)"
_DURATION_PIECE: Final = re.compile(rf"(\d+(?:\.\d+)?)\s*{_UNIT}(?![a-z])[\s,]*(?:and\s+)?")
_ONE: Final = re.compile(r"\b(half an?|an?|one) +(?=[a-z])")
_AND_A_HALF: Final = re.compile(r"(\d+) +([a-z]+) and 1 half\b")
_WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = re.compile(
    r"\b(?:(?:on|this|next) +)?(today|tonight|tomorrow|\d{4}-\d{2}-\d{2}"
    r"|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?)\b,?"
)
_CLOCK: Final = re.compile(
    r"(at +)?(\d{1,2})(?:[:.](\d{2}))? *(am|pm|a\.m\.|p\.m\.)?"
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
TIME_EXAMPLES: Final = (
    "write e.g. 2026-11-22T09:00, 18:30, 9am, tomorrow 9:00, monday, noon or in 2h30m"
)


class InvalidTime(ValueError):
    """The text is no time that is meant here. The message is a sentence that says what to write
    instead.
    """


def parse_timezone(name: str) -> ZoneInfo:
    """Return a time zone. Raises InvalidTime for an unknown name; a name is never taken as a
    path.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also a folder of zones, and what cannot be a key
        raise InvalidTime(
            "No such time zone; write an IANA name, e.g. Europe/Zurich or UTC."
        ) from None


def parse_moment(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the time that is meant, in whole seconds, in that time zone.

    Raises InvalidTime, also for a past time.
    """
    first = (
        _parse_relative(text, now, zone)
        or _parse_iso(text, zone)
        or _parse_day_and_time(text, now, zone)
    )
    if first is None:
        raise InvalidTime(f"That is no time that is understood here; {TIME_EXAMPLES}.")
    if first <= now:
        raise InvalidTime(
            f"That is past: it is now {now.astimezone(zone):%Y-%m-%dT%H:%M} ({zone.key})."
        )
    if first - now > MAX_AHEAD:
        raise InvalidTime("That is more than five years ahead, which is too far.")
    return first


def parse_past_moment(text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the time since which something is asked for: so long ago, or the last such day or time
    of day.

    Raises InvalidTime, also for a future time.
    """
    written = " ".join(text.lower().split()).removesuffix(" ago")
    seconds = parse_duration(written)
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
    raise InvalidTime("Write since when: 2h, 3d, 08:00, yesterday, or 2026-03-04T07:00.")


def _parse_relative(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    seconds = parse_duration(re.sub(r"^in\s+", "", text.lower()))
    if seconds is None:
        return None
    return _with_fixed_offset(
        ceil_to_second(now + timedelta(seconds=min(seconds, 2 * MAX_AHEAD.total_seconds()))), zone
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
        raise InvalidTime(f"There is no such day or time of day; {TIME_EXAMPLES}.") from None
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
    """Return the time of a match of `_CLOCK`. None: the hour of the `named` part of a day, or nine
    in the morning. Raises ValueError.
    """
    if clock is None or clock[5]:
        return time(_NAMED_HOURS.get(named if clock is None else clock[5], 9))
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
    if len(text) > _MAX_SPOKEN_CHARS or not re.match(r"[\dW-]+[T ]\d", text):
        return None
    try:
        moment = ceil_to_second(datetime.fromisoformat(text))
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


def ceil_to_second(moment: datetime) -> datetime:
    """Return the first whole second that is not before."""
    return (moment + timedelta(microseconds=999_999)).replace(microsecond=0)


def parse_duration(text: str) -> float | None:
    """Return the seconds of e.g. `2h30m`, `90 min`, `half an hour` or `1 day and 3 hours`; None: it
    is no duration.
    """
    if not text or len(text) > _MAX_SPOKEN_CHARS:
        return None
    text = _ONE.sub(lambda match: "0.5 " if match[1].startswith("half") else "1 ", text.lower())
    text = _AND_A_HALF.sub(r"\1.5 \2", text)
    total, end = 0.0, 0
    while end < len(text):
        match = _DURATION_PIECE.match(text, end)
        if match is None:
            return None
        total, end = total + float(match[1]) * _UNITS[match[2][0]], match.end()
    return total
