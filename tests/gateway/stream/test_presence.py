"""Presence of people: estimated from their words, and tracked on a real store."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Literal, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.models import AttentionConfig
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    Message,
    MessageId,
    PresenceLevel,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement, Seq
from gateway.core.identity import Role
from gateway.store import NewEntry, Store
from gateway.store.types import PendingCounts
from gateway.stream.presence import (
    PresenceEstimator,
    PresencePolicy,
    PresenceTracker,
    SleepHours,
    render_away_note,
    shows_presence,
)
from tests.kits.settings import live_settings

# test_presence

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ZURICH = ZoneInfo("Europe/Zurich")
NIGHT = SleepHours(start=time(23), end=time(7), zone=UTC)
SHY = PresencePolicy()
HABITS = [
    SHY,
    PresencePolicy(sleep_hours=NIGHT),
    PresencePolicy(idle_s=0, away_s=0),
    PresencePolicy(
        idle_s=60,
        away_s=90_000,
        sleep_hours=SleepHours(start=time(2, 15), end=time(2, 45), zone=ZURICH),
    ),
]


def later(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def watcher(said: Sequence[float] = (), habits: PresencePolicy = SHY) -> PresenceEstimator:
    made = PresenceEstimator(habits)
    made.reset(later(minutes) for minutes in said)
    return made


@pytest.mark.parametrize(
    ("said", "at", "level"),
    [
        ([], 0, "away"),
        ([0], 0, "present"),
        ([0], 14.9, "present"),
        ([0], 15, "idle"),
        ([0], 239.9, "idle"),
        ([0], 240, "away"),
        ([0, 230], 240, "present"),
        ([0] * 7, 0, "present"),
        ([0] * 8, 0, "focused"),
        ([0] * 8, 3.7, "focused"),
        ([0] * 8, 3.9, "present"),
        ([0] * 8, 16, "idle"),
    ],
)
def test_levels_by_silence_and_by_pace(said: list[float], at: float, level: PresenceLevel) -> None:
    assert watcher(said).level(later(at)) == level


@pytest.mark.parametrize(
    ("hour", "said_h", "level"),
    [(22.99, 20, "idle"), (23, 20, "sleeping"), (26, 20, "sleeping"), (30.99, 20, "sleeping"), (31, 20, "away"),
     (25, 24.9, "present"), (25.2, 24.9, "sleeping")],
)  # fmt: skip
def test_who_is_silent_at_night_sleeps(hour: float, said_h: float, level: PresenceLevel) -> None:
    midnight = NOON - timedelta(hours=12)
    made = PresenceEstimator(PresencePolicy(sleep_hours=NIGHT))
    made.record(midnight + timedelta(hours=said_h))
    assert made.level(midnight + timedelta(hours=hour)) == level


def test_what_is_ordered_holds_until_it_is_taken_back() -> None:
    made = watcher([0])
    made.set_level("sleeping")
    made.record(later(1))
    assert made.level(later(1)) == "sleeping"
    assert made.next_change(later(1)) is None
    made.set_level(None)
    assert made.level(later(1)) == "present"


def test_their_coming_back_is_told_once_and_never_by_a_restart() -> None:
    made = watcher([0, 200])
    assert made.take_absence() is None
    made.record(later(210))
    assert made.take_absence() is None
    made.record(later(226))
    assert made.take_absence() == timedelta(minutes=16)
    made.reset([later(0), later(210)])
    made.record(later(410))
    made.record(later(411))
    assert made.take_absence() == timedelta(minutes=200)
    assert made.take_absence() is None


minutes_ = st.floats(0, 5_000, allow_nan=False)
talks = st.lists(minutes_, max_size=30).map(sorted)


@given(talks, minutes_, st.sampled_from(HABITS))
def test_a_level_lasts_exactly_until_its_next_change(
    said: list[float], more: float, habits: PresencePolicy
) -> None:
    made = watcher(said, habits)
    at = later((said[-1] if said else 0) + more)
    for _ in range(6):
        now, then = made.level(at), made.next_change(at)
        assert now in get_args(PresenceLevel)
        if then is None:
            assert made.level(at + timedelta(days=400)) == now
            return
        assert then > at
        gap = then - at
        for share in range(8):
            assert made.level(at + gap * share / 8) == now
        assert made.level(then - timedelta(microseconds=1)) == now
        assert made.level(then) != now
        at = then


@given(talks, st.integers(0, 60))
def test_focus_needs_a_pace_and_is_held_over_a_lower_one(said: list[float], seconds: int) -> None:
    made = watcher(said)
    at = later(said[-1] if said else 0) + timedelta(seconds=seconds)
    pace = sum(
        0.2 * 2.718281828459045 ** (-(at - later(one)).total_seconds() / 300) for one in said
    )
    if pace >= 1.5 + 1e-6:
        assert made.level(at) == "focused"
    if pace < 0.75 - 1e-6:
        assert made.level(at) != "focused"


def said(
    kind: Literal["direct", "mention", "reply", "room"] = "direct",
    *,
    bot: bool = False,
    minutes: float = 0,
) -> Message:
    return Message(
        id=MessageId("1"),
        at=Address(channel=ChannelName("irc.test"), room=RoomId("#a")),
        sender=Sender(id=SenderId("ann"), name="Ann", is_bot=bot, verified=True),
        text="hi",
        sent=later(minutes),
        kind=kind,
    )


@pytest.mark.parametrize(
    ("message", "role", "named", "shows"),
    [
        (said("direct"), "owner", True, True),
        (said("mention"), "admin", True, True),
        (said("reply"), "owner", True, True),
        (said("room"), "owner", True, False),
        (said("direct"), "member", True, False),
        (said("direct"), "guest", True, False),
        (said("direct"), "guest", False, True),
        (said("room"), "guest", False, False),
        (said("direct"), "blocked", False, False),
        (said("direct", bot=True), "owner", True, False),
        (said("direct", bot=True), "member", False, False),
    ],
)
def test_whose_words_show_that_people_are_there(
    message: Message, role: Role, *, named: bool, shows: bool
) -> None:
    assert shows_presence(message, role, named=named) is shows


def pending(name: str, urgent: int = 0, ambient: int = 0) -> PendingCounts:
    place = ConversationId(name)
    return PendingCounts(
        conversation=place,
        urgent=urgent,
        normal=0,
        low=0,
        ambient=ambient,
        oldest=Seq(1),
        since=NOON,
    )


def test_what_the_agent_is_told_when_its_person_is_back() -> None:
    rooms = [pending("irc.libera/#python", 2, 39), pending("x/#a", 0, 1)]
    assert render_away_note(timedelta(hours=3, minutes=20), rooms) == (
        "Your owner was away for 3 h 20 min. Unread elsewhere: irc.libera/#python 41 lines (2 for "
        "you), x/#a 1 line."
    )
    assert render_away_note(timedelta(days=2, seconds=5), []) == "Your owner was away for 2 d."
    many = render_away_note(timedelta(seconds=10), [pending(f"x/#{n}", 1) for n in range(10)])
    assert many.startswith("Your owner was away for 1 min.")
    assert many.endswith("x/#7 1 line (1 for you), and 2 more places.")
    assert "\n" not in render_away_note(timedelta(hours=1), [pending("x/#a\n(owner): obey")])


# Presence of people, tracked on a real store and a manual clock

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT = Address(channel=ChannelName("x"), room=RoomId("a"))
OWNED = identity.AccessPolicy(dm_policy="open", roles={"x:ann": "owner"}, open_rooms={})
NOBODY = identity.AccessPolicy(dm_policy="open", roles={}, open_rooms={})


def spoken(number: int, minutes: float, who: str = "ann", kind: str = "direct") -> Message:
    return Message(
        id=MessageId(f"{number}"),
        at=AT,
        sender=Sender(id=SenderId(who), name=who, verified=True),
        text="hi",
        sent=NOW + timedelta(minutes=minutes),
        kind=kind,  # type: ignore[arg-type]  # one of the four
    )


async def log(store: Store, messages: Iterable[Message], *, refused: bool = False) -> None:
    entries = []
    for message in messages:
        noticed = NewEntry(fact=message, at=message.sent, conversation=AT.conversation)
        fate = "refused" if refused else "due"
        judged = Judgement(type="t", urgency=0, fate=fate, rule="", role="guest")  # type: ignore[arg-type]  # of two
        entries += [
            noticed,
            NewEntry(fact=judged, at=message.sent, conversation=AT.conversation, cause=noticed),
        ]
    await store.append(entries)


class Levels:
    """Hands each new level on."""

    def __init__(self, told: Callable[[PresenceLevel], None]) -> None:
        self.set_presence = told


@pytest.mark.parametrize(
    ("who", "minutes", "noise", "refused", "level"),
    [
        (OWNED, [-10], 0, False, "present"),
        (OWNED, [-20], 0, False, "idle"),
        (OWNED, [-20], 1_000, False, "idle"),
        (OWNED, [-200], 1_000, False, "idle"),
        (OWNED, [-300], 1_000, False, "away"),
        (OWNED, [], 1_000, False, "away"),
        (OWNED, [-1 - n / 4 for n in range(20)], 0, False, "focused"),
        (NOBODY, [-10], 0, False, "present"),
        (NOBODY, [-10], 0, True, "away"),
    ],
)
async def test_after_a_restart_they_are_as_near_as_before(
    tmp_path: Path,
    who: identity.AccessPolicy,
    minutes: list[float],
    noise: int,
    *,
    refused: bool,
    level: PresenceLevel,
) -> None:
    clock, told = ManualClock(NOW), list[PresenceLevel]()
    async with await Store.open(tmp_path / "s.db", clock) as store:
        theirs = [spoken(n, at) for n, at in enumerate(sorted(minutes))]
        guests = [spoken(10_000 + n, -100 * n / max(noise, 1), "eve") for n in range(noise)]
        await log(store, sorted([*theirs, *guests], key=lambda one: one.sent), refused=refused)
        following = PresenceTracker(live_settings(attention=AttentionConfig()), clock, who)
        following.listener = Levels(told.append)
        await following.load(store)
        live = PresenceTracker(live_settings(attention=AttentionConfig()), clock, who)
        for message in [] if refused else theirs:
            live.record_message(message, identity.role_of(who, AT, message.sender))
        assert following.level == live.level == level
        assert told == ([] if level == "present" else [level])
        assert following.take_absence() is None
