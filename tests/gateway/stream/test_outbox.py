"""The outbox: delivery under faults, files, resending, and channels that go and come back
meanwhile."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from agent.models.scripted import Script, ScriptRule
from channels.base import (
    BeforeSend,
    Capabilities,
    Channel,
    Denied,
    Emit,
    MayNotPost,
    OutgoingFile,
    PostPart,
    RateLimited,
    RecipientAway,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    no_before_send,
)
from gateway.access.policy import ConversationBinding
from gateway.cluster.cluster import Cluster
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    DeliveryReport,
    EventId,
    MessageId,
    Post,
    PostFile,
    PostKey,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Fact, Judgement, PartSendEnded, PartSendStarted, PostQueued
from gateway.core.redaction import Redactor
from gateway.plugins.trace import explain_event
from gateway.store import (
    AppendResult,
    NewEntry,
    OutboxPart,
    OutboxPost,
    PartState,
    Store,
    rebuild,
)
from gateway.store.store import Subscriber
from gateway.stream.attention import InternalIntake
from gateway.stream.delivery_policy import (
    end_failed_part,
    recover_parts,
    select_window,
)
from gateway.stream.inbox import ReadyConversation, ready_conversations
from gateway.stream.outbox import LOST_IN_CRASH_TEXT, Outbox, OutgoingFiles
from gateway.stream.routing import BindingPattern, Bindings
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, UNHURRIED, Gateway, Screen, running
from reverie.testing.waiting import until
from tests.kits.cluster import ManualCluster
from tests.kits.policies import attention_of
from tests.kits.store import NOW as UNDELIVERED_NOW
from tests.kits.store import turn
from tests.kits.tasks import LooseTasks

NAME = ChannelName("x")
EVERYWHERE = Bindings(
    [
        BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="mention", agent="reverie"),
        )
    ]
)
_STEPS = 10
"""Steps of the event loop: more than it takes from one wait for the clock or the disk to the
next."""


class Postman:
    """A channel of one-line parts whose sends end on demand."""

    name = NAME

    def __init__(self, *ends: SendError | None, window: int = 1, resend_s: float = 0.0) -> None:
        self.capabilities = Capabilities(
            platform="test", formatting="", max_in_flight=window, resend_window_s=resend_s
        )
        self.ends = list(ends)
        self.sent: list[str] = []
        self.attempts: list[str] = []
        self.hold: asyncio.Event | None = None
        self.paced: asyncio.Event | None = None
        """Parts wait for it before they are sent."""

    async def run(self, emit: Emit) -> None:
        raise AssertionError(f"not used here: {emit}")

    def split(self, post: Post) -> tuple[str, ...]:
        return tuple(post.text.splitlines())

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        self.attempts.append(part.key)
        hold = self.hold
        if self.paced is not None:
            await self.paced.wait()
        await going()
        end = self.ends.pop(0) if self.ends else None
        if hold is not None:
            await hold.wait()
        if end is not None:
            raise end
        self.sent.append(part.body)
        return Receipt()


class Prompt(Postman):
    """A channel that says whether it sends at once: yes to the first `times` questions."""

    times = 1_000

    def sends_at_once(self, at: Address) -> bool:
        assert at.channel == NAME
        self.times -= 1
        return self.times >= 0


class Books(Store):
    """A store that knows whether an append is running, and who subscribes to posts."""

    writing = 0

    def subscribe(
        self,
        subscriber: Subscriber,
        *fact_types: type[Fact],
        own: bool | None = None,
        where: Callable[[Fact], bool] | None = None,
    ) -> Callable[[], None]:
        if PostQueued in fact_types:
            self.subscribers = [*self.__dict__.get("subscribers", ()), subscriber]
        return super().subscribe(subscriber, *fact_types, own=own, where=where)

    async def append(self, entries: Sequence[NewEntry]) -> tuple[AppendResult, ...]:
        self.writing += 1
        try:
            return await super().append(entries)
        finally:
            self.writing -= 1

    async def settled(self) -> None:
        """Return once no append is running, and all that waited for it have gone on."""
        quiet = 0
        while quiet < _STEPS:
            await asyncio.sleep(0)
            quiet = 0 if self.writing else quiet + 1


class Office:
    """An outbox with its services."""

    def __init__(
        self,
        store: Books,
        postman: Postman,
        clock: ManualClock,
        told: list[ReadyConversation] | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """`told`: gets what the inbox would. None: reports of deliveries are not judged."""
        self.store = store
        self.clock = clock
        self.tasks = LooseTasks()
        self.channels: dict[ChannelName, Channel] = {NAME: postman}
        if told is None:
            self.outbox = Outbox(
                store, self.channels, clock, self.tasks, redactor=Redactor(), cluster=cluster
            )
        else:
            inward = InternalIntake(store, clock, attention_of(store), EVERYWHERE)
            store.subscribe(lambda entries: told.extend(ready_conversations(entries)))
            self.outbox = Outbox(
                store, self.channels, clock, self.tasks, internal=inward, redactor=Redactor()
            )

    async def post(self, text: str, room: str = "#a", channel: str = NAME) -> PostKey:
        to = Address(channel=ChannelName(channel), room=RoomId(room))
        post = Post(key=PostKey(f"{room}:{text[:20]}"), to=to, text=text)
        now = self.clock.now()
        await self.store.append(
            [NewEntry(fact=PostQueued(post=post), at=now, conversation=to.conversation)]
        )
        return post.key

    async def ended(self, count: int) -> list[DeliveryReport]:
        """Return all deliveries, once there are `count`. Advances the manual clock while nothing
        else happens."""
        async with asyncio.timeout(120):
            while True:
                await self.store.settled()
                found = [item.fact for item in await self.store.entries(kinds=["delivery"])]
                if len(found) >= count:
                    return [fact for fact in found if isinstance(fact, DeliveryReport)]
                self.clock.advance(1)


@asynccontextmanager
async def office(
    tmp: Path,
    postman: Postman,
    *,
    up: bool = True,
    later_s: float = 0.0,
    told: list[ReadyConversation] | None = None,
) -> AsyncIterator[Office]:
    """Open an outbox; `later_s`: seconds since the story began."""
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=later_s))
    async with await Books.open(tmp / "s.db", clock) as store:
        work = Office(store, postman, clock, told)
        await work.outbox.open()
        work.outbox.set_link_up(NAME, up)
        yield work
        await work.outbox.drain(0)
        await work.outbox.close()


# Delivery under faults: a channel that fails in each way of the contract, on a real store


class Buggy(Postman):
    """An adapter that breaks on some posts."""

    def split(self, post: Post) -> tuple[str, ...]:
        if "uncuttable" in post.text:
            raise KeyError("a bug")
        return super().split(post)

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        if "early" in part.body:
            raise KeyError("a bug")
        receipt = await super().send(part, going)
        if "late" in part.body:
            raise KeyError("a bug")
        return receipt


async def test_parts_go_out_in_order_and_once(tmp_path: Path) -> None:
    postman = Postman(window=2)
    async with office(tmp_path, postman) as work:
        await work.post("1\n2\n3\n4\n5")
        await work.post("6\n7")
        states = [delivery.state for delivery in await work.ended(2)]
        assert states == ["sent", "sent"]
        assert await work.store.undelivered_posts() == []
    assert postman.sent == list("1234567")
    assert len(set(postman.attempts)) == 7


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
@pytest.mark.parametrize("kind", [Postman, Prompt])
async def test_each_error_ends_as_its_name_says(  # noqa: PLR0917 - a table
    tmp_path: Path,
    kind: type[Postman],
    ends: list[SendError | None],
    sent: str,
    state: str,
    reason: str,
) -> None:
    postman = kind(*ends)
    async with office(tmp_path, postman) as work:
        await work.post("1\n2\n3")
        (delivery,) = await work.ended(1)
        assert (delivery.state, delivery.reason) == (state, reason)
    assert "".join(postman.sent) == sent


async def test_a_failed_part_ends_the_post(tmp_path: Path) -> None:
    postman = Postman(None, None, Rejected("muted"), None, window=2)
    async with office(tmp_path, postman) as work:
        await work.post("1\n2\n3\n4\n5\n6")
        (delivery,) = await work.ended(1)
        assert delivery.reason == "part 3 of 6: muted"
    assert "".join(postman.sent) == "124"  # 4 was in the same window; 5 and 6 were never tried


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        ("uncuttable", "failed", "internal error: KeyError"),
        ("early\n2", "failed", "part 1 of 2: internal error: KeyError"),
        ("late\n2", "uncertain", "part 1 of 2: internal error: KeyError"),
    ],
)
async def test_a_bug_in_an_adapter_ends_that_post_only(
    tmp_path: Path, text: str, state: str, reason: str
) -> None:
    async with office(tmp_path, Buggy()) as work:
        await work.post(text)
        await work.post("fine")
        first, second = await work.ended(2)
        assert (first.state, first.reason, second.state) == (state, reason, "sent")
        assert await work.store.undelivered_posts() == []  # nothing that would break the next start


async def test_nothing_is_sent_while_the_link_is_down(tmp_path: Path) -> None:
    postman = Postman()
    async with office(tmp_path, postman, up=False) as work:
        await work.post("1")
        await asyncio.sleep(0.05)
        assert not postman.attempts
        work.outbox.set_link_up(NAME, True)
        await work.ended(1)
    assert postman.sent == ["1"]


@pytest.mark.parametrize(
    ("times", "kinds"),
    [
        (2, ["post", "sending", "part", "delivery"]),
        (1, ["post", "sending", "part", "sending", "part", "delivery"]),
        (0, ["post", "sending", "part", "delivery"]),
    ],
    ids=["at once", "busy a moment later", "busy"],
)
async def test_what_can_be_sent_at_once_is_recorded_with_its_post(
    tmp_path: Path, times: int, kinds: list[str]
) -> None:
    postman = Prompt()
    postman.times = times
    async with office(tmp_path, postman) as work:
        before = work.store.commits
        await work.post("1")
        await work.ended(1)
        assert [one.kind for one in await work.store.entries()] == kinds
        assert work.store.commits - before == {2: 2, 1: 4, 0: 3}[times]
    assert postman.sent == ["1"]


@pytest.mark.parametrize("kind", [Postman, Prompt])
async def test_a_link_that_goes_down_meanwhile_leaves_it_surely_unsent(
    tmp_path: Path, kind: type[Postman]
) -> None:
    postman = kind()
    async with office(tmp_path, postman) as work:
        posting = asyncio.create_task(work.post("1\n2"))
        await asyncio.sleep(0)
        work.outbox.set_link_up(NAME, False)
        await posting
        await work.store.settled()
        (waiting,) = await work.store.undelivered_posts()
        assert {(part.state, part.first_at) for part in waiting.parts} <= {("pending", None)}
        work.outbox.set_link_up(NAME, True)
        assert [one.state for one in await work.ended(1)] == ["sent"]
    assert postman.sent == ["1", "2"]


async def test_a_crash_between_the_post_and_the_line_leaves_it_uncertain(tmp_path: Path) -> None:
    async with await Books.open(tmp_path / "s.db", ManualClock()) as store:
        work = Office(store, Prompt(), ManualClock())
        await work.outbox.open()
        work.outbox.set_link_up(NAME, True)
        work.tasks.create_task = lambda coro, **_: coro.close()  # type: ignore[method-assign] # it dies
        await work.post("1\n2")
    postman = Prompt()
    async with office(tmp_path, postman) as work:
        (delivery,) = await work.ended(1)
        assert delivery.reason == f"part 1 of 2: {LOST_IN_CRASH_TEXT}"
    assert postman.sent == ["2"]


async def test_a_post_behind_another_one_is_not_recorded_as_handed_over(tmp_path: Path) -> None:
    async with await Books.open(tmp_path / "s.db", ManualClock()) as store:
        work = Office(store, Prompt(), ManualClock())
        await work.outbox.open()
        work.outbox.set_link_up(NAME, True)
        work.tasks.create_task = lambda coro, **_: coro.close()  # type: ignore[method-assign] # it dies
        await work.post("1")
        await work.post("2")
        parts = [[one.state for one in item.parts] for item in await store.undelivered_posts()]
        assert parts == [["sending"], []]


async def test_yesterdays_answer_is_not_posted_when_the_link_comes_back(tmp_path: Path) -> None:
    postman = Postman()
    async with office(tmp_path, postman, up=False) as work:
        await work.post("late")
        work.clock.advance(25 * 3600)
        work.outbox.set_link_up(NAME, True)
        (delivery,) = await work.ended(1)
        assert (delivery.state, delivery.reason) == ("failed", "the link was down for too long")
    assert not postman.attempts


async def test_a_slow_room_does_not_stall_another(tmp_path: Path) -> None:
    postman = Postman()
    async with office(tmp_path, postman) as work:
        postman.hold = asyncio.Event()
        await work.post("slow")
        await until(lambda: postman.attempts)
        held, postman.hold = postman.hold, None
        await work.post("fast", room="#b")
        (delivery,) = await work.ended(1)
        assert delivery.at.room == "#b"
        held.set()
        await work.ended(2)


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
            (
                SENDING,
                _end(0),
                SENDING_2,
                _end(1),
                PartSendStarted(post=PostKey("p"), part=2, bodies=None),
                _end(2),
            ),
            "",
            "sent",
        ),
    ],
)
async def test_after_a_crash_only_what_is_surely_unsent_is_sent(
    tmp_path: Path, facts: tuple[PartSendEnded | PartSendStarted, ...], sent: str, state: str
) -> None:
    postman = Postman()
    await _left_by_a_crash(tmp_path, *facts)
    async with office(tmp_path, postman) as work:
        (delivery,) = await work.ended(1)
        assert delivery.state == state
        assert (LOST_IN_CRASH_TEXT in delivery.reason) == (state == "uncertain")
    assert "".join(postman.sent) == sent


async def test_stopping_leaves_the_rest_to_the_next_process(tmp_path: Path) -> None:
    first, second = Postman(), Postman(window=2)
    async with office(tmp_path, first, up=False) as work:
        await work.post("1\n2")
    assert not first.attempts
    async with office(tmp_path, second) as work:
        await work.ended(1)
    assert second.sent == ["1", "2"]


class RetryDecision(NamedTuple):
    """What is decided about a part after an attempt."""

    state: str
    reason: str
    wait_s: float = 0.0
    maybe_seen: bool = False


def decide_retry(
    error: SendError,
    *,
    attempts: int,
    age_s: float,
    since_s: float | None = None,
    resend_s: float = 0.0,
) -> RetryDecision:
    to = Address(channel=NAME, room=RoomId("#a"))
    end, wait_s = end_failed_part(
        Post(key=PostKey("p"), to=to, text="x"),
        replace(part(0, "pending", None), attempts=attempts - 1),
        error,
        age_s=age_s,
        since_s=since_s,
        resend_s=resend_s,
        finds_sent=False,
    )
    return RetryDecision(end.state, end.reason, wait_s, maybe_seen=end.maybe_seen)


@pytest.mark.parametrize(
    ("error", "attempts", "age_s", "expected"),
    [
        (Unreachable("x"), 1, 0, RetryDecision(state="waiting", reason="x", wait_s=1.0)),
        (Unreachable("x"), 4, 0, RetryDecision(state="waiting", reason="x", wait_s=8.0)),
        (Unreachable("x"), 999, 0, RetryDecision(state="waiting", reason="x", wait_s=60.0)),
        (
            Unreachable("x"),
            999,
            86_400,
            RetryDecision(state="failed", reason="gave up after 24 h: x"),
        ),
        (
            RecipientAway("x"),
            9,
            604_799,
            RetryDecision(state="waiting", reason="x", wait_s=600.0),
        ),
        (
            RecipientAway("x"),
            9,
            604_800,
            RetryDecision(state="failed", reason="gave up after 168 h: x"),
        ),
        (
            RateLimited("x", retry_after_s=33),
            1,
            0,
            RetryDecision(state="waiting", reason="x", wait_s=33),
        ),
        (
            RateLimited("x", retry_after_s=33),
            1,
            90_000,
            RetryDecision(state="failed", reason="gave up after 25 h: x"),
        ),
        (Uncertain("x"), 1, 90_000, RetryDecision(state="uncertain", reason="x")),
        (Rejected("x"), 1, 0, RetryDecision(state="failed", reason="x")),
        (Denied("x"), 1, 0, RetryDecision(state="failed", reason="x")),
    ],
)
def test_retry_policy(
    error: SendError, attempts: int, age_s: float, expected: RetryDecision
) -> None:
    assert decide_retry(error, attempts=attempts, age_s=age_s) == expected


@pytest.mark.parametrize(
    ("style", "reply_to", "state"),
    [("message", None, "waiting"), ("notice", "1", "waiting"), ("notice", None, "failed")],
)
def test_where_it_may_not_post_whoever_asked_is_told_later(
    style: Literal["message", "notice"], reply_to: str | None, state: str
) -> None:
    """E.g. that an answer may not have arrived, after the bot was thrown out and let in again."""
    to = Address(channel=NAME, room=RoomId("#a"))
    asked = None if reply_to is None else MessageId(reply_to)
    end, _ = end_failed_part(
        Post(key=PostKey("p"), to=to, text="x", reply_to=asked, style=style),
        part(0, "pending", None),
        MayNotPost("kicked"),
        age_s=0,
        since_s=None,
        resend_s=0,
        finds_sent=True,
    )
    assert end.state == state


class Doorman(Postman):
    """Knows whether a person is there."""

    def __init__(self) -> None:
        super().__init__()
        self.there = False
        self.sign = asyncio.Event()

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        if not self.there and "!" in part.to.room:
            self.attempts.append(part.key)
            raise RecipientAway("boss is not there; it waits until that account is seen")
        return await super().send(part, going)

    async def wait_for_recipient(self, at: Address) -> None:
        assert at.room == "boss!account:boss"
        await self.sign.wait()


async def test_what_is_for_one_person_waits_until_they_are_seen_also_over_a_restart(
    tmp_path: Path,
) -> None:
    first = Doorman()
    async with office(tmp_path, first) as work:
        await work.post("secret", room="boss!account:boss")
        await work.post("hello")
        assert [one.state for one in await work.ended(1)] == ["sent"], "nobody else waits for it"
        (queued, *_) = [
            entry for entry in await work.store.entries(kinds=["post"]) if "boss" in str(entry.fact)
        ]
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
        assert [one.state for one in parts if isinstance(one, PartSendEnded)].count(
            "waiting"
        ) == 2, "each start once"
    assert again.sent == ["secret"]


# Several processes on one store: only the process that has opened a channel delivers its posts


@asynccontextmanager
async def two_offices(tmp: Path, *postmen: Postman) -> AsyncIterator[list[Office]]:
    """Two processes that see each other's posts. Neither has opened a channel."""
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    peers = list[ManualCluster]()
    async with await Books.open(tmp / "s.db", clock) as store:
        offices = [
            Office(store, postman, clock, cluster=ManualCluster(peers)) for postman in postmen
        ]
        yield offices
        for work in offices:
            await work.outbox.drain(0)
            await work.outbox.close()


