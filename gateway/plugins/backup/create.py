"""Backups: everything of a gateway that cannot be made again, in one file. Blocks.

A backup is a tar file (POSIX.1-2001 pax) of plain files. Its last member is the list of their
checksums, as `sha256sum` writes and checks it, so a truncated file has none. It holds the store,
its files of old months, the files of the agents, and attachments of waiting posts; not the
configuration, which is the operator's and may contain secrets, and not `media`, which is a cache.

A backup can be made beside a running gateway. It is built in a locked directory beside the target,
which the next backup removes after a kill, and appears under its name when it is complete. It never
replaces a file. `restore` has the other direction.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from gateway.command_line import fill_command, load_settings, report_failure
from gateway.config.models import Settings
from gateway.core.clock import SystemClock
from gateway.core.logging import show_progress
from gateway.core.private_files import agent_state_directory
from gateway.core.text_safety import escape_unprintable
from gateway.store import ServerStore, StoreError, store_location
from gateway.store.archive import list_month_files
from gateway.store.files import (
    CopyProgress,
    StoreSummary,
    check_store,
    copy_store,
    seal_store,
    sync_directory,
)
from gateway.store.transfer import transfer_store

SUMS_NAME: Final = "SHA256SUMS"
STORE_NAME: Final = "store/reverie.db"
OUTFILES_NAME: Final = "outfiles"
"""Attachments of waiting posts."""
ROOT_KINDS: Final = ("mind", "workspace", "files")
"""Directories of an agent: its state, its persona with its notes, and the working directory of its
tools."""
_STORE_NAMES: Final = re.compile(rf"{re.escape(STORE_NAME)}(\.\d{{4}}-\d{{2}}\.jsonl\.gz)?")
_STAGING_PREFIX: Final = ".reverie-backup-"


class InvalidBackup(Exception):
    """The file is not a usable backup. The message says why and what to do."""


class BackupReport(NamedTuple):
    """A finished backup."""

    path: Path
    size_bytes: int
    store: StoreSummary
    left_out: tuple[str, ...]
    """Files that are not in it: not plain, or with a name that no backup has."""


def is_safe_name(name: str) -> bool:
    """Return whether the name is a relative path that a backup may contain."""
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return False
    if _STORE_NAMES.fullmatch(name) is not None:
        return True
    return len(parts) > (2 if parts[0] in ROOT_KINDS else 1) and parts[0] in (
        *ROOT_KINDS,
        OUTFILES_NAME,
    )


class BackupSource(NamedTuple):
    """A file or a directory of a backup."""

    name: str
    """Name in the backup."""
    path: Path


def backup_roots(settings: Settings) -> list[BackupSource]:
    """Return all directories that may exist, in the order of copying; none is inside another."""
    store = settings.store.path
    found = [
        BackupSource(f"mind/{agent.id}", agent_state_directory(store, agent.id))
        for agent in settings.agents
    ]
    found += [
        BackupSource(f"workspace/{agent.id}", agent.workspace)
        for agent in settings.agents
        if agent.workspace
    ]
    found += [
        BackupSource(f"files/{agent.id}", agent.files) for agent in settings.agents if agent.files
    ]
    found.append(BackupSource(OUTFILES_NAME, store.parent / OUTFILES_NAME))
    chosen = list[BackupSource]()
    for root in found:
        path = root.path.resolve()
        if not any(path.is_relative_to(other.path.resolve()) for other in chosen):
            chosen.append(root)
    return chosen


def list_files(root: BackupSource, left_out: list[str]) -> Iterator[BackupSource]:
    """Yield the files of a directory in the order of copying.

    Marks come first: they record what the other files contain, and one that is older than these is
    corrected at the next start. Symbolic links are not followed. Files that are not plain, or whose
    name is none of a backup (with line breaks, backslashes or bytes that are no text), are added to
    `left_out`.
    """
    found = list[BackupSource]()
    for here, below, names in os.walk(root.path, onerror=_raise_unless_missing):
        place = Path(here)
        inside = place.relative_to(root.path)
        for path in (place / name for name in (*names, *below)):
            if path.name in below and not path.is_symlink():
                continue
            name_in_backup = "/".join((root.name, *inside.parts, path.name))
            try:
                plain = stat.S_ISREG(path.lstat().st_mode)
            except FileNotFoundError:  # it was removed just now
                continue
            if plain and is_safe_name(name_in_backup):
                found.append(BackupSource(name_in_backup, path))
            else:
                left_out.append(name_in_backup.encode(errors="backslashreplace").decode())
    yield from sorted(found, key=lambda one: (not one.name.endswith(".mark"), one.name))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def create_backup(
    settings: Settings, target: Path, now: datetime, progress: CopyProgress
) -> BackupReport:
    """Write a backup to a new file, readable by its owner only.

    Raises OSError (FileExistsError: the file exists) and StoreError. On failure nothing is left.
    """
    if os.path.lexists(target):
        raise FileExistsError(
            errno.EEXIST, "it is there already, and no backup replaces a file", str(target)
        )
    store = settings.store.path
    left_out, digests = list[str](), dict[str, str]()
    with _staging_directory(target.parent) as staging:
        archive, copied = staging / "archive", staging / "store"
        with os.fdopen(os.open(archive, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                # Before the store: what a file lacks is later added from the log; what it had
                # beyond that would stay.
                for root in backup_roots(settings):
                    for one in list_files(root, left_out):
                        _add_file(tar, one, digests)
                if isinstance(location := store_location(settings.store), ServerStore):
                    transfer_store(location, copied, SystemClock(), progress)
                    seal_store(copied)
                else:
                    copy_store(location, copied, progress)
                found = check_store(copied)
                _add_file(tar, BackupSource(STORE_NAME, copied), digests)
                # After the store: what leaves the log meanwhile is in both.
                for path in list_month_files(store):
                    name = f"{STORE_NAME}{path.name.removeprefix(store.name)}"
                    _add_file(tar, BackupSource(name, path), digests)
                # As `sha256sum` writes it.
                lines = [f"{digest}  {name}\n" for name, digest in digests.items()]
                text = "".join(lines).encode()
                header = _tar_header(SUMS_NAME, len(text))
                header.mtime = int(now.timestamp())
                tar.addfile(header, io.BytesIO(text))
            file.flush()
            os.fsync(file.fileno())
        _publish(archive, target)
    return BackupReport(target, target.stat().st_size, found, tuple(left_out))


def _add_file(tar: tarfile.TarFile, one: BackupSource, digests: dict[str, str]) -> None:
    """Add a file as it is now, unless it is gone, and its digest. One that grows meanwhile is cut
    at its old size.
    """
    try:
        opened = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with _HashingReader(one.path, opened) as file:
        status = os.fstat(opened)
        tar.addfile(_tar_header(one.name, status.st_size, runs=bool(status.st_mode & 0o100)), file)
    digests[one.name] = file.digest.hexdigest()


class _HashingReader(io.BufferedReader):
    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(io.FileIO(descriptor))
        self.path, self.digest = path, hashlib.sha256()

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        if len(piece) < (size or 0):
            raise OSError(errno.EBUSY, f"{self.path} became shorter while it was read: try again")
        self.digest.update(piece)
        return piece


def _tar_header(name: str, size: int, *, runs: bool = False) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o700 if runs else 0o600
    return header


@contextlib.contextmanager
def _staging_directory(directory: Path) -> Iterator[Path]:
    """Create a temporary directory; remove those that earlier processes left. Raises OSError."""
    for stale in directory.glob(f"{_STAGING_PREFIX}*"):
        with contextlib.suppress(OSError), _lock_directory(stale):
            shutil.rmtree(stale)
    try:
        staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=directory))
    except OSError as error:
        error.filename = str(directory)  # people know no other name
        raise
    try:
        with _lock_directory(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Hold a lock on the directory. Raises BlockingIOError if another process holds it."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _publish(archive: Path, target: Path) -> None:
    """Give the archive its name, if no file has it: link() fails where rename() would replace."""
    try:
        os.link(archive, target)
    except OSError:
        if os.path.lexists(target):
            raise
        archive.rename(target)  # a file system without hard links
    sync_directory(target.parent)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie backup`. Exit codes: 0 done; 1 interrupted, or the disk failed; 2
    refused.
    """
    fill_command(parser, _run, where="config")
    parser.add_argument(
        "-o", "--output", default="", metavar="FILE", help="a new file, or the directory for one"
    )


