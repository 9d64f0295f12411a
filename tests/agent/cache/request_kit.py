"""Requests for the tests of the cache: as segments, as bodies, and by a client against the fake
Messages API."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agent.cache.plan import CachePlan, CachePolicy, CacheProfile, plan_cache
from agent.cache.prices import Price, PriceTable
from agent.cache.prompt_cache import PromptCache
from agent.cache.state import (
    ROOT_DIGEST,
    CachedPrefix,
    CacheState,
    Lifetimes,
    PromptSegment,
    extend_digest,
)
from agent.models.anthropic import AnthropicModel
from agent.models.base import Model, ModelMessage, ModelRequest, StreamEnd, SystemBlock, TextPart
from agent.models.client import Candidate, ModelClient
from agent.tokens.counter import TokenEstimate, TokenMeter
from agent.tools import ENDING_TOOLS
from gateway.core.clock import Clock, ManualClock
from gateway.core.events import RequestUsage
from reverie.testing.servers.messages_cache import MessagesCache, Ticket
from reverie.testing.servers.model_api import Answer, ModelApi

PRICE = Price(input_usd=2, output_usd=10, minimum_tokens=512)
SHARED = ("tools", "identity", "skills")


class Part(NamedTuple):
    name: str
    bytes_: str
    tokens: int
    positions: int = 1
    markable: bool = True


def units(parts: Sequence[Part]) -> list[PromptSegment]:
    made: list[PromptSegment] = []
    digest, said, position = ROOT_DIGEST, 0, 0
    for number, part in enumerate(parts):
        digest = extend_digest(digest, part.bytes_.encode())
        history = part.name == "history"
        position += part.positions
        made.append(
            PromptSegment(
                name=part.name,
                behind="said" if history else "block",
                number=said if history else number,
                tokens=part.tokens,
                end_tokens=sum(one.tokens for one in parts[: number + 1]),
                digest=digest,
                end_position=position,
                is_shared=part.name in SHARED,
                takes_breakpoint=part.markable,
            )
        )
        said += history
    return made


def tokens(words: str) -> int:
    return int(words.rsplit("|", 1)[1])


def body(parts: Sequence[Part], planned: CachePlan) -> dict[str, Any]:
    """Each part is as many content blocks as it has positions; the mark is on the last."""
    marks = {(mark.behind, mark.index): mark.lifetime for mark in planned.breakpoints}
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for unit, part in zip(units(parts), parts, strict=True):
        sizes = [part.tokens // part.positions] * (part.positions - 1)
        sizes.append(part.tokens - sum(sizes))
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": f"{part.bytes_} {i}|{size}"} for i, size in enumerate(sizes)
        ]
        if (lifetime := marks.pop((unit.behind, unit.number), None)) is not None:
            blocks[-1]["cache_control"] = {"type": "ephemeral", "ttl": lifetime}
        if unit.behind == "said":
            messages.append({"role": "assistant" if unit.number % 2 else "user", "content": blocks})
        else:
            system += blocks
    assert not marks
    return {"model": "claude-sonnet-5-5", "system": system, "messages": messages}


PLAIN, LONG = Lifetimes("1h", "1h", "5m"), Lifetimes("1h", "1h", "1h")
"""With which a conversation begins, and what one has whose messages are slow."""


def make(
    parts: Sequence[Part], lifetimes: Lifetimes | None, cached: Sequence[CachedPrefix] = ()
) -> CachePlan:
    return plan_cache(units(parts), lifetimes, minimum_tokens=PRICE.minimum_tokens, cached=cached)


def ask(
    judge: MessagesCache,
    warmth: CacheState,
    parts: Sequence[Part],
    planned: CachePlan,
    *,
    at_s: float,
) -> Ticket:
    """Send a planned request, and believe what was predicted."""
    ticket = judge.begin(body(parts, planned), at_s=at_s)
    judge.began(ticket)
    warmth.record_request(
        units(parts), read=planned.read_segments, writes=planned.writes, at_s=at_s
    )
    return ticket


MODEL = "claude-sonnet-5-5"
PRICES = PriceTable.parse(
    (Path(__file__).parents[3] / "config" / "prices.yaml").read_text(encoding="utf-8")
)
IDENTITY = SystemBlock(name="identity", text="You are Ana. " * 600)
ANSWER = Answer(text="Yes.")


class Bytes:
    """`Gauge` over bytes alone."""

    def __init__(self) -> None:
        self._meter = TokenMeter()

    def estimate(self, model: str, request: ModelRequest) -> tuple[TokenMeter, TokenEstimate]:
        return self._meter, self._meter.estimate(model, request)

    def is_exact(self, request: ModelRequest) -> bool:
        del request
        return False


@dataclass
class Bench:
    api: ModelApi
    provider: Model
    cache: PromptCache
    clock: ManualClock
    policy: CachePolicy = field(default_factory=CachePolicy)

    def client(self, clock: Clock, attempts: int = 4) -> ModelClient:
        candidates = [Candidate(self.provider, self.cache)]
        return ModelClient(candidates, clock=clock, random=lambda: 0.0, attempts=attempts)

    @property
    def model(self) -> ModelClient:
        return self.client(self.clock, 1)

    async def ask(self, request: ModelRequest) -> RequestUsage:
        end: StreamEnd | None = None
        async with aclosing(self.model.stream(request)) as chunks:
            async for chunk in chunks:
                end = chunk if isinstance(chunk, StreamEnd) else end
        assert end is not None
        assert end.account is not None
        return end.account


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with ModelApi(
        cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic
    ) as api:
        api.default = lambda _: ANSWER
        model = AnthropicModel(name="main", model=MODEL, base_url=api.url, api_key="k")
        made = Bench(api, model, None, clock)  # type: ignore[arg-type]  # the cache asks the bench
        made.cache = PromptCache(
            model,
            CacheProfile(
                provider="anthropic", model=MODEL, price=PRICES.find(MODEL), caching="marks"
            ),
            clock=clock,
            gauge=Bytes(),
            policy=lambda _: made.policy,
        )
        async with aclosing(model):
            yield made


def request(place: str, *lines: str, card: str = "# Where you are") -> ModelRequest:
    said = [
        ModelMessage(role="assistant" if number % 2 else "user", parts=(TextPart(text=line),))
        for number, line in enumerate(lines)
    ]
    return ModelRequest(
        blocks=(IDENTITY, SystemBlock(name="channel", text=card)),
        conversation=tuple(said),
        tools=ENDING_TOOLS,
        max_output_tokens=100,
        shared_key="ana",
        conversation_id=place,
    )
