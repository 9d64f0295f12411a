"""A model whose cache is looked after: plans the marks of each request, and keeps account of what became of them.

The last request of each conversation, as far as there is room. Pure.

One writer at a time of a cold prefix: others wait until what it writes can be read, but not for ever.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from math import inf

from agent.cache.plan import (
    UNKNOWN_FORECAST,
    CacheForecast,
    CachePolicy,
    CacheProfile,
    CacheRefresh,
    PlannedRequest,
    build_refresh_request,
    calibrate_block,
    explain_cache_miss,
    find_cache_miss,
    find_idle_conversation,
    forecast_cache,
    plan_automatic,
    plan_cache,
    plan_refresh,
    segment_prompt,
    segments_before_messages,
)
from agent.cache.state import CacheState, Cadence, Digest
from agent.models.base import Model, ModelError, ModelRequest, StreamChunk, StreamEnd, StreamStart
from agent.tokens.calibration import RequestMeter, count_prompt_tokens
from gateway.core.clock import Clock
from gateway.core.events import RequestUsage, Usage
from gateway.core.tool_spec import Image


class SingleFlight:
    """The prefixes that are being written just now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writers: dict[Digest, asyncio.Event] = {}

    async def wait_for_writer(self, prefix: Digest | None, until_s: float) -> bool:
        """Wait for whoever writes this prefix, until `until_s` by the clock's `monotonic` at the longest.

        True: it can be read, or its writer has failed. False: nobody writes it, or it took too long; what is done
        about it before the next suspension is done before anybody else's turn.
        """
        begun = self._writers.get(prefix) if prefix is not None else None
        left_s = until_s - self._clock.monotonic()
        if begun is None or left_s <= 0:
            return False
        waits = [asyncio.ensure_future(begun.wait()), asyncio.ensure_future(self._clock.sleep(left_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
        return begun.is_set()

    def start(self, prefix: Digest | None) -> asyncio.Event:
        """Begin to write: set what this returns once it can be read, and `end` it in any case. None: it writes none."""
        begun = asyncio.Event()
        if prefix is not None:
            self._writers[prefix] = begun
        return begun

    def finish(self, prefix: Digest | None, begun: asyncio.Event) -> None:
        """Nobody has to wait any more."""
        begun.set()
        if prefix is not None and self._writers.get(prefix) is begun:
            del self._writers[prefix]


MAX_CONVERSATIONS = 256
"""Conversations."""
MAX_BYTES = 64_000_000
"""Of all that is kept, roughly: requests hold their texts and images whole, and views are kept for fewer of them."""
_BYTES_PER_TOKEN = 5


class LastRequests:
    """By agent and conversation; what was kept longest ago leaves first. The last one stays, however large it is."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, str], tuple[PlannedRequest, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, agent: str, place: str) -> PlannedRequest | None:
        """Return the last one of this conversation, if it is still here."""
        found = self._requests.get((agent, place))
        return found[0] if found is not None else None

    def put(self, ask: PlannedRequest) -> PlannedRequest | None:
        """Keep this one. Returns the one before it."""
        key, size = (ask.request.shared_key, ask.request.conversation_id), _estimate_bytes(ask)
        before, freed = self._requests.pop(key, (None, 0))
        self._requests[key] = ask, size
        self._bytes += size - freed
        while len(self._requests) > 1 and (len(self._requests) > MAX_CONVERSATIONS or self._bytes > MAX_BYTES):
            self._bytes -= self._requests.popitem(last=False)[1][1]
        return before


def _estimate_bytes(ask: PlannedRequest) -> int:
    words = (ask.estimate.size.total - ask.estimate.size.images) * _BYTES_PER_TOKEN
    if not ask.estimate.size.images:
        return words
    parts = [part for said in ask.request.conversation for part in said.parts]
    return words + sum([len(part.data) for part in parts if isinstance(part, Image)])


logger = logging.getLogger("reverie.cache")
_MAX_WAIT_S = {"marks": 10.0, "automatic": 60.0, "none": 0.0}
"""How long others wait for the writer of a cold prefix, at most. A local model may read for a minute, and what it
reads twice costs that time; a remote one begins to answer within seconds, or hangs."""
_RETRY_S = 60.0
"""What is asked so soon after a failure is asked again (`agent.models.failover.MAX_RETRY_AFTER_S`): nobody's habit."""


class CachingModel:
    """A `Model` around another one.

    Everything of it but `stream` is the other's. `StreamEnd` comes with an `account`. The first call of a cold prefix
    that all conversations share is made alone: others wait for its first chunk, or its end, because what it writes can
    be read only then.
    """

    def __init__(
        self,
        model: Model,
        dialect: CacheProfile,
        *,
        clock: Clock,
        gauge: RequestMeter,
        policy: Callable[[str], CachePolicy],
        rests: Callable[["CachingModel", str, str], None] | None = None,
    ) -> None:
        """`policy` and `gauge` are asked before each request, the former by the agent's id (`ModelRequest.shared_key`).

        `rests` is told after each request, with its agent and its conversation. None: nobody wants to know.
        """
        self._model = model
        self.dialect = dialect  # its price may be another one from some moment on
        self._clock = clock
        self._gauge = gauge
        self._policy = policy
        self._on_idle = rests
        self.pending_requests = 0
        """Requests under way that somebody waits for."""
        self._cache_state = CacheState()
        self._cadence: dict[str, Cadence] = {}
        self.last_requests = LastRequests()
        """The last request of each conversation that was answered."""
        self._single_flight = SingleFlight(clock)
        self._failed_s: dict[tuple[str, str], float] = {}
        """When the last request of a conversation failed, if it did."""
        self.name = model.name
        self.label = model.label
        self.context_tokens = model.context_tokens
        self.max_output_tokens = model.max_output_tokens
        self.family = model.family
        self.takes_tools = model.takes_tools
        self.takes_images = model.takes_images

    async def start(self) -> None:
        await self._model.start()

    async def aclose(self) -> None:
        await self._model.aclose()

    def restore_cadence(self, agent: str, cadence: Cadence) -> None:
        """Know the habits of an agent's conversations from before. Too late once it was asked: that counts."""
        self._cadence.setdefault(agent, cadence)

    def max_cost_usd(self, request: ModelRequest) -> float:
        """What it may cost at most, as far as its length can be told. 0: nothing."""
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        measured = (before.request, before.estimate) if before is not None else None
        _, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        long = self._policy(request.shared_key).allows_hour
        return self.dialect.max_cost_usd(estimate.tokens, request.max_output_tokens, long=long)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        # Where nothing is to be answered nobody has said anything: that tells nothing of anybody's habits.
        answer = self._stream_planned if request.max_output_tokens else self._model.stream
        self.pending_requests += 1
        try:
            async with aclosing(answer(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.pending_requests -= 1
            if self._on_idle is not None:
                self._on_idle(self, request.shared_key, request.conversation_id)

    async def _stream_planned(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        key, at_s = (request.shared_key, request.conversation_id), self._now_s()
        if not 0 <= at_s - self._failed_s.pop(key, -inf) <= _RETRY_S:  # else it is the same request, once more
            self._cadence_of(request).observe_request(request.conversation_id, at_s)
        ask, until_s = self._plan_request(request), self._clock.monotonic() + _MAX_WAIT_S[self.dialect.caching]
        while await self._single_flight.wait_for_writer(ask.written_prefix, until_s):
            ask = self._plan_request(request)
        begun, billed = self._single_flight.start(ask.written_prefix), None
        try:
            async with aclosing(self._model.stream(ask.request)) as chunks:
                async for chunk in chunks:
                    if not begun.is_set():
                        self._record_sent(ask)
                        self._single_flight.finish(ask.written_prefix, begun)
                    if isinstance(chunk, StreamStart):
                        billed = chunk.usage
                        yield replace(chunk, billed_accounts=partial(self._account_partial, ask, billed))
                    else:
                        yield self._finish(ask, chunk) if isinstance(chunk, StreamEnd) else chunk
        except ModelError as error:
            self._failed_s[key] = self._now_s()
            error.accounts = self._account_partial(ask, billed)
            raise
        finally:
            self._single_flight.finish(ask.written_prefix, begun)

    def _plan_request(self, request: ModelRequest) -> PlannedRequest:
        at_s, cadence = self._now_s(), self._cadence_of(request)
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        measured = (before.request, before.estimate) if before is not None else None
        meter, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        laid = segment_prompt(request, estimate.size, (before.request, before.segments) if before is not None else None)
        path = tuple([unit.digest for unit in laid])
        policy = self._policy(request.shared_key)
        cached = self._cache_state.find(path, at_s)
        if self.dialect.caching == "automatic":
            planned = plan_automatic(laid, cached)
        else:
            usable = laid
            if request.answer_only and request.tools:
                usable, cached = segments_before_messages(laid, cached)
            planned = plan_cache(
                usable,
                price=self.dialect.calibrated_price(estimate),
                policy=policy if self.dialect.caching == "marks" else replace(policy, kind="off"),
                shared=cadence.shared_odds(),
                own=cadence.odds(request.conversation_id),
                cached=cached,
            )
        planned = replace(planned, blocks=tuple([calibrate_block(block, estimate) for block in planned.blocks]))
        marked = replace(request, breakpoints=planned.breakpoints)
        return PlannedRequest(
            request=marked, segments=laid, digests=path, plan=planned, meter=meter, estimate=estimate, sent_at_s=at_s
        )

    def _record_sent(self, ask: PlannedRequest) -> None:
        self._cache_state.record_request(
            ask.digests, read=ask.plan.read_segments, writes=ask.plan.writes, at_s=ask.sent_at_s
        )

    def _finish(self, ask: PlannedRequest, end: StreamEnd) -> StreamEnd:
        """The answer is whole: compare what was billed with what was expected."""
        whole = replace(end.usage, input_tokens=end.usage.input_tokens + end.cleared_tokens)
        ask = replace(ask, billed_tokens=count_prompt_tokens(whole), cleared_tokens=end.cleared_tokens)
        ask.meter.record_bill(ask.estimate, whole)
        account = self._build_account(
            ask, self.last_requests.get(ask.request.shared_key, ask.request.conversation_id), end
        )
        self.last_requests.put(replace(ask, account=account))
        if end.stop_reason != "tools":  # the loop is over: what only it would have sent again is cached for nobody
            self._cache_state.forget(ask.digests_from(end.ephemeral_from))
        return replace(end, account=account)

    def _account_partial(self, ask: PlannedRequest, usage: Usage | None) -> tuple[RequestUsage, ...]:
        """What an answer cost that did not come to its end."""
        end = StreamEnd(stop_reason="end", usage=usage or Usage(), model=self.dialect.model)
        return (
            (self._build_account(replace(ask, billed_tokens=count_prompt_tokens(end.usage)), None, end),)
            if usage is not None
            else ()
        )

    def _build_account(self, ask: PlannedRequest, before: PlannedRequest | None, end: StreamEnd) -> RequestUsage:
        usage, expected = end.usage, find_cache_miss(ask, end.usage)
        if expected is not None:
            self._record_miss(ask, usage)
        account = RequestUsage(
            provider=self.dialect.provider,
            model=end.model or self.dialect.model,
            blocks=ask.block_accounts,
            usage=usage,
            cost_usd=self.dialect.price.cost_usd(usage),
            exact=self._gauge.is_exact(ask.request),
            missed=explain_cache_miss(ask, before, expected, usage),
            cleared=ask.cleared_tokens,
        )
        if account.missed:
            logger.info("%s: %s", ask.request.conversation_id, account.missed)
        return account

    def _record_miss(self, ask: PlannedRequest, usage: Usage) -> None:
        """Believe what was billed: less was cached than was thought."""
        read = ask.count_segments_read(usage.cache_read_tokens)
        self._cache_state.forget(ask.digests[read : ask.plan.read_segments])
        if self.dialect.caching == "marks":
            marks = {(mark.behind, mark.index): mark.lifetime for mark in ask.plan.breakpoints}
            writes = [
                (place, marks[unit.behind, unit.number])
                for place, unit in enumerate(ask.segments)
                if place >= read and unit.takes_breakpoint and (unit.behind, unit.number) in marks
            ]
            self._cache_state.record_request(ask.digests, read=read, writes=writes, at_s=ask.sent_at_s)

    def plan_refresh(self, agent: str, place: str, *, budget_usd: float) -> CacheRefresh | None:
        """When to `refresh` a conversation, and what it may cost; None: not at all (`agent.cache.plan`)."""
        ask, policy = self.last_requests.get(agent, place), self._policy(agent)
        found = (
            find_idle_conversation(ask, self._cache_state.find_with_expiry(ask.digests, self._now_s()))
            if ask is not None
            else None
        )
        if ask is None or found is None or policy.kind == "off":
            return None
        lengthens = policy.kind == "auto" and policy.allows_hour
        cadence, price = self._cadence_of(ask.request), self.dialect.price
        return plan_refresh(found, cadence, price, budget_usd=budget_usd, lengthens=lengthens)

    def forecast(self, agent: str, place: str) -> CacheForecast:
        """What the cache of a conversation's history is like now, and how long that is expected to matter."""
        ask, price, caching = self.last_requests.get(agent, place), self.dialect.price, self.dialect.caching
        if caching == "none" or (caching == "marks" and self._policy(agent).kind == "off"):
            return UNKNOWN_FORECAST  # `off` is about marks: who caches by itself cannot be told not to
        odds = self._cadence.setdefault(agent, Cadence()).odds(place)
        return forecast_cache(
            ask,
            lambda: self._cache_state.find_with_expiry(ask.digests, self._now_s()) if ask else (),
            odds,
            price,
            self._now_s(),
        )

    async def refresh(self, agent: str, place: str) -> RequestUsage | None:
        """Read again what is cached of a conversation, and answer nothing. None: there is nothing any more.

        Raises a ModelError; it may be billed all the same.
        """
        at_s, newest, end = self._now_s(), self.last_requests.get(agent, place), None
        ask = (
            build_refresh_request(newest, self._cache_state.find_with_expiry(newest.digests, at_s), at_s)
            if newest is not None
            else None
        )
        if ask is None:
            return None
        async with aclosing(self._model.stream(ask.request)) as chunks:
            async for chunk in chunks:
                end = chunk if isinstance(chunk, StreamEnd) else end
        assert end is not None
        self._record_sent(ask)
        return self._build_account(ask, None, end)

    def _cadence_of(self, request: ModelRequest) -> Cadence:
        return self._cadence.setdefault(request.shared_key, Cadence())

    def _now_s(self) -> float:
        # Not the monotonic clock: what is known of yesterday must still count after a restart.
        return self._clock.now().timestamp()
