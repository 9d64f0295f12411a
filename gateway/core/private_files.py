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

PARTIAL_MAX_AGE_S: Final = 3600.0
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
        with open_directory(path.parent) as directory:
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
    make_directories(path.parent)
    with open_directory(path.parent) as directory:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(
                os.stat(path.name, dir_fd=directory, follow_symlinks=False).st_mode
            ):
                raise OSError(errno.ELOOP, "it is a link or no file", str(path))
        remove_stale_partials(directory)
        replace_in(directory, path.name, text)


def replace_in(
    directory: int, name: str, data: bytes, mode: int = 0o600, like: os.stat_result | None = None
) -> None:
    """Replace the whole file in an open directory, whatever is there: after a crash, the old or the
    new one is there. `like`: status of whose owner the file is to be, as far as we may give it
    away; None: ours.
    """
    half = f".reverie-{secrets.token_hex(8)}.half"
    handle = os.open(
        half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600, dir_fd=directory
    )
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if like is not None and (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):  # then it is ours from now on
                    os.fchown(handle, like.st_uid, like.st_gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.replace(half, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(half, dir_fd=directory)
        raise
    os.fsync(directory)


def is_partial_file(name: str) -> bool:
    """Return True for a file of ours that is not whole yet, or was left by a crash."""
    return re.fullmatch(r"\.reverie-[0-9a-f]{16}\.half", name) is not None


def remove_stale_partials(directory: int) -> None:
    """Remove partial files of a crash. Those that somebody else is writing now are younger."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if is_partial_file(entry.name):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - PARTIAL_MAX_AGE_S:
                        os.unlink(entry.name, dir_fd=directory)


@contextlib.contextmanager
def open_directory(directory: Path) -> Iterator[int]:
    """Yield the descriptor of an open directory."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def make_directories(directory: Path) -> None:
    """Make a directory and those above it, for their owner only."""
    if not directory.is_dir():
        make_directories(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
