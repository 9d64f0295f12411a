"""Compaction: folds that make a conversation's view smaller, and the model's summaries that stand for what leaves it.

- `Compactor.fold_if_due` asks the planner (`agent.compaction`) and carries its decision out as one log entry.
- `Summarizer.summarise` asks a model for a summary: one caller per conversation, three tries, bounded in time. It
  changes no view: the caller writes the fold that holds the summary, or leaves the conversation as it is.
- `acquire_compaction_lock` keeps others from summarising the same conversation, also across processes. A process that
  dies leaves a lock, which expires.
- `compute_context_budget` says how many tokens a conversation may take. Pure.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final, Literal

from agent import view
from agent.cache.plan import CacheForecast
from agent.compaction import HEAD_SHARE, KEEP_SHARE, CompactionParams, CompactionPlan, dump_params, plan_compaction
from agent.journal import JournalEntry
from agent.models.base import Model, ModelBusy, ModelError, ModelRequest, adapt_request
from agent.summary import SUMMARY_TOKENS, SummaryDraft, build_summary_request, extract_identifiers, judge_summary
from agent.tokens.counter import estimate_image_tokens, estimate_tokens
from agent.turn import ask_model
from agent.turn_context import NO_USAGE, TurnOutcome, TurnProgress
from agent.view import FoldedTurns, extract_exact_names, render_head, shrink_head
from channels.aio import run_to_completion
from gateway.config.models import CompactionConfig, ContextOptimizationConfig
from gateway.context.conversation import RenderedInput, count_turns_over_image_limit
from gateway.context.history import HistoryStore, HistoryView
from gateway.context.prompt_context import COLD_AFTER
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ConversationId, RequestUsage, Usage
from gateway.core.facts import CompactionLocked, CompactionSummary, FoldDecision, NoteWritten, Seq, ViewFolded
from gateway.core.trust import UNKNOWN_LABEL, TrustLabel, label_of_note
from gateway.store import NewEntry, Store

logger = logging.getLogger("reverie.folds")
_summary_logger = logging.getLogger("reverie.compacting")

SummaryOutcome = Literal["ok", "failed", "lock_held", "no_boundary"]
"""Outcomes of a try to get a summary."""
CompactionOutcome = Literal["ok", "failed", "lock_held", "no_boundary", "tool_result_truncated"]
"""The same, with results that were too large: what `gateway.ops.metrics` counts."""

MAX_TRIES: Final = 3
FIRST_WAIT_S: Final = 1.0
WAIT_FACTOR: Final = 4.0
"""1 s and 4 s, each up to half as long again: a person waits for the answer meanwhile."""
MAX_HINT_S: Final = 30.0
"""If the server asks for a longer wait, there is no other try."""
TTL_SHARE: Final = 0.8
"""Share of the lock's time that may be used: it must not expire while it is held."""
OVER_BUDGET: Final = "the day's budget does not reach for a summary"

MIN_BUDGET_TOKENS = 256
"""Tokens that a conversation has in any case, however much stands in front of it."""

