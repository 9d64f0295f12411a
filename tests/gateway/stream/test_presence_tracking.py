"""Presence of people, tracked on a real store and a manual clock."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.config.models import AttentionConfig
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, Message, MessageId, PresenceLevel, RoomId, Sender, SenderId
from gateway.core.facts import Judgement
from gateway.store import NewEntry, Store
from gateway.stream.presence import PresenceTracker
from tests.kits.settings import live_settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT = Address(channel=ChannelName("x"), room=RoomId("a"))
OWNED = identity.AccessPolicy(dm_policy="open", roles={"x:ann": "owner"}, open_rooms={})
NOBODY = identity.AccessPolicy(dm_policy="open", roles={}, open_rooms={})


def said(number: int, minutes: float, who: str = "ann", kind: str = "direct") -> Message:
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
        entries += [noticed, NewEntry(fact=judged, at=message.sent, conversation=AT.conversation, cause=noticed)]
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
def test_after_a_restart_they_are_as_near_as_before(
    tmp_path: Path, who: identity.AccessPolicy, minutes: list[float], noise: int, *, refused: bool, level: PresenceLevel
) -> None:
    async def story() -> None:
        clock, told = ManualClock(NOW), list[PresenceLevel]()
        async with await Store.open(tmp_path / "s.db", clock) as store:
            theirs = [said(n, at) for n, at in enumerate(sorted(minutes))]
            guests = [said(10_000 + n, -100 * n / max(noise, 1), "eve") for n in range(noise)]
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

    asyncio.run(story())


def test_each_change_is_told_when_it_comes(tmp_path: Path) -> None:
    async def story() -> None:
        clock, told = ManualClock(NOW), list[tuple[float, PresenceLevel]]()

        def tell(level: PresenceLevel) -> None:
            told.append((clock.monotonic() / 60, level))

        following = PresenceTracker(live_settings(attention=AttentionConfig()), clock, OWNED)
        following.listener = Levels(tell)
        async with await Store.open(tmp_path / "s.db", clock) as store:
            await following.load(store)
        running = asyncio.create_task(following.run())
        following.record_message(said(1, 0), "owner")
        following.record_message(said(2, 0, "eve"), "guest")
        for _ in range(60 * 5):
            for _ in range(20):
                await asyncio.sleep(0)
            clock.advance(60)
        following.record_message(said(3, 300), "owner")
        assert following.take_absence() == timedelta(minutes=300)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert told == [(0, "away"), (0, "present"), (15, "idle"), (240, "away"), (300, "present")]

    asyncio.run(story())
