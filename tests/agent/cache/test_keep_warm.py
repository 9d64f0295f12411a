"""Keeping idle conversations warm: a real Anthropic client against the strict fake server, with a
manual clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from agent.cache.idle import REFRESH_MARGIN_S, CacheRefresh, plan_refresh
from agent.cache.plan import CachePolicy, CacheProfile, PlannedRequest
from agent.cache.prices import Price
from agent.cache.prompt_cache import CacheWarmer, PromptCache
from agent.cache.state import CachedPrefix, Cadence
from agent.models.anthropic import AnthropicModel
from agent.models.base import ModelRequest, StreamEnd
from agent.models.client import Candidate, ModelClient
from agent.tokens.counter import TokenMeter
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import ModelApi
from reverie.testing.waiting import until
from tests.agent.cache.request_kit import (
    ANSWER,
    MODEL,
    PLAIN,
    PRICES,
    Bytes,
    Part,
    make,
    request,
    units,
)

ROOM = "irc/#a"
VARIED = (420.0, 900.0, 1_800.0, 3_000.0)
LONG = "hello " * 500


@dataclass
class Bench:
    api: ModelApi
    clock: ManualClock
    policy: CachePolicy = field(
        default_factory=lambda: CachePolicy(kind="fixed", allows_hour=False)
    )
    budget_usd: float = 1.0
    told: list[tuple[str, RequestUsage]] = field(default_factory=list)
    cache: PromptCache = None  # type: ignore[assignment]  # it asks the bench
    model: ModelClient = None  # type: ignore[assignment]
    warmer: CacheWarmer = None  # type: ignore[assignment]

    def used_to(self, *gaps_s: float) -> None:
        """Let the agent's conversations have had such gaps until now."""
        cadence, times = Cadence(), [0.0]
        for _ in range(8):
            for gap_s in gaps_s:
                times.append(times[-1] + gap_s)
        for at_s in times:
            cadence.observe_request(ROOM, self.clock.now().timestamp() - times[-1] + at_s - 600.0)
        self.cache.restore_cadence("ana", cadence)

    async def ask(self, asked: ModelRequest) -> RequestUsage:
        async with aclosing(self.model.stream(asked)) as chunks:
            ends = [chunk async for chunk in chunks if isinstance(chunk, StreamEnd)]
        assert ends[0].account is not None
        return ends[0].account

    @property
    def refreshed(self) -> int:
        """Requests that were to be answered with nothing."""
        return sum(one.body["max_tokens"] == 0 for one in self.api.seen)

    async def idle(self, for_s: float, step_s: float = 5.0) -> None:
        for _ in range(round(for_s / step_s)):
            self.clock.advance(step_s)
            await self.settled()

    async def settled(self) -> None:
        """Return once the warmer waits for the clock or for news."""
        for _ in range(12):
            await asyncio.sleep(0)
        await until(lambda: not (len(self.told) < self.refreshed and (not self.api.violations)))
        for _ in range(12):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with ModelApi(
        cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic
    ) as api:
        api.default = lambda _: ANSWER
        made = Bench(api, clock)
        made.warmer = CacheWarmer(clock, budget_usd=lambda: made.budget_usd)
        provider = AnthropicModel(name="main", model=MODEL, base_url=api.url, api_key="k")
        made.cache = PromptCache(
            provider,
            CacheProfile(
                provider="anthropic", model=MODEL, price=PRICES.find(MODEL), caching="marks"
            ),
            clock=clock,
            gauge=Bytes(),
            policy=lambda _: made.policy,
            warmer=made.warmer,
        )
        made.model = ModelClient(
            [Candidate(provider, made.cache)], clock=clock, random=lambda: 0.0, attempts=1
        )
        async with aclosing(provider):
            made.warmer.listeners.append(lambda agent, account: made.told.append((agent, account)))
            running = asyncio.create_task(made.warmer.run())
            try:
                yield made
            finally:
                running.cancel()
                await asyncio.wait([running])


async def test_nothing_is_sent_without_a_budget(bench: Bench) -> None:
    bench.budget_usd = 0.0
    bench.used_to(*VARIED)
    await bench.ask(request(ROOM, LONG))
    await bench.idle(24 * 3_600.0, step_s=60.0)
    assert (len(bench.api.seen), bench.told) == (1, [])


