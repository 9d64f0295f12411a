"""Where in a text that is still coming nothing is meant as a call: code and quotations of Markdown. Pure.

Sections of CommonMark 0.31.2 (spec.commonmark.org): fenced code 4.5, indented code 4.4, block quotes 5.1, code spans
6.1. Where its reading needs the whole document (lists), more is taken for code rather than less.
"""

import re
from typing import Final, Literal

from agent.models.leaks_input import Input, Scan

Line = Literal["blank", "fence", "code", "quote", "words"]
MIN_FENCE: Final = 3
INDENT: Final = 4
"""Columns; so many are code behind a blank line, and too many for the end of a fence."""
_LINE_END: Final = re.compile("\n")
_TICK_OR_LINE: Final = re.compile("[`\n]")
_NO_TICK: Final = re.compile("[^`]")
_CALLS: Final = re.compile(r"[<\[]")


class Prose:
    """Reads lines. `sure`: in front of there all is words and code, whatever follows."""

    def __init__(self, text: Input) -> None:
        self.sure = 0
        self._in = text
        self._behind_blank = True
        self._fenced: tuple[str, int, int] | None = None
        """Of fenced code that has begun: its mark, how many of them, and behind how many columns they do not end it."""
        self._runs = dict[int, int]()
        self._runs_end = 0

    def moved(self, by: int) -> None:
        """So many characters are gone from the input's beginning."""
        self.sure -= by
        self._runs, self._runs_end = {}, 0

    def line(self, start: int) -> Scan[tuple[Line, int]]:
        """What the line that begins there is, and from where on it, or what follows it, is to be read.

        Fences, code and quotations are behind us then; blank lines and words are not.
        """
        if self._fenced:
            return "fence", (yield from self._in_fence(start, *self._fenced))
        at, columns = yield from self.indent(start, 0)
        marker = columns
        if columns < INDENT:
            while (after := (yield from self._bullet(at))) > at:
                at, columns = yield from self.indent(after, columns + after - at)
        one = yield from self._in.char(at)
        behind_blank, self._behind_blank = self._behind_blank, one in ("", "\n", "\r")
        if one in ("`", "~") and (fence := (yield from self._fence(at, one, columns))) >= 0:
            return "fence", fence
        if self._behind_blank:
            return "blank", start
        if one == ">":
            return "quote", (yield from self._rest(at))
        if marker >= INDENT and behind_blank:
            self._behind_blank = True
            return "code", (yield from self._rest(at))
        return "words", start

    def span(self, at: int) -> Scan[int]:
        """Behind the code span that begins there, or behind the backticks, if they begin none."""
        length = (yield from self._run(at, "`")) - at
        self.sure = at + length
        if at < self._runs_end and self._runs.get(length, -1) <= at:
            return at + length
        runs, pos, first = dict[int, int](), at + length, -1
        while True:
            here = _TICK_OR_LINE.search(self._in.text, pos)
            if here is None:
                if self._in.ended:
                    break
                if first < 0:  # until something could be a call, all is words, code or not
                    found = _CALLS.search(self._in.text, self.sure)
                    first = found.start() if found else -1
                    self.sure = first if found else max(self.sure, len(self._in.text))
                pos = max(pos, len(self._in.text))
                yield
                continue
            pos = here.start()
            if self._in.text[pos] == "\n":
                if (yield from self._ends_paragraph(pos + 1)):
                    break
                pos += 1
                continue
            end = yield from self._run(pos, "`")
            if end - pos == length:
                self.sure = end
                return end
            runs[end - pos] = pos
            pos = end
        self._runs, self._runs_end = runs, max(pos, at)
        self.sure = at + length
        return at + length

    def _ends_paragraph(self, at: int) -> Scan[bool]:
        at, _ = yield from self.indent(at, 0)
        one = yield from self._in.char(at)
        if one in ("`", "~"):
            return (yield from self._in.starts(at, one * MIN_FENCE))
        return one in ("", "\n", "\r", ">")

    def indent(self, at: int, columns: int) -> Scan[tuple[int, int]]:
        """Behind spaces and tabs, and in which column that is, if those there begin in this one."""
        while (one := (yield from self._in.char(at))) in (" ", "\t"):
            columns += INDENT - columns % INDENT if one == "\t" else 1
            at += 1
        return at, columns

    def _bullet(self, at: int) -> Scan[int]:
        """Behind a list item's marker, if one is there."""
        end = at
        while end - at < 9 and (yield from self._in.char(end)).isdecimal():  # noqa: PLR2004 - CommonMark 5.2
            end += 1
        one = yield from self._in.char(end)
        if one and one in (".)" if end > at else "-*+") and (yield from self._in.char(end + 1)) in (" ", "\t"):
            return end + 1
        return at

    def _fence(self, start: int, mark: str, columns: int) -> Scan[int]:
        """Behind the line with which fenced code begins there. -1: none does."""
        at = yield from self._run(start, mark)
        if at - start < MIN_FENCE:
            return -1
        if mark == "`":
            end = yield from self._in.find(_TICK_OR_LINE, at)
            if end >= 0 and self._in.text[end] == "`":
                return -1
        self._fenced = mark, at - start, columns + INDENT if columns >= INDENT else INDENT
        return (yield from self._rest(at))

    def _in_fence(self, start: int, mark: str, length: int, most: int) -> Scan[int]:
        """Behind a line of fenced code, perhaps its last."""
        begins, columns = yield from self.indent(start, 0)
        end = yield from self._run(begins, mark)
        if columns < most and end - begins >= length:
            end, _ = yield from self.indent(end, 0)
            if (yield from self._in.char(end)) in ("", "\n", "\r"):
                self._fenced = None
        return (yield from self._rest(end))

    def _run(self, at: int, mark: str) -> Scan[int]:
        while (yield from self._in.char(at)) == mark:
            at += 1
        return at

    def _rest(self, at: int) -> Scan[int]:
        """Behind the line's end. All of it is no call."""
        while True:
            found = _LINE_END.search(self._in.text, at)
            self.sure = found.end() if found else len(self._in.text)
            if found or self._in.ended:
                return self.sure
            at = max(at, len(self._in.text))
            yield
