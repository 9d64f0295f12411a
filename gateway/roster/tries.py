"""How many wrong codes somebody may hand in. Pure: the time is handed in."""

from collections import OrderedDict, deque
from typing import Final

ATTEMPT_WINDOW_S: Final = 600.0
MAX_ATTEMPTS_PER_PERSON: Final = 5
MAX_ATTEMPTS_PER_CHANNEL: Final = 20
_MAX_REMEMBERED: Final = 10_000
"""Persons and channels; more than can have tried anything that a channel lets through."""


class AttemptLimiter:
    """Wrong ones of the last ten minutes, in the memory of one process."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def is_allowed(self, person: str, channel: str, now_s: float) -> bool:
        """Whether what this person hands in there is to be looked at."""
        return (
            self._count_failures(person, now_s) < MAX_ATTEMPTS_PER_PERSON
            and self._count_failures(f"/{channel}", now_s) < MAX_ATTEMPTS_PER_CHANNEL
        )

    def record_failure(self, person: str, channel: str, now_s: float) -> None:
        """It was none."""
        for whose in (person, f"/{channel}"):  # no person's name begins so
            self._failures.setdefault(whose, deque(maxlen=MAX_ATTEMPTS_PER_CHANNEL)).append(now_s)
            self._failures.move_to_end(whose)
        while len(self._failures) > _MAX_REMEMBERED:
            self._failures.popitem(last=False)

    def _count_failures(self, whose: str, now_s: float) -> int:
        return sum(now_s - at < ATTEMPT_WINDOW_S for at in self._failures.get(whose, ()))
