"""High-water mark beside a store: how far its log had come, so that one that has lost its end is
known at start.

The end is lost where the write-ahead log is cut (a snapshot of the file alone) or an older copy is
put there. Nothing inside the file shows that. So after each commit the position is written over the
last one in a small file: some microseconds without a flush, which outlives the process.
"""

import contextlib
import json
import os
from datetime import datetime
from pathlib import Path

from gateway.core.facts import Seq
from gateway.core.frozen import frozen
from gateway.store.log import Log

_RECORD_BYTES = 128
"""Size of the file, which is written as a whole."""


@frozen
class LostEnd:
    """Entries that the log had, and has no more."""

    last: Seq
    """Last position that it has. 0: none."""
    marked: Seq
    """Position that it had come to."""
    at: datetime
    """Time of the entry at that position, UTC."""


def mark_path(store: Path) -> Path:
    """Return the path of the mark. Hidden, so that it outlives `rm reverie.db*`."""
    return store.with_name(f".{store.name}.mark")


def find_lost_end(log: Log, store: Path) -> LostEnd | None:
    """Compare a store with its mark. None: nothing is missing, or there is no mark."""
    try:
        found = json.loads(mark_path(store).read_bytes())
        marked, at = Seq(int(found["seq"])), datetime.fromisoformat(found["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    last = log.last_seq()
    row = next(iter(log.fetch("SELECT at FROM log WHERE seq = $1", (marked,))), None)
    if last >= marked and (
        row is None or datetime.fromisoformat(row[0]) == at
    ):  # None: it was pruned
        return None
    return LostEnd(last=last, marked=marked, at=at)


class HighWaterMark:
    """The mark of a store that is open for writing. A mark that cannot be written is left as it
    is.
    """

    def __init__(self, store: Path) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(
                mark_path(store), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )

    def write(self, seq: Seq, at: str) -> None:
        """Record that the log has come to this position."""
        with contextlib.suppress(OSError):
            record = f'{{"seq": {seq}, "at": "{at}"}}'
            os.pwrite(self._fd, record.ljust(_RECORD_BYTES).encode(), 0)

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
