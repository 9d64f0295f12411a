"""Times as people and models write them: a moment, a past one, a duration. Pure.

They are understood in each language of the catalogs. Local times follow RFC 5545 (3.3.5): one that
comes twice is the first, one that does not exist is taken with the offset before the gap.
"""

import calendar
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
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAY: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
"""Pattern of a weekday, in English."""
_MONTHS: Final = (
    ("jan", "january", "januar", "enero"),
    ("feb", "february", "februar", "febrero"),
    ("mar", "march", "märz", "marzo"),
    ("apr", "april", "abril"),
    ("may", "mai", "mayo"),
    ("jun", "june", "juni", "junio"),
    ("jul", "july", "juli", "julio"),
    ("aug", "august", "agosto"),
    ("sep", "sept", "september", "septiembre"),
    ("oct", "october", "oktober", "octubre"),
    ("nov", "november", "noviembre"),
    ("dec", "december", "dezember", "diciembre"),
)
_MONTH: Final = "|".join(word for words in _MONTHS for word in words)
_DAY: Final = re.compile(
    r"\b(?:(?:on|this|next|last) +)?(?:the +)?"
    r"(today|tonight|tomorrow|overmorrow|yesterday|\d{4}-\d{2}-\d{2}"
    rf"|{WEEKDAY}"
    rf"|(?P<day>\d{{1,2}})(?:(?:st|nd|rd|th|\.)? *(?:of |de )?(?P<month>{_MONTH})\b"
    r"|\.(?P<number>\d{1,2})\.)(?:,? *(?:de +)?(?P<year>\d{4}))?"
    rf"|(?P<month2>{_MONTH}) +(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?(?:,? +(?P<year2>\d{{4}}))?)"
    r"(?![\w:]),?"
)
_PART: Final = re.compile(
    r"\b(?:(?:at|in the|this|of the) +)?(noon|midnight|morning|afternoon|evening|night)\b"
)
_CLOCK: Final = re.compile(
    r"(at +)?(\d{1,2})(?:(?:[:.]| ?h| uhr )(\d{2}))?"
    r"(?: *(am|pm|a\.m\.|p\.m\.)| ?h| hours| uhr| o'clock)?"
)
_NAMED_HOURS: Final = {
    "midnight": 0,
    "morning": 9,
    "noon": 12,
    "afternoon": 15,
    "evening": 18,
    "tonight": 20,
    "night": 20,
}
_PM_FROM: Final = {"noon": 1, "afternoon": 1, "evening": 1, "tonight": 1, "night": 5}
"""First hour of a clock face that is after noon in such a part of the day."""
_NUMBERS: Final = {
    word: number
    for words in (
        "one two three four five six seven eight nine ten eleven twelve fifteen twenty thirty",
        "eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf fünfzehn zwanzig dreißig",
        "uno dos tres cuatro cinco seis siete ocho nueve diez once doce quince veinte treinta",
    )
    for number, word in zip((*range(1, 13), 15, 20, 30), words.split(), strict=True)
}
_NUMBER: Final = re.compile(rf"\b(?:{'|'.join(_NUMBERS)})\b")
_PART_OF_HOUR: Final = re.compile(
    r"\b(half past|halb|quarter past|viertel nach|quarter to|viertel vor) (\d{1,2})\b"
    r"|\b(\d{1,2}) (y media|y cuarto|menos cuarto)\b"
)
_MINUTES: Final = {
    "half past": 30,
    "halb": -30,
    "quarter past": 15,
    "viertel nach": 15,
    "quarter to": -15,
    "viertel vor": -15,
    "y media": 30,
    "y cuarto": 15,
    "menos cuarto": -15,
}
_WORKDAYS: Final = "monday, tuesday, wednesday, thursday and friday"
_IN_ENGLISH: Final = tuple(
    (re.compile(rf"\b(?:{words})(?!\w)"), english)
    for words, english in (
        ("(?:una )?hora y media", "1.5 hours"),
        ("anderthalb|eineinhalb", "1.5"),
        ("zweieinhalb", "2.5"),
        ("3 quarters of an hour|(?:einer )?dreiviertelstunde", "45 minutes"),
        ("a quarter of an hour|(?:einer )?viertelstunde|un cuarto de hora", "15 minutes"),
        ("übermorgen|pasado mañana|(?:the )?day after tomorrow", "overmorrow"),
        ("heute abend|esta noche", "tonight"),
        ("gestern|ayer", "yesterday"),
        ("heute|hoy", "today"),
        ("(?:am |el )?(?:montags?|lunes|mondays)", "monday"),
        ("(?:am |el )?(?:dienstags?|martes|tuesdays)", "tuesday"),
        ("(?:am |el )?(?:mittwochs?|miércoles|wednesdays)", "wednesday"),
        ("(?:am |el )?(?:donnerstags?|jueves|thursdays)", "thursday"),
        ("(?:am |el )?(?:freitags?|viernes|fridays)", "friday"),
        ("(?:am |el )?(?:samstags?|sonnabends?|sábados?|saturdays)", "saturday"),
        ("(?:am |el )?(?:sonntags?|domingos?|sundays)", "sunday"),
        ("(?<=day )morgen|am morgen|früh|morgens|(?:am )?vormittags?", "in the morning"),
        ("(?:por|de) la mañana", "in the morning"),
        ("(?:am )?nachmittags?|(?:por|de) la tarde", "in the afternoon"),
        ("esta tarde", "this afternoon"),
        ("(?:am )?abends?", "in the evening"),
        ("nachts|in der nacht|(?:por|de) la noche|at night", "in the night"),
        ("(?:am )?mittags?|al? mediodía|midday", "noon"),
        ("(?:um )?mitternacht|a medianoche", "midnight"),
        ("morgen|mañana", "tomorrow"),
        ("jede[nrs]?|alle|cada|todos los|todas las|los", "every"),
        ("um|(?:a )?las?", "at"),
        (r"(?:am|el)(?= \d)", "on"),
        (r"dentro de|en(?= \d| una? | media )", "in"),
        ("eine[rn]? halben?|media", "half an"),
        ("eine[rnm]?|una?", "one"),
        ("nächste[nrs]?|(?:el |la )?próxim[oa]", "next"),
        ("letzte[nrs]?|últim[oa]", "last"),
        ("erste[nrs]?|primer", "first"),
        ("zweite[nrs]?|2nd", "second"),
        ("und|y", "and"),
        ("minuten?|minutos?", "minutes"),
        ("stunden?|horas?", "hours"),
        ("tag|tagen?|días?", "days"),
        ("wochen?|semanas?", "weeks"),
        ("fortnight", "2 weeks"),
        ("of (?:the|each|every) month|(?:des|im|every) monats?|(?:del|de every) mes", "of month"),
        ("monat|monate[n]?|mes|meses", "month"),
        ("jahre?n?|años?", "year"),
        ("hourly|stündlich", "every hour"),
        ("daily|täglich|a diario", "every day"),
        ("weekly|wöchentlich", "every week"),
        ("monthly|monatlich", "every month"),
        ("yearly|annually|jährlich", "every year"),
        ("(?:from |von |de )?mon(?:day)?(?: to | through | bis | a |-)fri(?:day)?", _WORKDAYS),
        ("(?:every )?(?:weekdays?|workdays?|werktags?|working days?)", f"every {_WORKDAYS}"),
    )
)
"""Words of times in the languages of the catalogs, in the order in which they are replaced."""
TIME_EXAMPLES: Final = (
    "write e.g. 2026-11-22T09:00, 18:30, 9am, tomorrow 9:00, monday, noon or in 2h30m"
)


