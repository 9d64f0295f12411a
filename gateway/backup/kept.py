"""Which files a backup holds besides the store, and where these belong. Blocks on the disk.

Not in it: the configuration, which is the operator's and may hold secrets, and `media`, which is a cache.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gateway import own_files
from gateway.backup.manifest import OUTFILES_NAME, is_safe_name
from gateway.settings import Settings

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
    found = [
        BackupRoot(f"mind/{agent.id}", own_files.agent_state_directory(store, agent.id)) for agent in settings.agents
    ]
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
