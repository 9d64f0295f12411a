"""Retries, circuit breakers and fallbacks around several models."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from agent.models.base import (
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
    adapt_request,
)
from gateway.core.clock import Clock
from gateway.core.events import RequestUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """State of the circuit breaker of one service. Pure: a breaker is a value, and each event
    returns the next one.

        closed   Everyone may call. A success resets the failures, the n-th failure in a row
                 opens it, and so does one failure with which the service asked not to be called
                 for a while.
        open     No calls until `retry_at_s`. Then one trial is allowed, and only one: a trial
                 without an outcome (cancelled) keeps the others out for one more wait. Success:
                 closed. Failure: open for twice as long, up to a limit.

        breaker = CircuitBreaker()
        if breaker.admits(now_s):
            breaker = breaker.record_attempt(now_s)
            ...                                     # call
            breaker = breaker.record_success()      # or breaker.record_failure(now_s)

    Times are seconds of any one monotonic clock. Precedent: M. Nygard, Release It!, "Circuit
    Breaker"; the numbers are those of the source of this design.
    """

    failures_to_open: int = 3
    """Failures in a row that open it. At least 1."""
    first_wait_s: float = 30.0
    longest_wait_s: float = 300.0
    failures: int = 0
    """Failures in a row while closed."""
    wait_s: float = 0.0
    """Duration of the open state. 0: closed."""
    retry_at_s: float = 0.0
    """Time before which no call is allowed while open."""
    is_trying: bool = False
    """True: while open, a trial is under way."""
    has_opened: bool = False
    """True once it was open; stays true."""

    @property
    def is_open(self) -> bool:
        """Return whether the service counts as broken. A trial does not change that, its success
        does.
        """
        return self.wait_s > 0

    def admits(self, now_s: float) -> bool:
        """Return whether a call is allowed now. The caller then reports it by `record_attempt`."""
        return not self.is_open or now_s >= self.retry_at_s

    def record_attempt(self, now_s: float) -> Self:
        """Record a call that `admits` allowed."""
        return (
            replace(self, is_trying=True, retry_at_s=now_s + self.wait_s) if self.is_open else self
        )

    def record_success(self) -> Self:
        """Record an answer of the service, also to a call from before it opened."""
        return replace(self, failures=0, wait_s=0.0, retry_at_s=0.0, is_trying=False)

    def record_failure(self, now_s: float, *, hint_s: float | None = None) -> Self:
        """Record a failure of the service.

        `hint_s`: seconds for which the service asked not to be called, limited by the longest wait.
        Such a wish opens it at once, for as long.
        """
        if self.is_open and not self.is_trying:
            return self  # called before it opened: nothing new
        failures, wait_s = self.failures + 1, self.wait_s * 2 if self.is_open else self.first_wait_s
        if not self.is_open and failures < self.failures_to_open:
            if hint_s is None or hint_s < MIN_HINT_S:
                return replace(self, failures=failures)
            wait_s = hint_s
        wait_s = min(wait_s, self.longest_wait_s)
        pause_s = min(max(wait_s, hint_s or 0.0), self.longest_wait_s)
        return replace(
            self,
            failures=0,
            wait_s=wait_s,
            retry_at_s=now_s + pause_s,
            is_trying=False,
            has_opened=True,
        )


logger = logging.getLogger(__name__)

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
_GROWTH = 1 + 1 / 64
"""How much longer than the last one a `PartialText` is."""
MIN_HINT_S = 1.0
"""A shorter hint of a server is no reason to pass it over."""


def retry_delay_s(attempt: int, hint_s: float | None, random: float) -> float:
    """Return the seconds to wait after the failed `attempt` (0 is the first), with `random` in [0,
    1).

    A server's hint is used as it is. Without one: 0.5 s doubling, jittered upwards, 8 s at most.
    """
    if hint_s is not None:
        return hint_s
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt, 10) * (1 + random))


class FailoverModel:
    """A model that tries `models` in order until one answers. Itself a `Model`.

    - Until one answer is complete, only chunks for display and for accounting
      (`StreamStart.billed_accounts`) are yielded; then the whole answer follows at once. Other
      chunks cannot be taken back, and an answer that was cut in the middle must be requested again
      without sending its first half twice.
    - `ModelBusy`: the same model again, up to `attempts` times, after `retry_delay_s`; then the
      next model. The next model at once if the wait is longer than `MAX_WAIT_WITH_FALLBACK_S`; the
      error at once if there is none, and the wait is longer than `MAX_RETRY_AFTER_S`.
    - An answer may take `ANSWER_S`, and `SLOWEST_TOKEN_S` for each token of its limit: then it
      counts as `ModelBusy`.
    - All attempts at one model together have `first_token_s` for its first token: then the one
      under way counts as `ModelBusy`, and there is no other.
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
        models: Sequence[Model],
        *,
        clock: Clock,
        random: Callable[[], float],
        attempts: int = 4,
        first_token_s: Sequence[float] = (),
    ) -> None:
        """`first_token_s`: for each model, seconds until its first token over all attempts. Empty:
        no limit.
        """
        if not models or attempts < 1:
            raise ValueError("a failover needs a model and an attempt")
        self._models = tuple(models)
        self._first_token_s = tuple(first_token_s) or (math.inf,) * len(models)
        self._clock = clock
        self._random = random
        self._attempts = attempts
        self._warned: set[int] = set()
        self._breakers = [CircuitBreaker() for _ in self._models]
        self._reasons: dict[int, str] = {}
        """By index, why a model did not answer the last time."""
        first = self._models[0]
        self.name = first.name
        self.label = first.label
        self.context_tokens = first.context_tokens
        self.max_output_tokens = first.max_output_tokens
        self.family = first.family
        self.takes_tools = first.takes_tools
        self.takes_images = first.takes_images

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        return (
            self._stream_first(request)
            if request.max_output_tokens
            else self._models[0].stream(request)
        )

    async def _stream_first(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        failed: ModelError | None = None
        lost: list[RequestUsage] = []
        order = self._candidate_order()
        for index in order:
            model, answer, adapted = (
                self._models[index],
                list[StreamChunk](),
                adapt_request(request, self._models[index]),
            )
            is_last, began_s = index == order[-1], self._clock.monotonic()
            self._breakers[index] = self._breakers[index].record_attempt(began_s)
            left = 1 if self._breakers[index].is_open and len(self._models) > 1 else self._attempts
            while not answer:
                left -= 1
                try:
                    async with aclosing(
                        self._stream_attempt(
                            model, adapted, index, began_s, answer=answer, lost=lost
                        )
                    ) as updates:
                        async for update in updates:
                            yield update
                    _require_end(model, answer)
                except ModelError as error:
                    answer.clear()
                    lost.extend(error.accounts)
                    if lost:
                        yield StreamStart(billed_accounts=partial(tuple, lost))
                    left_s = began_s + self._first_token_s[index] - self._clock.monotonic()
                    if not await self._wait_for_retry(model, error, left, left_s, is_last=is_last):
                        failed = self._give_up(index, error, failed, lost)
                        break
            else:
                self._record_success(index)
                self._warned.discard(index)
                why = "; ".join(
                    f"{self._models[at].name}: {self._reasons.get(at, '')}" for at in range(index)
                )
                for chunk in answer:
                    if isinstance(chunk, StreamEnd):
                        yield replace(chunk, lost_accounts=tuple(lost), instead_of=why)
                    else:
                        yield chunk
                return
        assert failed is not None
        failed.accounts = tuple(lost)
        raise failed

    async def _stream_attempt(
        self,
        model: Model,
        request: ModelRequest,
        index: int,
        began_s: float,
        *,
        answer: list[StreamChunk],
        lost: Sequence[RequestUsage],
    ) -> AsyncGenerator[PartialText | ThinkingDelta | StreamStart]:
        """Yield what is shown at once of an attempt, and add the rest to `answer`, its text as one
        chunk.
        """
        text = shown = ""
        async with aclosing(self._stream_in_time(model, request, index, began_s)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, TextPart | PartialText):
                    text += chunk.text if isinstance(chunk, TextPart) else ""
                    if len(whole := text or chunk.text) > len(shown) * _GROWTH:
                        shown = whole  # so that all of them together cost little
                        yield PartialText(text=shown)
                elif (update := _keep_chunk(chunk, answer, lost)) is not None:
                    yield update
        if text:
            answer.insert(0, TextPart(text=text))

    async def _stream_in_time(
        self, model: Model, request: ModelRequest, index: int, began_s: float
    ) -> AsyncGenerator[StreamChunk]:
        """Yield the chunks of an attempt. Raises ModelBusy if the time for its first token or for
        all of it ends.
        """
        billed: Callable[[], tuple[RequestUsage, ...]] | None = None
        first_s, whole_s = self._first_token_s[index], math.inf
        if first_s < math.inf:
            whole_s = ANSWER_S + SLOWEST_TOKEN_S * request.max_output_tokens
        left_s = began_s + first_s - self._clock.monotonic()
        async with aclosing(model.stream(request)) as chunks:
            for is_begun, limit_s, what in (
                (False, left_s, f"begin to answer within {first_s:g} s"),
                (True, whole_s, f"end its answer within {whole_s:g} s"),
            ):
                async with aclosing(self._chunks_in_time(chunks, limit_s)) as some:
                    async for chunk in some:
                        if chunk is None:
                            error = ModelBusy(f"{model.label} did not {what}")
                            error.accounts = billed() if billed is not None else ()
                            raise error
                        yield chunk
                        if isinstance(chunk, StreamStart):
                            billed = chunk.billed_accounts or billed
                        elif not is_begun:
                            break

    async def _chunks_in_time(
        self, chunks: AsyncGenerator[StreamChunk], limit_s: float
    ) -> AsyncGenerator[StreamChunk | None]:
        """Yield the next chunks. None, the last one: there are more, but the time is over."""
        if limit_s == math.inf:
            async for one in chunks:
                yield one
            return
        scope: asyncio.Timeout | None = None
        is_over = False

        async def expire() -> None:
            nonlocal is_over
            await self._clock.sleep(limit_s)
            is_over = True
            if scope is not None:
                scope.reschedule(asyncio.get_running_loop().time())

        timer = asyncio.create_task(expire())
        try:
            while not is_over:
                async with asyncio.timeout(None) as scope:
                    chunk = await anext(chunks)
                scope = None
                yield chunk
            yield None
        except TimeoutError:
            yield None
        except StopAsyncIteration:
            return
        finally:
            timer.cancel()

    async def _wait_for_retry(
        self, model: Model, error: ModelError, left: int, left_s: float, *, is_last: bool
    ) -> bool:
        """Wait until the same model is worth asking again. False: it is not.

        `left`: attempts that are left. `left_s`: seconds for the first token that are left.
        `is_last`: there is no other model to ask.
        """
        if not isinstance(error, ModelBusy) or left <= 0:
            return False
        wait_s = retry_delay_s(self._attempts - left - 1, error.retry_after_s, self._random())
        if (
            wait_s > (MAX_RETRY_AFTER_S if is_last else MAX_WAIT_WITH_FALLBACK_S)
            or wait_s >= left_s
        ):
            return False
        logger.info("%s is busy (%s), asking again in %.1f s", model.label, error.reason, wait_s)
        await self._clock.sleep(wait_s)
        return True

    def _give_up(
        self, index: int, error: ModelError, failed: ModelError | None, lost: Sequence[RequestUsage]
    ) -> ModelError | None:
        """Return the error to raise if no other model answers. Raises it where none could."""
        self._reasons[index] = error.reason
        if isinstance(error, ModelBusy):
            self._record_failure(index, error)
            return error
        if isinstance(error, ModelUnusable):
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
        for index, model in enumerate(self._models):
            try:
                return await model.start()
            except ModelError as error:
                self._warn_once(index, error)
                failed = failed or error
        assert failed is not None
        raise failed

    async def aclose(self) -> None:
        for model in self._models:
            await model.aclose()

    def _candidate_order(self) -> list[int]:
        """Return the models' indexes in the order to try them: models with an open breaker last."""
        now_s = self._clock.monotonic()
        return sorted(
            range(len(self._models)), key=lambda index: not self._breakers[index].admits(now_s)
        )

    def _record_failure(self, index: int, error: ModelBusy) -> None:
        before = self._breakers[index]
        after = before.record_failure(self._clock.monotonic(), hint_s=error.retry_after_s)
        self._breakers[index] = after
        if after.is_open and not before.is_open and len(self._models) > 1:
            label = self._models[index].label
            logger.warning("%s is passed over for %.0f s: %s", label, after.wait_s, error.reason)

    def _record_success(self, index: int) -> None:
        if self._breakers[index].is_open:
            logger.warning("%s answers again", self._models[index].label)
        self._breakers[index] = self._breakers[index].record_success()

    def _warn_once(self, index: int, error: ModelError) -> None:
        """Log a warning, once until the model has answered again."""
        if index not in self._warned:
            self._warned.add(index)
            logger.warning("%s cannot be used: %s", self._models[index].label, error.reason)


def _keep_chunk(
    chunk: StreamChunk, answer: list[StreamChunk], lost: Sequence[RequestUsage]
) -> ThinkingDelta | StreamStart | None:
    """Return what is shown at once of a chunk without text. None: nothing; it was added to the
    answer.
    """
    if isinstance(
        chunk, StreamStart
    ):  # another attempt may be the one that counts, but this one is billed by now
        billed = chunk.billed_accounts
        return (
            StreamStart(billed_accounts=partial(_all_accounts, tuple(lost), billed))
            if billed is not None
            else None
        )
    if isinstance(chunk, ThinkingDelta):
        return chunk
    answer.append(chunk)
    return None


def _require_end(model: Model, answer: Sequence[StreamChunk]) -> None:
    """Raise ModelBusy for an answer that broke off."""
    if not answer or not isinstance(answer[-1], StreamEnd):
        raise ModelBusy(f"{model.label} ended without an end")


def _all_accounts(
    before: tuple[RequestUsage, ...], billed: Callable[[], tuple[RequestUsage, ...]]
) -> tuple[RequestUsage, ...]:
    return (*before, *billed())