MAX_JOURNAL_ENTRIES = 200
"""Newest journal entries of a place that are considered for its head."""
EXCERPTS_SHARE = 1 / 8
"""Share of the budget that results of summarised tool loops may take."""
_NO_FOLD = ViewFolded(start=Seq(0), reason="")
MIN_SUMMARY_TOKENS = 200
"""Smallest size that a summary is asked for, however small the window is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionInput:
    """Requirements of a turn on the view."""

    fixed_tokens: int
    """Tokens in front of the conversation, estimated."""
    rendered: RenderedInput = field(default_factory=RenderedInput)
    """New input."""
    attempts: int = 0
    """Number of times the provider has refused the request as too long."""
    is_requested: bool = False
    """A fold was requested explicitly, whatever it saves."""
    build_request: Callable[[HistoryView], Awaitable[ModelRequest]]
    """Build the request of the turn with this view and no new input, for the summarizer."""
    can_afford: Callable[[ModelRequest], bool] = lambda _: True
    """Return whether the budget allows this request for a summary."""
    progress: TurnProgress = field(default_factory=TurnProgress)
    """Receives the costs of the summary, at any time."""
    current_label: Callable[[], TrustLabel] = lambda: UNKNOWN_LABEL
    """Return the trust label of all that the request holds so far."""

    @property
    def new_tokens(self) -> int:
        """Tokens of the new input, estimated."""
        return estimate_tokens(self.rendered.text) + estimate_image_tokens(self.rendered.media)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBudget:
    """Limits of a conversation, in tokens as they are billed."""

    budget_tokens: int
    compact_above_tokens: int | None
    """Above this a model is to summarise it. None: no model does."""
    is_full: bool
    """The last prompt was as large as prompts may be."""
    scale: float
    """Ratio of billed to estimated tokens."""

    def is_exceeded_by(self, tokens: int) -> bool:
        """Return whether so many estimated tokens are too many."""
        billed = tokens * self.scale
        return (
            self.is_full
            or billed > self.budget_tokens
            or (self.compact_above_tokens is not None and billed > self.compact_above_tokens)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldResult:
    """Outcome of `Compactor.fold_if_due`."""

    view: HistoryView
    is_folded: bool = False
    weighed: FoldDecision | None = None
    """Reasons against folding, if something could have left the view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResult:
    """Outcome of one try to get a summary."""

    outcome: SummaryOutcome
    """no_boundary: nothing can leave the view; lock_held: another caller is making a summary."""
    reason: str = ""
    """Why there is none; empty for `ok`. Holds no secrets."""
    summary: CompactionSummary | None = None
    """With `ok`. Its `tokens_after` counts the text alone: the head that holds it does not exist yet."""
    accounts: tuple[RequestUsage, ...] = ()
    """Usage of all requests for it, including failed ones."""
    usage: Usage = NO_USAGE
    requests: int = 0


@dataclass(slots=True, kw_only=True)
class CompactionLock:
    """State of a lock, while it is held."""

    is_held: bool
    """False: another holder has it."""
    has_failed: bool = False
    """Set by the holder if there is no summary."""


class Summarizer:
    """Asks a model for summaries of one agent's conversations."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        random: Callable[[], float],
        model: Callable[[], Model],
        settings: Callable[[], CompactionConfig],
        on_outcome: Callable[[SummaryOutcome, float | None], None],
    ) -> None:
        """`model` and `settings` are called anew each time; `random` returns numbers in [0, 1).

        `on_outcome` is called once for each try to make a summary, with the seconds it took if a model was asked.
        """
        self._agent = agent
        self._store = store
        self._clock = clock
        self._random = random
        self._model = model
        self._settings = settings
        self._on_outcome = on_outcome

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
        """Ask for a summary of all but the last `tail` exchanges of a request's conversation. Raises StoreError.

        `request`: as the next turn would begin it, so that the cached prefix is read. `leaving`: number of turns that
        would leave the view, `tokens_before` their approximate size. `afford` is called before each request to the
        model. What was spent is added to `progress`, also on cancellation; then the lock is released first.
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
        took_s, result = self._clock.monotonic() - began_s, trying.build_result(draft)
        if result.summary is None:
            _summary_logger.warning("%s: there is no summary of %s: %s", self._agent, place.conversation, result.reason)
            return self._report_outcome(result, took_s)
        summary = replace(result.summary, turns=leaving, tokens_before=tokens_before, took_s=took_s)
        return self._report_outcome(replace(result, summary=summary), took_s)

    def _report_outcome(self, result: SummaryResult, took_s: float | None = None) -> SummaryResult:
        self._on_outcome(result.outcome, took_s)
        return result

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
    """Requests to the model until there is a summary or no more hope of one."""

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
            summary_request = adapt_request(
                build_summary_request(request, tail=tail, most_tokens=most_tokens, hint=draft.hint), self._model
            )
            if not self._afford(summary_request):
                return SummaryDraft(reason=OVER_BUDGET)
            draft, wait_s = await self._try(summary_request, most_tokens)
            if draft.text or wait_s is None:
                return draft
            if self.tries < MAX_TRIES:
                await self._clock.sleep(wait_s)
        return draft

    async def _try(self, request: ModelRequest, most_tokens: int) -> tuple[SummaryDraft, float | None]:
        """Return the draft of one request and the seconds until the next. None: asking again does not help."""
        wait_s = FIRST_WAIT_S * WAIT_FACTOR**self.tries * (1 + self._random() / 2)
        self.tries += 1
        try:
            answer = await ask_model(self._model, request, self.progress)
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
        """Return the result with its costs; the sizes of what the summary stands for are not filled in yet."""
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


