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

from gateway.backup.kept import roots
from gateway.backup.manifest import STORE, BadBackup, Manifest
from gateway.backup.reading import same, take_apart
from gateway.backup.settling import Settled, settle
from gateway.clock import SystemClock
from gateway.settings import Settings
from gateway.store import Difference
from gateway.store.backup import examine, newest_schema, seal
from gateway.store.lock import Lock
from gateway.store.moves import Move, carry_out, finish, plan_file
from gateway.store.rebuild import rebuilt
from gateway.store.schema import migrate

_HALF: Final = ".restoring"
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Files of SQLite's: what stands there of another store would be taken for a part of this one
(https://www.sqlite.org/howtocorrupt.html)."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found in a backup that can be used."""

    manifest: Manifest
    differences: tuple[Difference, ...]
    """Tables that were not what the log says; restored they are. Of an older schema this is not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What came of it."""

    verified: Verified
    reconciled: Settled
    restored_paths: tuple[Path, ...]
    kept_paths: tuple[Path, ...]
    """Where what was there before is now."""


def verify(archive: Path, into: Path, progress: Progress) -> Verified:
    """Take it apart under `into`, a new directory, and look through it. Raises BadBackup, OSError, StoreError."""
    manifest = take_apart(archive, into, lambda done, whole: progress("read", done, whole))
    if manifest.schema_version > newest_schema():
        raise BadBackup(
            f"it has schema {manifest.schema_version} and this reverie knows up to {newest_schema()}: "
            f"restore it with reverie {manifest.version} or newer"
        )
    store = into / STORE
    if not store.exists():
        raise BadBackup("it holds no store: no reverie made this; do not use it")
    found = examine(store)
    if (found.schema, found.entries, found.last) != (manifest.schema_version, manifest.entries, manifest.last):
        raise BadBackup("its store is not the one that its manifest tells of: do not use it")
    current = found.schema == newest_schema()
    told = rebuilt(store, lambda done, whole: progress("replayed", done, whole), SystemClock()) if current else []
    seal(store)
    return Verified(manifest=manifest, differences=tuple(told))


def restore(
    archive: Path, settings: Settings, now: datetime, *, replace: bool, exact: bool, by: str, progress: Progress
) -> Restored:
    """Verify, make ready, and put in place. `exact`, `by`: as `gateway.backup.settling.settle` takes them.

    `replace`: what is there and differs is kept beside, under a name with the time; without it that is refused. The
    gateway must not run: raises InUse; also BadBackup, FileExistsError, OSError, StoreError. Before the last step
    nothing that was there is changed.
    """
    store = settings.store.path
    _make(store.parent)
    lock = Lock(store, now)
    try:
        finish(store)
        with _ready(store.parent) as half:
            verified = verify(archive, half / "all", progress)
            places = _places(verified.manifest, settings)
            places = {name: place for name, place in places.items() if name == STORE or not _there(half, name, place)}
            taken = [place for place in places.values() if _occupied(place)]
            if taken and not replace:
                told = ", ".join(map(str, taken))
                raise FileExistsError(f"there is something else at {told}: --replace keeps it beside, as *.before-...")
            migrate(half / "all" / STORE)  # as it was it stands in the backup
            made = verified.manifest.made
            settled = asyncio.run(settle(half / "all" / STORE, settings, SystemClock(), made=made, by=by, exact=exact))
            seal(half / "all" / STORE)
            with _beside(half / "all", places, store) as ready:
                moves = _moves(ready, places, store, f".before-{now:%Y%m%dT%H%M%SZ}")
                carry_out(store, moves)
            _given(store.with_name(f"{store.name}.lock"), store.parent)
        kept = tuple(move.old for move in moves if move.old is not None and os.path.lexists(move.old))
        return Restored(verified=verified, reconciled=settled, restored_paths=tuple(places.values()), kept_paths=kept)
    finally:
        lock.release()


@contextlib.contextmanager
def _ready(directory: Path) -> Iterator[Path]:
    """A directory for what is not in its place yet; what a kill left of one is removed. The store's lock is held."""
    for stale in directory.glob(f"{_HALF}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    half = Path(tempfile.mkdtemp(prefix=f"{_HALF}-", dir=directory))
    try:
        yield half
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _places(manifest: Manifest, settings: Settings) -> dict[str, Path]:
    """Where each root goes, and the store. Raises BadBackup for one that goes nowhere."""
    known = {root.name: root.path for root in roots(settings)} | {STORE: settings.store.path}
    for name in manifest.roots:
        if name not in known and any(one.name.startswith(f"{name}/") for one in manifest.members):
            kind, _, agent = name.partition("/")
            what = f"the agent {agent}" if kind == "mind" else f"`{kind}` of the agent {agent}"
            raise BadBackup(f"it holds files of {what}, which the configuration does not name: add that, and restore")
    return {name: known[name] for name in (*manifest.roots, STORE) if name in known}


def _there(half: Path, name: str, place: Path) -> bool:
    """Whether what is to go there stands there already."""
    return place.is_dir() and not place.is_symlink() and same(half / "all" / name, place)


def _occupied(place: Path) -> bool:
    if os.path.ismount(place):
        raise OSError(f"{place} is a mount, and cannot be moved: mount what is above it, and restore")
    if place.is_dir() and not place.is_symlink():
        return any(place.iterdir())
    return os.path.lexists(place)


@contextlib.contextmanager
def _beside(all_: Path, places: dict[str, Path], store: Path) -> Iterator[dict[str, Path]]:
    """Each of them on the file system of its place, under a name of its own.

    They stay if moving them was cut off: whoever opens the store next goes on with it.
    """
    ready = dict[str, Path]()
    try:
        for name, place in places.items():
            _make(place.parent)
            beside = place.with_name(f"{place.name}{_HALF}")
            _remove(beside)
            ready[name] = beside
            try:
                (all_ / name).rename(beside)
            except OSError:  # of another file system
                _copied(all_ / name, beside)
            _given(beside, place.parent)
        yield ready
    finally:
        for beside in () if plan_file(store).exists() else ready.values():
            _remove(beside)


def _copied(source: Path, target: Path) -> None:
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


def _make(directory: Path) -> None:
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(mode=0o700)
        _given(directory, directory.parent)


def _given(path: Path, like: Path) -> None:
    """Root's own files would be closed to the user as whom the gateway runs: they are whose the directory is."""
    if os.geteuid() == 0:
        owner = like.stat()
        for one in [path, *path.rglob("*")]:
            os.chown(one, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _moves(ready: dict[str, Path], places: dict[str, Path], store: Path, suffix: str) -> list[Move]:
    """The store last: what SQLite keeps beside the old one goes with that."""

    def old(place: Path) -> Path | None:
        return place.with_name(f"{place.name}{suffix}").absolute() if os.path.lexists(place) else None

    moves = [
        Move(new=beside.absolute(), place=places[name].absolute(), old=old(places[name]))
        for name, beside in ready.items()
        if name != STORE
    ]
    sides = [store.with_name(f"{store.name}{side}") for side in _BESIDE]
    moves += [Move(new=None, place=side.absolute(), old=old(side)) for side in sides if os.path.lexists(side)]
    return [*moves, Move(new=ready[STORE].absolute(), place=store.absolute(), old=old(store))]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