async def test_only_who_has_opened_a_channel_delivers_there_and_who_opens_it_next_goes_on(
    tmp_path: Path,
) -> None:
    first, second = Postman(), Postman()
    async with two_offices(tmp_path, first, second) as (a, b):
        await a.post("1")
        await b.post("2")
        for work in (a, b):
            work.outbox.set_link_up(NAME, up=True)
        await _a_while()
        assert (first.attempts, second.attempts) == ([], [])

        await a.outbox.open(NAME)
        a.outbox.set_link_up(NAME, up=True)
        await b.post("3")
        await a.ended(3)
        assert (first.sent, second.attempts) == (["1", "2", "3"], [])

        first.hold = asyncio.Event()
        first.ends = [Unreachable("closed")]
        await b.post("4\n5")
        await until(lambda: len(first.attempts) == 4)
        closing = asyncio.create_task(a.outbox.close_channel(NAME))
        await _a_while()
        await a.post("6")
        first.hold.set()  # the channel has ended, and so has its send
        await closing
        await a.post("7")
        await _a_while()
        assert len(first.attempts) == 4

        await asyncio.gather(b.outbox.open(NAME), a.post("8"))
        b.outbox.set_link_up(NAME, up=True)
        await b.post("9")
        assert [one.state for one in await b.ended(8)] == ["sent"] * 8
        assert (first.sent, second.sent) == (["1", "2", "3"], ["4", "5", "6", "7", "8", "9"])


