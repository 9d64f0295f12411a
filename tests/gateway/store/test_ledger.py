"""Costs of requests and of turns: expected, billed, shared by the rule, and summed equally by
append and by rebuild."""

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.events import BlockUsage, ConversationId, RequestUsage, Usage
from gateway.core.facts import Seq, TurnRecord
from gateway.core.format import format_usd
from gateway.store import NewEntry, SpendingKey, SpendingSum, Store, ledger
from gateway.store.ledger import LedgerRequest
from gateway.store.spending import MAX_NUMBER, spending_shares
from tests.kits import store, strategies
from tests.kits.store import NOW, account, look_into, opened, place, spent, turn

# Expected and billed cost of requests, in numbers and in words

A, B = place("#a").conversation, place("#b").conversation


def one(**more: object) -> LedgerRequest:
    billed = replace(account(read=0, written=120, plain=12, cost=0.0321), **more)  # type: ignore[arg-type]
    return LedgerRequest(seq=Seq(63), at=NOW, conversation=A, agent="ana", account=billed)


def test_a_request_is_told_block_by_block_with_what_was_billed_and_why() -> None:
    missed = "0 of about 100 tokens were read: identity, system[0].text differs from byte 17 on"
    assert ledger.format_request(one(missed=missed)) == [
        "2026-03-04 05:06:07 UTC  irc.test/#a  ana  anthropic m  $0.0321  (entry 63)",
        "  estimated   tokens  read  write 5m  write 1h  uncached",
        "  identity       100   100         0         0         0",
        "  history         30     0         0        20        10",
        "  expected       130   100         0        20        10",
        "  billed         132     0         0       120        12",
        "  difference      +2  -100         0      +100        +2",
        f"  missed: {missed}",
    ]
    lines = ledger.format_request(one(cost_usd=None, exact=True))
    assert "price not known" in lines[0]
    assert lines[1].split()[0] == "counted"
    assert "missed" not in lines[-1]


def test_what_is_written_for_five_minutes_stands_apart() -> None:
    five = BlockUsage(name="history", tokens=1000, read=400, written=500, lifetime="5m")
    usage = Usage(
        cache_read_tokens=400, cache_write_tokens=500, cache_write_1h_tokens=200, input_tokens=100
    )
    lines = ledger.format_request(one(blocks=(five,), usage=usage))
    assert lines[2].split() == ["history", "1,000", "400", "500", "0", "100"]
    assert lines[4].split() == ["billed", "1,000", "400", "300", "200", "100"]
    assert lines[5].split() == ["difference", "0", "0", "-200", "+200", "0"]


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (None, "price not known"),
        (0.0, "$0.00"),
        (0.0000006, "$0.000001"),
        (0.01234, "$0.0123"),
        (0.5, "$0.5000"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money(usd: float | None, text: str) -> None:
    assert format_usd(usd) == text


def summed(
    key: str, requests: int = 1, unpriced: int = 0, cost: float = 0.0, **tokens: int
) -> SpendingSum:
    return SpendingSum(
        key=key, requests=requests, unpriced=unpriced, usage=Usage(**tokens), cost_usd=cost
    )


def test_sums_are_told() -> None:
    tokens = {
        "input_tokens": 100,
        "cache_read_tokens": 1800,
        "cache_write_tokens": 100,
        "output_tokens": 50,
    }
    text = ledger.format_spending(summed("", requests=1200, cost=2.0, **tokens))
    assert (
        text
        == "1,200 requests: 2,000 input tokens (90.0 % from the cache), 50 output tokens, $2.00"
    )
    assert ledger.format_spending(summed("", unpriced=1)).startswith("1 request: 0 input token")
    assert ledger.format_spending(summed("", unpriced=1)).endswith(", price not known")
    assert ledger.format_spending(summed("", requests=2, unpriced=1, cost=2)).endswith(
        ", at least $2.00"
    )


def test_the_dearest_stands_first() -> None:
    rooms = [
        summed("irc.x/#a", 2, cost=1.0, cache_read_tokens=5),
        summed("irc.x/#bb", 3, cost=2.0),
        summed(""),
    ]
    assert ledger.format_spending_table("room", rooms) == [
        "room       requests  input     read  written  output   cost",
        "irc.x/#bb         3      0        -        0       0  $2.00",
        "irc.x/#a          2      5  100.0 %        0       0  $1.00",
        "-                 1      0        -        0       0  $0.00",
    ]
    senders = ledger.format_spending_table("sender", [summed("irc.x:u"), summed("irc.x:")])
    assert [line.split()[0] for line in senders] == ["sender", "irc.x:(nobody)", "irc.x:u"]
    assert "requests" not in senders[0]


def _many(count: int) -> list[NewEntry]:
    return [
        spent(A if number % 3 else B, account(plain=number), account(read=number))
        for number in range(count)
    ]


async def _plain(store: Store, most: int) -> list[int]:
    return [found.account.usage.input_tokens for found in await ledger.newest_requests(store, most)]


async def test_the_newest_requests_are_found_wherever_they_stand(store: Store) -> None:
    assert await ledger.newest_requests(store, 5) == []
    await store.append(_many(500))
    await store.append(
        [turn(A) for _ in range(300)]
    )  # without accounts: the search goes on behind them
    assert await _plain(store, 0) == []
    assert await _plain(store, 3) == [0, 499, 0]
    assert len(await _plain(store, 5_000)) == 1_000
    there = await ledger.newest_requests(store, 4, B)
    assert [found.account.usage for found in there] == [
        one.usage for number in (495, 498) for one in (account(plain=number), account(read=number))
    ]
    assert {found.conversation for found in there} == {B}
    assert there[0].agent == "reverie"


async def test_a_long_log_is_not_read_to_its_beginning(store: Store) -> None:
    await store.append(_many(1))
    for _ in range(3):
        await store.append([turn(B) for _ in range(ledger.MAX_TURNS_READ // 2)])
    assert await ledger.newest_requests(store, 1, B) == []
    assert await ledger.newest_requests(store, 1) == []


def test_the_fact_keeps_who_took_it_and_for_whom() -> None:
    fact = spent(A, account(), senders=["u", "v"]).fact
    assert isinstance(fact, TurnRecord)
    assert (fact.agent, fact.senders) == ("reverie", ("u", "v"))


# Costs of turns: shared by the rule, and summed equally by append and by rebuild

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
