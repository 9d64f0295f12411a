"""Expected and billed cost of requests, in numbers and in words; `usage` and `cache`."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.access.policy import ConversationBinding
from gateway.core.clock import ManualClock
from gateway.core.events import Address, BlockUsage, Usage
from gateway.core.facts import Seq
from gateway.core.format import format_usd
from gateway.plugins import usage
from gateway.plugins.usage import LedgerRequest, UsageReports
from gateway.store import NewEntry, SpendingSum, Store
from gateway.stream.routing import BindingPattern, Bindings
from tests.gateway.commands.commands_kit import Counter
from tests.kits.commands import command_context
from tests.kits.places import privacy
from tests.kits.plugins import plugins_of
from tests.kits.store import NOW, account, place, said, spent, turn

A, B = place("#a").conversation, place("#b").conversation
ROOM, ALONE, OTHER = place("#a"), place("ann"), place("bob")
OPEN = Bindings(
    [
        BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="all", private=False),
        )
    ]
)


def one(**more: object) -> LedgerRequest:
    billed = replace(account(read=0, written=120, plain=12, cost=0.0321), **more)  # type: ignore[arg-type]
    return LedgerRequest(seq=Seq(63), at=NOW, conversation=A, agent="ana", account=billed)


def test_a_request_is_told_block_by_block_with_what_was_billed_and_why() -> None:
    missed = "0 of about 100 tokens were read: identity, system[0].text differs from byte 17 on"
    assert usage.format_request(one(missed=missed)) == [
        "2026-03-04 05:06:07 UTC  irc.test/#a  ana  anthropic m  $0.0321  (entry 63)",
        "  estimated   tokens  read  write 5m  write 1h  uncached",
        "  identity       100   100         0         0         0",
        "  history         30     0         0        20        10",
        "  expected       130   100         0        20        10",
        "  billed         132     0         0       120        12",
        "  difference      +2  -100         0      +100        +2",
        f"  missed: {missed}",
    ]
    lines = usage.format_request(one(cost_usd=None, exact=True))
    assert "price not known" in lines[0]
    assert lines[1].split()[0] == "counted"
    assert "missed" not in lines[-1]


def test_what_is_written_for_five_minutes_stands_apart() -> None:
    five = BlockUsage(name="history", tokens=1000, read=400, written=500, lifetime="5m")
    billed = Usage(
        cache_read_tokens=400, cache_write_tokens=500, cache_write_1h_tokens=200, input_tokens=100
    )
    lines = usage.format_request(one(blocks=(five,), usage=billed))
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
    text = usage.format_spending(summed("", requests=1200, cost=2.0, **tokens))
    assert (
        text
        == "1,200 requests: 2,000 input tokens (90.0 % from the cache), 50 output tokens, $2.00"
    )
    assert usage.format_spending(summed("", unpriced=1)).startswith("1 request: 0 input token")
    assert usage.format_spending(summed("", unpriced=1)).endswith(", price not known")
    assert usage.format_spending(summed("", requests=2, unpriced=1, cost=2)).endswith(
        ", at least $2.00"
    )


def test_the_dearest_stands_first() -> None:
    rooms = [
        summed("irc.x/#a", 2, cost=1.0, cache_read_tokens=5),
        summed("irc.x/#bb", 3, cost=2.0),
        summed(""),
    ]
    assert usage.format_spending_table("room", rooms) == [
        "room       requests  input     read  written  output   cost",
        "irc.x/#bb         3      0        -        0       0  $2.00",
        "irc.x/#a          2      5  100.0 %        0       0  $1.00",
        "-                 1      0        -        0       0  $0.00",
    ]
    senders = usage.format_spending_table("sender", [summed("irc.x:u"), summed("irc.x:")])
    assert [line.split()[0] for line in senders] == ["sender", "irc.x:(nobody)", "irc.x:u"]
    assert "requests" not in senders[0]


def _many(count: int) -> list[NewEntry]:
    return [
        spent(A if number % 3 else B, account(plain=number), account(read=number))
        for number in range(count)
    ]


async def _plain(store: Store, most: int) -> list[int]:
    return [found.account.usage.input_tokens for found in await usage.newest_requests(store, most)]


async def test_the_newest_requests_are_found_wherever_they_stand(store: Store) -> None:
    assert await usage.newest_requests(store, 5) == []
    await store.append(_many(500))
    await store.append(
        [turn(A) for _ in range(300)]
    )  # without accounts: the search goes on behind them
    assert await _plain(store, 0) == []
    assert await _plain(store, 3) == [0, 499, 0]
    assert len(await _plain(store, 5_000)) == 1_000
    there = await usage.newest_requests(store, 4, B)
    assert [found.account.usage for found in there] == [
        one.usage for number in (495, 498) for one in (account(plain=number), account(read=number))
    ]
    assert {found.conversation for found in there} == {B}
    assert there[0].agent == "reverie"


async def test_a_long_log_is_not_read_to_its_beginning(store: Store) -> None:
    await store.append(_many(1))
    for _ in range(3):
        await store.append([turn(B) for _ in range(usage.MAX_TURNS_READ // 2)])
    assert await usage.newest_requests(store, 1, B) == []
    assert await usage.newest_requests(store, 1) == []


def asking(store: Store, at: Address, **more: Any) -> Counter:
    clock = ManualClock(NOW)
    context = command_context(store, clock, places=privacy(store, OPEN))
    context = replace(context, plugins=plugins_of(UsageReports, gateway=context.gateway))
    asked: dict[str, Any] = {"role": "admin", "direct": True} | more
    return Counter(store=store, clock=clock, context=context, at=at, **asked)


async def test_usage_of_rooms_is_told_to_admins_everywhere_without_private_names(
    store: Store,
) -> None:
    await store.append([said(1, "for all"), said(2, "alone", "bob", "direct")])
    await store.append(
        [spent(at.conversation, account(plain=100, cost=2.0), at=NOW) for at in (ROOM, OTHER)]
    )
    admin = await asking(store, ALONE).says("usage")
    assert ROOM.conversation in admin
    assert OTHER.conversation not in admin
    assert "$4.00" in admin
    assert OTHER.conversation in await asking(store, ALONE, role="owner").says("usage")
    scoped = await asking(store, ALONE, everywhere="guest").says("usage")
    assert scoped == "- Here today: no requests to a model."
