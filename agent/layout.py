"""How many tokens turns take in view, for each way to tell them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agent.projection import LoggedTurn, TurnForm, estimate_turn_size, summarize_turn, trim_turn
from agent.stubs import build_stubs, estimate_call_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSizes:
    """One turn in view, in tokens, images included. Made so that `whole >= trimmed >= summed`."""

    whole: int
    trimmed: int
    """With no result spared."""
    summed: int
    """Without excerpts."""
    form: TurnForm = TurnForm.WHOLE
    """As it is told now."""
    results: tuple[int, ...] = ()
    """What each result that a trim would clear saves, oldest first; together `whole - trimmed` at most. What else a
    trim saves (calls that are kept elsewhere) has no part in it."""
    requests: int = 1
    """Model requests that it made."""
    is_in_journal: bool = False
    """The newest journal entry of this place was written after it ended."""

    def __post_init__(self) -> None:
        trimmed = min(self.trimmed, self.whole)
        object.__setattr__(self, "trimmed", trimmed)
        object.__setattr__(self, "summed", min(self.summed, trimmed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShape:
    """How a view is told, as `agent.folding.CompactionPlan` has it."""

    start: int = 0
    summed: int = 0
    trimmed: int = 0
    spared: int = 0


def measure_turn(
    turn: LoggedTurn, *, form: TurnForm, images: int = 0, requests: int = 1, covered: bool = False
) -> TurnSizes:
    """Measure a turn in each form. `images`: tokens of what was shown with it."""
    found = build_stubs(turn.seq, turn.exchange)
    calls = [called for step in turn.exchange.steps for called in step.calls]
    return TurnSizes(
        whole=estimate_turn_size(turn.exchange) + images,
        trimmed=estimate_turn_size(trim_turn(turn)) + images,
        summed=estimate_turn_size(summarize_turn(turn)) + images,
        form=form,
        results=tuple(
            estimate_call_tokens(calls[number - 1]) - estimate_call_tokens(stub) for number, stub in found.items()
        ),
        requests=requests,
        is_in_journal=covered,
    )


def current_shape(turns: Sequence[TurnSizes], spared: int) -> ViewShape:
    """How the turns are told now."""
    told = [turn.form for turn in turns]
    whole = [place for place, form in enumerate(told, start=1) if form is not TurnForm.WHOLE]
    loops = [place for place, form in enumerate(told, start=1) if form is TurnForm.SUMMED]
    return ViewShape(summed=max(loops, default=0), trimmed=max(whole, default=0), spared=spared)


class FormLimits(Protocol):
    """Where which form begins."""

    @property
    def summed(self) -> int:
        """`turns[:summed]` are SUMMED."""

    @property
    def trimmed(self) -> int:
        """`turns[:trimmed]` are TRIMMED or SUMMED."""


def apply_forms(turns: Sequence[TurnSizes], how: FormLimits) -> list[TurnSizes]:
    """The turns, told like this."""
    return [
        replace(
            turn,
            form=TurnForm.SUMMED if place < how.summed else TurnForm.TRIMMED if place < how.trimmed else TurnForm.WHOLE,
        )
        for place, turn in enumerate(turns)
    ]


def fold_further(
    turns: Sequence[TurnSizes], now: ViewShape, *, start: int = 0, summed: int = 0, trimmed: int = 0, keep: int
) -> ViewShape:
    """The same, folded at least so far, with so many of the newest results whole as far as they are whole now."""
    summed = max(now.summed, summed, start)
    trimmed = max(now.trimmed, trimmed, summed)
    newly = sum(len(turn.results) for turn in turns[now.trimmed : trimmed])
    behind = sum(len(turn.results) for turn in turns[trimmed:])
    return ViewShape(start=start, summed=summed, trimmed=trimmed, spared=max(0, min(keep - behind, now.spared + newly)))


def estimate_turn_tokens(turns: Sequence[TurnSizes], shape: ViewShape, excerpts: int) -> list[int]:
    """What each turn takes. Of excerpts as much is assumed as there can be."""
    taken, spared = list[int](), shape.spared
    for place in range(len(turns) - 1, shape.start - 1, -1):
        turn = turns[place]
        if place < shape.summed:
            told = min(excerpts, turn.whole - turn.summed)
            excerpts -= told
            taken.append(turn.summed + told)
        elif place < shape.trimmed:
            whole = turn.results[max(0, len(turn.results) - spared) :]
            spared -= len(whole)
            taken.append(turn.trimmed + sum(whole))
        else:
            taken.append(turn.whole)
    return [0] * shape.start + taken[::-1]
