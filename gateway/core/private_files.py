"""Files that an agent keeps for itself: private, whole after a crash, never through a link. Blocks on the disk.

What is read and written is a file directly in a directory: a link in its place, or anything else that is no file, is
refused. All raise OSError.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

JOURNAL_FILE: Final = "journal.md"
MEMORY_FILE: Final = "MEMORY.md"

FileStamp = tuple[int, ...] | None
"""What tells one state of a file from another without reading it. None: not there."""

_OPEN_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A link that was put there is not followed, and a pipe must not make us wait."""
_MIN_OVERLAP_BYTES: Final = 2
"""So much of a text's beginning, at the end of a file, is a write of it that was cut off: more than a line's end."""


def agent_state_directory(store: Path, agent: str) -> Path:
    """Where what belongs to an agent, and to this store, is kept."""
    return store.parent / "mind" / agent


def agent_directory(workspace: Path | None, store: Path, agent: str) -> Path:
    """Where an agent's own files are: in its workspace, if it has one that is not everybody's."""
    return workspace or agent_state_directory(store, agent)


def file_stamp(path: Path) -> FileStamp:
    """Its present state. Two within one tick of the file system's clock, some ms, may look the same."""
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def read_private(path: Path, *, most: int) -> bytes | None:
    """All of it; None: there is none. A file of more than `most` bytes is refused."""
    try:
        with _open_directory(path.parent) as directory:
            handle = os.open(path.name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        _check_regular(path, handle)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def read_tail(path: Path, *, most: int) -> bytes:
    """Its last bytes; none if it is not there."""
    try:
        with _open_directory(path.parent) as directory:
            handle = os.open(path.name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return b""
    try:
        _check_regular(path, handle)
        return _read_end(handle, most)[0]
    finally:
        os.close(handle)


def append_private(path: Path, text: bytes) -> None:
    """Put this behind what is there; on the disk once it returns. Text begins with a line end.

    What was cut off at the file's end is gone on with, so the same text appended again after a crash stands there once.
    """
    _make_directory(path.parent)
    with _open_directory(path.parent) as directory:
        handle = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND | _OPEN_FLAGS, 0o600, dir_fd=directory)
        try:
            _check_regular(path, handle)
            before, size = _read_end(handle, len(text))
            if size < len(text):
                before = b"\n" + before  # a file begins where a line does
            rest = text[_overlap(before, text, fresh=size == 0) :]
            if size and len(rest) == len(text) and not before.endswith(b"\n"):
                rest = b"\n" + rest
            _write(handle, rest)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.fsync(directory)


def replace_private(path: Path, text: bytes) -> None:
    """Write all of it anew: afterwards, and after a crash, the old or the new text is there, whole."""
    _make_directory(path.parent)
    with _open_directory(path.parent) as directory:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, "it is a link or no file", str(path))
        half = f".{path.name}.new"
        with contextlib.suppress(FileNotFoundError):  # of a crash
            os.unlink(half, dir_fd=directory)
        handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600, dir_fd=directory)
        try:
            _write(handle, text)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(half, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)


@contextlib.contextmanager
def _open_directory(directory: Path) -> Iterator[int]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _make_directory(directory: Path) -> None:
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _check_regular(path: Path, handle: int) -> None:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


def _read_end(handle: int, most: int) -> tuple[bytes, int]:
    size = os.fstat(handle).st_size
    return os.pread(handle, most, max(0, size - most)), size


def _overlap(before: bytes, text: bytes, *, fresh: bool) -> int:
    """How much of `text` is there already."""
    if fresh:
        return 1
    found = (length for length in range(len(text), _MIN_OVERLAP_BYTES - 1, -1) if before.endswith(text[:length]))
    return next(found, 0)


def _write(handle: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(handle, left) :]
