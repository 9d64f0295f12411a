"""Other people's text, fit for a grid of cells: nothing in it is markup, hidden, or an order to the terminal. Pure.

Widths are those that Textual counts with (`rich.cells`). Where terminals disagree about a width, what they disagree
about is left out: joiners and selectors of emoji, and colours of skin. An emoji family is shown as its members, so that
it takes the same cells everywhere (https://www.unicode.org/reports/tr51/#Emoji_Sequences).
"""

import re
from typing import Final

from rich.cells import get_character_cell_size

from gateway.store.lines import escape_unprintable

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
