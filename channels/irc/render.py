"""Markdown into lines with mIRC formatting (https://modern.ircdocs.horse/formatting). Pure.

Only bold and italic become codes: they lose nothing where a client ignores them. What would be lost there
stays Markdown: `~~wrong~~`, `||secret||` and the backticks of `code`.

mIRC formatting that comes in, told in our Markdown (https://modern.ircdocs.horse/formatting). Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from channels.markdown import Mark, TextRun, parse_markdown
from channels.split import split_text
from channels.text import clean_text

FORMATTING = (
    "IRC shows plain lines: **bold**, *italic*, lists and `code` survive, headings become bold, code blocks lose their "
    "fences, tables do not work; every line is a message of its own and many come in pages, so keep it short."
)
BOLD, ITALIC = "\x02", "\x1d"
_COLOURS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?")
_MARK_CODES: dict[Mark, str] = {"bold": BOLD, "heading": BOLD, "italic": ITALIC}
_LITERAL_SIGNS: dict[Mark, str] = {"strike": "~~", "spoiler": "||"}
_TICKS = re.compile("`+")
_TOGGLE_BYTES = 4
"""Room to close and open again what a cut goes through: two toggles, one byte each, on either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedLine:
    """One line as it is shown: not blank, without CR, LF or NUL."""

    text: str
    is_code: bool = False
    """It stands in a code block: byte for byte, no formatting."""
    after_blank: bool = False
    """A blank line (which IRC cannot show) stood before it."""


def strip_formatting(text: str) -> str:
    """What was said on IRC, on one line, without its formatting and control characters."""
    return clean_text(strip_colours(text)).replace("\t", " ").replace("\n", " ")


def strip_colours(text: str) -> str:
    """`text` without codes that take arguments."""
    return _COLOURS.sub("", text)


def render(markdown: str) -> tuple[RenderedLine, ...]:
    """The lines to show, at least one. Formatting ends with each line and begins again on the next.

    Blank lines are left out, in code too; code blocks lose their fences.
    """
    writer = _LineWriter()
    runs = parse_markdown(markdown)
    for index, run in enumerate(runs):
        last = index + 1 == len(runs) or runs[index + 1].href != run.href
        writer.write(run, runs[index - 1] if index else None, ends_link=last)
    return writer.lines() or (RenderedLine(text="\ufffd"),)


def split_line(line: str, limit_bytes: int) -> tuple[str, ...]:
    """One rendered line as pieces of at most `limit_bytes`; formatting goes on across a cut."""
    if BOLD not in line and ITALIC not in line:
        return split_text(line, limit_bytes)
    if len(line.encode("utf-8", "replace")) <= limit_bytes:
        return (line,)
    pieces, opened = [], ""
    # To Python, \x1d is white space, which a cut may drop; \x01 is not, and stands in no rendered line.
    for held in split_text(line.replace(ITALIC, "\x01"), limit_bytes - _TOGGLE_BYTES):
        piece, begun = held.replace("\x01", ITALIC), opened
        for mark in piece:
            if mark in (BOLD, ITALIC):
                opened = opened.replace(mark, "") if mark in opened else opened + mark
        if piece.strip(BOLD + ITALIC + " "):
            pieces.append(begun + piece + opened)
    return tuple(pieces)


class _LineWriter:
    """Puts runs together to lines."""

    def __init__(self) -> None:
        self._lines: list[RenderedLine] = []
        self._line: list[str] = []
        self._active_codes: list[str] = []
        """Formatting that is on, in the order it was begun."""
        self._is_code = False
        self._after_blank = False
        self._active_signs: list[str] = []
        self._label: list[str] = []
        """What the link that is being written says so far."""

    def write(self, run: TextRun, before: TextRun | None, *, ends_link: bool) -> None:
        self._toggle_literal(run)
        if "pre" in run.marks:
            for index, line in enumerate(run.text.split("\n")):
                if index:
                    self._end_line()
                self._is_code = True
                self._add_text(line, run)
            return
        text = _in_backticks(run.text) if "code" in run.marks else run.text
        for index, line in enumerate(text.split("\n")):
            if index:
                self._end_line()
            self._add_text(line, run)
        if run.href:
            self._label = [*(self._label if before and before.href == run.href else []), run.text]
            if ends_link and (target := _link_target("".join(self._label), run.href)):
                self._add_text(target, run)

    def lines(self) -> tuple[RenderedLine, ...]:
        self._toggle_literal(None)
        self._end_line()
        return tuple(self._lines)

    def _add_text(self, text: str, run: TextRun) -> None:
        if not text:
            return
        self._begin_line(run)
        if not self._is_code:
            wanted = _format_codes(run)
            # White space turns nothing on.
            self._set_format(wanted if text.strip() else [code for code in self._active_codes if code in wanted])
        self._line.append(text)

    def _begin_line(self, run: TextRun) -> None:
        if not self._line and "quote" in run.marks:
            self._line.append("> ")

    def _set_format(self, wanted: Sequence[str]) -> None:
        """Turn formatting off and on until it is `wanted`."""
        for code in reversed(self._active_codes.copy()):
            if code not in wanted:
                self._line.append(code)
                self._active_codes.remove(code)
        for code in wanted:
            if code not in self._active_codes:
                self._line.append(code)
                self._active_codes.append(code)

    def _toggle_literal(self, run: TextRun | None) -> None:
        """Write the signs of what ends before `run` and begins with it."""
        wanted = [sign for mark, sign in _LITERAL_SIGNS.items() if run and mark in run.marks]
        if wanted == self._active_signs:
            return
        # No formatting in them that was not in what they stand around.
        self._set_format([code for code in self._active_codes if run and code in _format_codes(run)])
        self._line += [sign for sign in reversed(self._active_signs) if sign not in wanted]
        if run:
            self._begin_line(run)
        self._line += [sign for sign in wanted if sign not in self._active_signs]
        self._active_signs = wanted

    def _end_line(self) -> None:
        text = "".join(self._line)
        text = text if self._is_code else text.rstrip(" \t")
        if text.strip().strip(BOLD + ITALIC).strip():
            self._lines.append(
                RenderedLine(
                    text=text + "".join(self._active_codes),
                    is_code=self._is_code,
                    after_blank=self._after_blank and bool(self._lines),
                )
            )
            self._after_blank = False
        else:
            self._after_blank = True
        self._line, self._active_codes, self._is_code = [], [], False


def _format_codes(run: TextRun) -> list[str]:
    return [_MARK_CODES[mark] for mark in sorted(run.marks) if mark in _MARK_CODES]


def _in_backticks(code: str) -> str:
    """Inline code with backticks around it, more of them than stand together in it."""
    ticks = "`" * (max((len(found) for found in _TICKS.findall(code)), default=0) + 1)
    pad = " " if "`" in code else ""
    return f"{ticks}{pad}{code}{pad}{ticks}"


def _link_target(label: str, href: str) -> str:
    """Where a link leads, to stand behind its label; empty if the label says so itself."""
    shown = " ".join(href.split())
    return "" if label in {href, href.removeprefix("mailto:")} else f" ({shown})"


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
