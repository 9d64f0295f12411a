"""One pane: lines, what grows behind them, what of both is on the screen. Pure.

Lines are added at the end, and beyond `MAX_LINES` the oldest leave. Text that is still being written stands behind all
lines, one block for each writer, and becomes lines as it ends. The screen shows the end until somebody scrolls up; then
it stays where it is, whatever is added or leaves, until they come back to the end.

Other people's text, fit for a grid of cells: nothing in it is markup, hidden, or an order to the terminal. Pure.

Widths are those that Textual counts with (`rich.cells`). Where terminals disagree about a width, what they disagree
about is left out: joiners and selectors of emoji, and colours of skin. An emoji family is shown as its members, so that
it takes the same cells everywhere (https://www.unicode.org/reports/tr51/#Emoji_Sequences).

Text that somebody is still writing. Pure.

Lines of a pane, and the rows that they take on the screen. Pure.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import get_character_cell_size

from gateway.core.text_safety import escape_unprintable

TAB_CELLS: Final = 4
MAX_LINE_CHARS: Final = 2_000
"""Of one line of a pane: a longer one goes on in the next, so that wrapping one has a bound."""
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_PICTOGRAPHS: Final = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_JOINING_SCRIPTS: Final = "\u0600-\u18ff"
"""Scripts in which a joiner changes how letters are written, from Arabic to Mongolian."""
_AMBIGUOUS_WIDTH: Final = re.compile(
    f"(?<=[{_PICTOGRAPHS}])[\ufe0e\ufe0f]|(?<=[{_PICTOGRAPHS}\ufe0f{_JOINING_SCRIPTS}])\u200d"
    "|(?<=[\u2600-\u27bf\U0001f000-\U0001faff])[\U0001f3fb-\U0001f3ff]"
)
"""Where they belong: selectors and joiners, and colours of skin behind what they colour."""
_HIDDEN: Final = re.compile(
    f"(?<![{_JOINING_SCRIPTS}])\u200c|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200d\u3164\ufe00-\ufe0f\uffa0"
    "\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]"
)
"""What `escape_unprintable` leaves as it is although nobody sees it, or sees it as wide as `rich.cells` says."""
_MARKS: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED_MARKS: Final = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
"""More marks on one letter than any language has: they would cover the rows above."""


def safe_lines(text: str) -> list[str]:
    """The lines of any text, each safe to draw; an empty text is one empty line."""
    shown = []
    for line in _LINE_ENDS.sub("\n", text).split("\n"):
        safe = line if line.isascii() and line.isprintable() else _escape_line(line)
        shown += [safe[at : at + MAX_LINE_CHARS] for at in range(0, len(safe), MAX_LINE_CHARS)] or [""]
    return shown


def one_line(text: str, chars: int = MAX_LINE_CHARS) -> str:
    """The same on one line of at most so many characters, the last of them `…` where something was left out."""
    whole = " ".join(part for part in (" ".join(safe_lines(text[: chars * 2]))).split(" ") if part)
    return whole if len(whole) <= chars else f"{whole[: chars - 1]}…"


def _escape_line(line: str) -> str:
    fewer = _STACKED_MARKS.sub(r"\1", _AMBIGUOUS_WIDTH.sub("", line.expandtabs(TAB_CELLS)))
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), escape_unprintable(fewer))


def cell_width(text: str) -> int:
    """Cells of a text that `safe_lines` made."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def truncate_cells(text: str, cells: int) -> str:
    """As much of its beginning as fits, with `…` where something was left out. Never wider than `cells`."""
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
    """Where the rows of a line begin and end; rows after the first have `indent` cells less.

    At least one row. No row is wider than it may be, unless one character alone is. Only spaces at a row's end are in
    no row.
    """
    if text.isascii():
        return _wrap_ascii(text, cells, indent)
    return _wrap_wide(text, [get_character_cell_size(char) for char in text], cells, indent)


def _wrap_ascii(text: str, cells: int, indent: int) -> list[tuple[int, int]]:
    """Where each character is one cell wide."""
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
    """The last end of a word in a row that would go on behind `end`; `end` itself where there is none."""
    if text[end] == " ":
        return end
    cut = text.rfind(" ", start, end)
    if cut < 0 or text[start:cut].isspace() or cut == start:  # what a line begins with is its indentation
        return end
    return cut


def _skip_spaces(text: str, at: int) -> int:
    while at < len(text) and text[at] == " ":
        at += 1
    return at


Tone = Literal["plain", "time", "who", "ours", "head", "thinking", "tool", "result", "good", "bad", "note"]
"""What a piece of text is; the shell knows how that looks."""
StyledSpan = tuple[Tone, str]
StyledRow = tuple[StyledSpan, ...]


@dataclass(frozen=True, slots=True)
class PaneLine:
    """One line, as wide as it is. Its texts come from `text.lines`."""

    spans: StyledRow
    indent: int = 0
    """Cells in front of its second and later rows."""
    tone: Tone = "plain"
    """By which it can be hidden."""


def wrap_line(line: PaneLine, width: int) -> list[StyledRow]:
    """A line in rows of at most `width` cells."""
    whole = "".join(said for _, said in line.spans)
    if len(whole) <= width and (whole.isascii() or cell_width(whole) <= width):
        return [line.spans]
    indent = min(line.indent, width // 3)
    pad: StyledRow = (("plain", " " * indent),) if indent else ()
    cuts = wrap_cells(whole, width, indent)
    return [(pad if number else ()) + _slice_spans(line.spans, start, end) for number, (start, end) in enumerate(cuts)]


def _slice_spans(spans: StyledRow, start: int, end: int) -> StyledRow:
    at, pieces = 0, list[StyledSpan]()
    for tone, said in spans:
        size = len(said)
        if at < end and start < at + size:
            pieces.append((tone, said[start - at if start > at else 0 : end - at]))
        at += size
    return tuple(pieces)


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
        while len(self.tail_text) > MAX_LINE_CHARS:
            self.finished_lines += self._make_lines(self.tail_text[:MAX_LINE_CHARS])
            self.tail_text = self.tail_text[MAX_LINE_CHARS:]

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
        return [PaneLine((*pad, (self._tone, one)), self._indent, self._tone) for one in safe_lines(said)]


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
