"""One pane: its lines, their wrapping into rows, growing blocks behind them, and the scroll position. Pure.

Lines are added at the end; beyond `MAX_LINES` the oldest are removed. Text that is still being written stands behind
all lines, one block for each writer, and becomes lines when it ends. The window follows the end until somebody scrolls
up; then it stays where it is, whatever is added or removed, until they scroll back to the end.

Foreign text is made safe for a grid of cells: nothing in it is markup, invisible, or a control sequence. Widths are
those of Textual (`rich.cells`). Characters on whose width terminals disagree are removed: joiners and selectors of
emoji, and skin tones. An emoji family is shown as its members, so it takes the same cells everywhere
(https://www.unicode.org/reports/tr51/#Emoji_Sequences).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import get_character_cell_size

from gateway.core.text_safety import escape_unprintable, shorten

TAB_CELLS: Final = 4
MAX_LINE_CHARS: Final = 2_000
"""Longest line of a pane; longer ones continue in the next line, which bounds the cost of wrapping."""
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_PICTOGRAPHS: Final = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_JOINING_SCRIPTS: Final = "\u0600-\u18ff"
"""Scripts in which a joiner changes how letters are written, from Arabic to Mongolian."""
_AMBIGUOUS_WIDTH: Final = re.compile(
    f"(?<=[{_PICTOGRAPHS}])[\ufe0e\ufe0f]|(?<=[{_PICTOGRAPHS}\ufe0f{_JOINING_SCRIPTS}])\u200d"
    "|(?<=[\u2600-\u27bf\U0001f000-\U0001faff])[\U0001f3fb-\U0001f3ff]"
)
"""Selectors and joiners of emoji, and skin tones behind what they modify."""
_HIDDEN: Final = re.compile(
    f"(?<![{_JOINING_SCRIPTS}])\u200c|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200d\u3164\ufe00-\ufe0f\uffa0"
    "\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]"
)
"""Characters that `escape_unprintable` keeps although they are invisible or have another width than in `rich.cells`."""
_MARKS: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED_MARKS: Final = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
"""More combining marks on one letter than any language has: they would cover the rows above."""


def safe_lines(text: str) -> list[str]:
    """Return the lines of any text, each safe to draw. An empty text is one empty line."""
    lines = []
    for line in _LINE_ENDS.sub("\n", text).split("\n"):
        safe = line if line.isascii() and line.isprintable() else _escape_line(line)
        lines += [safe[at : at + MAX_LINE_CHARS] for at in range(0, len(safe), MAX_LINE_CHARS)] or [""]
    return lines


def one_line(text: str, chars: int = MAX_LINE_CHARS) -> str:
    """Return the text as one safe line of at most `chars` characters, with `…` at the end if it was cut."""
    whole = " ".join(part for part in (" ".join(safe_lines(text[: chars * 2]))).split(" ") if part)
    return shorten(whole, chars)


def _escape_line(line: str) -> str:
    fewer = _STACKED_MARKS.sub(r"\1", _AMBIGUOUS_WIDTH.sub("", line.expandtabs(TAB_CELLS)))
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), escape_unprintable(fewer))


def cell_width(text: str) -> int:
    """Return the number of cells of a text from `safe_lines`."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def truncate_cells(text: str, cells: int) -> str:
    """Return the longest prefix that fits, with `…` if it was cut. Never wider than `cells`."""
    if cell_width(text) <= cells:
        return text
    taken, used = 0, 1
    for char in text:
        used += get_character_cell_size(char)
        if used > cells:
            break
        taken += 1
    return f"{text[:taken]}…" if cells > 0 else ""


def wrap_cells(text: str, cells: int, indent: int = 0) -> list[tuple[int, int]]:
    """Return start and end of each row of a line. Rows after the first have `indent` cells less.

    There is at least one row. No row is too wide, unless a single character is. Only spaces at the end of a row belong
    to no row.
    """
    if text.isascii():
        return _wrap_ascii(text, cells, indent)
    return _wrap_wide(text, [get_character_cell_size(char) for char in text], cells, indent)


def _wrap_ascii(text: str, cells: int, indent: int) -> list[tuple[int, int]]:
    """Wrap a text in which every character is one cell wide."""
    rows: list[tuple[int, int]] = []
    start, room, size = 0, max(1, cells), len(text)
    while size - start > room:
        end = _word_end(text, start, start + room)
        rows.append((start, end))
        start, room = _skip_spaces(text, end), max(1, cells - indent)
    if start < size or not rows:
        rows.append((start, size))
    return rows


def _wrap_wide(text: str, widths: list[int], cells: int, indent: int) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    start, room, size = 0, max(1, cells), len(text)
    while start < size or not rows:
        end, used = start, 0
        while end < size and (used + widths[end] <= room or end == start or not widths[end]):
            used += widths[end]
            end += 1
        if end < size:
            end = _word_end(text, start, end)
        rows.append((start, end))
        start, room = (end if end >= size else _skip_spaces(text, end)), max(1, cells - indent)
    return rows


