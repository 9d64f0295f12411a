"""When something comes again: read, written and spoken, across changed clocks."""

from datetime import UTC, datetime, time, timedelta, timezone
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.core.moments import MAX_AHEAD, InvalidTime, parse_past_moment
from gateway.plugins.reminders.schedule import (
    MAX_MISSED,
    MIN_INTERVAL_S,
    CronSchedule,
    DueTimes,
    IntervalSchedule,
    OnceSchedule,
    Schedule,
    SpokenTime,
    build_interval,
    collapse_due_times,
    describe_schedule_text,
    format_duration,
    format_schedule,
    next_time,
    parse_cron,
    parse_schedule,
    parse_spoken_time,
    split_reminder,
)
from tests.kits.scaling import assert_in_proportion

ZONES = [
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Kolkata",
    "Pacific/Apia",
]
START = datetime(2026, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(-6 * 366 * 86_400, 14 * 366 * 86_400).map(
    lambda seconds: START + timedelta(seconds=seconds)
)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.just("*") | spans, st.integers(1, 20)).map(
        lambda pair: f"{pair[0]}/{pair[1]}"
    )
    one = number.map(str) | spans | steps
    return st.just("*") | one | st.lists(one, min_size=1, max_size=3).map(",".join)


@st.composite
def crons(draw: st.DrawFn) -> CronSchedule:
    parts = [draw(field(*limits)) for limits in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 7))]
    try:
        return parse_cron(" ".join(parts), draw(st.sampled_from(ZONES)))
    except InvalidTime:
        assume(False)
        raise


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ATS = st.tuples(MOMENTS, OFFSETS).map(lambda pair: OnceSchedule(time=pair[0].astimezone(pair[1])))
EVERYS = st.integers(MIN_INTERVAL_S, 100_000_000).map(build_interval)
TIMES = st.times().map(lambda one: one.replace(microsecond=0))
DAY_LENGTHS = st.integers(1, 1_000).map(lambda days: days * 86_400)
DAYS = st.builds(build_interval, DAY_LENGTHS, TIMES, st.sampled_from(ZONES))
SCHEDULES: st.SearchStrategy[Schedule] = st.one_of(ATS, EVERYS, DAYS, crons())


def local(text: str, offset_h: int) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone(timedelta(hours=offset_h)))


@given(SCHEDULES)
def test_reading_is_the_inverse_of_writing(schedule: Schedule) -> None:
    assert parse_schedule(format_schedule(schedule)) == schedule
    assert format_schedule(parse_schedule(format_schedule(schedule))) == format_schedule(schedule)


@given(st.text() | st.tuples(st.sampled_from(["at", "every", "cron"]), st.text()).map(" ".join))
@example("at 2026-11-22T09:00:00")
@example("at 2026-11-22T09:00:00.5+01:00")
@example("every 59")
@example("every 1.5")
@example("every " + "9" * 5_000)
@example("cron 0 9 * * 1-5")
@example("cron * * * * * * UTC")
@example("cron " + "9" * 5_000 + " * * * * UTC")
@example("cron 0 9 * * * ../../etc/passwd")
@example("cron 0 9 * * * America")
@example("cron 0 9 * * * \ud800")
@example("cron 0 0 30 2 * UTC")
@example("cron 0 0 * * L/2 UTC")
def test_anything_else_is_said_to_be_none(text: str) -> None:
    try:
        schedule = parse_schedule(text)
    except InvalidTime as error:
        assert len(str(error)) < 300  # noqa: PT017 - what is read is as good
    else:
        assert parse_schedule(format_schedule(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "every 59",
        "every 157766401",
        "every 86401 09:00:00 UTC",
        "every 86400 09:00:00+01:00 UTC",
        "every 86400 09:00:00.5 UTC",
        "every 86400 09:00:00 Zurich",
        "every 86400 09:00:00",
        "at 2026-11-22T09:00:00",
        "at 2026-11-22T09:00:00.5+01:00",
        f"cron {','.join(map(str, range(60)))} * * * * UTC",
        "cron * * * * * * UTC",
        "cron 0 9 * * 1-5",
        "in 3600",
        "",
    ],
)
def test_what_could_never_be_written_is_refused(text: str) -> None:
    with pytest.raises(InvalidTime):
        parse_schedule(text)


