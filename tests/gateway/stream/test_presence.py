"""Presence of people: estimated from their words, and tracked on a real store."""

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
    Message,
    MessageId,
    PresenceLevel,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement, Seq
from gateway.core.identity import Role
from gateway.store import LogEntry, NewEntry, Store
from gateway.stream.presence import PresenceTracker, level_by_silence
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


def tracker(clock: ManualClock, who: identity.AccessPolicy = OWNED) -> PresenceTracker:
    return PresenceTracker(live_settings(attention=AttentionConfig()), clock, who)


def hear(made: PresenceTracker, message: Message, role: Role = "owner", seq: int = 1) -> None:
    """Record a message that was accepted, as the entries of one append."""
    judged = Judgement(type="t", urgency=0, fate="due", rule="", role=role)
    entry = LogEntry(
        seq=Seq(seq),
        at=message.sent,
        kind=message.kind,
        conversation=AT.conversation,
        key=None,
        cause=None,
        fact=message,
    )
    made.on_judged([entry, entry._replace(fact=judged, cause=entry.seq)])


def test_what_is_ordered_holds_until_it_is_taken_back() -> None:
    clock = ManualClock(NOON)
    made = tracker(clock)
    made.set_level("sleeping")
    hear(made, spoken(1, clock.now()))
    ordered = made.level
    made.set_level(None)
    assert (ordered, made.level) == ("sleeping", "present")


def test_who_comes_back_is_known_to_have_been_away() -> None:
    clock = ManualClock(NOON)
    made = tracker(clock)
    for number, (minutes, absence) in enumerate(
        ((0, None), (14, None), (16, 16), (1, 16), (200, 200))
    ):
        clock.advance(60 * minutes)
        hear(made, spoken(1, clock.now()), seq=number)
        back = made.last_return
        assert (back and (back.at - back.gone_since) / timedelta(minutes=1)) == absence
        assert back is None or (back.seq, back.at) == (Seq(number), clock.now()) or minutes == 1


def test_people_go_as_time_passes() -> None:
    clock, levels = ManualClock(NOON), list[PresenceLevel]()
    made = tracker(clock)
    hear(made, spoken(1, clock.now()))
    for _ in range(60):
        levels.append(made.level)
        clock.advance(300)
    assert list(dict.fromkeys(levels)) == ["present", "idle", "away"]


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
    made = tracker(ManualClock(NOON), OWNED if named else NOBODY)
    hear(made, message, role)
    assert (made.level == "present") is shows


async def log(store: Store, messages: Iterable[Message], *, refused: bool = False) -> None:
    entries = []
    for message in messages:
        noticed = NewEntry(fact=message, at=message.sent, conversation=AT.conversation)
        fate = "refused" if refused else "due"
        role = "owner" if message.sender.id == "ann" else "guest"
        judged = Judgement(type="t", urgency=0, fate=fate, rule="", role=role)  # type: ignore[arg-type]  # of two
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
    before, after = tracker(clock, who), tracker(clock, who)
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
    assert after.last_return == before.last_return


@pytest.mark.parametrize(
    ("minutes", "gone"),
    [([-70, -10], 60), ([-70, -12, -10], 58), ([-70, -30, -20], None), ([-10], None)],
)
async def test_a_restart_remembers_who_has_just_come_back(
    tmp_path: Path, minutes: list[int], gone: int | None
) -> None:
    clock = ManualClock(NOON)
    after = tracker(clock)
    async with await Store.open(tmp_path / "s.db", clock) as store:
        theirs = [spoken(n, NOON + timedelta(minutes=at)) for n, at in enumerate(minutes)]
        await log(store, theirs)
        await after.load(store)
        back = after.last_return
        assert (back and (back.at - back.gone_since) / timedelta(minutes=1)) == gone
        assert back is None or (await store.entry(back.seq)) is not None
