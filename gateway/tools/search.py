"""Looking through what is in an agent's files. Blocks; bounded as `listing`, and in how long a pattern may take."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from agent.tools.schema import Refused
from gateway.regexes import compiled
from gateway.tools.globs import Glob
from gateway.tools.listing import Bounds, Found, walk
from gateway.tools.paths import Parts, inside, told
from gateway.tools.root import Root
from gateway.tools.texts import binary, decoded, encoded

MAX_MATCHES: Final = 500
"""Lines that are told."""
MAX_SHOWN_CHARS: Final = 400
"""Of one line."""
MAX_OUTPUT_CHARS: Final = 200_000
MAX_SEARCHED_CHARS: Final = 100_000
"""Of one line, from its beginning: a pattern remembers where it has been."""
LINE_S: Final = 0.5
"""For one line. A pattern that takes longer would take for ever."""
_LATE_LINES: Final = 1_000
"""After so many, the time is looked at."""
_SPECIAL: Final = frozenset("\\.^$*+?{}[]()|\ufffd")
"""Without these an expression means itself, and a file without its bytes need not be looked at line by line."""
_BEFORE_CHARS: Final = 100
"""Shown of a long line in front of what matches."""


def grep(
    root: Root,
    pattern: str,
    bounds: Bounds,
    *,
    path: str = "",
    files: str = "",
    ignore_case: bool = False,
    around: int = 0,
) -> str:
    """Lines that match as `path:number:line`, `around` lines on each side of them as `path-number-line`.

    `path`: a file, or the directory that is looked through. `files`: a glob that may begin in any directory. Raises
    Refused.
    """
    try:
        search = _Search(compiled(pattern, ignore_case=ignore_case), around, bounds)
    except ValueError as error:
        raise Refused(f"The pattern is refused: {error}.") from None
    if not ignore_case and _SPECIAL.isdisjoint(pattern):
        search.within = encoded(pattern)
    parts = inside(path)
    if parts and not root.is_directory(parts):
        data = root.read_bytes(path)
        if what := binary(data):
            raise Refused(f"{told(parts)} is {what}.")
        search.text(parts, data)
        return search.told()
    with contextlib.closing(walk(root, parts, Glob(files or "**", anywhere=True), bounds)) as found:
        for one in found:
            if one.kind == "file":
                search.file(root, one)
            if search.full:
                break
    return search.told()


class _Search:
    """One search, as it goes from file to file."""

    def __init__(self, pattern: Any, around: int, bounds: Bounds) -> None:  # noqa: ANN401 - the library has no types
        self.within = b""
        """What every file that matches has in it."""
        self.full = False
        """Nothing more is to be found."""
        self._pattern = pattern
        self._around = around
        self._bounds = bounds
        self._lines = list[str]()
        self._chars = self._matches = self._files = self._searched = 0
        self._left_out = Counter[str]()

    def file(self, root: Root, found: Found) -> None:
        """Look into a file, if it can be opened and is a text. Raises Refused for a pattern that is too slow."""
        try:
            data = root.read_at(found.above, found.parts)
        except (OSError, Refused):
            self._left_out["too large or not to be opened"] += 1
            return
        if not self._bounds.takes(read=len(data)):
            self.full = True
        elif binary(data):
            self._left_out["binary"] += 1
        else:
            self.text(found.parts, data)

    def text(self, parts: Parts, data: bytes) -> None:
        """Look into what is in one."""
        self._searched += 1
        if self.within not in data:
            return
        lines, name, spans = decoded(data).lines, told(parts), dict[int, tuple[int, int]]()
        for number, line in enumerate(lines, start=1):
            if number % _LATE_LINES == 0 and self._bounds.late():
                self.full = True
                break
            span = self._matched(name, number, line)
            if span is None:
                continue
            if self._matches + len(spans) == MAX_MATCHES:
                self._enough()
                break
            spans[number] = span
        if spans:
            self._files += 1
            self._matches += len(spans)
            self._show(name, lines, spans)

    def told(self) -> str:
        cut = f"; there may be more, but {self._bounds.why}: look for less" if self._bounds.why else ""
        left = "".join(f"; {_count(count, 'file')} left out ({why})" for why, count in self._left_out.items())
        unopened = f"; {self._bounds.unopened} directories could not be opened" if self._bounds.unopened else ""
        searched = f"of {_count(self._searched, 'file')} searched"
        if not self._matches:
            return f"No line matches, {searched}{cut}{left}{unopened}."
        what = f"{_count(self._matches, 'line')} in {_count(self._files, 'file')}, {searched}{cut}{left}{unopened}:"
        return "\n".join([what, *self._lines])

    def _matched(self, name: str, number: int, line: str) -> tuple[int, int] | None:
        """Where in the line; None: nowhere."""
        if len(line) > MAX_SEARCHED_CHARS:
            line = line[:MAX_SEARCHED_CHARS]
            self._bounds.why = self._bounds.why or f"lines are searched up to their character {MAX_SEARCHED_CHARS:,}"
        try:
            match = self._pattern.search(line, timeout=LINE_S, concurrent=True)
        except (TimeoutError, MemoryError):
            raise Refused(
                f"The pattern takes too long on line {number} of {name}: write it without one repetition in another."
            ) from None
        return None if match is None else match.span()

    def _show(self, name: str, lines: Sequence[str], spans: dict[int, tuple[int, int]]) -> None:
        last = 0
        for middle in spans:
            first, until = max(1, middle - self._around, last + 1), min(len(lines), middle + self._around)
            if self._around and self._lines and (not last or first > last + 1):
                self._lines.append("--")
            for number in range(first, until + 1):
                mark = ":" if number in spans else "-"
                line = _part(lines[number - 1], spans.get(number, (0, 0)))
                self._lines.append(f"{name}{mark}{number}{mark}{line}")
                self._chars += len(self._lines[-1]) + 1
            last = max(last, until)
            if self._chars > MAX_OUTPUT_CHARS:
                self._enough()
                break

    def _enough(self) -> None:
        self._bounds.why = "so many match"
        self.full = True


def _part(line: str, span: tuple[int, int]) -> str:
    """A line, or what is around its match."""
    if len(line) <= MAX_SHOWN_CHARS:
        return line
    start = max(0, span[0] - _BEFORE_CHARS)
    end = start + MAX_SHOWN_CHARS
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
