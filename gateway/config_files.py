"""The files that a configuration is read from, and whether anything was written since. Blocks: for a thread."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.settings_load import ConfigError, LoadedConfig, read_config, referenced_files

ConfigStamp = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and time of change (ns; of who may read it, too) of each file: equal while nothing was written."""


class ConfigFiles:
    """Those of one directory, and what `${file:...}` names in them. One reading at a time."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._env = env
        self._targets: frozenset[Path] = frozenset()
        self._stamp = self._take_stamp(())

    @property
    def directories(self) -> frozenset[Path]:
        """The directories in which they lie, as far as it is known."""
        return frozenset({self._directory, *(target.parent for target in self._targets)})

    def find_references(self) -> None:
        """Find out what they name. Raises nothing for what they hold, or if they are gone."""
        with contextlib.suppress(ConfigError, OSError):
            self._targets = referenced_files(self._directory, self._env)
            self._stamp |= self._take_stamp(self._targets) - self._take_stamp(())

    def is_stale(self) -> bool:
        """Whether anything was written since they were read last, or are to be read first."""
        return self._take_stamp(self._targets) != self._stamp

    def read(self) -> LoadedConfig:
        """What they say now; what is written from now on makes it stale. Raises BadConfig, OSError."""
        while True:
            stamp = self._stamp = self._take_stamp(self._targets)
            try:
                found = read_config(self._directory, self._env)
                targets = found.referenced_files
            except ConfigError as error:
                targets = error.referenced_files
                if targets <= self._targets:
                    raise
            else:
                if targets <= self._targets:
                    gone = {str(one) for one in self._targets - targets}
                    self._targets, self._stamp = targets, frozenset(one for one in stamp if one[0] not in gone)
                    return found
            self._targets |= targets  # what is named anew may have been written while it was read: once more

    def _take_stamp(self, targets: Iterable[Path]) -> ConfigStamp:
        try:
            own = [path for path in self._directory.iterdir() if path.suffix in {".yaml", ".yml"}]
        except OSError:  # just being replaced: the next look will tell
            own = []
        found = set()
        for path in (*own, *targets):
            with contextlib.suppress(OSError, ValueError):
                stat = path.stat()
                found.add((str(path), stat.st_ino, stat.st_size, stat.st_ctime_ns))
        return frozenset(found)
