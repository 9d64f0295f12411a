"""Whether it is time to say once more that a limit is reached. Pure: times are handed in.

In one room, whatever limits bite there, a notice is followed by silence for `QUIET_S` at least; and the same limit is
told again only if it did not bite at all in between.
"""

from collections.abc import Callable
from typing import Final

from gateway.limits.recent import MOST, Recent

QUIET_S: Final = 600.0


class Silence:
    """Remembers what was said where."""

    def __init__(self, most: int = MOST) -> None:
        self._said = Recent[tuple[str, str], float](2 * most)
        """When, monotonic: of each limit in a room, and of any (``""``)."""

    def over(self, room: str, limit: str, now_s: float, free_since: Callable[[float], bool]) -> bool:
        """Whether a notice may be said. `free_since`: whether the limit was free at any moment after that one."""
        last, before = self._said.get((room, "")), self._said.get((room, limit))
        if last is not None and now_s - last < QUIET_S:
            return False
        return before is None or free_since(before)

    def begin(self, room: str, limit: str, now_s: float) -> None:
        """A notice is said."""
        self._said.keep((room, limit), now_s)
        self._said.keep((room, ""), now_s)

    def forget(self, room: str, limit: str) -> None:
        """It was not said after all."""
        self._said.pop((room, limit), None)
        self._said.pop((room, ""), None)