@pytest.mark.parametrize(
    ("resend_s", "sent", "state"),
    [(0.0, ["b"], "uncertain"), (300.0, ["a", "b"], "sent")],
    ids=["irc", "discord"],
)
async def test_what_was_in_flight_when_its_process_died_ends_as_after_a_crash(
    tmp_path: Path, resend_s: float, sent: list[str], state: str
) -> None:
    first, second = Postman(resend_s=resend_s), Postman(resend_s=resend_s)
    first.hold = asyncio.Event()
    async with two_offices(tmp_path, first, second) as (a, b):
        await a.outbox.open(NAME)
        a.outbox.set_link_up(NAME, up=True)
        await a.post("a\nb")
        await until(lambda: first.attempts)
        await a.store.settled()
        for task in a.tasks.running:
            task.cancel()  # as a crash would
        await asyncio.gather(*a.tasks.running, return_exceptions=True)

        await b.outbox.open(NAME)
        b.outbox.set_link_up(NAME, up=True)
        (delivery,) = await b.ended(1)
        assert (delivery.state, second.sent, first.sent) == (state, sent, [])


async def test_a_post_that_the_holder_before_has_delivered_is_not_delivered_again(
    tmp_path: Path,
) -> None:
    """Also if this process reads of it in the log only after it has taken the channel over."""
    first, second = Postman(), Postman()
    async with two_offices(tmp_path, first, second) as (a, b):
        await a.outbox.open(NAME)
        a.outbox.set_link_up(NAME, up=True)
        await a.post("1")
        await a.ended(1)
        (late,) = [one for one in await a.store.entries() if isinstance(one.fact, PostQueued)]
        await a.outbox.close_channel(NAME)
        await b.outbox.open(NAME)
        b.outbox.set_link_up(NAME, up=True)
        for subscriber in b.store.subscribers:
            subscriber([late])
        await b.post("2")
        await b.ended(2)
        assert (first.sent, second.sent) == (["1"], ["2"])


