"""How long to wait between two attempts to connect. Pure: chance is handed in."""

FIRST_S, MOST_S = 1.0, 300.0
STABLE_S = 60.0
"""A connection that was up for so long counts as a success: the next back-off begins anew."""


class Backoff:
    """Doubles from 1 s to 300 s; each wait is between half of that and the whole, and at least 1 s."""

    def __init__(self) -> None:
        self._failures = 0

    def next_s(self, up_s: float, chance: float) -> float:
        """After a connection that was up for `up_s` (0: never); `chance` is from 0 to 1."""
        if up_s >= STABLE_S:
            self._failures = 0
        most_s = min(MOST_S, FIRST_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return max(FIRST_S, most_s * (0.5 + chance / 2))
