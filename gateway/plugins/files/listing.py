"""Listing of files by glob patterns. Blocks; safe in threads.

Glob patterns have `*`, `?`, `[a-z]`, `{a,b}`, and `**` for any number of directories. No name can
make a pattern slow: `fnmatch` does not backtrack. The package `wcmatch` (12.0) matches whole paths
with one regular expression that does: eight times `**/a/` took 15 s on one path.

Listing and searching are limited in names, time and output. Hidden files are included. The content
of a `.git` directory is not, unless the pattern names it. Links are listed, and never followed.
Names are sorted, so the same files give the same output.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from gateway.context.workspace_fs import (
    FILES_PREFIX,
    MAX_PATH_PARTS,
    OPEN_DIRECTORY_FLAGS,
    ROOT_PREFIX,
    FilesArea,
    FilesView,
    PathParts,
    display_path,
    refuse_os_errors,
    require_regular,
)
from gateway.core.private_files import is_partial_file
from gateway.core.tool_spec import ToolCallRefused

MAX_BRACE_COMMAS: Final = 10
"""Commas in the braces of a pattern, which then stand for 1,024 patterns at most."""
_DOUBLE_STAR: Final = "**"


class GlobPattern:
    """Glob pattern for paths."""

    def __init__(self, written: str, *, anywhere: bool = False) -> None:
        """Raises ToolCallRefused for a pattern without matches.

        `anywhere`: it may begin in any directory, not only at the top.
        """
        self.written = written.strip()
        pattern = self.written.removeprefix(f"{ROOT_PREFIX}/")
        if pattern.startswith("/"):
            raise ToolCallRefused(
                f"{display_path(pattern)} is outside: write a pattern relative to {ROOT_PREFIX}, "
                "e.g. **/*.md."
            )
        if anywhere:
            pattern = f"{_DOUBLE_STAR}/{pattern}"
        self._alternatives = [
            tuple(one for one in choice.split("/") if one not in ("", "."))
            for choice in _expand_braces(pattern)
        ]
        if any(".." in names for names in self._alternatives):
            raise ToolCallRefused(
                f"{display_path(pattern)} goes up with `..`: write a pattern from the top, e.g. "
                "**/*.md."
            )
        if not all(self._alternatives):
            raise ToolCallRefused("A pattern names files, e.g. `*` or `**/*.md`.")
        self.names_git = any(_SKIPPED_DIRECTORY in names for names in self._alternatives)
        """Whether it looks into a `.git` directory."""

    def matches(self, path: PathParts) -> bool:
        return any(_matches(names, path) for names in self._alternatives)


@lru_cache(maxsize=65_536)
def _matches(pattern: PathParts, path: PathParts) -> bool:
    if not pattern:
        return not path
    if pattern[0] == _DOUBLE_STAR:
        return _matches(pattern[1:], path) or (bool(path) and _matches(pattern, path[1:]))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])


def _expand_braces(pattern: str) -> list[str]:
    if (found := re.search(r"\{([^{}]*,[^{}]*)\}", pattern)) is None:
        return [pattern]
    if pattern.count(",") > MAX_BRACE_COMMAS:
        raise ToolCallRefused(
            f"The braces of a pattern hold at most {MAX_BRACE_COMMAS} commas: use fewer."
        )
    return [
        expanded
        for choice in found[1].split(",")
        for expanded in _expand_braces(pattern[: found.start()] + choice + pattern[found.end() :])
    ]


def find_all(view: FilesView, pattern: str) -> tuple[Sequence[FilesArea], GlobPattern]:
    """Return in which directories a pattern looks. Raises ToolCallRefused."""
    if not pattern.strip().startswith(f"{FILES_PREFIX}/"):
        return (view.own,), GlobPattern(pattern)
    areas = [view.own._replace(is_own=False), *view.others]
    everything = [area for area in areas if not area.directory]
    return everything or areas, GlobPattern(pattern.strip().removeprefix(f"{FILES_PREFIX}/"))


MAX_LISTED: Final = 1_000
_SKIPPED_DIRECTORY: Final = ".git"

EntryKind = Literal["file", "directory", "link", "other"]
_KIND_SUFFIXES: Final[dict[EntryKind, str]] = {
    "file": "",
    "directory": "/",
    "link": " (a link)",
    "other": " (no file)",
}


class FoundEntry(NamedTuple):
    """Entry of a directory."""

    parts: PathParts
    kind: EntryKind
    parent_fd: int
    """Descriptor of its directory, valid until the next entry is requested."""


@dataclass(slots=True)
class SearchLimits:
    """Limits of one search, and what it has used."""

    is_stopped: Callable[[], bool] = lambda: False
    """Returns True once nobody waits for the search. Called from another thread."""
    now: Callable[[], float] = time.monotonic
    seconds: float = 10.0
    names: int = 100_000
    """Names that may still be read."""
    read_bytes: int = 500_000_000
    """Bytes of files that may still be read."""
    unopened: int = 0
    """Directories that could not be opened."""
    cut_reason: str = ""
    """Reason why something was skipped. Empty: nothing was."""
    _deadline: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._deadline = self.now() + self.seconds

    def is_late(self) -> bool:
        """Return True if the search must end now."""
        if self.is_stopped() or self.now() >= self._deadline:
            self.cut_reason = self.cut_reason or f"it took {self.seconds:g} s"
            return True
        return False

    def spend(self, *, names: int = 0, read: int = 0) -> bool:
        """Take this much from the limits. Return False if there is not enough left."""
        if self.names < names or self.read_bytes < read:
            self.cut_reason = self.cut_reason or "there are so many files"
            return False
        self.names -= names
        self.read_bytes -= read
        return True


def list_paths(areas: Sequence[FilesArea], pattern: GlobPattern, limits: SearchLimits) -> str:
    """Return matching paths, one a line; directories end with a slash. Raises ToolCallRefused."""
    lines = list[str]()
    for area in areas:
        with contextlib.closing(walk(area, (), pattern, limits)) as found:
            for one in found:
                if len(lines) == MAX_LISTED:
                    limits.cut_reason = "so many match"
                    break
                if not is_partial_file(one.parts[-1]):
                    lines.append(f"{area.name(one.parts)}{_KIND_SUFFIXES[one.kind]}")
    cut = (
        f"; there may be more, but {limits.cut_reason}: use a narrower pattern"
        if limits.cut_reason
        else ""
    )
    unopened = f"; {limits.unopened} directories could not be opened" if limits.unopened else ""
    if lines:
        return "\n".join(
            [f"{len(lines)} {'path' if len(lines) == 1 else 'paths'}{cut}{unopened}:", *lines]
        )
    elsewhere = (
        ""
        if "/" in pattern.written or cut
        else f" `**/{pattern.written}` looks into all directories."
    )
    return f"Nothing matches{cut}{unopened}.{elsewhere}"


def walk(
    area: FilesArea, top: PathParts, pattern: GlobPattern, limits: SearchLimits
) -> Generator[FoundEntry]:
    """Yield matching entries below a directory, sorted; of a file, itself. Must be closed.

    Raises ToolCallRefused if it cannot be opened.
    """
    if top and not area.root.is_directory(top):
        with area.root.open_directory(top[:-1]) as above, refuse_os_errors(top):
            require_regular(os.stat(top[-1], dir_fd=above, follow_symlinks=False), top)
            yield FoundEntry(top, "file", above)
        return
    with area.root.open_directory(top) as handle:
        yield from _walk_below(handle, top, () if area.is_own else area.directory, pattern, limits)


def _walk_below(
    handle: int, parts: PathParts, above: PathParts, pattern: GlobPattern, limits: SearchLimits
) -> Generator[FoundEntry]:
    for name, kind in _scan_directory(handle, limits):
        if limits.is_late():
            return
        found = (*parts, name)
        if pattern.matches((*above, *found)):
            yield FoundEntry(found, kind, handle)
        if kind != "directory" or (name == _SKIPPED_DIRECTORY and not pattern.names_git):
            continue
        inner = _open_directory(handle, name) if len(found) < MAX_PATH_PARTS else None
        if inner is None:
            limits.unopened += 1
            continue
        try:
            yield from _walk_below(inner, found, above, pattern, limits)
        finally:
            os.close(inner)


def _open_directory(handle: int, name: str) -> int | None:
    try:
        return os.open(name, OPEN_DIRECTORY_FLAGS, dir_fd=handle)
    except OSError:
        return None


def _scan_directory(handle: int, limits: SearchLimits) -> list[tuple[str, EntryKind]]:
    """Return the names in a directory with their kinds, sorted; as many as the limits allow."""
    names = list[tuple[str, EntryKind]]()
    with contextlib.suppress(OSError), os.scandir(handle) as entries:
        for entry in entries:
            if limits.is_late() or not limits.spend(names=1):
                break
            names.append((entry.name, _entry_kind(entry)))
    return sorted(names)


def _entry_kind(entry: "os.DirEntry[str]") -> EntryKind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
