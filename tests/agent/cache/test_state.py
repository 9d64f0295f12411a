"""Assumed content of a cache. `test_plan` compares it with the bills of a strict cache."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cache.prices import Price
from agent.cache.state import (
    LENGTHS_S,
    ROOT_DIGEST,
    CachedPrefix,
    CacheState,
    Cadence,
    PromptSegment,
    expected_requests,
    extend_digest,
    return_probability,
)
from gateway.core.ratelimit import MAX_REMEMBERED

A = extend_digest(ROOT_DIGEST, b"a")
B = extend_digest(A, b"b")
C = extend_digest(B, b"c")
PATH = [
    PromptSegment(
        name="",
        behind="block",
        number=number,
        tokens=1,
        end_tokens=number + 1,
        digest=digest,
        end_position=number + 1,
    )
    for number, digest in enumerate((A, B, C))
]


def found(
    warmth: CacheState, path: Sequence[PromptSegment], at_s: float
) -> tuple[CachedPrefix, ...]:
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


def test_the_place_in_front_of_a_slow_loop_lives_as_long_as_the_loop() -> None:
    warmth, said, digest = CacheState(), list[PromptSegment](), A
    for number in range(8):
        digest = extend_digest(digest, b"step")
        said.append(PATH[1]._replace(behind="said", number=number, digest=digest))
    path = [PATH[0], *said]
    warmth.record_request(path[:2], read=0, writes=[(0, "1h"), (1, "5m")], at_s=0.0)
    for read in range(2, 9):  # each step reads what the one before it has written
        warmth.record_request(path, read=read, writes=[(read, "5m")], at_s=100.0 * read)
    assert found(warmth, path[:2], 1_099.0) == (CachedPrefix(0, "1h"), CachedPrefix(1, "5m"))
    assert found(warmth, path[:2], 1_100.0) == (CachedPrefix(0, "1h"),)


def test_what_was_written_anew_carries_again_what_still_lives_behind_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "5m"), (1, "1h")], at_s=0.0)
    warmth.record_request(PATH[:1], read=0, writes=[(0, "5m")], at_s=400.0)
    assert found(warmth, PATH, 401.0) == (CachedPrefix(0, "5m"), CachedPrefix(1, "1h"))


def test_what_was_found_missing_is_forgotten_with_all_behind_it() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(0, "5m"), (1, "5m"), (2, "5m")], at_s=0.0)
    warmth.forget(PATH[1:2])
    assert found(warmth, PATH, 1.0) == (CachedPrefix(0, "5m"),)


def test_another_write_does_not_shorten_what_lives_longer() -> None:
    warmth = CacheState()
    warmth.record_request(PATH, read=0, writes=[(1, "1h")], at_s=0.0)
    warmth.record_request(PATH, read=0, writes=[(1, "5m")], at_s=1.0)
    assert found(warmth, PATH, 2_000.0) == (CachedPrefix(1, "1h"),)


def test_memory_is_bounded_and_the_last_used_stays() -> None:
    warmth = CacheState(capacity=100)
    warmth.record_request(PATH[:1], read=0, writes=[(0, "1h")], at_s=0.0)
    for number in range(1_000):
        at_s = 1.0 + number / 10
        warmth.record_request(
            [PATH[0], PATH[1]._replace(digest=extend_digest(A, str(number).encode()))],
            read=1,
            writes=[(1, "1h")],
            at_s=at_s,
        )
        assert len(warmth) <= 101
    assert found(warmth, PATH[:1], 200.0) == (CachedPrefix(0, "1h"),)


# test_cadence


COST = Price(read=0.1, write_5m=1.25, write_1h=2.0)
ROOM = "irc/#room"


def heard(*times_s: float, room: str = ROOM, cadence: Cadence | None = None) -> Cadence:
    """A conversation with requests at these times."""
    cadence = cadence or Cadence()
    for at_s in times_s:
        cadence.observe_request(room, at_s)
    return cadence


def own(cadence: Cadence, room: str = ROOM) -> str | None:
    return cadence.lifetimes(room, COST).own


def quiet() -> Cadence:
    """A gateway with ten conversations of three messages each, to which nobody has come back."""
    cadence = Cadence()
    for room in range(10):
        heard(0.0, 30.0, 60.0, room=f"irc/{room}", cadence=cadence)
    return cadence


@pytest.mark.parametrize(
    ("gap_s", "lifetime"),
    [(60.0, "5m"), (299.9, "5m"), (300.0, "1h"), (3_599.0, "1h"), (3_600.0, None), (9e3, None)],
)
def test_gaps_of_the_conversation_decide(gap_s: float, lifetime: str | None) -> None:
    """What lives for 300 s is gone at 300."""
    cadence = quiet()
    heard(*(gap_s * number for number in range(8)), cadence=cadence)
    assert own(cadence) == lifetime


def test_gaps_of_hours_outweigh_a_few_that_an_hour_survives() -> None:
    cadence = quiet()
    heard(*(1_000.0 * number for number in range(6)), cadence=cadence)
    assert own(cadence) == "1h"
    heard(*(9_000.0 * number for number in range(1, 9)), cadence=cadence)
    assert own(cadence) != "1h"


def new() -> Cadence:
    """A gateway whose fourth conversation begins."""
    cadence = Cadence()
    for room in range(3):
        heard(0.0, 30.0, room=f"irc/{room}", cadence=cadence)
    return heard(60.0, cadence=cadence)


def test_a_new_gateway_begins_with_an_hour_until_nobody_comes_back() -> None:
    assert new().lifetimes(ROOM, COST) == ("1h", "1h", "1h")
    assert quiet().lifetimes(ROOM, COST) == ("1h", "1h", "5m")


def test_the_only_conversation_has_an_hour_from_its_first_return_on() -> None:
    assert Cadence().lifetimes(ROOM, COST) == ("1h", "1h", "5m")
    cadence = heard(0.0, 60.0, 120.0)
    assert own(cadence) == "5m"
    assert own(heard(500.0, cadence=cadence)) == "1h"


def test_a_new_conversation_begins_as_the_others_go_on() -> None:
    cadence = quiet()
    for room in range(10):
        heard(*(1_000.0 * number for number in range(3)), room=f"irc/{room}", cadence=cadence)
    heard(3_000.0, room="irc/new", cadence=cadence)
    assert own(cadence, "irc/new") == "1h"
    for room in range(30):
        heard(4_000.0, room=f"telegram/{room}", cadence=cadence)
    heard(4_000.0, room="irc/newer", cadence=cadence)
    assert own(cadence, "irc/newer") == "5m"


def test_prices_decide() -> None:
    """Where an hour costs no more than 5 minutes, it is asked for."""
    cadence = quiet()
    heard(0.0, cadence=cadence)
    assert own(cadence) == "5m"
    assert cadence.lifetimes(ROOM, Price(write_5m=1.25, write_1h=1.3)).own == "1h"
    assert new().lifetimes(ROOM, Price(write_5m=1.25, write_1h=30.0)).own == "5m"


def test_newer_gaps_weigh_more() -> None:
    times = [60.0 * number for number in range(100)]
    cadence = heard(*times, cadence=quiet())
    assert own(cadence) == "5m"
    heard(*(6_000.0 + 1_000.0 * number for number in range(20)), cadence=cadence)
    assert own(cadence) == "1h"


def test_what_all_share_is_asked_for_by_all() -> None:
    cadence = Cadence()
    for number in range(40):
        cadence.observe_request(f"irc/{number % 10}", 2_000.0 * number)
    assert cadence.lifetimes("irc/1", COST)[:2] == ("1h", "5m")


times = st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 3)), max_size=40)


@given(times)
def test_no_gaps_are_refused(gaps: list[tuple[float, int]]) -> None:
    cadence = Cadence()
    for at_s, room in gaps:  # not even in order: a clock may be set back
        cadence.observe_request(f"irc/{room}", at_s)
        lengths = cadence.lengths(f"irc/{room}")
        assert all(weight > 0.0 for weight in lengths)
        assert 0.0 <= return_probability(lengths, 600.0, 300.0) <= 1.0
        assert 0.0 < expected_requests(lengths, "5m") <= expected_requests(lengths, "1h")


def test_memory_is_bounded() -> None:
    cadence = heard(*(1_000.0 * number for number in range(6)), room="irc/first")
    assert own(cadence, "irc/first") == "1h"
    for number in range(MAX_REMEMBERED):
        cadence.observe_request(f"irc/{number}", 2.0)
    assert own(cadence, "irc/first") == "5m"


def test_the_longer_nobody_came_the_less_it_is_expected() -> None:
    lengths = [20.0, 1.0, *[0.01] * 7, 10.0]
    soon, late = (
        return_probability(lengths, 0.0, 300.0),
        return_probability(lengths, 1_200.0, 300.0),
    )
    assert soon > 0.5
    assert late < 0.1
    assert return_probability(lengths, 2 * LENGTHS_S[-1], 300.0) == 0.0
