"""The one way of a request to a model: choose one that may answer, plan its prompt cache, stream,
account.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

from agent.cache.plan import PlannedRequest
from agent.cache.prompt_cache import PromptCache
from agent.models.adapt import adapt_request
from agent.models.base import (
    PARTIAL_GROWTH,
    AnswerSpoiled,
    Model,
    ModelBusy,
    ModelError,
    ModelRequest,
    ModelUnusable,
    PartialText,
    RequestRefused,
    StreamChunk,
    StreamEnd,
    StreamStart,
    TextPart,
    ThinkingDelta,
)
from agent.models.breaker import CircuitBreaker
from gateway.core.clock import Clock
from gateway.core.events import ConversationId, RequestUsage, Usage, room_of
from gateway.core.tool_spec import ToolCall

logger = logging.getLogger(__name__)

_ResultT = TypeVar("_ResultT")

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 8.0
"""Seconds: both as in the Anthropic and OpenAI SDKs (`_base_client.py`, MAX_RETRY_DELAY)."""
MAX_RETRY_AFTER_S = 10.0
"""Longest server hint that is waited for here: after a longer one the caller decides, and tells
people meanwhile."""
MAX_WAIT_WITH_FALLBACK_S = 2.0
"""Longest wait for a model while there is another one to ask."""
ANSWER_S, SLOWEST_TOKEN_S = 600.0, 1.0
"""Longest time for an answer that has begun, and in addition for each token that it may have."""


def retry_delay_s(attempt: int, hint_s: float | None, random: float) -> float:
    """Return the seconds to wait after the failed `attempt` (0 is the first), with `random` in [0,
    1).

    A server's hint is used as it is. Without one: 0.5 s doubling, jittered upwards, 8 s at most.
    """
    if hint_s is not None:
        return hint_s
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt, 10) * (1 + random))


MOST_REQUESTS: Final = 100
"""Requests at the same time to a model that refuses none."""


class RequestLimit:
    """Limit of the requests to one model at the same time: as many as it takes, in turns between
    rooms.

    A provider says "too many" with 429 or 529. Additive increase, multiplicative decrease (Chiu and
    Jain, 1989), as TCP does: a refusal leaves room for as many requests as are under way without
    it, and each answer adds a little.
    """

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self._most = self._allowed = float(most)
        self._pauses = 0
        self._running = Counter[str]()
        """Requests under way, by room."""
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        """Oldest first."""

    @asynccontextmanager
    async def holding(self, conversation: ConversationId) -> AsyncIterator[str]:
        """Wait until one more request may be made, and count it until the end of the block, which
        raises ModelBusy if it was refused. The next one is of the room with the fewest under way,
        and has the name of its room.
        """
        room = room_of(conversation)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((room, turn))
        self._admit()
        try:
            await turn
            yield room
            self._allowed = min(self._most, self._allowed + 1 / self._allowed)
        except ModelBusy as error:
            if error.status is not None:
                self._allowed = max(1.0, min(self._allowed, self._running.total() - 1.0))
            raise
        finally:
            if (room, turn) in self._waiting:
                self._waiting.remove((room, turn))
            else:
                self._running -= Counter([room])
            self._admit()

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Let no request begin meanwhile: the provider has said how long it takes none."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._admit()

    def _admit(self) -> None:
        while not self._pauses and self._running.total() < int(self._allowed):
            waiting = [one for one in self._waiting if not one[1].done()]
            if not waiting:
                return
            room, turn = min(waiting, key=lambda one: self._running[one[0]])
            self._waiting.remove((room, turn))
            self._running[room] += 1
            turn.set_result(None)


class _NoTurn(ModelBusy):
    """Other requests took all of the time for the first token. The model, which was not asked, has
    not failed.
    """


class Candidate(NamedTuple):
    """A model that may answer."""

    model: Model
    cache: PromptCache | None = None
    """Its prompt cache. None: nothing is planned, and its answers are not accounted for."""
    first_token_s: float = math.inf
    """Seconds until its first token, over all attempts. Infinite: no limit."""


class ModelClient:
    """Tries `candidates` in order until one answers. Itself a `Model`.

    - Every attempt is planned by its model's `PromptCache`, which may wait until another request
      has written a shared prefix. The answer comes with its account, and with those of attempts
      that broke off and are billed all the same (also in `ModelError.accounts`).
    - Until one answer is complete, only chunks for display and for accounting
      (`StreamStart.billed_accounts`) are yielded; then the whole answer follows at once. Other
      chunks cannot be taken back, and an answer that was cut in the middle must be requested again
      without sending its first half twice.
    - `ModelBusy`: the same model again, up to `attempts` times, after `retry_delay_s`; then the
      next model. The next model at once if the wait is longer than `MAX_WAIT_WITH_FALLBACK_S`; the
      error at once if there is none, and the wait is longer than `MAX_RETRY_AFTER_S`.
    - `AnswerSpoiled`: the same model again at once, up to `attempts` times; then the next model.
    - Requests to one model at the same time: see `RequestLimit`.
    - An answer may take `ANSWER_S`, and `SLOWEST_TOKEN_S` for each token of its limit: then it
      counts as `ModelBusy`.
    - All attempts at one model together have `Candidate.first_token_s` for its first
      token: then the one under way counts as `ModelBusy`, and there is no other.
    - `ModelUnusable`: the next model; the operator is warned once. The same for a `RequestRefused`
      that the content of the prompt did not cause; others are raised at once.
    - `PromptTooLong`: raised at once for the first model; a fallback whose window is too small is
      skipped.
    - Three requests in a row that ended in `ModelBusy`: the model is skipped for 30 s, and each
      time twice as long, up to 300 s; after one with a server's hint, for as long as that says.
      Then one request tries it, once, while others go on to skip it. Skipped models are still
      tried, once, when all others have failed.
    - No model left: the last error is raised, but a `ModelBusy` rather than a `ModelUnusable`,
      because then asking later helps.
    - `max_output_tokens` 0: only the first model is asked, and once: the others need not be ready.
    - Name, label, family, window and support of images are the first model's; `adapt_request` fits
      requests to the others.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        clock: Clock,
        random: Callable[[], float],
        attempts: int = 4,
    ) -> None:
        if not candidates or attempts < 1:
            raise ValueError("a client needs a model and an attempt")
        self._candidates = tuple(candidates)
        self._clock = clock
        self._random = random
        self._attempts = attempts
        self._warned: set[int] = set()
        self._breakers: dict[int, CircuitBreaker] = {}
        """By index, of the models whose last request failed."""
        self._limits = [RequestLimit() for _ in candidates]
        self._reasons: dict[int, str] = {}
        """By index, why a model did not answer the last time."""
        first = candidates[0].model
        self.name = first.name
        self.label = first.label
        self.context_tokens = first.context_tokens
        self.max_output_tokens = first.max_output_tokens
        self.family = first.family
        self.takes_tools = first.takes_tools
        self.takes_images = first.takes_images

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:  # noqa: C901, PLR0912 - the way of a request, from top to bottom
        if not request.max_output_tokens:
            model, cache, _ = self._candidates[0]
            with cache.counting(request) if cache is not None else nullcontext():
                async with aclosing(model.stream(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            return
        lost: list[RequestUsage] = []
        failed: ModelError | None = None
        order = self._candidate_order() if self._breakers else range(len(self._candidates))
        for index in order:
            candidate, began_s = self._candidates[index], self._clock.monotonic()
            adapted, until_s = (
                adapt_request(request, candidate.model),
                began_s + candidate.first_token_s,
            )
            left = self._count_attempts(index, began_s) if self._breakers else self._attempts
            while True:
                left -= 1
                attempt = _Attempt(candidate, lost)
                try:
                    async with (
                        attempt.begin(adapted, until_s, self._clock, self._limits[index]) as sent,
                        aclosing(candidate.model.stream(sent)) as chunks,
                    ):
                        while not attempt.missed:
                            received = await attempt.wait_for(anext(chunks, None))
                            if received is None:
                                break
                            if (update := attempt.add(received)) is not None:
                                yield update
                        end = attempt.finish()
                except ModelError as error:
                    lost.extend(attempt.accounts())
                    if lost:
                        yield StreamStart(billed_accounts=partial(tuple, lost))
                    left_s, is_last = until_s - self._clock.monotonic(), index == order[-1]
                    if not await self._wait_for_retry(index, error, left, left_s, is_last=is_last):
                        failed = self._give_up(index, error, failed, lost)
                        break
                else:
                    if index in self._breakers:
                        self._record_success(index)
                    self._warned.discard(index)
                    if attempt.text:
                        yield TextPart(text=attempt.text)
                    for call in attempt.calls:
                        yield call
                    if index or lost:
                        why = [
                            f"{self._candidates[at].model.name}: {self._reasons.get(at, '')}"
                            for at in range(index)
                        ]
                        end = replace(end, lost_accounts=tuple(lost), instead_of="; ".join(why))
                    yield end
                    return
        assert failed is not None
        failed.accounts = tuple(lost)
        raise failed

    def _count_attempts(self, index: int, now_s: float) -> int:
        """Return how often a model may be asked now."""
        breaker = self._breakers.get(index)
        if breaker is None or not breaker.is_open:
            return self._attempts
        self._breakers[index] = breaker.record_attempt(now_s)
        return 1 if len(self._candidates) > 1 else self._attempts

    async def _wait_for_retry(
        self, index: int, error: ModelError, left: int, left_s: float, *, is_last: bool
    ) -> bool:
        """Wait until the same model is worth asking again. False: it is not.

        `left`: attempts that are left. `left_s`: seconds for the first token that are left.
        `is_last`: there is no other model to ask.
        """
        if isinstance(error, AnswerSpoiled):
            return left > 0 and left_s > 0
        if not isinstance(error, ModelBusy) or left <= 0:
            return False
        wait_s = retry_delay_s(self._attempts - left - 1, error.retry_after_s, self._random())
        if (
            wait_s > (MAX_RETRY_AFTER_S if is_last else MAX_WAIT_WITH_FALLBACK_S)
            or wait_s >= left_s
        ):
            return False
        label = self._candidates[index].model.label
        logger.info("%s is busy (%s), asking again in %.1f s", label, error.reason, wait_s)
        is_told = error.retry_after_s is not None
        with self._limits[index].pausing() if is_told else nullcontext():
            await self._clock.sleep(wait_s)
        return True

    def _give_up(
        self, index: int, error: ModelError, failed: ModelError | None, lost: Sequence[RequestUsage]
    ) -> ModelError | None:
        """Return the error to raise if no other model answers. Raises it where none could."""
        self._reasons[index] = error.reason
        if isinstance(error, ModelBusy):
            if not isinstance(error, _NoTurn):
                self._record_failure(index, error)
            return error
        if isinstance(error, ModelUnusable | AnswerSpoiled):
            self._warn_once(index, error)
            return failed if isinstance(failed, ModelBusy) else error
        self._record_success(index)
        if error.caused_by_prompt if isinstance(error, RequestRefused) else index == 0:
            error.accounts = tuple(lost)
            raise error
        # The conversation is compacted for the first model's window, not for a fallback's.
        self._warn_once(index, error)
        return (
            error
            if isinstance(error, RequestRefused) and not isinstance(failed, ModelBusy)
            else failed
        )

    async def start(self) -> None:
        """Start the first model that can be started. Raises its error if none can; fallbacks load
        when needed.
        """
        failed: ModelError | None = None
        for index, candidate in enumerate(self._candidates):
            try:
                return await candidate.model.start()
            except ModelError as error:
                self._warn_once(index, error)
                failed = failed or error
        assert failed is not None
        raise failed

    async def aclose(self) -> None:
        for candidate in self._candidates:
            await candidate.model.aclose()

    def _candidate_order(self) -> Sequence[int]:
        """Return the models' indexes in the order to try them: models with an open breaker last."""
        now_s = self._clock.monotonic()
        late = [index for index, one in self._breakers.items() if not one.admits(now_s)]
        return sorted(range(len(self._candidates)), key=late.__contains__)

    def _record_failure(self, index: int, error: ModelBusy) -> None:
        before = self._breakers.get(index, CircuitBreaker())
        after = before.record_failure(self._clock.monotonic(), hint_s=error.retry_after_s)
        self._breakers[index] = after
        if after.is_open and not before.is_open and len(self._candidates) > 1:
            label = self._candidates[index].model.label
            logger.warning("%s is passed over for %.0f s: %s", label, after.wait_s, error.reason)

    def _record_success(self, index: int) -> None:
        if (before := self._breakers.pop(index, None)) is not None and before.is_open:
            logger.warning("%s answers again", self._candidates[index].model.label)

    def _warn_once(self, index: int, error: ModelError) -> None:
        """Log a warning, once until the model has answered again."""
        if index not in self._warned:
            self._warned.add(index)
            logger.warning(
                "%s cannot be used: %s", self._candidates[index].model.label, error.reason
            )


class _Attempt:
    """One request to one model, and as much of its answer as has come."""

    def __init__(self, candidate: Candidate, lost: Sequence[RequestUsage]) -> None:
        self._candidate = candidate
        self._lost = lost
        self._sent: tuple[PromptCache, PlannedRequest] | None = None
        """None: not sent yet, or nothing is accounted for."""
        self._billed: Usage | None = None
        self._is_read = self._has_begun = False
        self._shown = self.text = ""
        self.calls: list[ToolCall] = []
        self._end: StreamEnd | None = None
        self._scope: asyncio.Timeout | None = None
        """The wait that is under way. None: there is none."""
        self.missed = ""
        """What did not happen in time. Empty: nothing."""

    @asynccontextmanager
    async def begin(
        self, request: ModelRequest, until_s: float, clock: Clock, limit: RequestLimit
    ) -> AsyncIterator[ModelRequest]:
        """Wait for its turn and plan the request, and yield it as it is sent. Its first token must
        come until `until_s` of the clock's `monotonic`. Raises ModelBusy if its turn does not.
        """
        timer, cache = None, self._candidate.cache
        if until_s < math.inf:
            timer = asyncio.create_task(self._watch(clock, until_s, request.max_output_tokens))
        try:
            async with AsyncExitStack() as turn:
                held = limit.holding(ConversationId(request.conversation_id))
                if await self.wait_for(turn.enter_async_context(held)) is None:
                    label, waited_s = self._candidate.model.label, self._candidate.first_token_s
                    busy = _NoTurn(f"{label} took no further request within {waited_s:g} s")
                    busy.status = HTTPStatus.TOO_MANY_REQUESTS  # as others were answered
                    raise busy
                if cache is None:
                    yield request
                else:
                    async with cache.sending(request, until_s) as planned:
                        self._sent = cache, planned
                        yield planned.request
        finally:
            if timer is not None:
                timer.cancel()

    async def _watch(self, clock: Clock, until_s: float, tokens: int) -> None:
        """End the attempt once it has missed the time for its first token, or for all of it."""
        await clock.sleep(until_s - clock.monotonic())
        missed = f"did not begin to answer within {self._candidate.first_token_s:g} s"
        if self._has_begun:
            whole_s = ANSWER_S + SLOWEST_TOKEN_S * tokens
            await clock.sleep(whole_s)
            missed = f"did not end its answer within {whole_s:g} s"
        self.missed = missed
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def wait_for(self, awaited: Awaitable[_ResultT]) -> _ResultT | None:
        """Return what is awaited. None, and it is cancelled: the attempt has missed its time."""
        try:
            async with asyncio.timeout(None) as self._scope:
                return await awaited
        except TimeoutError:
            return None
        finally:
            self._scope = None

    def add(self, chunk: StreamChunk) -> PartialText | ThinkingDelta | StreamStart | None:
        """Add a chunk. Return what is shown of it at once; None: nothing."""
        if self._sent is not None and not self._is_read:
            self._sent[0].record_begun(self._sent[1])
        self._is_read = True
        if isinstance(chunk, StreamStart):
            if self._sent is None:
                return None
            cache, planned = self._sent
            told = chunk.usage or Usage(input_tokens=planned.estimate.tokens)
            self._billed = cache.bound_usage(planned, told)
            return StreamStart(billed_accounts=lambda: (*self._lost, *self.accounts()))
        self._has_begun = True
        if isinstance(chunk, TextPart | PartialText):
            self.text += chunk.text if isinstance(chunk, TextPart) else ""
            whole = self.text or chunk.text
            if len(whole) <= len(self._shown) * PARTIAL_GROWTH:
                return None  # so that all of them together cost little
            self._shown = whole
            return PartialText(text=whole)
        if isinstance(chunk, ThinkingDelta):
            return chunk if chunk.text else None
        if isinstance(chunk, StreamEnd):
            self._end = chunk
        else:
            self.calls.append(chunk)
        return None

    def finish(self) -> StreamEnd:
        """Return the end of the answer, with its account. Raises ModelBusy if it is not whole."""
        if self._end is None:
            label = self._candidate.model.label
            raise ModelBusy(f"{label} {self.missed or 'ended without an end'}")
        if self._sent is None:
            return self._end
        cache, planned = self._sent
        return cache.finish(
            planned, self._end, "".join([self.text, *(call.arguments for call in self.calls)])
        )

    def accounts(self) -> tuple[RequestUsage, ...]:
        """Return the account of what is billed although it broke off. Empty: nothing is."""
        if self._sent is None or self._billed is None:
            return ()
        cache, planned = self._sent
        return (cache.account_partial(planned, self._billed),)
