"""Transitions of the network, as `dmn_transitions` lists them, and the functions around `step`."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from agent import dmn, signals
from agent.signals import (
    DmnMode,
    DmnPolicy,
    DmnState,
    Effect,
    Noticed,
    Signal,
    StartTurn,
    Tick,
    TurnEnded,
)
from tests.agent.dmn_transitions import (
    CUT,
    IDLE,
    INNER,
    LATER,
    NOW,
    POLICY,
    ROWS,
    TICK,
    A,
    B,
    C,
    F,
    R,
    cells,
    down,
    in_mode,
    owed,
    start,
    waits,
)

CELLS = cells()


@pytest.mark.parametrize(
    ("before", "signal", "mode", "starts", "cuts"),
    [c[1:] for c in CELLS],
    ids=[c[0] for c in CELLS],
)
def test_mode(before: DmnState, signal: Signal, mode: DmnMode, starts: bool, cuts: bool) -> None:
    after, effects = dmn.step(before, signal, POLICY)
    assert (after.mode, StartTurn in map(type, effects), CUT in effects) == (mode, starts, cuts)


@pytest.mark.parametrize(
    ("before", "signal", "after", "effects"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_transition(
    before: DmnState, signal: Signal, after: DmnState, effects: tuple[Effect, ...]
) -> None:
    assert dmn.step(before, signal, POLICY) == (after, effects)


def test_every_mode_stands_against_every_signal() -> None:
    seen = {(before.mode, type(signal)) for _, before, signal, *_ in CELLS}
    assert seen == {(mode, kind) for mode in DmnMode for kind in signals.Signal.__args__}


def test_a_foraging_agent_takes_up_low_notices_so_many_times_a_day() -> None:
    keen, low = (
        replace(POLICY, forage_per_day=2, daily_turns=9, max_autonomous_turns=9),
        IDLE["low"],
    )
    state = dmn.step(R, low, keen)[0]
    assert dmn.step(state, TICK, keen)[0].low == (A,), "at rest it waits"
    for foraged in range(3):
        state = replace(F, foraged_today=state.foraged_today, day=state.day)
        state, effects = dmn.step(dmn.step(state, low, keen)[0], TICK, keen)
        assert (start(A, autonomous=True) in effects) == (foraged < 2)
        assert state.foraged_today == min(foraged + 1, 2)
    owed = replace(state, mode=DmnMode.FORAGING, pending=(B,), running=())
    after, effects = dmn.step(owed, TICK, keen)
    assert start(B, autonomous=True) in effects, "what is owed is no look"
    assert (after.low, after.foraged_today) == ((A,), 2)
    morning = dmn.step(
        replace(state, mode=DmnMode.FORAGING), Tick(at=NOW + timedelta(days=1)), keen
    )
    assert (start(A, autonomous=True) in morning[1], morning[0].foraged_today) == (True, 1)
    assert dmn.load_state(dmn.dump_state(state)).foraged_today == 2


def test_an_agent_at_rest_looks_once_at_what_is_low_for_an_hour() -> None:
    keen, low, hour = replace(POLICY, forage_per_day=1), IDLE["low"], timedelta(hours=1)
    state = dmn.step(dmn.step(R, low, keen)[0], Noticed(at=LATER, conversation=B, urgency=1), keen)[
        0
    ]
    assert (state.low, state.low_since) == ((A, B), NOW), "since the first of them"
    early = dmn.step(state, Tick(at=NOW + hour - timedelta(seconds=1)), keen)
    assert (early[0], start(A, autonomous=True) in early[1]) == (state, False)
    due = Tick(at=NOW + hour)
    after, effects = dmn.step(state, due, keen)
    assert start(A, autonomous=True) in effects
    assert start(B, autonomous=True) not in effects, "one a day"
    assert (after.low, after.foraged_today) == ((B,), 1)
    nothing = dmn.step(replace(after, low=(), low_since=None, running=()), due, keen)
    assert not any(isinstance(effect, StartTurn) for effect in nothing[1])
    for mode in (DmnMode.PAUSED, DmnMode.OFF, DmnMode.STORED):
        assert dmn.step(replace(state, mode=mode), due, keen)[0].low == (A, B), mode
    asleep = replace(state, presence="sleeping")
    assert dmn.step(asleep, due, keen)[0].low == (A, B), "not while people sleep"
    assert dmn.load_state(dmn.dump_state(state)).low_since is None, "noticed again"


def test_what_people_asked_for_at_this_time_is_held_by_no_sleep_and_no_number_of_turns() -> None:
    asleep = replace(R, presence="sleeping", pending=(A, B))
    after, effects = dmn.step(asleep, Tick(at=NOW, promised=(B, C)), POLICY)
    assert [one for one in effects if isinstance(one, StartTurn)] == [start(B, autonomous=True)]
    assert after.pending == (A,)
    spent = replace(R, pending=(A, B), autonomous=3, acted=NOW, turns_today=5, spent_up=True)
    after, effects = dmn.step(spent, Tick(at=NOW, promised=(B,)), POLICY)
    assert [one for one in effects if isinstance(one, StartTurn)] == [start(B, autonomous=True)]
    assert (after.autonomous, after.turns_today) == (3, 5), "it is not the agent's own"
    quiet = dmn.step(replace(asleep, quiet_until=LATER), Tick(at=NOW, promised=(B,)), POLICY)
    assert quiet[0].pending == (A,), "nor by quiet: it was asked for"
    off = dmn.step(replace(asleep, mode=DmnMode.OFF), Tick(at=NOW, promised=(B,)), POLICY)
    assert off[0].pending == (A, B)


def test_after_a_rest_turns_are_no_more_in_a_row() -> None:
    many = replace(R, pending=(A,), autonomous=3, acted=NOW)
    rested = Tick(at=NOW + timedelta(seconds=POLICY.resting_s / 2))
    assert dmn.step(many, TICK, POLICY)[0].pending == (A,)
    after = dmn.step(many, rested, POLICY)[0]
    assert (after.running, after.autonomous) == ((A,), 1)


def test_a_turn_that_takes_longer_than_a_rest_is_none() -> None:
    late = NOW + timedelta(seconds=POLICY.resting_s)
    slow = replace(R, running=(A,), pending=(B,), autonomous=3, acted=NOW)
    assert dmn.count_in_a_row(slow, POLICY, late) == 3
    ended = TurnEnded(at=late, conversation=A, open_work=True, autonomous=True)
    after = dmn.step(slow, ended, POLICY)[0]
    assert dmn.step(after, Tick(at=late), POLICY)[0].running == ()


def test_with_one_lane_a_room_may_have_it() -> None:
    narrow = replace(POLICY, lanes=1)
    after, effects = dmn.step(R, IDLE["urgent"], narrow)
    assert start(A) in effects
    after, effects = dmn.step(
        after, Noticed(at=NOW, conversation=B, urgency=3, direct=True), narrow
    )
    assert after.waiting == (owed(B, direct=True),)


HELD = [
    ("the gateway is stopping", replace(R, stopping=True)),
    ("it is off", in_mode(DmnMode.OFF)),
    ("it is paused", in_mode(DmnMode.PAUSED)),
    ("it rests until it is woken", in_mode(DmnMode.STORED)),
    ("it rests until 2026-03-01 12:02 UTC", replace(in_mode(DmnMode.STORED), stored_until=LATER)),
    (
        "it rests until it is woken or x.link, y comes",
        replace(in_mode(DmnMode.STORED), wake_on=("x.link", "y")),
    ),
    ("it is quiet until 2026-03-01 12:02 UTC", replace(R, quiet_until=LATER)),
    ("it is quiet until it is woken", replace(R, quiet_until=dmn.FOREVER)),
    ("the people are asleep", replace(R, presence="sleeping")),
    ("3 turns in a row (max_autonomous_turns)", replace(R, autonomous=3)),
    ("5 turns today (daily_turns)", replace(R, turns_today=5)),
    ("its money for today is spent (daily_cost_usd)", replace(R, spent_up=True)),
    ("every lane is taken", replace(R, running=(A, B))),
    ("every lane is taken", replace(R, running=(A,), waiting=(owed(C),))),
]


@pytest.mark.parametrize(("reason", "state"), HELD)
def test_it_says_why_nothing_starts(reason: str, state: DmnState) -> None:
    assert dmn.blocking_reasons(state, POLICY, NOW) == (reason,)
    assert dmn.blocking_reasons(R, POLICY, NOW) == ()


@pytest.mark.parametrize(
    ("calm_s", "errors", "waits_s"),
    [
        (5, 0, 5),
        (289, 0, 289),
        (291, 0, 290),  # a cached prompt lives 300 s
        (300, 0, 290),
        (330, 0, 290),
        (331, 0, 331),  # much later: it does not matter any more
        (300, 1, 600),
        (300, 20, 3590),  # an hour, but for the caches that live as long
        (7200, 3, 7200),  # never sooner than without errors
        (1, 3, 8),
    ],
)
def test_the_interval(calm_s: float, errors: int, waits_s: float) -> None:
    assert (
        dmn.interval_s(replace(R, errors=errors), DmnPolicy(inner=INNER, resting_s=calm_s), NOW)
        == waits_s
    )


@pytest.mark.parametrize(
    ("failed", "answered", "faulty"),
    [
        (NOW, LATER, True),
        (NOW, NOW, True),
        (LATER, NOW, False),  # that turn had begun before a model failed at this one
        (NOW, None, False),
        (None, LATER, False),
    ],
)
def test_a_question_is_at_fault_if_others_were_answered_since(
    failed: datetime | None, answered: datetime | None, *, faulty: bool
) -> None:
    answers = {"": answered} if answered is not None else {}
    state = replace(R, put_off=(waits(A, failed=failed),), answers=answers)
    assert (dmn.is_faulty(state, A), dmn.is_faulty(state, B)) == (faulty, False)
    elsewhere = replace(state, put_off=(waits(A, failed=failed, model="second"),))
    assert not dmn.is_faulty(elsewhere, A)


@pytest.mark.parametrize(("at_s", "is_away"), [(-31, False), (-30, True), (89, True), (90, False)])
def test_no_model_is_asked_in_an_outage(at_s: float, *, is_away: bool) -> None:
    """A clock that is set back does not make it longer."""
    state, at = replace(R, outages=down(90, -30)), NOW + timedelta(seconds=at_s)
    assert (dmn.find_outage(state, "", at) is not None) == is_away
    assert dmn.find_outage(state, "second", at) is None


def test_what_outlives_the_process() -> None:
    until = NOW + timedelta(hours=1)
    lasting = DmnState(
        mode=DmnMode.STORED,
        autonomous=2,
        day="2026-03-01",
        turns_today=4,
        spent_up=True,
        errors=1,
        presence="away",
        quiet_until=until,
        stored_until=until,
        wake_on=("x",),
        dreamt=NOW,
    )
    moment = replace(
        lasting,
        running=(A,),
        chats=(A,),
        waiting=(owed(B),),
        pending=(C,),
        continuing=(C,),
        low=(C,),
        put_off=(waits(A),),
        answers={"": NOW},
        outages=down(60),
    )
    assert dmn.load_state(dmn.dump_state(replace(moment, spared=True, stopping=True))) == lasting
    assert (
        dmn.load_state(dmn.dump_state(replace(in_mode(DmnMode.DREAMING), dreamt=NOW))) == R
    )  # to be dreamt again


def test_state_that_was_not_saved_by_us_is_refused() -> None:
    assert dmn.load_state('{"spent_today_usd": 0.5}') == DmnState(), "of an older version"
    with pytest.raises(ValueError):
        dmn.load_state('{"mode": "asleep"}')
