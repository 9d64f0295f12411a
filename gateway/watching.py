"""Has the configuration read again when it was written, and when somebody asks for that. In the background."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from agent.workspace.watch import DirectoryWatcher, WatchReport
from channels.tasks import with_timeout
from gateway.clock import Clock
from gateway.config_files import ConfigFiles
from gateway.live import LiveSettings

DEBOUNCE_MS: Final = 200
"""Changes are gathered for so long: an editor takes several steps, and so does whoever writes several files."""
POLL_S: Final = 30.0
"""How often the files are looked at though nothing was heard of them: some file systems of networks tell nothing."""


class ConfigWatcher:
    """Of one gateway."""

    def __init__(self, live: LiveSettings, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._watchers: dict[Path, DirectoryWatcher] = {}
        self._stopped: list[DirectoryWatcher] = []
        """Those that were told to stop."""
        self.has_reported = False
        """A watcher has said that it listens, or that it cannot."""

    async def run(self) -> None:
        """Until cancelled; then no thread is left. Returns at once where the configuration is in no files."""
        live, files = self._live, self._live.files
        if files is None:
            return
        try:
            await asyncio.to_thread(files.find_references)
            while True:
                self._watch_directories(files)
                with contextlib.suppress(TimeoutError):
                    await with_timeout(self._clock, POLL_S, live.change_event.wait())
                live.change_event.clear()
                await live.refresh()
        finally:
            self._stop_watching(*self._watchers)
            await asyncio.to_thread(self._join)

    def _watch_directories(self, files: ConfigFiles) -> None:
        """Watch where they lie now, and nowhere else."""
        places = files.directories
        self._stop_watching(*(place for place in self._watchers if place not in places))
        for place in places - self._watchers.keys():
            self._watchers[place] = self._watcher(place, asyncio.get_running_loop())

    def _watcher(self, place: Path, loop: asyncio.AbstractEventLoop) -> DirectoryWatcher:
        def report(_: WatchReport) -> bool:
            self.has_reported = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._live.change_event.set)
                return True
            return False

        def counts(path: str) -> bool:
            return not path.startswith(store)

        # Other names count, whatever they are: a link that is put in place of another one brings new files.
        store = str(self._live.settings.store.path.absolute())
        meanwhile = "the configuration is looked at now and then"
        return DirectoryWatcher(place, DEBOUNCE_MS, report, counts=counts, meanwhile=meanwhile)

    def _stop_watching(self, *places: Path) -> None:
        for place in places:
            watcher = self._watchers.pop(place)
            watcher.stop()
            self._stopped.append(watcher)

    def _join(self) -> None:
        for watcher in self._stopped:
            watcher.join()
