"""How many commands one person is answered in a minute. Pure: times are handed in."""

from collections import OrderedDict, deque

WINDOW_S = 60.0
PEOPLE = 10_000
"""Remembered at once; who was quiet for longest is forgotten first."""


class Pace:
    """A sliding window per person."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def try_acquire(self, person: str, now_s: float, per_minute: int) -> bool:
        """Whether one more is answered at this monotonic time, of so many in a minute; it counts if so."""
        times = self._times.setdefault(person, deque())
        self._times.move_to_end(person)
        if len(self._times) > PEOPLE:
            self._times.popitem(last=False)
        while times and times[0] <= now_s - WINDOW_S:
            times.popleft()
        if len(times) >= per_minute:
            return False
        times.append(now_s)
        return True