async def test_a_prefix_of_five_minutes_can_be_read_after_fifty(bench: Bench) -> None:
    bench.used_to(*VARIED)
    first = await bench.ask(request(ROOM, LONG))
    await bench.idle(3_000.0)
    account = await bench.ask(request(ROOM, LONG, "Yes.", "more"))
    assert (bench.api.violations, account.missed) == ([], "")
    assert account.usage.cache_read_tokens == first.usage.cache_write_tokens > 1_000
    assert bench.refreshed == len(bench.told) == 10
    for agent, refresh in bench.told:
        assert (agent, refresh.missed, refresh.usage.output_tokens) == ("ana", "", 0)
        assert refresh.usage.cache_read_tokens == first.usage.cache_write_tokens
        blocks = sum(block.read for block in refresh.blocks)
        assert blocks == pytest.approx(refresh.usage.cache_read_tokens, rel=0.1)
    spent = sum(refresh.cost_usd or 0.0 for _, refresh in bench.told)
    lost = PRICES.find(MODEL).cost_usd(replace(first.usage, output_tokens=0))
    assert lost is not None
    assert spent < lost


async def test_a_refresh_has_the_same_bytes_and_marks_as_what_it_keeps(bench: Bench) -> None:
    bench.used_to(*VARIED)
    await bench.ask(replace(request(ROOM, LONG, "Yes.", "more"), now="Answer in one line."))
    await bench.idle(300.0)
    asked, refresh = (one.body for one in bench.api.seen)
    told = asked.pop("messages")
    assert (asked.pop("stream"), asked.pop("max_tokens"), refresh.pop("max_tokens")) == (
        True,
        100,
        0,
    )
    assert told[: len(refresh["messages"])] == refresh.pop("messages")
    assert asked == refresh


async def test_an_hour_is_kept_beyond_an_hour_and_then_let_go(bench: Bench) -> None:
    bench.policy = CachePolicy(kind="fixed", short_lifetime="1h")
    bench.used_to(5_400.0)
    first = await bench.ask(request(ROOM, LONG))
    await bench.idle(5_400.0, step_s=10.0)
    account = await bench.ask(request(ROOM, LONG, "Yes.", "more"))
    assert account.usage.cache_read_tokens == first.usage.cache_write_tokens
    assert bench.refreshed == 1
    await bench.idle(24 * 3_600.0, step_s=10.0)
    refreshed = bench.refreshed
    assert sum(refresh.cost_usd or 0.0 for _, refresh in bench.told) < (first.cost_usd or 0.0)
    await bench.idle(24 * 3_600.0, step_s=60.0)
    assert bench.refreshed == refreshed


async def test_what_all_share_is_kept_where_a_conversation_is_let_go(bench: Bench) -> None:
    """Each asks once, and somebody asks every two hours."""
    bench.policy = CachePolicy(keeps_warm=True)
    for room in range(8):
        await bench.ask(request(f"irc/#{room}", LONG))
        bench.clock.advance(7_000.0)
    spent = len(bench.told)
    first = await bench.ask(request("irc/#last", LONG))
    await bench.idle(7_200.0, step_s=10.0)
    refreshes = [refresh for _, refresh in bench.told[spent:]]
    account = await bench.ask(request("irc/#next", LONG))
    assert (bench.api.violations, len(refreshes), account.missed) == ([], 2, "")
    shared = first.blocks[0].tokens + first.blocks[1].tokens
    for usage in (*[refresh.usage for refresh in refreshes], account.usage):
        assert usage.cache_read_tokens == pytest.approx(shared, rel=0.1)


async def test_what_should_be_cached_for_an_hour_is_not_kept_alive_for_five_minutes(
    bench: Bench,
) -> None:
    bench.policy = CachePolicy(kind="fixed", allows_hour=False)
    bench.used_to(400.0)
    await bench.ask(request(ROOM, LONG))
    bench.policy = CachePolicy()
    await bench.idle(300.0)
    assert bench.refreshed == 0