@given(st.lists(st.text("0123456789*/,-L#W MONJAN", max_size=12), min_size=5, max_size=5), MOMENTS)
def test_no_fields_of_cron_break_anything(parts: list[str], after: datetime) -> None:
    try:
        schedule = parse_cron(" ".join(parts), "Europe/Zurich")
    except InvalidTime:
        return
    time = next_time(schedule, after)
    assert time is None or time > after


@pytest.mark.parametrize(
    ("timezone", "fields", "after", "expected"),
    [
        # 2026-03-29: 02:00 becomes 03:00. What names its hour runs when the gap is over, once.
        (
            "Europe/Zurich",
            "30 2 * * *",
            local("2026-03-28 12:00", 1),
            [("2026-03-29 03:00", 2), ("2026-03-30 02:30", 2)],
        ),
        (
            "Europe/Zurich",
            "0 2,3 * * *",
            local("2026-03-28 12:00", 1),
            [("2026-03-29 03:00", 2), ("2026-03-30 02:00", 2)],
        ),
        ("Europe/Zurich", "0 9 * * *", local("2026-03-28 12:00", 1), [("2026-03-29 09:00", 2)]),
        # What runs more often goes on by the time that passes.
        (
            "Europe/Zurich",
            "*/30 * * * *",
            local("2026-03-29 01:20", 1),
            [("2026-03-29 01:30", 1), ("2026-03-29 03:00", 2)],
        ),
        ("Europe/Zurich", "15 * * * *", local("2026-03-29 01:20", 1), [("2026-03-29 03:15", 2)]),
        # 2026-10-25: 03:00 becomes 02:00. What names its hour runs the first time only.
        (
            "Europe/Zurich",
            "30 2 * * *",
            local("2026-10-24 12:00", 2),
            [("2026-10-25 02:30", 2), ("2026-10-26 02:30", 1)],
        ),
        ("Europe/Zurich", "30 2 * * *", local("2026-10-25 02:10", 1), [("2026-10-26 02:30", 1)]),
        ("Europe/Zurich", "30 3 * * *", local("2026-10-25 02:10", 1), [("2026-10-25 03:30", 1)]),
        (
            "Europe/Zurich",
            "30 * * * *",
            local("2026-10-25 02:00", 2),
            [("2026-10-25 02:30", 2), ("2026-10-25 02:30", 1), ("2026-10-25 03:30", 1)],
        ),
        # 2026-03-08 and 2026-11-01 in New York.
        (
            "America/New_York",
            "30 2 * * *",
            local("2026-03-07 12:00", -5),
            [("2026-03-08 03:00", -4), ("2026-03-09 02:30", -4)],
        ),
        (
            "America/New_York",
            "30 1 * * *",
            local("2026-10-31 12:00", -4),
            [("2026-11-01 01:30", -4), ("2026-11-02 01:30", -5)],
        ),
        (
            "America/New_York",
            "0 * * * *",
            local("2026-11-01 00:30", -4),
            [("2026-11-01 01:00", -4), ("2026-11-01 01:00", -5), ("2026-11-01 02:00", -5)],
        ),
        # 2026-04-24: midnight becomes 01:00.
        (
            "Africa/Cairo",
            "0 0 * * *",
            local("2026-04-23 12:00", 2),
            [("2026-04-24 01:00", 3), ("2026-04-25 00:00", 3)],
        ),
    ],
)
def test_clocks_change(
    timezone: str, fields: str, after: datetime, expected: list[tuple[str, int]]
) -> None:
    schedule = parse_cron(fields, timezone)
    times = []
    for _ in expected:
        time = next_time(schedule, after)
        assert time is not None
        assert time.tzinfo is UTC
        times.append(after := time)
    assert times == [local(*one) for one in expected]


@given(SCHEDULES, MOMENTS)
def test_the_next_time_is_always_later(schedule: Schedule, after: datetime) -> None:
    for _ in range(5):
        time = next_time(schedule, after)
        if time is None:
            return
        assert time > after
        after = time


@given(crons(), MOMENTS, st.integers(0, 3 * 86_400))
@example(
    parse_cron("0,30 1,2 * * *", "Europe/Zurich"), datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 5_400
)
@example(
    parse_cron("*/7 2 * * *", "Europe/Zurich"), datetime(2026, 3, 29, 0, 30, tzinfo=UTC), 5_400
)
def test_beginning_later_finds_no_earlier_time(
    schedule: CronSchedule, after: datetime, by_s: int
) -> None:
    early, late = next_time(schedule, after), next_time(schedule, after + timedelta(seconds=by_s))
    assert early is None or late is None or early <= late
    if early is not None and early > after + timedelta(seconds=by_s):
        assert early == late


