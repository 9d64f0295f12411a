"""One writer per store: an advisory lock on a file beside it, held until closed or until the process dies."""

import fcntl
import json
import os
from datetime import datetime
from pathlib import Path

from gateway.store.errors import StoreInUse, StoreUnreadable


class StoreLock:
    """An exclusive lock on `<store>.lock`, which says who holds it. The file itself is never removed.

    Blocks only for a few system calls. Raises InUse if somebody else holds it, Unreadable if the file
    cannot be made or written (disk full). The kernel frees it when the process ends, however it ends.
    """

    _fd = -1

    def __init__(self, store: Path, now: datetime) -> None:
        path = store.with_name(store.name + ".lock")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnreadable(f"cannot make the lock file {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._fd, 4096)
            self.release()
            raise _in_use(store, holder) from error
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "started": now.isoformat()}).encode(), 0)
        except OSError as error:
            self.release()
            raise StoreUnreadable(f"cannot write the lock file {path}: {error.strerror}") from error

    def release(self) -> None:
        """Let go. More than once is as good as once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.release()  # the opening that took it was cancelled: nobody else ever will


def _in_use(store: Path, holder: bytes) -> StoreInUse:
    try:
        said = json.loads(holder)
        pid, started = int(said["pid"]), str(said["started"])
    except (ValueError, KeyError, TypeError):
        return StoreInUse(f"{store} is in use by another process: stop that one, or set another store.path", None)
    return StoreInUse(
        f"{store} is in use by process {pid} (since {started}): stop that one (kill {pid}), or set another store.path",
        pid,
    )
