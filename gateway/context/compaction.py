"""Compaction: folds that make a conversation's view smaller, and the model's summaries that stand
for what leaves it.

- `Compactor.fold_if_due` asks the planner (`agent.compaction`) and carries its decision out as one
  log entry.
- `Compactor.summarise` asks a model for a summary: one caller per conversation, three tries,
  bounded in time. It changes no view: the caller writes the fold that holds the summary, or leaves
  the conversation as it is.
- `acquire_compaction_lock` keeps others from summarising the same conversation, also across
  processes. A process that dies leaves a lock, which expires.
- After a summary that failed, the conversation has no other try for as long as a lock would last:
  a person waits for each. Such a turn counts no outcome; `lock_held` says that somebody else is at
  it.
"""

import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from agent.cache.idle import UNKNOWN_FORECAST
from agent.cache.prompt_cache import PromptCache
from agent.compaction import (
    HEAD_SHARE,
    KEEP_SHARE,
    CompactionParams,
    CompactionPlan,
    plan_compaction,
)
from agent.models.adapt import adapt_request
from agent.models.base import Model, ModelBusy, ModelError, ModelRequest
from agent.summary import (
    SUMMARY_TOKENS,
    SummaryDraft,
    build_summary_request,
    extract_identifiers,
    judge_summary,
)
from agent.tokens.counter import estimate_media_tokens, estimate_tokens
from agent.turn import ask_model
from agent.turn_context import TurnProgress, usable_tokens
from agent.view import FoldedTurns, extract_exact_names, render_head, shrink_head
from channels.aio import run_to_completion, with_timeout
from gateway.context.conversation import RenderedInput, count_turns_over_image_limit
from gateway.context.history import HistoryStore, HistoryView
from gateway.context.prompt_context import COLD_AFTER
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ConversationId, RequestUsage
from gateway.core.facts import (
    CompactionLocked,
    CompactionSummary,
    NoteWritten,
    Seq,
    ViewFolded,
    is_inner,
)
from gateway.core.labels import Label, join
from gateway.store import NewEntry, Store
from gateway.stream.handle import GatewayHandle

COMPACTION_LOCK: Final = "SELECT holder, expires_at FROM compaction_locks_v1 WHERE session_id = $1"
logger = logging.getLogger("reverie.folds")

ACTIVE_EVIDENCE_TOKENS: Final = 18_000
"""Tool results of one turn shown in full; the rest is shown with a handle."""
NUDGE_AT: Final = 0.8
"""Share of the usable window at which the agent is asked, once, to write down what matters."""
FOLD_AT: Final = 0.9
"""Share of the usable window, as the provider counts, at which the view is folded at any cost: not
before the turn after the one that was asked to write down what matters, unless its own request
would be larger than the usable window."""

CompactionOutcome = Literal["ok", "failed", "lock_held", "no_boundary", "tool_result_truncated"]
"""Outcomes of a try to get a summary (no_boundary: nothing can leave the view; lock_held: another
caller is making one), and results that were too large: what `CompactionStats` counts."""
COMPACTION_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = get_args(CompactionOutcome)
TIMED_OUTCOMES: Final[tuple[CompactionOutcome, ...]] = ("ok", "failed")
"""Outcomes of a summary for which a model was asked, so that it has a duration worth measuring."""

MAX_TRIES: Final = 3
FIRST_WAIT_S: Final = 1.0
WAIT_FACTOR: Final = 4.0
"""1 s and 4 s, each up to half as long again: a person waits for the answer meanwhile."""
MAX_HINT_S: Final = 30.0
"""If the server asks for a longer wait, there is no other try."""
TTL_SHARE: Final = 0.8
"""Share of the lock's time that may be used: it must not expire while it is held."""
TURNS_BETWEEN_SUMMARIES: Final = 5
"""Turns from one summary of a conversation to the next: in a small window each turn would be
summarised otherwise."""
MAX_INNER_TOKENS: Final = 6_000
"""Most of the inner conversation that a request holds. Its looks lie so far apart that each pays
for all of it anew; what it did stands in the log."""
OVER_BUDGET: Final = "the day's budget does not reach for a summary"

MIN_BUDGET_TOKENS = 256
"""Tokens that a conversation has in any case, however much stands in front of it."""