def brute(schedule: Schedule, due: datetime, now: datetime) -> DueTimes:
    count, last = 0, due
    time = next_time(schedule, due)
    while time is not None and time <= now:
        count, last, time = count + 1, time, next_time(schedule, time)
    return DueTimes(last=last, missed=min(count, MAX_MISSED), next=time)


@given(SCHEDULES, MOMENTS, st.integers(0, 200_000))
@example(
    build_interval(2 * 86_400, time(2, 30), "Europe/Zurich"),
    datetime(2026, 3, 1, tzinfo=UTC),
    90 * 86_400,
)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED - 1)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED + 59)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED + 60)
@example(
    parse_cron("*/2 1-4 * * *", "Europe/Zurich"), datetime(2026, 10, 20, tzinfo=UTC), 10 * 86_400
)
@example(
    parse_cron("*/2 1-4 * * *", "America/New_York"), datetime(2026, 3, 1, tzinfo=UTC), 12 * 86_400
)
@example(build_interval(60), START, 60 * MAX_MISSED + 60)
def test_what_passed_is_one_time(schedule: Schedule, due: datetime, late_s: int) -> None:
    due = schedule.time if isinstance(schedule, OnceSchedule) else next_time(schedule, due) or due
    now = due + timedelta(seconds=late_s)
    assert collapse_due_times(schedule, due, now) == brute(schedule, due, now)


@pytest.mark.parametrize("fields", ["* * * * *", "* * * 1-3 *", "*/2 3-8 * * *", "* * 1 1 *"])
@pytest.mark.parametrize("timezone", ["Europe/Zurich", "America/New_York"])
def test_a_year_is_no_work(fields: str, timezone: str) -> None:
    schedule = parse_cron(fields, timezone)
    due = next_time(schedule, START)
    assert due is not None
    found = collapse_due_times(schedule, due, now := START + timedelta(days=300, seconds=7))
    assert (found.missed, found.next) == (MAX_MISSED, next_time(schedule, now))
    assert next_time(schedule, found.last - timedelta(seconds=1)) == found.last <= now
    assert next_time(schedule, found.last) == found.next

    def collapse(days: int) -> None:
        collapse_due_times(schedule, due, START + timedelta(days=days, seconds=7))

    assert_in_proportion(collapse, 30, times=10, at_most=5)


def test_what_is_due_has_come_even_if_the_clock_went_back() -> None:
    assert collapse_due_times(
        IntervalSchedule(seconds=60), START, START - timedelta(hours=1)
    ) == DueTimes(last=START, missed=0, next=START + timedelta(seconds=60))


def test_a_time_that_never_comes_again() -> None:
    schedule = parse_cron("* * */20 * 1L", "UTC")
    assert next_time(schedule, START) is None
    assert collapse_due_times(schedule, START, START + timedelta(days=1)) == DueTimes(
        last=START, missed=0, next=None
    )
    assert list(islice((next_time(OnceSchedule(time=START), START),), 1)) == [None]


def test_in_a_few_words() -> None:
    assert [
        describe_schedule_text(text)
        for text in (
            "at 2026-11-22T09:00:00+01:00",
            "every 5400",
            "cron 0 9 * * MON,FRI UTC",
            "cron 0 9 * * * UTC",
            "cron 0 9 * * 1 UTC",
            "every 1209600 09:00:00 UTC",
            "cron 30 9 * * 1-5 UTC",
            "cron 0 9 L * * UTC",
            "cron 0 9 * * 1#1 UTC",
            "cron 0 9 3 5 * UTC",
        )
    ] == [
        "once", "every 1h 30m", "every Mon, Fri", "every 1d", "every 7d", "every 14d",
        "every Mon-Fri", "every month", "every month", "every year",
    ]  # fmt: skip
    assert format_duration(0) == "0s"


