"""Text that somebody is still writing. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from gateway.console import text
from gateway.console.line import PaneLine, StyledRow, Tone

_LINE_BREAK: Final = re.compile("(?<=\n)|(?<=[\x0b\x0c\x85\u2028\u2029])|(?<=\r)(?=[^\n])")


class StreamingBlock:
    """What one of them has written."""

    def __init__(self, head: Sequence[PaneLine], tone: Tone, indent: int, held: bool) -> None:
        self.finished_lines: list[PaneLine] = list(head)
        self.finished_rows: list[StyledRow] = []
        """Of what ended, as far as they were made."""
        self.rendered_count = 0
        """Of how many lines."""
        self.tail_rows: list[StyledRow] | None = None
        """Rows of what has not ended. None: to be made."""
        self.tail_text = ""
        self.is_droppable = held
        self._tone: Tone = tone
        self._indent = indent

    def append(self, delta: str) -> None:
        """So much more."""
        self.tail_rows = None
        *ended, self.tail_text = _LINE_BREAK.split(self.tail_text + delta)
        for one in ended:
            self.finished_lines += self._make_lines(one[:-2] if one.endswith("\r\n") else one[:-1])
        while len(self.tail_text) > text.MAX_LINE_CHARS:
            self.finished_lines += self._make_lines(self.tail_text[: text.MAX_LINE_CHARS])
            self.tail_text = self.tail_text[text.MAX_LINE_CHARS :]

    def tail_lines(self) -> list[PaneLine]:
        """What has not ended."""
        rest = self.tail_text.removesuffix("\r")  # a line feed may follow
        return self._make_lines(rest) if rest else []

    def take_finished(self) -> list[PaneLine]:
        """What ended, which is its no longer."""
        ended, self.finished_lines, self.finished_rows, self.rendered_count = self.finished_lines, [], [], 0
        return ended

    def invalidate_rows(self) -> None:
        """All rows are to be made again."""
        self.finished_rows, self.rendered_count, self.tail_rows = [], 0, None

    def _make_lines(self, said: str) -> list[PaneLine]:
        pad: StyledRow = (("plain", " " * self._indent),) if self._indent else ()
        return [PaneLine((*pad, (self._tone, one)), self._indent, self._tone) for one in text.safe_lines(said)]