# Files that go with posts: stored once until they are delivered, whatever happens in between

DATA = b"\x89PNG and so on"
SHA = hashlib.sha256(DATA).hexdigest()
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
"""Start time, as in the kit."""


class Carrier(Postman):
    """Takes files of a few bytes."""

    def __init__(
        self, *ends: RateLimited | Uncertain, window: int = 1, file_bytes: int = 100
    ) -> None:
        super().__init__(*ends, window=window)
        self.capabilities = replace(self.capabilities, max_file_bytes=file_bytes)
        self.files: list[tuple[str, OutgoingFile | None]] = []

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        receipt = await super().send(part, going)
        self.files.append((part.body, part.file))
        return receipt


def with_file(text: str, *, room: str = "#a", name: str = "cat.png") -> Post:
    to = Address(channel=NAME, room=RoomId(room))
    file = PostFile(name=name, content_type="image/png", sha256=SHA, size_bytes=len(DATA))
    return Post(key=PostKey(f"{room}:{text}"), to=to, text=text, file=file)


async def queue(store: Store, post: Post, now: datetime = BEGIN) -> OutboxPost:
    """Queue a post with a file as a tool does, in one step."""
    async with OutgoingFiles(store).store_file(DATA):
        (at,) = await store.append(
            [NewEntry(fact=PostQueued(post=post), at=now, conversation=post.to.conversation)]
        )
    return OutboxPost(seq=at.seq, at=now, post=post, parts=())