@pytest.mark.parametrize(
    ("every", "days"),
    [
        ("1 day", ["24 02:30", "25 02:30", "26 02:30", "27 02:30"]),
        ("2 days", ["24 02:30", "26 02:30", "28 02:30", "30 02:30"]),
        ("14 days", ["24 02:30", "07 02:30", "21 02:30", "05 02:30"]),
        ("other week", ["24 02:30", "07 02:30", "21 02:30", "05 02:30"]),
    ],
)
def test_days_keep_the_local_time_once_the_clocks_have_changed(every: str, days: list[str]) -> None:
    """On 2026-10-25 that time comes twice."""
    now = datetime(2026, 10, 23, 12, tzinfo=UTC)
    schedule, first = parse_spoken_time(SpokenTime(at="2:30", every=every), now, ZURICH)
    times: list[datetime] = [first]
    while len(times) < len(days):
        found = next_time(schedule, times[-1])
        assert found is not None
        times.append(found)
    assert [f"{one.astimezone(ZoneInfo(ZURICH)):%d %H:%M}" for one in times] == days


def test_days_keep_the_local_time_behind_a_day_that_has_no_such_time() -> None:
    schedule = build_interval(2 * 86_400, time(2, 30), ZURICH)
    before = datetime(2026, 3, 27, 1, 30, tzinfo=UTC)
    gap = next_time(schedule, before)
    assert gap == local("2026-03-29 03:30", 2)
    assert next_time(schedule, gap) == local("2026-03-31 02:30", 2)


NOW = datetime(2026, 11, 21, 19, 45, 30, 250_000, tzinfo=UTC)  # 20:45 in Zurich, a Saturday
ZURICH = "Europe/Zurich"


def meant(spoken: dict[str, str], now: datetime = NOW) -> tuple[str, str]:
    schedule, first = parse_spoken_time(SpokenTime(**spoken), now, ZURICH)
    assert parse_schedule(format_schedule(schedule)) == schedule
    assert first.tzinfo is UTC
    return format_schedule(schedule), first.strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("at", "schedule", "first"),
    [
        ("2026-11-22T09:00", "at 2026-11-22T09:00:00+01:00", "2026-11-22 08:00:00"),
        ("2026-11-22 09:00:30", "at 2026-11-22T09:00:30+01:00", "2026-11-22 08:00:30"),
        ("2026-11-22T09:00Z", "at 2026-11-22T09:00:00+00:00", "2026-11-22 09:00:00"),
        ("2026-11-22T09:00:00-05:00", "at 2026-11-22T09:00:00-05:00", "2026-11-22 14:00:00"),
        ("2027-07-01T09:00", "at 2027-07-01T09:00:00+02:00", "2027-07-01 07:00:00"),
        ("21:00", "at 2026-11-21T21:00:00+01:00", "2026-11-21 20:00:00"),
        (
            "20:45",
            "at 2026-11-22T20:45:00+01:00",
            "2026-11-22 19:45:00",
        ),  # that minute is over: tomorrow
        ("at 9:05", "at 2026-11-22T09:05:00+01:00", "2026-11-22 08:05:00"),
        ("Tomorrow at 21:00", "at 2026-11-22T21:00:00+01:00", "2026-11-22 20:00:00"),
        ("today 23:59", "at 2026-11-21T23:59:00+01:00", "2026-11-21 22:59:00"),
        ("in 2h", "at 2026-11-21T22:45:31+01:00", "2026-11-21 21:45:31"),
        ("2h30m", "at 2026-11-21T23:15:31+01:00", "2026-11-21 22:15:31"),
        ("In 90 min", "at 2026-11-21T22:15:31+01:00", "2026-11-21 21:15:31"),
        ("1 day, 3 hours and 10 seconds", "at 2026-11-22T23:45:41+01:00", "2026-11-22 22:45:41"),
        ("1.5 weeks", "at 2026-12-02T08:45:31+01:00", "2026-12-02 07:45:31"),
        ("in half an hour", "at 2026-11-21T21:15:31+01:00", "2026-11-21 20:15:31"),
        ("an hour and 5 minutes", "at 2026-11-21T21:50:31+01:00", "2026-11-21 20:50:31"),
        ("9am", "at 2026-11-22T09:00:00+01:00", "2026-11-22 08:00:00"),
        ("at 9:30 p.m.", "at 2026-11-21T21:30:00+01:00", "2026-11-21 20:30:00"),
        ("12 AM", "at 2026-11-22T00:00:00+01:00", "2026-11-21 23:00:00"),
        ("at 21", "at 2026-11-21T21:00:00+01:00", "2026-11-21 20:00:00"),
        ("noon", "at 2026-11-22T12:00:00+01:00", "2026-11-22 11:00:00"),
        ("midnight", "at 2026-11-22T00:00:00+01:00", "2026-11-21 23:00:00"),
        ("tomorrow", "at 2026-11-22T09:00:00+01:00", "2026-11-22 08:00:00"),
        ("Tomorrow evening", "at 2026-11-22T18:00:00+01:00", "2026-11-22 17:00:00"),
        ("in the morning", "at 2026-11-22T09:00:00+01:00", "2026-11-22 08:00:00"),
        ("tonight at 9", "at 2026-11-21T21:00:00+01:00", "2026-11-21 20:00:00"),
        ("monday 9:00", "at 2026-11-23T09:00:00+01:00", "2026-11-23 08:00:00"),
        ("9:30 on tues", "at 2026-11-24T09:30:00+01:00", "2026-11-24 08:30:00"),
        (
            "next Saturday",
            "at 2026-11-28T09:00:00+01:00",
            "2026-11-28 08:00:00",
        ),  # it is one, and 9:00 is over
        ("next saturday 9pm", "at 2026-11-28T21:00:00+01:00", "2026-11-28 20:00:00"),
        ("saturday, 9pm", "at 2026-11-21T21:00:00+01:00", "2026-11-21 20:00:00"),
        ("2026-11-29", "at 2026-11-29T09:00:00+01:00", "2026-11-29 08:00:00"),
        ("2026-11-29 at noon", "at 2026-11-29T12:00:00+01:00", "2026-11-29 11:00:00"),
        ("tomorrow morning at 8", "at 2026-11-22T08:00:00+01:00", "2026-11-22 07:00:00"),
        ("11 at night", "at 2026-11-21T23:00:00+01:00", "2026-11-21 22:00:00"),
        ("in two months", "at 2027-01-21T20:45:31+01:00", "2027-01-21 19:45:31"),
        ("April 1st, 9am", "at 2027-04-01T09:00:00+02:00", "2027-04-01 07:00:00"),
        ("Freitag Morgen um halb acht", "at 2026-11-27T07:30:00+01:00", "2026-11-27 06:30:00"),
        ("am 24.12. um 18 Uhr", "at 2026-12-24T18:00:00+01:00", "2026-12-24 17:00:00"),
        ("in anderthalb Stunden", "at 2026-11-21T22:15:31+01:00", "2026-11-21 21:15:31"),
        ("el 5 de enero a las 20h30", "at 2027-01-05T20:30:00+01:00", "2027-01-05 19:30:00"),
        ("mañana por la mañana", "at 2026-11-22T09:00:00+01:00", "2026-11-22 08:00:00"),
    ],
)
def test_once(at: str, schedule: str, first: str) -> None:
    assert meant({"at": at}) == (schedule, first)


