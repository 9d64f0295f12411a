"""How the turns in view are told: whole, with old results as stubs, or with the tool loop as one summary. Pure.

The log has every turn whole; what is told of it follows from that and from `Marks`, which change in folds only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from agent import loops, steps
from agent.brief import Exchange
from agent.stubs import cleared, stubs
from agent.view import estimate_tokens


class Form(StrEnum):
    """How a turn is told, gentlest first."""

    WHOLE = "whole"
    TRIMMED = "trimmed"
    """Old results are stubs with handles, and calls that are kept elsewhere are gone."""
    SUMMED = "summed"
    """The tool loop is one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Where in the view which form begins, as the newest fold has it. Positions are those of turns in the log."""

    summed: int = 0
    """Turns in front of this position are SUMMED."""
    trimmed: int = 0
    """Turns in front of this position, and not of `summed`, are TRIMMED."""
    spared: int = 0
    """So many of the newest results of TRIMMED turns are whole all the same."""
    excerpts_tokens: int = 0
    """So much of the results of SUMMED turns is told word for word, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A turn as the log has it."""

    seq: int
    """Where its record stands: what handles of its results begin with."""
    exchange: Exchange


def form(seq: int, marks: Marks) -> Form:
    """Which form a turn has."""
    if seq < marks.summed:
        return Form.SUMMED
    return Form.TRIMMED if seq < marks.trimmed else Form.WHOLE


def project(turns: Sequence[Raw], marks: Marks) -> tuple[Exchange, ...]:
    """The turns as they are told, oldest first. The same object for a turn that is told as it was.

    What is told of a turn depends on no turn behind `marks.trimmed`: the view only grows at its end.
    """
    told, spared, excerpts = list[Exchange](), marks.spared, marks.excerpts_tokens
    for turn in reversed(turns):
        match form(turn.seq, marks):
            case Form.WHOLE:
                told.append(turn.exchange)
            case Form.TRIMMED:
                found = stubs(turn.seq, turn.exchange)
                clear = max(0, len(found) - spared)
                spared -= len(found) - clear
                told.append(cleared(turn.exchange, dict(islice(found.items(), clear))))
            case Form.SUMMED:
                exchange, taken = _summed(turn, excerpts)
                excerpts -= taken
                told.append(exchange)
    return tuple(reversed(told))


def trimmed(turn: Raw) -> Exchange:
    """The turn with all of its old results cleared."""
    return cleared(turn.exchange, stubs(turn.seq, turn.exchange))


def summed(turn: Raw) -> Exchange:
    """The turn with its tool loop told as one text, without excerpts; trimmed, if that takes less."""
    return _summed(turn, 0)[0]


def _summed(turn: Raw, excerpts_tokens: int) -> tuple[Exchange, int]:
    """With excerpts, as many as fit; and how much those took."""
    exchange, gentler = loops.summed(turn.seq, turn.exchange), trimmed(turn)
    if size(exchange) >= size(gentler):
        return gentler, 0
    most = min(excerpts_tokens, size(turn.exchange) - size(exchange))
    found = loops.excerpts(turn.seq, turn.exchange, most)
    if not found:
        return exchange, 0
    longer = replace(exchange, loop_summary=f"{exchange.loop_summary}\n{found}")
    return longer, size(longer) - size(exchange)


def size(exchange: Exchange) -> int:
    """Tokens that it takes where it is repeated, roughly, without its images."""
    told = sum(estimate_tokens(text) for text in (exchange.input_text, exchange.reply))
    told += estimate_tokens(exchange.loop_summary) if exchange.loop_summary else 0
    if exchange.without_tools:
        return told + sum(estimate_tokens(text.text) for text in steps.overheard(exchange.steps))
    return told + steps.tokens(exchange.steps)
