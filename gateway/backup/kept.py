"""Which files a backup holds besides the store, and where these belong. Blocks on the disk.

Not in it: the configuration, which is the operator's and may hold secrets, and `media`, which is a cache.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gateway import own_files
from gateway.backup.manifest import OUTFILES, safe
from gateway.settings import Settings

_MARK: Final = ".mark"


class Root(NamedTuple):
    """A directory."""

    name: str
    """In a backup."""
    path: Path


class Kept(NamedTuple):
    """A file."""

    name: str
    """In a backup."""
    path: Path


def roots(settings: Settings) -> list[Root]:
    """Every directory that there may be, in the order in which they are copied; none stands in another."""
    store = settings.store.path
    found = [Root(f"mind/{agent.id}", own_files.mind(store, agent.id)) for agent in settings.agents]
    found += [Root(f"workspace/{agent.id}", agent.workspace) for agent in settings.agents if agent.workspace]
    found += [Root(f"files/{agent.id}", agent.files) for agent in settings.agents if agent.files]
    found.append(Root(OUTFILES, store.parent / OUTFILES))
    chosen = list[Root]()
    for root in found:
        if safe(root.name) and not any(_inside(root.path, other.path) for other in chosen):
            chosen.append(root)
    return chosen


def files(root: Root, left_out: list[str]) -> Iterator[Kept]:
    """Its files, in the order in which they are copied.

    Marks come first: they say what has reached the other files, and one that is older than these is mended at the next
    start. What is no plain file, or has a name that is no text, is told by `left_out`; links are not followed.
    """
    found = list[Kept]()
    for here, below, names in os.walk(root.path, onerror=_refuse):
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
            if plain and safe(told) and _text(told):
                found.append(Kept(told, path))
            else:
                left_out.append(told.encode(errors="backslashreplace").decode())
    yield from sorted(found, key=lambda one: (not one.name.endswith(_MARK), one.name))


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _inside(path: Path, other: Path) -> bool:
    return path.resolve().is_relative_to(other.resolve())