@pytest.mark.parametrize(
    ("spoken", "schedule", "first"),
    [
        ({"every": "1h"}, "every 3600", "2026-11-21 20:45:31"),
        ({"every": "3600"}, "every 3600", "2026-11-21 20:45:31"),
        (
            {"every": "1 day", "at": "9:00"},
            "every 86400 09:00:00 Europe/Zurich",
            "2026-11-22 08:00:00",
        ),
        ({"every": "day at 9"}, "every 86400 09:00:00 Europe/Zurich", "2026-11-22 08:00:00"),
        ({"every": "evening"}, "every 86400 18:00:00 Europe/Zurich", "2026-11-22 17:00:00"),
        ({"every": "9:00"}, "every 86400 09:00:00 Europe/Zurich", "2026-11-22 08:00:00"),
        ({"every": "1 week"}, "every 604800 20:45:31 Europe/Zurich", "2026-11-28 19:45:31"),
        ({"every": "2 days"}, "every 172800 20:45:31 Europe/Zurich", "2026-11-23 19:45:31"),
        ({"every": "3 days at 9pm"}, "every 259200 21:00:00 Europe/Zurich", "2026-11-21 20:00:00"),
        ({"every": "monday"}, "every 604800 09:00:00 Europe/Zurich", "2026-11-23 08:00:00"),
        (
            {"every": "Mon", "at": "at noon"},
            "every 604800 12:00:00 Europe/Zurich",
            "2026-11-23 11:00:00",
        ),
        (
            {"every": "other monday at 10:00"},
            "every 1209600 10:00:00 Europe/Zurich",
            "2026-11-23 09:00:00",
        ),
        (
            {"every": "Tuesday, wed and friday", "at": "at 10:30"},
            "cron 30 10 * * TUE,WED,FRI Europe/Zurich",
            "2026-11-24 09:30:00",
        ),
        ({"every": "other hour"}, "every 7200", "2026-11-21 21:45:31"),
        (
            {"every": "weekday at 9:30"},
            "cron 30 9 * * MON,TUE,WED,THU,FRI Europe/Zurich",
            "2026-11-23 08:30:00",
        ),
        (
            {"every": "Werktag", "at": "9:30"},
            "cron 30 9 * * MON,TUE,WED,THU,FRI Europe/Zurich",
            "2026-11-23 08:30:00",
        ),
        ({"every": "month"}, "cron 45 20 21 * * Europe/Zurich", "2026-12-21 19:45:00"),
        (
            {"every": "year", "at": "2027-05-03T09:00"},
            "cron 0 9 3 5 * Europe/Zurich",
            "2027-05-03 07:00:00",
        ),
        (
            {"every": "último día de cada mes"},
            "cron 0 9 L * * Europe/Zurich",
            "2026-11-30 08:00:00",
        ),
        (
            {"every": "jeden ersten Montag im Monat um 19 Uhr"},
            "cron 0 19 * * 1#1 Europe/Zurich",
            "2026-12-07 18:00:00",
        ),
        ({"every": "an hour"}, "every 3600", "2026-11-21 20:45:31"),
        ({"cron": "0 9 * * 1-5"}, "cron 0 9 * * 1-5 Europe/Zurich", "2026-11-23 08:00:00"),
        ({"cron": "@daily"}, "cron 0 0 * * * Europe/Zurich", "2026-11-21 23:00:00"),
        (
            {"cron": " 0  9 * * mon ", "timezone": "America/New_York"},
            "cron 0 9 * * MON America/New_York",
            "2026-11-23 14:00:00",
        ),
        (
            {"at": "18:30", "timezone": "America/New_York"},
            "at 2026-11-21T18:30:00-05:00",
            "2026-11-21 23:30:00",
        ),
    ],
)
def test_again_and_again_and_elsewhere(spoken: dict[str, str], schedule: str, first: str) -> None:
    assert meant(spoken) == (schedule, first)


