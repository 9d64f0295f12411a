"""Lines of a pane, and the rows that they take on the screen. Pure."""

from dataclasses import dataclass
from typing import Literal

from gateway.console import text

Tone = Literal["plain", "time", "who", "ours", "head", "thinking", "tool", "result", "good", "bad", "note"]
"""What a piece of text is; the shell knows how that looks."""
StyledSpan = tuple[Tone, str]
StyledRow = tuple[StyledSpan, ...]


@dataclass(frozen=True, slots=True)
class PaneLine:
    """One line, as wide as it is. Its texts come from `text.lines`."""

    spans: StyledRow
    indent: int = 0
    """Cells in front of its second and later rows."""
    tone: Tone = "plain"
    """By which it can be hidden."""


def wrap_line(line: PaneLine, width: int) -> list[StyledRow]:
    """A line in rows of at most `width` cells."""
    whole = "".join(said for _, said in line.spans)
    if len(whole) <= width and (whole.isascii() or text.cell_width(whole) <= width):
        return [line.spans]
    indent = min(line.indent, width // 3)
    pad: StyledRow = (("plain", " " * indent),) if indent else ()
    cuts = text.wrap_cells(whole, width, indent)
    return [(pad if number else ()) + _slice_spans(line.spans, start, end) for number, (start, end) in enumerate(cuts)]


def _slice_spans(spans: StyledRow, start: int, end: int) -> StyledRow:
    at, pieces = 0, list[StyledSpan]()
    for tone, said in spans:
        size = len(said)
        if at < end and start < at + size:
            pieces.append((tone, said[start - at if start > at else 0 : end - at]))
        at += size
    return tuple(pieces)
