"""Rows on the screen: the panes with their scroll bars, and single rows that stand still.

Texts come here as they are to be drawn, in `Segment`s: nothing reads them as markup. Colours are the terminal's own
sixteen on its own background, without blue and yellow, so that they can be read on dark and on light ones; what they
say is also said by words or signs.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from gateway.console.line import StyledRow, Tone
from gateway.console.pane import Pane
from gateway.console.text import cell_width, truncate_cells

TONE_STYLES: Final[dict[Tone, Style]] = {
    "plain": Style(),
    "time": Style(dim=True),
    "who": Style(bold=True, color="cyan"),
    "ours": Style(bold=True, color="magenta"),
    "head": Style(bold=True),
    "thinking": Style(italic=True, dim=True),
    "tool": Style(bold=True, color="cyan"),
    "result": Style(),
    "good": Style(color="green"),
    "bad": Style(bold=True, color="red"),
    "note": Style(italic=True),
}
QUICK_RESIZE_LINES: Final = 1_000
"""So many lines are laid out anew within a frame or so; ten thousand take some tenths of a second."""
RESIZE_DELAY_S: Final = 0.15


@lru_cache(maxsize=4_096)
def render_strip(row: StyledRow, cells: int, base: Style, over: Style | None = None) -> Strip:
    """One row, exactly so wide."""
    segments = [Segment(said, base + TONE_STYLES[tone] + over) for tone, said in row]
    return Strip(segments).adjust_cell_length(cells, base + over if over else base)


class Rows(Widget):
    """A few rows that are set from outside."""

    def __init__(self, rows: Sequence[StyledRow] = (), *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._rows: Sequence[StyledRow] = rows

    def show(self, rows: Sequence[StyledRow]) -> None:
        """These, from now on."""
        if rows != self._rows:
            self._rows = rows
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Textual asks for one."""
        row = self._rows[y] if y < len(self._rows) else ()
        return render_strip(row, self.size.width, self.rich_style)


class Title(Widget):
    """What a pane is called, and how much came that it does not show. Marked where the keys go to that pane."""

    def __init__(self, words: str = "", *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._title_text = words
        self._missed_sign = ""
        self._focused = False

    def show(self, words: str, missed: int, *, following: bool, focused: bool) -> None:
        """Told by whoever knows the pane."""
        sign = "" if following else (f"↓ {missed} new, End" if missed else "↓ End")
        if (words, sign, focused) != (self._title_text, self._missed_sign, self._focused):
            self._title_text, self._missed_sign, self._focused = words, sign, focused
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002 - it has one
        """Textual asks for it."""
        room = self.size.width
        sign = f" {self._missed_sign} " if self._missed_sign else ""
        words = truncate_cells(f"{'▸' if self._focused else '─'} {self._title_text} ", max(0, room - cell_width(sign)))
        line = "─" * max(0, room - cell_width(words) - cell_width(sign))
        row: StyledRow = (("head" if self._focused else "plain", words), ("time", line), ("bad", sign))
        return render_strip(row, room, self.rich_style, Style(reverse=True) if self._focused else None)


class PaneView(ScrollView, can_focus=True):
    """A `Pane`, drawn. What Textual scrolls, it is told; where it stands, Textual is told."""

    class Moved(Message):
        """Somebody scrolled."""

    def __init__(self, pane: Pane, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.pane = pane
        self._is_syncing = False
        self._resize_timer: Timer | None = None
        """Until the size is settled."""
        self._cell_style: Style | None = None
        """Of all cells. None: it is to be asked for, which takes as long as drawing some rows."""

    def sync(self) -> None:
        """The pane changed."""
        size = Size(self.scrollable_content_region.width, self.pane.row_count)
        self._is_syncing = True
        try:
            if self.virtual_size != size:
                self.virtual_size = size
            if round(self.scroll_y) != self.pane.top:
                self.scroll_to(y=self.pane.top, animate=False, force=True)
        finally:
            self._is_syncing = False
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002 - its size is asked for
        """Textual says so: with each step while somebody drags the corner of a window."""
        if self._resize_timer is not None:
            self._resize_timer.stop()
            self._resize_timer = None
        if len(self.pane.lines) < QUICK_RESIZE_LINES:
            self._resize_pane()
        else:
            self._resize_timer = self.set_timer(RESIZE_DELAY_S, self._resize_pane)

    def _resize_pane(self) -> None:
        region = self.scrollable_content_region
        if region.width:
            self.pane.resize(region.width, region.height)
            self.sync()
            self.post_message(self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """By wheel, bar or keys, or by ourselves."""
        super().watch_scroll_y(old_value, new_value)
        if not self._is_syncing:
            self.pane.scroll_to(round(new_value))
            self.post_message(self.Moved())

    def scroll_by_key(self, how: str) -> None:
        """As a key says: `up`, `down`, `pageup`, `pagedown`, `home`, `end`."""
        match how:
            case "up" | "down":
                self.pane.scroll(1 if how == "down" else -1)
            case "pageup" | "pagedown":
                self.pane.scroll_page(1 if how == "pagedown" else -1)
            case "home":
                self.pane.scroll_to_start()
            case _:
                self.pane.scroll_to_end()
        self.sync()
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        """Textual asks for one."""
        if self._cell_style is None:
            self._cell_style = self.rich_style
        return render_strip(self.pane.row(self.pane.top + y) or (), self.size.width, self._cell_style)

    def notify_style_update(self) -> None:
        """Textual says that it may look otherwise now."""
        super().notify_style_update()
        self._cell_style = None