async def put(work: Office, post: Post) -> None:
    await queue(work.store, post, work.clock.now())


def kept(tmp: Path) -> list[str]:
    folder = tmp / "outfiles"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_the_next_process_sends_it_once(tmp_path: Path) -> None:
    carrier = Carrier()
    async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
        await queue(store, with_file("look"))
    for _ in range(2):
        async with office(tmp_path, carrier) as work:
            assert [delivery.state for delivery in await work.ended(1)] == ["sent"]
    assert [body for body, _ in carrier.files] == ["look"]
    assert kept(tmp_path) == []


async def test_what_may_have_been_seen_before_a_crash_is_uncertain_and_not_sent(
    tmp_path: Path,
) -> None:
    carrier = Carrier()
    async with await Store.open(tmp_path / "s.db", ManualClock()) as store:
        post = (await queue(store, with_file("look"))).post
        sending = PartSendStarted(post=post.key, part=0, bodies=("look",))
        await store.append([NewEntry(fact=sending, at=BEGIN, conversation=post.to.conversation)])
    async with office(tmp_path, carrier) as work:
        assert [delivery.state for delivery in await work.ended(1)] == ["uncertain"]
    assert carrier.attempts == []
    assert kept(tmp_path) == []


@pytest.mark.parametrize("how", ["gone", "changed", "grown", "a link"])
async def test_a_post_without_its_file_is_not_sent(tmp_path: Path, how: str) -> None:
    carrier = Carrier(window=2)
    async with office(tmp_path, carrier, up=False) as work:
        await put(work, with_file("look\nhere"))
        path = tmp_path / "outfiles" / SHA
        match how:
            case "changed":
                path.write_bytes(DATA[::-1])
            case "grown":
                path.write_bytes(DATA + b"!")
            case "a link":
                path.rename(tmp_path / "elsewhere")
                path.symlink_to(tmp_path / "elsewhere")
            case _:
                path.unlink()
        work.outbox.set_link_up(NAME, up=True)
        (delivery,) = await work.ended(1)
        assert (delivery.state, "the file that goes with it is gone" in delivery.reason) == (
            "failed",
            True,
        )
    assert carrier.attempts == []
    assert kept(tmp_path) == []


