import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cache.plan import CacheMultipliers, is_hour_cheaper
from agent.cache.state import _MAX_CONVERSATIONS, LENGTHS_S, Cadence, GapOdds, gap_kind, return_probability

COST = CacheMultipliers(0.1, 1.25, 2.0)
ROOM = "irc/#room"


def heard(*times_s: float, room: str = ROOM) -> Cadence:
    cadence = Cadence()
    for at_s in times_s:
        cadence.observe_request(room, at_s)
    return cadence


def test_what_lives_for_300_s_is_gone_at_300() -> None:
    assert [gap_kind(gap) for gap in (0.0, 299.9, 300.0, 3_599.0, 3_600.0, 1e9)] == [0, 0, 1, 1, 2, 2]


def pays(odds: GapOdds) -> bool:
    """Whether an hour pays for what grows."""
    return is_hour_cheaper(odds.kept, odds.written, COST)


@pytest.mark.parametrize(("gap_s", "hour"), [(60.0, False), (310.0, True), (3_000.0, True), (9_000.0, False)])
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
    """Five messages half a minute apart, then hours: inside a burst more is expected, at its beginning too."""
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
def test_a_restart_changes_nothing(gaps: list[tuple[float, int]]) -> None:
    cadence, at_s = Cadence(), 0.0
    for gap_s, room in gaps:
        at_s += gap_s
        cadence.observe_request(f"irc/{room}", at_s)
    again = Cadence.restore(cadence.dump())
    assert again == cadence
    assert again.odds("irc/0") == cadence.odds("irc/0")
    assert again.shared_odds() == cadence.shared_odds()


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
    for number in range(_MAX_CONVERSATIONS + 500):
        cadence.observe_request(f"irc/{number}", float(number))
    assert len(cadence.dump()) == _MAX_CONVERSATIONS + 2


def test_the_longer_nobody_came_the_less_it_is_expected() -> None:
    lengths = [20.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0]
    soon, late = return_probability(lengths, 0.0, 300.0), return_probability(lengths, 1_200.0, 300.0)
    assert soon > 0.5
    assert late < 0.1
    assert return_probability(lengths, 2 * LENGTHS_S[-1], 300.0) == 0.0
