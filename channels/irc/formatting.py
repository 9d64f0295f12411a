"""mIRC formatting that comes in, told in our Markdown (https://modern.ircdocs.horse/formatting). Pure."""

import re
from dataclasses import dataclass

from channels.irc.render import BOLD, ITALIC, strip_colours, strip_formatting

_RESET = "\x0f"
_MARKS = {BOLD: "**", ITALIC: "*", "\x1e": "~~", "\x11": "`"}


@dataclass(frozen=True, slots=True)
class _FormatSpan:
    start: int
    end: int
    mark: str

    def nests_with(self, other: "_FormatSpan") -> bool:
        """Whether both can be marked: apart from each other, or one around the other, and no marks in code."""
        if self.start > other.end or other.start > self.end:
            return True
        outer, inner = sorted((self, other), key=lambda span: (span.start - span.end, span.mark == "`"))
        return outer.start <= inner.start and inner.end <= outer.end and outer.mark != "`"


def to_markdown(text: str) -> str:
    """What was said, with bold, italic, struck and monospaced text in Markdown where that says the same.

    Without the marks it is `plain(text)`: what would be unclear as Markdown (inside a word, around that very mark,
    crossing another) is left unmarked, and so are colours, underlining and reverse video.
    """
    if not any(code in text for code in _MARKS):
        return strip_formatting(text)
    said, spans = _parse_spans(strip_colours(text))
    kept: list[_FormatSpan] = []
    for span in spans:
        if _is_unambiguous(said, span) and all(span.nests_with(other) for other in kept):
            kept.append(span)
    # From the outside in, and out again. None begins where another ends.
    kept.sort(key=lambda span: (span.start, -span.end, span.mark == "`"))
    begins = [(span.start, 1, depth, span.mark) for depth, span in enumerate(kept)]
    ends = [(span.end, 0, -depth, span.mark) for depth, span in enumerate(kept)]
    pieces, done = [], 0
    for at, *_, mark in sorted(ends + begins):
        pieces += [said[done:at], mark]
        done = at
    return "".join([*pieces, said[done:]])


def _parse_spans(text: str) -> tuple[str, list[_FormatSpan]]:
    """The plain text, and what is formatted in it, in order of the beginnings. What is left open ends with the line."""
    said: list[str] = []
    opened: dict[str, int] = {}
    spans: list[_FormatSpan] = []
    length = 0
    for piece in re.split(f"([{''.join(_MARKS)}{_RESET}])", text + _RESET):
        if piece in _MARKS and piece not in opened:
            opened[piece] = length
        elif piece in _MARKS or piece == _RESET:
            ended = [piece] if piece in _MARKS else list(opened)
            spans += [_FormatSpan(opened.pop(code), length, _MARKS[code]) for code in ended]
        else:
            said.append(strip_formatting(piece))
            length += len(said[-1])
    whole = "".join(said)
    return whole, sorted(_trim_spans(whole, spans), key=lambda span: (span.start, -span.end))


def _trim_spans(said: str, spans: list[_FormatSpan]) -> list[_FormatSpan]:
    """The same without the white space at their edges, and without empty ones."""
    tight = []
    for span in spans:
        inside = said[span.start : span.end]
        if inside.strip():
            start = span.start + len(inside) - len(inside.lstrip())
            tight.append(_FormatSpan(start, start + len(inside.strip()), span.mark))
    return tight


def _is_unambiguous(said: str, span: _FormatSpan) -> bool:
    """Whether marks there are read as marks: not inside a word, and not around their own kind."""
    edges = said[span.start - 1 : span.start] + said[span.end : span.end + 1]
    return span.mark[0] not in said[span.start : span.end] + edges and not any(
        char.isalnum() or char in "_\\" for char in edges
    )
