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
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from gateway.core.events import CacheTtl

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


State = tuple[int, int, int]
"""Gaps seen of a prefix: between 5 minutes and an hour, and longer, 3 standing for more; and the
share of the shorter ones in thirds, -1 as long as there are fewer than 3 gaps."""


class Seen:
    """What an online policy knows of one prefix."""

    def __init__(self) -> None:
        self._before: float | None = None
        self.gaps = [0, 0, 0]

    def state(self, at_s: float) -> State:
        """Return the state after a request at this time."""
        if self._before is not None:
            self.gaps[gap_kind(at_s - self._before)] += 1
        self._before, (short, medium, long) = at_s, self.gaps
        total = sum(self.gaps)
        return min(medium, 3), min(long, 3), min(2, 3 * short // total) if total > 2 else -1


def gap_kind(gap_s: float) -> int:
    """Return 0, 1 or 2: 5 minutes survive it, an hour does, neither does."""
    return (gap_s >= LIVES_5M_S) + (gap_s >= LIVES_1H_S)


def teach(passages: Iterable[Sequence[float]], cost: Cost) -> dict[State, CacheTtl | None]:
    """Return the cheapest lifetime of a token in each state, None: it is not cached. Its prefix is
    passed at times like those of `passages`: a Markov decision process, solved by iteration.
    """
    counts = defaultdict[State, Counter[tuple[int, State] | None]](Counter)
    for times in passages:
        seen = Seen()
        states = [seen.state(at_s) for at_s in times]
        gaps = [gap_kind(now - before) for before, now in itertools.pairwise(times)]
        for state, following in zip(
            states, [*zip(gaps, states[1:], strict=True), None], strict=True
        ):
            counts[state][following] += 1
    ahead = dict.fromkeys(counts, (0.0, 0.0, 0.0))  # if it is dead; alive for 5 min, 1 h

    def later(state: State, survives: int) -> float:
        """What comes after this request, if gaps of kinds below `survives` are survived."""
        total, sum_ = counts[state].total(), 0.0
        for following, count in counts[state].items():
            if following is not None:
                gap, then = following
                sum_ += count * ahead[then][survives if gap < survives else 0]
        return sum_ / total

    for _ in range(200):
        for state in counts:
            gone, short, long = (later(state, survives) for survives in range(3))
            least_ = min(1.0 + gone, cost.write_5m + short, cost.write_1h + long)
            ahead[state] = least_, cost.read + short, cost.read + long
    best: dict[State, CacheTtl | None] = {}
    for state, (least_, short, long) in ahead.items():
        options: tuple[tuple[float, CacheTtl | None], ...] = (
            (cost.write_5m - cost.read + short, "5m"),
            (cost.write_1h - cost.read + long, "1h"),
        )
        best[state] = next((name for paid, name in options if paid <= least_ + 1e-9), None)
    return best
