"""What a turn asks of a view, and whether there is room for it. Pure."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agent import view
from agent.models.base import ModelRequest
from agent.outcome import TurnProgress
from gateway.fitting import RenderedInput
from gateway.labels import UNKNOWN_LABEL, TrustLabel
from gateway.past import HistoryView
from gateway.settings_context import ContextOptimizationConfig

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
