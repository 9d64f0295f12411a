"""Asks a model to summarise what is to leave a conversation's view: one asker at a time, three tries, bounded in time.

Nothing here changes a view. Whoever asked for the summary writes the fold that holds it, or goes on with the
conversation as it was. A process that dies in between leaves a lock, which expires.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agent.answer import ask_model
from agent.models.adapted import adapt_request
from agent.models.base import Model, ModelBusy, ModelError, ModelRequest
from agent.outcome import NO_USAGE, TurnOutcome, TurnProgress
from agent.summary import SUMMARY_TOKENS, SummaryDraft, build_summary_request, judge_summary
from agent.view import estimate_tokens
from gateway.clock import Clock
from gateway.compaction_lock import acquire_compaction_lock
from gateway.events import Address, RequestUsage, Usage
from gateway.records import CompactionSummary
from gateway.settings_context import CompactionConfig
from gateway.store import Store

logger = logging.getLogger("reverie.compacting")

MAX_TRIES: Final = 3
FIRST_WAIT_S: Final = 1.0
WAIT_FACTOR: Final = 4.0
"""So 1 s and 4 s, each up to half as long again: somebody waits for an answer meanwhile."""
MAX_HINT_S: Final = 30.0
"""A server that asks for more is not waited for."""
TTL_SHARE: Final = 0.8
"""Of the lock's time may be used: it must not expire under its holder."""
OVER_BUDGET: Final = "the day's budget does not reach for a summary"

