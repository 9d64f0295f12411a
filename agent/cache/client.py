"""A model whose prompt cache is managed: plans the breakpoints of each request, and accounts for
what came of them.

`CachingModel` is the wrapper. `LastRequests` keeps the last request of each conversation,
`SingleFlight` lets only one request at a time write a cold prefix: others wait until it can be
read, for a limited time.

`CacheWarmer` sends the refreshes that `agent.cache.plan` finds worth their cost; without a budget
it sends nothing. A refresh begins only while the model has no other request under way, one at a
time, and its last request did not fail. A refresh that failed is not tried again before the
conversation goes on.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, NamedTuple

from agent.cache.plan import (
    UNKNOWN_FORECAST,
    CacheForecast,
    CachePolicy,
    CacheProfile,
    CacheRefresh,
    KeepWarmBudget,
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
from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelRequest,
    ModelUnusable,
    StreamChunk,
    StreamEnd,
    StreamStart,
)
from agent.tokens.counter import RATIO_BOUNDS, RequestMeter, count_prompt_tokens
from gateway.core.clock import Clock
from gateway.core.events import RequestUsage, Usage
from gateway.core.tool_spec import Image

logger = logging.getLogger("reverie.cache")
MAX_CONVERSATIONS = 256
"""Limit of conversations whose last request is kept."""
MAX_BYTES = 64_000_000
"""Limit of all kept requests, roughly: they hold their texts and images whole, and views are kept
for fewer of them."""
_BYTES_PER_TOKEN = 5
_MAX_WAIT_S = {"marks": 10.0, "automatic": 60.0, "none": 0.0}
"""Longest wait for the writer of a cold prefix. A local model may read for a minute, and reading
twice costs that time; a remote one begins to answer within seconds, or hangs."""
_FRAME_TOKENS = 4_000
"""Tokens that a provider may add to any prompt, at most."""
_MIN_BILL_TOKENS = 1_000
"""A smaller bill says nothing about a server's window: some bill only what was not cached."""
_READ_SHARE, _FIRST_READ_SHARE = 0.7, 0.5
"""A bill for less of the estimate is for a prompt that was cut: with a ratio known from bills, and
without."""
_WINDOW_SHARE = 0.95
"""The same for a bill that is a power of two, as windows are (Ollama: 4,096)."""
_RETRY_S = 60.0
"""A request so soon after a failure is a retry (`agent.models.failover.MAX_RETRY_AFTER_S`), and
says nothing about gaps."""


class SingleFlight:
    """Prefixes that are being written now, each by one request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._writers: dict[Digest, asyncio.Event] = {}

    async def wait_for_writer(self, prefix: Digest | None, until_s: float) -> bool:
        """Wait for the request that writes this prefix, until `until_s` of the clock's `monotonic`
        at the latest.

        True: the prefix can be read, or its writer has failed. False: there is no writer, or it
        took too long; then the caller can start writing before its next suspension without a race.
        """
        written = self._writers.get(prefix) if prefix is not None else None
        left_s = until_s - self._clock.monotonic()
        if written is None or left_s <= 0:
            return False
        await _wait_first(written.wait(), self._clock.sleep(left_s))
        return written.is_set()

    def start(self, prefix: Digest | None) -> asyncio.Event:
        """Begin to write. Set the returned event once the prefix can be read, and call `finish` in
        any case.

        `prefix` None: the request writes no shared prefix.
        """
        written = asyncio.Event()
        if prefix is not None:
            self._writers[prefix] = written
        return written

    def finish(self, prefix: Digest | None, written: asyncio.Event) -> None:
        """Release everyone who waits."""
        written.set()
        if prefix is not None and self._writers.get(prefix) is written:
            del self._writers[prefix]


class LastRequests:
    """Last request of each conversation, by agent and conversation.

    The request that was kept first leaves first. The newest always stays, however large it is.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, str], tuple[PlannedRequest, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, agent: str, place: str) -> PlannedRequest | None:
        """Return the last request of this conversation, or None if it is not kept any more."""
        found = self._requests.get((agent, place))
        return found[0] if found is not None else None

    def put(self, planned: PlannedRequest) -> PlannedRequest | None:
        """Keep this request. Return the one before it."""
        key, size = (
            (planned.request.shared_key, planned.request.conversation_id),
            _estimate_bytes(planned),
        )
        before, freed = self._requests.pop(key, (None, 0))
        self._requests[key] = planned, size
        self._bytes += size - freed
        while len(self._requests) > 1 and (
            len(self._requests) > MAX_CONVERSATIONS or self._bytes > MAX_BYTES
        ):
            self._bytes -= self._requests.popitem(last=False)[1][1]
        return before


