"""For how long a piece of a prompt should be cached, by expected cost. Pure.

Every token of a prefix is read or paid for at each request that begins with it, and costs are proportional to
tokens; so what is best for one token is best for its whole piece, whatever its size. What one token costs from
here on is a small Markov decision problem: the state is the length of the gap that just ended (`cadence.GAPS`)
and whether the token is still cached; the actions, wherever it is not, are not to cache it, or for 5 minutes, or
for an hour. Reading is never worse than paying again, so a cached token leaves nothing to decide: it keeps the
lifetime that it was written with, and reading begins it anew but never makes it longer.

The future counts for as many requests as are expected to repeat the token (`Odds.remaining`).
"""

from typing import NamedTuple

from agent.cache.cadence import Odds
from gateway.events import Lifetime

_ROUNDS = 200
_CLOSE_ENOUGH = 1e-3
"""In units of one token's input price: below what could change a bill."""


class Multipliers(NamedTuple):
    """What a token costs, as shares of its plain price. Infinite: it cannot be had."""

    read: float
    write_5m: float
    write_1h: float


class Expected(NamedTuple):
    """What one token is expected to cost from now on, if it has to be paid now, by what is done with it."""

    plain: float
    short: float
    long: float

    def of(self, lifetime: Lifetime | None) -> float:
        """Return what it costs with this lifetime; None: uncached."""
        return self.plain if lifetime is None else self.short if lifetime == "5m" else self.long

    def best(self) -> Lifetime | None:
        """Return the cheapest lifetime; None: do not cache. Of equals the one that costs less now."""
        if self.plain <= min(self.short, self.long):
            return None
        return "5m" if self.short <= self.long else "1h"


def expected(odds: Odds, cost: Multipliers) -> Expected:
    """Weigh the three actions for a token that is not cached now."""
    keep = odds.remaining / (odds.remaining + 1.0)
    (a0, a1, a2), (b0, b1, b2), (c0, c1, c2) = [tuple(keep * share for share in row) for row in odds.rows]
    read, short, long = cost
    # Dead after each kind of gap; alive for 5 minutes after a short one; alive for an hour after the two shorter.
    # Each is solved for itself, given the others: where most gaps are of one kind, mere repetition takes for ever.
    dead0 = dead1 = dead2 = alive5 = alive0 = alive1 = 0.0
    both = (1.0 - a0) * (1.0 - b1) - a1 * b0
    for _ in range(_ROUNDS):
        was = dead0 + dead1 + dead2
        alive5 = (read + a1 * dead1 + a2 * dead2) / (1.0 - a0)
        ends0, ends1 = read + a2 * dead2, read + b2 * dead2
        alive0 = (ends0 * (1.0 - b1) + a1 * ends1) / both
        alive1 = (ends1 * (1.0 - a0) + b0 * ends0) / both
        dead0 = min(
            (1.0 + a1 * dead1 + a2 * dead2) / (1.0 - a0),
            short + a0 * alive5 + a1 * dead1 + a2 * dead2,
            long + a0 * alive0 + a1 * alive1 + a2 * dead2,
        )
        dead1 = min(
            (1.0 + b0 * dead0 + b2 * dead2) / (1.0 - b1),
            (short + b0 * alive5 + b2 * dead2) / (1.0 - b1),
            long + b0 * alive0 + b1 * alive1 + b2 * dead2,
        )
        dead2 = min(
            (1.0 + c0 * dead0 + c1 * dead1) / (1.0 - c2),
            (short + c0 * alive5 + c1 * dead1) / (1.0 - c2),
            (long + c0 * alive0 + c1 * alive1) / (1.0 - c2),
        )
        if abs(dead0 + dead1 + dead2 - was) < _CLOSE_ENOUGH:
            break
    n0, n1, n2 = (keep * share for share in odds.next)
    return Expected(
        plain=1.0 + n0 * dead0 + n1 * dead1 + n2 * dead2,
        short=short + n0 * alive5 + n1 * dead1 + n2 * dead2,
        long=long + n0 * alive0 + n1 * alive1 + n2 * dead2,
    )
