"""Several files and directories put in their places as one: all of them, or none. Blocks on the disk.

What is to be moved is written down beside the store first. From then on whoever opens the store moves what is not moved
yet, before anything else, so a kill in the middle leaves nothing half.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.store.errors import StoreUnreadable


class FileMove(BaseModel):
    """One of them. All paths are absolute, and on one file system."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    new: Path | None
    """What comes. None: nothing does."""
    place: Path
    """Where it belongs."""
    old: Path | None
    """Where what was there goes. None: nothing was there."""


class FileMovePlan(BaseModel):
    """All of them, in their order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    moves: tuple[FileMove, ...]


def move_plan_path(store: Path) -> Path:
    """Where they are written down."""
    return store.with_name(f"{store.name}.moves")


def move_files(store: Path, moves: Sequence[FileMove]) -> None:
    """Do all of it. The caller holds the store's lock, and nobody has the store open. Raises OSError, Unreadable.

    Whatever stands in a place that `old` does not say to be kept is replaced.
    """
    file = move_plan_path(store)
    fresh = file.with_name(f"{file.name}.new")
    opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "wb") as out:
        out.write(FileMovePlan(moves=tuple(moves)).model_dump_json().encode())
        out.flush()
        os.fsync(opened)
    fresh.replace(file)
    _sync_directory(file.parent)
    finish_moves(store)


def finish_moves(store: Path) -> bool:
    """Go on with what a process before this one could not finish. False: there is nothing.

    The caller holds the store's lock. Raises Unreadable.
    """
    file = move_plan_path(store)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreUnreadable(f"cannot read {file}, which a restore has left: {error.strerror}") from error
    try:
        for move in FileMovePlan.model_validate_json(text).moves:
            _move_file(move)
        file.unlink()
        _sync_directory(file.parent)
    except ValidationError:
        raise StoreUnreadable(f"{file}, which a restore has left, is damaged: remove it, and restore again") from None
    except OSError as error:
        told = f"a restore was cut off and cannot be finished ({error}): mend that, and start again"
        raise StoreUnreadable(told) from error
    return True


def _move_file(move: FileMove) -> None:
    if move.old is not None and os.path.lexists(move.place) and not os.path.lexists(move.old):
        move.place.rename(move.old)
        _sync_directory(move.place.parent)
    if move.new is not None and os.path.lexists(move.new):
        move.new.replace(move.place)
        _sync_directory(move.place.parent)


def _sync_directory(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
