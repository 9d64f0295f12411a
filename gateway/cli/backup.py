"""Writes a backup, beside a running gateway or without one. Blocks.

What is half stands in a directory of its own beside the backup, locked while it is used: the next backup there removes
what a kill has left. The backup itself appears when it is whole, under a name that nothing had.

Which files a backup holds besides the store, and where these belong. Blocks on the disk.

Not in it: the configuration, which is the operator's and may hold secrets, and `media`, which is a cache.

What a backup says of itself. Pure.

A backup is a tar file (POSIX.1-2001 pax) of plain files alone. The last of them is the manifest: a file that was cut
off has none. The same files, copied at the same time, are the same bytes.

Everything of a gateway that cannot be made again, in one file, and back.

`manifest` says what stands in one (pure); `kept` which files these are; `making` writes an archive beside a running
gateway; `reading` takes one apart and believes nothing that it says; `placing` puts what was taken apart where it
belongs; `settling` tells the restored store what can no longer be known. The store itself is `gateway.store.files`'s,
and what a kill leaves half is `gateway.store.files`'s.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.config.models import Settings
from gateway.core.clock import SystemClock
from gateway.core.private_files import agent_state_directory
from gateway.store import TableDifference
from gateway.store.files import StoreSummary, check_store, copy_store, newest_schema, seal_store
from gateway.store.rebuild import rebuild_blocking

MANIFEST_NAME: Final = "manifest.json"
STORE_NAME: Final = "store/reverie.db"
OUTFILES_NAME: Final = "outfiles"
"""What goes with posts that wait."""
ROOT_KINDS: Final = ("mind", "workspace", "files")
"""Of an agent: what belongs to it and to the store, its persona with what it writes there, what its tools work in."""


class InvalidBackup(Exception):
    """This is no backup that can be used. The message says why, and what to do."""


class BackupMember(BaseModel):
    """One file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size_bytes: int
    sha256: str
    """In lower-case hex."""


class BackupManifest(BaseModel):
    """All of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    made: datetime
    """When the store was copied, UTC."""
    version: str
    """Of the reverie that made it."""
    schema_version: int
    """Of the store."""
    entries: int
    """In the log."""
    last: int
    """The log's last position. 0: it is empty."""
    replayed: bool
    """Whether every table was compared with the log."""
    roots: tuple[str, ...]
    """Directories that are in it, empty ones too."""
    left_out: tuple[str, ...]
    """What is no plain file, or has a name that is no text: not in it."""
    members: tuple[BackupMember, ...]
    """Every other file, in its order."""


def dump_manifest(manifest: BackupManifest) -> bytes:
    """As it is written."""
    return manifest.model_dump_json(indent=1).encode() + b"\n"


def parse_manifest(text: bytes) -> BackupManifest:
    """Reverse `dump_manifest`. Raises BadBackup."""
    try:
        found = BackupManifest.model_validate_json(text)
    except ValidationError:
        raise InvalidBackup(
            "its manifest cannot be read: a newer reverie made it, which can restore it, or it is damaged"
        ) from None
    for name in (*found.roots, *(member.name for member in found.members)):
        if not is_safe_name(name):
            raise InvalidBackup(f"its manifest names {name!r}, which is no name of a backup: do not use it")
    return found


def is_safe_name(name: str) -> bool:
    """Whether it names a place inside, and nothing but one that a backup has."""
    parts = name.split("/")
    if "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return False
    return (
        name in (STORE_NAME, OUTFILES_NAME) or parts[0] == OUTFILES_NAME or (parts[0] in ROOT_KINDS and len(parts) > 1)
    )


def root_name(name: str) -> str:
    """The directory, as `BackupManifest.roots` has it, in which a member of that name is; itself for the store."""
    parts = name.split("/")
    return name if name == STORE_NAME else OUTFILES_NAME if parts[0] == OUTFILES_NAME else "/".join(parts[:2])


_MARK_SUFFIX: Final = ".mark"


