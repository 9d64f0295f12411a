"""Puts a backup where it belongs. Blocks on the disk, and runs the store's own loop to settle it.

All is taken apart, verified and made ready beside the places where it goes; until then nothing is touched. Then it is
moved there as one (`gateway.store.moves`).
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from gateway.backup.kept import backup_roots
from gateway.backup.manifest import STORE_NAME, BackupManifest, InvalidBackup
from gateway.backup.reading import extract_backup, is_same_tree
from gateway.backup.settling import ReconcileReport, reconcile_restored
from gateway.clock import SystemClock
from gateway.settings import Settings
from gateway.store import TableDifference
from gateway.store.backup import check_store, newest_schema, seal_store
from gateway.store.lock import StoreLock
from gateway.store.moves import FileMove, finish_moves, move_files, move_plan_path
from gateway.store.rebuild import rebuild_blocking
from gateway.store.schema import migrate_schema

_STAGING_SUFFIX: Final = ".restoring"
_SQLITE_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""Files of SQLite's: what stands there of another store would be taken for a part of this one
(https://www.sqlite.org/howtocorrupt.html)."""

RestoreProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedBackup:
    """What was found in a backup that can be used."""

    manifest: BackupManifest
    differences: tuple[TableDifference, ...]
    """Tables that were not what the log says; restored they are. Of an older schema this is not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What came of it."""

    verified: VerifiedBackup
    reconciled: ReconcileReport
    restored_paths: tuple[Path, ...]
    kept_paths: tuple[Path, ...]
    """Where what was there before is now."""


def verify_backup(archive: Path, into: Path, progress: RestoreProgress) -> VerifiedBackup:
    """Take it apart under `into`, a new directory, and look through it. Raises BadBackup, OSError, StoreError."""
    manifest = extract_backup(archive, into, lambda done, whole: progress("read", done, whole))
    if manifest.schema_version > newest_schema():
        raise InvalidBackup(
            f"it has schema {manifest.schema_version} and this reverie knows up to {newest_schema()}: "
            f"restore it with reverie {manifest.version} or newer"
        )
    store = into / STORE_NAME
    if not store.exists():
        raise InvalidBackup("it holds no store: no reverie made this; do not use it")
    found = check_store(store)
    if (found.schema, found.entries, found.last) != (manifest.schema_version, manifest.entries, manifest.last):
        raise InvalidBackup("its store is not the one that its manifest tells of: do not use it")
    current = found.schema == newest_schema()
    told = (
        rebuild_blocking(store, lambda done, whole: progress("replayed", done, whole), SystemClock()) if current else []
    )
    seal_store(store)
    return VerifiedBackup(manifest=manifest, differences=tuple(told))


def restore_backup(
    archive: Path, settings: Settings, now: datetime, *, replace: bool, exact: bool, by: str, progress: RestoreProgress
) -> RestoreReport:
    """Verify, make ready, and put in place. `exact`, `by`: as `gateway.backup.settling.reconcile_restored` takes them.

    `replace`: what is there and differs is kept beside, under a name with the time; without it that is refused. The
    gateway must not run: raises InUse; also BadBackup, FileExistsError, OSError, StoreError. Before the last step
    nothing that was there is changed.
    """
    store = settings.store.path
    _make_owned_directory(store.parent)
    lock = StoreLock(store, now)
    try:
        finish_moves(store)
        with _restore_staging(store.parent) as half:
            verified = verify_backup(archive, half / "all", progress)
            places = _target_paths(verified.manifest, settings)
            places = {
                name: place
                for name, place in places.items()
                if name == STORE_NAME or not _is_in_place(half, name, place)
            }
            taken = [place for place in places.values() if _is_occupied(place)]
            if taken and not replace:
                told = ", ".join(map(str, taken))
                raise FileExistsError(f"there is something else at {told}: --replace keeps it beside, as *.before-...")
            migrate_schema(half / "all" / STORE_NAME)  # as it was it stands in the backup
            made = verified.manifest.made
            settled = asyncio.run(
                reconcile_restored(half / "all" / STORE_NAME, settings, SystemClock(), made=made, by=by, exact=exact)
            )
            seal_store(half / "all" / STORE_NAME)
            with _staged_targets(half / "all", places, store) as ready:
                moves = _plan_moves(ready, places, store, f".before-{now:%Y%m%dT%H%M%SZ}")
                move_files(store, moves)
            _chown_like(store.with_name(f"{store.name}.lock"), store.parent)
        kept = tuple(move.old for move in moves if move.old is not None and os.path.lexists(move.old))
        return RestoreReport(
            verified=verified, reconciled=settled, restored_paths=tuple(places.values()), kept_paths=kept
        )
    finally:
        lock.release()


