"""Workspaces in memory, read again when their files change.

Files are compared with those on the disk, by their size and times, at most once in each interval;
those of the private scope at each use, because the agent itself writes some of them.
If a file cannot be read at present, because an editor may be at work, its previous content stays.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.workspace.persona import (
    PersonaBundle,
    PersonaScope,
    find_paths,
    read_workspace,
)
from gateway.core.clock import Clock
from gateway.core.frozen import frozen

logger = logging.getLogger("reverie.workspace")

BundleKey = tuple[Path, PersonaScope, str, Path | None]
"""Workspace, scope, family, and the agent's own directory."""


@frozen(kw_only=False)
class WorkspaceCounts:
    """Counters since the start, by workspace directory."""

    hits: Counter[str] = field(default_factory=Counter)
    """Answers from memory, also after a comparison without a difference."""
    misses: Counter[str] = field(default_factory=Counter)
    """Readings of the files."""
    invalidations: Counter[str] = field(default_factory=Counter)
    """Readings because a file had changed."""

    def by_path(self) -> dict[str, tuple[int, int, int]]:
        paths = sorted({*self.hits, *self.misses})
        return {
            path: (self.hits[path], self.misses[path], self.invalidations[path]) for path in paths
        }


FileMarks = dict[Path, tuple[int, ...] | None]
"""Fingerprints of files, taken without reading them. None: the file does not exist."""


def read_marks(paths: Iterable[Path]) -> FileMarks:
    """Return the present fingerprints.

    Two states of a file within one tick of the file system's clock, some ms, may look the same.
    """
    marks: FileMarks = dict.fromkeys(paths)
    for path in marks:
        with contextlib.suppress(OSError):
            one = path.stat()
            marks[path] = one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns
    return marks


@dataclass(slots=True)
class _CachedBundle:
    bundle: PersonaBundle
    marks: FileMarks
    """From before the reading, so that a change during it shows as a difference afterwards."""
    read_s: float
    """Time by the clock's `monotonic`, as the next one."""
    compared_s: float


class WorkspaceCache:
    """Bundles by directory, scope and family of models. For one event loop."""

    def __init__(
        self, clock: Clock, *, watch_debounce_ms: int = 500, max_age_seconds: float = 0
    ) -> None:
        self.counts = WorkspaceCounts()
        self._clock = clock
        self._entries: dict[BundleKey, _CachedBundle] = {}
        self._logged_notes: dict[BundleKey, tuple[str, ...]] = {}
        self._lock = asyncio.Lock()
        self.reconfigure(watch_debounce_ms=watch_debounce_ms, max_age_seconds=max_age_seconds)

    def reconfigure(self, *, watch_debounce_ms: int, max_age_seconds: float) -> None:
        """Use these settings from now on.

        `watch_debounce_ms`: shortest time between two comparisons of what others share with the
        disk. `max_age_seconds`: age after which the files are read again even if they look the
        same. 0: never for that reason.
        """
        self._interval_s, self._max_age_s = watch_debounce_ms / 1_000, max_age_seconds

    async def get(
        self,
        root: Path,
        *,
        scope: PersonaScope,
        family: str,
        own: Path | None = None,
        cached: bool = True,
    ) -> PersonaBundle:
        """Return the bundle of a workspace for a model of `family`. Does not suspend if it is in
        memory.

        `own`: as in `agent.workspace.persona.read_workspace`. `cached` False: read now, neither
        kept nor counted. A directory that does not exist gives an empty bundle and a warning.
        Raises OSError if a file cannot be read and there is no earlier content.
        """
        key = (root, scope, family, own if scope == "private" and own != root else None)
        if not cached:
            reading = await asyncio.to_thread(read_workspace, *key)
            self._log_notes(key, reading.notes)
            return reading.bundle
        async with self._lock:  # a caller that waited here finds what the one before has read
            entry, now_s = self._entries.get(key), self._clock.monotonic()
            if entry is None or 0 < self._max_age_s <= now_s - entry.read_s:
                return await self._read(key, entry)
            if scope == "private" or now_s - entry.compared_s >= self._interval_s:
                entry.compared_s = now_s
                if read_marks(entry.marks) != entry.marks:
                    return await self._read(key, entry)
            self.counts.hits[str(root)] += 1
            return entry.bundle

    async def _read(self, key: BundleKey, entry: _CachedBundle | None) -> PersonaBundle:
        root, now_s = key[0], self._clock.monotonic()
        self.counts.misses[str(root)] += 1
        marks = read_marks([path for some in find_paths(*key).values() for path in some])
        try:
            reading = await asyncio.to_thread(read_workspace, *key)
        except OSError as error:
            if entry is None:
                raise
            self._log_notes(
                key, (f"{root} cannot be read now, what was read before goes on: {error}",)
            )
            return entry.bundle
        if entry is not None and reading.is_missing:
            self._log_notes(key, (f"{root} is not there now, what was read before goes on",))
            return entry.bundle
        self._log_notes(key, reading.notes)
        if entry is not None:
            self.counts.invalidations[str(root)] += entry.marks != marks
            if entry.bundle != reading.bundle:
                logger.info("%s has changed and was read again", root)
        self._entries[key] = _CachedBundle(reading.bundle, marks, now_s, now_s)
        return reading.bundle

    def _log_notes(self, key: BundleKey, notes: tuple[str, ...]) -> None:
        """Log notes that are new; the same ones at every turn would be noise."""
        for note in notes:
            if note not in self._logged_notes.get(key, ()):
                logger.warning("%s", note)
        self._logged_notes[key] = notes
