"""How many wrong codes somebody may hand in. Pure: the time is handed in."""

from collections import OrderedDict, deque
from typing import Final

WINDOW_S: Final = 600.0
MOST_OF_PERSON: Final = 5
MOST_OF_CHANNEL: Final = 20
_MOST_KEPT: Final = 10_000
"""Persons and channels; more than can have tried anything that a channel lets through."""


class Tries:
    """Wrong ones of the last ten minutes, in the memory of one process."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def may(self, person: str, channel: str, now_s: float) -> bool:
        """Whether what this person hands in there is to be looked at."""
        return self._count(person, now_s) < MOST_OF_PERSON and self._count(f"/{channel}", now_s) < MOST_OF_CHANNEL

    def wrong(self, person: str, channel: str, now_s: float) -> None:
        """It was none."""
        for whose in (person, f"/{channel}"):  # no person's name begins so
            self._wrong.setdefault(whose, deque(maxlen=MOST_OF_CHANNEL)).append(now_s)
            self._wrong.move_to_end(whose)
        while len(self._wrong) > _MOST_KEPT:
            self._wrong.popitem(last=False)

    def _count(self, whose: str, now_s: float) -> int:
        return sum(now_s - at < WINDOW_S for at in self._wrong.get(whose, ()))