SummaryOutcome = Literal["ok", "failed", "lock_held", "no_boundary"]
"""As `gateway.ops.llm_stats` counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResult:
    """What came of it."""

    outcome: SummaryOutcome
    """no_boundary: nothing can leave; lock_held: somebody else is at it."""
    reason: str = ""
    """Why there is none; empty for `ok`. Holds no secrets."""
    summary: CompactionSummary | None = None
    """With `ok`. Its `tokens_after` are of the text alone: the head that holds it is not made yet."""
    accounts: tuple[RequestUsage, ...] = ()
    """Of all requests for it, failed ones too."""
    usage: Usage = NO_USAGE
    requests: int = 0


class Summarizer:
    """One agent's."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        random: Callable[[], float],
        model: Callable[[], Model],
        said: Callable[[], CompactionConfig],
        compacted: Callable[[SummaryOutcome, float | None], None],
    ) -> None:
        """`model` and `said` are asked anew each time; `random` gives numbers in [0, 1).

        `compacted` is told once of each try to make a summary, with the seconds that it took where a model was asked.
        """
        self._agent = agent
        self._store = store
        self._clock = clock
        self._random = random
        self._model = model
        self._settings = said
        self._on_outcome = compacted

    async def summarise(
        self,
        place: Address,
        request: ModelRequest,
        *,
        leaving: int,
        tail: int,
        tokens_before: int,
        most_tokens: int = SUMMARY_TOKENS,
        afford: Callable[[ModelRequest], bool] = lambda _: True,
        progress: TurnProgress | None = None,
    ) -> SummaryResult:
        """Ask for a summary of all but the last `tail` exchanges of a request's conversation.

        `request`: as the next turn would begin it, so that what is cached is read. `leaving`: so many turns would leave
        the view, of about `tokens_before` tokens. `afford` is asked before each request to the model. `progress` is
        told what was spent, also if this is cancelled; then the lock is given back first. Raises StoreError.
        """
        if leaving <= 0:
            return self._report_outcome(SummaryResult(outcome="no_boundary", reason="nothing can leave the view"))
        began_s, ttl_s = self._clock.monotonic(), float(self._settings().lock_ttl_seconds)
        async with acquire_compaction_lock(self._store, self._clock, place.conversation, ttl_s) as lock:
            if not lock.is_held:
                return self._report_outcome(
                    SummaryResult(outcome="lock_held", reason="a summary of it is being made, or has just failed")
                )
            trying = _SummaryAttempts(self._model(), self._clock, self._random, afford)
            try:
                draft = await self._with_timeout(trying.request_draft(request, tail, most_tokens), ttl_s * TTL_SHARE)
                lock.has_failed = not draft.text
            finally:
                if progress is not None:
                    _add_spent(progress, trying.progress.current)
        took_s, made = self._clock.monotonic() - began_s, trying.build_result(draft)
        if made.summary is None:
            logger.warning("%s: there is no summary of %s: %s", self._agent, place.conversation, made.reason)
            return self._report_outcome(made, took_s)
        summary = replace(made.summary, turns=leaving, tokens_before=tokens_before, took_s=took_s)
        return self._report_outcome(replace(made, summary=summary), took_s)

    def _report_outcome(self, made: SummaryResult, took_s: float | None = None) -> SummaryResult:
        self._on_outcome(made.outcome, took_s)
        return made

    async def _with_timeout(self, drafting: Coroutine[None, None, SummaryDraft], limit_s: float) -> SummaryDraft:
        task, timer = asyncio.ensure_future(drafting), asyncio.ensure_future(self._clock.sleep(limit_s))
        try:
            await asyncio.wait([task, timer], return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else SummaryDraft(reason=f"there was none after {limit_s:.0f} s")
        finally:
            task.cancel()
            timer.cancel()
            await asyncio.gather(task, timer, return_exceptions=True)


class _SummaryAttempts:
    """Asks until there is a summary, or no hope of one."""

    def __init__(
        self,
        model: Model,
        clock: Clock,
        random: Callable[[], float],
        afford: Callable[[ModelRequest], bool],
    ) -> None:
        self.tries = 0
        self.progress = TurnProgress()
        self._model = model
        self._clock = clock
        self._random = random
        self._afford = afford

    async def request_draft(self, request: ModelRequest, tail: int, most_tokens: int) -> SummaryDraft:
        draft = SummaryDraft()
        while self.tries < MAX_TRIES:
            asked = adapt_request(
                build_summary_request(request, tail=tail, most_tokens=most_tokens, hint=draft.hint), self._model
            )
            if not self._afford(asked):
                return SummaryDraft(reason=OVER_BUDGET)
            draft, wait_s = await self._try(asked, most_tokens)
            if draft.text or wait_s is None:
                return draft
            if self.tries < MAX_TRIES:
                await self._clock.sleep(wait_s)
        return draft

    async def _try(self, request: ModelRequest, most_tokens: int) -> tuple[SummaryDraft, float | None]:
        """What one request brought, and the seconds until the next. None: asking again does not help."""
        wait_s = FIRST_WAIT_S * WAIT_FACTOR**self.tries * (1 + self._random() / 2)
        self.tries += 1
        try:
            answer = await ask_model(self._model, request, None, self.progress)
        except ModelBusy as error:
            self.progress.record_lost(error.accounts)
            hint_s = error.retry_after_s or 0.0
            return SummaryDraft(reason=error.reason), max(wait_s, hint_s) if hint_s <= MAX_HINT_S else None
        except ModelError as error:
            self.progress.record_lost(error.accounts)
            return SummaryDraft(reason=error.reason), None
        if answer.end is None:
            return SummaryDraft(reason="the answer broke off"), wait_s
        self.progress.record_answer(answer.end, self._model, 0)
        called = bool(answer.calls)
        return judge_summary(answer.text, stop=answer.end.stop_reason, called=called, most_tokens=most_tokens), wait_s

    def build_result(self, draft: SummaryDraft) -> SummaryResult:
        """The same with what it cost; of a summary the sizes of what it stands for are not told yet."""
        done = self.progress.current
        spent = SummaryResult(outcome="failed", accounts=done.accounts, usage=done.usage, requests=done.requests)
        if not draft.text:
            return replace(spent, reason=draft.reason)
        summary = CompactionSummary(
            text=draft.text,
            turns=0,
            tokens_before=0,
            tokens_after=estimate_tokens(draft.text),
            tries=self.tries,
            took_s=0.0,
            model=done.model,
            usage=done.usage,
            cost_usd=_total_cost_usd(done.accounts, done.requests),
        )
        return replace(spent, outcome="ok", summary=summary)


def _add_spent(progress: TurnProgress, spent: TurnOutcome) -> None:
    done = progress.current
    progress.current = replace(
        done,
        usage=done.usage + spent.usage,
        requests=done.requests + spent.requests,
        accounts=(*done.accounts, *spent.accounts),
    )


def _total_cost_usd(accounts: Sequence[RequestUsage], requests: int) -> float | None:
    if not accounts or len(accounts) < requests:
        return None
    costs = [account.cost_usd for account in accounts]
    return None if None in costs else sum(cost or 0.0 for cost in costs)