@contextlib.asynccontextmanager
async def acquire_compaction_lock(
    store: Store, clock: Clock, conversation: ConversationId, ttl_s: float
) -> AsyncIterator[CompactionLock]:
    """Acquire the lock on summaries of a conversation. Raises StoreError.

    Released at the end, also on cancellation. After a failure it is held until it expires: else each turn would try
    again, and a person waits for each. A process that dies leaves a lock that expires.
    """
    holder, lock = new_id(clock.now()), CompactionLock(is_held=False)
    if await _is_held_by_other(store, clock, conversation, holder):
        yield lock
        return
    try:
        await _write_lock(store, clock, conversation, holder, ttl_s)
        lock.is_held = not await _is_held_by_other(store, clock, conversation, holder)
        yield lock
    finally:  # a cancelled append may have been written
        if not lock.has_failed:
            await run_to_completion(_write_lock(store, clock, conversation, holder, 0.0))


async def _write_lock(store: Store, clock: Clock, conversation: ConversationId, holder: str, for_s: float) -> None:
    now = clock.now()
    fact = CompactionLocked(holder=holder, until=now + timedelta(seconds=for_s))
    await store.append([NewEntry(fact=fact, at=now, conversation=conversation)])


async def _is_held_by_other(store: Store, clock: Clock, conversation: ConversationId, holder: str) -> bool:
    lock = await store.compaction_lock(conversation)
    return lock is not None and lock[0] != holder and lock[1] > clock.now()


