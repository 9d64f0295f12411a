import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cache.cadence import _KEPT, LENGTHS_S, Cadence, kind, returns
from agent.cache.lifetimes import Multipliers, expected

COST = Multipliers(0.1, 1.25, 2.0)
ROOM = "irc/#room"


def heard(*times_s: float, room: str = ROOM) -> Cadence:
    cadence = Cadence()
    for at_s in times_s:
        cadence.asked(room, at_s)
    return cadence


def test_what_lives_for_300_s_is_gone_at_300() -> None:
    assert [kind(gap) for gap in (0.0, 299.9, 300.0, 3_599.0, 3_600.0, 1e9)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(("gap_s", "lifetime"), [(60.0, "5m"), (310.0, "1h"), (900.0, "1h"), (3_000.0, "1h")])
def test_one_gap_decides(gap_s: float, lifetime: str) -> None:
    cadence = heard(0.0, gap_s)
    assert expected(cadence.odds(ROOM), COST).best() == lifetime
    assert expected(cadence.shared_odds(), COST).best() == "1h"


def test_two_gaps_of_hours_decide_that_nothing_is_kept() -> None:
    cadence = heard(0.0, 9_000.0, 18_000.0)
    assert expected(cadence.odds(ROOM), COST).best() is None


def test_before_the_first_gap_it_is_a_guess() -> None:
    assert not heard(0.0).shared_odds().known
    assert heard(0.0, 1.0).shared_odds().known
    assert expected(heard(0.0).shared_odds(), COST).best() == "1h"
    assert expected(Cadence().odds("never/heard"), COST).best() is not None  # it is repeated in any case


def test_bursts_and_silences_are_told_apart() -> None:
    """Five messages half a minute apart, then hours: inside a burst more is expected, at its beginning too."""
    times = [burst * 20_000.0 + 30.0 * number for burst in range(6) for number in range(5)]
    cadence = heard(*times)
    after_short, _, after_long = cadence.odds(ROOM).rows
    assert after_long[0] > 0.8 > after_short[0] > 0.6
    assert after_short[2] > 0.15 > after_long[2]


def test_newer_gaps_weigh_more() -> None:
    cadence = heard(*(60.0 * number for number in range(100)))
    assert expected(cadence.odds(ROOM), COST).best() == "5m"
    for number in range(12):
        cadence.asked(ROOM, 6_000.0 + 1_000.0 * number)
    assert expected(cadence.odds(ROOM), COST).best() == "1h"


def test_a_new_conversation_is_taken_for_one_like_the_others() -> None:
    cadence = Cadence()
    for room in range(30):
        for number in range(4):
            cadence.asked(f"irc/{room}", room * 10.0 + 1_000.0 * number)
    assert expected(cadence.odds("irc/new"), COST).best() == "1h"


def test_what_all_share_is_asked_for_by_all() -> None:
    cadence = Cadence()
    for number in range(20):
        cadence.asked(f"irc/{number % 10}", 100.0 * number)
    assert expected(cadence.shared_odds(), COST).best() == "5m"
    assert expected(cadence.odds("irc/1"), COST).best() == "1h"


times = st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 3)), max_size=40)


@settings(deadline=None)
@given(times)
def test_a_restart_changes_nothing(gaps: list[tuple[float, int]]) -> None:
    cadence, at_s = Cadence(), 0.0
    for gap_s, room in gaps:
        at_s += gap_s
        cadence.asked(f"irc/{room}", at_s)
    again = Cadence.restore(cadence.state())
    assert again == cadence
    assert again.odds("irc/0") == cadence.odds("irc/0")
    assert again.shared_odds() == cadence.shared_odds()


@settings(deadline=None)
@given(times)
def test_shares_are_shares(gaps: list[tuple[float, int]]) -> None:
    cadence = Cadence()
    for at_s, room in gaps:  # not even in order: a clock may be set back
        cadence.asked(f"irc/{room}", at_s)
        for odds in (cadence.odds(f"irc/{room}"), cadence.shared_odds()):
            for row in (odds.next, *odds.rows):
                assert sum(row) == pytest.approx(1.0)
                assert all(0.0 < share < 1.0 for share in row)
        assert 0.0 <= cadence.returns(f"irc/{room}", 600.0, 300.0) <= 1.0


def test_memory_is_bounded() -> None:
    cadence = Cadence()
    for number in range(_KEPT + 500):
        cadence.asked(f"irc/{number}", float(number))
    assert len(cadence.state()) == _KEPT + 2


def test_the_longer_nobody_came_the_less_it_is_expected() -> None:
    lengths = [20.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0]
    soon, late = returns(lengths, 0.0, 300.0), returns(lengths, 1_200.0, 300.0)
    assert soon > 0.5
    assert late < 0.1
    assert returns(lengths, 2 * LENGTHS_S[-1], 300.0) == 0.0
