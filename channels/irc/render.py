"""Markdown to lines with mIRC formatting, and back (https://modern.ircdocs.horse/formatting). Pure.

Outgoing, only bold and italic become codes: they lose nothing where a client ignores them. Marks
that would be lost there stay Markdown: `~~wrong~~`, `||secret||` and the backticks of `code`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from channels.markdown import BULLET, Mark, TextRun, parse_markdown
from channels.split import split_text
from channels.text import clean_text

BOLD, ITALIC = "\x02", "\x1d"
_RESET = "\x0f"
_MARKS = {BOLD: "**", ITALIC: "*", "\x1e": "~~", "\x11": "`"}
FORMATTING = (
    "IRC shows plain lines: lists and `code` survive, headings become bold, code blocks lose their "
    "fences, tables are aligned. Use **bold** and *italic* seldom. Each line is a separate "
    "message, and long answers are paged: aim for 1 to 4 lines."
)
BLANK_LINE: Final = f" {_RESET}"
"""Blank line of code: a space, and a code that changes nothing, for servers (ngIRCd) drop white
space at the end."""
_COLOURS = re.compile(r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6}(?:,[0-9A-Fa-f]{6})?)?")
_MARK_CODES: dict[Mark, str] = {"bold": BOLD, "heading": BOLD, "italic": ITALIC}
_LITERAL_SIGNS: dict[Mark, str] = {"strike": "~~", "spoiler": "||"}
_TICKS = re.compile("`+")
_COMMAND = re.compile(r"[!.,@~/;$%&+?-](?=[^\W\d_])")
_STARTS_COMMAND = re.compile(rf"[\s{BOLD}{ITALIC}]*{_COMMAND.pattern}")
_GUARD = BULLET
_TOGGLE_BYTES = 4
"""Room to close and reopen formatting at a cut: two toggles, one byte each, on either side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedLine:
    """One line to show: not empty, without CR, LF or NUL."""

    text: str
    is_code: bool = False
    """The line is part of a code block: no formatting, and nothing changed but for
    `guard_command`."""
    after_blank: bool = False
    """A blank line was before it."""
    starts_line: bool = True
    """False: it continues the line before it."""

    @property
    def is_blank(self) -> bool:
        """True for a blank line inside a code block."""
        return self.text == BLANK_LINE


def strip_formatting(text: str) -> str:
    """Return IRC text on one line, without formatting and control characters."""
    return clean_text(strip_colours(text)).replace("\t", " ").replace("\n", " ")


def strip_colours(text: str) -> str:
    """Return `text` without codes that take arguments."""
    return _COLOURS.sub("", text)


def render(markdown: str) -> tuple[RenderedLine, ...]:
    """Return the lines to show, at least one. Formatting ends with each line and begins again on
    the next.

    Blank lines are left out, but for those inside a code block; code blocks lose their fences.
    """
    writer = _LineWriter()
    runs = parse_markdown(markdown)
    for index, run in enumerate(runs):
        last = index + 1 == len(runs) or runs[index + 1].href != run.href
        writer.write(run, runs[index - 1] if index else None, ends_link=last)
    return writer.lines() or (RenderedLine(text="\ufffd"),)


def guard_command(line: str) -> str:
    """Return `line` so that no other bot takes it as a command: not with `!op`, `.ban` or the like
    as its first word.

    White space and formatting are no guard: bots and services drop them.
    """
    return _GUARD + line if _STARTS_COMMAND.match(line) else line


def split_line(line: str, limit_bytes: int) -> tuple[str, ...]:
    """Return one rendered line as pieces of at most `limit_bytes`; formatting continues across a
    cut.

    No piece is another bot's command.
    """
    line = guard_command(line)
    if len(line.encode("utf-8", "replace")) > limit_bytes and _COMMAND.search(line):
        return tuple(map(guard_command, _split_line(line, limit_bytes - len(_GUARD.encode()))))
    return _split_line(line, limit_bytes)


def _split_line(line: str, limit_bytes: int) -> tuple[str, ...]:
    if BOLD not in line and ITALIC not in line:
        return split_text(line, limit_bytes)
    if len(line.encode("utf-8", "replace")) <= limit_bytes:
        return (line,)
    pieces, opened = [], ""
    # To Python, \x1d is white space, which a cut may drop; \x01 is not, and never occurs in a
    # rendered line.
    for held in split_text(line.replace(ITALIC, "\x01"), limit_bytes - _TOGGLE_BYTES):
        piece, begun = held.replace("\x01", ITALIC), opened
        for mark in piece:
            if mark in (BOLD, ITALIC):
                opened = opened.replace(mark, "") if mark in opened else opened + mark
        if piece.strip(BOLD + ITALIC + " "):
            pieces.append(begun + piece + opened)
    return tuple(pieces)