def _word_end(text: str, start: int, end: int) -> int:
    """Return the last end of a word before `end`; `end` itself if there is none."""
    if text[end] == " ":
        return end
    cut = text.rfind(" ", start, end)
    if cut < 0 or text[start:cut].isspace() or cut == start:  # leading spaces are indentation
        return end
    return cut


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] == " ":
        at += 1
    return at


Tone = Literal["plain", "time", "who", "ours", "head", "thinking", "tool", "result", "good", "bad", "note"]
"""Role of a piece of text; `app` maps it to a style."""
StyledSpan = tuple[Tone, str]
StyledRow = tuple[StyledSpan, ...]


@dataclass(frozen=True, slots=True)
class PaneLine:
    """One line, not wrapped. Its texts come from `safe_lines`."""

    spans: StyledRow
    indent: int = 0
    """Cells in front of the second and later rows."""
    tone: Tone = "plain"
    """Tone by which the line can be hidden."""


def wrap_line(line: PaneLine, width: int) -> list[StyledRow]:
    """Wrap a line into rows of at most `width` cells."""
    whole = "".join(text for _, text in line.spans)
    if len(whole) <= width and (whole.isascii() or cell_width(whole) <= width):
        return [line.spans]
    indent = min(line.indent, width // 3)
    pad: StyledRow = (("plain", " " * indent),) if indent else ()
    cuts = wrap_cells(whole, width, indent)
    return [(pad if number else ()) + _slice_spans(line.spans, start, end) for number, (start, end) in enumerate(cuts)]


def _slice_spans(spans: StyledRow, start: int, end: int) -> StyledRow:
    at, pieces = 0, list[StyledSpan]()
    for tone, text in spans:
        size = len(text)
        if at < end and start < at + size:
            pieces.append((tone, text[start - at if start > at else 0 : end - at]))
        at += size
    return tuple(pieces)


_LINE_BREAK: Final = re.compile("(?<=\n)|(?<=[\x0b\x0c\x85\u2028\u2029])|(?<=\r)(?=[^\n])")


class StreamingBlock:
    """Text of one writer that is not finished."""

    def __init__(self, head: Sequence[PaneLine], tone: Tone, indent: int, held: bool) -> None:
        self.finished_lines: list[PaneLine] = list(head)
        self.finished_rows: list[StyledRow] = []
        """Rows of the finished lines, as far as rendered."""
        self.rendered_count = 0
        """Number of finished lines that are rendered."""
        self.tail_rows: list[StyledRow] | None = None
        """Rows of the unfinished tail. None: to be rendered."""
        self.tail_text = ""
        self.is_droppable = held
        self._tone: Tone = tone
        self._indent = indent

    def append(self, delta: str) -> None:
        """Append text."""
        self.tail_rows = None
        *ended, self.tail_text = _LINE_BREAK.split(self.tail_text + delta)
        for one in ended:
            self.finished_lines += self._make_lines(one[:-2] if one.endswith("\r\n") else one[:-1])
        while len(self.tail_text) > MAX_LINE_CHARS:
            self.finished_lines += self._make_lines(self.tail_text[:MAX_LINE_CHARS])
            self.tail_text = self.tail_text[MAX_LINE_CHARS:]

    def tail_lines(self) -> list[PaneLine]:
        """Return the unfinished tail as lines."""
        rest = self.tail_text.removesuffix("\r")  # a line feed may follow
        return self._make_lines(rest) if rest else []

    def take_finished(self) -> list[PaneLine]:
        """Return the finished lines and remove them from the block."""
        ended, self.finished_lines, self.finished_rows, self.rendered_count = self.finished_lines, [], [], 0
        return ended

    def invalidate_rows(self) -> None:
        """Discard all rows, e.g. after a change of the width."""
        self.finished_rows, self.rendered_count, self.tail_rows = [], 0, None

    def _make_lines(self, text: str) -> list[PaneLine]:
        pad: StyledRow = (("plain", " " * self._indent),) if self._indent else ()
        return [PaneLine((*pad, (self._tone, one)), self._indent, self._tone) for one in safe_lines(text)]


MAX_LINES: Final = 10_000
MAX_BLOCK_LINES: Final = 500
"""Lines of a block that is not the first; beyond, they become lines of the pane before the block ends."""

MAX_BLOCKS: Final = 32
"""Blocks at once; beyond, the oldest is finished."""


class Pane:
    """Lines and a window on them."""

    def __init__(self, *, max_lines: int = MAX_LINES) -> None:
        self._max_lines = max_lines
        self._lines: list[PaneLine] = []
        self._row_counts: list[int] = []
        """Number of rows of each line."""
        self._rows: list[StyledRow] = []
        self._blocks: dict[str, StreamingBlock] = {}
        self._block_rows: list[StyledRow] = []
        """Rows of the blocks."""
        self._hidden: set[Tone] = set()
        self._width, self._height = 80, 24
        self._top = 0
        self.is_following = True
        """True while the window shows the end."""
        self.missed_count = 0
        """Lines added since it does not."""

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self._rows) + len(self._block_rows)

    @property
    def top(self) -> int:
        """Index of the first row in the window."""
        return self._top

    @property
    def lines(self) -> Sequence[PaneLine]:
        """All finished lines, including hidden ones."""
        return self._lines

    def rows(self, start: int, end: int) -> list[StyledRow]:
        """Return the rows from `start` to `end`, as far as they exist."""
        split = len(self._rows)
        return [*self._rows[start:end], *self._block_rows[max(0, start - split) : max(0, end - split)]]

    def row(self, at: int) -> StyledRow | None:
        """Return one row; None: it does not exist."""
        split = len(self._rows)
        if at < split:
            return self._rows[at] if at >= 0 else None
        return self._block_rows[at - split] if at - split < len(self._block_rows) else None

    def add(self, lines: Iterable[PaneLine]) -> None:
        """Add lines."""
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
        """Append to the block of `key`, creating it if needed.

        `head`, `tone`, `indent` and `held` count at its creation. `held`: the block may be dropped as a whole.
        """
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) >= MAX_BLOCKS:
                self.finish_block(next(iter(self._blocks)))
            block = self._blocks[key] = StreamingBlock(head, tone, indent, held)
        block.append(delta)
        self._update_blocks()
        self._update_scroll()

    def is_streaming(self, key: str) -> bool:
        """Return whether there is a block of this key."""
        return key in self._blocks

    def finish_block(self, key: str) -> None:
        """End a block: its text becomes lines. Does nothing without a block."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._append([*block.finished_lines, *block.tail_lines()])
            self._update_blocks()
            self._update_scroll()

    def drop_block(self, key: str) -> None:
        """Remove a block with its text, except what became lines already."""
        if self._blocks.pop(key, None) is not None:
            self._update_blocks()
            self._update_scroll()

    def clear(self) -> None:
        """Remove all lines; blocks continue."""
        self._lines, self._row_counts, self._rows = [], [], []
        for block in self._blocks.values():
            block.take_finished()
        self._update_blocks()
        self.scroll_to_end()

    def resize(self, width: int, height: int) -> None:
        """Set the window to that many cells and rows, each at least 1."""
        self._height = max(1, height)
        if width != self._width:
            self._width = max(1, width)
            self._relayout()
        self._update_scroll()

    def hide(self, tone: Tone, hidden: bool) -> None:
        """Hide or show all lines of a tone."""
        if hidden != (tone in self._hidden):
            self._hidden ^= {tone}
            self._relayout()
            self._update_scroll()

    def scroll(self, by: int) -> None:
        """Scroll down by rows; negative: up."""
        self.scroll_to(self._top + by)

    def scroll_page(self, direction: Literal[-1, 1]) -> None:
        """Scroll a page up or down; one row remains visible."""
        self.scroll(direction * max(1, self._height - 1))

    def scroll_to(self, top: int) -> None:
        """Make a row the first one in the window, or the nearest possible one."""
        last = max(0, self.row_count - self._height)
        self._top = min(max(0, top), last)
        self.is_following = self._top >= last
        if self.is_following:
            self.missed_count = 0

    def scroll_to_start(self) -> None:
        """Scroll to the oldest row."""
        self.scroll_to(0)

    def scroll_to_end(self) -> None:
        """Scroll to the newest row and follow."""
        self.scroll_to(self.row_count)

    def _append(self, lines: Iterable[PaneLine]) -> None:
        before, visible = len(self._rows), 0
        for line in lines:
            rows = self._wrap(line)
            self._lines.append(line)
            self._row_counts.append(len(rows))
            self._rows += rows
            visible += bool(rows)
        if not self.is_following:
            self.missed_count += visible
            if self._top > before:  # the window is inside a block, which moved down
                self._top += len(self._rows) - before
        self._evict()

    def _evict(self) -> None:
        over = len(self._lines) - self._max_lines
        if over > 0:
            gone = sum(self._row_counts[:over])
            del self._lines[:over], self._row_counts[:over], self._rows[:gone]
            self._top = max(0, self._top - gone)

    def _update_blocks(self) -> None:
        """Turn finished lines of blocks into lines of the pane, and render the rest."""
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
        """Render all rows again; the line at the top stays there."""
        at, rows = 0, 0
        while at < len(self._row_counts) and rows + self._row_counts[at] <= self._top:
            rows += self._row_counts[at]
            at += 1
        self._rows, self._row_counts = [], []
        top = 0
        for number, line in enumerate(self._lines):
            if number == at:
                top = len(self._rows)
            rendered = self._wrap(line)
            self._row_counts.append(len(rendered))
            self._rows += rendered
        self._top = top if at < len(self._lines) else len(self._rows)
        for block in self._blocks.values():
            block.invalidate_rows()
        self._update_blocks()

    def _update_scroll(self) -> None:
        if self.is_following:
            self.scroll_to_end()
        else:
            self.scroll_to(self._top)
