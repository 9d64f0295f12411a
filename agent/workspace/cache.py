"""Workspaces in memory, read again when their files change.

A hit costs a look into a dict. It is one only while a watcher listens; before that, where a directory
cannot be watched, and for files that are links, the files are compared with their state on the disk at every turn.
What was read once is never lost to a file that cannot be read just now: an editor may be at work.

Hears of changes in a workspace's directory, in a thread of its own.
"""

import asyncio
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from agent.workspace.character_card import CARD_FILES
from agent.workspace.persona import FileMarks, PersonaBundle, PersonaScope, read_marks, read_workspace
from gateway.core.clock import Clock

logger = logging.getLogger("reverie.workspace")

CHECK_MS = 1_000
"""How often it is made sure that the directory is still the one that is watched: a deleted one falls silent."""
RETRY_S = 2.0
"""Between attempts to watch a directory that is not there or cannot be watched."""
MAX_STEP_MS = 250
"""How often the library looks for news. Also how long `stop` takes at most."""
DELETED = 3
"""`watchfiles.Change.deleted`. A directory that is renamed is deleted, too."""


class WatchReport(Enum):
    """What a watcher reports."""

    WATCHING = "watching"
    """From now on every change is reported; what happened before may not have been."""
    CHANGED = "changed"
    """A file that counts came, went or changed."""
    DEAF = "deaf"
    """Changes are not heard of any more. It tries again by itself."""


