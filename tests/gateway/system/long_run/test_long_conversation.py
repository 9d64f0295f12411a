"""One conversation through thousands of turns: the window holds, handles open, and a restart
changes no byte."""

import statistics
from dataclasses import replace

import pytest

from tests.gateway.system.long_run.conversation_script import Mix
from tests.gateway.system.long_run.conversation_story import lived

MANY = Mix(name="many", tools=0.25, rounds=2, calls=1)
BIG = replace(MANY, said=(50, 400), replies=(40, 120))
"""Fewer and longer lines, so that a large window is full of something else than frames."""


@pytest.mark.parametrize(
    ("window", "turns"),
    [
        (8_000, 80),
        *(
            pytest.param(window, 200, marks=pytest.mark.system)
            for window in (8_000, 32_000, 200_000)
        ),
    ],
)
def test_a_long_conversation_goes_on(window: int, turns: int) -> None:
    tale = lived(window=window, turns=turns, recall_tokens=150)
    assert tale.script.told > turns // 2
    assert tale.opened > turns // 2
    assert tale.kinds["trim"] > 0


def test_texts_may_be_denser_than_anybody_estimates() -> None:
    lived(window=8_000, turns=50, chars_per_token=2.0)


@pytest.mark.system
def test_a_window_that_is_smaller_than_anybody_was_told_is_found_out() -> None:
    """Each turn is folded and asked again until it fits; nobody is told."""
    assert lived(window=32_000, real=12_000, turns=60).overflows > 0


@pytest.mark.system
def test_it_goes_on_over_a_socket() -> None:
    assert lived(window=32_000, turns=60, socket=True, restarts=2).script.told > 20


@pytest.mark.parametrize(
    ("turns", "restarts"), [(40, 3), pytest.param(120, 11, marks=pytest.mark.system)]
)
def test_a_restart_changes_no_byte_of_any_request(turns: int, restarts: int) -> None:
    """Folded under pressure only: what is believed of the provider's cache does not outlive a
    process."""
    how = {"window": 32_000, "turns": turns, "folds": {"policy": "full"}, "names": True}
    restarted, twin = lived(restarts=restarts, **how), lived(restarts=0, **how)
    assert restarted.kinds
    assert restarted.kinds == twin.kinds
    assert restarted.script.digests == twin.script.digests


@pytest.mark.soak
@pytest.mark.parametrize("window", [8_000, 32_000, 200_000])
def test_twenty_thousand_turns(window: int) -> None:
    tale = lived(window=window, turns=20_000, restarts=10, mix=BIG if window > 100_000 else MANY)
    print(tale.told())
    early, late = (
        statistics.median(tale.spent_s[start : start + 2_000]) for start in (2_000, 18_000)
    )
    assert late < 3 * early, "turns take longer and longer"
    assert tale.resident_mb[-1] < tale.resident_mb[2] + 100, "memory grows"
