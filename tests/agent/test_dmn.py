"""The transitions as a table, and the laws that hold for any run."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dmn
from agent.dmn import Mode, Noticed, Persist, Policy, SetTimer, StartTurn, State, Stopping, Tick, TurnEnded, TurnFailed
from gateway.events import ConversationId

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B, C = ConversationId("x/a"), ConversationId("x/b"), ConversationId("x/c")
POLICY = Policy(lanes=2, max_autonomous_turns=3, daily_turns=5)
TODAY = "2026-03-01"


def start(conversation: ConversationId, *, autonomous: bool = False) -> StartTurn:
    return StartTurn(conversation=conversation, autonomous=autonomous)


def noticed(conversation: ConversationId, urgency: int) -> Noticed:
    return Noticed(at=NOW, conversation=conversation, urgency=urgency)


def ended(conversation: ConversationId, *, tools: bool = False, yielded: bool = False, left: int = 0) -> TurnEnded:
    return TurnEnded(at=NOW, conversation=conversation, used_tools=tools, yielded=yielded, left=left)


SAVE, TICK = Persist(), Tick(at=NOW)
ENGAGED, WORKING, FORAGING, RESTING = (
    SetTimer(delay_s=5.0),
    SetTimer(delay_s=3.0),
    SetTimer(delay_s=30.0),
    SetTimer(delay_s=300.0),
)

TABLE = [
    # name, before, signal, after, effects
    (
        "a person speaks: engaged, and a turn at once",
        State(),
        noticed(A, 3),
        State(mode=Mode.ENGAGED, running=(A,)),
        (start(A), ENGAGED, SAVE),
    ),
    (
        "a second line during the turn changes nothing: its end tells what is left",
        State(mode=Mode.ENGAGED, running=(A,)),
        noticed(A, 3),
        State(mode=Mode.ENGAGED, running=(A,)),
        (),
    ),
    (
        "another conversation gets its own lane",
        State(mode=Mode.ENGAGED, running=(A,)),
        noticed(B, 3),
        State(mode=Mode.ENGAGED, running=(A, B)),
        (start(B),),
    ),
    (
        "no lane free: it waits its turn",
        State(mode=Mode.ENGAGED, running=(A, B)),
        noticed(C, 3),
        State(mode=Mode.ENGAGED, running=(A, B), waiting=(C,)),
        (),
    ),
    (
        "a lane falls free: the first who waits gets it",
        State(mode=Mode.ENGAGED, running=(A, B), waiting=(C,)),
        ended(A),
        State(mode=Mode.FORAGING, running=(B, C)),
        (start(C), FORAGING, SAVE),
    ),
    (
        "a normal notice waits for the tick",
        State(),
        noticed(A, 2),
        State(pending=(A,)),
        (),
    ),
    (
        "the tick takes it up, and counts it",
        State(pending=(A,), day=TODAY),
        TICK,
        State(running=(A,), autonomous=1, turns_today=1, day=TODAY),
        (start(A, autonomous=True), RESTING, SAVE),
    ),
    (
        "somebody speaks where a notice was pending: one turn for both",
        State(pending=(A,)),
        noticed(A, 3),
        State(mode=Mode.ENGAGED, running=(A,)),
        (start(A), ENGAGED, SAVE),
    ),
    ("a low notice starts nothing", State(mode=Mode.FORAGING), noticed(A, 1), State(mode=Mode.FORAGING), ()),
    ("an ambient one neither", State(), noticed(A, 0), State(), ()),
    (
        "tools were used: working",
        State(running=(A,)),
        ended(A, tools=True),
        State(mode=Mode.WORKING),
        (WORKING, SAVE),
    ),
    (
        "working, no tools: foraging",
        State(mode=Mode.WORKING, running=(A,)),
        ended(A),
        State(mode=Mode.FORAGING),
        (FORAGING, SAVE),
    ),
    (
        "foraging, no tools: resting",
        State(mode=Mode.FORAGING, running=(A,)),
        ended(A),
        State(mode=Mode.RESTING),
        (RESTING, SAVE),
    ),
    (
        "yielded: resting, whatever it did",
        State(mode=Mode.ENGAGED, running=(A,)),
        ended(A, tools=True, yielded=True),
        State(mode=Mode.RESTING),
        (RESTING, SAVE),
    ),
    (
        "something urgent came meanwhile: again, at once",
        State(mode=Mode.ENGAGED, running=(A,)),
        ended(A, left=3),
        State(mode=Mode.ENGAGED, running=(A,)),
        (start(A),),
    ),
    (
        "something normal came meanwhile: at the tick",
        State(mode=Mode.ENGAGED, running=(A,)),
        ended(A, left=2),
        State(mode=Mode.FORAGING, pending=(A,)),
        (FORAGING, SAVE),
    ),
    (
        "only low or ambient is left: nothing",
        State(mode=Mode.ENGAGED, running=(A,)),
        ended(A, left=1),
        State(mode=Mode.FORAGING),
        (FORAGING, SAVE),
    ),
    (
        "a failure counts, and the next tick comes later",
        State(mode=Mode.FORAGING, running=(A,), errors=2),
        TurnFailed(at=NOW, conversation=A, left=0),
        State(mode=Mode.RESTING, errors=3),
        (SetTimer(delay_s=2400.0), SAVE),
    ),
    (
        "an answer ends the back-off",
        State(mode=Mode.ENGAGED, running=(A,), errors=3),
        ended(A),
        State(mode=Mode.FORAGING),
        (FORAGING, SAVE),
    ),
    (
        "an empty tick winds down",
        State(mode=Mode.ENGAGED, day=TODAY),
        TICK,
        State(mode=Mode.FORAGING, day=TODAY),
        (FORAGING, SAVE),
    ),
    ("an empty tick at rest stays at rest", State(day=TODAY), TICK, State(day=TODAY), (RESTING,)),
    (
        "too many turns in a row: not without a person",
        State(pending=(A,), autonomous=3, day=TODAY),
        TICK,
        State(pending=(A,), autonomous=3, day=TODAY),
        (RESTING,),
    ),
    (
        "the day's budget is spent",
        State(pending=(A,), turns_today=5, day=TODAY),
        TICK,
        State(pending=(A,), turns_today=5, day=TODAY),
        (RESTING,),
    ),
    (
        "a new day has its own budget",
        State(pending=(A,), turns_today=5, day="2026-02-28"),
        TICK,
        State(running=(A,), turns_today=1, autonomous=1, day=TODAY),
        (start(A, autonomous=True), RESTING, SAVE),
    ),
    (
        "a person's word starts the row again",
        State(autonomous=3, day=TODAY),
        noticed(A, 3),
        State(mode=Mode.ENGAGED, running=(A,), day=TODAY),
        (start(A), ENGAGED, SAVE),
    ),
    (
        "stopping: who waits is served by the next process",
        State(mode=Mode.ENGAGED, running=(A, B), waiting=(C,), pending=()),
        Stopping(at=NOW),
        State(mode=Mode.ENGAGED, running=(A, B), stopping=True),
        (),
    ),
    ("stopping: nothing new starts", State(stopping=True), noticed(A, 3), State(stopping=True), ()),
    ("a turn that is not under way cannot end", State(), ended(A, tools=True), State(), ()),
]


@pytest.mark.parametrize(
    ("before", "signal", "after", "effects"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_transition(before: State, signal: dmn.Signal, after: State, effects: tuple[dmn.Effect, ...]) -> None:
    assert dmn.step(before, signal, POLICY) == (after, effects)


def test_a_foraging_agent_takes_up_low_notices_where_the_operator_wants_it() -> None:
    keen = replace(POLICY, forage=True)
    after, _ = dmn.step(State(mode=Mode.FORAGING), noticed(A, 1), keen)
    assert after.pending == (A,)
    after, _ = dmn.step(State(mode=Mode.RESTING), noticed(A, 1), keen)
    assert after.pending == ()


def test_what_outlives_the_process() -> None:
    busy = State(mode=Mode.WORKING, running=(A,), waiting=(B,), pending=(C,), autonomous=2, day=TODAY, turns_today=4)
    assert dmn.restore(dmn.save(busy)) == State(mode=Mode.WORKING, autonomous=2, day=TODAY, turns_today=4)


def test_state_that_was_not_saved_by_us_is_refused() -> None:
    with pytest.raises(ValueError):
        dmn.restore('{"mode": "asleep"}')


conversations = st.sampled_from([A, B, C, ConversationId("x/d")])
SIGNALS = st.one_of(
    st.builds(Noticed, at=st.just(NOW), conversation=conversations, urgency=st.integers(0, 3)),
    st.builds(
        TurnEnded,
        at=st.just(NOW),
        conversation=conversations,
        used_tools=st.booleans(),
        yielded=st.booleans(),
        left=st.integers(0, 3),
    ),
    st.builds(TurnFailed, at=st.just(NOW), conversation=conversations, left=st.integers(0, 3)),
    st.builds(Tick, at=st.integers(0, 72).map(lambda hours: NOW + timedelta(hours=hours))),
    st.builds(Stopping, at=st.just(NOW)),
)


@given(st.lists(SIGNALS, max_size=60), st.booleans())
def test_laws_hold_in_any_run(signals: list[dmn.Signal], forage: bool) -> None:
    policy = replace(POLICY, forage=forage)
    state, armed, stopped = State(), True, False
    autonomous_by_day: dict[str, int] = {}
    in_a_row = 0
    for signal in signals:
        before = state
        state, effects = dmn.step(state, signal, policy)
        starts = [effect for effect in effects if isinstance(effect, StartTurn)]
        if isinstance(signal, Tick):
            armed = False
        armed = armed or any(isinstance(effect, SetTimer) for effect in effects)
        stopped = stopped or isinstance(signal, Stopping)

        assert len(set(state.running)) == len(state.running) <= policy.lanes  # one turn per conversation, bounded
        assert not set(state.running) & (set(state.waiting) | set(state.pending))
        assert not set(state.waiting) & set(state.pending)
        assert all(effect.conversation in state.running for effect in starts)
        assert armed or stopped  # never both idle and unarmed
        if stopped:
            assert not starts
        if isinstance(signal, Tick) and not before.pending:
            assert not any(effect.autonomous for effect in starts)  # idle costs nothing
        if isinstance(signal, Noticed) and signal.urgency == 3 and not stopped:
            assert signal.conversation in (*state.running, *state.waiting)  # nobody is forgotten
            in_a_row = 0
        for effect in starts:
            if effect.autonomous:
                in_a_row += 1
                autonomous_by_day[state.day] = autonomous_by_day.get(state.day, 0) + 1
        assert in_a_row <= policy.max_autonomous_turns
        assert (dmn.save(before) != dmn.save(state)) == any(isinstance(effect, Persist) for effect in effects)


@given(st.lists(SIGNALS, max_size=60))
def test_the_daily_budget_holds(signals: list[dmn.Signal]) -> None:
    policy, state = replace(POLICY, max_autonomous_turns=1000), State()
    day, turns = "", 0
    for signal in signals:
        state, effects = dmn.step(state, signal, policy)
        if state.day != day:
            day, turns = state.day, 0
        turns += sum(isinstance(effect, StartTurn) and effect.autonomous for effect in effects)
        assert turns <= policy.daily_turns
