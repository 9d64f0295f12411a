"""A memory of bounded size: what was not written to for longest is forgotten first."""

from collections import OrderedDict
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_REMEMBERED: Final = 10_000
"""People, rooms or notices that are remembered at once."""


class LruDict(OrderedDict[K, V]):
    """A dict of at most `most` things. Write with `keep`."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Remember, as the newest."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
