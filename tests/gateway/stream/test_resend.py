"""Resending of parts that may have been seen: only where, and while, the platform drops repeats."""

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.base import Denied, RateLimited, Rejected, SendError, Uncertain, Unreachable
from gateway.core.clock import ManualClock
from gateway.core.events import Address, Post, PostKey, RoomId
from gateway.core.facts import FACT, Fact, PartSendEnded, PartSendStarted, PostQueued
from gateway.store import NewEntry, OutboxPart, PartState, Store, rebuild
from gateway.store.schema import APPLICATION_ID, migrations
from gateway.stream import outbox
from gateway.stream.outbox import LOST_IN_CRASH_TEXT
from tests.gateway.stream.outbox_kit import NAME, Postman, office, play

KEY = PostKey("p")
FAILED, UNCERTAIN = (
    outbox.RetryDecision(state="failed", reason="x"),
    outbox.RetryDecision(state="uncertain", reason="x"),
)
OLD = outbox.RetryDecision(state="uncertain", reason="gave up after 24 h: x")


def again(wait_s: float) -> outbox.RetryDecision:
    return outbox.RetryDecision(state="waiting", reason="x", wait_s=wait_s, maybe_seen=True)


@pytest.mark.parametrize(
    ("error", "since_s", "expected"),
    [
        (Uncertain("x"), None, again(1.0)),
        (Uncertain("x"), 0, again(1.0)),
        (Uncertain("x"), 98.9, again(1.0)),
        (Uncertain("x"), 99.0, UNCERTAIN),  # the next attempt would come when the window is over
        (Uncertain("x"), 500, UNCERTAIN),
        (Uncertain("x"), -5, UNCERTAIN),  # the clock went back: nobody knows how long ago it was
        (Uncertain("x"), -0.5, UNCERTAIN),  # also if the wait until the next attempt would make up for it
        (Unreachable("x"), 10, again(1.0)),
        (Unreachable("x"), 100, UNCERTAIN),
        (Unreachable("x"), None, outbox.RetryDecision(state="waiting", reason="x", wait_s=1.0)),
        (RateLimited("x", retry_after_s=30), 10, again(30.0)),
        (RateLimited("x", retry_after_s=90), 10, UNCERTAIN),
        (Rejected("x"), 10, UNCERTAIN),  # surely not by this attempt, but perhaps by the one before
        (Rejected("x"), None, FAILED),
        (Denied("x"), 10, UNCERTAIN),
    ],
)
def test_verdicts_within_and_beyond_the_window(
    error: SendError, since_s: float | None, expected: outbox.RetryDecision
) -> None:
    assert outbox.decide_retry(error, attempts=1, age_s=0, since_s=since_s, resend_s=100) == expected


def test_an_old_post_that_may_have_been_seen_ends_uncertain_not_failed() -> None:
    assert outbox.decide_retry(Uncertain("x"), attempts=1, age_s=86_400, resend_s=100) == OLD


def part(index: int, state: PartState, first: datetime | None) -> OutboxPart:
    return OutboxPart(index=index, body="x", state=state, reason="", attempts=1, first_at=first)


NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RECENT, LONG_AGO = NOW - timedelta(seconds=10), NOW - timedelta(hours=1)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([part(0, "sending", RECENT)], {0: "waiting"}),
        ([part(0, "sending", LONG_AGO)], {0: "uncertain"}),
        ([part(0, "sending", NOW + timedelta(seconds=1))], {0: "uncertain"}),
        ([part(0, "sending", None)], {0: "uncertain"}),
        ([part(0, "sent", RECENT), part(1, "sending", RECENT), part(2, "pending", None)], {1: "waiting"}),
        ([part(0, "sending", RECENT), part(1, "sent", RECENT)], {0: "uncertain"}),  # would come after its successor
        ([part(0, "sending", RECENT), part(1, "sending", RECENT)], {0: "uncertain", 1: "waiting"}),
        ([part(0, "sending", RECENT), part(1, "pending", RECENT)], {0: "uncertain"}),
        ([part(0, "sent", RECENT), part(1, "pending", RECENT)], {}),
    ],
)
def test_what_a_crash_left_behind(parts: list[OutboxPart], expected: dict[int, str]) -> None:
    assert outbox.recover_parts(parts, now=NOW, resend_s=60) == expected
    never = outbox.recover_parts(parts, now=NOW, resend_s=0)
    assert set(never.values()) <= {"uncertain"}


def test_parts_that_can_be_sent_again_go_one_by_one() -> None:
    parts = [part(index, "pending", None) for index in range(3)]
    assert len(outbox.select_window(parts, 2)) == 2
    assert [one.index for one in outbox.select_window(parts, 2, resend_s=60)] == [0]


def test_an_uncertain_part_is_sent_again_with_its_key_before_the_next(tmp_path: Path) -> None:
    postman = Postman(None, Uncertain("cut"), Uncertain("cut"), resend_s=9_000, window=3)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            key = await work.post("1\n2\n3")
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == ("sent", "")
            assert postman.attempts == [f"{key}#{index}" for index in (0, 1, 1, 1, 2)]
            assert postman.sent == ["1", "2", "3"]

    play(story)
    assert asyncio.run(rebuild(tmp_path / "s.db")) == []


def test_it_ends_uncertain_when_the_window_is_over(tmp_path: Path) -> None:
    postman = Postman(*[Uncertain("cut")] * 99, resend_s=900)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1")
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == ("uncertain", "part 1 of 1: cut")
            handed_over = [entry.at for entry in await work.store.entries(kinds=["sending"])]
            assert timedelta(0) < handed_over[-1] - handed_over[0] < timedelta(seconds=900)

    play(story)


