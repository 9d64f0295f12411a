"""The directory that an agent works in, and the only way from its tools to the disk. Blocks; safe in threads.

Its shell changes the same files meanwhile, and may mean harm. So nothing is looked at by a name of several parts: each
directory is opened from the one above it, by one name and never through a link, and what is done to a file is done from
the directory that was opened (openat(2), section "Rationale for openat() and other directory file descriptor APIs").
A directory that becomes a link meanwhile changes nothing that was opened before, and is refused if it is opened after.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from agent.tools.schema import ToolCallRefused
from gateway.tools.paths import PathParts, display_path, parse_file_path

RESERVED_DISK_BYTES: Final = 268_435_456
"""What files leave of the disk, or a twentieth of a smaller one: the gateway keeps its own records there."""
PARTIAL_MAX_AGE_S: Final = 3_600.0
"""Then half a file of a crash is removed, when its directory is written to."""

OPEN_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A link that was put there is not followed, and a pipe must not make us wait."""
_PARTIAL_NAME: Final = re.compile(r"\.reverie-[0-9a-f]{16}\.half")
_ERROR_REASONS: Final = {
    errno.ENOENT: "there is no such file or directory; glob lists what there is",
    errno.ENOTDIR: "a part of the path is a link, or no directory; links are not followed",
    errno.ELOOP: "it is a link, and links are not followed",
    errno.EISDIR: "it is a directory",
    errno.EACCES: "it may not be opened (its mode forbids it)",
    errno.EPERM: "it may not be changed",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "the files can only be read",
    errno.ENXIO: "it is no regular file",
    errno.EIO: "the disk fails",
}


class WriteResult(NamedTuple):
    """What a write did."""

    previous_bytes: int | None
    """Bytes that the file had. None: there was none."""
    size_bytes: int