class BackupRoot(NamedTuple):
    """A directory."""

    name: str
    """In a backup."""
    path: Path


class BackupFile(NamedTuple):
    """A file."""

    name: str
    """In a backup."""
    path: Path


def backup_roots(settings: Settings) -> list[BackupRoot]:
    """Every directory that there may be, in the order in which they are copied; none stands in another."""
    store = settings.store.path
    found = [BackupRoot(f"mind/{agent.id}", agent_state_directory(store, agent.id)) for agent in settings.agents]
    found += [BackupRoot(f"workspace/{agent.id}", agent.workspace) for agent in settings.agents if agent.workspace]
    found += [BackupRoot(f"files/{agent.id}", agent.files) for agent in settings.agents if agent.files]
    found.append(BackupRoot(OUTFILES_NAME, store.parent / OUTFILES_NAME))
    chosen = list[BackupRoot]()
    for root in found:
        if is_safe_name(root.name) and not any(_is_inside(root.path, other.path) for other in chosen):
            chosen.append(root)
    return chosen


def list_files(root: BackupRoot, left_out: list[str]) -> Iterator[BackupFile]:
    """Its files, in the order in which they are copied.

    Marks come first: they say what has reached the other files, and one that is older than these is mended at the next
    start. What is no plain file, or has a name that is no text, is told by `left_out`; links are not followed.
    """
    found = list[BackupFile]()
    for here, below, names in os.walk(root.path, onerror=_raise_unless_missing):
        place = Path(here)
        inside = place.relative_to(root.path)
        for path in (place / name for name in (*names, *below)):
            if path.name in below and not path.is_symlink():
                continue
            told = "/".join((root.name, *inside.parts, path.name))
            try:
                plain = stat.S_ISREG(path.lstat().st_mode)
            except FileNotFoundError:  # it was taken away just now
                continue
            if plain and is_safe_name(told) and _is_encodable(told):
                found.append(BackupFile(told, path))
            else:
                left_out.append(told.encode(errors="backslashreplace").decode())
    yield from sorted(found, key=lambda one: (not one.name.endswith(_MARK_SUFFIX), one.name))


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_inside(path: Path, other: Path) -> bool:
    return path.resolve().is_relative_to(other.resolve())


AUTO_REPLAY_ENTRIES: Final = 200_000
"""A log of so many is replayed without being asked: some seconds."""
_STAGING_PREFIX: Final = ".reverie-backup-"
_CHUNK_BYTES: Final = 1 << 20
_SPACE_FACTOR: Final = 2.1
"""The store is there twice meanwhile: as a file, and in the archive."""

BackupProgress = Callable[[str, int, int], None]
"""Called now and then with what is being done, and how much of how much is."""


class BackupReport(NamedTuple):
    """A backup that is there."""

    path: Path
    size_bytes: int
    manifest: BackupManifest
    differences: tuple[TableDifference, ...]
    """Tables of the running store that are not what its log says; in the backup they are."""


