"""Turns as a text, for whoever asks for those that are not in view any more. Pure."""

from collections.abc import Iterator
from datetime import datetime

from agent.stubs import result_source
from gateway.records import Seq, TurnRecord


def render_turn_transcript(seq: Seq, at: datetime, turn: TurnRecord) -> str:
    """One turn: what was heard, which tools were used, where their results are, what was said. Word for word.

    Ends with an empty line. Nothing, for a turn in which nothing was heard or done.
    """
    told = [line for line in _transcript_lines(seq, turn) if line]
    return "\n".join([f"== {at:%Y-%m-%d %H:%M} UTC ==", *told, "", ""]) if told else ""


def _transcript_lines(seq: Seq, turn: TurnRecord) -> Iterator[str]:
    yield turn.heard
    number = 0
    for step in turn.steps:
        yield f"[you, meanwhile] {step.text}" if step.text else ""
        for called in step.calls:
            number += 1
            asked = f"[you called {called.name} {called.arguments}"
            whole = result_source(seq, number, called)
            yield f"{asked}]" if called.ended else f"{asked} -> {whole.handle}, {whole.chars} characters]"
        yield step.heard
    if turn.text and turn.outcome != "failed":
        yield f"[you] {turn.text}"
    elif turn.outcome == "interrupted":
        yield "[you were interrupted]"
    elif turn.heard:
        yield "[you said nothing]"
