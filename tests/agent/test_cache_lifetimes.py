import random

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cache.cadence import Odds, Share
from agent.cache.lifetimes import Multipliers, expected
from gateway.events import Lifetime
from tests.agent.cache_kit import odds
from tests.bench.optimum import Cost, least
from tests.examples import examples

COST = Multipliers(0.1, 1.25, 2.0)
GAPS_S = (60.0, 1_000.0, 10_000.0)


def test_each_regime_has_its_lifetime() -> None:
    assert expected(odds(0.98, 0.01), COST).best() == "5m"
    assert expected(odds(0.01, 0.98), COST).best() == "1h"
    assert expected(odds(0.01, 0.01), COST).best() is None


def test_where_there_is_no_hour_it_is_not_chosen() -> None:
    none = Multipliers(0.1, 1.25, float("inf"))
    assert expected(odds(0.01, 0.98), none).best() is None
    assert expected(odds(0.6, 0.39), none).best() == "5m"


def test_what_is_written_free_of_charge_is_always_written() -> None:
    assert expected(odds(0.2, 0.1), Multipliers(0.1, 1.0, float("inf"))).best() == "5m"


def test_nothing_is_written_for_nobody() -> None:
    assert expected(odds(0.9, 0.1, remaining=0.0), COST).best() is None


def test_what_follows_the_gap_that_just_ended_counts() -> None:
    """Bursts of talk with hours between: in a burst 5 minutes, after a lone question nothing."""
    rows: tuple[Share, Share, Share] = ((0.9, 0.0, 0.1), (0.3, 0.3, 0.4), (0.05, 0.0, 0.95))
    assert expected(Odds(next=rows[0], rows=rows, remaining=20), COST).best() == "5m"
    assert expected(Odds(next=rows[2], rows=rows, remaining=20), COST).best() is None


def paid(lifetime: Lifetime | None, gaps: list[int], cost: Multipliers) -> float:
    """What one token costs that is always paid for in the same way."""
    total, alive = 0.0, False
    for gap in [2, *gaps]:
        alive = alive and lifetime is not None and gap <= ("5m", "1h").index(lifetime)
        write = 1.0 if lifetime is None else cost.write_5m if lifetime == "5m" else cost.write_1h
        total += cost.read if alive else write
        alive = True
    return total


@settings(max_examples=examples(25), deadline=None)
@given(st.floats(0.05, 0.9), st.floats(0.05, 0.95), st.integers(1, 1_000))
def test_it_costs_no_more_than_always_doing_the_same_and_no_less_than_knowing_the_future(
    short: float, middle: float, seed: int
) -> None:
    one = odds(short, (1 - short) * middle, remaining=12.0)
    weighed = min(expected(one, COST))
    rng = random.Random(seed)
    sums = {"5m": 0.0, "1h": 0.0, "plain": 0.0, "least": 0.0}
    rounds = 3_000
    for _ in range(rounds):
        gaps: list[int] = []
        while rng.random() < 12.0 / 13.0:
            gaps.append(rng.choices((0, 1, 2), one.next)[0])
        sums["plain"] += paid(None, gaps, COST)
        sums["5m"] += paid("5m", gaps, COST)
        sums["1h"] += paid("1h", gaps, COST)
        times = [0.0]
        for gap in gaps:
            times.append(times[-1] + GAPS_S[gap])
        sums["least"] += least(times, Cost(*COST))
    for always in ("5m", "1h", "plain"):
        assert weighed <= sums[always] / rounds * 1.1
    assert weighed >= sums["least"] / rounds * 0.9
