"""Files that an agent keeps for itself: private, complete after a crash, never accessed through a
link. Blocks.

Only regular files directly in the directory are read and written: a link in their place, or any
other kind of file, is refused. All functions raise OSError.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

JOURNAL_FILE: Final = "journal.md"
MEMORY_FILE: Final = "MEMORY.md"

HALF_WRITTEN_S: Final = 3600.0
"""Age at which a file that was to replace another one is what a crash has left. Longer than the
clocks of two hosts that share a directory differ."""
FileStamp = tuple[int, ...] | None
"""Stamp that differs between two states of a file, without reading it. None: not there."""

_OPEN_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A link in the file's place is not followed, and a pipe does not block."""


def agent_state_directory(store: Path, agent: str) -> Path:
    """Return the directory of an agent's data in this store."""
    return store.parent / "mind" / agent


def agent_directory(workspace: Path | None, store: Path, agent: str) -> Path:
    """Return the directory of an agent's own files: its own workspace if it has one, else the state
    directory.
    """
    return workspace or agent_state_directory(store, agent)


def file_stamp(path: Path) -> FileStamp:
    """Return the present stamp. Two within one tick of the file system's clock, some ms, may be
    equal.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_private(path: Path, *, most: int) -> bytes | None:
    """Read the whole file; None: there is none. A file of more than `most` bytes is refused."""
    try:
        with _open_directory(path.parent) as directory:
            handle = os.open(path.name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def append_private(path: Path, text: bytes, *, most: int) -> None:
    """Append text, which begins with a line end, unless the file ends with it; it is on the disk on
    return. After a crash it is there whole or not at all.

    A file of more than `most` bytes is refused.
    """
    before = read_private(path, most=most) or b""
    if not before.endswith(text[1:]):
        gap = b"\n" if before and not before.endswith(b"\n") else b""
        replace_private(path, before + gap + (text if before else text[1:]))


def replace_private(path: Path, text: bytes) -> None:
    """Replace the whole file: afterwards, and after a crash, the old or the new text is there,
    complete.

    Several processes may write one file at the same time: each leaves a whole text, and the last
    one stays. What a crash left half written is removed by a write an hour later.
    """
    _make_directory(path.parent)
    temporary = f".{path.name}.{secrets.token_hex(8)}.new"
    with _open_directory(path.parent) as directory:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(
                os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode
            ):
                raise OSError(errno.ELOOP, "it is a link or no file", str(path))
        _remove_half_written(directory, path.name)
        handle = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600, dir_fd=directory
        )
        try:
            left = memoryview(text)
            while left:
                left = left[os.write(handle, left) :]
            os.fsync(handle)
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise
        finally:
            os.close(handle)
        os.fsync(directory)


def is_half_written(name: str, of: str) -> bool:
    """Return whether a file has the name of one that is being written, or was when a crash came.

    `of`: regular expression for the names of the files that it was to replace.
    """
    return re.fullmatch(rf"\.(?:{of})\.[0-9a-f]{{16}}\.new", name) is not None


def _remove_half_written(directory: int, name: str) -> None:
    for left in [one for one in os.listdir(directory) if is_half_written(one, re.escape(name))]:
        with contextlib.suppress(OSError):  # another process has removed it
            status = os.stat(left, dir_fd=directory, follow_symlinks=False)
            if time.time() - status.st_mtime >= HALF_WRITTEN_S:
                os.unlink(left, dir_fd=directory)


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
