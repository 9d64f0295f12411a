"""Looking through what is in an agent's files. Blocks; bounded as `listing`, and in how long a pattern may take."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from agent.tools.schema import ToolCallRefused
from gateway.regexes import compile_regex
from gateway.tools.globs import GlobPattern
from gateway.tools.listing import FoundEntry, SearchLimits, walk
from gateway.tools.paths import PathParts, display_path, parse_path
from gateway.tools.root import WorkspaceRoot
from gateway.tools.texts import decode_text, describe_binary, encode_text

MAX_MATCHES: Final = 500
"""Lines that are told."""
MAX_SHOWN_CHARS: Final = 400
"""Of one line."""
MAX_OUTPUT_CHARS: Final = 200_000
MAX_SEARCHED_CHARS: Final = 100_000
"""Of one line, from its beginning: a pattern remembers where it has been."""
LINE_TIMEOUT_S: Final = 0.5
"""For one line. A pattern that takes longer would take for ever."""
_TIME_CHECK_LINES: Final = 1_000
"""After so many, the time is looked at."""
_SPECIAL_CHARS: Final = frozenset("\\.^$*+?{}[]()|\ufffd")
"""Without these an expression means itself, and a file without its bytes need not be looked at line by line."""
_BEFORE_CHARS: Final = 100
"""Shown of a long line in front of what matches."""


def grep(
    root: WorkspaceRoot,
    pattern: str,
    bounds: SearchLimits,
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
        search = _GrepSearch(compile_regex(pattern, ignore_case=ignore_case), around, bounds)
    except ValueError as error:
        raise ToolCallRefused(f"The pattern is refused: {error}.") from None
    if not ignore_case and _SPECIAL_CHARS.isdisjoint(pattern):
        search.required_bytes = encode_text(pattern)
    parts = parse_path(path)
    if parts and not root.is_directory(parts):
        data = root.read_bytes(path)
        if what := describe_binary(data):
            raise ToolCallRefused(f"{display_path(parts)} is {what}.")
        search.search_text(parts, data)
        return search.render()
    with contextlib.closing(walk(root, parts, GlobPattern(files or "**", anywhere=True), bounds)) as found:
        for one in found:
            if one.kind == "file":
                search.search_file(root, one)
            if search.is_full:
                break
    return search.render()


class _GrepSearch:
    """One search, as it goes from file to file."""

    def __init__(self, pattern: Any, around: int, bounds: SearchLimits) -> None:  # noqa: ANN401 - the library has no types
        self.required_bytes = b""
        """What every file that matches has in it."""
        self.is_full = False
        """Nothing more is to be found."""
        self._pattern = pattern
        self._context_lines = around
        self._limits = bounds
        self._lines = list[str]()
        self._chars = self._matches = self._files = self._searched = 0
        self._left_out = Counter[str]()

    def search_file(self, root: WorkspaceRoot, found: FoundEntry) -> None:
        """Look into a file, if it can be opened and is a text. Raises Refused for a pattern that is too slow."""
        try:
            data = root.read_at(found.parent_fd, found.parts)
        except (OSError, ToolCallRefused):
            self._left_out["too large or not to be opened"] += 1
            return
        if not self._limits.spend(read=len(data)):
            self.is_full = True
        elif describe_binary(data):
            self._left_out["binary"] += 1
        else:
            self.search_text(found.parts, data)

    def search_text(self, parts: PathParts, data: bytes) -> None:
        """Look into what is in one."""
        self._searched += 1
        if self.required_bytes not in data:
            return
        lines, name, spans = decode_text(data).lines, display_path(parts), dict[int, tuple[int, int]]()
        for number, line in enumerate(lines, start=1):
            if number % _TIME_CHECK_LINES == 0 and self._limits.is_late():
                self.is_full = True
                break
            span = self._match_span(name, number, line)
            if span is None:
                continue
            if self._matches + len(spans) == MAX_MATCHES:
                self._stop_at_limit()
                break
            spans[number] = span
        if spans:
            self._files += 1
            self._matches += len(spans)
            self._append_lines(name, lines, spans)

    def render(self) -> str:
        cut = f"; there may be more, but {self._limits.cut_reason}: look for less" if self._limits.cut_reason else ""
        left = "".join(f"; {_format_count(count, 'file')} left out ({why})" for why, count in self._left_out.items())
        unopened = f"; {self._limits.unopened} directories could not be opened" if self._limits.unopened else ""
        searched = f"of {_format_count(self._searched, 'file')} searched"
        if not self._matches:
            return f"No line matches, {searched}{cut}{left}{unopened}."
        what = (
            f"{_format_count(self._matches, 'line')} in {_format_count(self._files, 'file')}, "
            f"{searched}{cut}{left}{unopened}:"
        )
        return "\n".join([what, *self._lines])

    def _match_span(self, name: str, number: int, line: str) -> tuple[int, int] | None:
        """Where in the line; None: nowhere."""
        if len(line) > MAX_SEARCHED_CHARS:
            line = line[:MAX_SEARCHED_CHARS]
            self._limits.cut_reason = (
                self._limits.cut_reason or f"lines are searched up to their character {MAX_SEARCHED_CHARS:,}"
            )
        try:
            match = self._pattern.search(line, timeout=LINE_TIMEOUT_S, concurrent=True)
        except (TimeoutError, MemoryError):
            raise ToolCallRefused(
                f"The pattern takes too long on line {number} of {name}: write it without one repetition in another."
            ) from None
        return None if match is None else match.span()

    def _append_lines(self, name: str, lines: Sequence[str], spans: dict[int, tuple[int, int]]) -> None:
        last = 0
        for middle in spans:
            first, until = max(1, middle - self._context_lines, last + 1), min(len(lines), middle + self._context_lines)
            if self._context_lines and self._lines and (not last or first > last + 1):
                self._lines.append("--")
            for number in range(first, until + 1):
                mark = ":" if number in spans else "-"
                line = _clip_line(lines[number - 1], spans.get(number, (0, 0)))
                self._lines.append(f"{name}{mark}{number}{mark}{line}")
                self._chars += len(self._lines[-1]) + 1
            last = max(last, until)
            if self._chars > MAX_OUTPUT_CHARS:
                self._stop_at_limit()
                break

    def _stop_at_limit(self) -> None:
        self._limits.cut_reason = "so many match"
        self.is_full = True


def _clip_line(line: str, span: tuple[int, int]) -> str:
    """A line, or what is around its match."""
    if len(line) <= MAX_SHOWN_CHARS:
        return line
    start = max(0, span[0] - _BEFORE_CHARS)
    end = start + MAX_SHOWN_CHARS
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
