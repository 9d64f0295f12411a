"""The least that any choice of cache marks could have cost for these requests, known from the end.
Pure.

Each request is a path of nodes; the same nodes in the same order from the first are the same
prefix, and a prefix node is paid for by every request that passes it. Each node is decided for by
itself, by dynamic programming over the times it is passed: alive, it is read, which begins its
lifetime anew; dead, it is paid plain, or written for 5 minutes, or for an hour. To read what is
alive is never worse than anything else: to write it again for longer costs as much when it has
died, and may then not be needed.

This is a lower bound, because it lets go of what binds a real plan: the number of marks, their
order (1 h in front of 5 m), the smallest prefix, how far a mark looks back, that a piece can only
be read with all in front of it, and that a write can be read only after its answer has begun.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

LIVES_5M_S, LIVES_1H_S = 300.0, 3_600.0


class Cost(NamedTuple):
    """Shares of the plain input price."""

    read: float = 0.1
    write_5m: float = 1.25
    write_1h: float = 2.0


class Asked(NamedTuple):
    """One request: when, and its pieces as (name, tokens), from the first."""

    at_s: float
    path: Sequence[tuple[Hashable, int]]


def optimum(requests: Iterable[Asked], cost: Cost) -> float:
    """Return the bound for all of them, in plain tokens. `requests` are in the order of time."""
    numbers: dict[tuple[int, Hashable], int] = {}
    passed: list[list[float]] = []
    tokens: list[int] = []
    for request in requests:
        node = -1
        for name, size in request.path:
            node = numbers.setdefault((node, name), len(passed))
            if node == len(passed):
                passed.append([])
                tokens.append(size)
            passed[node].append(request.at_s)
    return sum(size * least(times, cost) for size, times in zip(tokens, passed, strict=True))


def least(times: Sequence[float], cost: Cost) -> float:
    """Return the least that one token costs that is passed at these times."""
    read, write_5m, write_1h = cost
    gone, short, long = 1.0, write_5m, write_1h
    for before, now in itertools.pairwise(times):
        gap = now - before
        dead = (
            gone
            if gap < LIVES_5M_S
            else min(gone, short)
            if gap < LIVES_1H_S
            else min(gone, short, long)
        )
        gone, short, long = (
            dead + 1.0,
            min(dead + write_5m, short + read) if gap < LIVES_5M_S else dead + write_5m,
            min(dead + write_1h, long + read) if gap < LIVES_1H_S else dead + write_1h,
        )
    return min(gone, short, long)
