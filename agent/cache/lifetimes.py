"""Whether a prefix should be cached for 5 minutes or for an hour, by what its gaps so far would have cost. Pure.

Writing for an hour costs more each time; it pays if gaps follow that 5 minutes do not survive and an hour does. What
one choice would have cost until now is compared with what the other would have: who always chooses so can lose, to
the one that turns out to be right, no more than what it took to find out.
"""

from typing import NamedTuple


class CacheMultipliers(NamedTuple):
    """What a token costs, as shares of its plain price. Infinite: it cannot be had."""

    read: float
    write_5m: float
    write_1h: float


def is_hour_cheaper(kept: float, written: float, cost: CacheMultipliers) -> bool:
    """Whether an hour costs less than 5 minutes.

    `kept`: what only an hour keeps, and would have to be written again; `written`: what is written for it.
    """
    return kept * (cost.write_5m - cost.read) > written * (cost.write_1h - cost.write_5m)