@pytest.mark.parametrize(
    ("now", "at", "schedule"),
    [
        (
            "2026-03-28T12:00Z",
            "2026-03-29T02:30",
            "at 2026-03-29T03:30:00+02:00",
        ),  # there is none: as before the gap
        (
            "2026-10-24T12:00Z",
            "2026-10-25T02:30",
            "at 2026-10-25T02:30:00+02:00",
        ),  # there are two: the first
        ("2026-10-25T00:40Z", "2:30", "at 2026-10-26T02:30:00+01:00"),  # between both
        ("2026-10-25T00:10Z", "in 1h", "at 2026-10-25T02:10:00+01:00"),
    ],
)
def test_a_spoken_time_where_clocks_change(now: str, at: str, schedule: str) -> None:
    assert meant({"at": at}, datetime.fromisoformat(now))[0] == schedule


def test_this_very_moment_is_past() -> None:
    now = NOW.replace(second=0, microsecond=0)
    assert meant({"at": "20:45"}, now)[0] == "at 2026-11-22T20:45:00+01:00"
    assert meant({"at": "2026-11-21T20:45:01"}, now)[0] == "at 2026-11-21T20:45:01+01:00"
    with pytest.raises(InvalidTime, match="That is past"):
        meant({"at": "2026-11-21T20:45"}, now)


