"""Makes views smaller when that is due: asks the planner, and carries out what it says in one log entry.

Asks a model to summarise what is to leave a conversation's view: one asker at a time, three tries, bounded in time.

Nothing here changes a view. Whoever asked for the summary writes the fold that holds it, or goes on with the
conversation as it was. A process that dies in between leaves a lock, which expires.

What a turn asks of a view, and whether there is room for it. Pure.

The lock on summaries of a conversation: one asker at a time, also across processes, and never for ever.
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
from agent.brief import NO_USAGE, TurnOutcome, TurnProgress
from agent.cache.plan import CacheForecast
from agent.compaction import HEAD_SHARE, KEEP_SHARE, CompactionParams, CompactionPlan, dump_params, plan_compaction
from agent.journal import JournalEntry
from agent.models.base import Model, ModelBusy, ModelError, ModelRequest, adapt_request
from agent.summary import SUMMARY_TOKENS, SummaryDraft, build_summary_request, extract_identifiers, judge_summary
from agent.turn import ask_model
from agent.view import estimate_tokens
from agent.view_forms import FoldedTurns, extract_exact_names, render_head, shrink_head
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

CompactionOutcome = Literal["ok", "failed", "lock_held", "no_boundary", "tool_result_truncated"]


@dataclass(slots=True, kw_only=True)
class CompactionLock:
    """A lock, as long as it is held."""

    is_held: bool
    """False: somebody else has it."""
    has_failed: bool = False
    """There is no summary."""


@contextlib.asynccontextmanager
async def acquire_compaction_lock(
    store: Store, clock: Clock, conversation: ConversationId, ttl_s: float
) -> AsyncIterator[CompactionLock]:
    """Whether this is the only one that makes a summary there, until the end. Raises StoreError.

    Given back at the end, also if it is cancelled. After a failure it is held until it expires: else each turn would
    try again, and somebody waits for each. A process that dies leaves one that expires.
    """
    holder, held = new_id(clock.now()), CompactionLock(is_held=False)
    if await _is_held_by_other(store, clock, conversation, holder):
        yield held
        return
    try:
        await _write_lock(store, clock, conversation, holder, ttl_s)
        held.is_held = not await _is_held_by_other(store, clock, conversation, holder)
        yield held
    finally:  # a cancelled append may have been written
        if not held.has_failed:
            await run_to_completion(_write_lock(store, clock, conversation, holder, 0.0))


async def _write_lock(store: Store, clock: Clock, conversation: ConversationId, holder: str, for_s: float) -> None:
    now = clock.now()
    fact = CompactionLocked(holder=holder, until=now + timedelta(seconds=for_s))
    await store.append([NewEntry(fact=fact, at=now, conversation=conversation)])


async def _is_held_by_other(store: Store, clock: Clock, conversation: ConversationId, holder: str) -> bool:
    lock = await store.compaction_lock(conversation)
    return lock is not None and lock[0] != holder and lock[1] > clock.now()


logger = logging.getLogger("reverie.folds")

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
"""As `gateway.core.metrics` counts them."""


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


MIN_BUDGET_TOKENS = 256
"""Tokens that a conversation has in any case, however much stands in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionInput:
    """What a turn asks of the view."""

    fixed_tokens: int
    """Tokens in front of the conversation, estimated."""
    rendered: RenderedInput = field(default_factory=RenderedInput)
    """What is new."""
    attempts: int = 0
    """How often the provider has said that it was too long."""
    is_requested: bool = False
    """Somebody wants it folded, whatever it saves."""
    build_request: Callable[[HistoryView], Awaitable[ModelRequest]]
    """How the turn would ask with this view, and nothing new: for whoever summarises it."""
    can_afford: Callable[[ModelRequest], bool] = lambda _: True
    """Whether a summary may be asked for."""
    progress: TurnProgress = field(default_factory=TurnProgress)
    """What was asked for it, at any time."""
    current_label: Callable[[], TrustLabel] = lambda: UNKNOWN_LABEL
    """Of all that `request` holds, so far."""

    @property
    def new_tokens(self) -> int:
        """Tokens of what is new, estimated."""
        return view.estimate_tokens(self.rendered.text) + view.estimate_image_tokens(self.rendered.media)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextBudget:
    """What a conversation may take, in tokens as they are billed."""

    budget_tokens: int
    compact_above_tokens: int | None
    """Beyond this a model is to summarise it. None: none does."""
    is_full: bool
    """The last prompt was as large as prompts may be."""
    scale: float
    """What was billed, against what was estimated."""

    def is_exceeded_by(self, tokens: int) -> bool:
        """Whether so many tokens, as estimated, are too many."""
        billed = tokens * self.scale
        return (
            self.is_full
            or billed > self.budget_tokens
            or (self.compact_above_tokens is not None and billed > self.compact_above_tokens)
        )