def _run(args: argparse.Namespace) -> int:
    settings = load_settings(args.config)
    now = datetime.now(UTC)
    target = Path(args.output)
    if target.is_dir() or args.output.endswith("/"):
        target /= f"reverie-{now:%Y%m%dT%H%M%SZ}.tar"
    try:
        report = create_backup(settings, target, now, show_progress("copying the store", ""))
    except (StoreError, OSError) as error:
        lost_nothing = "no backup was made, and nothing was lost"
        remedy = f"make room in {target.absolute().parent}, or name another place with -o"
        return report_failure("backup", explain_full_disk(error, f"{lost_nothing}: {remedy}"))
    except KeyboardInterrupt:
        print("interrupted: no backup was made", file=sys.stderr)
        return 1
    print(f"{report.path}: {report.size_bytes / 1e6:.1f} MB, {describe_store(report.store)}")
    for name in report.left_out:
        print(
            "left out, because it is not a regular file or has no plain name: "
            f"{escape_unprintable(name)}"
        )
    return 0


def explain_full_disk(error: Exception, remedy: str) -> Exception:
    """Return the error; of a full disk, one that says so, with what to do about it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OSError(f"the disk is full; {remedy}")
    return error


def describe_store(store: StoreSummary) -> str:
    """Return what a store holds, for people."""
    return f"{store.entries} log entries up to {store.last}, integrity checked"
