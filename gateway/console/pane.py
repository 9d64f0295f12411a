"""One pane: lines, what grows behind them, what of both is on the screen. Pure.

Lines are added at the end, and beyond `MAX_LINES` the oldest leave. Text that is still being written stands behind all
lines, one block for each writer, and becomes lines as it ends. The screen shows the end until somebody scrolls up; then
it stays where it is, whatever is added or leaves, until they come back to the end.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from gateway.console.block import StreamingBlock
from gateway.console.line import PaneLine, StyledRow, Tone, wrap_line

MAX_LINES: Final = 10_000
MAX_BLOCK_LINES: Final = 500
"""Lines of a block behind another: more become lines of the pane before it ends."""

MAX_BLOCKS: Final = 32
"""Who write at once: more, and the first is taken for done."""


class Pane:
    """Lines and a window on them."""

    def __init__(self, *, max_lines: int = MAX_LINES) -> None:
        self._max_lines = max_lines
        self._lines: list[PaneLine] = []
        self._row_counts: list[int] = []
        """Rows of each line."""
        self._rows: list[StyledRow] = []
        self._blocks: dict[str, StreamingBlock] = {}
        self._block_rows: list[StyledRow] = []
        """Rows of the blocks."""
        self._hidden: set[Tone] = set()
        self._width, self._height = 80, 24
        self._top = 0
        self.is_following = True
        """Whether the screen shows the end."""
        self.missed_count = 0
        """Lines that came since it does not."""

    @property
    def row_count(self) -> int:
        """Rows there are."""
        return len(self._rows) + len(self._block_rows)

    @property
    def top(self) -> int:
        """The first row on the screen."""
        return self._top

    @property
    def lines(self) -> Sequence[PaneLine]:
        """Those that ended, also the hidden ones."""
        return self._lines

    def rows(self, start: int, end: int) -> list[StyledRow]:
        """These rows; fewer where there are fewer."""
        split = len(self._rows)
        return [*self._rows[start:end], *self._block_rows[max(0, start - split) : max(0, end - split)]]

    def row(self, at: int) -> StyledRow | None:
        """One row; None: there is no such row."""
        split = len(self._rows)
        if at < split:
            return self._rows[at] if at >= 0 else None
        return self._block_rows[at - split] if at - split < len(self._block_rows) else None

    def add(self, lines: Iterable[PaneLine]) -> None:
        """These came."""
        self._append(lines)
        self._update_scroll()

    def append_delta(
        self,
        key: str,
        delta: str,
        *,
        head: Sequence[PaneLine] = (),
        tone: Tone = "plain",
        indent: int = 0,
        held: bool = False,
    ) -> None:
        """Somebody goes on writing. All but `delta` counts when they begin; `held`: it may be dropped whole."""
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= MAX_BLOCKS:
                self.finish_block(next(iter(self._blocks)))
            block = self._blocks[key] = StreamingBlock(head, tone, indent, held)
        block.append(delta)
        self._update_blocks()
        self._update_scroll()

    def is_streaming(self, key: str) -> bool:
        """Whether this one is writing."""
        return key in self._blocks

    def finish_block(self, key: str) -> None:
        """They are done: what they wrote becomes lines. Nothing where nothing was written."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._append([*block.finished_lines, *block.tail_lines()])
            self._update_blocks()
            self._update_scroll()

    def drop_block(self, key: str) -> None:
        """What they wrote and is no line of the pane goes away."""
        if self._blocks.pop(key, None) is not None:
            self._update_blocks()
            self._update_scroll()

    def clear(self) -> None:
        """Take away all lines; who writes goes on."""
        self._lines, self._row_counts, self._rows = [], [], []
        for block in self._blocks.values():
            block.take_finished()
        self._update_blocks()
        self.scroll_to_end()

    def resize(self, width: int, height: int) -> None:
        """The window is so many cells wide and rows high, each at least 1."""
        self._height = max(1, height)
        if width != self._width:
            self._width = max(1, width)
            self._relayout()
        self._update_scroll()

    def hide(self, tone: Tone, hidden: bool) -> None:
        """Leave out, or show again, all lines of that tone."""
        if hidden != (tone in self._hidden):
            self._hidden ^= {tone}
            self._relayout()
            self._update_scroll()

    def scroll(self, by: int) -> None:
        """So many rows down; negative: up."""
        self.scroll_to(self._top + by)

    def scroll_page(self, direction: Literal[-1, 1]) -> None:
        """A screen up or down; one row stays."""
        self.scroll(direction * max(1, self._height - 1))

    def scroll_to(self, top: int) -> None:
        """That row becomes the first one on the screen, or the nearest that can."""
        last = max(0, self.row_count - self._height)
        self._top = min(max(0, top), last)
        self.is_following = self._top >= last
        if self.is_following:
            self.missed_count = 0

    def scroll_to_start(self) -> None:
        """To the oldest."""
        self.scroll_to(0)

    def scroll_to_end(self) -> None:
        """To the newest, and stay there."""
        self.scroll_to(self.row_count)

    def _append(self, lines: Iterable[PaneLine]) -> None:
        before, shown = len(self._rows), 0
        for line in lines:
            rows = self._wrap(line)
            self._lines.append(line)
            self._row_counts.append(len(rows))
            self._rows += rows
            shown += bool(rows)
        if not self.is_following:
            self.missed_count += shown
            if self._top > before:  # it stands in what is being written, which moved down
                self._top += len(self._rows) - before
        self._evict()

    def _evict(self) -> None:
        over = len(self._lines) - self._max_lines
        if over > 0:
            gone = sum(self._row_counts[:over])
            del self._lines[:over], self._row_counts[:over], self._rows[:gone]
            self._top = max(0, self._top - gone)

    def _update_blocks(self) -> None:
        """Make lines of what ended, and rows of what did not."""
        for number, block in enumerate(self._blocks.values()):
            if (
                block.finished_lines
                and not block.is_droppable
                and (number == 0 or len(block.finished_lines) > MAX_BLOCK_LINES)
            ):
                self._append(block.take_finished())
        self._block_rows = []
        for block in self._blocks.values():
            for line in block.finished_lines[block.rendered_count :]:
                block.finished_rows += self._wrap(line)
            block.rendered_count = len(block.finished_lines)
            if block.tail_rows is None:
                block.tail_rows = [row for line in block.tail_lines() for row in self._wrap(line)]
            self._block_rows += block.finished_rows
            self._block_rows += block.tail_rows

    def _wrap(self, line: PaneLine) -> list[StyledRow]:
        return [] if line.tone in self._hidden else wrap_line(line, self._width)

    def _relayout(self) -> None:
        """Make all rows anew; the line at the top stays there."""
        at, rows = 0, 0
        while at < len(self._row_counts) and rows + self._row_counts[at] <= self._top:
            rows += self._row_counts[at]
            at += 1
        self._rows, self._row_counts = [], []
        top = 0
        for number, line in enumerate(self._lines):
            if number == at:
                top = len(self._rows)
            made = self._wrap(line)
            self._row_counts.append(len(made))
            self._rows += made
        self._top = top if at < len(self._lines) else len(self._rows)
        for block in self._blocks.values():
            block.invalidate_rows()
        self._update_blocks()

    def _update_scroll(self) -> None:
        if self.is_following:
            self.scroll_to_end()
        else:
            self.scroll_to(self._top)
