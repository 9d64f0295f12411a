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
        self._rests = rests
        self.asking = 0
        """Requests under way that somebody waits for."""
        self._warmth = Warmth()
        self._cadence: dict[str, Cadence] = {}
        self.newest = Newest()
        """The last request of each conversation that was answered."""
        self._flights = Flights(clock)
        self._failed_s: dict[tuple[str, str], float] = {}
        """When the last request of a conversation failed, if it did."""
        self.name = model.name
        self.label = model.label
        self.context_tokens = model.context_tokens
        self.max_output_tokens = model.max_output_tokens
        self.family = model.family
        self.takes_tools = model.takes_tools
        self.sees = model.sees

    async def start(self) -> None:
        await self._model.start()

    async def aclose(self) -> None:
        await self._model.aclose()

    def restore(self, agent: str, cadence: Cadence) -> None:
        """Know the habits of an agent's conversations from before. Too late once it was asked: that counts."""
        self._cadence.setdefault(agent, cadence)

    def ceiling_usd(self, request: Request) -> float:
        """What it may cost at most, as far as its length can be told. 0: nothing."""
        before = self.newest.get(request.shared_key, request.place)
        measured = (before.request, before.estimate) if before is not None else None
        _, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        long = self._policy(request.shared_key).long
        return self.dialect.ceiling_usd(estimate.tokens, request.max_output_tokens, long=long)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk]:
        # Where nothing is to be answered nobody has said anything: that tells nothing of anybody's habits.
        answer = self._answer if request.max_output_tokens else self._model.stream
        self.asking += 1
        try:
            async with aclosing(answer(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.asking -= 1
            if self._rests is not None:
                self._rests(self, request.shared_key, request.place)

    async def _answer(self, request: Request) -> AsyncGenerator[Chunk]:
        key, at_s = (request.shared_key, request.place), self._now_s()
        if not 0 <= at_s - self._failed_s.pop(key, -inf) <= _RETRY_S:  # else it is the same request, once more
            self._cadence_of(request).asked(request.place, at_s)
        ask, until_s = self._prepare(request), self._clock.monotonic() + _PATIENCE_S[self.dialect.caching]
        while await self._flights.ahead(ask.writing, until_s):
            ask = self._prepare(request)
        begun, billed = self._flights.start(ask.writing), None
        try:
            async with aclosing(self._model.stream(ask.request)) as chunks:
                async for chunk in chunks:
                    if not begun.is_set():
                        self._began(ask)
                        self._flights.end(ask.writing, begun)
                    if isinstance(chunk, Began):
                        billed = chunk.usage
                        yield replace(chunk, billed=partial(self._broken, ask, billed))
                    else:
                        yield self._closed(ask, chunk) if isinstance(chunk, End) else chunk
        except ModelError as error:
            self._failed_s[key] = self._now_s()
            error.accounts = self._broken(ask, billed)
            raise
        finally:
            self._flights.end(ask.writing, begun)

    def _prepare(self, request: Request) -> Ask:
        at_s, cadence = self._now_s(), self._cadence_of(request)
        before = self.newest.get(request.shared_key, request.place)
        measured = (before.request, before.estimate) if before is not None else None
        meter, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        laid = units(request, estimate.size, (before.request, before.laid) if before is not None else None)
        path = tuple([unit.digest for unit in laid])
        policy = self._policy(request.shared_key)
        cached = self._warmth.find(path, at_s)
        if self.dialect.caching == "automatic":
            planned = by_itself(laid, cached)
        else:
            usable = laid
            if request.answer_only and request.tools:
                usable, cached = in_front(laid, cached)
            planned = plan(
                usable,
                price=self.dialect.priced(estimate),
                policy=policy if self.dialect.caching == "marks" else replace(policy, kind="off"),
                shared=cadence.shared_odds(),
                own=cadence.odds(request.place),
                cached=cached,
            )
        planned = replace(planned, blocks=tuple([scaled(block, estimate) for block in planned.blocks]))
        marked = replace(request, marks=planned.marks)
        return Ask(request=marked, laid=laid, path=path, plan=planned, meter=meter, estimate=estimate, at_s=at_s)

    def _began(self, ask: Ask) -> None:
        self._warmth.sent(ask.path, read=ask.plan.read, writes=ask.plan.writes, at_s=ask.at_s)

    def _closed(self, ask: Ask, end: End) -> End:
        """The answer is whole: compare what was billed with what was expected."""
        whole = replace(end.usage, input_tokens=end.usage.input_tokens + end.cleared)
        ask = replace(ask, billed=prompt_tokens(whole), cleared=end.cleared)
        ask.meter.billed(ask.estimate, whole)
        account = self._account(ask, self.newest.get(ask.request.shared_key, ask.request.place), end)
        self.newest.keep(replace(ask, account=account))
        if end.stop != "tools":  # the loop is over: what only it would have sent again is cached for nobody
            self._warmth.forget(ask.path_from(end.fleeting))
        return replace(end, account=account)

    def _broken(self, ask: Ask, usage: Usage | None) -> tuple[Account, ...]:
        """What an answer cost that did not come to its end."""
        end = End(stop="end", usage=usage or Usage(), model=self.dialect.model)
        return (self._account(replace(ask, billed=prompt_tokens(end.usage)), None, end),) if usage is not None else ()

    def _account(self, ask: Ask, before: Ask | None, end: End) -> Account:
        usage, expected = end.usage, short_of(ask, end.usage)
        if expected is not None:
            self._unread(ask, usage)
        account = Account(
            provider=self.dialect.provider,
            model=end.model or self.dialect.model,
            blocks=ask.blocks,
            usage=usage,
            cost_usd=self.dialect.price.cost_usd(usage),
            exact=self._gauge.exact(ask.request),
            missed=why(ask, before, expected, usage),
            cleared=ask.cleared,
        )
        if account.missed:
            _LOG.info("%s: %s", ask.request.place, account.missed)
        return account

    def _unread(self, ask: Ask, usage: Usage) -> None:
        """Believe what was billed: less was cached than was thought."""
        read = ask.units_read(usage.cache_read_tokens)
        self._warmth.forget(ask.path[read : ask.plan.read])
        if self.dialect.caching == "marks":
            marks = {(mark.behind, mark.index): mark.lifetime for mark in ask.plan.marks}
            writes = [
                (place, marks[unit.behind, unit.number])
                for place, unit in enumerate(ask.laid)
                if place >= read and unit.markable and (unit.behind, unit.number) in marks
            ]
            self._warmth.sent(ask.path, read=read, writes=writes, at_s=ask.at_s)

    def refresh_at(self, agent: str, place: str, *, budget_usd: float) -> Due | None:
        """When to `refresh` a conversation, and what it may cost; None: not at all (`agent.cache.keepwarm`)."""
        ask, policy = self.newest.get(agent, place), self._policy(agent)
        found = resting(ask, self._warmth.lasting(ask.path, self._now_s())) if ask is not None else None
        if ask is None or found is None or policy.kind == "off":
            return None
        lengthens = policy.kind == "auto" and policy.long
        cadence, price = self._cadence_of(ask.request), self.dialect.price
        return refresh_at(found, cadence, price, budget_usd=budget_usd, lengthens=lengthens)

    def outlook(self, agent: str, place: str) -> Outlook:
        """What the cache of a conversation's history is like now, and how long that is expected to matter."""
        ask, price, caching = self.newest.get(agent, place), self.dialect.price, self.dialect.caching
        if caching == "none" or (caching == "marks" and self._policy(agent).kind == "off"):
            return UNKNOWN  # `off` is about marks: who caches by itself cannot be told not to
        odds = self._cadence.setdefault(agent, Cadence()).odds(place)
        return outlook(
            ask, lambda: self._warmth.lasting(ask.path, self._now_s()) if ask else (), odds, price, self._now_s()
        )

    async def refresh(self, agent: str, place: str) -> Account | None:
        """Read again what is cached of a conversation, and answer nothing. None: there is nothing any more.

        Raises a ModelError; it may be billed all the same.
        """
        at_s, newest, end = self._now_s(), self.newest.get(agent, place), None
        ask = rereading(newest, self._warmth.lasting(newest.path, at_s), at_s) if newest is not None else None
        if ask is None:
            return None
        async with aclosing(self._model.stream(ask.request)) as chunks:
            async for chunk in chunks:
                end = chunk if isinstance(chunk, End) else end
        assert end is not None
        self._began(ask)
        return self._account(ask, None, end)

    def _cadence_of(self, request: Request) -> Cadence:
        return self._cadence.setdefault(request.shared_key, Cadence())

    def _now_s(self) -> float:
        # Not the monotonic clock: what is known of yesterday must still count after a restart.
        return self._clock.now().timestamp()
