"""Text that somebody is still writing. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from gateway.console import text
from gateway.console.line import Line, Row, Tone

_ENDED: Final = re.compile("(?<=\n)|(?<=[\x0b\x0c\x85\u2028\u2029])|(?<=\r)(?=[^\n])")


class Block:
    """What one of them has written."""

    def __init__(self, head: Sequence[Line], tone: Tone, indent: int, held: bool) -> None:
        self.finished_lines: list[Line] = list(head)
        self.finished_rows: list[Row] = []
        """Of what ended, as far as they were made."""
        self.rendered_count = 0
        """Of how many lines."""
        self.tail_rows: list[Row] | None = None
        """Rows of what has not ended. None: to be made."""
        self.tail_text = ""
        self.is_droppable = held
        self._tone: Tone = tone
        self._indent = indent

    def append(self, delta: str) -> None:
        """So much more."""
        self.tail_rows = None
        *ended, self.tail_text = _ENDED.split(self.tail_text + delta)
        for one in ended:
            self.finished_lines += self._make_lines(one[:-2] if one.endswith("\r\n") else one[:-1])
        while len(self.tail_text) > text.MAX_CHARS:
            self.finished_lines += self._make_lines(self.tail_text[: text.MAX_CHARS])
            self.tail_text = self.tail_text[text.MAX_CHARS :]

    def tail_lines(self) -> list[Line]:
        """What has not ended."""
        rest = self.tail_text.removesuffix("\r")  # a line feed may follow
        return self._make_lines(rest) if rest else []

    def take_finished(self) -> list[Line]:
        """What ended, which is its no longer."""
        ended, self.finished_lines, self.finished_rows, self.rendered_count = self.finished_lines, [], [], 0
        return ended

    def invalidate_rows(self) -> None:
        """All rows are to be made again."""
        self.finished_rows, self.rendered_count, self.tail_rows = [], 0, None

    def _make_lines(self, said: str) -> list[Line]:
        pad: Row = (("plain", " " * self._indent),) if self._indent else ()
        return [Line((*pad, (self._tone, one)), self._indent, self._tone) for one in text.lines(said)]