class WorkspaceRoot:
    """One agent's files. All methods raise Refused, with a sentence for the model that names no path of the machine."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """`path` is the operator's: links on the way to it are followed. `max_bytes`: of a file, read or written.

        It is made when it is first needed, for its owner only.
        """
        self._path = path
        self.max_bytes = max_bytes
        self._write_lock = threading.Lock()

    def read_bytes(self, path: str) -> bytes:
        """All of a file, as the model names it."""
        parts = parse_file_path(path)
        with self.open_directory(parts[:-1]) as above, _refuse_os_errors(parts):
            return self.read_at(above, parts)

    def read_at(self, above: int, parts: PathParts) -> bytes:
        """The same, of the last part in a directory that is open. Raises OSError, too."""
        _require_regular(
            os.stat(parts[-1], dir_fd=above, follow_symlinks=False), parts
        )  # opening a device can do something
        handle = os.open(parts[-1], _OPEN_FILE_FLAGS, dir_fd=above)
        with os.fdopen(handle, "rb") as file:
            size = _require_regular(os.fstat(handle), parts).st_size
            content = file.read(self.max_bytes + 1) if size <= self.max_bytes else b""
        size = max(size, len(content))
        if size > self.max_bytes:
            raise ToolCallRefused(
                f"{display_path(parts)} has {size:,} bytes, more than the {self.max_bytes:,} that can be read at once: "
                "take a part of it with the shell."
            )
        return content

    def is_directory(self, parts: PathParts) -> bool:
        """Whether this, which is not the root itself, is one now."""
        with self.open_directory(parts[:-1]) as above, _refuse_os_errors(parts):
            return stat.S_ISDIR(os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode)

    def write(self, path: str, data: bytes) -> WriteResult:
        """Make a file, or replace all of it, with the directories above it.

        It is done whole or not at all, also in a crash, and what is done is on the disk.
        """
        parts = parse_file_path(path)
        self._check_size(parts, data)
        return self._replace_content(parts, lambda _: data, make=True)

    def edit(self, path: str, change: Callable[[bytes], bytes]) -> WriteResult:
        """Replace a file by what `change` makes of it, which may raise Refused; as `write`, and never makes one.

        No other write of ours comes between; if another program's does, it is refused.
        """
        return self._replace_content(parse_file_path(path), change, make=False)

    @contextlib.contextmanager
    def open_directory(self, parts: PathParts, *, make: bool = False) -> Iterator[int]:
        """A directory, open: the handle is good as long as this is not left. `make`: those that are not there."""
        with contextlib.ExitStack() as stack:
            handle = self._open_root()
            stack.callback(os.close, handle)
            for number, part in enumerate(parts, start=1):
                with _refuse_os_errors(parts[:number]):
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(part, 0o700, dir_fd=handle)
                            os.fsync(handle)
                    handle = os.open(part, OPEN_DIRECTORY_FLAGS, dir_fd=handle)
                stack.callback(os.close, handle)
            yield handle

    def _open_root(self) -> int:
        try:
            _make_directories(self._path)
            return os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ToolCallRefused(
                f"The files cannot be reached now ({error.strerror}): an admin has to look at it."
            ) from error

    def _replace_content(self, parts: PathParts, change: Callable[[bytes], bytes], *, make: bool) -> WriteResult:
        with self._write_lock, self.open_directory(parts[:-1], make=make) as above, _refuse_os_errors(parts):
            before = _stat_existing(above, parts)
            if before is None and not make:
                raise FileNotFoundError(errno.ENOENT, "")
            data = change(b"" if make else self.read_at(above, parts))
            self._check_size(parts, data)
            _check_disk_space(above, len(data))
            _remove_stale_partials(above)
            _replace_atomically(above, parts, data, before)
            return WriteResult(before.st_size if before else None, len(data))

    def _check_size(self, parts: PathParts, data: bytes) -> None:
        if len(data) > self.max_bytes:
            raise ToolCallRefused(
                f"{display_path(parts)} would have {len(data):,} bytes, and a file may have {self.max_bytes:,}: "
                "write less of it, or several files."
            )


def _make_directories(directory: Path) -> None:
    if not directory.is_dir():
        _make_directories(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def is_partial_file(name: str) -> bool:
    """It is a file of ours that is not whole yet, or never will be."""
    return _PARTIAL_NAME.fullmatch(name) is not None


def _stat_existing(above: int, parts: PathParts) -> os.stat_result | None:
    """What is to be written over. None: nothing is there."""
    try:
        seen = _require_regular(os.stat(parts[-1], dir_fd=above, follow_symlinks=False), parts)
    except FileNotFoundError:
        return None
    if seen.st_nlink > 1:
        raise ToolCallRefused(
            f"{display_path(parts)} has several names (hard links), so it is not written: choose another name."
        )
    return seen


def _replace_atomically(above: int, parts: PathParts, data: bytes, before: os.stat_result | None) -> None:
    name, half = parts[-1], f".reverie-{secrets.token_hex(8)}.half"
    mode = stat.S_IMODE(before.st_mode) & 0o777 if before else 0o600
    handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=above)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if before and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):  # then it is ours from now on
                    os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        _check_unchanged(above, parts, before)
        os.replace(half, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(half, dir_fd=above)
        raise
    os.fsync(above)


def _check_unchanged(above: int, parts: PathParts, before: os.stat_result | None) -> None:
    """Raises Refused, also for what it has become."""
    now = _stat_existing(above, parts)
    if (before and _file_identity(before)) != (now and _file_identity(now)):
        raise ToolCallRefused(f"{display_path(parts)} was changed by another program just now: read it again.")


def _file_identity(seen: os.stat_result) -> tuple[int, ...]:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def _check_disk_space(above: int, wanted: int) -> None:
    disk = os.fstatvfs(above)
    spare = min(RESERVED_DISK_BYTES, disk.f_blocks * disk.f_frsize // 20)
    if disk.f_bavail * disk.f_frsize - wanted < spare:
        raise ToolCallRefused(
            "The disk is nearly full, so nothing is written: remove what is not needed, or tell an admin."
        )


def _remove_stale_partials(above: int) -> None:
    """Half files of a crash. Those of another agent that writes here now are younger."""
    with os.scandir(above) as entries:
        for entry in entries:
            if is_partial_file(entry.name):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - PARTIAL_MAX_AGE_S:
                        os.unlink(entry.name, dir_fd=above)


def _require_regular(seen: os.stat_result, parts: PathParts) -> os.stat_result:
    """The same. Raises Refused for what is no file."""
    if stat.S_ISREG(seen.st_mode):
        return seen
    kinds = (
        (stat.S_ISDIR, "a directory: list it with glob"),
        (stat.S_ISLNK, "a link, and links are not followed: name the file itself"),
        (stat.S_ISFIFO, "a pipe, not a file"),
        (stat.S_ISSOCK, "a socket, not a file"),
    )
    what = next((words for test, words in kinds if test(seen.st_mode)), "a device, not a file")
    raise ToolCallRefused(f"{display_path(parts)} is {what}.")


@contextlib.contextmanager
def _refuse_os_errors(parts: PathParts) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = _ERROR_REASONS.get(error.errno or 0, os.strerror(error.errno or 0).lower())
        raise ToolCallRefused(f"{display_path(parts)}: {why}.") from error
