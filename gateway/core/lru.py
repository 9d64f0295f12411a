"""Dict of bounded size, which forgets the entries that were written longest ago."""

from collections import OrderedDict
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MAX_REMEMBERED: Final = 10_000
"""Most people, rooms or notices remembered at once, where nothing else is said."""


class LruDict(OrderedDict[K, V]):
    """Dict of at most `max_size` entries: the entry that was written longest ago is dropped first. Write with `put`."""

    def __init__(self, max_size: int = MAX_REMEMBERED) -> None:
        super().__init__()
        self._max_size = max_size

    def put(self, key: K, value: V) -> None:
        """Store the value as the newest entry."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._max_size:
            self.popitem(last=False)
