"""How long to wait between two attempts to connect. Pure: chance is handed in."""

FIRST_DELAY_S, MAX_DELAY_S = 1.0, 300.0
STABLE_UPTIME_S = 60.0
"""A connection that was up for so long counts as a success: the next back-off begins anew."""


class Backoff:
    """Doubles from 1 s to `most_s`; each wait is between half of that and the whole, and at least 1 s."""

    def __init__(self, most_s: float = MAX_DELAY_S) -> None:
        self._max_delay_s = most_s
        self._failures = 0

    @property
    def is_failing(self) -> bool:
        """The last attempt failed."""
        return self._failures > 0

    def reset(self) -> None:
        """An attempt succeeded."""
        self._failures = 0

    def next_delay_s(self, up_s: float, chance: float) -> float:
        """After a connection that was up for `up_s` (0: never); `chance` is from 0 to 1."""
        if up_s >= STABLE_UPTIME_S:
            self.reset()
        most_s = min(self._max_delay_s, FIRST_DELAY_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return max(FIRST_DELAY_S, most_s * (0.5 + chance / 2))
