"""Makes views smaller when that is due: asks the planner, and carries out what it says in one log entry."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from agent import folding, view
from agent.cache.outlook import Outlook
from agent.folding import Decision, Situation
from agent.head import Left, exact_in, head
from agent.journal import Entry as Written
from agent.models.base import Model, Request
from agent.outcome import Progress
from agent.summary import SUMMARY_TOKENS, identifiers
from gateway.cards import COLD
from gateway.clock import Clock
from gateway.compacting import Compacting
from gateway.events import Address, ConversationId
from gateway.fitting import Told, pictured
from gateway.past import View
from gateway.records import Folded, Noted, Seq, Summarised, Weighed
from gateway.settings_context import ContextOptimization
from gateway.store import Store
from gateway.views import Views

logger = logging.getLogger("reverie.folds")

JOURNAL = 200
"""Newest entries of a place that are looked at for its head."""
EXCERPTS_SHARE = 1 / 8
"""Of the budget may be taken by results of summarised loops."""
_UNFOLDED = Folded(start=Seq(0), reason="")
LEAST_BUDGET = 256
"""Tokens that a conversation has in any case, however much stands in front of it."""
LEAST_SUMMARY = 200
"""Tokens that a summary is asked for, however small the window is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressed:
    """What a turn asks of the view."""

    fixed: int
    """Tokens in front of the conversation, estimated."""
    told: Told = field(default_factory=Told)
    """What is new."""
    tries: int = 0
    """How often the provider has said that it was too long."""
    asked: bool = False
    """Somebody wants it folded, whatever it saves."""
    request: Callable[[View], Awaitable[Request]]
    """How the turn would ask with this view, and nothing new: for whoever summarises it."""
    afford: Callable[[Request], bool] = lambda _: True
    """Whether a summary may be asked for."""
    spent: Progress = field(default_factory=Progress)
    """What was asked for it, at any time."""

    @property
    def new(self) -> int:
        """Tokens of what is new, estimated."""
        return view.estimate_tokens(self.told.heard) + view.images_tokens(self.told.media)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What became of it."""

    view: View
    folded: bool = False
    weighed: Weighed | None = None
    """Why it was not folded, if something could have gone."""


class Folds:
    """Those of one agent."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        views: Views,
        model: Model,
        outlook: Callable[[ConversationId], Outlook],
        said: Callable[[], ContextOptimization],
        compacts: Callable[[], bool],
        compacting: Compacting,
    ) -> None:
        """`compacts`: whether this agent's conversations are summarised by a model."""
        self._store = store
        self._clock = clock
        self._views = views
        self._model = model
        self._outlook = outlook
        self._said = said
        self._compacts = compacts
        self._compacting = compacting

    def usable(self) -> int:
        """Tokens of the model's window that prompts may take."""
        return view.usable_tokens(self._model.context_tokens, self._model.max_output_tokens)

    def full(self, seen: View, share: float) -> bool:
        """Whether the last prompt took that share of the usable window, as its provider counted."""
        newest = seen.since_fold()[-1:]
        return bool(newest) and newest[0].billed[0] >= share * self.usable()

    async def due(self, place: Address, seen: View, want: Pressed) -> Due:
        """Fold if it is due. What is wanted by a summary that fails goes on unchanged. Raises StoreError."""
        conversation = place.conversation
        situation = self._situation(conversation, seen, want)
        pressed = situation.force > 0 or situation.full or self._heavy(seen, situation)
        journal = await self._journal(conversation) if pressed and seen.turns else []
        written = journal[-1].at if journal else None
        decision = self._decide(seen, situation, written, want)
        made = None
        if decision.summarise:
            made = await self._summarised(place, seen, decision, want)
            if made is None:
                situation = replace(situation, compact_above=None)
                decision = self._decide(seen, situation, written, want)
        weighed = Weighed(situation=folding.dump(situation), written=written, verdict=decision.verdict)
        if not decision.kinds:
            if decision.verdict:
                logger.debug("%s: not folded: %s", conversation, decision.verdict)
            return Due(view=seen, weighed=weighed if decision.verdict else None)
        folded = self._folded(seen, decision, made, journal, weighed)
        logger.info("%s: folded (%s): %s", conversation, ", ".join(decision.kinds), decision.verdict)
        return Due(view=await self._views.fold(conversation, seen, folded), folded=True)

    def _situation(self, conversation: ConversationId, seen: View, want: Pressed) -> Situation:
        said, usable, outlook = self._said(), self.usable(), self._outlook(conversation)
        scale, cleared = seen.scale, seen.cleared
        room = int(usable * said.folds.fold_at_pct) - int(want.fixed * scale) + cleared
        above = int(usable * said.compaction.compact_at_pct) - int(want.fixed * scale) + cleared
        if want.asked:  # as if what is there were just too much
            room = above = min(room, int((seen.tokens + want.new) * scale) - 1)
        budget = max(0 if want.asked else LEAST_BUDGET, room)
        return Situation(
            budget=budget,
            spared=seen.fold.spared if seen.fold is not None else 0,
            excerpts=min(said.folds.completed_evidence_tokens, int(budget * EXCERPTS_SHARE)),
            new=want.new,
            head=seen.head_tokens,
            scale=scale,
            full=self.full(seen, said.folds.fold_at_pct),
            cold=self._cold(seen) if outlook.cold is None else outlook.cold,
            read=outlook.read,
            write=outlook.write,
            ahead=outlook.ahead,
            keep_results=said.folds.keep_recent_tool_results,
            policy="full" if cleared else said.folds.policy,  # what could go gently is not paid for anyway
            force=want.tries,
            compact_above=above if self._compacts() else None,
            keep_tail=said.compaction.tail_keep_tokens,
        )

    def _cold(self, seen: View) -> bool:
        """After a restart nobody knows what is cached; only what is older than any cache is surely not."""
        return not seen.turns or self._clock.now() - seen.turns[-1].at > COLD

    @staticmethod
    def _heavy(seen: View, at: Situation) -> bool:
        tokens = (seen.tokens + at.new) * at.scale
        return tokens > at.budget or (at.compact_above is not None and tokens > at.compact_above)

    def _decide(self, seen: View, at: Situation, written: datetime | None, want: Pressed) -> Decision:
        decision = folding.decide(seen.sizes(written=written), at)
        start = pictured(seen, want.told)
        if start <= decision.start:
            return decision
        verdict = f"{decision.verdict}; more images than one request takes".strip("; ")
        kinds = decision.kinds if "drop" in decision.kinds else (*decision.kinds, "drop")
        return replace(decision, start=start, kinds=kinds, verdict=verdict)

    async def _journal(self, conversation: ConversationId) -> list[Written]:
        """What was written down there, oldest first."""
        found = await self._store.newest(JOURNAL, kinds=["noted"], conversation=conversation)
        return [
            Written(at=one.at, title=one.fact.title, text=one.fact.text, scope=one.fact.scope)
            for one in found
            if isinstance(one.fact, Noted)
        ]

    async def _summarised(self, place: Address, seen: View, decision: Decision, want: Pressed) -> Summarised | None:
        made = await self._compacting.summarise(
            place,
            await want.request(seen),
            leaving=decision.start,
            tail=len(seen.turns) - decision.start,
            tokens_before=sum(turn.tokens for turn in seen.turns[: decision.start]),
            most_tokens=min(SUMMARY_TOKENS, max(LEAST_SUMMARY, decision.head)),
            afford=want.afford,
            progress=want.spent,
        )
        return made.summary

    def _folded(
        self,
        seen: View,
        decision: Decision,
        made: Summarised | None,
        journal: Sequence[Written],
        weighed: Weighed,
    ) -> Folded:
        before = seen.fold or _UNFOLDED
        carried = made.text if made is not None else before.carried
        text = self._head(seen, decision, carried, journal) if decision.start else before.head
        if made is not None:
            made = replace(made, tokens_after=view.estimate_tokens(text))
        summed, trimmed = (seen.place(index) if index else Seq(0) for index in (decision.summed, decision.trimmed))
        return Folded(
            start=seen.place(decision.start) if decision.start else before.start,
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
        )

    def _head(self, seen: View, decision: Decision, summary: str, journal: Sequence[Written]) -> str:
        """What stands in for the turns that leave, and for what stood in for earlier ones."""
        leaving = seen.turns[: decision.start]
        texts = [text for turn in leaving for text in (turn.raw.heard, turn.raw.reply)]
        return head(
            Left(
                handle=f"v{leaving[0].seq}-{seen.place(decision.start)}" if self._model.takes_tools else "",
                turns=len(leaving),
                since=leaving[0].at,
                until=leaving[-1].at,
                earlier=bool(seen.head),
            ),
            summary=summary,
            journal=journal,
            exact=identifiers(texts, kept=exact_in(seen.head)),
            last_request=next((turn.raw.heard for turn in reversed(leaving) if turn.raw.heard), ""),
            budget_tokens=decision.head,
        )
