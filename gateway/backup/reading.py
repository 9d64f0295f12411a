"""Takes a backup apart, and believes nothing that it says. Blocks on the disk."""

import hashlib
import os
import tarfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Final

from gateway.backup.manifest import MANIFEST, BadBackup, Manifest, Member, parse, root_of, safe

_PIECE: Final = 1 << 20
_MOST_MANIFEST_BYTES: Final = 64 << 20
"""About 400,000 files."""
_CUT: Final = "it is cut off or damaged: copy it again, or take an earlier one"

Progress = Callable[[int, int], None]
"""Called now and then with the bytes that are read, and how many there are."""


def take_apart(archive: Path, into: Path, progress: Progress = lambda _done, _whole: None) -> Manifest:
    """Write all that is in it under `into`, a new directory, and compare it with the manifest.

    Files are plain ones, for their owner alone. Raises BadBackup, whatever the archive holds, and OSError; what was
    written until then stays.
    """
    into.mkdir(mode=0o700)
    whole, found = archive.stat().st_size, dict[str, Member]()
    manifest: Manifest | None = None
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for header in tar:
                if manifest is not None:
                    raise BadBackup(f"something stands behind its manifest: {_CUT}")
                data = _plain(tar, header, found.keys())
                if header.name == MANIFEST:
                    manifest = parse(_small(data, header.size))
                else:
                    found[header.name] = _written(data, header, into)
                progress(tar.offset, whole)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError, OverflowError):
        raise BadBackup(f"it is no backup, or {_CUT}") from None
    if manifest is None:
        raise BadBackup(f"it has no manifest: {_CUT}")
    _compare(manifest, found)
    for root in manifest.roots:
        _make(into / root)
    return manifest


def _plain(tar: tarfile.TarFile, header: tarfile.TarInfo, known: Collection[str]) -> IO[bytes]:
    if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or header.issparse():
        raise BadBackup(f"{header.name!r} in it is no plain file: no reverie made this; do not use it")
    if header.name != MANIFEST and not safe(header.name):
        raise BadBackup(f"{header.name!r} in it is no name of a backup: no reverie made this; do not use it")
    if header.name in known:
        raise BadBackup(f"{header.name!r} is twice in it: no reverie made this; do not use it")
    data = tar.extractfile(header)
    assert data is not None, "a plain file has content"
    return data


def _small(data: IO[bytes], size: int) -> bytes:
    if size > _MOST_MANIFEST_BYTES:
        raise BadBackup(f"its manifest has {size} bytes: no reverie made this; do not use it")
    return data.read(size)


def _written(data: IO[bytes], header: tarfile.TarInfo, into: Path) -> Member:
    path = into / header.name
    _make(path.parent)
    mode = 0o700 if header.mode & 0o100 else 0o600
    digest, size = hashlib.sha256(), 0
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(opened, "wb") as file:
        while piece := data.read(_PIECE):
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(opened)
    return Member(name=header.name, size_bytes=size, sha256=digest.hexdigest())


def _make(directory: Path) -> None:
    """And those above it, for their owner alone, too: `parents` of mkdir() would not."""
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(mode=0o700)


def _compare(manifest: Manifest, there: Mapping[str, Member]) -> None:
    told = {one.name: one for one in manifest.members}
    for name in sorted(told.keys() | there.keys()):
        if name not in there:
            raise BadBackup(f"{name!r} is missing in it: {_CUT}")
        if told.get(name) != there[name]:
            raise BadBackup(f"{name!r} in it is not what was put there: {_CUT}")
        if name != root_of(name) and root_of(name) not in manifest.roots:
            raise BadBackup(f"{name!r} in it belongs nowhere: no reverie made this; do not use it")


def same(root: Path, here: Path) -> bool:
    """Whether two directories hold the same files, and these the same bytes."""
    return _digests(root) == _digests(here)


def _digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): _digest(path)
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return "no plain file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