@pytest.mark.parametrize(
    ("spoken", "said"),
    [
        ({}, "Say when: `at`, `every` or `cron`; write e.g. 2026-11-22T09:00"),
        ({"at": "soon"}, "That is no time that is understood here; write e.g."),
        ({"at": "9"}, "That is no time"),
        ({"at": "the day after"}, "That is no time"),
        ({"at": "2026-11-21"}, "That is past"),
        ({"at": "13pm"}, "There is no such day or time of day; write e.g."),
        ({"at": "2026-13-22"}, "There is no such day"),
        ({"at": "2026-13-22T09:00"}, "That is no time"),
        ({"at": "0001-01-01T00:00+14:00"}, "That is no time"),
        ({"at": "9999-12-31T23:59:59.5-14:00"}, "That is no time"),
        ({"at": "25:00"}, "There is no such day or time of day; write e.g."),
        ({"at": "31 february"}, "There is no such day"),
        ({"at": "2026-11-21T20:45"}, "That is past: it is now 2026-11-21T20:45 (Europe/Zurich)."),
        ({"at": "today 20:00"}, "That is past"),
        ({"at": "in 99999999999999999999 weeks"}, "That is more than five years ahead"),
        ({"at": "2036-01-01T00:00"}, "That is more than five years ahead"),
        ({"every": "59 s"}, "Something can repeat once a minute at most"),
        ({"every": "0"}, "Something can repeat once a minute at most"),
        ({"every": "300 weeks"}, "Something must repeat within five years"),
        ({"every": "moon"}, "`every` takes how long between two times"),
        ({"every": "first monday of the year"}, "`every` takes how long between two times"),
        ({"every": "9" * 5_000}, "`every` takes how long"),
        ({"cron": "0 9 * * 1-5", "at": "9:00"}, "Give `cron` alone"),
        ({"cron": "0 9 * * 1-5", "every": "1h"}, "Give `cron` alone"),
        ({"cron": "@reboot"}, "Cron takes five fields"),
        ({"cron": "0 0 9 * * 1"}, "Cron takes five fields"),
        ({"cron": "61 9 * * *"}, "Bad minute in that cron expression"),
        (
            {"cron": "0 0 */28 2 1#5"},
            "That cron expression does not come within five years.",
        ),  # 2044-02-29
        ({"cron": "* * */20 * 1L"}, "That cron expression does not come within five years."),
        ({"at": "9:00", "timezone": "Zurich"}, "No such time zone; write an IANA name"),
        ({"at": "9:00", "timezone": "/etc/localtime"}, "No such time zone"),
    ],
)
def test_what_is_none_is_told_with_what_to_write(spoken: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidTime) as refused:
        meant(spoken)
    assert str(refused.value).startswith(said)


WORDS = st.text(max_size=20) | st.lists(
    st.sampled_from(
        [
            "in",
            "2",
            "h",
            "90",
            "min",
            "9:00",
            "tomorrow",
            "monday",
            "noon",
            "pm",
            "at",
            "T",
            "-",
            ":",
            "2026-11-22",
            "*",
            "\ud800",
            "٣",
        ]
    ),
    max_size=6,
).flatmap(lambda words: st.sampled_from(["".join(words), " ".join(words)]))


@pytest.mark.parametrize(
    ("written", "first", "what"),
    [
        ("5s tea", "2026-11-21 19:45:36", "tea"),
        ("me in an hour and a half to call Ann", "2026-11-21 21:15:31", "call Ann"),
        ("me to drink tea tomorrow at noon", "2026-11-22 11:00:00", "drink tea"),
        ("18.30: dinner", "2026-11-22 17:30:00", "dinner"),
        ("every other monday at 9 standup", "2026-11-23 08:00:00", "standup"),
        ("of the plants every 2 days at 18:00", "2026-11-22 17:00:00", "the plants"),
        ("every monday and tuesday standup", "2026-11-23 08:00:00", "standup"),
        ("Morgen 9 Uhr Zahnarzt", "2026-11-22 08:00:00", "Zahnarzt"),
        ("mich in 10 Minuten an den Tee", "2026-11-21 19:55:31", "an den Tee"),
        ("Oma anrufen um 21.30 Uhr", "2026-11-21 20:30:00", "Oma anrufen"),
        ("jeden Montag und Freitag um 9 Müll", "2026-11-23 08:00:00", "Müll"),
        ("alle 2 Tage um 18:00 gießen", "2026-11-22 17:00:00", "gießen"),
        ("mañana a las 9 dentista", "2026-11-22 08:00:00", "dentista"),
        ("en media hora té", "2026-11-21 20:15:31", "té"),
        ("llamar a Ana el próximo lunes", "2026-11-23 08:00:00", "llamar a Ana"),
        ("todos los lunes a las 9 basura", "2026-11-23 08:00:00", "basura"),
        ("guten Morgen sagen in 1h", "2026-11-21 20:45:31", "guten Morgen sagen"),
        ("mich morgen früh um acht an Ann", "2026-11-22 07:00:00", "an Ann"),
        ("a las 5 de la tarde llamar a Ana", "2026-11-22 16:00:00", "llamar a Ana"),
        ("pasado mañana a las 9 y media té", "2026-11-23 08:30:00", "té"),
        ("me tomorrow to call Ann at 20:00", "2026-11-22 19:00:00", "call Ann"),
        ("jeden Montag den Müll um 7", "2026-11-23 06:00:00", "den Müll"),
        ("me every second friday to pay", "2026-11-27 08:00:00", "pay"),
        ("me on the last day of the month to pay", "2026-11-30 08:00:00", "pay"),
        ("Anns Geburtstag jedes Jahr am 3. Mai", "2027-05-03 07:00:00", "Anns Geburtstag"),
    ],
)
def test_a_reminder_in_one_line(written: str, first: str, what: str) -> None:
    found = split_reminder(written, NOW, ZURICH)
    assert found is not None
    spoken, text = found
    due = parse_spoken_time(spoken, NOW, ZURICH)[1]
    assert (f"{due:%Y-%m-%d %H:%M:%S}", text) == (first, what)


