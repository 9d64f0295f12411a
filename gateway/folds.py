"""Makes views smaller when that is due: asks the planner, and carries out what it says in one log entry."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_

from agent import folding, view
from agent.cache.outlook import CacheForecast
from agent.folding import CompactionParams, CompactionPlan
from agent.head import FoldedTurns, extract_exact_names, render_head, shrink_head
from agent.journal import JournalEntry
from agent.models.base import Model
from agent.summary import SUMMARY_TOKENS, extract_identifiers
from gateway.cards import COLD_AFTER
from gateway.clock import Clock
from gateway.compacting import Summarizer
from gateway.events import Address, ConversationId
from gateway.fitting import count_turns_over_image_limit
from gateway.labels import TrustLabel, label_of_note
from gateway.past import HistoryView
from gateway.pressure import CompactionInput, ContextBudget, compute_context_budget, is_window_filled
from gateway.records import CompactionSummary, FoldDecision, NoteWritten, Seq, ViewFolded
from gateway.settings_context import ContextOptimizationConfig
from gateway.store import Store
from gateway.views import HistoryStore

logger = logging.getLogger("reverie.folds")

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
        weighed = FoldDecision(situation=folding.dump_params(situation), written=written, verdict=decision.verdict)
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
        decision = folding.plan_compaction(seen.sizes(written=written), at)
        start = count_turns_over_image_limit(seen, want.rendered)
        if start <= decision.start:
            return decision
        verdict = f"{decision.verdict}; more images than one request takes".strip("; ")
        kinds = decision.kinds if "drop" in decision.kinds else (*decision.kinds, "drop")
        head = max(decision.head, int(at.budget * folding.KEEP_SHARE * folding.HEAD_SHARE))
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
