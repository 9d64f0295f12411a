"""Who is dead, who takes a free lease, and who gives one away."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.cluster import Member, MemberStatus, ProcessRole
from gateway.cluster.database import find_claims, find_dead, find_lease_to_move, is_in_time
from tests.kits.store import NOW


def member(number: int, *leases: str, role: ProcessRole = "all", is_draining: bool = False) -> Member:
    return Member(
        number=number,
        name=f"m{number}",
        role=role,
        started=NOW,
        is_draining=is_draining,
        leases=frozenset(leases),
    )


@pytest.mark.parametrize(
    ("age_s", "has_session", "steady_s", "is_dead"),
    [
        (0.5, True, 60, False),
        (1.9, False, 60, False),
        (2.1, False, 60, True),
        (4.9, True, 60, False),
        (5.1, True, 60, True),
        (2.1, False, 4.9, False),
        (99, False, 0, False),
        (99, True, 4.9, False),
    ],
)
def test_who_is_dead(age_s: float, *, has_session: bool, steady_s: float, is_dead: bool) -> None:
    one = MemberStatus(
        member=member(1),
        host="h",
        pid=1,
        version="1",
        age_s=age_s,
        has_session=has_session,
        is_ready=True,
    )
    assert find_dead([one], 2, steady_s=steady_s) == [1] * is_dead
    assert find_dead([one], 1, steady_s=steady_s) == [], "nobody judges itself"
    starting = replace(one, is_ready=False)
    assert find_dead([starting], 2, steady_s=steady_s) == [], "its start may block it"
    assert find_dead([replace(starting, age_s=61.0)], 2, steady_s=10.0) == [1]


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
        ([member(1, role="worker"), member(2, role="edge")], {"channel:a": 0}, {1: [], 2: ["channel:a"]}),
        ([member(1, role="edge"), member(2, role="worker")], {"agent:a": 0, "upkeep": 0}, {2: ["agent:a", "upkeep"]}),
        ([member(1, role="edge"), member(2, role="edge")], {"upkeep": 9}, {1: [], 2: []}),
        ([member(1, is_draining=True), member(2, "upkeep")], {"agent:a": 0}, {1: [], 2: ["agent:a"]}),
        ([member(1, is_draining=True)], {"agent:a": 99}, {1: []}),
        ([member(1), member(2)], {"agent:a": 2.1}, {1: ["agent:a"], 2: ["agent:a"]}),
    ],
)
def test_who_takes_a_free_lease(members: list[Member], free: dict[str, float], expected: dict[int, list[str]]) -> None:
    assert {number: find_claims(number, members, free) for number in expected} == expected


ROLES: st.SearchStrategy[ProcessRole] = st.sampled_from(["all", "edge", "worker"])
MEMBERS = st.lists(st.tuples(ROLES, st.booleans()), min_size=1, max_size=5).map(
    lambda drawn: [member(at + 1, role=role, is_draining=drains) for at, (role, drains) in enumerate(drawn)]
)
NAMES = st.sets(st.sampled_from([f"{kind}:{n}" for kind in ("channel", "agent") for n in range(8)] + ["upkeep"]))


@given(MEMBERS, NAMES)
def test_each_free_lease_has_one_taker_and_all_hold_alike_many(members: list[Member], names: set[str]) -> None:
    free = dict.fromkeys(names, 0.0)
    claims = {one.number: find_claims(one.number, members, free) for one in members}
    taken = Counter(lease for found in claims.values() for lease in found)
    assert set(taken.values()) <= {1}
    able = [one for one in members if not one.is_draining]
    for kind, other in (("channel", "worker"), ("agent", "edge"), ("upkeep", "edge")):
        can = [one.number for one in able if one.role != other]
        of_kind = {lease for lease in names if lease.partition(":")[0] == kind}
        assert {lease for lease in taken if lease in of_kind} == (of_kind if can else set())
        counts = [len(of_kind.intersection(claims[number])) for number in can]
        assert not counts or max(counts) - min(counts) <= 1
        assert all(not of_kind.intersection(claims[one.number]) for one in members if one.number not in can)


@given(MEMBERS, st.lists(st.integers(0, 4), max_size=10))
def test_agents_move_until_workers_hold_alike_many(members: list[Member], holders: list[int]) -> None:
    held: dict[int, set[str]] = {one.number: set() for one in members}
    for at, holder in enumerate(holders):
        held[holder % len(members) + 1].add(f"agent:{at}")
    for _ in range(100):
        there = [replace(one, leases=frozenset(held[one.number])) for one in members]
        workers = [one for one in there if one.role != "edge" and not one.is_draining]
        moves = [(one, find_lease_to_move(one, there, one.leases)) for one in workers]
        giver, lease = next(((one, lease) for one, lease in moves if lease), (None, None))
        if giver is None or lease is None:
            break
        held[giver.number].remove(lease)
        after = [replace(one, leases=frozenset(held[one.number])) for one in members]
        (taker,) = [one.number for one in members if find_claims(one.number, after, {lease: 0})]
        assert taker != giver.number
        held[taker].add(lease)
    else:
        pytest.fail("leases move for ever")
    counts = [len(held[one.number]) for one in workers]
    assert not counts or max(counts) - min(counts) <= 1
    assert find_lease_to_move(member(1, "agent:a", "agent:b"), [member(2)], ["agent:a"]) == "agent:a"
    assert find_lease_to_move(member(1, "agent:a", "agent:b"), [member(2)], ["agent:a"], free=1) is None
    assert find_lease_to_move(member(1, "channel:a", "channel:b"), [member(2)], ["channel:a", "channel:b"]) is None