class FoldHost(Protocol):
    """The turn that a view is folded for."""

    preparation: TurnProgress
    """Costs of summaries, also of one that was cut off."""

    @property
    def label(self) -> Label:
        """Trust label of all that its requests hold so far."""

    async def can_afford_now(self, request: ModelRequest) -> bool:
        """Return whether the budget allows this request for a summary."""

    async def build_summary_request(self, history: HistoryView) -> ModelRequest:
        """Return the turn's request with this view and no new input."""


class CompactionStats:
    """Counters of summaries by a model, by how they ended, and of tool results that were too
    large.
    """

    def __init__(self, agents: Iterable[str] = ()) -> None:
        self.metrics = CollectorRegistry()
        labels = ["agent", "outcome"]
        self._triggered = Counter(
            "llm_compaction_triggered",
            "How often history was to be folded into a summary, by how that ended.",
            labels,
            registry=self.metrics,
        )
        self._durations_s = Histogram(
            "llm_compaction_duration_seconds",
            "How long folding history took.",
            labels,
            buckets=(0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
            registry=self.metrics,
        )
        for agent in agents:
            for outcome in COMPACTION_OUTCOMES:
                self._triggered.labels(agent, outcome)
            for outcome in TIMED_OUTCOMES:
                self._durations_s.labels(agent, outcome)

    def count(self, agent: str, outcome: CompactionOutcome, took_s: float | None = None) -> None:
        """Count a try by its outcome. `took_s`: duration; None: no model was called."""
        self._triggered.labels(agent, outcome).inc()
        if took_s is not None and outcome in TIMED_OUTCOMES:
            self._durations_s.labels(agent, outcome).observe(took_s)


def _total_cost_usd(accounts: Sequence[RequestUsage], requests: int) -> float | None:
    if not accounts or len(accounts) < requests:
        return None
    costs = [account.cost_usd for account in accounts]
    return None if None in costs else sum(cost or 0.0 for cost in costs)


@contextlib.asynccontextmanager
async def acquire_compaction_lock(
    store: Store, clock: Clock, conversation: ConversationId, ttl_s: float
) -> AsyncIterator[bool]:
    """Acquire the lock on summaries of a conversation, and yield whether it is held. Raises
    StoreError.

    Released at the end, also on cancellation. A process that dies leaves a lock that expires.
    """
    holder = new_id(clock.now())
    if await _is_held_by_other(store, clock, conversation, holder):
        yield False
        return
    try:
        await _write_lock(store, clock, conversation, holder, ttl_s)
        yield not await _is_held_by_other(store, clock, conversation, holder)
    finally:  # a cancelled append may have been written
        await run_to_completion(_write_lock(store, clock, conversation, holder, 0.0))


async def _write_lock(
    store: Store, clock: Clock, conversation: ConversationId, holder: str, for_s: float
) -> None:
    now = clock.now()
    fact = CompactionLocked(holder=holder, until=now + timedelta(seconds=for_s))
    await store.append([NewEntry(fact=fact, at=now, conversation=conversation)])


async def _is_held_by_other(
    store: Store, clock: Clock, conversation: ConversationId, holder: str
) -> bool:
    locks = await store.rows(COMPACTION_LOCK, conversation)
    return any(by != holder and datetime.fromisoformat(until) > clock.now() for by, until in locks)


class Compactor:
    """Folds the views of one agent's conversations, and asks a model for summaries of them."""

    def __init__(
        self,
        agent: str,
        gateway: GatewayHandle,
        *,
        history: HistoryStore,
        model: Model,
        cache: PromptCache | None,
        summarizer: Model,
        stats: CompactionStats,
        random: Callable[[], float] = random.random,
    ) -> None:
        """`cache`: that of the model that is asked first. None: it has none. `random` returns
        numbers in [0, 1).
        """
        self._agent, self.stats, self._random = agent, stats, random
        self._store, self._clock, self._live = gateway.store, gateway.clock, gateway.live
        self._history, self._model, self._cache = history, model, cache
        self._summarizer = summarizer
        self._retry_at_s: dict[ConversationId, float] = {}
        """Monotonic time of the next try in conversations where the last one failed."""

    @property
    def usable_tokens(self) -> int:
        """Tokens of the model's window that prompts may take."""
        return usable_tokens(self._model.context_tokens, self._model.max_output_tokens)

    def _is_full(self, history: HistoryView, share: float) -> bool:
        """Return whether the last prompt took that share of the usable window, as its provider
        counted.

        False if the view was folded since.
        """
        newest = next(history.turns_since_fold(), None)
        return newest is not None and newest.record.prompt_tokens >= share * self.usable_tokens

    async def fold_if_due(
        self,
        place: Address,
        history: HistoryView,
        host: FoldHost,
        *,
        fixed_tokens: int,
        rendered: RenderedInput,
        attempts: int = 0,
        is_requested: bool = False,
    ) -> tuple[HistoryView, bool, bool]:
        """Fold the view if that is due. Return the view, whether it was folded, and whether the
        agent is to be asked to write down what it needs, because it will be folded soon.

        `fixed_tokens`: in front of the conversation, estimated. `rendered`: new input. `attempts`:
        number of times that the provider has refused the request as too long. `is_requested`:
        somebody wants a fold, whatever it saves. Where a summary fails, the plan without one is
        carried out. Raises StoreError.
        """
        settings = self._live.optimization
        new = estimate_tokens(rendered.text) + estimate_media_tokens(rendered.media)
        used = int(fixed_tokens * history.scale)
        billed = (history.tokens + new) * history.scale
        is_nearly_full = used + int(billed) >= NUDGE_AT * self.usable_tokens
        nudges = (
            self._model.takes_tools
            and not (attempts or is_requested)
            and (is_nearly_full or self._is_full(history, NUDGE_AT))
            and not any(turn.record.nudged for turn in history.turns_since_fold())
        )
        limit, least = int(self.usable_tokens * (1.0 if nudges else FOLD_AT)), MIN_BUDGET_TOKENS
        budget = limit - used
        above = int(self.usable_tokens * settings.compaction.compact_at_pct) - used
        if is_requested:  # as if the present size were just too large
            budget = above = min(budget, int(billed) - 1)
            least = 0
        inner = is_inner(place.conversation)
        budget = min(budget, MAX_INNER_TOKENS) if inner else budget
        is_summarising = "compaction" in self._live.enabled[self._agent] and not inner
        budget, compact_above = max(least, budget), above if is_summarising else None
        is_full = not nudges and self._is_full(history, FOLD_AT)
        too_large = billed > budget or (compact_above is not None and billed > compact_above)
        pressed = attempts > 0 or is_full or too_large
        over_images = count_turns_over_image_limit(history, rendered)
        if not (
            pressed or over_images or any(turn.raw.steps for turn in history.turns)
        ):  # most conversations have no results to shorten
            return history, False, nudges
        forecast = UNKNOWN_FORECAST
        if self._cache is not None:
            forecast = self._cache.forecast(self._agent, place.conversation)
        # After a restart the state of the cache is unknown; only what is older than any is cold.
        is_old = not history.turns or self._clock.now() - history.turns[-1].at > COLD_AFTER
        situation = CompactionParams(
            budget=budget,
            spared=history.fold.spared if history.fold is not None else 0,
            new=new,
            head=history.head_tokens,
            scale=history.scale,
            full=is_full,
            cold=is_old if forecast.is_cold is None else forecast.is_cold,
            read=forecast.read_share,
            write=forecast.write_share,
            ahead=forecast.expected_requests,
            keep_results=2,
            policy=settings.folds.policy,
            force=attempts,
            compact_above=compact_above,
            keep_tail=settings.compaction.tail_keep_tokens,
        )
        view = await self._fold(
            place,
            history,
            host,
            situation,
            pressed=pressed,
            over_images=over_images,
            is_requested=is_requested,
        )
        return view or history, view is not None, nudges and view is None

    async def _is_summarised_lately(self, conversation: ConversationId) -> bool:
        """Return whether fewer turns than `TURNS_BETWEEN_SUMMARIES` have ended since the newest
        summary.
        """
        turns = await self._store.newest_entries(
            TURNS_BETWEEN_SUMMARIES, kinds=["turn_ended"], conversation=conversation
        )
        since = turns[0].seq if len(turns) == TURNS_BETWEEN_SUMMARIES else 0
        folds = await self._store.entries(after=since, kinds=["folded"], conversation=conversation)
        return any(
            isinstance(one.fact, ViewFolded) and one.fact.summary is not None for one in folds
        )

    async def _fold(
        self,
        place: Address,
        history: HistoryView,
        host: FoldHost,
        situation: CompactionParams,
        *,
        pressed: bool,
        over_images: int,
        is_requested: bool,
    ) -> HistoryView | None:
        """Return the folded view. None: nothing is to be folded."""
        conversation = place.conversation
        journal = (
            await self._load_journal(conversation)
            if (pressed or over_images) and history.turns
            else []
        )
        written = journal[-1][0] if journal and pressed else None
        decision, summary = _decide(history, situation, written, over_images), None
        if (
            decision.needs_summary
            and not is_requested
            and await self._is_summarised_lately(conversation)
        ):
            situation = replace(situation, compact_above=None)
            decision = _decide(history, situation, written, over_images)
        if decision.needs_summary:
            result = await self.summarise(
                place,
                await host.build_summary_request(history),
                host,
                leaving=decision.start,
                tail=len(history.turns) - decision.start,
                tokens_before=sum(turn.tokens for turn in history.turns[: decision.start]),
                most_tokens=min(SUMMARY_TOKENS, max(200, decision.head)),
            )
            summary = result if isinstance(result, CompactionSummary) else None
            if summary is None:
                situation = replace(situation, compact_above=None)
                decision = _decide(history, situation, written, over_images)
        if not decision.kinds:
            if decision.verdict:
                logger.debug("%s: not folded: %s", conversation, decision.verdict)
            return None
        label = history.label | host.label
        folded = self._build_fold(history, decision, summary, journal, label=label)
        logger.info(
            "%s: folded (%s): %s", conversation, ", ".join(decision.kinds), decision.verdict
        )
        return await self._history.apply_fold(conversation, history, folded)

    async def _load_journal(
        self, conversation: ConversationId
    ) -> list[tuple[datetime, NoteWritten]]:
        """Return the newest notes of the conversation, oldest first, each with its time."""
        found = await self._store.newest_entries(200, kinds=["noted"], conversation=conversation)
        forgotten = await self._store.forgotten_notes([one.seq for one in found])
        return [
            (one.at, one.fact)
            for one in found
            if isinstance(one.fact, NoteWritten) and one.seq not in forgotten
        ]

    def _build_fold(
        self,
        history: HistoryView,
        decision: CompactionPlan,
        summary: CompactionSummary | None,
        journal: Sequence[tuple[datetime, NoteWritten]],
        *,
        label: Label,
    ) -> ViewFolded:
        """`label`: label of the view, and of all that its summary was made from."""
        before = history.fold or ViewFolded(start=Seq(0), reason="")
        carried = summary.text if summary is not None else before.carried
        text = before.head
        if decision.start:
            text = self._build_head(history, decision, carried, journal)
            label = label | join(noted.label for _, noted in journal)
        elif "drop" in decision.kinds and text:  # it was made for a larger window
            text = shrink_head(text, decision.head)
        if summary is not None:
            summary = replace(summary, tokens_after=estimate_tokens(text))
        summed, trimmed = (
            history.seq_at(index) if index else Seq(0)
            for index in (decision.summed, decision.trimmed)
        )
        return ViewFolded(
            start=history.seq_at(decision.start) if decision.start else before.start,
            reason=decision.verdict,
            head=text,
            carried=carried,
            summed=max(before.summed, summed),
            trimmed=max(before.trimmed, trimmed),
            spared=decision.spared,
            kinds=decision.kinds,
            summary=summary,
            label=label,
        )

    def _build_head(
        self,
        history: HistoryView,
        decision: CompactionPlan,
        summary: str,
        journal: Sequence[tuple[datetime, NoteWritten]],
    ) -> str:
        """Return the text that stands for the turns that leave, and for earlier ones."""
        leaving = history.turns[: decision.start]
        texts = [text for turn in leaving for text in (turn.raw.input_text, turn.raw.reply)]
        return render_head(
            FoldedTurns(
                handle=f"v{leaving[0].seq}-{history.seq_at(decision.start)}"
                if self._model.takes_tools
                else "",
                turns=len(leaving),
                since=leaving[0].at,
                until=leaving[-1].at,
                has_earlier=bool(history.head),
            ),
            summary=summary,
            journal=journal,
            exact=extract_identifiers(texts, kept=extract_exact_names(history.head)),
            last_request=next(
                (turn.raw.input_text for turn in reversed(leaving) if turn.is_addressed), ""
            ),
            budget_tokens=decision.head,
        )

    async def summarise(
        self,
        place: Address,
        request: ModelRequest,
        host: FoldHost,
        *,
        leaving: int,
        tail: int,
        tokens_before: int,
        most_tokens: int = SUMMARY_TOKENS,
    ) -> CompactionSummary | str:
        """Return a summary of all but the last `tail` exchanges of a request's conversation; a
        text: why there is none, without secrets. Raises StoreError.

        Its `tokens_after` counts the text alone: the head that holds it does not exist yet.

        `request`: as the next turn would begin it, so that the cached prefix is read. `leaving`:
        number of turns that would leave the view, `tokens_before` their approximate size. What was
        spent is added to `host.preparation`, also on cancellation; then the lock is released first.
        """
        if leaving <= 0:
            self.stats.count(self._agent, "no_boundary")
            return "nothing can leave the view"
        began_s, spent = self._clock.monotonic(), TurnProgress()
        if self._retry_at_s.get(place.conversation, began_s) > began_s:
            return "the last try failed a moment ago"
        ttl_s = float(self._live.optimization.compaction.lock_ttl_seconds)
        async with acquire_compaction_lock(
            self._store, self._clock, place.conversation, ttl_s
        ) as is_held:
            if not is_held:
                self.stats.count(self._agent, "lock_held")
                return "a summary of it is being made"
            asking = self._request_draft(request, host, spent, tail=tail, most_tokens=most_tokens)
            try:
                draft, tries = await with_timeout(self._clock, ttl_s * TTL_SHARE, asking)
            except TimeoutError:
                draft, tries = (
                    SummaryDraft(reason=f"there was none after {ttl_s * TTL_SHARE:.0f} s"),
                    0,
                )
            finally:
                host.preparation.add(spent.current)
        took_s, done = self._clock.monotonic() - began_s, spent.current
        self.stats.count(self._agent, "ok" if draft.text else "failed", took_s)
        if not draft.text:
            self._retry_at_s[place.conversation] = began_s + ttl_s
            logger.warning(
                "%s: there is no summary of %s: %s", self._agent, place.conversation, draft.reason
            )
            return draft.reason
        return CompactionSummary(
            text=draft.text,
            turns=leaving,
            tokens_before=tokens_before,
            tokens_after=estimate_tokens(draft.text),
            tries=tries,
            took_s=took_s,
            model=done.model,
            usage=done.usage,
            cost_usd=_total_cost_usd(done.accounts, done.requests),
        )

    async def _request_draft(
        self,
        request: ModelRequest,
        host: FoldHost,
        spent: TurnProgress,
        *,
        tail: int,
        most_tokens: int,
    ) -> tuple[SummaryDraft, int]:
        """Return the summary, or why there is none, and the number of requests."""
        draft = SummaryDraft()
        for tries in range(1, MAX_TRIES + 1):
            summary_request = adapt_request(
                build_summary_request(request, tail=tail, most_tokens=most_tokens, hint=draft.hint),
                self._summarizer,
            )
            if not await host.can_afford_now(summary_request):
                return SummaryDraft(reason=OVER_BUDGET), tries
            draft, wait_s = await self._try(summary_request, most_tokens, spent)
            if draft.text or wait_s is None or tries == MAX_TRIES:
                return draft, tries
            await self._clock.sleep(
                max(wait_s, FIRST_WAIT_S * WAIT_FACTOR ** (tries - 1) * (1 + self._random() / 2))
            )
        return draft, MAX_TRIES

    async def _try(
        self, request: ModelRequest, most_tokens: int, spent: TurnProgress
    ) -> tuple[SummaryDraft, float | None]:
        """Return the draft of one request, and the least wait before the next. None: asking again
        does not help.
        """
        try:
            answer = await ask_model(self._summarizer, request, spent)
        except ModelError as error:
            spent.record_lost(error.accounts)
            hint_s = error.retry_after_s or 0.0 if isinstance(error, ModelBusy) else None
            return SummaryDraft(
                reason=error.reason
            ), None if hint_s is None or hint_s > MAX_HINT_S else hint_s
        spent.record_answer(answer.end, self._summarizer, 0)
        called = bool(answer.calls)
        return judge_summary(
            answer.text, stop=answer.end.stop_reason, called=called, most_tokens=most_tokens
        ), 0.0


def _decide(
    history: HistoryView, params: CompactionParams, written: datetime | None, over_images: int
) -> CompactionPlan:
    """Return the plan, with which at least the first `over_images` turns leave."""
    decision = plan_compaction(history.sizes(written=written), params)
    if over_images <= decision.start:
        return decision
    verdict = f"{decision.verdict}; more images than one request takes".strip("; ")
    kinds = decision.kinds if "drop" in decision.kinds else (*decision.kinds, "drop")
    head = max(decision.head, int(params.budget * KEEP_SHARE * HEAD_SHARE))
    return replace(decision, start=over_images, kinds=kinds, head=head, verdict=verdict)
