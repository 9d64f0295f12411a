"""When something comes again: read and written, across changed clocks, and after a long time without anybody there."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import islice
from time import process_time

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gateway.context.schedule import (
    MAX_MISSED,
    MIN_INTERVAL_S,
    CronSchedule,
    DueTimes,
    IntervalSchedule,
    OnceSchedule,
    Schedule,
    ScheduleError,
    build_interval,
    collapse_due_times,
    describe_schedule,
    format_duration,
    format_schedule,
    next_time,
    parse_cron,
    parse_schedule,
)

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
MOMENTS = st.integers(-6 * 366 * 86_400, 14 * 366 * 86_400).map(lambda seconds: START + timedelta(seconds=seconds))


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.just("*") | spans, st.integers(1, 20)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    one = number.map(str) | spans | steps
    return st.just("*") | one | st.lists(one, min_size=1, max_size=3).map(",".join)


@st.composite
def crons(draw: st.DrawFn) -> CronSchedule:
    parts = [draw(field(*limits)) for limits in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 7))]
    try:
        return parse_cron(" ".join(parts), draw(st.sampled_from(ZONES)))
    except ScheduleError:
        assume(False)
        raise


OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ATS = st.tuples(MOMENTS, OFFSETS).map(lambda pair: OnceSchedule(time=pair[0].astimezone(pair[1])))
EVERYS = st.integers(MIN_INTERVAL_S, 100_000_000).map(build_interval)
SCHEDULES: st.SearchStrategy[Schedule] = st.one_of(ATS, EVERYS, crons())


def local(text: str, offset_h: int) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone(timedelta(hours=offset_h)))


@pytest.mark.parametrize(
    "text", ["at 2026-11-22T09:00:00+01:00", "every 3600", "cron 0 9 * * 1-5 Europe/Zurich", "cron 0 0 L * MON#1 UTC"]
)
def test_the_canonical_texts(text: str) -> None:
    assert format_schedule(parse_schedule(text)) == text


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
    except ScheduleError as error:
        assert len(str(error)) < 300  # noqa: PT017 - what is read is as good
    else:
        assert parse_schedule(format_schedule(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "every 59",
        "every 157766401",
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
    with pytest.raises(ScheduleError):
        parse_schedule(text)


@given(st.lists(st.text("0123456789*/,-L#W MONJAN", max_size=12), min_size=5, max_size=5), MOMENTS)
def test_no_fields_of_cron_break_anything(parts: list[str], after: datetime) -> None:
    try:
        schedule = parse_cron(" ".join(parts), "Europe/Zurich")
    except ScheduleError:
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
        ("Africa/Cairo", "0 0 * * *", local("2026-04-23 12:00", 2), [("2026-04-24 01:00", 3), ("2026-04-25 00:00", 3)]),
    ],
)
def test_clocks_change(timezone: str, fields: str, after: datetime, expected: list[tuple[str, int]]) -> None:
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
@example(parse_cron("0,30 1,2 * * *", "Europe/Zurich"), datetime(2026, 10, 24, 23, 30, tzinfo=UTC), 5_400)
@example(parse_cron("*/7 2 * * *", "Europe/Zurich"), datetime(2026, 3, 29, 0, 30, tzinfo=UTC), 5_400)
def test_beginning_later_finds_no_earlier_time(schedule: CronSchedule, after: datetime, by_s: int) -> None:
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


@given(st.one_of(crons(), EVERYS, ATS), MOMENTS, st.integers(0, 200_000))
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED - 1)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED + 59)
@example(parse_cron("* * * * *", "Europe/Zurich"), START, 60 * MAX_MISSED + 60)
@example(parse_cron("*/2 1-4 * * *", "Europe/Zurich"), datetime(2026, 10, 20, tzinfo=UTC), 10 * 86_400)
@example(parse_cron("*/2 1-4 * * *", "America/New_York"), datetime(2026, 3, 1, tzinfo=UTC), 12 * 86_400)
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
    began = process_time()
    found = collapse_due_times(schedule, due, now := START + timedelta(days=300, seconds=7))
    assert process_time() - began < 2  # it takes 20 ms; one by one it would be some seconds
    assert (found.missed, found.next) == (MAX_MISSED, next_time(schedule, now))
    assert next_time(schedule, found.last - timedelta(seconds=1)) == found.last <= now
    assert next_time(schedule, found.last) == found.next


def test_what_is_due_has_come_even_if_the_clock_went_back() -> None:
    assert collapse_due_times(IntervalSchedule(seconds=60), START, START - timedelta(hours=1)) == DueTimes(
        last=START, missed=0, next=START + timedelta(seconds=60)
    )


def test_a_time_that_never_comes_again() -> None:
    schedule = parse_cron("* * */20 * 1L", "UTC")
    assert next_time(schedule, START) is None
    assert collapse_due_times(schedule, START, START + timedelta(days=1)) == DueTimes(last=START, missed=0, next=None)
    assert list(islice((next_time(OnceSchedule(time=START), START),), 1)) == [None]


def test_in_a_few_words() -> None:
    assert [
        describe_schedule(parse_schedule(text))
        for text in ("at 2026-11-22T09:00:00+01:00", "every 5400", "cron 0 9 * * mon UTC")
    ] == [
        "once",
        "every 1h 30m",
        "cron 0 9 * * MON UTC",
    ]
    assert format_duration(0) == "0s"
