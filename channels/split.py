"""Text cut into pieces that fit a limit: plain text in UTF-8 bytes, Markdown in UTF-16 units.
Pure.
"""

import re
from collections.abc import Sequence

_LONGEST_CODE_POINT_BYTES = 4


def split_text(text: str, limit_bytes: int) -> tuple[str, ...]:
    """Return pieces of at most `limit_bytes` UTF-8 bytes each; none is blank; none for blank text.

    Cuts at the last white space that fits, else between two code points (never inside one). Joined
    again, only white space at the cuts is missing; white space at the very start stays, because it
    is the indentation of code. Lone surrogates become `?`. Raises ValueError if `limit_bytes` < 4.
    """
    if limit_bytes < _LONGEST_CODE_POINT_BYTES:
        raise ValueError(f"a code point may need 4 bytes; the limit is {limit_bytes}")
    rest = text.encode("utf-8", "replace")
    pieces: list[str] = []
    while rest.strip():
        piece, rest = _split_first(rest, limit_bytes)
        if piece.strip():
            pieces.append(piece)
    return tuple(pieces)


def _split_first(data: bytes, limit_bytes: int) -> tuple[str, bytes]:
    """Return the longest piece that fits, and the text after it without the white space between."""
    if len(data) <= limit_bytes:
        return data.decode().rstrip(), b""
    end = limit_bytes
    while data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - a continuation byte, RFC 3629 section 3
        end -= 1
    window = data[:end].decode()
    following = data[end : end + _LONGEST_CODE_POINT_BYTES].decode("utf-8", "ignore")[:1]
    if not following.isspace():
        space = next((i for i in range(len(window) - 1, 0, -1) if window[i].isspace()), 0)
        if window[:space].strip():
            window = window[:space]
    taken = len(window.encode())
    return window.rstrip(), data[taken:].decode().lstrip().encode()


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
    pieces = _MarkdownSplitter(limit_units)
    lines = text.encode("utf-8", "replace").decode().split("\n")
    for index, line in enumerate(lines):
        pieces.add_line(line, lines, index)
    return tuple(pieces.finish())


def _block_of(lines: Sequence[str], start: int, limit_units: int) -> str:
    """Return the fenced block that begins there; what is longer than a piece may be cut off."""
    size, end = utf16_length(lines[start]), start + 1
    while end < len(lines) and size <= limit_units:
        fence = _FENCE.fullmatch(lines[end].rstrip())
        size, end = size + 1 + utf16_length(lines[end]), end + 1
        if (
            fence
            and not fence["lang"].strip()
            and _closes_fence(fence["marks"], lines[start].strip())
        ):
            break
    return "\n".join(lines[start:end])


class _MarkdownSplitter:
    """Pieces so far, and the fence that is open at their end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._finished: list[str] = []
        self._lines: list[str] = []
        self._fence_line = ""
        """Line that opened the current fence; empty: outside of a fence."""
        self._reopened = 0
        """Number of leading `_lines` that only reopen a fence."""

    def add_line(self, line: str, lines: Sequence[str], index: int) -> None:
        """Add `line`, which is `lines[index]`."""
        fence = _FENCE.fullmatch(line.rstrip())
        closes = bool(
            self._fence_line
            and fence
            and not fence["lang"].strip()
            and _closes_fence(fence["marks"], self._fence_line)
        )
        opens = bool(not self._fence_line and fence)
        if (
            opens and utf16_length(line) > self._limit // 4
        ):  # too long for a language: a line of text
            opens = False
        if opens and fence:
            block = _block_of(lines, index, self._limit)
            is_whole = utf16_length(block) + 1 + utf16_length(fence["marks"]) <= self._limit
            begin = [block] if is_whole else [line, "x"]
            if not self._fits(*begin, closer="" if is_whole else fence["marks"]):
                self._end_piece(heading_moves=True)
            if not self._fits(*begin, closer="" if is_whole else fence["marks"]):
                self._end_piece()
        while not self._fits(line, closer="" if closes else None):
            line = self._break_line(line)
        self._lines.append(line)
        if opens and fence:
            self._fence_line = line.strip()
        elif closes:
            self._fence_line = ""

    def finish(self) -> list[str]:
        self._end_piece()
        return self._finished

    def _fits(self, *more: str, closer: str | None = None) -> bool:
        closing = self._closer() if closer is None else closer
        return (
            utf16_length("\n".join([*self._lines, *more, *([closing] if closing else [])]))
            <= self._limit
        )

    def _closer(self) -> str:
        found = _FENCE.match(self._fence_line)
        return found["marks"] if found else ""

    def _end_piece(self, *, heading_moves: bool = False) -> None:
        """End the piece; the next one begins in the same fence, or with the heading that this one
        would end with.
        """
        moved: list[str] = []
        if heading_moves and self._lines and not self._fence_line:
            end = max((at for at, line in enumerate(self._lines) if line.strip()), default=0)
            if _HEADING.match(self._lines[end]) and any(line.strip() for line in self._lines[:end]):
                moved = self._lines[end:]
                del self._lines[end:]
        if any(line.strip() for line in self._lines[self._reopened :]):
            piece = "\n".join([*self._lines, *([self._closer()] if self._fence_line else [])])
            self._finished.append(
                piece.strip("\n") if self._fence_line else piece.strip("\n").rstrip()
            )
        self._lines = [self._fence_line] if self._fence_line else moved
        self._reopened = len(self._lines) if self._fence_line else 0

    def _break_line(self, line: str) -> str:
        """Make room for a line that does not fit; return the part that is left.

        Ends the piece before the line, or inside it.
        """
        used = utf16_length("\n".join(self._lines)) + 1 if self._lines else 0
        begun = len(self._lines) > self._reopened
        frame = (
            utf16_length(self._fence_line) + 1 + utf16_length(self._closer()) + 1
            if self._fence_line
            else 0
        )
        if begun and (used > self._limit // 2 or utf16_length(line) + frame <= self._limit):
            self._end_piece(heading_moves=True)
            return line
        room = self._limit - used - (utf16_length(self._closer()) + 1 if self._fence_line else 0)
        at = _find_cut(line, room, code=bool(self._fence_line))
        self._lines.append(line[:at] if self._fence_line else line[:at].rstrip())
        self._end_piece()
        return line[at:] if self._fence_line else line[at:].lstrip()


def _closes_fence(marks: str, opener: str) -> bool:
    found = _FENCE.match(opener)
    return found is not None and len(marks) >= len(found["marks"])


def _find_cut(line: str, room: int, *, code: bool) -> int:
    """Return the index to cut a line at so that the part before fits `room`; at least 1."""
    end = fitting_length(line, room)
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
