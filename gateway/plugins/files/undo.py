"""What a turn overwrites or deletes in a directory of files is kept for a day, and can be brought
back. Blocks.

Before a file tool changes a file, that file is copied; before the first command of a turn, all
files of its place are, up to `MAX_KEPT_FILES` and `MAX_KEPT_BYTES`. The copies are beside the
files, where no command sees them: `undo/TURN/DIRECTORY/...`, each whole or not there. What has not
changed since the last copy of all is a link to it. They are put aside only once all of them are
back, so a kill at any point loses nothing: the same is done again.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gateway.context.workspace_fs import FilesArea, PathParts, WorkspaceRoot
from gateway.core.clock import id_created_at
from gateway.core.facts import TurnId
from gateway.core.private_files import is_partial_file, make_directories
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugins.files.listing import FoundEntry, GlobPattern, SearchLimits, walk

KEPT: Final = timedelta(days=1)
MAX_KEPT_FILES: Final = 2_000
"""Files, in the order of their paths, that are copied before a command. No file larger than a tool
reads is."""
MAX_KEPT_BYTES: Final = 50_000_000
_CLOCK_TICK_NS: Final = 100_000_000
"""Two changes within one tick of the file system's clock have the same time."""
_EVERYTHING: Final = GlobPattern("{**,**/.git/**}")
_WHOLE: Final = ".whole"
"""Directory of the marks of what was copied as a whole."""
_UNDONE: Final = "~"
"""In the names of what was brought back, and of what that replaced: both are kept for as long, for
the operator."""


def keep_files(folder: Path, turn: TurnId, area: FilesArea, only: PathParts | None = None) -> None:
    """Copy what a turn is about to change: one file, or all of them. What was copied in this turn
    stays as it is.

    Raises ToolCallRefused if it cannot be kept: then nothing may be changed.
    """
    kept, mark = folder.joinpath(turn, *area.directory), _mark(folder / turn, area)
    try:
        remove_expired(folder, id_created_at(turn))
        if only is not None:
            missing = contextlib.suppress(
                FileNotFoundError, ToolCallRefused
            )  # or no tool could read it
            with missing, area.root.open_directory(only[:-1]) as above:
                _copy(area, above, only, kept)
        elif not mark.exists():
            whole = (
                one for one in sorted(folder.glob("*"), reverse=True) if _mark(one, area).exists()
            )
            before = next(whole, folder).joinpath(*area.directory)
            for parts, above in _find_files(area):
                with contextlib.suppress(
                    FileNotFoundError, PermissionError, ToolCallRefused
                ):  # gone, or too large
                    _copy(area, above, parts, kept, before)
            make_directories(mark)
    except OSError as error:
        raise ToolCallRefused(
            f"Nothing is changed: it could not be undone ({error.strerror})."
        ) from None


def undo_files(
    folder: Path, area: FilesArea, now: datetime
) -> tuple[datetime, list[PathParts], list[PathParts]] | None:
    """Bring back what the newest turn that is kept has changed in a directory. None: there is none.

    Returns when it began, what was brought back, and the files that something else stands in the
    way of, or that were changed just now. What it made anew stays. Raises OSError.
    """
    remove_expired(folder, now)
    names = [one.name for one in sorted(folder.glob("*")) if one.joinpath(*area.directory).is_dir()]
    turn = next((name for name in reversed(names) if _UNDONE not in name), "")
    if (began := id_created_at(turn)) is None:
        return None
    kept = folder.joinpath(turn, *area.directory)
    replaced, done = (
        folder.joinpath(f"{turn}{_UNDONE}{end}", *area.directory)
        for end in ("", secrets.token_hex(4))
    )
    root = WorkspaceRoot(area.root.path, MAX_KEPT_BYTES)
    restored, failed = list[PathParts](), list[PathParts]()
    for file in sorted(
        one for one in kept.rglob("*") if one.is_file() and not is_partial_file(one.name)
    ):
        parts, data = file.relative_to(kept).parts, file.read_bytes()
        try:
            with contextlib.suppress(ToolCallRefused):
                if (present := root.read(parts)) == data:
                    continue
                _write(replaced.joinpath(*parts), present, 0o600)
            root.write(parts, data, file.stat().st_mode & 0o777)
            restored.append(parts)
        except ToolCallRefused:
            failed.append(parts)
    shutil.rmtree(folder.joinpath(turn, _WHOLE), ignore_errors=True)
    make_directories(done.parent)
    kept.rename(done)
    return began, restored, failed


def remove_expired(folder: Path, now: datetime | None) -> None:
    """Remove what was kept for a day. Raises OSError."""
    for one in folder.glob("*"):
        began = id_created_at(one.name.partition(_UNDONE)[0])
        if began is not None and now is not None and now - began > KEPT:
            shutil.rmtree(one, ignore_errors=True)


def _find_files(area: FilesArea) -> Iterator[tuple[PathParts, int]]:
    """Yield the files of an area that are kept, with the descriptors of their directories."""
    limits = SearchLimits(names=20 * MAX_KEPT_FILES, read_bytes=MAX_KEPT_BYTES)
    count = 0
    with contextlib.closing(walk(area, (), _EVERYTHING, limits)) as found:
        for one in found:
            if one.kind == "file" and not is_partial_file(one.parts[-1]):
                count += 1
                if count > MAX_KEPT_FILES or not limits.spend(read=_size(one)):
                    return
                yield one.parts, one.parent_fd


def _size(entry: FoundEntry) -> int:
    with contextlib.suppress(FileNotFoundError):  # a job has just removed it
        return os.stat(entry.parts[-1], dir_fd=entry.parent_fd, follow_symlinks=False).st_size
    return 0


def _mark(turn: Path, area: FilesArea) -> Path:
    return turn.joinpath(_WHOLE, *area.directory)


def _copy(
    area: FilesArea, above: int, parts: PathParts, kept: Path, before: Path | None = None
) -> None:
    """`before`: copies of all files by an earlier turn."""
    to = kept.joinpath(*parts)
    if to.exists():
        return
    status = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
    changed = status.st_ctime_ns  # no command can set it
    with contextlib.suppress(OSError):
        if before is not None and (old := before.joinpath(*parts)).lstat().st_mtime_ns == changed:
            make_directories(to.parent)
            os.link(old, to)
            return
    _write(to, area.root.read_at(above, parts), status.st_mode & 0o777)
    if time.time_ns() - changed > _CLOCK_TICK_NS:
        os.utime(to, ns=(changed, changed))


def _write(to: Path, data: bytes, mode: int) -> None:
    make_directories(to.parent)
    half = to.with_name(f".reverie-{secrets.token_hex(8)}.half")
    half.write_bytes(data)
    half.chmod(mode)
    half.replace(to)