def test_a_link_that_comes_back_after_the_window_sends_nothing_twice(tmp_path: Path) -> None:
    postman = Postman(Uncertain("cut"), resend_s=60)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1\n2")
            while not postman.attempts:
                await asyncio.sleep(0)
            work.outbox.set_link_up(NAME, False)
            work.clock.advance(3600)
            work.outbox.set_link_up(NAME, True)
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == ("uncertain", "part 1 of 2: cut")
            assert postman.sent == ["2"]
            sendings = [entry.fact for entry in await work.store.entries(kinds=["sending"])]
            assert [fact.part for fact in sendings if isinstance(fact, PartSendStarted)] == [0, 1]

    play(story)


@pytest.mark.parametrize(("back_s", "sent"), [(0, True), (50, False), (3600, False)])
def test_a_clock_that_is_set_back_does_not_lengthen_the_window(tmp_path: Path, back_s: float, sent: bool) -> None:
    postman = Postman(Uncertain("cut"), resend_s=60)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1")
            while not await work.store.entries(kinds=["part"]):
                await asyncio.sleep(0)
            work.outbox.set_link_up(NAME, False)
            for _ in range(65 if back_s else 30):
                work.clock.advance(1)
            work.clock.correct(-back_s)
            work.outbox.set_link_up(NAME, True)
            (delivery,) = await work.ended(1)
            assert (delivery.state == "sent", len(postman.sent)) == (sent, int(sent))

    play(story)


def test_a_refusal_that_surely_did_not_send_opens_no_window(tmp_path: Path) -> None:
    """The window counts from the attempt that may have been seen, not from an earlier refused one."""
    postman = Postman(RateLimited("slow down", retry_after_s=10_000), Uncertain("cut"), resend_s=9_000)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1")
            (delivery,) = await work.ended(1)
            assert delivery.state == "sent"
            assert len(postman.attempts) == 3

    play(story)
    assert asyncio.run(rebuild(tmp_path / "s.db")) == []


async def crashed(tmp: Path, *facts: Fact) -> None:
    """Make a store in which a process died after these entries."""
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    to = Address(channel=NAME, room=RoomId("#a"))
    async with await Store.open(tmp / "s.db", clock) as store:
        for fact in (PostQueued(post=Post(key=KEY, to=to, text="1\n2")), *facts):
            await store.append([NewEntry(fact=fact, at=clock.now(), conversation=to.conversation)])


HANDED_OVER = PartSendStarted(post=KEY, part=0, bodies=("1", "2"))
DOUBT = PartSendEnded(post=KEY, part=0, state="waiting", reason="cut", maybe_seen=True)


@pytest.mark.parametrize(
    ("facts", "resend_s", "later_s", "shown"),
    [
        ((HANDED_OVER,), 9_000, 30, "12 sent"),
        ((HANDED_OVER,), 9_000, 9_001, "2 uncertain"),
        ((HANDED_OVER,), 0, 1, "2 uncertain"),
        ((HANDED_OVER, DOUBT), 9_000, 30, "12 sent"),
        ((HANDED_OVER, DOUBT), 9_000, 9_001, "2 uncertain"),
        ((HANDED_OVER, DOUBT, PartSendStarted(post=KEY, part=0, bodies=None)), 9_000, 9_001, "2 uncertain"),
    ],
)
def test_after_a_crash_the_window_still_counts_from_the_first_time(
    tmp_path: Path, facts: tuple[Fact, ...], resend_s: float, later_s: float, shown: str
) -> None:
    postman = Postman(resend_s=resend_s)

    async def story() -> None:
        await crashed(tmp_path, *facts)
        async with office(tmp_path, postman, later_s=later_s) as work:
            (delivery,) = await work.ended(1)
            assert f"{''.join(postman.sent)} {delivery.state}" == shown
            assert delivery.reason in ("", f"part 1 of 2: {LOST_IN_CRASH_TEXT}", "part 1 of 2: cut")

    play(story)
    assert asyncio.run(rebuild(tmp_path / "s.db")) == []


def test_a_store_of_the_version_before_agrees_with_its_log(tmp_path: Path) -> None:
    """The new column is filled from the log when an older store is upgraded."""
    path = tmp_path / "s.db"
    to = Address(channel=NAME, room=RoomId("#a"))
    waiting = PartSendEnded(post=KEY, part=1, state="waiting", reason="slow down")
    facts: tuple[Fact, ...] = (
        PostQueued(post=Post(key=KEY, to=to, text="1\n2")),
        HANDED_OVER,
        PartSendStarted(post=KEY, part=1, bodies=None),
        waiting,
    )
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(
        f"{migrations()[0][1]}; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;"
    )
    for seq, fact in enumerate(facts, 1):
        row = (seq, f"2026-03-01T12:00:0{seq}.000000+00:00", fact.kind, to.conversation, FACT.dump_json(fact).decode())
        connection.execute("INSERT INTO log (seq, at, kind, conversation, body) VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("INSERT INTO outbox VALUES (1, ?)", (KEY,))
    connection.execute("INSERT INTO outbox_part VALUES (?, 0, '1', 'sending', '', 1)", (KEY,))
    connection.execute("INSERT INTO outbox_part VALUES (?, 1, '2', 'pending', 'slow down', 1)", (KEY,))
    connection.close()

    async def parts() -> list[OutboxPart]:
        async with await Store.open(path, ManualClock()) as store:
            (item,) = await store.undelivered_posts()
            return list(item.parts)

    first, second = asyncio.run(parts())
    assert (first.first_at, second.first_at) == (datetime(2026, 3, 1, 12, 0, 2, tzinfo=UTC), None)
    assert asyncio.run(rebuild(path)) == []
