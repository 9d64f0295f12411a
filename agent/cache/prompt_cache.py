"""The prompt cache of one model: plans the breakpoints of each request, accounts for what came of
them, and keeps idle conversations cached.

`LastRequests` keeps the last request of each conversation. `CacheWarmer` sends the refreshes that
`agent.cache.idle` finds worth their cost; without a budget it sends nothing. A refresh begins only
while the model has no other request under way, one at a time, and its last request did not fail. A
refresh that failed is not tried again before the conversation goes on.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import date, datetime
from math import inf
from typing import Any, NamedTuple

from agent.cache.idle import (
    UNKNOWN_FORECAST,
    CacheForecast,
    CacheRefresh,
    build_refresh_request,
    forecast_cache,
    plan_refresh,
    shared_prefixes,
)
from agent.cache.plan import (
    CachePolicy,
    CacheProfile,
    PlannedRequest,
    explain_cache_miss,
    find_cache_miss,
    plan_automatic,
    plan_cache,
    segment_prompt,
    segments_before_messages,
)
from agent.cache.state import CachedPrefix, CacheState, Cadence, Digest, Gaps, Lifetimes
from agent.models.adapt import find_tool_loop_start
from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelRequest,
    ModelUnusable,
    StreamEnd,
)
from agent.prompt import SHARED_BLOCKS
from agent.tokens.counter import (
    RATIO_BOUNDS,
    RequestMeter,
    count_heuristically,
)
from gateway.core.clock import Clock
from gateway.core.events import BlockUsage, RequestUsage, Usage
from gateway.core.ratelimit import LruDict
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
_NO_CADENCE = Cadence()
_RETRY_S = 60.0
"""A request so soon after a failure is a retry (`agent.models.client.MAX_RETRY_AFTER_S`), and
says nothing about gaps."""


class LastRequests:
    """Last request of each conversation, by agent and conversation.

    The request that was kept first leaves first. The newest always stays, however large it is.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, str], tuple[PlannedRequest, int]] = OrderedDict()
        self._bytes = 0

    def get(self, agent: str, place: str) -> PlannedRequest | None:
        """Return the last request of this conversation, or None if it is not kept any more."""
        found = self._requests.get((agent, place))
        return found[0] if found is not None else None

    def put(self, planned: PlannedRequest) -> PlannedRequest | None:
        """Keep this request. Return the one before it."""
        key, sizes = (
            (planned.request.shared_key, planned.request.conversation_id),
            planned.estimate.size,
        )
        size = (sizes.total - sizes.images) * _BYTES_PER_TOKEN
        if sizes.images:
            size += sum(
                len(part.data)
                for message in planned.request.conversation
                for part in message.parts
                if isinstance(part, Image)
            )
        before, freed = self._requests.pop(key, (None, 0))
        self._requests[key] = planned, size
        self._bytes += size - freed
        while len(self._requests) > 1 and (
            len(self._requests) > MAX_CONVERSATIONS or self._bytes > MAX_BYTES
        ):
            self._bytes -= self._requests.popitem(last=False)[1][1]
        return before


