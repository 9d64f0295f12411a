"""An ordinary day of the benchmark: who is asked how often."""

import asyncio

import pytest

from tests.bench.bench_approvals import ALONE, GUEST, MEMBER, measure

pytestmark = pytest.mark.boxed


def test_an_owner_alone_is_never_asked_and_neither_are_others_for_what_they_do_alone() -> None:
    found = asyncio.run(measure(1, [ALONE, MEMBER, GUEST]))
    assert sum(one.calls for one in found.values()) >= 12
    assert [(one.approvals, one.refusals) for one in found.values() if one.turns] == [((), ())] * 3


def test_fewer_than_three_approvals_are_asked_for_in_a_hundred_turns() -> None:
    found = asyncio.run(measure(1)).values()
    turns, asked = (
        sum(one.turns for one in found),
        [tool for one in found for tool in one.approvals],
    )
    print(f"{100 * len(asked) / turns:.1f} approvals in 100 turns: {asked}")
    assert 100 * len(asked) < 3 * turns