@pytest.mark.parametrize("most", [0, len(DATA) - 1])
async def test_a_channel_that_cannot_take_it_is_given_nothing(tmp_path: Path, most: int) -> None:
    carrier = Carrier(file_bytes=most)
    async with office(tmp_path, carrier) as work:
        await put(work, with_file("look"))
        (delivery,) = await work.ended(1)
        assert delivery.state == "failed"
        assert f"no files of more than {most} bytes" in delivery.reason
    assert carrier.attempts == []


# Resending of parts that may have been seen: only where, and while, the platform drops repeats

FAILED, UNCERTAIN = (
    RetryDecision(state="failed", reason="x"),
    RetryDecision(state="uncertain", reason="x"),
)
OLD = RetryDecision(state="uncertain", reason="gave up after 24 h: x")


def again(wait_s: float) -> RetryDecision:
    return RetryDecision(state="waiting", reason="x", wait_s=wait_s, maybe_seen=True)


@pytest.mark.parametrize(
    ("error", "since_s", "expected"),
    [
        (Uncertain("x"), None, again(1.0)),
        (Uncertain("x"), 0, again(1.0)),
        (Uncertain("x"), 98.9, again(1.0)),
        (Uncertain("x"), 99.0, UNCERTAIN),  # the next attempt would come when the window is over
        (Uncertain("x"), 500, UNCERTAIN),
        (Uncertain("x"), -5, UNCERTAIN),  # the clock went back: nobody knows how long ago it was
        (
            Uncertain("x"),
            -0.5,
            UNCERTAIN,
        ),  # also if the wait until the next attempt would make up for it
        (Unreachable("x"), 10, again(1.0)),
        (Unreachable("x"), 100, UNCERTAIN),
        (Unreachable("x"), None, RetryDecision(state="waiting", reason="x", wait_s=1.0)),
        (RateLimited("x", retry_after_s=30), 10, again(30.0)),
        (RateLimited("x", retry_after_s=90), 10, UNCERTAIN),
        (Rejected("x"), 10, UNCERTAIN),  # surely not by this attempt, but perhaps by the one before
        (Rejected("x"), None, FAILED),
        (Denied("x"), 10, UNCERTAIN),
    ],
)
def test_verdicts_within_and_beyond_the_window(
    error: SendError, since_s: float | None, expected: RetryDecision
) -> None:
    assert decide_retry(error, attempts=1, age_s=0, since_s=since_s, resend_s=100) == expected


def test_an_old_post_that_may_have_been_seen_ends_uncertain_not_failed() -> None:
    assert decide_retry(Uncertain("x"), attempts=1, age_s=86_400, resend_s=100) == OLD


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
        (
            [part(0, "sent", RECENT), part(1, "sending", RECENT), part(2, "pending", None)],
            {1: "waiting"},
        ),
        (
            [part(0, "sending", RECENT), part(1, "sent", RECENT)],
            {0: "uncertain"},
        ),  # would come after its successor
        ([part(0, "sending", RECENT), part(1, "sending", RECENT)], {0: "uncertain", 1: "waiting"}),
        ([part(0, "sending", RECENT), part(1, "pending", RECENT)], {0: "uncertain"}),
        ([part(0, "sent", RECENT), part(1, "pending", RECENT)], {}),
    ],
)
def test_what_a_crash_left_behind(parts: list[OutboxPart], expected: dict[int, str]) -> None:
    assert recover_parts(parts, now=NOW, resend_s=60) == expected
    never = recover_parts(parts, now=NOW, resend_s=0)
    assert set(never.values()) <= {"uncertain"}


def test_parts_that_can_be_sent_again_go_one_by_one() -> None:
    parts = [part(index, "pending", None) for index in range(3)]
    assert len(select_window(parts, 2)) == 2
    assert [one.index for one in select_window(parts, 2, resend_s=60)] == [0]


