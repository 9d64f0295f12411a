"""Costs of turns: shared by the rule, and summed equally by append and by rebuild."""

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import ConversationId, RequestUsage, Usage
from gateway.core.facts import TurnRecord
from gateway.store import NewEntry, SpendingKey, Store
from gateway.store.spending import MAX_NUMBER, spending_shares
from tests.kits import store, strategies
from tests.kits.store import NOW, account, look_into, opened, place, spent, turn

A, B = place("#a").conversation, place("#b").conversation
THREAD = ConversationId(f"{A}/42")
NEXT = NOW + timedelta(days=1)


def fact(entry: NewEntry) -> TurnRecord:
    assert isinstance(entry.fact, TurnRecord)
    return entry.fact


def test_each_message_bears_an_equal_share() -> None:
    ended = fact(store.spent(A, account(read=100, plain=10, cost=1.0), senders=["u", "v", "u"]))
    first, second = spending_shares(ended)
    assert (first.sender, first.read, first.input, first.output, first.cost_nano_usd) == (
        "u",
        66,
        6,
        4,
        666_666_666,
    )
    assert (second.sender, second.read, second.input, second.output, second.cost_nano_usd) == (
        "v",
        34,
        4,
        3,
        333_333_334,
    )
    assert first.requests + second.requests == 1


def test_what_nobody_said_is_borne_by_nobody_and_a_turn_without_requests_costs_nothing() -> None:
    (one,) = spending_shares(fact(store.spent(A, account(plain=10, cost=None))))
    assert (one.sender, one.input, one.unpriced, one.cost_nano_usd) == ("", 10, 1, 0)
    assert spending_shares(replace(fact(turn(A, 1)), requests=0)) == []


def test_requests_that_were_not_accounted_for_have_no_price() -> None:
    ended = fact(store.spent(A, account(read=10, cost=0.5)))
    more = replace(
        ended, requests=3, usage=ended.usage + Usage(input_tokens=9, output_tokens=2), model="other"
    )
    known, rest = spending_shares(more)
    assert (known.provider, known.model, known.requests, known.unpriced, known.read) == (
        "anthropic",
        "m",
        1,
        0,
        10,
    )
    assert (rest.provider, rest.model, rest.requests, rest.unpriced) == ("", "other", 2, 2)
    assert (rest.input, rest.read, rest.output) == (9, 0, 2)


@given(strategies.accounts, st.lists(st.sampled_from(["u", "v", "w"]), max_size=9))
def test_shares_add_up_to_what_was_billed(billed: RequestUsage, senders: list[str]) -> None:
    shares = spending_shares(fact(store.spent(A, billed, senders=senders)))
    for name, whole in (
        ("requests", 1),
        ("input", billed.usage.input_tokens),
        ("read", billed.usage.cache_read_tokens),
        ("written", billed.usage.cache_write_tokens),
        ("written_1h", billed.usage.cache_write_1h_tokens),
        ("output", billed.usage.output_tokens),
    ):
        assert sum(getattr(share, name) for share in shares) == min(whole, MAX_NUMBER)
    cost = sum(share.cost_nano_usd for share in shares)
    assert cost == pytest.approx((billed.cost_usd or 0) * 1e9, abs=1)
    assert len(shares) == max(1, len(set(senders)))


@pytest.mark.parametrize("cost", [math.inf, -math.inf, math.nan, 1e300, -1.0])
async def test_nonsense_on_a_bill_is_stored_as_far_as_it_makes_sense(
    tmp_path: Path, cost: float
) -> None:
    async with await opened(tmp_path / "s.db") as store:
        for _ in range(3):
            await store.append([spent(A, account(read=10**40, plain=-5, cost=cost))])
        (whole,) = await store.spending_sums("all")
    assert (whole.usage.cache_read_tokens, whole.usage.input_tokens) == (MAX_NUMBER, 0)
    assert 0 <= whole.cost_usd <= MAX_NUMBER
    assert whole.unpriced == (0 if math.isfinite(cost) else 3)


async def _fill(store: Store) -> None:
    await store.append([spent(A, account(read=90, plain=10, cost=1.0), senders=["u"])])
    await store.append([spent(A, account(read=50, written=50, cost=2.0), senders=["v", "u"])])
    await store.append([spent(THREAD, account(plain=100, cost=4.0, model="n"), senders=["v"])])
    await store.append(
        [spent(ConversationId(f"{A}0"), account(plain=100, cost=8.0), senders=["v"])]
    )
    await store.append([spent(B, account(plain=100), senders=["u"], at=NEXT)])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("all", {"": 15.0}),
        ("conversation", {A: 3.0, THREAD: 4.0, f"{A}0": 8.0, B: 0.0}),
        ("room", {A: 7.0, f"{A}0": 8.0, B: 0.0}),
        ("sender", {"irc.test:u": 2.0, "irc.test:v": 13.0}),
        ("day", {"2026-03-04": 15.0, "2026-03-05": 0.0}),
        ("agent", {"reverie": 15.0}),
        ("model", {"m": 11.0, "n": 4.0}),
    ],
)
async def test_sums_by_whatever_is_asked(
    tmp_path: Path, by: SpendingKey, expected: dict[str, float]
) -> None:
    async with await opened(tmp_path / "s.db") as store:
        await _fill(store)
        found = await store.spending_sums(by)
    assert {one.key: one.cost_usd for one in found} == expected
    assert sum(one.requests for one in found) == 5
    assert sum(one.unpriced for one in found) == 1
    assert sum((one.usage for one in found), Usage()) == Usage(
        input_tokens=310,
        cache_read_tokens=140,
        cache_write_tokens=50,
        cache_write_1h_tokens=50,
        output_tokens=35,
    )


async def test_a_room_is_asked_for_with_or_without_its_threads_and_from_a_day_on(
    store: Store,
) -> None:
    assert await store.spending_sums("all") == []
    await _fill(store)
    assert [one.cost_usd for one in await store.spending_sums("all", conversation=A)] == [3.0]
    assert [
        one.cost_usd for one in await store.spending_sums("all", conversation=A, threads=True)
    ] == [7.0]
    assert [one.key for one in await store.spending_sums("conversation", since="2026-03-05")] == [B]


def _table(path: Path) -> list[tuple[object, ...]]:
    connection = look_into(path)
    rows = connection.fetch("SELECT * FROM spending ORDER BY 1, 2, 3, 4, 5, 6")
    connection.close()
    return rows