@contextlib.contextmanager
def _restore_staging(directory: Path) -> Iterator[Path]:
    """A directory for what is not in its place yet; what a kill left of one is removed. The store's lock is held."""
    for stale in directory.glob(f"{_STAGING_SUFFIX}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    half = Path(tempfile.mkdtemp(prefix=f"{_STAGING_SUFFIX}-", dir=directory))
    try:
        yield half
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _target_paths(manifest: BackupManifest, settings: Settings) -> dict[str, Path]:
    """Where each root goes, and the store. Raises BadBackup for one that goes nowhere."""
    known = {root.name: root.path for root in backup_roots(settings)} | {STORE_NAME: settings.store.path}
    for name in manifest.roots:
        if name not in known and any(one.name.startswith(f"{name}/") for one in manifest.members):
            kind, _, agent = name.partition("/")
            what = f"the agent {agent}" if kind == "mind" else f"`{kind}` of the agent {agent}"
            raise InvalidBackup(
                f"it holds files of {what}, which the configuration does not name: add that, and restore"
            )
    return {name: known[name] for name in (*manifest.roots, STORE_NAME) if name in known}


def _is_in_place(half: Path, name: str, place: Path) -> bool:
    """Whether what is to go there stands there already."""
    return place.is_dir() and not place.is_symlink() and is_same_tree(half / "all" / name, place)


def _is_occupied(place: Path) -> bool:
    if os.path.ismount(place):
        raise OSError(f"{place} is a mount, and cannot be moved: mount what is above it, and restore")
    if place.is_dir() and not place.is_symlink():
        return any(place.iterdir())
    return os.path.lexists(place)


@contextlib.contextmanager
def _staged_targets(all_: Path, places: dict[str, Path], store: Path) -> Iterator[dict[str, Path]]:
    """Each of them on the file system of its place, under a name of its own.

    They stay if moving them was cut off: whoever opens the store next goes on with it.
    """
    ready = dict[str, Path]()
    try:
        for name, place in places.items():
            _make_owned_directory(place.parent)
            beside = place.with_name(f"{place.name}{_STAGING_SUFFIX}")
            _remove_path(beside)
            ready[name] = beside
            try:
                (all_ / name).rename(beside)
            except OSError:  # of another file system
                _copy_durably(all_ / name, beside)
            _chown_like(beside, place.parent)
        yield ready
    finally:
        for beside in () if move_plan_path(store).exists() else ready.values():
            _remove_path(beside)


def _copy_durably(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
    for path in [target, *target.rglob("*")] if target.is_dir() else [target]:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _make_owned_directory(directory: Path) -> None:
    if not directory.is_dir():
        _make_owned_directory(directory.parent)
        directory.mkdir(mode=0o700)
        _chown_like(directory, directory.parent)


def _chown_like(path: Path, like: Path) -> None:
    """Root's own files would be closed to the user as whom the gateway runs: they are whose the directory is."""
    if os.geteuid() == 0:
        owner = like.stat()
        for one in [path, *path.rglob("*")]:
            os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _plan_moves(ready: dict[str, Path], places: dict[str, Path], store: Path, suffix: str) -> list[FileMove]:
    """The store last: what SQLite keeps beside the old one goes with that."""

    def old(place: Path) -> Path | None:
        return place.with_name(f"{place.name}{suffix}").absolute() if os.path.lexists(place) else None

    moves = [
        FileMove(new=beside.absolute(), place=places[name].absolute(), old=old(places[name]))
        for name, beside in ready.items()
        if name != STORE_NAME
    ]
    sides = [store.with_name(f"{store.name}{side}") for side in _SQLITE_SUFFIXES]
    moves += [FileMove(new=None, place=side.absolute(), old=old(side)) for side in sides if os.path.lexists(side)]
    return [*moves, FileMove(new=ready[STORE_NAME].absolute(), place=store.absolute(), old=old(store))]


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