async def test_an_uncertain_part_is_sent_again_with_its_key_before_the_next(tmp_path: Path) -> None:
    postman = Postman(None, Uncertain("cut"), Uncertain("cut"), resend_s=9_000, window=3)
    async with office(tmp_path, postman) as work:
        key = await work.post("1\n2\n3")
        (delivery,) = await work.ended(1)
        assert (delivery.state, delivery.reason) == ("sent", "")
        assert postman.attempts == [f"{key}#{index}" for index in (0, 1, 1, 1, 2)]
        assert postman.sent == ["1", "2", "3"]
    assert await rebuild(tmp_path / "s.db") == []


async def test_it_ends_uncertain_when_the_window_is_over(tmp_path: Path) -> None:
    postman = Postman(*[Uncertain("cut")] * 99, resend_s=900)
    async with office(tmp_path, postman) as work:
        await work.post("1")
        (delivery,) = await work.ended(1)
        assert (delivery.state, delivery.reason) == ("uncertain", "part 1 of 1: cut")
        handed_over = [entry.at for entry in await work.store.entries(kinds=["sending"])]
        assert timedelta(0) < handed_over[-1] - handed_over[0] < timedelta(seconds=900)


@pytest.mark.parametrize(("back_s", "sent"), [(0, True), (50, False), (3600, False)])
async def test_a_clock_that_is_set_back_does_not_lengthen_the_window(
    tmp_path: Path, back_s: float, sent: bool
) -> None:
    postman = Postman(Uncertain("cut"), resend_s=60)
    async with office(tmp_path, postman) as work:
        await work.post("1")
        await until(lambda: work.store.entries(kinds=["part"]))
        work.outbox.set_link_up(NAME, False)
        for _ in range(65 if back_s else 30):
            work.clock.advance(1)
        work.clock.correct(-back_s)
        work.outbox.set_link_up(NAME, True)
        (delivery,) = await work.ended(1)
        assert (delivery.state == "sent", len(postman.sent)) == (sent, int(sent))


# Posts to channels that are removed, come back, or are replaced meanwhile


async def _a_while() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_waits_for_a_channel_that_is_not_there_goes_out_once_it_comes(
    tmp_path: Path,
) -> None:
    postman, late = Postman(), ChannelName("late")
    async with office(tmp_path, postman) as work:
        await work.post("hello", channel=late)
        await work.post("meanwhile")
        await work.ended(1)
        await _a_while()
        assert postman.sent == ["meanwhile"]
        newcomer = Postman()
        newcomer.name = late
        work.channels[late] = newcomer
        await _a_while()
        assert newcomer.attempts == []  # its link is not up
        work.outbox.set_link_up(late, up=True)
        assert [one.state for one in await work.ended(2)] == ["sent", "sent"]
        assert newcomer.sent == ["hello"]


# Posts that did not arrive, or may not have: who is told, where, and what `again` repeats

# Reports of undelivered posts: in the conversation of the post, in the same append, and nowhere
# else

AT = Address(channel=NAME, room=RoomId("#a"))
ANN = Sender(id=SenderId("ann"), name="ann")
POST = Post(key=PostKey("p"), to=AT, text="hello")


TURN = turn(AT.conversation)
COMMAND = NewEntry(
    fact=Command(
        id=EventId("c"),
        at=AT,
        sender=ANN,
        name="help",
        args="",
        sent=UNDELIVERED_NOW,
        origin="text",
    ),
    at=UNDELIVERED_NOW,
)


@pytest.mark.parametrize(
    ("end", "post", "cause", "state", "told"),
    [
        (Rejected("no such nick"), POST, TURN, "failed", True),
        (Uncertain("cut"), POST, TURN, "uncertain", True),
        (None, POST, TURN, "sent", False),
        (Rejected("no such nick"), POST, COMMAND, "failed", False),
        (Rejected("too old"), replace(POST, private=True), COMMAND, "failed", False),
        (Rejected("no such nick"), replace(POST, style="notice"), None, "failed", False),
    ],
)
async def test_what_did_not_go_well_is_unread_where_a_turn_said_it(  # noqa: PLR0917 - a table
    tmp_path: Path,
    end: SendError | None,
    post: Post,
    cause: NewEntry | None,
    state: str,
    told: bool,
) -> None:
    postman, arrived = Postman(*([end] if end else [])), list[ReadyConversation]()
    async with office(tmp_path, postman, told=arrived) as work:
        now, place = work.clock.now(), post.to.conversation
        queued = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=place, key="post:p", cause=cause
        )
        await work.store.append([*([cause] if cause else []), queued])
        (delivery,) = await work.ended(1)
        assert delivery.state == state
        await work.outbox.drain(1)
        await work.outbox.close()
        (stored,) = await work.store.entries(kinds=["delivery"])
        judged = [one.fact for one in await work.store.caused_by(stored.seq)]
        unread = await work.store.unread_entries(place, most=9)
        if told:
            kind = f"{post.to.channel}.delivery.#a"
            rule = "a delivery report is low"
            assert judged == [Judgement(type=kind, urgency=1, fate="due", rule=rule, role="guest")]
            assert arrived == [ReadyConversation(conversation=place, urgency=1, type=kind)]
            assert [one.seq for one in unread.messages] == [stored.seq]
            assert isinstance(unread.messages[0].fact, DeliveryReport)
        else:
            assert all(isinstance(one, Judgement) and one.fate == "noted" for one in judged)
            assert (arrived, unread.messages) == ([], ())
    assert await rebuild(tmp_path / "s.db") == []