def create_backup(
    settings: Settings, target: Path, now: datetime, *, whole: bool, progress: BackupProgress
) -> BackupReport:
    """Write a backup to a new file, for its owner alone.

    `whole`: compare every table with the log, however long that takes; else as far as it is cheap. Raises OSError
    (FileExistsError: the file is there), StoreError. On failure nothing is left.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "it is there already, and no backup replaces a file", str(target))
    store = settings.store.path
    with _staging_directory(target.parent) as half:
        _check_disk_space(store, half)
        archive, copied = half / "archive", half / "store"
        left_out = list[str]()
        with os.fdopen(os.open(archive, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                there = [root for root in backup_roots(settings) if root.path.is_dir()]
                # Before the store: what a file lacks then is mended from the log, what it has beyond it would stay.
                members = [
                    added
                    for root in there
                    for one in list_files(root, left_out)
                    if (added := _add_member(tar, one)) is not None
                ]
                copy_store(store, copied, lambda done, all_: progress("copied", done, all_))
                found, differences = _examine_copy(copied, whole=whole, progress=progress)
                members += filter(None, [_add_member(tar, BackupFile(STORE_NAME, copied))])
                manifest = BackupManifest(
                    made=now,
                    version=version("reverie-gateway"),
                    schema_version=found.schema,
                    entries=found.entries,
                    last=found.last,
                    replayed=differences is not None,
                    roots=tuple(root.name for root in there),
                    left_out=tuple(left_out),
                    members=tuple(members),
                )
                text = dump_manifest(manifest)
                tar.addfile(_tar_header(MANIFEST_NAME, len(text)), io.BytesIO(text))
            file.flush()
            os.fsync(file.fileno())
        _publish(archive, target)
    return BackupReport(target, target.stat().st_size, manifest, tuple(differences or ()))


def _examine_copy(
    copied: Path, *, whole: bool, progress: BackupProgress
) -> tuple[StoreSummary, list[TableDifference] | None]:
    """What it holds, and what was mended in it; None: that was not looked for."""
    found = check_store(copied)
    if found.schema != newest_schema() or not (whole or found.entries <= AUTO_REPLAY_ENTRIES):
        return found, None
    differences = rebuild_blocking(copied, lambda done, all_: progress("replayed", done, all_), SystemClock())
    seal_store(copied)
    return found, differences


def _add_member(tar: tarfile.TarFile, one: BackupFile) -> BackupMember | None:
    """Put a file into the archive as it is now. None: it is gone. One that grows meanwhile is cut where it ended."""
    try:
        opened = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(opened, "rb") as file:
        seen = os.fstat(opened)
        digest, size = hashlib.sha256(), seen.st_size
        tar.addfile(
            _tar_header(one.name, size, runs=bool(seen.st_mode & 0o100)), _HashingReader(file, size, digest.update)
        )
    return BackupMember(name=one.name, size_bytes=size, sha256=digest.hexdigest())


class _HashingReader(io.RawIOBase):
    """Exactly so many bytes of a file, which are told as they are read."""

    def __init__(self, file: io.BufferedReader, size: int, tell: Callable[[bytes], object]) -> None:
        super().__init__()
        self._file, self._bytes_left, self._on_read = file, size, tell

    def read(self, size: int = -1, /) -> bytes:
        piece = self._file.read(min(size, self._bytes_left) if size >= 0 else self._bytes_left)
        if self._bytes_left and not piece:
            raise OSError(errno.EBUSY, f"{self._file.name} became shorter while it was read: try again")
        self._bytes_left -= len(piece)
        self._on_read(piece)
        return piece


def _tar_header(name: str, size: int, *, runs: bool = False) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o700 if runs else 0o600
    return header


@contextlib.contextmanager
def _staging_directory(directory: Path) -> Iterator[Path]:
    """A directory for what is not whole yet. What an earlier process left of one is removed."""
    for stale in directory.glob(f"{_STAGING_PREFIX}*"):
        with contextlib.suppress(OSError), _lock_directory(stale):
            shutil.rmtree(stale)
    half = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=directory))
    try:
        with _lock_directory(half):
            yield half
    finally:
        shutil.rmtree(half, ignore_errors=True)


@contextlib.contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Raises BlockingIOError if another process holds it."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _check_disk_space(store: Path, half: Path) -> None:
    size = store.stat().st_size if store.exists() else 0
    free = shutil.disk_usage(half).free
    if free < size * _SPACE_FACTOR:
        told = (
            f"{half.parent} has {free // 1_000_000} MB left, and {int(size * _SPACE_FACTOR) // 1_000_000} MB are needed"
        )
        raise OSError(errno.ENOSPC, f"{told}: make room there, or name another place with --output")


def _publish(archive: Path, target: Path) -> None:
    """Under its name, if nothing has that: link() refuses where rename() would replace."""
    try:
        os.link(archive, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise
        archive.rename(target)
    opened = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