def compute_context_budget(
    seen: HistoryView, want: CompactionInput, said: ContextOptimizationConfig, usable: int, *, compacts: bool
) -> ContextBudget:
    """What the conversation may take, of the `usable` tokens that prompts may have."""
    taken = int(want.fixed_tokens * seen.scale) - seen.cleared_tokens
    budget = int(usable * said.folds.fold_at_pct) - taken
    above = int(usable * said.compaction.compact_at_pct) - taken
    if want.is_requested:  # as if what is there were just too much
        budget = above = min(budget, int((seen.tokens + want.new_tokens) * seen.scale) - 1)
    return ContextBudget(
        budget_tokens=max(0 if want.is_requested else MIN_BUDGET_TOKENS, budget),
        compact_above_tokens=above if compacts else None,
        is_full=is_window_filled(seen, usable * said.folds.fold_at_pct),
        scale=seen.scale,
    )


def is_window_filled(seen: HistoryView, tokens: float) -> bool:
    """Whether the newest prompt had so many, as its provider counted, and nothing was folded since."""
    newest = next(seen.turns_since_fold(), None)
    return newest is not None and newest.billed[0] >= tokens


MAX_JOURNAL_ENTRIES = 200
"""Newest entries of a place that are looked at for its head."""
EXCERPTS_SHARE = 1 / 8
"""Of the budget may be taken by results of summarised loops."""
_NO_FOLD = ViewFolded(start=Seq(0), reason="")
MIN_SUMMARY_TOKENS = 200
"""Tokens that a summary is asked for, however small the window is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldResult:
    """What became of it."""

    view: HistoryView
    is_folded: bool = False
    weighed: FoldDecision | None = None
    """Why it was not folded, if something could have gone."""


class Compactor:
    """Those of one agent."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        views: HistoryStore,
        model: Model,
        outlook: Callable[[ConversationId], CacheForecast],
        said: Callable[[], ContextOptimizationConfig],
        compacts: Callable[[], bool],
        compacting: Summarizer,
    ) -> None:
        """`compacts`: whether this agent's conversations are summarised by a model."""
        self._store = store
        self._clock = clock
        self._history = views
        self._model = model
        self._outlook = outlook
        self._settings = said
        self._is_enabled = compacts
        self._summarizer = compacting

    def usable_tokens(self) -> int:
        """Tokens of the model's window that prompts may take."""
        return view.usable_tokens(self._model.context_tokens, self._model.max_output_tokens)

    def is_full(self, seen: HistoryView, share: float) -> bool:
        """Whether the last prompt took that share of the usable window, as its provider counted."""
        return is_window_filled(seen, share * self.usable_tokens())

    async def fold_if_due(self, place: Address, seen: HistoryView, want: CompactionInput) -> FoldResult:
        """Fold if it is due. What is wanted by a summary that fails goes on unchanged. Raises StoreError."""
        conversation = place.conversation
        room = compute_context_budget(seen, want, self._settings(), self.usable_tokens(), compacts=self._is_enabled())
        pressed = want.attempts > 0 or room.is_exceeded_by(seen.tokens + want.new_tokens)
        leaves = count_turns_over_image_limit(seen, want.rendered) > 0
        if not (pressed or leaves or seen.has_tool_steps):  # most talk is just talk
            return FoldResult(view=seen)
        situation = self._build_situation(conversation, seen, want, room)
        journal = await self._load_journal(conversation) if (pressed or leaves) and seen.turns else []
        written = journal[-1][0].at if journal and pressed else None
        decision = self._decide(seen, situation, written, want)
        made = None
        if decision.needs_summary:
            made = await self._summarize(place, seen, decision, want)
            if made is None:
                situation = replace(situation, compact_above=None)
                decision = self._decide(seen, situation, written, want)
        weighed = FoldDecision(situation=dump_params(situation), written=written, verdict=decision.verdict)
        if not decision.kinds:
            if decision.verdict:
                logger.debug("%s: not folded: %s", conversation, decision.verdict)
            return FoldResult(view=seen, weighed=weighed if decision.verdict else None)
        folded = self._build_fold(
            seen, decision, made, journal, weighed=weighed, label=seen.label | want.current_label()
        )
        logger.info("%s: folded (%s): %s", conversation, ", ".join(decision.kinds), decision.verdict)
        return FoldResult(view=await self._history.apply_fold(conversation, seen, folded), is_folded=True)

    def _build_situation(
        self, conversation: ConversationId, seen: HistoryView, want: CompactionInput, room: ContextBudget
    ) -> CompactionParams:
        said, outlook = self._settings(), self._outlook(conversation)
        return CompactionParams(
            budget=room.budget_tokens,
            spared=seen.fold.spared if seen.fold is not None else 0,
            excerpts=min(said.folds.completed_evidence_tokens, int(room.budget_tokens * EXCERPTS_SHARE)),
            new=want.new_tokens,
            head=seen.head_tokens,
            scale=seen.scale,
            full=room.is_full,
            cold=self._is_cold(seen) if outlook.is_cold is None else outlook.is_cold,
            read=outlook.read_share,
            write=outlook.write_share,
            ahead=outlook.expected_requests,
            keep_results=said.folds.keep_recent_tool_results,
            policy="full" if seen.cleared_tokens else said.folds.policy,  # what could go gently is not paid for anyway
            force=want.attempts,
            compact_above=room.compact_above_tokens,
            keep_tail=said.compaction.tail_keep_tokens,
        )

    def _is_cold(self, seen: HistoryView) -> bool:
        """After a restart nobody knows what is cached; only what is older than any cache is surely not."""
        return not seen.turns or self._clock.now() - seen.turns[-1].at > COLD_AFTER

    def _decide(
        self, seen: HistoryView, at: CompactionParams, written: datetime | None, want: CompactionInput
    ) -> CompactionPlan:
        decision = plan_compaction(seen.sizes(written=written), at)
        start = count_turns_over_image_limit(seen, want.rendered)
        if start <= decision.start:
            return decision
        verdict = f"{decision.verdict}; more images than one request takes".strip("; ")
        kinds = decision.kinds if "drop" in decision.kinds else (*decision.kinds, "drop")
        head = max(decision.head, int(at.budget * KEEP_SHARE * HEAD_SHARE))
        return replace(decision, start=start, kinds=kinds, head=head, verdict=verdict)

    async def _load_journal(self, conversation: ConversationId) -> list[tuple[JournalEntry, TrustLabel]]:
        """What was written down there, oldest first, and whose words each was made of."""
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
        self, place: Address, seen: HistoryView, decision: CompactionPlan, want: CompactionInput
    ) -> CompactionSummary | None:
        made = await self._summarizer.summarise(
            place,
            await want.build_request(seen),
            leaving=decision.start,
            tail=len(seen.turns) - decision.start,
            tokens_before=sum(turn.tokens for turn in seen.turns[: decision.start]),
            most_tokens=min(SUMMARY_TOKENS, max(MIN_SUMMARY_TOKENS, decision.head)),
            afford=want.can_afford,
            progress=want.progress,
        )
        return made.summary

    def _build_fold(
        self,
        seen: HistoryView,
        decision: CompactionPlan,
        made: CompactionSummary | None,
        journal: Sequence[tuple[JournalEntry, TrustLabel]],
        *,
        weighed: FoldDecision,
        label: TrustLabel,
    ) -> ViewFolded:
        """`label`: of the view, and of all that its summary was made from."""
        before = seen.fold or _NO_FOLD
        carried = made.text if made is not None else before.carried
        text = before.head
        if decision.start:
            text = self._build_head(seen, decision, carried, [written for written, _ in journal])
            label = reduce(or_, [noted for _, noted in journal], label)
        elif "drop" in decision.kinds and text:  # it was made for a larger window
            text = shrink_head(text, decision.head)
        if made is not None:
            made = replace(made, tokens_after=view.estimate_tokens(text))
        summed, trimmed = (seen.seq_at(index) if index else Seq(0) for index in (decision.summed, decision.trimmed))
        return ViewFolded(
            start=seen.seq_at(decision.start) if decision.start else before.start,
            reason=decision.verdict,
            head=text,
            carried=carried,
            summed=max(before.summed, summed),
            trimmed=max(before.trimmed, trimmed),
            spared=decision.spared,
            excerpts_tokens=decision.excerpts,
            kinds=decision.kinds,
            weighed=weighed,
            summary=made,
            least_role=label.role,
            foreign=label.foreign,
        )

    def _build_head(
        self, seen: HistoryView, decision: CompactionPlan, summary: str, journal: Sequence[JournalEntry]
    ) -> str:
        """What stands in for the turns that leave, and for what stood in for earlier ones."""
        leaving = seen.turns[: decision.start]
        texts = [text for turn in leaving for text in (turn.raw.input_text, turn.raw.reply)]
        return render_head(
            FoldedTurns(
                handle=f"v{leaving[0].seq}-{seen.seq_at(decision.start)}" if self._model.takes_tools else "",
                turns=len(leaving),
                since=leaving[0].at,
                until=leaving[-1].at,
                has_earlier=bool(seen.head),
            ),
            summary=summary,
            journal=journal,
            exact=extract_identifiers(texts, kept=extract_exact_names(seen.head)),
            last_request=next((turn.raw.input_text for turn in reversed(leaving) if turn.is_addressed), ""),
            budget_tokens=decision.head,
        )
