"""Delivery under faults: a channel that fails in each way of the contract, on a real store."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from channels.base import (
    BeforeSend,
    Denied,
    Part,
    RateLimited,
    RecipientAway,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    no_before_send,
)
from gateway.core.clock import ManualClock
from gateway.core.events import Address, Post, PostKey, Receipt, RoomId
from gateway.core.facts import PartSendEnded, PartSendStarted, PostQueued
from gateway.store import NewEntry, Store
from gateway.stream import outbox
from gateway.stream.outbox import LOST_IN_CRASH_TEXT
from gateway.stream.trace import explain_event
from tests.gateway.stream.outbox_kit import NAME, Books, Office, Postman, office, play


class Buggy(Postman):
    """An adapter that breaks on some posts."""

    def split(self, post: Post) -> tuple[str, ...]:
        if "uncuttable" in post.text:
            raise KeyError("a bug")
        return super().split(post)

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        if "early" in part.body:
            raise KeyError("a bug")
        receipt = await super().send(part, going)
        if "late" in part.body:
            raise KeyError("a bug")
        return receipt


def test_parts_go_out_in_order_and_once(tmp_path: Path) -> None:
    postman = Postman(window=2)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1\n2\n3\n4\n5")
            await work.post("6\n7")
            states = [delivery.state for delivery in await work.ended(2)]
            assert states == ["sent", "sent"]
            assert await work.store.undelivered_posts() == []
        assert postman.sent == list("1234567")
        assert len(set(postman.attempts)) == 7

    play(story)


@pytest.mark.parametrize(
    ("ends", "sent", "state", "reason"),
    [
        ([None, Uncertain("cut")], "13", "uncertain", "part 2 of 3: cut"),
        ([Rejected("muted")], "", "failed", "part 1 of 3: muted"),
        ([Denied("banned"), None], "", "failed", "part 1 of 3: banned"),
        ([RateLimited("flood", retry_after_s=7)], "123", "sent", ""),
        ([None, Unreachable("no link"), Unreachable("no link")], "123", "sent", ""),
    ],
)
def test_each_error_ends_as_its_name_says(
    tmp_path: Path, ends: list[SendError | None], sent: str, state: str, reason: str
) -> None:
    postman = Postman(*ends)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1\n2\n3")
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == (state, reason)
        assert "".join(postman.sent) == sent

    play(story)


def test_a_failed_part_ends_the_post(tmp_path: Path) -> None:
    postman = Postman(None, None, Rejected("muted"), None, window=2)

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("1\n2\n3\n4\n5\n6")
            (delivery,) = await work.ended(1)
            assert delivery.reason == "part 3 of 6: muted"
        assert "".join(postman.sent) == "124"  # 4 was in the same window; 5 and 6 were never tried

    play(story)


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        ("uncuttable", "failed", "internal error: KeyError"),
        ("early\n2", "failed", "part 1 of 2: internal error: KeyError"),
        ("late\n2", "uncertain", "part 1 of 2: internal error: KeyError"),
    ],
)
def test_a_bug_in_an_adapter_ends_that_post_only(tmp_path: Path, text: str, state: str, reason: str) -> None:
    async def story() -> None:
        async with office(tmp_path, Buggy()) as work:
            await work.post(text)
            await work.post("fine")
            first, second = await work.ended(2)
            assert (first.state, first.reason, second.state) == (state, reason, "sent")
            assert await work.store.undelivered_posts() == []  # nothing that would break the next start

    play(story)


def test_nothing_is_sent_while_the_link_is_down(tmp_path: Path) -> None:
    postman = Postman()

    async def story() -> None:
        async with office(tmp_path, postman, up=False) as work:
            await work.post("1")
            await asyncio.sleep(0.05)
            assert not postman.attempts
            work.outbox.set_link_up(NAME, True)
            await work.ended(1)
        assert postman.sent == ["1"]

    play(story)


def test_yesterdays_answer_is_not_posted_when_the_link_comes_back(tmp_path: Path) -> None:
    postman = Postman()

    async def story() -> None:
        async with office(tmp_path, postman, up=False) as work:
            await work.post("late")
            work.clock.advance(25 * 3600)
            work.outbox.set_link_up(NAME, True)
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == ("failed", "the link was down for too long")
        assert not postman.attempts

    play(story)


def test_a_first_try_makes_yesterdays_answer_no_fresher(tmp_path: Path) -> None:
    postman = Postman(Unreachable("down"))

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            await work.post("late\nlater")
            while not await work.store.entries(kinds=["part"]):
                await asyncio.sleep(0)
            work.outbox.set_link_up(NAME, False)
            work.clock.advance(12 * 3600)
        async with office(tmp_path, postman, later_s=25 * 3600) as work:  # nor does a restart
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == ("failed", "the link was down for too long")
        assert len(postman.attempts) == 1

    play(story)


def test_a_slow_room_does_not_stall_another(tmp_path: Path) -> None:
    postman = Postman()

    async def story() -> None:
        async with office(tmp_path, postman) as work:
            postman.hold = asyncio.Event()
            await work.post("slow")
            while not postman.attempts:
                await asyncio.sleep(0)
            held, postman.hold = postman.hold, None
            await work.post("fast", room="#b")
            (delivery,) = await work.ended(1)
            assert delivery.at.room == "#b"
            held.set()
            await work.ended(2)

    play(story)


async def _left_by_a_crash(tmp: Path, *facts: PartSendEnded | PartSendStarted) -> None:
    """Make a store in which a process died after these entries."""
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    to = Address(channel=NAME, room=RoomId("#a"))
    post = Post(key=PostKey("p"), to=to, text="1\n2\n3")
    async with await Store.open(tmp / "s.db", clock) as store:
        for fact in (PostQueued(post=post), *facts):
            await store.append([NewEntry(fact=fact, at=clock.now(), conversation=to.conversation)])


SENDING = PartSendStarted(post=PostKey("p"), part=0, bodies=("1", "2", "3"))
SENDING_2 = PartSendStarted(post=PostKey("p"), part=1, bodies=None)


def _end(part: int) -> PartSendEnded:
    return PartSendEnded(post=PostKey("p"), part=part, state="sent", reason="")


@pytest.mark.parametrize(
    ("facts", "sent", "state"),
    [
        ((), "123", "sent"),
        ((SENDING,), "23", "uncertain"),
        ((SENDING, SENDING_2), "3", "uncertain"),
        ((SENDING, SENDING_2, _end(0)), "3", "uncertain"),
        ((SENDING, _end(0), SENDING_2, _end(1)), "3", "sent"),
        (
            (SENDING, _end(0), SENDING_2, _end(1), PartSendStarted(post=PostKey("p"), part=2, bodies=None), _end(2)),
            "",
            "sent",
        ),
    ],
)
def test_after_a_crash_only_what_is_surely_unsent_is_sent(
    tmp_path: Path, facts: tuple[PartSendEnded | PartSendStarted, ...], sent: str, state: str
) -> None:
    postman = Postman()

    async def story() -> None:
        await _left_by_a_crash(tmp_path, *facts)
        async with office(tmp_path, postman) as work:
            (delivery,) = await work.ended(1)
            assert delivery.state == state
            assert (LOST_IN_CRASH_TEXT in delivery.reason) == (state == "uncertain")
        assert "".join(postman.sent) == sent

    play(story)


def test_a_part_that_waits_for_the_pace_was_surely_not_sent(tmp_path: Path) -> None:
    first, second = Postman(window=2), Postman(window=2)
    first.paced = asyncio.Event()

    async def story() -> None:
        async with office(tmp_path, first) as work:
            await work.post("1\n2\n3")
            while len(first.attempts) < 2:
                await asyncio.sleep(0)
            for task in work.tasks.running:
                task.cancel()  # as a crash would
            await asyncio.gather(*work.tasks.running, return_exceptions=True)
        assert not first.sent
        async with office(tmp_path, second) as work:
            (delivery,) = await work.ended(1)
            assert delivery.state == "sent"
        assert second.sent == ["1", "2", "3"]

    play(story)


def test_stopping_leaves_the_rest_to_the_next_process(tmp_path: Path) -> None:
    first, second = Postman(), Postman(window=2)

    async def story() -> None:
        async with office(tmp_path, first, up=False) as work:
            await work.post("1\n2")
        assert not first.attempts
        async with office(tmp_path, second) as work:
            await work.ended(1)
        assert second.sent == ["1", "2"]

    play(story)


@pytest.mark.parametrize(
    ("error", "attempts", "age_s", "expected"),
    [
        (Unreachable("x"), 1, 0, outbox.RetryDecision(state="waiting", reason="x", wait_s=1.0)),
        (Unreachable("x"), 4, 0, outbox.RetryDecision(state="waiting", reason="x", wait_s=8.0)),
        (Unreachable("x"), 999, 0, outbox.RetryDecision(state="waiting", reason="x", wait_s=60.0)),
        (Unreachable("x"), 999, 86_400, outbox.RetryDecision(state="failed", reason="gave up after 24 h: x")),
        (RateLimited("x", retry_after_s=33), 1, 0, outbox.RetryDecision(state="waiting", reason="x", wait_s=33)),
        (
            RateLimited("x", retry_after_s=33),
            1,
            90_000,
            outbox.RetryDecision(state="failed", reason="gave up after 25 h: x"),
        ),
        (Uncertain("x"), 1, 90_000, outbox.RetryDecision(state="uncertain", reason="x")),
        (Rejected("x"), 1, 0, outbox.RetryDecision(state="failed", reason="x")),
        (Denied("x"), 1, 0, outbox.RetryDecision(state="failed", reason="x")),
    ],
)
def test_retry_policy(error: SendError, attempts: int, age_s: float, expected: outbox.RetryDecision) -> None:
    assert outbox.decide_retry(error, attempts=attempts, age_s=age_s) == expected


class Doorman(Postman):
    """Knows whether a person is there."""

    def __init__(self) -> None:
        super().__init__()
        self.there = False
        self.sign = asyncio.Event()

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        if not self.there and "!" in part.to.room:
            self.attempts.append(part.key)
            raise RecipientAway("boss is not there; it waits until that account is seen")
        return await super().send(part, going)

    async def wait_for_recipient(self, at: Address) -> None:
        assert at.room == "boss!account:boss"
        await self.sign.wait()


def test_what_is_for_one_person_waits_until_they_are_seen_also_over_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        first = Doorman()
        async with office(tmp_path, first) as work:
            await work.post("secret", room="boss!account:boss")
            await work.post("hello")
            assert [one.state for one in await work.ended(1)] == ["sent"], "nobody else waits for it"
            (queued, *_) = [entry for entry in await work.store.entries(kinds=["post"]) if "boss" in str(entry.fact)]
            assert "still to be delivered: boss is not there; it waits" in str(
                await explain_event(work.store, queued.seq)
            )
            await asyncio.wait_for(work.outbox.drain(60), 10)  # it is not waited for when we stop
        assert first.sent == ["hello"]
        again = Doorman()
        async with office(tmp_path, again, later_s=3600) as work:
            await work.store.settled()
            again.there = True
            again.sign.set()
            assert [one.state for one in await work.ended(2)] == ["sent", "sent"]
            parts = [one.fact for one in await work.store.entries(kinds=["part"])]
            assert [one.state for one in parts if isinstance(one, PartSendEnded)].count("waiting") == 2, (
                "each start once"
            )
        assert again.sent == ["secret"]

    play(story)


def test_who_is_not_seen_for_a_day_is_not_told_any_more_and_that_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        postman = Doorman()
        async with office(tmp_path, postman) as work:
            await work.post("secret", room="boss!account:boss")
            while not await work.store.entries(kinds=["delivery"]):
                await work.store.settled()
                work.clock.advance(100)
            (delivery,) = await work.ended(1)
            assert (delivery.state, work.clock.now() >= datetime(2026, 3, 2, tzinfo=UTC)) == ("failed", True)
            assert "boss is not there" in delivery.reason
        assert postman.sent == []
        assert len(postman.attempts) < 400, "a look now and then, without a sign"

    play(story)


def test_what_is_posted_before_and_while_the_outbox_takes_over_goes_out_once_and_in_order(tmp_path: Path) -> None:
    postman = Postman()

    async def story() -> None:
        async with office(tmp_path, Postman(), up=False) as before:
            for text in ("1", "2"):
                await before.post(text)
        clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
        async with await Books.open(tmp_path / "s.db", clock) as store:
            work = Office(store, postman, clock)
            work.outbox.set_link_up(NAME, up=True)
            await work.post("3")
            await asyncio.gather(work.outbox.recover(), work.post("4"))
            await work.post("5")
            await work.ended(5)
            await work.outbox.drain(0)
            await work.outbox.close()
        assert postman.sent == ["1", "2", "3", "4", "5"]

    play(story)
