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
        self.ended: list[Line] = list(head)
        self.rows: list[Row] = []
        """Of what ended, as far as they were made."""
        self.made = 0
        """Of how many lines."""
        self.last: list[Row] | None = None
        """Rows of what has not ended. None: to be made."""
        self.rest = ""
        self.held = held
        self._tone: Tone = tone
        self._indent = indent

    def grow(self, delta: str) -> None:
        """So much more."""
        self.last = None
        *ended, self.rest = _ENDED.split(self.rest + delta)
        for one in ended:
            self.ended += self._lines(one[:-2] if one.endswith("\r\n") else one[:-1])
        while len(self.rest) > text.MAX_CHARS:
            self.ended += self._lines(self.rest[: text.MAX_CHARS])
            self.rest = self.rest[text.MAX_CHARS :]

    def growing(self) -> list[Line]:
        """What has not ended."""
        rest = self.rest.removesuffix("\r")  # a line feed may follow
        return self._lines(rest) if rest else []

    def taken(self) -> list[Line]:
        """What ended, which is its no longer."""
        ended, self.ended, self.rows, self.made = self.ended, [], [], 0
        return ended

    def laid_out_anew(self) -> None:
        """All rows are to be made again."""
        self.rows, self.made, self.last = [], 0, None

    def _lines(self, said: str) -> list[Line]:
        pad: Row = (("plain", " " * self._indent),) if self._indent else ()
        return [Line((*pad, (self._tone, one)), self._indent, self._tone) for one in text.lines(said)]
