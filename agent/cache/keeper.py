"""A model whose cache is looked after: plans the marks of each request, and keeps account of what became of them."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from math import inf

from agent.cache.ask import Ask, scaled, short_of, why
from agent.cache.cadence import Cadence
from agent.cache.dialect import Dialect
from agent.cache.flights import Flights
from agent.cache.keepwarm import Due, refresh_at, rereading, resting
from agent.cache.newest import Newest
from agent.cache.outlook import UNKNOWN, Outlook, outlook
from agent.cache.plan import Policy, by_itself, in_front, plan
from agent.cache.units import units
from agent.cache.warmth import Warmth
from agent.models.base import Began, Chunk, End, Model, ModelError, Request
from agent.tokens.meter import Gauge, prompt_tokens
from gateway.clock import Clock
from gateway.events import Account, Usage

_LOG = logging.getLogger("reverie.cache")
_PATIENCE_S = {"marks": 10.0, "automatic": 60.0, "none": 0.0}
"""How long others wait for the writer of a cold prefix, at most. A local model may read for a minute, and what it
reads twice costs that time; a remote one begins to answer within seconds, or hangs."""
_RETRY_S = 60.0
"""What is asked so soon after a failure is asked again (`agent.models.failover.LONGEST_HINT_S`): nobody's habit."""