class InvalidTime(ValueError):
    """The text is no time that is meant here. The message is a sentence that says what to write
    instead.
    """


def to_english(text: str) -> str:
    """Return a time with its words in English and its numbers in digits, in lower case. A text that
    is too long for a time stays as it is.
    """
    if len(text) > _MAX_SPOKEN_CHARS:
        return text
    written = _NUMBER.sub(lambda found: str(_NUMBERS[found[0]]), " ".join(text.lower().split()))
    written = _PART_OF_HOUR.sub(_write_clock, written)
    for words, english in _IN_ENGLISH:
        written = words.sub(english, written)
    return written


def _write_clock(found: re.Match[str]) -> str:
    minutes = int(found[2] or found[3]) * 60 + _MINUTES[found[1] or found[4]]
    return f"{minutes // 60}:{minutes % 60:02}"


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
    written = to_english(text)
    first = (
        _parse_relative(written, now, zone)
        or _parse_iso(text, zone)
        or _parse_day_and_time(written, now, zone)
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
    written = re.sub(r"^(?:vor|hace|last) (?=\d)", "", to_english(text)).removesuffix(" ago")
    seconds = parse_duration(written) or parse_duration(written.replace("last ", "1 "))
    if seconds is not None:
        return now - timedelta(seconds=min(seconds, MAX_AHEAD.total_seconds()))
    day = _DAY.search(written)
    if day is not None and day[0] == written:
        written += " midnight"
    found = _parse_iso(text.strip(), zone) or _parse_day_and_time(written, now, zone)
    if found is not None and found > now:  # the next such time of day, or weekday, was taken
        found -= timedelta(days=1 if day is None else 7 * (day[1][:3] in WEEKDAYS))
    if found is not None and found <= now:
        return found.astimezone(UTC)
    raise InvalidTime("Write since when: 2h, 3d, 08:00, yesterday, or 2026-03-04T07:00.")


def _parse_relative(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    text = text.removeprefix("in ")
    if far := re.fullmatch(r"(\d{1,2}|an?|one) (month|year)s?", text):
        count = int(far[1]) if far[1].isdecimal() else 1
        local = now.astimezone(zone)
        years, month = divmod(local.month - 1 + count * (12 if far[2] == "year" else 1), 12)
        last = calendar.monthrange(local.year + years, month + 1)[1]
        day = date(local.year + years, month + 1, min(local.day, last))
        return _to_local(datetime.combine(day, ceil_to_second(local).time()), zone)
    seconds = parse_duration(text)
    if seconds is None:
        return None
    return _with_fixed_offset(
        ceil_to_second(now + timedelta(seconds=min(seconds, 2 * MAX_AHEAD.total_seconds()))), zone
    )


def _parse_day_and_time(written: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """Parse a day (`monday`, at 9:00), a time of day (`9am`, the next one) or both (`tomorrow at
    noon`, `9:30 on fri`).

    A bare number is no time.
    """
    day = _DAY.search(written)
    part = _PART.search(rest := _cut(written, day))
    clock = _CLOCK.fullmatch(rest := _cut(rest, part))
    if (rest and clock is None) or (
        day is None and part is None and (clock is None or clock[0].isdecimal())
    ):
        return None
    named = part[1] if part else "tonight" if day is not None and day[1] == "tonight" else ""
    try:
        wanted = _time_of_day(clock, named)
        today = now.astimezone(zone).date()
        date = today if day is None else _resolve_day(day, today)
    except ValueError:
        raise InvalidTime(f"There is no such day or time of day; {TIME_EXAMPLES}.") from None
    first = _to_local(datetime.combine(date, wanted), zone)
    if first <= now and day is None:
        return _to_local(datetime.combine(date + timedelta(days=1), wanted), zone)
    is_next = (
        day is not None and day[1][:3] in WEEKDAYS and (first <= now or day[0].startswith("next"))
    )
    if is_next and date == today:
        return _to_local(datetime.combine(date + timedelta(days=7), wanted), zone)
    return first


def _cut(text: str, piece: re.Match[str] | None) -> str:
    return text if piece is None else f"{text[: piece.start()]} {text[piece.end() :]}".strip()


def _time_of_day(clock: re.Match[str] | None, named: str) -> time:
    """Return the time of a match of `_CLOCK` in the `named` part of a day. None: the hour of that
    part, or nine in the morning. Raises ValueError.
    """
    if clock is None:
        return time(_NAMED_HOURS.get(named, 9))
    hour, half = int(clock[2]), (clock[4] or "").replace(".", "")
    if half:
        if not 1 <= hour <= 12:  # noqa: PLR2004 - of a clock face
            raise ValueError
        hour = hour % 12 + 12 * (half == "pm")
    elif _PM_FROM.get(named, 12) <= hour < 12:  # noqa: PLR2004 - as above
        hour += 12
    return time(hour, int(clock[3] or 0))


def _resolve_day(found: re.Match[str], today: date) -> date:
    """Return the day that `_DAY` has found; of a weekday or a date without a year the next one,
    today included. Raises ValueError.
    """
    word = found[1]
    if word[:3] in WEEKDAYS:
        return today + timedelta(days=(WEEKDAYS.index(word[:3]) - today.weekday()) % 7)
    if number := found["day"] or found["day2"]:
        name, year = found["month"] or found["month2"], found["year"] or found["year2"]
        months = (month for month, names in enumerate(_MONTHS, 1) if name in names)
        month = int(found["number"] or next(months))
        first = date(int(year or today.year), month, int(number))
        return first if year or first >= today else first.replace(year=today.year + 1)
    if word[0].isdigit():
        return date.fromisoformat(word)
    return today + timedelta(days={"yesterday": -1, "tomorrow": 1, "overmorrow": 2}.get(word, 0))


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