class _LineWriter:
    """Builder of lines from runs."""

    def __init__(self) -> None:
        self._lines: list[RenderedLine] = []
        self._line: list[str] = []
        self._active_codes: list[str] = []
        """Active formatting codes, in the order of their beginning."""
        self._is_code = False
        self._after_blank = False
        self._active_signs: list[str] = []
        self._label: list[str] = []
        """Text of the current link so far."""

    def write(self, run: TextRun, before: TextRun | None, *, ends_link: bool) -> None:
        self._toggle_literal(run)
        if "pre" in run.marks:
            lines = run.text.split("\n")
            filled = [index for index, line in enumerate(lines) if line.strip()]
            for index, line in enumerate(lines):
                if index:
                    self._end_line()
                self._is_code = True
                self._add_text(line, run)
                if not line.strip() and filled and filled[0] < index < filled[-1]:
                    self._lines.append(RenderedLine(text=BLANK_LINE, is_code=True))
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
            # White space starts no formatting.
            self._set_format(
                wanted if text.strip() else [code for code in self._active_codes if code in wanted]
            )
        self._line.append(text)

    def _begin_line(self, run: TextRun) -> None:
        if not self._line and "quote" in run.marks:
            self._line.append("> ")

    def _set_format(self, wanted: Sequence[str]) -> None:
        """Write codes until the active formatting is `wanted`."""
        for code in reversed(self._active_codes.copy()):
            if code not in wanted:
                self._line.append(code)
                self._active_codes.remove(code)
        for code in wanted:
            if code not in self._active_codes:
                self._line.append(code)
                self._active_codes.append(code)

    def _toggle_literal(self, run: TextRun | None) -> None:
        """Write the signs of marks that end before `run` and begin with it."""
        wanted = [sign for mark, sign in _LITERAL_SIGNS.items() if run and mark in run.marks]
        if wanted == self._active_signs:
            return
        # The signs have no formatting that the text inside them lacks.
        self._set_format(
            [code for code in self._active_codes if run and code in _format_codes(run)]
        )
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
                    text=guard_command(text + "".join(self._active_codes)),
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
    """Return inline code in backticks, more of them than occur together in it."""
    ticks = "`" * (max((len(found) for found in _TICKS.findall(code)), default=0) + 1)
    pad = " " if "`" in code else ""
    return f"{ticks}{pad}{code}{pad}{ticks}"


def _link_target(label: str, href: str) -> str:
    """Return the target to write behind a link's label; empty if the label is the target."""
    target = " ".join(href.split())
    return "" if label in {href, href.removeprefix("mailto:")} else f" ({target})"


@dataclass(frozen=True, slots=True)
class _FormatSpan:
    start: int
    end: int
    mark: str

    def nests_with(self, other: "_FormatSpan") -> bool:
        """Return whether both can be marked: apart from each other, or nested, and no marks inside
        code.
        """
        if self.start > other.end or other.start > self.end:
            return True
        outer, inner = sorted(
            (self, other), key=lambda span: (span.start - span.end, span.mark == "`")
        )
        return outer.start <= inner.start and inner.end <= outer.end and outer.mark != "`"


def to_markdown(text: str) -> str:
    """Return IRC text with bold, italic, struck and monospaced text as Markdown, where that is
    unambiguous.

    Without the marks it is `strip_formatting(text)`. Formatting that would be unclear as Markdown
    (inside a word, around that very mark, crossing another) is left unmarked, and so are colours,
    underlining and reverse video.
    """
    if not any(code in text for code in _MARKS):
        return strip_formatting(text)
    plain, spans = _parse_spans(strip_colours(text))
    nested: list[_FormatSpan] = []
    for span in spans:
        if _is_unambiguous(plain, span) and all(span.nests_with(other) for other in nested):
            nested.append(span)
    # Opening marks from the outside in, closing marks from the inside out. None begins where
    # another ends.
    nested.sort(key=lambda span: (span.start, -span.end, span.mark == "`"))
    begins = [(span.start, 1, depth, span.mark) for depth, span in enumerate(nested)]
    ends = [(span.end, 0, -depth, span.mark) for depth, span in enumerate(nested)]
    pieces, done = [], 0
    for at, *_, mark in sorted(ends + begins):
        pieces += [plain[done:at], mark]
        done = at
    return "".join([*pieces, plain[done:]])


def _parse_spans(text: str) -> tuple[str, list[_FormatSpan]]:
    """Return the plain text and its formatted spans, in order of their beginnings.

    Open formatting ends with the line.
    """
    pieces: list[str] = []
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
            pieces.append(strip_formatting(piece))
            length += len(pieces[-1])
    plain = "".join(pieces)
    return plain, sorted(_trim_spans(plain, spans), key=lambda span: (span.start, -span.end))


def _trim_spans(plain: str, spans: list[_FormatSpan]) -> list[_FormatSpan]:
    """Return the spans without white space at their edges, and without empty ones."""
    tight = []
    for span in spans:
        inside = plain[span.start : span.end]
        if inside.strip():
            start = span.start + len(inside) - len(inside.lstrip())
            tight.append(_FormatSpan(start, start + len(inside.strip()), span.mark))
    return tight


def _is_unambiguous(plain: str, span: _FormatSpan) -> bool:
    """Return whether marks there are read as marks: not inside a word, and not around their own
    kind.
    """
    edges = plain[span.start - 1 : span.start] + plain[span.end : span.end + 1]
    return span.mark[0] not in plain[span.start : span.end] + edges and not any(
        char.isalnum() or char in "_\\" for char in edges
    )