async def test_the_budget_of_a_day_holds_and_the_next_day_has_its_own(bench: Bench) -> None:
    bench.used_to(*VARIED)
    first = await bench.ask(request(ROOM, LONG))
    most = first.usage.cache_write_tokens * 2 * 2 / 1e6  # written for an hour, at $2
    bench.budget_usd = most * 1.15  # enough for a surprise behind three refreshes, not behind more
    await bench.idle(3_000.0)
    spent = sum(refresh.cost_usd or 0.0 for _, refresh in bench.told)
    assert 0 < bench.refreshed < 10
    assert 0.0 < spent <= bench.budget_usd - most * 0.9
    refreshed = bench.refreshed
    await bench.ask(request(ROOM, LONG))
    await bench.idle(600.0)
    assert bench.refreshed == refreshed
    await bench.idle(24 * 3_600.0, step_s=600.0)
    await bench.ask(request(ROOM, LONG))
    await bench.idle(300.0)
    assert bench.refreshed > refreshed


async def test_what_the_provider_lost_is_paid_once_and_within_the_budget(bench: Bench) -> None:
    bench.used_to(*VARIED)
    first = await bench.ask(request(ROOM, LONG))
    bench.budget_usd = first.usage.cache_write_tokens * 2 * 2 / 1e6 * 1.05
    bench.api._messages.cache = MessagesCache(lambda text: -(-len(text) // 4))
    await bench.idle(600.0)
    ((_, refresh),) = bench.told
    assert refresh.missed.startswith("0 of about ")
    assert refresh.cost_usd is not None
    assert refresh.cost_usd <= bench.budget_usd
    assert (await bench.ask(request(ROOM, LONG, "Yes.", "more"))).missed == ""


# test_keep_warm_plan


PRICE = Price(input_usd=2, output_usd=10, minimum_tokens=512)
IDLE_ROOM = "irc/#room"


def lengths(gap_s: float, *, between: int = 3) -> list[float]:
    """Expected after bursts of so many messages, so far apart."""
    made = Cadence()
    for number in range(20):
        for more in range(between + 1):
            made.observe_request(IDLE_ROOM, (gap_s + 60.0 * between) * number + 60.0 * more)
    return made.lengths(IDLE_ROOM)


def due(
    lengths: list[float],
    *,
    tokens: int = 20_000,
    mortal: int = 20_000,
    idle_s: float = 3_600.0,
    price: Price = PRICE,
    budget_usd: float = 1.0,
) -> CacheRefresh | None:
    """The plan for a prefix of which so much expires, after so long without a request."""
    meter, asked = TokenMeter(), request(IDLE_ROOM, "hello")
    parts = [Part("identity", "i", tokens - mortal), Part("channel", "c", mortal)]
    planned = PlannedRequest(
        request=asked,
        segments=tuple(units(parts)),
        plan=make(parts, PLAIN),
        meter=meter,
        estimate=meter.estimate(MODEL, asked),
        sent_at_s=1_000.0,
    )
    expires_s = 1_000.0 + idle_s
    lasting = [CachedPrefix(0, "1h", inf), CachedPrefix(1, "1h", expires_s)]
    return plan_refresh(
        planned,
        lasting[tokens == mortal :],
        lengths,
        price,
        last_request_s=1_000.0,
        budget_usd=budget_usd,
    )


def test_an_idle_gateway_costs_nothing_unless_there_is_a_budget() -> None:
    assert due(lengths(5_000.0), budget_usd=0.0) is None
    found = due(lengths(5_000.0))
    assert found is not None
    assert found.at_s == 4_600.0 - REFRESH_MARGIN_S
    billed = TokenMeter().estimate(MODEL, request(IDLE_ROOM, "hello")).correct(20_000)
    assert found.max_cost_usd == pytest.approx(billed * 2 * 2 / 1e6)


def test_keeping_never_costs_more_than_losing() -> None:
    always = lengths(50_000.0, between=0)
    assert due(always, idle_s=12 * 3_600.0) is not None
    assert due(always, idle_s=19.2 * 3_600.0) is None
    assert due(always, idle_s=12 * 3_600.0, mortal=12_000) is None


def test_what_has_no_price_or_is_too_small_is_not_kept_warm() -> None:
    assert due(lengths(5_000.0), price=Price()) is None
    assert due(lengths(5_000.0), tokens=100, mortal=100) is None
    assert due(lengths(5_000.0), price=Price(input_usd=0, output_usd=0)) is None