class PromptCache:
    """The prompt cache of one model of one provider, as `agent.models.client.ModelClient` uses it.

    `sending` plans a request, `finish` accounts for its answer, `account_partial` for one that
    broke off. The first request that writes a cold prefix of all conversations is sent alone:
    others wait for its first chunk, or its end, because the prefix can be read only then.
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
        """Begin without knowledge of what is cached.

        `policy` and `gauge` are called before each request, `policy` with the agent's id
        (`ModelRequest.shared_key`). `warmer`: is told of each request's end. None: nothing is kept
        warm. `model` is asked by `refresh` alone.
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
        self._is_billed = self._doubts_usage = self._was_used = False
        # The messages of the last tool loop were not to be sent again as they were.
        self._drops_loops = False
        # No bill has ever named the cache, and one should have: nothing is expected until one does.
        self._is_absent = False
        self._cache_state = CacheState()
        self._cadence = defaultdict[str, Cadence](Cadence)
        self.last_requests = LastRequests()
        """Last answered request of each conversation."""
        self._writers: dict[Digest, tuple[PlannedRequest, asyncio.Event]] = {}
        """By shared prefix, the request that writes it now; the event is set when it can be read,
        or the request has failed."""
        self._failed_s: dict[tuple[str, str], float] = {}
        """Time of the failure of a conversation's last request, if it failed."""
        self.name = model.name
        self.label = model.label

    def restore_cadence(self, agent: str, cadence: Cadence) -> None:
        """Restore the gaps seen in an agent's conversations. Ignored after its first request."""
        self._cadence.setdefault(agent, cadence)

    def observe_elsewhere(self, agent: str, place: str, at_s: float, tokens: int) -> None:
        """Add a request of a conversation that another process made: its gaps count, and it is kept
        warm there.

        Before `restore_cadence`, which knows it from the log, it is ignored.
        """
        if (cadence := self._cadence.get(agent)) is not None:
            cadence.observe_request(place, at_s, tokens)
        if self._warmer is not None:
            self._warmer.forget(self, agent, place)

    def max_cost_usd(self, request: ModelRequest) -> float:
        """Return the most that a request may cost, as far as its length is known. 0: nothing."""
        _, estimate = self._gauge.estimate(self.dialect.model, request)
        long = self.dialect.caching == "marks" and self._policy(request.shared_key).allows_hour
        return self.dialect.max_cost_usd(estimate.tokens, request.max_output_tokens, long=long)

    @asynccontextmanager
    async def sending(
        self, request: ModelRequest, until_s: float = inf
    ) -> AsyncIterator[PlannedRequest]:
        """Plan a request, and yield it as it is to be sent, once no other request writes the same
        cold prefix, or that takes too long (`until_s` of the clock's `monotonic` at the latest).
        """
        key, at_s = (request.shared_key, request.conversation_id), self._now_s()
        with self.counting(request):
            if not 0 <= at_s - self._failed_s.pop(key, -inf) <= _RETRY_S:  # else it is a retry
                _, estimate = self._gauge.estimate(self.dialect.model, request)
                own = [
                    tokens
                    for block, tokens in zip(request.blocks, estimate.size.blocks, strict=True)
                    if block.name not in SHARED_BLOCKS
                ]
                tokens = estimate.correct(sum(own) + sum(estimate.size.conversation))
                self._cadence[key[0]].observe_request(key[1], at_s, tokens)
            planned = await self._plan_alone(request, until_s)
            try:
                yield planned
            except ModelError as error:
                self.is_failing = isinstance(error, ModelBusy | ModelUnusable)
                self._failed_s[key] = self._now_s()
                raise
            finally:
                if self._writers:
                    self._release(planned)

    @contextlib.contextmanager
    def counting(self, request: ModelRequest) -> Iterator[None]:
        """Count a request whose answer is wanted, and report when there is none any more."""
        self.pending_requests += 1
        try:
            yield
        finally:
            self.pending_requests -= 1
            if self._warmer is not None:
                self._warmer.on_idle(self, request.shared_key, request.conversation_id)

    async def _plan_alone(self, request: ModelRequest, until_s: float) -> PlannedRequest:
        """Return the plan for a request, and become the writer of its shared prefix if it is
        cold.
        """
        until_s = min(until_s, self._clock.monotonic() + _MAX_WAIT_S[self.dialect.caching])
        planned = self._plan_request(request)
        while (prefix := planned.written_prefix) is not None and prefix in self._writers:
            left_s, (_, written) = until_s - self._clock.monotonic(), self._writers[prefix]
            if left_s <= 0:
                break
            await wait_first(written.wait(), self._clock.sleep(left_s))
            if not written.is_set():
                break
            planned = self._plan_request(request)
        if prefix is not None:
            self._writers.setdefault(prefix, (planned, asyncio.Event()))
        return planned

    def _release(self, planned: PlannedRequest) -> None:
        """Wake up those who wait until this request has written its prefix."""
        for prefix, (writer, written) in list(self._writers.items()):
            if writer is planned:
                del self._writers[prefix]
                written.set()

    def _plan_request(self, request: ModelRequest) -> PlannedRequest:
        at_s = self._now_s()
        before = self.last_requests.get(request.shared_key, request.conversation_id)
        meter, estimate = self._gauge.estimate(self.dialect.model, request)
        segments = segment_prompt(request, estimate.size, before)
        cached = self._cache_state.find(segments, at_s)
        if self.dialect.caching == "automatic":
            read = cached[-1].segment + 1 if cached else 0
            plan = plan_automatic(segments, read, estimate.ratio)
        else:
            usable = segments
            if request.answer_only and request.tools:
                usable, cached = segments_before_messages(segments, cached)
            plan = plan_cache(
                usable,
                self._lifetimes(request.shared_key, request.conversation_id),
                minimum_tokens=self.dialect.minimum_tokens(estimate),
                cached=cached,
                ratio=estimate.ratio,
                loop_start=find_tool_loop_start(request.conversation)
                if self._drops_loops
                else None,
            )
        plan = replace(plan, writes=()) if self._is_absent else plan
        return PlannedRequest(
            request=replace(request, breakpoints=plan.breakpoints)
            if plan.breakpoints != request.breakpoints
            else request,
            segments=segments,
            plan=plan,
            meter=meter,
            estimate=estimate,
            sent_at_s=at_s,
        )

    def record_begun(self, planned: PlannedRequest) -> None:
        """Record that a request begins to be answered: what it writes can be read."""
        if self._writers:
            self._release(planned)
        self._cache_state.record_request(
            planned.segments,
            read=planned.plan.read_segments,
            writes=planned.plan.writes,
            at_s=planned.sent_at_s,
        )

    def finish(self, planned: PlannedRequest, end: StreamEnd, text: str = "") -> StreamEnd:
        """Record a complete answer, `text`, and return its end with the account: the bill against
        the plan. Where the provider tells no usage it is estimated, so that budgets hold.
        """
        self.is_failing = False
        if end.usage == Usage():
            output = (
                planned.request.max_output_tokens
                if end.stop_reason == "length"
                else count_heuristically(text)
            )
            end = replace(
                end, usage=Usage(input_tokens=planned.estimate.tokens, output_tokens=output)
            )
        usage = self.bound_usage(planned, end.usage)
        planned.billed_tokens = usage.prompt_tokens
        is_cut = self._is_cut(planned.estimate.tokens, planned.billed_tokens)
        if planned.billed_tokens and not is_cut:
            planned.meter.record_count(planned.estimate, planned.billed_tokens)
        if find_tool_loop_start(planned.request.conversation) < len(planned.request.conversation):
            self._drops_loops = end.ephemeral_from is not None
        before = self.last_requests.put(planned)
        planned.account = self._build_account(planned, before, usage, end.model)
        if end.ephemeral_from is not None and end.stop_reason not in {"tools", "length"}:
            # The loop is over: its own messages will not be sent again.
            ephemeral = [
                one
                for one in planned.segments
                if one.behind == "said" and one.number >= end.ephemeral_from
            ]
            self._cache_state.forget(ephemeral)
        return replace(end, usage=usage, account=planned.account)

    def bound_usage(self, planned: PlannedRequest, usage: Usage) -> Usage:
        """Return the usage, or the estimate where the provider reports what cannot be."""
        size, asked = planned.estimate.size.total, planned.request.max_output_tokens
        most_prompt = min(self._model.context_tokens, int(RATIO_BOUNDS[1] * size) + _FRAME_TOKENS)
        most_output = min(self._model.context_tokens, int(RATIO_BOUNDS[1] * asked) + _FRAME_TOKENS)
        bounded = usage
        if (
            not 0 <= usage.prompt_tokens <= most_prompt
            or min(usage.input_tokens, usage.cache_read_tokens, usage.cache_write_1h_tokens) < 0
            or usage.cache_write_1h_tokens > usage.cache_write_tokens
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
                usage.prompt_tokens,
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

    def account_partial(self, planned: PlannedRequest, usage: Usage) -> RequestUsage:
        """Return the account of an answer that broke off, and is billed all the same."""
        return self._build_account(replace(planned, billed_tokens=usage.prompt_tokens), None, usage)

    def _build_account(
        self, planned: PlannedRequest, before: PlannedRequest | None, usage: Usage, model: str = ""
    ) -> RequestUsage:
        missed_tokens = find_cache_miss(planned, usage)
        self._was_used |= usage.cache_read_tokens + usage.cache_write_tokens > 0
        self._is_absent = not self._was_used and (self._is_absent or missed_tokens is not None)
        if missed_tokens is not None:
            self._record_miss(planned, usage)
        blocks = planned.plan.blocks
        if tokens := planned.estimate.correct(planned.estimate.size.now):
            now = BlockUsage(name="now", tokens=tokens, read=0, written=0, lifetime=None)
            blocks = (*blocks, now)
        account = RequestUsage(
            provider=self.dialect.provider,
            model=model or self.dialect.model,
            blocks=blocks,
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
        # Others were written behind the same blocks, and may be there still.
        self._cache_state.forget(
            [
                one
                for one in planned.segments[read:]
                if self.dialect.caching != "marks" or one.name in {"channel", "history"}
            ]
        )
        if self.dialect.caching == "marks" and not self._is_absent:
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
                planned.segments, read=read, writes=writes, at_s=planned.sent_at_s
            )

    def _lifetimes(self, agent: str, place: str) -> Lifetimes | None:
        """Return the lifetimes for the next request of a conversation. None: no breakpoints."""
        if self.dialect.caching != "marks":
            return None
        return self._policy(agent).lifetimes(
            self._cadence.get(agent, _NO_CADENCE), place, self.dialect.price
        )

    def plan_refresh(self, agent: str, place: str, *, budget_usd: float) -> CacheRefresh | None:
        """Return when to `refresh` a conversation, or what it shares, and the cost. None: not at
        all (`agent.cache.idle`).
        """
        planned, lifetimes = self.last_requests.get(agent, place), self._lifetimes(agent, place)
        if planned is None or lifetimes is None:
            return None
        cadence, price = self._cadence.get(agent, _NO_CADENCE), self.dialect.price
        lasting = self._cache_state.find(planned.segments, self._now_s())
        shared = cadence.shared or Gaps()
        for prefixes, last_s, lengths, lifetime in (
            (lasting, planned.sent_at_s, cadence.lengths(place), lifetimes.own),
            (shared_prefixes(planned, lasting), shared.last_s, shared.lengths, lifetimes.shared),
        ):
            due = plan_refresh(
                planned, prefixes, lengths, price, last_request_s=last_s, budget_usd=budget_usd
            )
            # What is to have an hour is written for an hour after its expiry only.
            if due is not None and not (due.lifetime == "5m" and lifetime == "1h"):
                return due._replace(is_shared=prefixes is not lasting)
        return None

    def forecast(self, agent: str, place: str) -> CacheForecast:
        """Return the present state of the cache of a conversation's history, and how long it
        matters.
        """
        caching = self.dialect.caching
        if caching == "none" or (caching == "marks" and self._policy(agent).kind == "off"):
            # `off` means no breakpoints; automatic caching cannot be switched off
            return UNKNOWN_FORECAST
        planned, cached = self.last_requests.get(agent, place), tuple[CachedPrefix, ...]()
        if planned is not None:
            cached = self._cache_state.find(planned.segments, self._now_s())
        lengths = self._cadence.get(agent, _NO_CADENCE).lengths(place)
        return forecast_cache(planned, cached, lengths, self.dialect.price)

    async def refresh(
        self, agent: str, place: str, *, is_shared: bool = False
    ) -> RequestUsage | None:
        """Read the cached part of a conversation again, without an answer. None: nothing is cached
        any more. `is_shared`: only what it shares with the others.

        Raises a ModelError; it may be billed all the same.
        """
        at_s, last, end = self._now_s(), self.last_requests.get(agent, place), None
        if last is None:
            return None
        lasting = self._cache_state.find(last.segments, at_s)
        lasting = shared_prefixes(last, lasting) if is_shared else lasting
        planned = build_refresh_request(last, lasting, at_s)
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
        self.record_begun(planned)
        usage = self.bound_usage(planned, end.usage)
        return self._build_account(planned, None, usage, end.model)

    def _now_s(self) -> float:
        # Not the monotonic clock: the past must still count after a restart.
        return self._clock.now().timestamp()


class _IdleKey(NamedTuple):
    model: PromptCache
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
        self._spent_usd = LruDict[tuple[str, date], float]()
        """Agent and UTC day -> money spent on refreshes."""
        self._refresh_times: dict[_IdleKey, float] = {}
        self.refreshed_at = LruDict[tuple[str, str], datetime]()
        """Time of the last refresh, by agent and conversation; the oldest are forgotten."""
        self._changed = asyncio.Event()
        self.listeners = list[Callable[[str, RequestUsage], None]]()
        """Called with the agent and the account of each refresh."""

    def forget(self, model: PromptCache, agent: str = "", place: str = "") -> None:
        """Keep a conversation warm no longer at this model. Empty: those of all agents, or places.

        Another model is used, or another process has its turns.
        """
        self._refresh_times = {
            key: at_s
            for key, at_s in self._refresh_times.items()
            if key.model is not model
            or agent not in ("", key.agent)
            or place not in ("", key.place)
        }

    def on_idle(self, model: PromptCache, agent: str, place: str) -> None:
        """Schedule a refresh after an answer has ended. Called by `PromptCache`."""
        self._schedule(_IdleKey(model, agent, place))
        self._changed.set()

    async def run(self) -> None:
        """Keep caches warm until cancelled."""
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
                await wait_first(self._clock.sleep(wait_s), self._changed.wait())
                continue
            due = self._schedule(first)
            if due is not None and due.at_s <= self._clock.now().timestamp():
                await self._refresh(first, due)

    def _schedule(self, key: _IdleKey) -> CacheRefresh | None:
        """Decide anew when to refresh a conversation.

        Other conversations may have used the same prefix meanwhile, or money may have been spent.
        """
        self._refresh_times.pop(key, None)
        budget_usd = self._budget_usd()
        if not budget_usd:
            return None
        left_usd = budget_usd - self._spent_usd.get((key.agent, self._clock.now().date()), 0.0)
        due = key.model.plan_refresh(key.agent, key.place, budget_usd=left_usd)
        if due is not None:
            self._refresh_times[key] = due.at_s
        return due

    async def _refresh(self, key: _IdleKey, due: CacheRefresh) -> None:
        del self._refresh_times[key]
        # Until the cost is known: a refresh that breaks off may be billed as a whole.
        day = key.agent, self._clock.now().date()
        spent_usd = self._spent_usd.get(day, 0.0)
        self._spent_usd.put(day, spent_usd + due.max_cost_usd)
        try:
            account = await key.model.refresh(key.agent, key.place, is_shared=due.is_shared)
        except ModelError as error:
            logger.info("%s is not kept warm: %s", key.place, error.reason)
            return
        cost_usd = 0.0 if account is None else account.cost_usd or 0.0
        self._spent_usd.put(day, spent_usd + cost_usd)
        if account is not None:
            read = account.usage.cache_read_tokens
            logger.info(
                "%s is kept warm: %d tokens were read again for $%.6f", key.place, read, cost_usd
            )
            for listener in self.listeners:
                listener(key.agent, account)
            if not due.is_shared:
                self.refreshed_at.put((key.agent, key.place), self._clock.now())
        self._schedule(key)


def describe_cut_prompt(label: str, read: int, sent: int) -> tuple[str, str]:
    """Say that a server reads less than it is sent, and what to do. For the operator."""
    return (
        (
            f"{label} has read {read} of about {sent} tokens: it cuts longer prompts, so persona "
            "and tools are lost"
        ),
        "raise its window (Ollama: OLLAMA_CONTEXT_LENGTH), or write context_tokens as it is",
    )


async def wait_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of them is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