class DirectoryWatcher:
    """Reports until it is stopped.

    `report` is called in this thread, first with WATCHING or DEAF. False: nobody listens any more, and it ends.
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
        """`debounce_ms`: how long changes are gathered, so that one that takes several steps counts as one.

        `counts`: whether a change of the file of that path is reported; None: as `is_persona_file` says. `meanwhile`:
        what happens while the directory cannot be watched, for the log.
        """
        self._root = root
        self._path = str(root.absolute())
        self._debounce_ms = max(debounce_ms, 1)
        self._report = report
        self._is_relevant = counts or is_persona_file
        self._meanwhile = meanwhile
        self._stopping = threading.Event()
        # A daemon, as a crash elsewhere must not leave the process hanging; `join` is the orderly end.
        self._thread = threading.Thread(target=self._run, name=f"watch {root.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; returns at once."""
        self._stopping.set()

    def join(self) -> None:
        """Wait until it has ended. Blocks: after `stop` for a quarter of a second, or while the disk is silent."""
        self._thread.join()

    def _send_report(self, heard: WatchReport) -> None:
        if not self._report(heard):
            self._stopping.set()

    def _run(self) -> None:
        told: str | None = None
        while not self._stopping.is_set():
            try:
                self._watch()
            except (OSError, RuntimeError) as error:  # RuntimeError: watchfiles' own failures
                self._send_report(WatchReport.DEAF)
                if str(error) != told:
                    told = str(error)
                    logger.warning("%s cannot be watched: %s; %s", self._root, self._meanwhile, told)
                self._stopping.wait(RETRY_S)

    def _watch(self) -> None:
        """Watch this directory until it is another one, or gone, or `stop`. Raises OSError or RuntimeError."""
        # In this thread and not at the top: 9 ms and 1.3 MB, for nothing where the cache is off.
        from watchfiles._rust_notify import RustNotify  # noqa: PLC0415

        which = self._directory_id()
        step_ms = min(max(self._debounce_ms // 2, 1), MAX_STEP_MS)
        # Not its `watch`, which does not tell when it has begun: https://watchfiles.helpmanual.io/api/rust_backend/
        with RustNotify([self._path], False, False, 0, False, False) as notify:
            self._send_report(WatchReport.WATCHING)
            while not self._stopping.is_set() and self._directory_id() == which:
                news = notify.watch(self._debounce_ms, step_ms, CHECK_MS, self._stopping)
                if not isinstance(news, set):  # stopped, or nothing new
                    continue
                if any(self._is_relevant(path) for _, path in news):
                    self._send_report(WatchReport.CHANGED)
                if (DELETED, self._path) in news:  # one in its place may have its inode
                    return

    def _directory_id(self) -> tuple[int, int]:
        seen = self._root.stat()
        return seen.st_dev, seen.st_ino


def is_persona_file(path: str) -> bool:
    """Whether a change of this file can change what is read."""
    name = path.rpartition("/")[2]
    return name.endswith(".md") or name in CARD_FILES


MAX_ENTRIES = 64
"""Bundles kept: agents by scopes by families. One has at most 60,000 characters and their headings."""

BundleKey = tuple[Path, PersonaScope, str, Path | None]
"""The workspace, the scope, the family, and the agent's own directory."""


@dataclass(frozen=True, slots=True)
class WorkspaceCounts:
    """What happened since the start, by workspace directory."""

    hits: Counter[str] = field(default_factory=Counter)
    """Answered from memory; also after a comparison that found nothing new."""
    misses: Counter[str] = field(default_factory=Counter)
    """The files were read."""
    invalidations: Counter[str] = field(default_factory=Counter)
    """A change made what was in memory useless. Changes within the debounce count once."""

    def by_path(self) -> dict[str, tuple[int, int, int]]:
        """Hits, misses and invalidations of each directory."""
        paths = sorted({*self.hits, *self.misses, *self.invalidations})
        return {path: (self.hits[path], self.misses[path], self.invalidations[path]) for path in paths}


@dataclass(slots=True, kw_only=True)
class _CachedBundle:
    bundle: PersonaBundle
    marks: FileMarks
    is_linked: bool
    read_at: float
    """By the clock's `monotonic`."""
    change_count: int
    session: int
    """The workspace's, from before this was read or compared."""


@dataclass(slots=True)
class _WatchedWorkspace:
    """One directory."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    watcher: DirectoryWatcher | None = None
    watcher_count: int = 0
    """So many there were, with this one."""
    is_watching: bool = False
    change_count: int = 0
    """That the watcher reported."""
    session: int = 0
    """Goes up when the watcher begins to listen: what happened before it may have missed."""


class WorkspaceCache:
    """Bundles by directory, scope and family of models. For one event loop; `aclose` ends its threads."""

    def __init__(self, clock: Clock, *, watch_debounce_ms: int = 500, max_age_seconds: float = 0) -> None:
        """`max_age_seconds`: after this long the files are read again whatever was heard. 0: never for that reason."""
        self.counts = WorkspaceCounts()
        self._clock = clock
        self._debounce_ms = watch_debounce_ms
        self._max_age_s = max_age_seconds
        self._entries: OrderedDict[BundleKey, _CachedBundle] = OrderedDict()
        self._workspaces: dict[Path, _WatchedWorkspace] = {}
        self._logged_notes: OrderedDict[BundleKey, tuple[str, ...]] = OrderedDict()
        self._ending: list[DirectoryWatcher] = []
        """Those that were told to stop."""
        self._closed = False

    def reconfigure(self, *, watch_debounce_ms: int, max_age_seconds: float) -> None:
        """Go by these from now on. Returns at once."""
        self._max_age_s = max_age_seconds
        if watch_debounce_ms == self._debounce_ms:
            return
        self._debounce_ms = watch_debounce_ms
        for workspace in self._workspaces.values():  # until another one listens the files are compared
            if workspace.watcher is not None:
                self._end_watcher(workspace.watcher)
            workspace.watcher, workspace.is_watching = None, False

    async def get(
        self, root: Path, *, scope: PersonaScope, family: str, own: Path | None = None, cached: bool = True
    ) -> PersonaBundle:
        """What the workspace says, for a model of `family`. Does not suspend if it is in memory and watched.

        `own`: as `agent.workspace.persona.read_workspace`. It is not watched, but compared at every turn that is told
        of it. `cached` false: read now, neither kept nor counted. A directory that is not there gives an empty bundle
        and a warning. Raises OSError if a file cannot be read and there is nothing from before.
        """
        key = (root, scope, family, own if scope == "private" and own != root else None)
        if not cached:
            reading = await asyncio.to_thread(read_workspace, *key)
            self._log_notes(key, reading.notes)
            return reading.bundle
        workspace = self._workspaces.setdefault(root, _WatchedWorkspace())
        if self._is_fresh(key, workspace):
            return self._count_hit(key)
        async with workspace.lock:  # whoever waited here finds what the one before has read
            if self._is_fresh(key, workspace):
                return self._count_hit(key)
            if workspace.watcher is None and not self._closed:
                workspace.watcher = self._watch(root, workspace)
            if await self._is_unchanged(key, workspace):
                return self._count_hit(key)
            return await self._read(key, workspace)

    async def aclose(self) -> None:
        """End the threads. Afterwards `get` still answers, by comparing. Safe to call twice."""
        self._closed = True
        for workspace in self._workspaces.values():
            if workspace.watcher is not None:
                self._end_watcher(workspace.watcher)
            workspace.is_watching = False
            workspace.watcher = None
        while self._ending:
            await asyncio.to_thread(self._ending.pop().join)

    def _end_watcher(self, watcher: DirectoryWatcher) -> None:
        watcher.stop()
        self._ending.append(watcher)

    def _is_fresh(self, key: BundleKey, workspace: _WatchedWorkspace) -> bool:
        """Whether memory is known to be what the files say, without a look at the disk."""
        entry = self._entries.get(key)
        return (
            entry is not None
            and workspace.is_watching
            and not entry.is_linked
            and entry.session == workspace.session
            and entry.change_count == workspace.change_count
            and not self._is_expired(entry)
        )

    def _is_expired(self, entry: _CachedBundle) -> bool:
        return 0 < self._max_age_s <= self._clock.monotonic() - entry.read_at

    def _count_hit(self, key: BundleKey) -> PersonaBundle:
        self.counts.hits[str(key[0])] += 1
        self._entries.move_to_end(key)
        return self._entries[key].bundle

    async def _is_unchanged(self, key: BundleKey, workspace: _WatchedWorkspace) -> bool:
        """Whether a look at the disk finds the files as they were when they were read."""
        entry = self._entries.get(key)
        if entry is None or entry.change_count != workspace.change_count or self._is_expired(entry):
            return False
        session = workspace.session
        if await asyncio.to_thread(read_marks, *key) != entry.marks:
            self._invalidate(key[0], workspace)
            return False
        entry.session = session
        return key in self._entries and entry.change_count == workspace.change_count

    async def _read(self, key: BundleKey, workspace: _WatchedWorkspace) -> PersonaBundle:
        root = key[0]
        entry = self._entries.get(key)
        changes, session = workspace.change_count, workspace.session
        self.counts.misses[str(root)] += 1
        try:
            reading = await asyncio.to_thread(read_workspace, *key)
        except OSError as error:
            if entry is None:
                raise
            self._log_notes(key, (f"{root} cannot be read now, what was read before goes on: {error}",))
            return entry.bundle
        if reading.is_missing and entry is not None:
            self._log_notes(key, (f"{root} is not there now, what was read before goes on",))
            return entry.bundle
        self._log_notes(key, reading.notes)
        if entry is not None and entry.bundle != reading.bundle:
            logger.info("%s has changed and was read again", root)
        self._entries[key] = _CachedBundle(
            bundle=reading.bundle,
            marks=reading.marks,
            is_linked=reading.is_linked,
            read_at=self._clock.monotonic(),
            change_count=changes,
            session=session,
        )
        self._entries.move_to_end(key)
        self._evict()
        return reading.bundle

    def _evict(self) -> None:
        """What was used least lately, and the watchers of directories that nobody asks about any more."""
        while len(self._entries) > MAX_ENTRIES:
            (root, *_), _ = self._entries.popitem(last=False)
            if not any(root == other for other, *_ in self._entries):
                watcher = self._workspaces.pop(root).watcher
                if watcher is not None:
                    self._end_watcher(watcher)

    def _watch(self, root: Path, workspace: _WatchedWorkspace) -> DirectoryWatcher:
        loop, number = asyncio.get_running_loop(), workspace.watcher_count + 1
        workspace.watcher_count = number

        def report(heard: WatchReport) -> bool:
            try:
                loop.call_soon_threadsafe(self._on_report, root, workspace, number, heard)
            except RuntimeError:  # the loop is closed
                return False
            return True

        return DirectoryWatcher(root, self._debounce_ms, report)

    def _on_report(self, root: Path, workspace: _WatchedWorkspace, number: int, heard: WatchReport) -> None:
        if workspace.watcher is None or number != workspace.watcher_count:
            return  # its last words
        if heard is WatchReport.CHANGED:
            self._invalidate(root, workspace)
            return
        workspace.is_watching = heard is WatchReport.WATCHING
        if workspace.is_watching:
            workspace.session += 1

    def _invalidate(self, root: Path, workspace: _WatchedWorkspace) -> None:
        if any(key[0] == root and entry.change_count == workspace.change_count for key, entry in self._entries.items()):
            self.counts.invalidations[str(root)] += 1
        workspace.change_count += 1

    def _log_notes(self, key: BundleKey, notes: tuple[str, ...]) -> None:
        """Log what is new; the same at every turn would be noise."""
        for note in notes:
            if note not in self._logged_notes.get(key, ()):
                logger.warning("%s", note)
        self._logged_notes[key] = notes
        self._logged_notes.move_to_end(key)
        while len(self._logged_notes) > MAX_ENTRIES:
            self._logged_notes.popitem(last=False)
