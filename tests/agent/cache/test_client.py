"""`CachingModel` around a real Anthropic client, against the strict fake server, with a manual clock."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest

from agent.cache.client import CachingModel
from agent.cache.plan import UNKNOWN_FORECAST, CachePolicy, CacheProfile
from agent.cache.prices import PriceTable
from agent.models.anthropic import AnthropicModel
from agent.models.base import ModelBusy, ModelMessage, ModelRequest, StreamEnd, SystemBlock, TextPart
from agent.tokens.counter import TokenEstimate, TokenMeter
from agent.tools import ENDING_TOOLS
from gateway.core.clock import ManualClock
from gateway.core.events import RequestUsage
from tests.servers.messages_cache import MessagesCache
from tests.servers.model_api import Answer, ModelApi

MODEL = "claude-sonnet-5-5"
PRICES = PriceTable.parse((Path(__file__).parents[3] / "config" / "prices.yaml").read_text(encoding="utf-8"))
IDENTITY = SystemBlock(name="identity", text="You are Ana. " * 600, ttl="long")
ANSWER = Answer(text="Yes.")


class Bytes:
    """`Gauge` over bytes alone."""

    def __init__(self) -> None:
        self._meter = TokenMeter()

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None
    ) -> tuple[TokenMeter, TokenEstimate]:
        return self._meter, self._meter.estimate(model, request, before)

    def is_exact(self, request: ModelRequest) -> bool:
        del request
        return False


@dataclass
class Bench:
    api: ModelApi
    keeper: CachingModel
    clock: ManualClock
    policy: CachePolicy = field(default_factory=CachePolicy)

    async def ask(self, request: ModelRequest) -> RequestUsage:
        end: StreamEnd | None = None
        async with aclosing(self.keeper.stream(request)) as chunks:
            async for chunk in chunks:
                end = chunk if isinstance(chunk, StreamEnd) else end
        assert end is not None
        assert end.account is not None
        return end.account


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with ModelApi(cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic) as api:
        api.default = lambda _: ANSWER
        model = AnthropicModel(name="main", model=MODEL, base_url=api.url, api_key="k")
        made = Bench(api, None, clock)  # type: ignore[arg-type]  # the keeper asks the bench
        made.keeper = CachingModel(
            model,
            CacheProfile(provider="anthropic", model=MODEL, price=PRICES.find(MODEL), caching="marks"),
            clock=clock,
            gauge=Bytes(),
            policy=lambda _: made.policy,
        )
        async with aclosing(made.keeper):
            yield made


def request(place: str, *lines: str, card: str = "# Where you are") -> ModelRequest:
    said = [
        ModelMessage(role="assistant" if number % 2 else "user", parts=(TextPart(text=line),))
        for number, line in enumerate(lines)
    ]
    return ModelRequest(
        blocks=(IDENTITY, SystemBlock(name="channel", text=card, ttl="short")),
        conversation=tuple(said),
        tools=ENDING_TOOLS,
        max_output_tokens=100,
        shared_key="ana",
        conversation_id=place,
    )


def story(test: Callable[[Bench], object]) -> None:
    async def told() -> None:
        async with bench() as made, asyncio.timeout(120):
            await test(made)  # type: ignore[misc]

    asyncio.run(told())


def test_what_is_expected_is_what_is_billed() -> None:
    async def test(bench: Bench) -> None:
        lines = ["[x] ann (guest): " + "hello " * 40]
        account = await bench.ask(request("irc/#a", *lines))
        for number in range(6):
            account = await bench.ask(request("irc/#a", *lines))
            lines += ["Yes.", f"[x] ann (guest): {number} " + "and so on " * 30]
            bench.clock.advance(60)
        read, written = (sum(getattr(block, name) for block in account.blocks) for name in ("read", "written"))
        assert account.missed == ""
        assert read == pytest.approx(account.usage.cache_read_tokens, rel=0.05)
        assert written == pytest.approx(account.usage.cache_write_tokens, rel=0.2)
        assert [block.name for block in account.blocks] == ["tools", "identity", "channel", "history"]
        assert account.cost_usd == pytest.approx(PRICES.find(MODEL).cost_usd(account.usage))
        assert bench.api.violations == []

    story(test)


def test_a_cold_shared_prefix_is_written_once() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(replace(ANSWER, delay_s=0.2), ANSWER, ANSWER)
        places = ("irc/#a", "telegram/1", "discord/2")
        accounts = await asyncio.gather(*(bench.ask(request(place, f"hello from {place}")) for place in places))
        wrote = [account.usage.cache_write_tokens > 1_000 for account in accounts]
        assert wrote == [True, False, False]
        assert all(account.usage.cache_read_tokens > 1_000 for account in accounts[1:])

    story(test)


def test_who_waits_goes_on_when_the_first_call_fails() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(Answer(status=529, delay_s=0.2, body=b"{}"), ANSWER)
        first, second = await asyncio.gather(
            bench.ask(request("irc/#a", "hello")), bench.ask(request("irc/#b", "hello")), return_exceptions=True
        )
        assert isinstance(first, ModelBusy)
        assert isinstance(second, RequestUsage)
        assert second.usage.cache_write_tokens > 1_000

    story(test)


def test_a_cancelled_first_call_lets_the_others_go_on() -> None:
    async def test(bench: Bench) -> None:
        bench.api.then(replace(ANSWER, delay_s=60), ANSWER)
        first = asyncio.create_task(bench.ask(request("irc/#a", "hello")))
        while not bench.api.seen:
            await asyncio.sleep(0.005)
        second = asyncio.create_task(bench.ask(request("irc/#b", "hello")))
        await asyncio.sleep(0.05)
        assert len(bench.api.seen) == 1
        first.cancel()
        assert (await second).usage.cache_write_tokens > 1_000

    story(test)


def test_the_byte_that_spoilt_the_cache_is_named() -> None:
    async def test(bench: Bench) -> None:
        long = "hello " * 500
        await bench.ask(request("irc/#a", long))
        await bench.ask(request("irc/#a", long, "Yes.", "more"))
        account = await bench.ask(request("irc/#a", long, "Yes.", "more", "Yes.", "again", card="# Where you ARE"))
        assert account.missed == "channel: blocks[1].text differs at byte 12"
        told = await bench.ask(request("irc/#a", long, "No!", "more", "Yes.", "again", card="# Where you ARE"))
        assert told.missed == "history: conversation[1].parts[0] differs at byte 0"

    story(test)


def test_what_the_provider_lost_is_said_and_believed() -> None:
    async def test(bench: Bench) -> None:
        long = "hello " * 500
        await bench.ask(request("irc/#a", long))
        bench.api._messages.cache = MessagesCache(lambda text: -(-len(text) // 4))
        bench.clock.advance(30)
        account = await bench.ask(request("irc/#a", long, "Yes.", "more"))
        assert account.missed.startswith("0 of about ")
        assert "no byte differs, last sent 30 s before" in account.missed
        again = await bench.ask(request("irc/#a", long, "Yes.", "more", "Yes.", "again"))
        assert (again.missed, again.usage.cache_read_tokens > 1_000) == ("", True)

    story(test)


def test_no_marks_where_caching_is_off() -> None:
    async def test(bench: Bench) -> None:
        bench.policy = CachePolicy(kind="off")
        account = await bench.ask(request("irc/#a", "hello"))
        assert (account.usage.cache_write_tokens, account.missed) == (0, "")
        assert "cache_control" not in str(bench.api.seen[0].body)

    story(test)


@pytest.mark.parametrize(
    ("caching", "kind", "looked_after"),
    [
        ("marks", "auto", True),
        ("marks", "off", False),
        ("automatic", "auto", True),
        ("automatic", "off", True),  # it caches all the same
        ("none", "auto", False),
        ("none", "off", False),
    ],
)
def test_only_of_a_cache_that_is_there_anything_is_told(
    caching: Literal["marks", "automatic", "none"], kind: Literal["auto", "off"], looked_after: bool
) -> None:
    async def test(bench: Bench) -> None:
        bench.policy = CachePolicy(kind=kind)
        dialect = CacheProfile(provider="x", model=MODEL, price=PRICES.find(MODEL), caching=caching)
        model = AnthropicModel(name="main", model=MODEL, base_url=bench.api.url, api_key="k")
        keeper = CachingModel(model, dialect, clock=bench.clock, gauge=Bytes(), policy=lambda _: bench.policy)
        async with aclosing(keeper):
            before = keeper.forecast("ana", "irc/#a")
            assert (before == UNKNOWN_FORECAST) is not looked_after
            await Bench(bench.api, keeper, bench.clock).ask(request("irc/#a", "hello"))
            told = keeper.forecast("ana", "irc/#a")
        assert (told == UNKNOWN_FORECAST) is not looked_after
        if looked_after:
            assert (told.is_cold, told.read_share) == (False, PRICES.find(MODEL).read)

    story(test)


def test_what_holds_for_now_is_part_of_the_account_and_never_read() -> None:
    async def test(bench: Bench) -> None:
        told = replace(request("irc/#a", "hello"), now="Answer in one line.")
        await bench.ask(told)
        account = await bench.ask(told)
        assert (account.blocks[-1].name, account.blocks[-1].read, account.blocks[-1].written) == ("now", 0, 0)

    story(test)
