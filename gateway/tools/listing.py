"""Looking through an agent's files by name. Blocks; bounded in names, time and output.

Hidden files count. What is in a `.git` directory does not, unless it is named: nobody looks for anything in there.
Links are listed, and never followed. The order is that of the names, so the same files are told in the same way.
"""

import contextlib
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from gateway.tools.globs import GlobPattern, GlobState
from gateway.tools.paths import MAX_PATH_PARTS, PathParts, display_path
from gateway.tools.root import OPEN_DIRECTORY_FLAGS, WorkspaceRoot, is_partial_file

MAX_LISTED: Final = 1_000
"""Paths that are told."""
_SKIPPED_DIRECTORY: Final = ".git"

EntryKind = Literal["file", "directory", "link", "other"]
_KIND_SUFFIXES: Final[dict[EntryKind, str]] = {"file": "", "directory": "/", "link": " (a link)", "other": " (no file)"}


class FoundEntry(NamedTuple):
    """Something in a directory."""

    parts: PathParts
    kind: EntryKind
    parent_fd: int
    """That directory, open until the next one is asked for."""


@dataclass(slots=True)
class SearchLimits:
    """What one search may cost."""

    is_stopped: Callable[[], bool] = lambda: False
    """Nobody waits for it any more. Asked from another thread than it is told in."""
    now: Callable[[], float] = time.monotonic
    """In seconds."""
    seconds: float = 10.0
    names: int = 100_000
    """Looked at."""
    read_bytes: int = 500_000_000
    """Of all files together."""
    unopened: int = 0
    """Directories that could not be opened."""
    cut_reason: str = ""
    """Something was not looked at, because of this."""
    _deadline: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._deadline = self.now() + self.seconds

    def is_late(self) -> bool:
        """Whether it is to end now."""
        if self.is_stopped() or self.now() >= self._deadline:
            self.cut_reason = self.cut_reason or f"it took {self.seconds:g} s"
            return True
        return False

    def spend(self, *, names: int = 0, read: int = 0) -> bool:
        """Whether so much more may be looked at; then it is counted."""
        if self.names < names or self.read_bytes < read:
            self.cut_reason = self.cut_reason or "there are so many files"
            return False
        self.names -= names
        self.read_bytes -= read
        return True


def glob(root: WorkspaceRoot, pattern: str, bounds: SearchLimits) -> str:
    """Paths that match, one a line; directories end with a slash. Raises Refused."""
    wanted = GlobPattern(pattern)
    lines = list[str]()
    with contextlib.closing(walk(root, (), wanted, bounds)) as found:
        for one in found:
            if len(lines) == MAX_LISTED:
                bounds.cut_reason = "so many match"
                break
            lines.append(f"{display_path(one.parts)}{_KIND_SUFFIXES[one.kind]}")
    cut = f"; there may be more, but {bounds.cut_reason}: use a narrower pattern" if bounds.cut_reason else ""
    unopened = f"; {bounds.unopened} directories could not be opened" if bounds.unopened else ""
    if lines:
        return "\n".join([f"{len(lines)} {'path' if len(lines) == 1 else 'paths'}{cut}{unopened}:", *lines])
    elsewhere = "" if "/" in pattern or cut else f" `**/{pattern.strip()}` looks into all directories."
    return f"Nothing matches{cut}{unopened}.{elsewhere}"


def walk(root: WorkspaceRoot, top: PathParts, wanted: GlobPattern, bounds: SearchLimits) -> Generator[FoundEntry]:
    """What matches below a directory, sorted. Raises Refused if that cannot be opened. To be closed."""
    place = wanted.initial_state
    for name in top:
        place = wanted.advance(place, name)
    with root.open_directory(top) as handle:
        yield from _walk_below(handle, top, place, wanted, bounds)


def _walk_below(
    handle: int, parts: PathParts, place: GlobState, wanted: GlobPattern, bounds: SearchLimits
) -> Generator[FoundEntry]:
    for name, kind in _scan_directory(handle, bounds):
        if bounds.is_late():
            return
        here = wanted.advance(place, name)
        if wanted.is_match(here):
            yield FoundEntry((*parts, name), kind, handle)
        if (
            kind != "directory"
            or not wanted.can_match_below(here)
            or (name == _SKIPPED_DIRECTORY and name not in wanted.names)
        ):
            continue
        inner = _open_directory(handle, name) if len(parts) + 1 < MAX_PATH_PARTS else None
        if inner is None:
            bounds.unopened += 1
            continue
        try:
            yield from _walk_below(inner, (*parts, name), here, wanted, bounds)
        finally:
            os.close(inner)


def _open_directory(handle: int, name: str) -> int | None:
    try:
        return os.open(name, OPEN_DIRECTORY_FLAGS, dir_fd=handle)
    except OSError:
        return None


def _scan_directory(handle: int, bounds: SearchLimits) -> list[tuple[str, EntryKind]]:
    """The names in a directory, sorted, with what they are; as many as may be looked at."""
    names = list[tuple[str, EntryKind]]()
    with contextlib.suppress(OSError), os.scandir(handle) as entries:
        for entry in entries:
            if bounds.is_late() or not bounds.spend(names=1):
                break
            if not is_partial_file(entry.name):
                names.append((entry.name, _entry_kind(entry)))
    return sorted(names)


def _entry_kind(entry: "os.DirEntry[str]") -> EntryKind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
