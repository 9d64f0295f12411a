"""Hears of changes in a workspace's directory, in a thread of its own."""

import logging
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from agent.workspace.avatar import CARD_FILES

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
