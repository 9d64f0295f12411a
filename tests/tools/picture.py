"""Picture of the demo for the README: `python tests/tools/picture.py` writes docs/images/demo.svg.

The tour of `reverie demo` runs in a terminal, and Enter is pressed at each prompt. What it draws
becomes an SVG that shows the same in time, with animations of CSS and without a script. Who wants
less motion sees the last screen. Waits are shortened, and rests for reading are put in; the token of
the dashboard, which is over, is covered.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.kits.demo import PROMPT, at_terminal  # noqa: E402

TARGET = ROOT / "docs" / "images" / "demo.svg"
COLUMNS, ROWS = 80, 30
PROMPTS = 8
CHARS_PER_S = 90.0
"""Speed of reading, before Enter is pressed."""
MAX_WAIT_S = 1.2
END_S = 6.0
WIDTH, HEIGHT, LEFT, TOP = 8.4, 19, 14, 12
"""Of a character, in pixels; and the margins."""
STYLES: Final = {"1": "b", "2": "d", "4": "u"}
STYLES_CSS: Final = (
    ".w{fill:#161b22;stroke:#444c56}text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"
    "'DejaVu Sans Mono',monospace;fill:#e6edf3;white-space:pre}.b{font-weight:bold}.d{fill:#9aa4af}"
    ".u{text-decoration:underline}.c32{fill:#56d364}.c33{fill:#e3b341}.c34{fill:#79c0ff}"
    ".c35{fill:#d2a8ff}.c36{fill:#76e3ea}"
)
_TOKEN = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]")
_CUT = re.compile(r"\x1b(\[[\d;?]*)?$")
Cell = tuple[str, str]
"""A character, and its classes."""


@dataclass
class Drawn:
    """A row as it looked for a while."""

    row: int
    cells: list[Cell]
    from_s: float
    until_s: float | None = None


class Screen:
    """A terminal without an end: it scrolls only in the picture."""

    def __init__(self) -> None:
        self.drawn: list[Drawn] = []
        self._rows: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._classes = self._cut = ""

    def feed(self, text: str, at_s: float) -> None:
        """Draw what a program has written."""
        text = self._cut + text
        whole = _CUT.sub("", text)
        self._cut = text[len(whole) :]
        for found in _TOKEN.finditer(whole):
            self._take(found[0], found[1], found[2])
        shown = {one.row: one for one in self.drawn if one.until_s is None}
        for number, cells in enumerate(self._rows):
            before = shown.get(number)
            if (before.cells if before else []) == cells:
                continue
            if before:
                before.until_s = at_s
            self.drawn.append(Drawn(number, [*cells], at_s))

    def _take(self, text: str, numbers: str | None, command: str | None) -> None:
        if text == "\r":
            self._column = 0
        elif text == "\n":
            self._row += 1
            self._rows += [[]] * (self._row == len(self._rows))
        elif command == "A":
            self._row -= 1
        elif command == "K":
            self._rows[self._row] = self._rows[self._row][: self._column]
        elif command == "m":
            for number in (numbers or "0").split(";"):
                new = STYLES.get(number, f"c{number}")
                self._classes = "" if number == "0" else f"{self._classes} {new}".strip()
        elif command is None:
            row = self._rows[self._row]
            self._rows[self._row] = [*row[: self._column], (text, self._classes)]
            self._column += 1


def record(directory: Path) -> Iterator[tuple[float, str]]:
    """Play the tour, and yield what is drawn and when, in seconds of the picture."""
    with at_terminal(directory, COLUMNS=str(COLUMNS)) as terminal:
        for _ in range(PROMPTS):
            terminal.until(PROMPT)
            terminal.keys("\r")
        terminal.until("That was the tour")
        terminal.until(PROMPT)
        drawn = [*terminal.drawn]
        terminal.keys("/quit\r")
        assert terminal.end() == 0
    (token,) = {*re.findall(r"#token=(\S+)", terminal.text)}
    at_s = before_s = chars = 0.0
    for time_s, part in drawn:
        at_s += min(time_s - before_s, MAX_WAIT_S)
        before_s = time_s
        if part.startswith("\r\n\x1b[A"):  # Enter was pressed: somebody has read what is above
            at_s += chars / CHARS_PER_S
            chars = 0
        chars += len(part)
        yield at_s, part.replace(token, "*" * 8)


def render(drawn: list[Drawn], length_s: float) -> str:
    last = max(one.row for one in drawn)
    width, height = COLUMNS * WIDTH + 2 * LEFT, ROWS * HEIGHT + 2 * TOP
    css, rows = [STYLES_CSS], list[str]()
    moves, top = ["0%{transform:translateY(0)}"], 0
    for number, one in enumerate(sorted(drawn, key=lambda one: one.from_s)):
        begin = 100 * one.from_s / length_s
        if one.row - ROWS + 1 > top:
            top = one.row - ROWS + 1
            moves.append(f"{begin:.2f}%{{transform:translateY(-{top * HEIGHT}px)}}")
        if not one.cells:
            continue
        end = "" if one.until_s is None else f"{100 * one.until_s / length_s:.2f}%{{opacity:0}}"
        css.append(
            f"@keyframes r{number}{{0%{{opacity:0}}{begin:.2f}%{{opacity:1}}{end}}}"
            f"#r{number}{{animation-name:r{number}{';opacity:0' if end else ''}}}"
        )
        rows.append(
            f'<text id="r{number}" class="r" x="{LEFT}" y="{TOP + 14 + one.row * HEIGHT}">'
            f"{''.join(_render_runs(one.cells))}</text>"
        )
    shift = f"translateY(-{max(0, last - ROWS + 1) * HEIGHT}px)"
    css.append(
        f"@keyframes s{{{''.join(moves)}}}.r,#s{{animation:{length_s:.1f}s step-end infinite}}"
        f"#s{{animation-name:s;transform:{shift}}}"
        "@media (prefers-reduced-motion:reduce){.r,#s{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img"><title>reverie demo</title>'
        f'<style>{"".join(css)}</style><rect class="w" x=".5" y=".5" width="{width - 1:.0f}" '
        f'height="{height - 1}" rx="8"/><svg y="{TOP}" width="{width:.0f}" '
        f'height="{ROWS * HEIGHT}"><g id="s" style="translate:0 -{TOP}px">\n'
        + "\n".join(rows)
        + "\n</g></svg></svg>\n"
    )


def _render_runs(cells: list[Cell]) -> Iterator[str]:
    text, classes = "", ""
    for char, now in [*cells, ("", "end")]:
        if now != classes:
            shown = escape(text, quote=False)
            yield f'<tspan class="{classes}">{shown}</tspan>' if classes and text else shown
            text, classes = "", now
        text += char


def main() -> None:
    screen, at_s = Screen(), 0.0
    with tempfile.TemporaryDirectory() as directory:
        for at_s, part in record(Path(directory)):
            screen.feed(part, at_s)
    TARGET.write_text(render(screen.drawn, at_s + END_S))
    print(f"{TARGET}: {TARGET.stat().st_size / 1024:.0f} KiB, {at_s + END_S:.0f} s")


if __name__ == "__main__":
    main()