class Deaf(Screen):
    """Cannot show the first answer."""

    def show(self, part: PostPart) -> None:
        super().show(part)
        if len(self.parts) == 1:
            raise Rejected("no such nick")


async def test_the_next_turn_there_is_told_which_of_its_answers_nobody_got(tmp_path: Path) -> None:
    screen = Deaf()
    console = ConsoleChannel(CONSOLE, screen.show)
    async with running(tmp_path, channels={CONSOLE: console}) as gateway:
        await console.receive_message("hello", sender="ann")
        await until(lambda: gateway.facts("delivery"))
        await console.receive_message("are you there?", sender="ann")
        await screen.until(2)
    first, second = await gateway.turns()
    failed, question = second.heard.splitlines()
    assert failed.endswith(
        f'] (your message "{first.text[:80]}" could not be delivered: "part 1 of 1: no such nick")'
    )
    assert question.endswith("ann (guest): are you there?")
    assert (len(second.covers), second.senders) == (2, ("", "ann"))


# Answers that may not have arrived: one notice for the right person, and what `again` repeats

UNDELIVERED_DOUBT = '(My last answer may not have reached you. Write "again", and I repeat it.)'
SCRIPT = Script(
    rules=tuple(
        ScriptRule(match=rf"guest\): (reverie: )?{word}", reply=reply)
        for word, reply in {"again": "No.", "two": "Second.", "one": "First."}.items()
    )
)


class Doubtful(ConsoleChannel):
    """A connection that is cut after some parts."""

    def __init__(
        self, screen: Screen, *, replies: bool = True, seen: bool = False, cuts: int = 0
    ) -> None:
        super().__init__(CONSOLE, screen.show)
        self.capabilities = replace(
            Capabilities(platform="console", formatting=""), replies=replies
        )
        self.cuts, self.seen, self.tried = cuts, seen, list[str]()

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        self.tried.append(part.body)
        if self.cuts:
            self.cuts -= 1
            await going()
            if self.seen:
                await super().send(part)
            raise Uncertain("the line was cut")
        return await super().send(part, going)


class Talk(Gateway):
    """A gateway on such a connection."""

    def __init__(self, gateway: Gateway, channel: Doubtful) -> None:
        self.__dict__ |= gateway.__dict__
        self.channel = channel

    async def posts(self) -> Sequence[str]:
        return [one.post.text for one in await self.facts("post") if isinstance(one, PostQueued)]


@asynccontextmanager
async def talk(tmp_path: Path, rates: object = UNHURRIED, **more: Any) -> AsyncIterator[Talk]:
    screen = Screen()
    channel = Doubtful(screen, **more)
    access = {"dm": "open", "rates": rates}
    async with running(tmp_path, SCRIPT, channels={CONSOLE: channel}, access=access) as gateway:
        gateway.screen = screen
        yield Talk(gateway, channel)


async def test_a_person_is_told_before_the_next_answer_and_again_repeats_it_once(
    tmp_path: Path,
) -> None:
    async with talk(tmp_path) as it:
        it.channel.cuts = 1
        await it.console.receive_message("one", sender="ann")
        await it.screen.until(1)
        assert it.screen.parts[0].style == "notice"
        await it.console.receive_message("two", sender="ann")
        await it.screen.until(2)
        assert it.screen.said("ann")[0] == UNDELIVERED_DOUBT
        heard = str(it.scripted.requests[-1])
        assert "may or may not have been delivered" in heard
        assert "do not repeat it unasked" in heard
        asked = len(it.scripted.requests)
        await it.console.receive_message("Again!", sender="ann")
        await it.screen.until(3)
        assert it.screen.said("ann")[2] == "First."
        assert len(it.scripted.requests) == asked, "the model is not asked for it"
        await it.console.receive_message("again", sender="ann")
        await it.screen.until(4)
        assert it.screen.said("ann")[3] == "No.", (
            "nothing is in doubt by now: it is a word like any"
        )


async def test_what_is_told_is_told_once_over_restarts(tmp_path: Path) -> None:
    async with talk(tmp_path) as it:
        it.channel.cuts = 1
        await it.console.receive_message("one", sender="ann")
        await it.screen.until(1)
    for _ in range(2):
        async with talk(tmp_path) as it:
            tried = it.channel.tried
            await it.console.receive_message("two", sender="ann")
            await until(lambda: "Second." in tried)  # noqa: B023 - run at once
            assert sum(text == UNDELIVERED_DOUBT for text in await it.posts()) == 1
