"""Foreign text made safe for a grid of cells: nothing in it is invisible, or a control sequence.
Pure.

Characters on whose width terminals disagree are removed: joiners and selectors of emoji, and skin
tones. An emoji family is shown as its members, so it takes the same cells everywhere
(https://www.unicode.org/reports/tr51/#Emoji_Sequences).
"""

import re
from typing import Final

from gateway.core.text_safety import escape_unprintable, shorten

TAB_CELLS: Final = 4
MAX_LINE_CHARS: Final = 2_000
"""Longest line; longer ones continue in the next line, which bounds the cost of wrapping."""
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
"""Characters that `escape_unprintable` keeps although they are invisible or have another width than
in `rich.cells`."""
_MARKS: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED_MARKS: Final = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
"""More combining marks on one letter than any language has: they would cover the rows above."""


def safe_lines(text: str) -> list[str]:
    """Return the lines of any text, each safe to draw. An empty text is one empty line."""
    lines = []
    for line in _LINE_ENDS.sub("\n", text).split("\n"):
        safe = line if line.isascii() and line.isprintable() else _escape_line(line)
        lines += [safe[at : at + MAX_LINE_CHARS] for at in range(0, len(safe), MAX_LINE_CHARS)] or [
            ""
        ]
    return lines


def one_line(text: str, chars: int = MAX_LINE_CHARS) -> str:
    """Return the text as one safe line of at most `chars` characters, with `…` at the end if it was
    cut.
    """
    whole = " ".join(part for part in (" ".join(safe_lines(text[: chars * 2]))).split(" ") if part)
    return shorten(whole, chars)


def _escape_line(line: str) -> str:
    fewer = _STACKED_MARKS.sub(r"\1", _AMBIGUOUS_WIDTH.sub("", line.expandtabs(TAB_CELLS)))
    return _HIDDEN.sub(
        lambda found: found[0].encode("unicode_escape").decode(), escape_unprintable(fewer)
    )
