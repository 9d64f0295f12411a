"""Who is dead, and who takes a free lease."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.database import find_claims, find_dead, is_in_time
from gateway.core.api_models import ProcessRecord, ProcessState
from tests.kits.store import NOW


def member(
    number: int, *leases: str, state: ProcessState = "running", age_s: float = 0.0
) -> ProcessRecord:
    return ProcessRecord(
        number=number,
        name=f"m{number}",
        host="h",
        pid=1,
        version="1",
        started=NOW,
        age_s=age_s,
        state=state,
        leases=leases,
        answers=False,
    )


@pytest.mark.parametrize(
    ("age_s", "state", "steady_s", "is_dead"),
    [
        (0.5, "running", 60, False),
        (1.9, "cut off", 60, False),
        (2.1, "cut off", 60, True),
        (4.9, "stopping", 60, False),
        (5.1, "running", 60, True),
        (2.1, "cut off", 4.9, False),
        (99, "cut off", 0, False),
        (99, "running", 4.9, False),
    ],
)
def test_who_is_dead(age_s: float, state: ProcessState, steady_s: float, *, is_dead: bool) -> None:
    one = member(1, age_s=age_s, state=state)
    assert find_dead([one], 2, steady_s=steady_s) == [1] * is_dead
    assert find_dead([one], 1, steady_s=steady_s) == [], "nobody judges itself"


def test_a_process_that_starts_may_be_silent_for_a_minute() -> None:
    assert find_dead([member(1, age_s=59.0, state="starting")], 2, steady_s=10.0) == []
    assert find_dead([member(1, age_s=61.0, state="starting")], 2, steady_s=10.0) == [1]


@pytest.mark.parametrize(
    ("own_s", "server_s", "expected"),
    [
        (1.0, 1.1, True),
        (2.1, 2.1, False),
        (1.0, 11.0, False),
        (1.0, -9.0, False),
        (math.nan, math.nan, False),
    ],
)
def test_when_a_process_may_judge_others(own_s: float, server_s: float, *, expected: bool) -> None:
    assert is_in_time(own_s, server_s) is expected


@pytest.mark.parametrize(
    ("members", "free", "expected"),
    [
        ([member(1), member(2)], {"channel:a": 0}, {1: ["channel:a"], 2: []}),
        ([member(1, "channel:b"), member(2)], {"channel:a": 0}, {1: [], 2: ["channel:a"]}),
        ([member(1, "agent:b"), member(2)], {"channel:a": 0}, {1: ["channel:a"], 2: []}),
        (
            [member(1, state="stopping"), member(2, "upkeep")],
            {"agent:a": 0},
            {1: [], 2: ["agent:a"]},
        ),
        ([member(1, state="stopping")], {"agent:a": 99}, {1: []}),
        ([member(1, state="starting"), member(2)], {"agent:a": 0}, {1: [], 2: ["agent:a"]}),
        ([member(1), member(2)], {"agent:a": 2.1}, {1: ["agent:a"], 2: ["agent:a"]}),
    ],
)
def test_who_takes_a_free_lease(
    members: list[ProcessRecord], free: dict[str, float], expected: dict[int, list[str]]
) -> None:
    assert {number: find_claims(number, members, free) for number in expected} == expected


MEMBERS = st.lists(st.booleans(), min_size=1, max_size=5).map(
    lambda drawn: [
        member(at + 1, state="stopping" if drains else "running") for at, drains in enumerate(drawn)
    ]
)
NAMES = st.sets(
    st.sampled_from([f"{kind}:{n}" for kind in ("channel", "agent") for n in range(8)] + ["upkeep"])
)


@given(MEMBERS, NAMES)
def test_each_free_lease_has_one_taker_and_all_hold_alike_many(
    members: list[ProcessRecord], names: set[str]
) -> None:
    free = dict.fromkeys(names, 0.0)
    claims = {one.number: find_claims(one.number, members, free) for one in members}
    taken = Counter(lease for found in claims.values() for lease in found)
    assert set(taken.values()) <= {1}
    able = [one.number for one in members if one.state == "running"]
    assert {*taken} == (names if able else set())
    for kind in ("channel", "agent", "upkeep"):
        of_kind = {lease for lease in names if lease.partition(":")[0] == kind}
        counts = [len(of_kind.intersection(claims[number])) for number in able]
        assert not counts or max(counts) - min(counts) <= 1
