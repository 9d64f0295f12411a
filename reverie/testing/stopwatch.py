"""Seconds as a program lives them: a machine that holds the whole of it up adds next to nothing."""

import threading
import time
from types import TracebackType
from typing import Self

_TICK_S = 0.01
_MOST_S = 0.05


class Stopwatch:
    """Counts while it is entered, in a thread of its own.

    Waiting and blocking count whole, since the thread goes on meanwhile. What stops the thread, too
    (a machine with other work, a process that was put to sleep), counts for a twentieth of a second
    each time: whoever promises to end within a second promises nothing about that.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count, name="stopwatch", daemon=True)

    @property
    def seconds(self) -> float:
        """What was counted so far, to a hundredth or two."""
        return self._seconds

    def _count(self) -> None:
        before = time.monotonic()
        while not self._over.wait(_TICK_S):
            now = time.monotonic()
            self._seconds += min(now - before, _MOST_S)
            before = now

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
