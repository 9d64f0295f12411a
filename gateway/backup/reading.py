"""Takes a backup apart, and believes nothing that it says. Blocks on the disk."""

import hashlib
import os
import tarfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Final

from gateway.backup.manifest import (
    MANIFEST_NAME,
    BackupManifest,
    BackupMember,
    InvalidBackup,
    is_safe_name,
    parse_manifest,
    root_name,
)

_READ_BYTES: Final = 1 << 20
_MAX_MANIFEST_BYTES: Final = 64 << 20
"""About 400,000 files."""
_DAMAGED: Final = "it is cut off or damaged: copy it again, or take an earlier one"

ReadProgress = Callable[[int, int], None]
"""Called now and then with the bytes that are read, and how many there are."""


def extract_backup(archive: Path, into: Path, progress: ReadProgress = lambda _done, _whole: None) -> BackupManifest:
    """Write all that is in it under `into`, a new directory, and compare it with the manifest.

    Files are plain ones, for their owner alone. Raises BadBackup, whatever the archive holds, and OSError; what was
    written until then stays.
    """
    into.mkdir(mode=0o700)
    whole, found = archive.stat().st_size, dict[str, BackupMember]()
    manifest: BackupManifest | None = None
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for header in tar:
                if manifest is not None:
                    raise InvalidBackup(f"something stands behind its manifest: {_DAMAGED}")
                data = _open_member(tar, header, found.keys())
                if header.name == MANIFEST_NAME:
                    manifest = parse_manifest(_read_manifest(data, header.size))
                else:
                    found[header.name] = _extract_member(data, header, into)
                progress(tar.offset, whole)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError):
        raise InvalidBackup(f"it is no backup, or {_DAMAGED}") from None
    if manifest is None:
        raise InvalidBackup(f"it has no manifest: {_DAMAGED}")
    _compare_members(manifest, found)
    for root in manifest.roots:
        _make_private_directory(into / root)
    return manifest


def _open_member(tar: tarfile.TarFile, header: tarfile.TarInfo, known: Collection[str]) -> IO[bytes]:
    if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or header.issparse():
        raise InvalidBackup(f"{header.name!r} in it is no plain file: no reverie made this; do not use it")
    if header.name != MANIFEST_NAME and not is_safe_name(header.name):
        raise InvalidBackup(f"{header.name!r} in it is no name of a backup: no reverie made this; do not use it")
    if header.name in known:
        raise InvalidBackup(f"{header.name!r} is twice in it: no reverie made this; do not use it")
    data = tar.extractfile(header)
    assert data is not None, "a plain file has content"
    return data


def _read_manifest(data: IO[bytes], size: int) -> bytes:
    if size > _MAX_MANIFEST_BYTES:
        raise InvalidBackup(f"its manifest has {size} bytes: no reverie made this; do not use it")
    return data.read(size)


def _extract_member(data: IO[bytes], header: tarfile.TarInfo, into: Path) -> BackupMember:
    path = into / header.name
    _make_private_directory(path.parent)
    mode = 0o700 if header.mode & 0o100 else 0o600
    digest, size = hashlib.sha256(), 0
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(opened, "wb") as file:
        while piece := data.read(_READ_BYTES):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(opened)
    return BackupMember(name=header.name, size_bytes=size, sha256=digest.hexdigest())


def _make_private_directory(directory: Path) -> None:
    """And those above it, for their owner alone, too: `parents` of mkdir() would not."""
    if not directory.is_dir():
        _make_private_directory(directory.parent)
        directory.mkdir(mode=0o700)


def _compare_members(manifest: BackupManifest, there: Mapping[str, BackupMember]) -> None:
    told = {one.name: one for one in manifest.members}
    for name in sorted(told.keys() | there.keys()):
        if name not in there:
            raise InvalidBackup(f"{name!r} is missing in it: {_DAMAGED}")
        if told.get(name) != there[name]:
            raise InvalidBackup(f"{name!r} in it is not what was put there: {_DAMAGED}")
        if name != root_name(name) and root_name(name) not in manifest.roots:
            raise InvalidBackup(f"{name!r} in it belongs nowhere: no reverie made this; do not use it")


def is_same_tree(root: Path, here: Path) -> bool:
    """Whether two directories hold the same files, and these the same bytes."""
    return _digest_tree(root) == _digest_tree(here)


def _digest_tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): _digest_file(path)
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def _digest_file(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return "no plain file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
