"""Mixed traffic: one fate for each event, `reverie why` names it and the rule, and no day passes
its limits.

The same as `tests/bench/bench_week.py`, which prints it, for less than a week.
"""

from pathlib import Path

import pytest

from gateway.store.overview import EventOutcome
from tests.bench import bench_week


@pytest.mark.parametrize(
    ("days", "seed"),
    [(0.4, 1), *(pytest.param(1.2, seed, marks=pytest.mark.soak) for seed in (11, 12))],
)
def test_every_event_has_one_fate_and_every_day_its_limits(
    tmp_path: Path, days: float, seed: int
) -> None:
    week = bench_week.run(tmp_path, count=days, seed=seed, hourly=12.0)
    seen = set(week.fates.values())
    assert {
        EventOutcome.ANSWERED,
        EventOutcome.CONTEXT,
        EventOutcome.NOTED,
        EventOutcome.COMMAND,
    } <= seen
    assert len(week.stories) > 20
    assert list(bench_week.tables(week))
