"""Presence of people: estimated from their words, and tracked on a real store."""

import asyncio
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from gateway.config.models import AttentionConfig, PresenceConfig
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
    PresenceTracker,
    level_by_silence,
    render_away_note,
    shows_presence,
)
from tests.kits.settings import live_settings

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT = Address(channel=ChannelName("x"), room=RoomId("a"))
OWNED = identity.AccessPolicy(dm_policy="open", roles={"x:ann": "owner"}, open_rooms={})
NOBODY = identity.AccessPolicy(dm_policy="open", roles={}, open_rooms={})


@pytest.mark.parametrize(
    ("minutes", "level"),
    [(0, "present"), (14.9, "present"), (15, "idle"), (239.9, "idle"), (240, "away"), (math.inf, "away")],
)  # fmt: skip
def test_levels_by_silence(minutes: float, level: PresenceLevel) -> None:
    assert level_by_silence(PresenceConfig(), minutes * 60, NOON) == level


@pytest.mark.parametrize(
    ("sleep", "zone", "nights"),
    [
        ("23:00-07:00", "UTC", [0, 1, 2, 3, 4, 5, 6, 23]),
        ("23:00-07:00", "Europe/Zurich", [0, 1, 2, 3, 4, 5, 22, 23]),
        ("01:30-04:00", "UTC", [2, 3]),
        (None, "UTC", []),
    ],
)
def test_who_is_silent_at_night_sleeps(sleep: str | None, zone: str, nights: list[int]) -> None:
    config = PresenceConfig(sleep=sleep, timezone=zone)
    hours = [NOON.replace(hour=hour) for hour in range(24)]
    silent = [level_by_silence(config, 3_600, one) for one in hours]
    assert [hour for hour in range(24) if silent[hour] == "sleeping"] == nights
    assert {level_by_silence(config, 60, one) for one in hours} == {"present"}


def tracker(
    clock: ManualClock, who: identity.AccessPolicy = OWNED
) -> tuple[PresenceTracker, list[PresenceLevel]]:
    made, told = (
        PresenceTracker(live_settings(attention=AttentionConfig()), clock, who),
        list[PresenceLevel](),
    )
    made.add_listener(told.append)
    return made, told


def test_what_is_ordered_holds_until_it_is_taken_back() -> None:
    clock = ManualClock(NOON)
    made, told = tracker(clock)
    made.set_level("sleeping")
    made.record_message(spoken(1, clock.now()))
    made.set_level(None)
    assert told == ["sleeping", "present"]


def test_their_coming_back_is_told_once_and_soon() -> None:
    clock = ManualClock(NOON)
    made, _ = tracker(clock)
    for minutes, absence in (
        (0, None), (14, None), (16, timedelta(minutes=16)), (1, None), (200, timedelta(minutes=200)),
    ):  # fmt: skip
        clock.advance(60 * minutes)
        made.record_message(spoken(1, clock.now()))
        assert made.take_absence() == absence
    clock.advance(3_600)
    made.record_message(spoken(1, clock.now()))
    clock.advance(900)
    assert made.take_absence() is None, "they have been back for long"


async def test_the_passing_of_time_is_told() -> None:
    clock = ManualClock(NOON)
    made, told = tracker(clock)
    made.record_message(spoken(1, clock.now()))
    running = asyncio.create_task(made.run())
    for _ in range(60):
        await asyncio.sleep(0)
        clock.advance(300)
    await asyncio.sleep(0)
    running.cancel()
    assert told == ["idle", "away"]


def said(
    kind: Literal["direct", "mention", "reply", "room"] = "direct",
    *,
    bot: bool = False,
    sent: datetime = NOON,
    who: str = "ann",
    number: int = 1,
) -> Message:
    return Message(
        id=MessageId(f"{number}"),
        at=AT,
        sender=Sender(id=SenderId(who), name=who, is_bot=bot, verified=True),
        text="hi",
        sent=sent,
        kind=kind,
    )


def spoken(number: int, at: datetime, who: str = "ann") -> Message:
    return said(number=number, sent=at, who=who)


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


@pytest.mark.parametrize(
    ("who", "minutes", "noise", "refused", "level"),
    [
        (OWNED, [-10], 0, False, "present"),
        (OWNED, [-20], 0, False, "idle"),
        (OWNED, [-20], 1_000, False, "idle"),
        (OWNED, [-200], 1_000, False, "idle"),
        (OWNED, [-300], 1_000, False, "away"),
        (OWNED, [], 1_000, False, "away"),
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
    clock = ManualClock(NOON)
    (before, _), (after, told) = tracker(clock, who), tracker(clock, who)
    async with await Store.open(tmp_path / "s.db", clock) as store:
        store.subscribe(before.on_judged)
        theirs = [spoken(n, NOON + timedelta(minutes=at)) for n, at in enumerate(sorted(minutes))]
        guests = [
            spoken(10_000 + n, NOON - timedelta(minutes=100 * n / noise), "eve")
            for n in range(noise)
        ]
        await log(store, sorted([*theirs, *guests], key=lambda one: one.sent), refused=refused)
        await after.load(store)
    assert before.level == after.level == level
    assert told == ([] if level == "present" else [level])
    assert after.take_absence() is None
