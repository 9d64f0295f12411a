"""Text cut into pieces that fit a limit: plain text in UTF-8 bytes, Markdown in UTF-16 units.
Pure.
"""

import re
from collections.abc import Sequence

_LONGEST_CODE_POINT_BYTES = 4


def split_text(text: str, limit_bytes: int) -> tuple[str, ...]:
    """Return pieces of at most `limit_bytes` UTF-8 bytes each; none is blank; none for blank text.

    Cuts at the last white space in the second half, or before a URL or inline code, else between
    two characters (UAX 29), and inside one only if that is longer than a piece. Joined again, only
    white space at the cuts is missing; white space at the very start stays, because it is the
    indentation of code. Lone surrogates become `?`. Raises ValueError if `limit_bytes` < 4.
    """
    if limit_bytes < _LONGEST_CODE_POINT_BYTES:
        raise ValueError(f"a code point may need 4 bytes; the limit is {limit_bytes}")
    rest = text.encode("utf-8", "replace").decode()
    pieces: list[str] = []
    while rest.strip():
        end = len(rest[:limit_bytes].encode()[:limit_bytes].decode("utf-8", "ignore"))
        cut = _find_cut(rest[: 2 * limit_bytes], end, code=False) if end < len(rest) else end
        if piece := rest[:cut].rstrip():
            pieces.append(piece)
        rest = rest[cut:].lstrip()
    return tuple(pieces)


_FENCE = re.compile(r" {0,3}(?P<marks>`{3,})(?P<lang>[^`\n]*)")
_UNBREAKABLE = re.compile(
    r"(?<!`)`++[^`\n]+`+|!?\[[^\[\]\n]*\]\((?:[^()\s]|\([^()\s]*\))*\)|<[^<>\s]+>|https?://\S+"
)
"""Stretches that have a meaning only as a whole: code, links, references. Linear in any text."""
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_MIN_UNITS = 64


def utf16_length(text: str) -> int:
    """Return the length in UTF-16 code units: never less than in code points, which other platforms
    count.
    """
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split_markdown(text: str, limit_units: int) -> tuple[str, ...]:
    """Return pieces of at most `limit_units` UTF-16 units each; none is blank; none for blank text.

    A fenced block that is cut is closed, and opened again with its language in the next piece; an
    unclosed one is closed at the end. A block that fits a piece is not cut, and a heading goes with
    what follows it. Cuts between lines where that wastes less than half a piece, else at white
    space, else between two characters; inside inline code or a link only if that is longer than a
    piece. Only white space at the cuts is lost. Raises ValueError if `limit_units` < 64.
    """
    if limit_units < _MIN_UNITS:
        raise ValueError(f"the limit is {limit_units}; fences need room, so at least {_MIN_UNITS}")
    pieces = _MarkdownPieces(limit_units)
    lines = text.encode("utf-8", "replace").decode().split("\n")
    at = 0
    while at < len(lines):
        fence = _FENCE.fullmatch(lines[at].rstrip())
        if fence is None or utf16_length(lines[at]) > limit_units // 4:  # too long for a language
            pieces.add_line(lines[at])
            at += 1
            continue
        after = range(at + 1, len(lines))
        end = next((one for one in after if _closes(lines[one], fence["marks"])), len(lines))
        pieces.add_code(lines[at], lines[at + 1 : end], fence["marks"])
        at = end + 1
    pieces.end()
    return tuple(pieces.finished)


def _closes(line: str, marks: str) -> bool:
    bare = line.rstrip()
    found = _FENCE.fullmatch(bare)
    return found is not None and bare.endswith("`") and len(found["marks"]) >= len(marks)


class _MarkdownPieces:
    """Finished pieces, and the lines of the one that is being filled."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.finished: list[str] = []
        self._lines: list[str] = []

    def add_line(self, line: str) -> None:
        while not self._fits(line):
            if self._lines and (utf16_length(line) <= self._limit or self._is_half_full()):
                self.end(heading_moves=True)
                continue
            at = _find_cut(line, fitting_length(line, self._room()), code=False)
            self._lines.append(line[:at].rstrip())
            self.end()
            line = line[at:].lstrip()
        self._lines.append(line)

    def add_code(self, opener: str, code: Sequence[str], marks: str) -> None:
        """Add a fenced block: whole if it fits a piece, else cut, and fenced in each piece."""
        block = "\n".join([opener, *code, marks])
        is_whole = utf16_length(block) <= self._limit
        begin = block if is_whole else f"{opener}\nx\n{marks}"
        while self._lines and not (self._fits(begin) and (is_whole or not self._is_half_full())):
            self.end(heading_moves=True)
        if is_whole:
            self._lines.append(block)
            return
        self._lines.append(opener)
        frame = utf16_length(f"{opener}\n\n{marks}")
        is_begun = False
        for line in code:
            while not self._fits(line, marks):
                moves = utf16_length(line) + frame <= self._limit or self._is_half_full()
                if not (is_begun and moves):
                    end = fitting_length(line, self._room() - len(marks) - 1)
                    at = _find_cut(line, end, code=True)
                    self._lines.append(line[:at])
                    line = line[at:]  # noqa: PLW2901 - what is left of it
                if any(map(str.strip, self._lines[1:])):
                    self._lines.append(marks)
                    self.end()
                self._lines, is_begun = [opener.strip()], False
            self._lines.append(line)
            is_begun = True
        self._lines.append(marks)

    def end(self, *, heading_moves: bool = False) -> None:
        """End the piece. With `heading_moves`, the next one begins with the heading that this one
        would end with.
        """
        filled = [at for at, line in enumerate(self._lines) if line.strip()]
        moved: list[str] = []
        if heading_moves and len(filled) > 1 and _HEADING.match(self._lines[filled[-1]]):
            moved = self._lines[filled[-1] :]
            del self._lines[filled[-1] :]
        if filled:
            self.finished.append("\n".join(self._lines).strip("\n").rstrip())
        self._lines = moved

    def _fits(self, *more: str) -> bool:
        return utf16_length("\n".join([*self._lines, *more])) <= self._limit

    def _room(self) -> int:
        """Return the units that are left for another line."""
        return self._limit - utf16_length("\n".join([*self._lines, ""]))

    def _is_half_full(self) -> bool:
        return self._room() < self._limit // 2


def _find_cut(line: str, end: int, *, code: bool) -> int:
    """Return the index to cut a line at, at most `end`, which is at least 1; at least 1."""
    spans = [] if code else [found.span() for found in _UNBREAKABLE.finditer(line)]
    cut = next((a for a, b in spans if a < end < b and line[:a].strip()), end)
    for at in range(cut, max(cut // 2, 1) - 1, -1):
        blank = line[at - 1].isspace() or (at < len(line) and line[at].isspace())
        if blank and line[:at].strip() and not any(a < at < b for a, b in spans):
            return at
    return cut if cut < end else character_boundary(line, 0, end)


def fitting_length(text: str, room: int) -> int:
    """Return how many of the first characters take at most `room` UTF-16 units: at least 1."""
    taken = 0
    for at, character in enumerate(text):
        taken += 1 + (character > "\uffff")
        if taken > room:
            return max(at, 1)
    return len(text)


def character_boundary(text: str, start: int, end: int) -> int:
    """Return the last index at or before `end` that parts no character as people see it (UAX 29),
    reading from `start`.

    `end` itself if a single character is longer than that.
    """
    import regex  # noqa: PLC0415 - takes 3 MB, and few texts have a word that must be cut

    boundary = start
    for character in regex.finditer(r"\X", text, pos=start):
        if character.end() > end:
            break
        boundary = character.end()
    return boundary if boundary > start else end
