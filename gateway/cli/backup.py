"""Backups: everything of a gateway that cannot be made again, in one file. Blocks.

A backup is a tar file (POSIX.1-2001 pax) of plain files. Its last member is the manifest, so a truncated file has none.
The same files copied at the same time give the same bytes. It contains the store, the files of the agents, and
attachments of waiting posts; not the configuration, which is the operator's and may contain secrets, and not `media`,
which is a cache.

A backup can be made beside a running gateway. The archive is built in a locked staging directory beside the target,
which the next backup removes after a kill. It appears under its name when it is complete, and never replaces a file.
`restore` has the other direction; `gateway.store.files` copies and checks the store.
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
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.config.models import Settings
from gateway.core.clock import SystemClock
from gateway.core.private_files import agent_state_directory
from gateway.store import ServerStore, TableDifference, store_location
from gateway.store.archive import archive_directory
from gateway.store.files import StoreSummary, check_store, copy_store, seal_store
from gateway.store.rebuild import rebuild_blocking
from gateway.store.schema import newest_schema
from gateway.store.transfer import transfer_store

MANIFEST_NAME: Final = "manifest.json"
STORE_NAME: Final = "store/reverie.db"
OUTFILES_NAME: Final = "outfiles"
"""Attachments of waiting posts."""
ARCHIVE_NAME: Final = "archive"
"""Entries that have left the log."""
_BESIDE_STORE: Final = (OUTFILES_NAME, ARCHIVE_NAME)
ROOT_KINDS: Final = ("mind", "workspace", "files")
"""Directories of an agent: its state, its persona with its notes, and the working directory of its tools."""


class InvalidBackup(Exception):
    """The file is not a usable backup. The message says why and what to do."""


class BackupMember(BaseModel):
    """One file of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    size_bytes: int
    sha256: str
    """Lower-case hex."""


class BackupManifest(BaseModel):
    """Contents of a backup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    made: datetime
    """Time of the store's copy, UTC."""
    version: str
    """Version of the program that made it."""
    schema_version: int
    """Schema of the store."""
    entries: int
    """Number of entries in the log."""
    last: int
    """Last position of the log. 0: it is empty."""
    replayed: bool
    """True if every table was compared with the log."""
    roots: tuple[str, ...]
    """Directories in the backup, including empty ones."""
    left_out: tuple[str, ...]
    """Files that are not in it: not plain, or with a name that is not UTF-8."""
    members: tuple[BackupMember, ...]
    """All other files, in order."""


def parse_manifest(text: bytes) -> BackupManifest:
    """Parse a manifest. Raises InvalidBackup."""
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
    """Return whether the name is a relative path that a backup may contain."""
    parts = name.split("/")
    if "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return False
    return (
        name in (STORE_NAME, *_BESIDE_STORE) or parts[0] in _BESIDE_STORE or (parts[0] in ROOT_KINDS and len(parts) > 1)
    )


def root_name(name: str) -> str:
    """Return the root directory of a member, as in `BackupManifest.roots`; for the store, its own name."""
    parts = name.split("/")
    return name if name == STORE_NAME else parts[0] if parts[0] in _BESIDE_STORE else "/".join(parts[:2])


_MARK_SUFFIX: Final = ".mark"


class BackupSource(NamedTuple):
    """A file or a directory of a backup."""

    name: str
    """Name in the backup."""
    path: Path


def backup_roots(settings: Settings) -> list[BackupSource]:
    """Return all directories that may exist, in the order of copying; none is inside another."""
    store = settings.store.path
    found = [BackupSource(f"mind/{agent.id}", agent_state_directory(store, agent.id)) for agent in settings.agents]
    found += [BackupSource(f"workspace/{agent.id}", agent.workspace) for agent in settings.agents if agent.workspace]
    found += [BackupSource(f"files/{agent.id}", agent.files) for agent in settings.agents if agent.files]
    found += [
        BackupSource(OUTFILES_NAME, store.parent / OUTFILES_NAME),
        BackupSource(ARCHIVE_NAME, archive_directory(store)),
    ]
    chosen = list[BackupSource]()
    for root in found:
        if is_safe_name(root.name) and not any(_is_inside(root.path, other.path) for other in chosen):
            chosen.append(root)
    return chosen


