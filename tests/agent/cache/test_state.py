"""Assumed content of a cache. `test_plan` compares it with the bills of a strict cache."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cache.plan import is_hour_cheaper
from agent.cache.prices import Price
from agent.cache.state import (
    _MAX_CONVERSATIONS,
    LENGTHS_S,
    ROOT_DIGEST,
    CachedPrefix,
    CacheState,
    Cadence,
    Digest,
    GapOdds,
    extend_digest,
    gap_kind,
    return_probability,
)

A = extend_digest(ROOT_DIGEST, b"a")
B = extend_digest(A, b"b")
C = extend_digest(B, b"c")
PATH = [A, B, C]


def found(warmth: CacheState, path: Sequence[Digest], at_s: float) -> tuple[CachedPrefix, ...]:
    """The prefixes, whenever they expire."""
    return tuple(CachedPrefix(one.segment, one.lifetime) for one in warmth.find(path, at_s))


def test_a_place_has_its_bytes_and_all_in_front_of_it_for_a_name() -> None:
    assert extend_digest(ROOT_DIGEST, b"a") == A
    assert extend_digest(extend_digest(ROOT_DIGEST, b"ab"), b"c") != extend_digest(
        extend_digest(ROOT_DIGEST, b"a"), b"bc"
    )
    assert extend_digest(A, b"b") != extend_digest(C, b"b")


def test_each_segment_has_its_lifetime_and_needs_what_is_in_front_of_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "1h"), (2, "5m")], at_s=0.0)
    assert found(warmth, PATH, 299.0) == (CachedPrefix(0, "1h"), CachedPrefix(2, "5m"))
    assert warmth.find(PATH, 299.0)[-1].expires_s == 300.0
    assert found(warmth, PATH, 300.0) == (CachedPrefix(0, "1h"),)
    assert found(warmth, PATH, 3_600.0) == ()
    assert warmth.find(PATH, 3_600.0) == ()
    late = CacheState()
    late.record_request(PATH, read=0, writes=[(0, "5m"), (2, "1h")], at_s=0.0)
    assert late.find(PATH, 300.0) == ()


def test_use_begins_a_lifetime_anew_and_makes_none_longer() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "1h"), (1, "5m")], at_s=0.0)
    warmth.record_request(PATH, read=2, writes=[(2, "1h")], at_s=200.0)
    assert found(warmth, PATH, 499.0)[-1] == CachedPrefix(2, "1h")
    assert found(warmth, PATH, 500.0) == (CachedPrefix(0, "1h"),)
    warmth.record_request(PATH[:1], read=1, writes=[], at_s=3_000.0)
    assert found(warmth, PATH, 6_599.0) == (CachedPrefix(0, "1h"),)


def test_what_was_written_anew_carries_again_what_still_lives_behind_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "5m"), (1, "1h")], at_s=0.0)
    warmth.record_request(PATH[:1], read=0, writes=[(0, "5m")], at_s=400.0)
    assert found(warmth, PATH, 401.0) == (CachedPrefix(0, "5m"), CachedPrefix(1, "1h"))


def test_what_was_found_missing_is_forgotten_with_all_behind_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "5m"), (1, "5m"), (2, "5m")], at_s=0.0)
    warmth.forget([B])
    assert found(warmth, PATH, 1.0) == (CachedPrefix(0, "5m"),)


def test_another_write_does_not_shorten_what_lives_longer() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(1, "1h")], at_s=0.0)
    warmth.record_request(PATH, read=0, writes=[(1, "5m")], at_s=1.0)
    assert found(warmth, PATH, 2_000.0) == (CachedPrefix(1, "1h"),)


def test_memory_is_bounded_and_the_last_used_stays() -> None:
    warmth = CacheState(capacity=100)
    warmth.record_request([A], read=0, writes=[(0, "1h")], at_s=0.0)
    for number in range(1_000):
        at_s = 1.0 + number / 10
        warmth.record_request(
            [A, extend_digest(A, str(number).encode())], read=1, writes=[(1, "1h")], at_s=at_s
        )
        assert len(warmth) <= 101
    assert found(warmth, [A], 200.0) == (CachedPrefix(0, "1h"),)


# test_cadence


COST = Price(read=0.1, write_5m=1.25, write_1h=2.0)
ROOM = "irc/#room"


def heard(*times_s: float, room: str = ROOM) -> Cadence:
    cadence = Cadence()
    for at_s in times_s:
        cadence.observe_request(room, at_s)
    return cadence


def test_what_lives_for_300_s_is_gone_at_300() -> None:
    assert [gap_kind(gap) for gap in (0.0, 299.9, 300.0, 3_599.0, 3_600.0, 1e9)] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]


def pays(odds: GapOdds) -> bool:
    """Whether an hour pays for what grows."""
    return is_hour_cheaper(odds.kept, odds.written, COST)


@pytest.mark.parametrize(
    ("gap_s", "hour"), [(60.0, False), (310.0, True), (3_000.0, True), (9_000.0, False)]
)
def test_a_few_gaps_decide(gap_s: float, hour: bool) -> None:
    assert pays(heard(*(gap_s * number for number in range(4))).odds(ROOM)) == hour
    assert not pays(heard(0.0, gap_s).odds(ROOM))


def test_gaps_of_hours_between_outweigh_a_few_that_an_hour_survives() -> None:
    times = [0.0, 1_000.0, 2_000.0, 3_000.0, *(9_000.0 * number for number in range(1, 9))]
    assert pays(heard(*times[:4]).odds(ROOM))
    assert not pays(heard(*times).odds(ROOM))


def test_before_the_first_gap_nothing_is_known() -> None:
    assert not heard(0.0).shared_odds().is_known
    assert heard(0.0, 1.0).shared_odds().is_known
    assert not pays(Cadence().odds("never/heard"))


def test_bursts_and_silences_are_told_apart() -> None:
    """Five messages half a minute apart, then hours: inside a burst more is expected, at its
    beginning too."""
    times = [burst * 20_000.0 + 30.0 * number for burst in range(6) for number in range(5)]
    cadence = heard(*times)
    after_short, _, after_long = cadence.odds(ROOM).rows
    assert after_long[0] > 0.8 > after_short[0] > 0.6
    assert after_short[2] > 0.15 > after_long[2]


def test_newer_gaps_weigh_more() -> None:
    cadence = heard(*(60.0 * number for number in range(100)))
    assert not pays(cadence.odds(ROOM))
    for number in range(4):
        cadence.observe_request(ROOM, 6_000.0 + 1_000.0 * number)
    assert pays(cadence.odds(ROOM))


def test_where_most_conversations_have_such_gaps_one_of_its_own_is_enough() -> None:
    cadence = Cadence()
    for number in range(4):
        for room in range(30):
            cadence.observe_request(f"irc/{room}", room * 10.0 + 1_000.0 * number)
    cadence.observe_request("irc/new", 4_000.0)
    assert not pays(cadence.odds("irc/new"))
    cadence.observe_request("irc/new", 4_100.0)
    assert not pays(cadence.odds("irc/new"))
    cadence.observe_request("irc/new", 5_000.0)
    assert pays(cadence.odds("irc/new"))


def test_what_all_share_is_asked_for_by_all() -> None:
    cadence = Cadence()
    for number in range(40):
        cadence.observe_request(f"irc/{number % 10}", 100.0 * number)
    assert cadence.shared_odds().gap_counts[1:] == (0.0, 0.0)
    assert pays(cadence.odds("irc/1"))


times = st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 3)), max_size=40)


@given(times)
def test_shares_are_shares(gaps: list[tuple[float, int]]) -> None:
    cadence = Cadence()
    for at_s, room in gaps:  # not even in order: a clock may be set back
        cadence.observe_request(f"irc/{room}", at_s)
        for odds in (cadence.odds(f"irc/{room}"), cadence.shared_odds()):
            for row in (odds.next_gap, *odds.rows):
                assert sum(row) == pytest.approx(1.0)
                assert all(0.0 < share < 1.0 for share in row)
        assert 0.0 <= cadence.return_probability(f"irc/{room}", 600.0, 300.0) <= 1.0


def test_memory_is_bounded() -> None:
    cadence = Cadence()
    for at_s in (0.0, 1.0):
        cadence.observe_request("irc/first", at_s)
    assert cadence.odds("irc/first").is_known
    for number in range(_MAX_CONVERSATIONS):
        cadence.observe_request(f"irc/{number}", 2.0)
    assert not cadence.odds("irc/first").is_known


def test_the_longer_nobody_came_the_less_it_is_expected() -> None:
    lengths = [20.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0]
    soon, late = (
        return_probability(lengths, 0.0, 300.0),
        return_probability(lengths, 1_200.0, 300.0),
    )
    assert soon > 0.5
    assert late < 0.1
    assert return_probability(lengths, 2 * LENGTHS_S[-1], 300.0) == 0.0