@pytest.mark.parametrize(
    "written",
    [
        "every other monday and friday plants",
        "plants every other monday and friday",
        "every day at 9 and 17 water",
        "jeden Tag um 9 und 17 gießen",
        "me in a few minutes",
        "me at 5 to fetch the children at 6",
        "demain soir à huit heures, in 2 minutes or",
    ],
)
def test_a_time_is_understood_whole_or_not_at_all(written: str) -> None:
    assert split_reminder(written, NOW, ZURICH) is None


@given(WORDS)
@example("in in in")
def test_a_line_has_a_time_to_come_or_none(written: str) -> None:
    found = split_reminder(written, NOW, ZURICH)
    assert found is None or parse_spoken_time(found[0], NOW, ZURICH)[1] > NOW


@given(WORDS, WORDS, st.just("") | WORDS, st.just("") | WORDS)
def test_whatever_is_written_is_understood_or_refused(
    at: str, every: str, cron: str, timezone: str
) -> None:
    try:
        schedule, first = parse_spoken_time(
            SpokenTime(at=at, every=every, cron=cron, timezone=timezone), NOW, ZURICH
        )
    except InvalidTime as error:
        assert len(str(error)) < 300  # noqa: PT017 - what is understood is as good
    else:
        assert NOW < first <= NOW + MAX_AHEAD + timedelta(seconds=1)
        assert parse_schedule(format_schedule(schedule)) == schedule


@pytest.mark.parametrize(
    ("written", "hours_ago"),
    [
        ("2h", 2), ("45m", 0.75), ("half an hour", 0.5), ("2 hours ago", 2), ("3d", 72),
        ("08:00", 8.5), ("9am", 7.5), ("18:00", 22.5), ("noon", 4.5),
        ("today", 16.5), ("yesterday", 40.5), ("Yesterday 18:00", 22.5),
        ("sunday", 16.5), ("monday", 160.5), ("monday 9:00", 151.5),
        ("gestern", 40.5), ("hace 2 horas", 2), ("last week", 168), ("el lunes", 160.5),
        ("2026-11-20", 64.5), ("2026-11-20 07:00", 57.5), ("2026-11-20T07:00", 57.5),
        ("2026-11-20T07:00Z", 56.5), (" 2026-11-20T07:00+02:00 ", 58.5),
    ],
)  # fmt: skip
def test_a_time_that_has_passed(written: str, hours_ago: float) -> None:
    now = datetime(2026, 11, 22, 15, 30, tzinfo=UTC)  # a Sunday, 16:30 there
    then = parse_past_moment(written, now, ZoneInfo("Europe/Zurich"))
    assert (now - then) / timedelta(hours=1) == hours_ago


@pytest.mark.parametrize(
    "written",
    [
        "",
        "hier",
        "90",
        "tomorrow",
        "2027-01-01",
        "2026-13-01",
        "25:00",
        "9" * 400,
        "1e400d",
        "-2h",
    ],
)
def test_no_time_that_has_passed(written: str) -> None:
    with pytest.raises(InvalidTime):
        parse_past_moment(written, datetime(2026, 11, 22, 15, 30, tzinfo=UTC), ZoneInfo("UTC"))