def list_files(root: BackupSource, left_out: list[str]) -> Iterator[BackupSource]:
    """Yield the files of a directory in the order of copying.

    Marks come first: they record what the other files contain, and one that is older than these is corrected at the
    next start. Symbolic links are not followed. Files that are not plain, or whose name is not UTF-8, are added to
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
            if plain and is_safe_name(name_in_backup) and _is_encodable(name_in_backup):
                found.append(BackupSource(name_in_backup, path))
            else:
                left_out.append(name_in_backup.encode(errors="backslashreplace").decode())
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
"""Logs up to this size are replayed by default, which takes some seconds."""
_STAGING_PREFIX: Final = ".reverie-backup-"
_CHUNK_BYTES: Final = 1 << 20
_SPACE_FACTOR: Final = 2.1
"""Free space needed, in store sizes: the store exists twice for a while, as a file and in the archive."""

BackupProgress = Callable[[str, int, int], None]
"""Called now and then with the step, the amount done, and the whole amount."""


class BackupReport(NamedTuple):
    """A finished backup."""

    path: Path
    size_bytes: int
    manifest: BackupManifest
    differences: tuple[TableDifference, ...]
    """Tables of the running store that differ from its log; in the backup they are corrected."""


def create_backup(
    settings: Settings, target: Path, now: datetime, *, whole: bool, progress: BackupProgress
) -> BackupReport:
    """Write a backup to a new file, readable by its owner only.

    `whole`: compare every table with the log, however long it takes; otherwise only short logs. Raises OSError
    (FileExistsError: the file exists) and StoreError. On failure nothing is left.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "it is there already, and no backup replaces a file", str(target))
    store = settings.store.path
    with _staging_directory(target.parent) as staging:
        _check_disk_space(store, staging)
        archive, copied = staging / "archive", staging / "store"
        left_out = list[str]()
        with os.fdopen(os.open(archive, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                named = backup_roots(settings)
                roots = [root for root in named if root.path.is_dir() and root.name != ARCHIVE_NAME]
                # Before the store: what a file lacks is later added from the log; what it had beyond the log would
                # stay.
                members = _add_roots(tar, roots, left_out)
                if isinstance(location := store_location(settings.store), ServerStore):
                    transfer_store(location, copied, SystemClock(), lambda done, all_: progress("copied", done, all_))
                    seal_store(copied)
                else:
                    copy_store(location, copied, lambda done, all_: progress("copied", done, all_))
                # After the store: what leaves the log meanwhile is in both, and the copy in the archive is not valid.
                archives = [root for root in named if root.path.is_dir() and root.name == ARCHIVE_NAME]
                roots, members = [*roots, *archives], [*members, *_add_roots(tar, archives, left_out)]
                found, differences = _examine_copy(copied, store, whole=whole, progress=progress)
                members += filter(None, [_add_member(tar, BackupSource(STORE_NAME, copied))])
                manifest = BackupManifest(
                    made=now,
                    version=version("reverie-gateway"),
                    schema_version=found.schema,
                    entries=found.entries,
                    last=found.last,
                    replayed=differences is not None,
                    roots=tuple(root.name for root in roots),
                    left_out=tuple(left_out),
                    members=tuple(members),
                )
                text = manifest.model_dump_json(indent=1).encode() + b"\n"
                tar.addfile(_tar_header(MANIFEST_NAME, len(text)), io.BytesIO(text))
            file.flush()
            os.fsync(file.fileno())
        _publish(archive, target)
    return BackupReport(target, target.stat().st_size, manifest, tuple(differences or ()))


def _add_roots(tar: tarfile.TarFile, roots: Sequence[BackupSource], left_out: list[str]) -> list[BackupMember]:
    files = (one for root in roots for one in list_files(root, left_out))
    return [added for one in files if (added := _add_member(tar, one)) is not None]


def _examine_copy(
    copied: Path, store: Path, *, whole: bool, progress: BackupProgress
) -> tuple[StoreSummary, list[TableDifference] | None]:
    """Check the copy of a store and rebuild its tables. Return its summary and the differences; None: not compared."""
    found = check_store(copied)
    if found.schema != newest_schema() or not (whole or found.entries <= AUTO_REPLAY_ENTRIES):
        return found, None
    archives = archive_directory(store)
    differences = rebuild_blocking(copied, lambda done, all_: progress("replayed", done, all_), SystemClock(), archives)
    seal_store(copied)
    return found, differences


def _add_member(tar: tarfile.TarFile, one: BackupSource) -> BackupMember | None:
    """Add a file to the archive as it is now. None: it is gone. A file that grows meanwhile is cut at its old size."""
    try:
        opened = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with _HashingReader(one.path, opened) as file:
        status = os.fstat(opened)
        tar.addfile(_tar_header(one.name, status.st_size, runs=bool(status.st_mode & 0o100)), file)
    return BackupMember(name=one.name, size_bytes=status.st_size, sha256=file.digest.hexdigest())


class _HashingReader(io.BufferedReader):
    """A file whose digest is taken while it is read."""

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
    """Create a temporary directory; remove those that earlier processes left."""
    for stale in directory.glob(f"{_STAGING_PREFIX}*"):
        with contextlib.suppress(OSError), _lock_directory(stale):
            shutil.rmtree(stale)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=directory))
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


def _check_disk_space(store: Path, staging: Path) -> None:
    size = store.stat().st_size if store.exists() else 0
    free = shutil.disk_usage(staging).free
    if free < size * _SPACE_FACTOR:
        needed = int(size * _SPACE_FACTOR)
        shortage = f"{staging.parent} has {free // 1_000_000} MB left, and {needed // 1_000_000} MB are needed"
        raise OSError(errno.ENOSPC, f"{shortage}: make room there, or name another place with --output")


def _publish(archive: Path, target: Path) -> None:
    """Give the archive its name, if no file has it: link() fails where rename() would replace."""
    try:
        os.link(archive, target)
    except OSError:
        if os.path.lexists(target):
            raise
        archive.rename(target)  # a file system without hard links
    opened = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
