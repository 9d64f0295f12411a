"""How the turns in view are told: whole, with old results as stubs, or with the tool loop as one summary. Pure.

The log has every turn whole; what is told of it follows from that and from `ViewMarks`, which change in folds only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from agent import loops, steps
from agent.brief import PromptTurn
from agent.stubs import build_stubs, clear_results
from agent.view import estimate_tokens


class TurnForm(StrEnum):
    """How a turn is told, gentlest first."""

    WHOLE = "whole"
    TRIMMED = "trimmed"
    """Old results are stubs with handles, and calls that are kept elsewhere are gone."""
    SUMMED = "summed"
    """The tool loop is one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMarks:
    """Where in the view which form begins, as the newest fold has it. Positions are those of turns in the log."""

    summed: int = 0
    """Turns in front of this position are SUMMED."""
    trimmed: int = 0
    """Turns in front of this position, and not of `summarize_turn`, are TRIMMED."""
    spared: int = 0
    """So many of the newest results of TRIMMED turns are whole all the same."""
    excerpts_tokens: int = 0
    """So much of the results of SUMMED turns is told word for word, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTurn:
    """A turn as the log has it."""

    seq: int
    """Where its record stands: what handles of its results begin with."""
    exchange: PromptTurn


def turn_form(seq: int, marks: ViewMarks) -> TurnForm:
    """Which form a turn has."""
    if seq < marks.summed:
        return TurnForm.SUMMED
    return TurnForm.TRIMMED if seq < marks.trimmed else TurnForm.WHOLE


def project_turns(turns: Sequence[LoggedTurn], marks: ViewMarks) -> tuple[PromptTurn, ...]:
    """The turns as they are told, oldest first. The same object for a turn that is told as it was.

    What is told of a turn depends on no turn behind `marks.trimmed`: the view only grows at its end.
    """
    told, spared, excerpts = list[PromptTurn](), marks.spared, marks.excerpts_tokens
    for turn in reversed(turns):
        match turn_form(turn.seq, marks):
            case TurnForm.WHOLE:
                told.append(turn.exchange)
            case TurnForm.TRIMMED:
                found = build_stubs(turn.seq, turn.exchange)
                clear = max(0, len(found) - spared)
                spared -= len(found) - clear
                told.append(clear_results(turn.exchange, dict(islice(found.items(), clear))))
            case TurnForm.SUMMED:
                exchange, taken = _summarize_turn(turn, excerpts)
                excerpts -= taken
                told.append(exchange)
    return tuple(reversed(told))


def trim_turn(turn: LoggedTurn) -> PromptTurn:
    """The turn with all of its old results cleared."""
    return clear_results(turn.exchange, build_stubs(turn.seq, turn.exchange))


def summarize_turn(turn: LoggedTurn) -> PromptTurn:
    """The turn with its tool loop told as one text, without excerpts; trimmed, if that takes less."""
    return _summarize_turn(turn, 0)[0]


def _summarize_turn(turn: LoggedTurn, excerpts_tokens: int) -> tuple[PromptTurn, int]:
    """With excerpts, as many as fit; and how much those took."""
    exchange, gentler = loops.summarize_tool_loop(turn.seq, turn.exchange), trim_turn(turn)
    if estimate_turn_size(exchange) >= estimate_turn_size(gentler):
        return gentler, 0
    most = min(excerpts_tokens, estimate_turn_size(turn.exchange) - estimate_turn_size(exchange))
    found = loops.excerpt_results(turn.seq, turn.exchange, most)
    if not found:
        return exchange, 0
    longer = replace(exchange, loop_summary=f"{exchange.loop_summary}\n{found}")
    return longer, estimate_turn_size(longer) - estimate_turn_size(exchange)


def estimate_turn_size(exchange: PromptTurn) -> int:
    """Tokens that it takes where it is repeated, roughly, without its images."""
    told = sum(estimate_tokens(text) for text in (exchange.input_text, exchange.reply))
    told += estimate_tokens(exchange.loop_summary) if exchange.loop_summary else 0
    if exchange.without_tools:
        return told + sum(estimate_tokens(text.text) for text in steps.arrived_texts(exchange.steps))
    return told + steps.estimate_step_tokens(exchange.steps)
