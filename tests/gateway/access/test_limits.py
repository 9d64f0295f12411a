"""Limits on a real store: rates and budgets, notices, invariants, and what survives a restart."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.limits import NOTICE_RATE, QUIET_S, UsageLimiter
from gateway.core.clock import ManualClock
from gateway.core.events import Message, MessageId, Sender, SenderId
from gateway.core.facts import Judgement, LimitReached, PostQueued, TurnId, dedup_key
from gateway.core.identity import RosterState
from gateway.core.ratelimit import Rate
from gateway.store import NewEntry, Store, StoreError
from tests.gateway.access.limits_kit import (
    AGENT,
    CHANNEL,
    NOON,
    House,
    entries,
    judge,
    judged,
    living,
    most,
    ordered,
    policy,
    said,
)
from tests.kits.ops import rendered_metrics
from tests.kits.settings import reload
from tests.kits.store import Fate, Urgency, account, spent

# Rates and budgets on a real store: who is answered, which notices are posted, and what survives a
# restart

SENDER, ROOM = Rate(2, 6.0), Rate(3, 60.0)
DAY_S = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with living(tmp_path, most(sender=SENDER)) as made:
        yield made


async def test_what_comes_too_fast_is_context_and_told_once(house: House) -> None:
    first, second, third, fourth = (said() for _ in range(4))
    assert await house.answered(first, second, third, fourth) == 2
    verdicts = [one for one in await house.facts("judged") if isinstance(one, Judgement)]
    assert [(one.fate, one.urgency) for one in verdicts] == [
        ("due", 3),
        ("due", 3),
        ("context", 0),
        ("context", 0),
    ]
    assert verdicts[2].rule == "access.rates.sender: 2 at once, then 6 a minute"
    (post,) = [one.post for one in await house.facts("post") if isinstance(one, PostQueued)]
    assert (post.reply_to, post.to, post.style) == (third.id, third.at, "notice")
    assert post.text.startswith("You write faster than I can answer.")
    (limited,) = await house.limited()
    assert (limited.limit, limited.whose, limited.subject) == ("rate", "sender", "irc.test:ann")
    assert limited.name == third.sender.name
    house.clock.advance(10.0)
    assert await house.answered(said(), said()) == 1
    assert await house.answered(said("bob")) == 1
    unread = await house.store.unread_entries(third.at.conversation, most=20)
    assert len(unread.messages) == 7, "what is not answered is read"


async def test_a_room_has_one_limit_for_all_its_threads(tmp_path: Path) -> None:
    async with living(tmp_path, most(room=ROOM)) as house:
        people = [said(f"p{number}", thread=("t" * number) or None) for number in range(5)]
        assert await house.answered(*people, said("p9", room="#b")) == 4
        assert [(one.whose, one.subject) for one in await house.limited()] == [
            ("room", "irc.test/#a")
        ]
        assert len(await house.notices()) == 1


async def test_a_limit_of_the_agent_holds_everywhere(tmp_path: Path) -> None:
    async with living(tmp_path, most(agent=Rate(2, 1.0))) as house:
        for room in "abc":
            assert await house.answered(said("ann", room, kind="direct")) == (room != "c")
        (limited,) = await house.limited()
        assert (limited.whose, limited.subject) == ("agent", "reverie")
        other = await judge(house.limits, message := said(), judged(message), "another")
        assert other.judgement.fate == "due"


async def test_owners_and_admins_are_always_answered_and_leave_less_to_others(
    tmp_path: Path,
) -> None:
    async with living(
        tmp_path, most(sender=Rate(1, 1.0), room=Rate(2, 1.0), agent=Rate(5, 60.0))
    ) as house:
        for _ in range(4):
            assert (await house.take(said("root"), "owner")).judgement.fate == "due"
            assert (await house.take(said("mod"), "admin")).judgement.fate == "due"
        assert await house.answered(said("ann")) == 0
        (limited,) = await house.limited()
        assert limited.whose == "agent"
        house.clock.advance(60.0)
        assert await house.answered(said("ann"), said("bob")) == 2, (
            "their own buckets were left alone"
        )


async def test_only_what_would_start_a_turn_at_once_is_counted(house: House) -> None:
    others: list[tuple[Fate, Urgency]] = [
        ("context", 0),
        ("noted", 1),
        ("refused", 0),
        ("due", 2),
        ("due", 1),
    ]
    for fate, urgency in others:
        for _ in range(3):
            plain = replace(judged(message := said()), fate=fate, urgency=urgency)
            assert (await judge(house.limits, message, plain)).judgement is plain
    assert await house.answered(said(), said(), said()) == 2


async def test_a_notice_is_followed_by_ten_minutes_without_one_in_that_room(house: House) -> None:
    await house.answered(said(), said(), said())
    assert len(await house.notices()) == 1
    house.clock.advance(QUIET_S - 1)
    await house.answered(said(), said(), said())
    assert len(await house.notices()) == 1, "the last one was not ten minutes ago"
    house.clock.advance(1.0)
    await house.answered(said(), said())
    assert len(await house.notices()) == 2
    assert len(house.told) == 1, "owners are told once a day"
    await house.answered(said(room="#b"))
    assert len(await house.notices()) == 3, "another room is told for itself"


async def test_bots_are_told_nothing(house: House) -> None:
    assert await house.answered(*[said("bot", bot=True) for _ in range(4)]) == 2
    assert await house.notices() == []
    assert len(await house.limited()) == len(house.told) == 1
    assert await house.answered(*[said("ann") for _ in range(3)]) == 2
    assert len(await house.notices()) == 1


async def test_a_raid_of_direct_chats_does_not_become_a_flood_of_notices(tmp_path: Path) -> None:
    async with living(tmp_path, most(agent=Rate(10, 1.0))) as house:
        await house.answered(
            *[said(f"p{number}", f"p{number}", kind="direct") for number in range(200)]
        )
        assert len(await house.notices()) == NOTICE_RATE.burst


async def test_linked_accounts_are_one_person(tmp_path: Path) -> None:
    one, other, third = f"{CHANNEL}:ann", f"{CHANNEL}:zoe", "telegram.x:7"
    links = {name: frozenset({one, other, third} - {name}) for name in (one, other, third)}

    async with living(
        tmp_path, most(sender=SENDER, sender_usd=0.5), known=lambda: RosterState(links=links)
    ) as house:
        assert await house.answered(said("zoe"), said("ann", "#b"), said("zoe"), said("bob")) == 3
        (limited,) = await house.limited()
        assert limited.subject == one
        unverified = said("ann")
        unverified = replace(unverified, sender=replace(unverified.sender, verified=False))
        assert (await house.take(unverified)).judgement.fate == "context", (
            "it is still that account"
        )
        house.clock.advance(600.0)
        await house.pay(said("zoe"), 0.3)
        await house.pay(said("ann"), 0.2)
        assert (
            await house.take(said("zoe", "#c"))
        ).judgement.rule == "access.budgets.sender_usd: $0.5 a day"
        assert await house.answered(said("bob")) == 1


async def test_spellings_of_one_account_are_one_person(tmp_path: Path) -> None:
    allowed, clock = most(sender=SENDER, sender_usd=1.0), ManualClock(NOON)
    async with living(tmp_path, allowed, clock=clock) as house:
        assert (
            await house.answered(said("account:Ann"), said("account:ann"), said("account:ANN")) == 2
        )
        await house.pay(said("account:aNN", "#b"), 0.6)
        await house.pay(said("account:ann", "#b"), 0.4)
        house.clock.advance(600.0)
        assert await house.answered(said("account:ann", "#c")) == 0
    async with living(tmp_path, allowed, clock=clock) as house:
        assert await house.answered(said("account:ann", "#elsewhere")) == 0


async def test_money_is_for_a_day_and_holds_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with living(tmp_path, most(room_usd=0.5), clock=clock) as house:
        assert await house.answered(said()) == 1
        await house.pay(said(), 0.4, None)
        assert await house.answered(said()) == 1
        await house.pay(said("bob"), 0.1)
        assert await house.answered(said("ann", "#b")) == 1, "it is the room's"
    async with living(tmp_path, most(room_usd=0.5), clock=clock) as house:
        assert await house.answered(said("cyd"), said(thread="t")) == 0
        assert await house.notices() == [
            "I have used up today's budget for this room. I answer again from 00:00 UTC."
        ]
        assert (await house.take(said("root"), "owner")).judgement.fate == "due"
        house.clock.advance(3_600.0)
        await house.answered(said("cyd"))
    async with living(tmp_path, most(room_usd=0.5), clock=clock) as house:
        assert await house.answered(said("cyd")) == 0
        assert len(await house.notices()) == 1, (
            "neither those in the room nor owners are told again"
        )
        assert house.told == []
    async with living(tmp_path, most(room_usd=0.5), clock=clock) as house:
        house.clock.advance(DAY_S / 2)
        assert await house.answered(said("cyd")) == 1
        await house.pay(said(), 0.5)
        assert await house.answered(said("cyd")) == 0
        assert len(await house.notices()) == 2
        assert len(house.told) == 1


async def test_a_day_ends_while_the_gateway_runs_and_a_clock_may_be_set_wrong(
    tmp_path: Path,
) -> None:
    async with living(tmp_path, most(sender_usd=1.0)) as house:
        await house.pay(said(), 1.0)
        assert await house.answered(said()) == 0
        house.clock.correct(DAY_S)
        assert await house.answered(said()) == 1
        house.clock.correct(-DAY_S)
        assert await house.answered(said()) == 0
        house.clock.advance(DAY_S / 2)
        assert await house.answered(said(), said()) == 2


async def test_a_turn_that_many_asked_for_is_shared(tmp_path: Path) -> None:
    async with living(tmp_path, most(sender_usd=0.45)) as house:
        place = said().at.conversation
        turn = spent(
            place,
            account(cost=0.9),
            account(),
            senders=["ann", "bob", "bob", ""],
            at=house.clock.now(),
        )
        await house.store.append([turn])
        assert await house.answered(said("ann", "#b"), said("bob", "#b"), said("cyd", "#b")) == 2
        assert (await house.take(said("bob", "#b"))).judgement.fate == "context"


async def test_what_has_no_known_price_costs_what_is_assumed(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with living(tmp_path, most(sender_usd=0.5), clock=clock) as house:
        turn = spent(
            said().at.conversation, account(plain=100_000), senders=["ann"], at=house.clock.now()
        )
        await house.store.append([turn])
        assert await house.answered(said()) == 0
    async with living(tmp_path, most(sender_usd=0.5), clock=clock) as house:
        assert await house.answered(said(room="#b")) == 0
        assert await house.answered(said("bob")) == 1


async def test_owners_and_admins_spend_nobodys_budget(tmp_path: Path, clock: ManualClock) -> None:
    async with living(
        tmp_path, most(sender_usd=0.5, room_usd=0.5, agent_usd=0.5), clock=clock
    ) as house:
        root = said("root")
        await house.pay(root, 9.0)
        assert await house.reserve(root, 9.0) is None
        ann = said()
        assert await house.answered(ann) == 1
        assert await house.reserve(ann, 0.6, [root.sender, ann.sender]) is not None
    async with living(
        tmp_path, most(sender_usd=0.5, room_usd=0.5, agent_usd=0.5), clock=clock
    ) as house:
        assert await house.answered(said()) == 1


async def test_turns_at_once_cannot_spend_the_same_money(tmp_path: Path) -> None:
    """Of a hundred turns that ask at once, as many go on as the budget covers; the others wait."""

    async with living(tmp_path, most(agent_usd=1.0)) as house:
        paid, running, most_at_once = 0, 0, 0

        async def turn(number: int) -> None:
            nonlocal paid, running, most_at_once
            ann = said(f"p{number}", f"#r{number}")
            assert await house.reserve(ann, 0.1) is None
            paid, running = paid + 1, running + 1
            most_at_once = max(most_at_once, running)
            await asyncio.sleep(0)
            running -= 1
            await house.pay(ann, 0.001)

        async with asyncio.timeout(120):
            await asyncio.gather(*(turn(number) for number in range(100)))
        assert (paid, most_at_once) == (100, 10)
        late = said("late", "#late")
        assert await house.reserve(late, 0.95) is not None, "what was spent is not there any more"


async def test_a_turn_that_waits_for_money_goes_on_as_soon_as_the_budget_is_raised(
    tmp_path: Path,
) -> None:
    async with living(tmp_path, most(sender_usd=0.5)) as house:
        assert await house.reserve(said("ann", "#a"), 0.4) is None
        waiting = asyncio.create_task(house.reserve(said("ann", "#b"), 0.2))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        raised = most(sender_usd=1.0).settings
        reload(house.live, access=raised.access, agents=(), llm=raised.llm)
        async with asyncio.timeout(60):
            assert await waiting is None


async def test_a_turn_that_goes_on_keeps_what_it_has_cost_and_waits_for_no_one_for_ever(
    tmp_path: Path,
) -> None:
    async with living(tmp_path, most(sender_usd=0.5)) as house:
        one, two = said("ann", "#a"), said("ann", "#b")
        for first in (one, two):
            assert await house.reserve(first, 0.2) is None
        async with asyncio.timeout(120):
            assert await house.reserve(one, 0.2, spent_usd=0.05) is None
            assert await house.reserve(two, 0.2, spent_usd=0.3) is not None, "with nobody else's"
            both = [house.reserve(one, 0.2, spent_usd=0.2), house.reserve(two, 0.2, spent_usd=0.2)]
            results = await asyncio.gather(*both)
        assert None not in results, "neither waits for what the other one has spent"


async def test_a_turn_that_must_not_wait_is_refused_what_others_have_reserved(
    tmp_path: Path,
) -> None:
    async with living(tmp_path, most(sender_usd=0.5)) as house:
        one, two = said("ann", "#a"), said("ann", "#b")
        assert await house.reserve(one, 0.4) is None
        assert await house.reserve(two, 0.2, waits=False) is not None
        house.limits.settle(TurnId(one.id))
        assert await house.reserve(two, 0.2, waits=False) is None


async def test_what_another_turn_posts_there_does_not_settle_a_turn(tmp_path: Path) -> None:
    async with living(tmp_path, most(sender_usd=0.5)) as house:
        one, two = said("ann", "#a"), said("ann", "#b")
        assert await house.reserve(one, 0.4) is None
        await house.pay(replace(two, at=one.at), 0.0)
        assert await house.reserve(two, 0.2, waits=False) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["one", "two", "three"]),
            st.booleans(),
            st.floats(0, 0.5),
            st.floats(0, 1),
        ),
        max_size=20,
    )
)
def test_whatever_happens_the_day_never_costs_more_than_its_money(
    events: list[tuple[str, bool, float, float]],
) -> None:
    """A request costs a share of what it could have. Of its own, an agent spends its daily budget,
    also over a restart."""

    async def story(directory: Path) -> None:
        running, spent_usd, own_usd = dict[str, list[float]](), 0.0, 2.0
        async with living(directory, most()) as house:
            for turn, ends, ceiling_usd, share in events:
                costs = running.get(turn, [])
                if ends:
                    await house.end(turn, *running.pop(turn, []))
                    spent_usd += sum(costs)
                elif await house.reserve_own(turn, ceiling_usd, sum(costs)) is None:
                    running[turn] = [*costs, ceiling_usd * share]
                assert spent_usd + sum(map(sum, running.values())) <= own_usd + 1e-6
        async with living(directory, most()) as house:
            left_usd = own_usd - spent_usd
            assert await house.reserve_own("late", left_usd + 1e-3, 0.0) is not None
            assert left_usd < 1e-3 or await house.reserve_own("late", left_usd - 1e-3, 0.0) is None

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(story(Path(directory)))


async def test_what_could_not_be_paid_is_told_once_a_day_over_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    for is_told in (True, False):
        async with living(tmp_path, most(sender_usd=0.5), clock=clock) as house:
            for _ in range(3):
                ann = said()
                bite = await house.reserve(ann, 0.6)
                assert bite is not None
                await house.store.append(house.limits.build_unpaid_entries(ann.at, ann, bite))
            assert await house.notices() == [
                "I have used up today's budget for answers to you. I answer again from 00:00 UTC."
            ]
            assert bool(house.told) is is_told


async def test_a_turn_that_is_in_the_log_already_is_paid_for(tmp_path: Path) -> None:
    async with living(tmp_path, most(sender_usd=0.5)) as house:
        turn = replace(
            spent(said().at.conversation, account(cost=0.3), senders=["ann"], at=house.clock.now()),
            key="t",
        )
        for _ in range(5):
            await house.store.append([replace(turn)])
        assert await house.answered(said()) == 1


async def test_a_budget_of_nothing_is_no_answer_and_owners_have_none(tmp_path: Path) -> None:
    async with living(tmp_path, most(sender_usd=0.0)) as house:
        assert await house.answered(said()) == 0
        assert house.limits.take_or_explain(ordered(), "member", AGENT).startswith("I have used up")
        assert house.limits.take_or_explain(ordered(), "admin", AGENT) == ""


async def test_a_command_that_has_a_model_asked_takes_like_a_message(tmp_path: Path) -> None:
    async with living(tmp_path, most(Rate(2, 1.0))) as house:
        assert [house.limits.take_or_explain(ordered(), "member", AGENT) for _ in range(2)] == [
            "",
            "",
        ]
        assert house.limits.take_or_explain(ordered(), "member", AGENT).startswith(
            "You write faster"
        )
        assert await house.answered(said()) == 0
        assert house.limits.take_or_explain(ordered(), "admin", AGENT) == ""
        house.clock.advance(60)
        assert await house.answered(said()) == 1
        assert house.limits.take_or_explain(ordered(), "member", AGENT).startswith(
            "You write faster"
        )


async def test_another_nick_is_no_way_around(tmp_path: Path, clock: ManualClock) -> None:
    """Also in direct chats, where each nick is a room of its own; costs of earlier nicks are known
    after a restart."""

    def alone(number: int, host: str = "h") -> Message:
        mask = f"n{number}!u{number}@{host}"
        return said(f"mask:{mask}", mask, kind="direct")

    for name in ("rate", "cost"):
        (tmp_path / name).mkdir()
    async with living(tmp_path / "rate", most(Rate(3, 1.0))) as house:
        assert await house.answered(*map(alone, range(20))) == 3
        assert await house.answered(alone(1, "other")) == 1

    async with living(tmp_path / "cost", most(sender_usd=0.5), clock=clock) as house:
        first = alone(1)
        who = [str(first.sender.id)]
        await house.store.append(
            [spent(first.at.conversation, account(cost=0.6), senders=who, at=house.clock.now())]
        )
        assert await house.answered(alone(2)) == 0
    async with living(tmp_path / "cost", most(sender_usd=0.5), clock=clock) as house:
        assert await house.answered(alone(3)) == 0
        assert await house.answered(alone(3, "other")) == 1


async def test_a_repeat_costs_nothing_and_is_no_news(house: House) -> None:
    first, second, third = said(), said(), said()
    for _ in range(5):
        assert await house.answered(first) == 1
    assert await house.answered(second) == 1
    for _ in range(NOTICE_RATE.burst + 10):
        verdict = await house.take(first)
        assert verdict.post is not None, "nobody knows yet that it is a repeat"
    assert await house.notices() == []
    assert house.told == []
    assert await house.answered(third) == 0
    assert len(await house.notices()) == len(house.told) == 1


async def test_what_could_not_be_written_down_is_asked_for_again(
    tmp_path: Path, house: House
) -> None:
    first, second, third = said(), said(), said()
    store, closed = house.store, await Store.open(tmp_path / "other.db", house.clock)
    await closed.close()
    for one, due in ((first, True), (second, True), (third, False)):
        house.store = closed
        for _ in range(3):
            with pytest.raises(StoreError):
                await house.take(one)
        house.store = store
        assert await house.answered(one) == due
    assert len(await house.notices()) == len(house.told) == 1


async def test_who_stops_waiting_does_not_have_it_said_twice(tmp_path: Path) -> None:
    """The channel is cut in the middle: it cannot know that the message was appended, but it
    was."""

    written = list[bool]()

    async with living(tmp_path, most(sender=SENDER)) as house:
        for steps in range(12):
            who = f"p{steps}"
            await house.answered(said(who, who), said(who, who))
            cut = asyncio.ensure_future(house.take(last := said(who, who)))
            for _ in range(steps):
                await asyncio.sleep(0)
            cut.cancel()
            await asyncio.wait([cut])
            await house.take(
                said("root"), "owner"
            )  # until the channel is up again everything before is written
            await house.answered(said(who, who), said(who, who))
            assert len(await house.notices()) == len(house.told) == steps + 1
            written.append(
                cut.cancelled() and await house.store.entry_by_key(dedup_key(last)) is not None
            )
    assert any(written)
    assert not all(written)


async def test_repeats_in_one_batch_take_once(house: House) -> None:
    first = said()
    verdicts = [await judge(house.limits, first, judged(first)) for _ in range(4)]
    made = [entry for verdict in verdicts for entry in entries(first, verdict, house.clock)]
    await house.store.append(made)
    assert await house.answered(said(), said()) == 1


async def test_what_was_said_lately_is_not_said_again_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with living(tmp_path, most(sender=SENDER), clock=clock) as house:
        await house.answered(said(), said(), said())
        assert len(await house.notices()) == len(house.told) == 1
    async with living(tmp_path, most(sender=SENDER), clock=clock) as house:
        house.clock.advance(QUIET_S / 2)
        assert await house.answered(said(), said(), said()) == 2
        assert (len(await house.notices()), house.told) == (1, [])
        house.clock.advance(QUIET_S / 2)
        assert await house.answered(said(), said(), said()) == 2
        assert (len(await house.notices()), house.told) == (2, [])


async def test_a_log_with_a_budget_of_an_hour_is_read(tmp_path: Path) -> None:
    clock, at = ManualClock(NOON), said().at
    async with living(tmp_path, most(sender=SENDER), clock=clock) as house:
        fact = LimitReached(limit="hour_cost", whose="room", subject=at.conversation, rule="r")
        await house.store.append(
            [NewEntry(fact=fact, at=clock.now(), conversation=at.conversation)]
        )
    async with living(tmp_path, most(sender=SENDER), clock=clock) as house:
        assert await house.answered(said()) == 1


async def test_owners_are_told_whose_limit_it_is_in_code_that_nobody_can_leave(
    house: House,
) -> None:
    nasty = "eve` @everyone\n*now*\u202e"
    sender = Sender(id=SenderId(nasty), name=nasty, verified=True)
    await house.answered(*[replace(said(room="#`x`"), sender=sender) for _ in range(3)])
    ((key, text),) = house.told
    assert key == f"limit:rate:sender:{CHANNEL}:{nasty}:2026-03-04"
    assert "\n" not in text
    assert text.count("`") == 4
    assert "access.rates.sender: 2 at once, then 6 a minute" in text


async def test_limits_are_counted_for_prometheus(house: House) -> None:
    await house.answered(*[said() for _ in range(6)])
    await house.answered(*[said("bob") for _ in range(3)])
    lines = rendered_metrics(house.limits.metrics).splitlines()
    assert "# TYPE reverie_limited_total counter" in lines
    assert 'reverie_limited_total{limit="rate",whose="sender"} 5.0' in lines
    assert "# TYPE reverie_limit_notices_total counter" in lines
    assert "reverie_limit_notices_total 1.0" in lines


async def test_a_notice_has_the_same_name_each_time() -> None:
    """The key depends on the message alone, not on the process."""
    names = set()
    for _ in range(2):
        limits = UsageLimiter(most(sender_usd=0.0), ManualClock(), policy())
        message = replace(said(), id=MessageId("m"))
        verdict = await judge(limits, message, judged(message))
        assert verdict.post is not None
        names.add(verdict.post.key)
    assert len(names) == 1
    assert len(names.pop()) == 26
