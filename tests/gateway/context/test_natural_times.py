"""What people and models write when something is to come."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context.schedule import (
    MAX_AHEAD,
    ScheduleError,
    SpokenTime,
    format_schedule,
    parse_schedule,
    parse_spoken_time,
)

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
        ("20:45", "at 2026-11-22T20:45:00+01:00", "2026-11-22 19:45:00"),  # that minute is over: tomorrow
        ("at 9:05", "at 2026-11-22T09:05:00+01:00", "2026-11-22 08:05:00"),
        ("Tomorrow at 21:00", "at 2026-11-22T21:00:00+01:00", "2026-11-22 20:00:00"),
        ("today 23:59", "at 2026-11-21T23:59:00+01:00", "2026-11-21 22:59:00"),
        ("in 2h", "at 2026-11-21T22:45:31+01:00", "2026-11-21 21:45:31"),
        ("2h30m", "at 2026-11-21T23:15:31+01:00", "2026-11-21 22:15:31"),
        ("In 90 min", "at 2026-11-21T22:15:31+01:00", "2026-11-21 21:15:31"),
        ("1 day, 3 hours and 10 seconds", "at 2026-11-22T23:45:41+01:00", "2026-11-22 22:45:41"),
        ("1.5 weeks", "at 2026-12-02T08:45:31+01:00", "2026-12-02 07:45:31"),
    ],
)
def test_once(at: str, schedule: str, first: str) -> None:
    assert meant({"at": at}) == (schedule, first)


@pytest.mark.parametrize(
    ("spoken", "schedule", "first"),
    [
        ({"every": "1h"}, "every 3600", "2026-11-21 20:45:31"),
        ({"every": "3600"}, "every 3600", "2026-11-21 20:45:31"),
        ({"every": "1 day", "at": "9:00"}, "every 86400", "2026-11-22 08:00:00"),
        ({"cron": "0 9 * * 1-5"}, "cron 0 9 * * 1-5 Europe/Zurich", "2026-11-23 08:00:00"),
        (
            {"cron": " 0  9 * * mon ", "timezone": "America/New_York"},
            "cron 0 9 * * MON America/New_York",
            "2026-11-23 14:00:00",
        ),
        ({"at": "18:30", "timezone": "America/New_York"}, "at 2026-11-21T18:30:00-05:00", "2026-11-21 23:30:00"),
    ],
)
def test_again_and_again_and_elsewhere(spoken: dict[str, str], schedule: str, first: str) -> None:
    assert meant(spoken) == (schedule, first)


@pytest.mark.parametrize(
    ("now", "at", "schedule"),
    [
        ("2026-03-28T12:00Z", "2026-03-29T02:30", "at 2026-03-29T03:30:00+02:00"),  # there is none: as before the gap
        ("2026-10-24T12:00Z", "2026-10-25T02:30", "at 2026-10-25T02:30:00+02:00"),  # there are two: the first
        ("2026-10-25T00:40Z", "2:30", "at 2026-10-26T02:30:00+01:00"),  # between both
        ("2026-10-25T00:10Z", "in 1h", "at 2026-10-25T02:10:00+01:00"),
    ],
)
def test_clocks_change(now: str, at: str, schedule: str) -> None:
    assert meant({"at": at}, datetime.fromisoformat(now))[0] == schedule


def test_this_very_moment_is_past() -> None:
    now = NOW.replace(second=0, microsecond=0)
    assert meant({"at": "20:45"}, now)[0] == "at 2026-11-22T20:45:00+01:00"
    assert meant({"at": "2026-11-21T20:45:01"}, now)[0] == "at 2026-11-21T20:45:01+01:00"
    with pytest.raises(ScheduleError, match="That is past"):
        meant({"at": "2026-11-21T20:45"}, now)


@pytest.mark.parametrize(
    ("spoken", "said"),
    [
        ({}, "Say when: `at`, `every` or `cron`; write e.g. 2026-11-22T09:00"),
        ({"at": "soon"}, "That is no time that is understood here; write e.g."),
        ({"at": "2026-11-22"}, "That is no time"),
        ({"at": "2026-13-22T09:00"}, "That is no time"),
        ({"at": "0001-01-01T00:00+14:00"}, "That is no time"),
        ({"at": "9999-12-31T23:59:59.5-14:00"}, "That is no time"),
        ({"at": "25:00"}, "There is no such time of day; write e.g."),
        ({"at": "2 months"}, "That is no time"),
        ({"at": "2026-11-21T20:45"}, "That is past: it is now 2026-11-21T20:45 (Europe/Zurich)."),
        ({"at": "today 20:00"}, "That is past"),
        ({"at": "in 99999999999999999999 weeks"}, "That is more than five years ahead"),
        ({"at": "2036-01-01T00:00"}, "That is more than five years ahead"),
        ({"every": "59 s"}, "Something can repeat once a minute at most"),
        ({"every": "0"}, "Something can repeat once a minute at most"),
        ({"every": "300 weeks"}, "Something must repeat within five years"),
        ({"every": "day"}, "`every` takes how long between two times"),
        ({"every": "9" * 5_000}, "`every` takes how long"),
        ({"cron": "0 9 * * 1-5", "at": "9:00"}, "Give `cron` alone"),
        ({"cron": "0 9 * * 1-5", "every": "1h"}, "Give `cron` alone"),
        ({"cron": "@daily"}, "Cron takes five fields"),
        ({"cron": "0 0 9 * * 1"}, "Cron takes five fields"),
        ({"cron": "61 9 * * *"}, "Bad minute in that cron expression"),
        ({"cron": "0 0 */28 2 1#5"}, "That cron expression does not come within five years."),  # 2044-02-29
        ({"cron": "* * */20 * 1L"}, "That cron expression does not come within five years."),
        ({"at": "9:00", "timezone": "Zurich"}, "No such time zone; write an IANA name"),
        ({"at": "9:00", "timezone": "/etc/localtime"}, "No such time zone"),
    ],
)
def test_what_is_none_is_told_with_what_to_write(spoken: dict[str, str], said: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        meant(spoken)
    assert str(refused.value).startswith(said)


WORDS = st.text(max_size=20) | st.lists(
    st.sampled_from(["in", "2", "h", "90", "min", "9:00", "tomorrow", "T", "-", ":", "2026-11-22", "*", "\ud800", "٣"]),
    max_size=6,
).flatmap(lambda words: st.sampled_from(["".join(words), " ".join(words)]))


@given(WORDS, WORDS, st.just("") | WORDS, st.just("") | WORDS)
def test_whatever_is_written_is_understood_or_refused(at: str, every: str, cron: str, timezone: str) -> None:
    try:
        schedule, first = parse_spoken_time(SpokenTime(at=at, every=every, cron=cron, timezone=timezone), NOW, ZURICH)
    except ScheduleError as error:
        assert len(str(error)) < 300  # noqa: PT017 - what is understood is as good
    else:
        assert NOW < first <= NOW + MAX_AHEAD + timedelta(seconds=1)
        assert parse_schedule(format_schedule(schedule)) == schedule
