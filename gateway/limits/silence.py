"""Whether it is time to say once more that a limit is reached. Pure: times are handed in.

In one room, whatever limits bite there, a notice is followed by silence for `QUIET_S` at least; and the same limit is
told again only if it did not bite at all in between.
"""

from collections.abc import Callable
from typing import Final

from gateway.limits.recent import MAX_REMEMBERED, LruDict

QUIET_S: Final = 600.0


class NoticeThrottle:
    """Remembers what was said where."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._last_said_s = LruDict[tuple[str, str], float](2 * most)
        """When, monotonic: of each limit in a room, and of any (``""``)."""

    def is_due(self, room: str, limit: str, now_s: float, free_since: Callable[[float], bool]) -> bool:
        """Whether a notice may be said. `free_since`: whether the limit was free at any moment after that one."""
        last, before = self._last_said_s.get((room, "")), self._last_said_s.get((room, limit))
        if last is not None and now_s - last < QUIET_S:
            return False
        return before is None or free_since(before)

    def record(self, room: str, limit: str, now_s: float) -> None:
        """A notice is said."""
        self._last_said_s.put((room, limit), now_s)
        self._last_said_s.put((room, ""), now_s)

    def forget(self, room: str, limit: str) -> None:
        """It was not said after all."""
        self._last_said_s.pop((room, limit), None)
        self._last_said_s.pop((room, ""), None)
