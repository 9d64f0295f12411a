import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cache.plan import CacheMultipliers, is_hour_cheaper
from agent.cache.state import gap_kind, hour_savings
from tests.kits.examples import examples

COST = CacheMultipliers(0.1, 1.25, 2.0)


def test_an_hour_pays_if_it_keeps_more_than_it_costs() -> None:
    assert is_hour_cheaper(1.0, 1.5, COST)
    assert not is_hour_cheaper(1.0, 1.6, COST)
    assert not is_hour_cheaper(0.0, 0.0, COST)
    assert not is_hour_cheaper(1.0, 0.1, CacheMultipliers(0.1, 1.25, float("inf")))


@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from((60.0, 1_000.0, 10_000.0)), max_size=40))
def test_it_tells_which_would_have_been_cheaper(gaps: list[float]) -> None:
    """Of a conversation whose card is as long as each exchange, by hand."""
    short, long, size = 2 * COST.write_5m, 2 * COST.write_1h, 2.0
    kept, written = hour_savings(0, None)
    for asked, gap_s in enumerate(gaps, start=1):
        new = 1.0
        short += size * COST.read + new * COST.write_5m if gap_kind(gap_s) == 0 else (size + new) * COST.write_5m
        long += size * COST.read + new * COST.write_1h if gap_kind(gap_s) < 2 else (size + new) * COST.write_1h
        size += new
        more = hour_savings(asked, gap_kind(gap_s))
        kept, written = kept + more[0], written + more[1]
    saved = kept * (COST.write_5m - COST.read) - written * (COST.write_1h - COST.write_5m)
    assert saved == pytest.approx(short - long)
    assert is_hour_cheaper(kept, written, COST) == (saved > 0)
