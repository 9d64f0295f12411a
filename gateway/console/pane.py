"""One pane: lines, what grows behind them, what of both is on the screen. Pure.

Lines are added at the end, and beyond `MAX_LINES` the oldest leave. Text that is still being written stands behind all
lines, one block for each writer, and becomes lines as it ends. The screen shows the end until somebody scrolls up; then
it stays where it is, whatever is added or leaves, until they come back to the end.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from gateway.console.block import Block
from gateway.console.line import Line, Row, Tone, rows_of

MAX_LINES: Final = 10_000
MAX_HELD: Final = 500
"""Lines of a block behind another: more become lines of the pane before it ends."""

MAX_BLOCKS: Final = 32
"""Who write at once: more, and the first is taken for done."""


class Pane:
    """Lines and a window on them."""

    def __init__(self, *, max_lines: int = MAX_LINES) -> None:
        self._max_lines = max_lines
        self._lines: list[Line] = []
        self._counts: list[int] = []
        """Rows of each line."""
        self._rows: list[Row] = []
        self._blocks: dict[str, Block] = {}
        self._tail: list[Row] = []
        """Rows of the blocks."""
        self._hidden: set[Tone] = set()
        self._width, self._height = 80, 24
        self._top = 0
        self.following = True
        """Whether the screen shows the end."""
        self.missed = 0
        """Lines that came since it does not."""

    @property
    def total(self) -> int:
        """Rows there are."""
        return len(self._rows) + len(self._tail)

    @property
    def top(self) -> int:
        """The first row on the screen."""
        return self._top

    @property
    def lines(self) -> Sequence[Line]:
        """Those that ended, also the hidden ones."""
        return self._lines

    def rows(self, start: int, end: int) -> list[Row]:
        """These rows; fewer where there are fewer."""
        split = len(self._rows)
        return [*self._rows[start:end], *self._tail[max(0, start - split) : max(0, end - split)]]

    def row(self, at: int) -> Row | None:
        """One row; None: there is no such row."""
        split = len(self._rows)
        if at < split:
            return self._rows[at] if at >= 0 else None
        return self._tail[at - split] if at - split < len(self._tail) else None

    def add(self, lines: Iterable[Line]) -> None:
        """These came."""
        self._append(lines)
        self._settle_view()

    def grow(
        self,
        key: str,
        delta: str,
        *,
        head: Sequence[Line] = (),
        tone: Tone = "plain",
        indent: int = 0,
        held: bool = False,
    ) -> None:
        """Somebody goes on writing. All but `delta` counts when they begin; `held`: it may be dropped whole."""
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= MAX_BLOCKS:
                self.settle(next(iter(self._blocks)))
            block = self._blocks[key] = Block(head, tone, indent, held)
        block.grow(delta)
        self._flush()
        self._settle_view()

    def growing(self, key: str) -> bool:
        """Whether this one is writing."""
        return key in self._blocks

    def settle(self, key: str) -> None:
        """They are done: what they wrote becomes lines. Nothing where nothing was written."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._append([*block.ended, *block.growing()])
            self._flush()
            self._settle_view()

    def drop(self, key: str) -> None:
        """What they wrote and is no line of the pane goes away."""
        if self._blocks.pop(key, None) is not None:
            self._flush()
            self._settle_view()

    def clear(self) -> None:
        """Take away all lines; who writes goes on."""
        self._lines, self._counts, self._rows = [], [], []
        for block in self._blocks.values():
            block.taken()
        self._flush()
        self.end()

    def resize(self, width: int, height: int) -> None:
        """The window is so many cells wide and rows high, each at least 1."""
        self._height = max(1, height)
        if width != self._width:
            self._width = max(1, width)
            self._lay_out()
        self._settle_view()

    def hide(self, tone: Tone, hidden: bool) -> None:
        """Leave out, or show again, all lines of that tone."""
        if hidden != (tone in self._hidden):
            self._hidden ^= {tone}
            self._lay_out()
            self._settle_view()

    def scroll(self, by: int) -> None:
        """So many rows down; negative: up."""
        self.scroll_to(self._top + by)

    def page(self, direction: Literal[-1, 1]) -> None:
        """A screen up or down; one row stays."""
        self.scroll(direction * max(1, self._height - 1))

    def scroll_to(self, top: int) -> None:
        """That row becomes the first one on the screen, or the nearest that can."""
        last = max(0, self.total - self._height)
        self._top = min(max(0, top), last)
        self.following = self._top >= last
        if self.following:
            self.missed = 0

    def home(self) -> None:
        """To the oldest."""
        self.scroll_to(0)

    def end(self) -> None:
        """To the newest, and stay there."""
        self.scroll_to(self.total)

    def _append(self, lines: Iterable[Line]) -> None:
        before, shown = len(self._rows), 0
        for line in lines:
            rows = self._rows_of(line)
            self._lines.append(line)
            self._counts.append(len(rows))
            self._rows += rows
            shown += bool(rows)
        if not self.following:
            self.missed += shown
            if self._top > before:  # it stands in what is being written, which moved down
                self._top += len(self._rows) - before
        self._evict()

    def _evict(self) -> None:
        over = len(self._lines) - self._max_lines
        if over > 0:
            gone = sum(self._counts[:over])
            del self._lines[:over], self._counts[:over], self._rows[:gone]
            self._top = max(0, self._top - gone)

    def _flush(self) -> None:
        """Make lines of what ended, and rows of what did not."""
        for number, block in enumerate(self._blocks.values()):
            if block.ended and not block.held and (number == 0 or len(block.ended) > MAX_HELD):
                self._append(block.taken())
        self._tail = []
        for block in self._blocks.values():
            for line in block.ended[block.made :]:
                block.rows += self._rows_of(line)
            block.made = len(block.ended)
            if block.last is None:
                block.last = [row for line in block.growing() for row in self._rows_of(line)]
            self._tail += block.rows
            self._tail += block.last

    def _rows_of(self, line: Line) -> list[Row]:
        return [] if line.tone in self._hidden else rows_of(line, self._width)

    def _lay_out(self) -> None:
        """Make all rows anew; the line at the top stays there."""
        at, rows = 0, 0
        while at < len(self._counts) and rows + self._counts[at] <= self._top:
            rows += self._counts[at]
            at += 1
        self._rows, self._counts = [], []
        top = 0
        for number, line in enumerate(self._lines):
            if number == at:
                top = len(self._rows)
            made = self._rows_of(line)
            self._counts.append(len(made))
            self._rows += made
        self._top = top if at < len(self._lines) else len(self._rows)
        for block in self._blocks.values():
            block.laid_out_anew()
        self._flush()

    def _settle_view(self) -> None:
        if self.following:
            self.end()
        else:
            self.scroll_to(self._top)