class Compactor:
    """Folds the views of one agent's conversations."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        history: HistoryStore,
        model: Model,
        cache_forecast: Callable[[ConversationId], CacheForecast],
        settings: Callable[[], ContextOptimizationConfig],
        is_enabled: Callable[[], bool],
        summarizer: Summarizer,
    ) -> None:
        """`is_enabled`: return whether a model summarises this agent's conversations."""
        self._store = store
        self._clock = clock
        self._history = history
        self._model = model
        self._cache_forecast = cache_forecast
        self._settings = settings
        self._is_enabled = is_enabled
        self._summarizer = summarizer

    def usable_tokens(self) -> int:
        """Return how many tokens of the model's window prompts may take."""
        return view.usable_tokens(self._model.context_tokens, self._model.max_output_tokens)

    def is_full(self, history: HistoryView, share: float) -> bool:
        """Return whether the last prompt took that share of the usable window, as its provider counted."""
        return is_window_filled(history, share * self.usable_tokens())

    async def fold_if_due(self, place: Address, history: HistoryView, compaction_input: CompactionInput) -> FoldResult:
        """Fold the view if that is due.

        Where a summary fails, the plan without one is carried out. Raises StoreError.
        """
        conversation = place.conversation
        budget = compute_context_budget(
            history, compaction_input, self._settings(), self.usable_tokens(), compacts=self._is_enabled()
        )
        pressed = compaction_input.attempts > 0 or budget.is_exceeded_by(history.tokens + compaction_input.new_tokens)
        leaves = count_turns_over_image_limit(history, compaction_input.rendered) > 0
        if not (pressed or leaves or history.has_tool_steps):  # most conversations have no tool results to shorten
            return FoldResult(view=history)
        situation = self._build_situation(conversation, history, compaction_input, budget)
        journal = await self._load_journal(conversation) if (pressed or leaves) and history.turns else []
        written = journal[-1][0].at if journal and pressed else None
        decision = self._decide(history, situation, written, compaction_input)
        summary = None
        if decision.needs_summary:
            summary = await self._summarize(place, history, decision, compaction_input)
            if summary is None:
                situation = replace(situation, compact_above=None)
                decision = self._decide(history, situation, written, compaction_input)
        weighed = FoldDecision(situation=dump_params(situation), written=written, verdict=decision.verdict)
        if not decision.kinds:
            if decision.verdict:
                logger.debug("%s: not folded: %s", conversation, decision.verdict)
            return FoldResult(view=history, weighed=weighed if decision.verdict else None)
        folded = self._build_fold(
            history, decision, summary, journal, weighed=weighed, label=history.label | compaction_input.current_label()
        )
        logger.info("%s: folded (%s): %s", conversation, ", ".join(decision.kinds), decision.verdict)
        return FoldResult(view=await self._history.apply_fold(conversation, history, folded), is_folded=True)

    def _build_situation(
        self,
        conversation: ConversationId,
        history: HistoryView,
        compaction_input: CompactionInput,
        budget: ContextBudget,
    ) -> CompactionParams:
        settings, forecast = self._settings(), self._cache_forecast(conversation)
        return CompactionParams(
            budget=budget.budget_tokens,
            spared=history.fold.spared if history.fold is not None else 0,
            excerpts=min(settings.folds.completed_evidence_tokens, int(budget.budget_tokens * EXCERPTS_SHARE)),
            new=compaction_input.new_tokens,
            head=history.head_tokens,
            scale=history.scale,
            full=budget.is_full,
            cold=self._is_cold(history) if forecast.is_cold is None else forecast.is_cold,
            read=forecast.read_share,
            write=forecast.write_share,
            ahead=forecast.expected_requests,
            keep_results=settings.folds.keep_recent_tool_results,
            # What could be shortened is not billed anyway.
            policy="full" if history.cleared_tokens else settings.folds.policy,
            force=compaction_input.attempts,
            compact_above=budget.compact_above_tokens,
            keep_tail=settings.compaction.tail_keep_tokens,
        )

    def _is_cold(self, history: HistoryView) -> bool:
        """After a restart the state of the cache is unknown; only what is older than any cache is surely cold."""
        return not history.turns or self._clock.now() - history.turns[-1].at > COLD_AFTER

    def _decide(
        self,
        history: HistoryView,
        params: CompactionParams,
        written: datetime | None,
        compaction_input: CompactionInput,
    ) -> CompactionPlan:
        decision = plan_compaction(history.sizes(written=written), params)
        start = count_turns_over_image_limit(history, compaction_input.rendered)
        if start <= decision.start:
            return decision
        verdict = f"{decision.verdict}; more images than one request takes".strip("; ")
        kinds = decision.kinds if "drop" in decision.kinds else (*decision.kinds, "drop")
        head = max(decision.head, int(params.budget * KEEP_SHARE * HEAD_SHARE))
        return replace(decision, start=start, kinds=kinds, head=head, verdict=verdict)

    async def _load_journal(self, conversation: ConversationId) -> list[tuple[JournalEntry, TrustLabel]]:
        """Return the journal entries of the conversation, oldest first, each with the label of its sources."""
        found = await self._store.newest_entries(MAX_JOURNAL_ENTRIES, kinds=["noted"], conversation=conversation)
        forgotten = await self._store.forgotten_notes([one.seq for one in found])
        return [
            (
                JournalEntry(at=one.at, title=one.fact.title, text=one.fact.text, scope=one.fact.scope),
                label_of_note(one.fact),
            )
            for one in found
            if isinstance(one.fact, NoteWritten) and one.seq not in forgotten
        ]

    async def _summarize(
        self, place: Address, history: HistoryView, decision: CompactionPlan, compaction_input: CompactionInput
    ) -> CompactionSummary | None:
        result = await self._summarizer.summarise(
            place,
            await compaction_input.build_request(history),
            leaving=decision.start,
            tail=len(history.turns) - decision.start,
            tokens_before=sum(turn.tokens for turn in history.turns[: decision.start]),
            most_tokens=min(SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, decision.head)),
            afford=compaction_input.can_afford,
            progress=compaction_input.progress,
        )
        return result.summary

    def _build_fold(
        self,
        history: HistoryView,
        decision: CompactionPlan,
        summary: CompactionSummary | None,
        journal: Sequence[tuple[JournalEntry, TrustLabel]],
        *,
        weighed: FoldDecision,
        label: TrustLabel,
    ) -> ViewFolded:
        """`label`: trust label of the view, and of all that its summary was made from."""
        before = history.fold or _NO_FOLD
        carried = summary.text if summary is not None else before.carried
        text = before.head
        if decision.start:
            text = self._build_head(history, decision, carried, [written for written, _ in journal])
            label = reduce(or_, [noted for _, noted in journal], label)
        elif "drop" in decision.kinds and text:  # it was made for a larger window
            text = shrink_head(text, decision.head)
        if summary is not None:
            summary = replace(summary, tokens_after=estimate_tokens(text))
        summed, trimmed = (history.seq_at(index) if index else Seq(0) for index in (decision.summed, decision.trimmed))
        return ViewFolded(
            start=history.seq_at(decision.start) if decision.start else before.start,
            reason=decision.verdict,
            head=text,
            carried=carried,
            summed=max(before.summed, summed),
            trimmed=max(before.trimmed, trimmed),
            spared=decision.spared,
            excerpts_tokens=decision.excerpts,
            kinds=decision.kinds,
            weighed=weighed,
            summary=summary,
            least_role=label.role,
            foreign=label.foreign,
        )

    def _build_head(
        self, history: HistoryView, decision: CompactionPlan, summary: str, journal: Sequence[JournalEntry]
    ) -> str:
        """Return the text that stands for the turns that leave, and for earlier ones."""
        leaving = history.turns[: decision.start]
        texts = [text for turn in leaving for text in (turn.raw.input_text, turn.raw.reply)]
        return render_head(
            FoldedTurns(
                handle=f"v{leaving[0].seq}-{history.seq_at(decision.start)}" if self._model.takes_tools else "",
                turns=len(leaving),
                since=leaving[0].at,
                until=leaving[-1].at,
                has_earlier=bool(history.head),
            ),
            summary=summary,
            journal=journal,
            exact=extract_identifiers(texts, kept=extract_exact_names(history.head)),
            last_request=next((turn.raw.input_text for turn in reversed(leaving) if turn.is_addressed), ""),
            budget_tokens=decision.head,
        )


def compute_context_budget(
    history: HistoryView,
    compaction_input: CompactionInput,
    settings: ContextOptimizationConfig,
    usable: int,
    *,
    compacts: bool,
) -> ContextBudget:
    """Return the limits of a conversation, given the `usable` tokens that prompts may take."""
    used = int(compaction_input.fixed_tokens * history.scale) - history.cleared_tokens
    budget = int(usable * settings.folds.fold_at_pct) - used
    above = int(usable * settings.compaction.compact_at_pct) - used
    if compaction_input.is_requested:  # as if the present size were just too large
        budget = above = min(budget, int((history.tokens + compaction_input.new_tokens) * history.scale) - 1)
    return ContextBudget(
        budget_tokens=max(0 if compaction_input.is_requested else MIN_BUDGET_TOKENS, budget),
        compact_above_tokens=above if compacts else None,
        is_full=is_window_filled(history, usable * settings.folds.fold_at_pct),
        scale=history.scale,
    )


def is_window_filled(history: HistoryView, tokens: float) -> bool:
    """Return whether the newest prompt had so many tokens, as its provider counted, and nothing was folded since."""
    newest = next(history.turns_since_fold(), None)
    return newest is not None and newest.record.prompt_tokens >= tokens