def _estimate_bytes(planned: PlannedRequest) -> int:
    text_bytes = (planned.estimate.size.total - planned.estimate.size.images) * _BYTES_PER_TOKEN
    if not planned.estimate.size.images:
        return text_bytes
    parts = [part for message in planned.request.conversation for part in message.parts]
    return text_bytes + sum([len(part.data) for part in parts if isinstance(part, Image)])


class CachingModel:
    """A `Model` around another one.

    It forwards everything but `stream`. `StreamEnd` comes with an `account`. The first request that
    writes a cold prefix of all conversations is sent alone: others wait for its first chunk, or its
    end, because the prefix can be read only then.
    """

    def __init__(
        self,
        model: Model,
        dialect: CacheProfile,
        *,
        clock: Clock,
        gauge: RequestMeter,
        policy: Callable[[str], CachePolicy],
        warmer: "CacheWarmer | None" = None,
    ) -> None:
        """Wrap `model`.

        `policy` and `gauge` are called before each request, `policy` with the agent's id
        (`ModelRequest.shared_key`). `warmer`: is told of each request's end. None: nothing is kept
        warm.
        """
        self._model = model
        self.dialect = dialect  # replaced when its price changes
        self._clock = clock
        self._gauge = gauge
        self._policy = policy
        self._warmer = warmer
        self.pending_requests = 0
        """Requests under way whose answer is wanted."""
        self.is_failing = False
        """Its last request failed, and not for what it held: no cache is refreshed until an answer
        is complete."""
        self.cut_prompt: tuple[int, int] | None = None
        """Tokens that the server has read of a prompt that it cut, and of the whole, about. None:
        it reads all."""
        self._is_billed = self._doubts_usage = False
        self._cache_state = CacheState()
        self._cadence: dict[str, Cadence] = {}
        self.last_requests = LastRequests()
        """Last answered request of each conversation."""
        self._single_flight = SingleFlight(clock)
        self._failed_s: dict[tuple[str, str], float] = {}
        """Time of the failure of a conversation's last request, if it failed."""
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
        """Restore the gaps seen in an agent's conversations. Ignored after its first request."""
        self._cadence.setdefault(agent, cadence)

    def observe_elsewhere(self, agent: str, place: str, at_s: float) -> None:
        """Add a request of a conversation that another process made: its gaps count, and it is kept
        warm there.

        Before `restore_cadence`, which knows it from the log, it is ignored.
        """
        if (cadence := self._cadence.get(agent)) is not None:
            cadence.observe_request(place, at_s)
        if self._warmer is not None:
            self._warmer.forget_conversation(self, agent, place)

    def max_cost_usd(self, request: ModelRequest) -> float:
        """Return the most that a request may cost, as far as its length is known. 0: nothing."""
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        measured = (before.request, before.estimate) if before is not None else None
        _, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        long = self._policy(request.shared_key).allows_hour
        return self.dialect.max_cost_usd(estimate.tokens, request.max_output_tokens, long=long)

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        # A request without an answer does not come from a message, so it says nothing about gaps.
        return (
            self._stream_planned(request)
            if request.max_output_tokens
            else self._stream_unplanned(request)
        )

    async def _stream_unplanned(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        with self._count_pending(request):
            async with aclosing(self._model.stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _stream_planned(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        with self._count_pending(request):
            key, at_s = (request.shared_key, request.conversation_id), self._now_s()
            if not 0 <= at_s - self._failed_s.pop(key, -inf) <= _RETRY_S:  # else it is a retry
                self._cadence_of(request).observe_request(request.conversation_id, at_s)
            planned, until_s = (
                self._plan_request(request),
                self._clock.monotonic() + _MAX_WAIT_S[self.dialect.caching],
            )
            while await self._single_flight.wait_for_writer(planned.written_prefix, until_s):
                planned = self._plan_request(request)
            written, billed = self._single_flight.start(planned.written_prefix), None
            try:
                async with aclosing(self._model.stream(planned.request)) as chunks:
                    async for chunk in chunks:
                        if not written.is_set():
                            self._record_sent(planned)
                            self._single_flight.finish(planned.written_prefix, written)
                        if isinstance(chunk, StreamStart):
                            billed = (
                                self._bound_usage(planned, chunk.usage)
                                if chunk.usage is not None
                                else None
                            )
                            yield replace(
                                chunk,
                                billed_accounts=partial(self._account_partial, planned, billed),
                            )
                        else:
                            yield (
                                self._finish(planned, chunk)
                                if isinstance(chunk, StreamEnd)
                                else chunk
                            )
            except ModelError as error:
                self.is_failing = isinstance(error, ModelBusy | ModelUnusable)
                self._failed_s[key] = self._now_s()
                error.accounts = self._account_partial(planned, billed)
                raise
            finally:
                self._single_flight.finish(planned.written_prefix, written)

    @contextlib.contextmanager
    def _count_pending(self, request: ModelRequest) -> Iterator[None]:
        """Count a request whose answer is wanted, and report when there is none any more."""
        self.pending_requests += 1
        try:
            yield
        finally:
            self.pending_requests -= 1
            if self._warmer is not None:
                self._warmer.on_idle(self, request.shared_key, request.conversation_id)

    def _plan_request(self, request: ModelRequest) -> PlannedRequest:
        at_s, cadence = self._now_s(), self._cadence_of(request)
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        measured = (before.request, before.estimate) if before is not None else None
        meter, estimate = self._gauge.estimate(self.dialect.model, request, measured)
        segments = segment_prompt(request, estimate.size, before)
        digests = tuple([segment.digest for segment in segments])
        policy = self._policy(request.shared_key)
        cached = self._cache_state.find(digests, at_s)
        if self.dialect.caching == "automatic":
            plan = plan_automatic(segments, cached)
        else:
            usable = segments
            if request.answer_only and request.tools:
                usable, cached = segments_before_messages(segments, cached)
            plan = plan_cache(
                usable,
                price=self.dialect.calibrated_price(estimate),
                policy=policy if self.dialect.caching == "marks" else replace(policy, kind="off"),
                shared=cadence.shared_odds(),
                own=cadence.odds(request.conversation_id),
                cached=cached,
            )
        plan = replace(
            plan, blocks=tuple([calibrate_block(block, estimate) for block in plan.blocks])
        )
        marked = replace(request, breakpoints=plan.breakpoints)
        return PlannedRequest(
            request=marked,
            segments=segments,
            digests=digests,
            plan=plan,
            meter=meter,
            estimate=estimate,
            sent_at_s=at_s,
        )

    def _record_sent(self, planned: PlannedRequest) -> None:
        self._cache_state.record_request(
            planned.digests,
            read=planned.plan.read_segments,
            writes=planned.plan.writes,
            at_s=planned.sent_at_s,
        )

    def _finish(self, planned: PlannedRequest, end: StreamEnd) -> StreamEnd:
        """Record a complete answer: compare the bill with the plan."""
        self.is_failing = False
        if (
            end.usage == Usage() and end.stop_reason == "length"
        ):  # it was broken off before the usage came
            asked = planned.request.max_output_tokens
            end = replace(
                end, usage=Usage(input_tokens=planned.estimate.tokens, output_tokens=asked)
            )
        end = replace(end, usage=self._bound_usage(planned, end.usage))
        planned = replace(planned, billed_tokens=count_prompt_tokens(end.usage))
        if not self._is_cut(planned.estimate.tokens, planned.billed_tokens):
            planned.meter.record_bill(planned.estimate, end.usage)
        account = self._build_account(
            planned,
            self.last_requests.get(planned.request.shared_key, planned.request.conversation_id),
            end,
        )
        self.last_requests.put(replace(planned, account=account))
        if end.stop_reason not in {
            "tools",
            "length",
        }:  # the loop is over: its own messages will not be sent again
            self._cache_state.forget(planned.digests_from(end.ephemeral_from))
        return replace(end, account=account)

    def _bound_usage(self, planned: PlannedRequest, usage: Usage) -> Usage:
        """Return the usage, or the estimate where the provider reports more than there can be."""
        size, asked = planned.estimate.size.total, planned.request.max_output_tokens
        most_prompt = min(self.context_tokens, int(RATIO_BOUNDS[1] * size) + _FRAME_TOKENS)
        most_output = min(self.context_tokens, int(RATIO_BOUNDS[1] * asked) + _FRAME_TOKENS)
        bounded = usage
        if (
            not 0 <= count_prompt_tokens(usage) <= most_prompt
            or min(usage.input_tokens, usage.cache_read_tokens) < 0
        ):
            bounded = Usage(
                input_tokens=min(planned.estimate.tokens, most_prompt),
                output_tokens=usage.output_tokens,
            )
        if not 0 <= usage.output_tokens <= most_output:
            bounded = replace(bounded, output_tokens=asked)
        if bounded is not usage and not self._doubts_usage:
            self._doubts_usage = True
            logger.warning(
                "%s reports more tokens than its window or the request can hold: %d read, %d "
                "written; they are estimated instead",
                self.label,
                count_prompt_tokens(usage),
                usage.output_tokens,
            )
        return bounded

    def _is_cut(self, estimated: int, billed: int) -> bool:
        """Return whether the server has read less than it was sent; the first time, log it."""
        share = _READ_SHARE if self._is_billed else _FIRST_READ_SHARE
        share = _WINDOW_SHARE if billed & (billed - 1) == 0 or billed & (billed + 1) == 0 else share
        is_cut = (
            self.dialect.caching == "automatic" and _MIN_BILL_TOKENS <= billed < share * estimated
        )
        self._is_billed = self._is_billed or bool(billed)
        if is_cut and self.cut_prompt is None:
            logger.warning("%s; %s", *describe_cut_prompt(self.label, billed, estimated))
        if is_cut:
            self.cut_prompt = self.cut_prompt or (billed, estimated)
        elif self.cut_prompt is not None and billed > self.cut_prompt[1]:
            self.cut_prompt = None  # its window was raised
        return is_cut

    def _account_partial(
        self, planned: PlannedRequest, usage: Usage | None
    ) -> tuple[RequestUsage, ...]:
        """Return the account of an answer that broke off. Empty: nothing was billed."""
        end = StreamEnd(stop_reason="end", usage=usage or Usage(), model=self.dialect.model)
        return (
            (
                self._build_account(
                    replace(planned, billed_tokens=count_prompt_tokens(end.usage)), None, end
                ),
            )
            if usage is not None
            else ()
        )

    def _build_account(
        self, planned: PlannedRequest, before: PlannedRequest | None, end: StreamEnd
    ) -> RequestUsage:
        usage, missed_tokens = end.usage, find_cache_miss(planned, end.usage)
        if missed_tokens is not None:
            self._record_miss(planned, usage)
        account = RequestUsage(
            provider=self.dialect.provider,
            model=end.model or self.dialect.model,
            blocks=planned.block_accounts,
            usage=usage,
            cost_usd=self.dialect.price.cost_usd(usage),
            exact=self._gauge.is_exact(planned.request),
            missed=explain_cache_miss(planned, before, missed_tokens, usage),
        )
        if account.missed:
            logger.info("%s: %s", planned.request.conversation_id, account.missed)
        return account

    def _record_miss(self, planned: PlannedRequest, usage: Usage) -> None:
        """Correct the state by the bill: less was cached than expected."""
        read = planned.count_segments_read(usage.cache_read_tokens)
        self._cache_state.forget(planned.digests[read : planned.plan.read_segments])
        if self.dialect.caching == "marks":
            breakpoints = {
                (mark.behind, mark.index): mark.lifetime for mark in planned.plan.breakpoints
            }
            writes = [
                (place, breakpoints[segment.behind, segment.number])
                for place, segment in enumerate(planned.segments)
                if place >= read
                and segment.takes_breakpoint
                and (segment.behind, segment.number) in breakpoints
            ]
            self._cache_state.record_request(
                planned.digests, read=read, writes=writes, at_s=planned.sent_at_s
            )

    def plan_refresh(self, agent: str, place: str, *, budget_usd: float) -> CacheRefresh | None:
        """Return when to `refresh` a conversation and the cost. None: not at all
        (`agent.cache.plan`).
        """
        planned, policy = self.last_requests.get(agent, place), self._policy(agent)
        idle = (
            find_idle_conversation(planned, self._cache_state.find(planned.digests, self._now_s()))
            if planned is not None
            else None
        )
        if planned is None or idle is None or policy.kind == "off":
            return None
        lengthens = policy.kind == "auto" and policy.allows_hour
        cadence, price = self._cadence_of(planned.request), self.dialect.price
        return plan_refresh(idle, cadence, price, budget_usd=budget_usd, lengthens=lengthens)

    def forecast(self, agent: str, place: str) -> CacheForecast:
        """Return the present state of the cache of a conversation's history, and how long it
        matters.
        """
        planned, price, caching = (
            self.last_requests.get(agent, place),
            self.dialect.price,
            self.dialect.caching,
        )
        if caching == "none" or (caching == "marks" and self._policy(agent).kind == "off"):
            # `off` means no breakpoints; automatic caching cannot be switched off
            return UNKNOWN_FORECAST
        odds = self._cadence.setdefault(agent, Cadence()).odds(place)
        at_s = self._now_s()
        cached = self._cache_state.find(planned.digests, at_s) if planned is not None else ()
        return forecast_cache(planned, cached, odds, price, at_s)

    async def refresh(self, agent: str, place: str) -> RequestUsage | None:
        """Read the cached part of a conversation again, without an answer. None: nothing is cached
        any more.

        Raises a ModelError; it may be billed all the same.
        """
        at_s, last, end = self._now_s(), self.last_requests.get(agent, place), None
        planned = (
            build_refresh_request(last, self._cache_state.find(last.digests, at_s), at_s)
            if last is not None
            else None
        )
        if planned is None:
            return None
        try:
            async with aclosing(self._model.stream(planned.request)) as chunks:
                async for chunk in chunks:
                    end = chunk if isinstance(chunk, StreamEnd) else end
        except (ModelBusy, ModelUnusable):
            self.is_failing = True
            raise
        assert end is not None
        self._record_sent(planned)
        return self._build_account(
            planned, None, replace(end, usage=self._bound_usage(planned, end.usage))
        )

    def _cadence_of(self, request: ModelRequest) -> Cadence:
        return self._cadence.setdefault(request.shared_key, Cadence())

    def _now_s(self) -> float:
        # Not the monotonic clock: the past must still count after a restart.
        return self._clock.now().timestamp()


def describe_cut_prompt(label: str, read: int, sent: int) -> tuple[str, str]:
    """Say that a server reads less than it is sent, and what to do. For the operator."""
    return (
        (
            f"{label} has read {read} of about {sent} tokens: it cuts longer prompts, so persona "
            "and tools are lost"
        ),
        "raise its window (Ollama: OLLAMA_CONTEXT_LENGTH), or write context_tokens as it is",
    )


_MAX_REFRESH_TIMES = 1_000
"""Limit of conversations whose last refresh is remembered."""


class _IdleKey(NamedTuple):
    """Idle conversation of an agent with a model."""

    model: CachingModel
    agent: str
    place: str


class CacheWarmer:
    """Refreshes the caches of all models. There is one, so that each agent has one budget a day."""

    def __init__(self, clock: Clock, *, budget_usd: Callable[[], float]) -> None:
        """Start without conversations.

        `budget_usd`: returns the budget per agent and UTC day; called anew each time.
        """
        self._clock = clock
        self._budget_usd = budget_usd
        self._budget = KeepWarmBudget()
        self._refresh_times: dict[_IdleKey, float] = {}
        """Time of the next refresh of each conversation."""
        self._refreshed_at: dict[tuple[str, str], datetime] = {}
        self._dropped: set[tuple[CachingModel, str]] = set()
        """Models that an agent does not use any more."""
        self._changed = asyncio.Event()

    def replace_models(
        self, agent: str, before: Collection[CachingModel], after: Collection[CachingModel]
    ) -> None:
        """Keep an agent's prompts warm at its new models only."""
        self._dropped = {
            (model, owner) for model, owner in self._dropped if owner != agent or model not in after
        }
        self._dropped |= {(model, agent) for model in before if model not in after}
        self._refresh_times = {
            key: at_s
            for key, at_s in self._refresh_times.items()
            if (key.model, key.agent) not in self._dropped
        }

    def forget_model(self, model: CachingModel) -> None:
        """Forget a model that no agent uses any more, and that is closed."""
        self._dropped = {dropped for dropped in self._dropped if dropped[0] is not model}
        self._refresh_times = {
            key: at_s for key, at_s in self._refresh_times.items() if key.model is not model
        }

    def forget_conversation(self, model: CachingModel, agent: str, place: str) -> None:
        """Keep a conversation warm no longer: its turns run in another process."""
        self._refresh_times.pop(_IdleKey(model, agent, place), None)

    def on_idle(self, model: CachingModel, agent: str, place: str) -> None:
        """Schedule a refresh after an answer has ended. Called by `CachingModel`."""
        self._schedule(_IdleKey(model, agent, place))
        self._changed.set()

    async def run(self, on_refresh: Callable[[str, RequestUsage], None]) -> None:
        """Keep caches warm until cancelled. `on_refresh` is called with the agent and the account
        of each refresh.
        """
        while True:
            self._changed.clear()
            free = [
                key
                for key in self._refresh_times
                if not (key.model.pending_requests or key.model.is_failing)
            ]
            if not free:
                await self._changed.wait()
                continue
            first = min(free, key=self._refresh_times.__getitem__)
            wait_s = self._refresh_times[first] - self._clock.now().timestamp()
            if wait_s > 0:
                await _wait_first(self._clock.sleep(wait_s), self._changed.wait())
                continue
            due = self._schedule(first)
            if (
                due is not None
                and due.at_s <= self._clock.now().timestamp()
                and not first.model.pending_requests
            ):
                await self._refresh(first, due, on_refresh)

    def _schedule(self, key: _IdleKey) -> CacheRefresh | None:
        """Decide anew when to refresh a conversation.

        Other conversations may have used the same prefix meanwhile, or money may have been spent.
        """
        self._refresh_times.pop(key, None)
        budget_usd = self._budget_usd()
        if not budget_usd or (key.model, key.agent) in self._dropped:
            return None
        left_usd = self._budget.remaining_usd(key.agent, self._clock.now().date(), budget_usd)
        due = key.model.plan_refresh(key.agent, key.place, budget_usd=left_usd)
        if due is not None:
            self._refresh_times[key] = due.at_s
        return due

    async def _refresh(
        self, key: _IdleKey, due: CacheRefresh, on_refresh: Callable[[str, RequestUsage], None]
    ) -> None:
        del self._refresh_times[key]
        # Until the cost is known: a refresh that breaks off may be billed as a whole.
        self._budget.spend(key.agent, due.max_cost_usd)
        try:
            account = await key.model.refresh(key.agent, key.place)
        except ModelError as error:
            logger.info("%s is not kept warm: %s", key.place, error.reason)
            return
        cost_usd = 0.0 if account is None else account.cost_usd or 0.0
        self._budget.spend(key.agent, cost_usd - due.max_cost_usd)
        if account is not None:
            read = account.usage.cache_read_tokens
            logger.info(
                "%s is kept warm: %d tokens were read again for $%.6f", key.place, read, cost_usd
            )
            on_refresh(key.agent, account)
            self._refreshed_at[key.agent, key.place] = self._clock.now()
            if len(self._refreshed_at) > _MAX_REFRESH_TIMES:
                del self._refreshed_at[next(iter(self._refreshed_at))]
        self._schedule(key)

    def last_refresh(self, agent: str, place: str) -> datetime | None:
        """Return the time of a conversation's last refresh. None: never, or long ago."""
        return self._refreshed_at.get((agent, place))


async def _wait_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of them is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
