"""Workspaces in memory, read again when their files change.

A hit costs a look-up in a dict. That needs a watcher that is active. Before it is, if a directory
cannot be watched, and for files that are links, the files are compared with their state on the disk
at every turn. If a file cannot be read at present, because an editor may be at work, its previous
content stays.

`WorkspaceCache` is the cache; `DirectoryWatcher` reports changes of a directory from a thread of
its own.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from agent.workspace.character_card import CARD_FILES
from agent.workspace.persona import (
    FileMarks,
    PersonaBundle,
    PersonaScope,
    read_marks,
    read_workspace,
)
from gateway.core.clock import Clock

logger = logging.getLogger("reverie.workspace")

CHECK_MS = 1_000
"""Milliseconds between checks that the directory is still the one that is watched: a deleted one
gives no more reports."""
RETRY_S = 2.0
"""Seconds between attempts to watch a directory that does not exist or cannot be watched."""
MAX_STEP_MS = 250
"""Milliseconds between two checks of the library for changes. Also the longest duration of
`stop`."""
DELETED = 3
"""`watchfiles.Change.deleted`. A directory that is renamed counts as deleted, too."""


class WatchReport(Enum):
    """Report of a watcher."""

    WATCHING = "watching"
    """Every change is reported from now on. Earlier changes may have been missed."""
    CHANGED = "changed"
    """A relevant file was created, removed or changed."""
    DEAF = "deaf"
    """Changes are not reported any more. The watcher tries again by itself."""


class DirectoryWatcher:
    """Watches a directory until it is stopped.

    `report` is called in its thread, first with WATCHING or DEAF. If it returns False, the watcher
    ends.
    """

    def __init__(
        self,
        root: Path,
        debounce_ms: int,
        report: Callable[[WatchReport], bool],
        *,
        counts: Callable[[str], bool] | None = None,
        meanwhile: str = "its files are compared at each turn",
    ) -> None:
        """Start the thread.

        `debounce_ms`: time in which changes are gathered, so that one that takes several steps
        counts as one. `counts`: returns whether a change of the file of that path is reported;
        None: `is_persona_file`. `meanwhile`: fallback while the directory cannot be watched, in
        words for the log.
        """
        self._root = root
        self._path = str(root.absolute())
        self._debounce_ms = max(debounce_ms, 1)
        self._report = report
        self._is_relevant = counts or is_persona_file
        self._meanwhile = meanwhile
        self._stopping = threading.Event()
        # A daemon thread, so that a crash elsewhere does not leave the process hanging; `join` is
        # the orderly end.
        self._thread = threading.Thread(target=self._run, name=f"watch {root.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. Returns at once."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until the thread has ended.

        Blocks for a quarter of a second after `stop`, or for as long as the disk does not answer.
        """
        self._thread.join()

    def _send_report(self, watch_report: WatchReport) -> None:
        if not self._report(watch_report):
            self._stopping.set()

    def _run(self) -> None:
        last_error: str | None = None
        while not self._stopping.is_set():
            try:
                self._watch()
            except (OSError, RuntimeError) as error:  # RuntimeError: watchfiles' own failures
                self._send_report(WatchReport.DEAF)
                if str(error) != last_error:
                    last_error = str(error)
                    logger.warning(
                        "%s cannot be watched: %s; %s", self._root, self._meanwhile, last_error
                    )
                self._stopping.wait(RETRY_S)

    def _watch(self) -> None:
        """Watch the directory until it is replaced or gone, or until `stop`. Raises OSError or
        RuntimeError.
        """
        # Imported here and not at the top: 9 ms and 1.3 MB that are not needed if the cache is off.
        from watchfiles._rust_notify import RustNotify  # noqa: PLC0415

        watched_id = self._directory_id()
        step_ms = min(max(self._debounce_ms // 2, 1), MAX_STEP_MS)
        # Not its `watch`, which does not report when it has begun:
        # https://watchfiles.helpmanual.io/api/rust_backend/
        with RustNotify([self._path], False, False, 0, False, False) as notify:
            self._send_report(WatchReport.WATCHING)
            while not self._stopping.is_set() and self._directory_id() == watched_id:
                changes = notify.watch(self._debounce_ms, step_ms, CHECK_MS, self._stopping)
                if not isinstance(changes, set):  # stopped, or nothing new
                    continue
                if any(self._is_relevant(path) for _, path in changes):
                    self._send_report(WatchReport.CHANGED)
                if (DELETED, self._path) in changes:  # a new directory may have the same inode
                    return

    def _directory_id(self) -> tuple[int, int]:
        status = self._root.stat()
        return status.st_dev, status.st_ino


def is_persona_file(path: str) -> bool:
    """Return whether a change of this file can change the persona."""
    name = path.rpartition("/")[2]
    return name.endswith(".md") or name in CARD_FILES


BundleKey = tuple[Path, PersonaScope, str, Path | None]
"""Workspace, scope, family, and the agent's own directory."""


@dataclass(frozen=True, slots=True)
class WorkspaceCounts:
    """Counters since the start, by workspace directory."""

    hits: Counter[str] = field(default_factory=Counter)
    """Answers from memory, also after a comparison without a difference."""
    misses: Counter[str] = field(default_factory=Counter)
    """Readings of the files."""
    invalidations: Counter[str] = field(default_factory=Counter)
    """Changes that made the content in memory useless. Changes within the debounce count once."""

    def by_path(self) -> dict[str, tuple[int, int, int]]:
        """Return hits, misses and invalidations of each directory."""
        paths = sorted({*self.hits, *self.misses, *self.invalidations})
        return {
            path: (self.hits[path], self.misses[path], self.invalidations[path]) for path in paths
        }


@dataclass(slots=True)
class _CachedBundle:
    bundle: PersonaBundle
    marks: FileMarks | None
    """None: a file has changed since."""
    is_linked: bool
    read_at: float
    """Time by the clock's `monotonic`."""
    version: int
    """`version` of the workspace, from before this was read or compared."""


@dataclass(slots=True)
class _WatchedWorkspace:
    """State of one directory."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    watcher: DirectoryWatcher | None = None
    is_watching: bool = False
    version: int = 0
    """Changes when a watcher reports a change, or becomes active: it may have missed earlier
    ones."""


class WorkspaceCache:
    """Bundles by directory, scope and family of models. For one event loop. `aclose` ends its
    threads.
    """

    def __init__(
        self, clock: Clock, *, watch_debounce_ms: int = 500, max_age_seconds: float = 0
    ) -> None:
        """Start without bundles and threads.

        `max_age_seconds`: age after which the files are read again even without a reported change.
        0: never for that reason.
        """
        self.counts = WorkspaceCounts()
        self._clock = clock
        self._debounce_ms = watch_debounce_ms
        self._max_age_s = max_age_seconds
        self._entries: dict[BundleKey, _CachedBundle] = {}
        self._workspaces: dict[Path, _WatchedWorkspace] = {}
        self._logged_notes: dict[BundleKey, tuple[str, ...]] = {}
        self._ending: list[DirectoryWatcher] = []
        """Watchers that were asked to stop."""
        self._closed = False

    def reconfigure(self, *, watch_debounce_ms: int, max_age_seconds: float) -> None:
        """Use these settings from now on. Returns at once."""
        self._max_age_s = max_age_seconds
        if watch_debounce_ms != self._debounce_ms:
            self._debounce_ms = watch_debounce_ms
            self._end_watchers()  # until a new one is active the files are compared

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
        memory and watched.

        `own`: as in `agent.workspace.persona.read_workspace`. It is not watched, but compared at
        every turn that needs it. `cached` False: read now, neither kept nor counted. A directory
        that does not exist gives an empty bundle and a warning. Raises OSError if a file cannot be
        read and there is no earlier content.
        """
        key = (root, scope, family, own if scope == "private" and own != root else None)
        if not cached:
            reading = await asyncio.to_thread(read_workspace, *key)
            self._log_notes(key, reading.notes)
            return reading.bundle
        workspace = self._workspaces.setdefault(root, _WatchedWorkspace())
        if self._is_fresh(key, workspace):
            return self._count_hit(key)
        async with workspace.lock:  # a caller that waited here finds what the one before has read
            if self._is_fresh(key, workspace):
                return self._count_hit(key)
            if workspace.watcher is None and not self._closed:
                workspace.watcher = self._watch(root, workspace)
            if await self._is_unchanged(key, workspace):
                return self._count_hit(key)
            return await self._read(key, workspace)

    async def aclose(self) -> None:
        """End the threads. Afterwards `get` still works, by comparing. Safe to call twice."""
        self._closed = True
        self._end_watchers()
        while self._ending:
            await asyncio.to_thread(self._ending.pop().join)

    def _end_watchers(self) -> None:
        """Ask all watchers to stop; what they still report counts for nothing."""
        for workspace in self._workspaces.values():
            if workspace.watcher is not None:
                workspace.watcher.stop()
                self._ending.append(workspace.watcher)
            workspace.watcher, workspace.is_watching = None, False

    def _is_fresh(self, key: BundleKey, workspace: _WatchedWorkspace) -> bool:
        """Return whether memory is known to agree with the files, without looking at the disk."""
        entry = self._entries.get(key)
        return (
            entry is not None
            and workspace.is_watching
            and not entry.is_linked
            and entry.version == workspace.version
            and not self._is_expired(entry)
        )

    def _is_expired(self, entry: _CachedBundle) -> bool:
        return 0 < self._max_age_s <= self._clock.monotonic() - entry.read_at

    def _count_hit(self, key: BundleKey) -> PersonaBundle:
        self.counts.hits[str(key[0])] += 1
        return self._entries[key].bundle

    async def _is_unchanged(self, key: BundleKey, workspace: _WatchedWorkspace) -> bool:
        """Return whether the files on the disk are as they were when they were read."""
        entry, version = self._entries.get(key), workspace.version
        if entry is None or entry.marks is None or self._is_expired(entry):
            return False
        if await asyncio.to_thread(read_marks, *key) != entry.marks:
            self._invalidate(key[0])
            return False
        entry.version = version
        return True

    async def _read(self, key: BundleKey, workspace: _WatchedWorkspace) -> PersonaBundle:
        root, entry, version = key[0], self._entries.get(key), workspace.version
        self.counts.misses[str(root)] += 1
        try:
            reading = await asyncio.to_thread(read_workspace, *key)
        except OSError as error:
            if entry is None:
                raise
            self._log_notes(
                key, (f"{root} cannot be read now, what was read before goes on: {error}",)
            )
            return entry.bundle
        if reading.is_missing and entry is not None:
            self._log_notes(key, (f"{root} is not there now, what was read before goes on",))
            return entry.bundle
        self._log_notes(key, reading.notes)
        if entry is not None and entry.bundle != reading.bundle:
            logger.info("%s has changed and was read again", root)
        self._entries[key] = _CachedBundle(
            reading.bundle, reading.marks, reading.is_linked, self._clock.monotonic(), version
        )
        return reading.bundle

    def _watch(self, root: Path, workspace: _WatchedWorkspace) -> DirectoryWatcher:
        loop = asyncio.get_running_loop()

        def on_report(watch_report: WatchReport) -> None:
            if workspace.watcher is not watcher:
                return
            workspace.version += 1
            if watch_report is WatchReport.CHANGED:
                self._invalidate(root)
            else:
                workspace.is_watching = watch_report is WatchReport.WATCHING

        def report(watch_report: WatchReport) -> bool:
            try:
                loop.call_soon_threadsafe(on_report, watch_report)
            except RuntimeError:  # the loop is closed
                return False
            return True

        watcher = DirectoryWatcher(root, self._debounce_ms, report)
        return watcher

    def _invalidate(self, root: Path) -> None:
        """Have the files read again."""
        known = [
            entry
            for (place, *_), entry in self._entries.items()
            if place == root and entry.marks is not None
        ]
        for entry in known:
            entry.marks = None
        self.counts.invalidations[str(root)] += bool(known)

    def _log_notes(self, key: BundleKey, notes: tuple[str, ...]) -> None:
        """Log notes that are new; the same ones at every turn would be noise."""
        for note in notes:
            if note not in self._logged_notes.get(key, ()):
                logger.warning("%s", note)
        self._logged_notes[key] = notes