class Keeper:
    """A `Model` around another one.

    Everything of it but `stream` is the other's. `End` comes with an `account`. The first call of a cold prefix that
    all conversations share is made alone: others wait for its first chunk, or its end, because what it writes can be
    read only then.
    """

    def __init__(
        self,
        model: Model,
        dialect: Dialect,
        *,
        clock: Clock,
        gauge: Gauge,
        policy: Callable[[str], Policy],
        rests: Callable[["Keeper", str, str], None] | None = None,
    ) -> None:
        """`policy` and `gauge` are asked before each request, the former by the agent's id (`Request.shared_key`).

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
        self._cache_state = Warmth()
        self._cadence: dict[str, Cadence] = {}
        self.last_requests = Newest()
        """The last request of each conversation that was answered."""
        self._single_flight = Flights(clock)
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

    def max_cost_usd(self, request: Request) -> float:
        """What it may cost at most, as far as its length can be told. 0: nothing."""
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        measured = (before.request, before.estimate) if before is not None else None
        _, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        long = self._policy(request.shared_key).allows_hour
        return self.dialect.max_cost_usd(estimate.tokens, request.max_output_tokens, long=long)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk]:
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

    async def _stream_planned(self, request: Request) -> AsyncGenerator[Chunk]:
        key, at_s = (request.shared_key, request.conversation_id), self._now_s()
        if not 0 <= at_s - self._failed_s.pop(key, -inf) <= _RETRY_S:  # else it is the same request, once more
            self._cadence_of(request).observe_request(request.conversation_id, at_s)
        ask, until_s = self._plan_request(request), self._clock.monotonic() + _PATIENCE_S[self.dialect.caching]
        while await self._single_flight.wait_for_writer(ask.written_prefix, until_s):
            ask = self._plan_request(request)
        begun, billed = self._single_flight.start(ask.written_prefix), None
        try:
            async with aclosing(self._model.stream(ask.request)) as chunks:
                async for chunk in chunks:
                    if not begun.is_set():
                        self._record_sent(ask)
                        self._single_flight.finish(ask.written_prefix, begun)
                    if isinstance(chunk, Began):
                        billed = chunk.usage
                        yield replace(chunk, billed_accounts=partial(self._account_partial, ask, billed))
                    else:
                        yield self._finish(ask, chunk) if isinstance(chunk, End) else chunk
        except ModelError as error:
            self._failed_s[key] = self._now_s()
            error.accounts = self._account_partial(ask, billed)
            raise
        finally:
            self._single_flight.finish(ask.written_prefix, begun)

    def _plan_request(self, request: Request) -> Ask:
        at_s, cadence = self._now_s(), self._cadence_of(request)
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        measured = (before.request, before.estimate) if before is not None else None
        meter, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        laid = units(request, estimate.size, (before.request, before.segments) if before is not None else None)
        path = tuple([unit.digest for unit in laid])
        policy = self._policy(request.shared_key)
        cached = self._cache_state.find(path, at_s)
        if self.dialect.caching == "automatic":
            planned = by_itself(laid, cached)
        else:
            usable = laid
            if request.answer_only and request.tools:
                usable, cached = in_front(laid, cached)
            planned = plan(
                usable,
                price=self.dialect.calibrated_price(estimate),
                policy=policy if self.dialect.caching == "marks" else replace(policy, kind="off"),
                shared=cadence.shared_odds(),
                own=cadence.odds(request.conversation_id),
                cached=cached,
            )
        planned = replace(planned, blocks=tuple([scaled(block, estimate) for block in planned.blocks]))
        marked = replace(request, breakpoints=planned.breakpoints)
        return Ask(
            request=marked, segments=laid, digests=path, plan=planned, meter=meter, estimate=estimate, sent_at_s=at_s
        )

    def _record_sent(self, ask: Ask) -> None:
        self._cache_state.record_request(
            ask.digests, read=ask.plan.read_segments, writes=ask.plan.writes, at_s=ask.sent_at_s
        )

    def _finish(self, ask: Ask, end: End) -> End:
        """The answer is whole: compare what was billed with what was expected."""
        whole = replace(end.usage, input_tokens=end.usage.input_tokens + end.cleared_tokens)
        ask = replace(ask, billed_tokens=prompt_tokens(whole), cleared_tokens=end.cleared_tokens)
        ask.meter.record_bill(ask.estimate, whole)
        account = self._build_account(
            ask, self.last_requests.get(ask.request.shared_key, ask.request.conversation_id), end
        )
        self.last_requests.put(replace(ask, account=account))
        if end.stop_reason != "tools":  # the loop is over: what only it would have sent again is cached for nobody
            self._cache_state.forget(ask.digests_from(end.ephemeral_from))
        return replace(end, account=account)

    def _account_partial(self, ask: Ask, usage: Usage | None) -> tuple[Account, ...]:
        """What an answer cost that did not come to its end."""
        end = End(stop_reason="end", usage=usage or Usage(), model=self.dialect.model)
        return (
            (self._build_account(replace(ask, billed_tokens=prompt_tokens(end.usage)), None, end),)
            if usage is not None
            else ()
        )

    def _build_account(self, ask: Ask, before: Ask | None, end: End) -> Account:
        usage, expected = end.usage, short_of(ask, end.usage)
        if expected is not None:
            self._record_miss(ask, usage)
        account = Account(
            provider=self.dialect.provider,
            model=end.model or self.dialect.model,
            blocks=ask.block_accounts,
            usage=usage,
            cost_usd=self.dialect.price.cost_usd(usage),
            exact=self._gauge.is_exact(ask.request),
            missed=why(ask, before, expected, usage),
            cleared=ask.cleared_tokens,
        )
        if account.missed:
            _LOG.info("%s: %s", ask.request.conversation_id, account.missed)
        return account

    def _record_miss(self, ask: Ask, usage: Usage) -> None:
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

    def plan_refresh(self, agent: str, place: str, *, budget_usd: float) -> Due | None:
        """When to `refresh` a conversation, and what it may cost; None: not at all (`agent.cache.keepwarm`)."""
        ask, policy = self.last_requests.get(agent, place), self._policy(agent)
        found = (
            resting(ask, self._cache_state.find_with_expiry(ask.digests, self._now_s())) if ask is not None else None
        )
        if ask is None or found is None or policy.kind == "off":
            return None
        lengthens = policy.kind == "auto" and policy.allows_hour
        cadence, price = self._cadence_of(ask.request), self.dialect.price
        return refresh_at(found, cadence, price, budget_usd=budget_usd, lengthens=lengthens)

    def forecast(self, agent: str, place: str) -> Outlook:
        """What the cache of a conversation's history is like now, and how long that is expected to matter."""
        ask, price, caching = self.last_requests.get(agent, place), self.dialect.price, self.dialect.caching
        if caching == "none" or (caching == "marks" and self._policy(agent).kind == "off"):
            return UNKNOWN  # `off` is about marks: who caches by itself cannot be told not to
        odds = self._cadence.setdefault(agent, Cadence()).odds(place)
        return outlook(
            ask,
            lambda: self._cache_state.find_with_expiry(ask.digests, self._now_s()) if ask else (),
            odds,
            price,
            self._now_s(),
        )

    async def refresh(self, agent: str, place: str) -> Account | None:
        """Read again what is cached of a conversation, and answer nothing. None: there is nothing any more.

        Raises a ModelError; it may be billed all the same.
        """
        at_s, newest, end = self._now_s(), self.last_requests.get(agent, place), None
        ask = (
            rereading(newest, self._cache_state.find_with_expiry(newest.digests, at_s), at_s)
            if newest is not None
            else None
        )
        if ask is None:
            return None
        async with aclosing(self._model.stream(ask.request)) as chunks:
            async for chunk in chunks:
                end = chunk if isinstance(chunk, End) else end
        assert end is not None
        self._record_sent(ask)
        return self._build_account(ask, None, end)

    def _cadence_of(self, request: Request) -> Cadence:
        return self._cadence.setdefault(request.shared_key, Cadence())

    def _now_s(self) -> float:
        # Not the monotonic clock: what is known of yesterday must still count after a restart.
        return self._clock.now().timestamp()
