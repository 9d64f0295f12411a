"""Laws of the network, in any run of a small shell: see `dmn_simulator` for each of them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import dmn, signals
from agent.signals import DmnPolicy, DmnState, SetTimer, Signal
from tests.agent.dmn_simulator import INNER, PLACES, Core, Shell
from tests.kits.examples import examples

Move = Callable[[Shell], None]

SECONDS = st.sampled_from([0.5, 4.0, 31.0, 291.0, 4000.0, 90_000.0])
RETRIES_S = st.sampled_from([0.0, 50.0, 300.0])
POLICIES = st.builds(
    DmnPolicy,
    inner=st.just(INNER),
    lanes=st.sampled_from([3, 4, 2, 1]),
    max_autonomous_turns=st.sampled_from([3, 20, 1]),
    daily_turns=st.sampled_from([4, 7, 1, 0]),
    forage_per_day=st.sampled_from([0, 2, 12]),
    dream_tokens=st.just(10),
)


def says() -> st.SearchStrategy[Move]:
    return st.builds(
        lambda place, urgency, arrivals, trusted: (
            lambda shell: shell.say(place, urgency, arrivals, trusted=trusted)
        ),
        st.sampled_from(PLACES),
        st.sampled_from([1, 2, 2, 3, 3]),
        st.sampled_from(get_args(signals.ArrivalPolicy)),
        st.booleans(),
    )


def ends() -> st.SearchStrategy[Move]:
    return st.builds(
        lambda which, tools, opens, yielded, failed, no_model, retry_s: (
            lambda shell: shell.end(
                which,
                tools=tools,
                open_work=opens,
                yielded=yielded,
                failed=failed,
                no_model=no_model,
                retry_s=retry_s,
            )
        ),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
        st.sampled_from([False, False, True]),
        st.sampled_from([False, False, False, True]),
        st.booleans(),
        RETRIES_S,
    )


def orders() -> st.SearchStrategy[Move]:
    return st.builds(
        lambda order, seconds: lambda shell: shell.order(order, seconds),
        st.sampled_from(
            ["wake", "wake", "wake", "quiet", "quiet", "rest", "store", "pause", "off"]
        ),
        st.none() | SECONDS,
    )


MOVES: st.SearchStrategy[Move] = st.one_of(
    says(),
    says(),
    says(),
    ends(),
    ends(),
    SECONDS.map(lambda seconds: lambda shell: shell.wait(seconds)),
    st.just(lambda shell: shell.tick()),
    orders(),
    st.sampled_from(["present", "present", "idle", "sleeping"]).map(
        lambda level: lambda shell: shell.level(level)
    ),
    st.sampled_from([5, 20]).map(lambda tokens: lambda shell: shell.write_down(tokens)),
    st.just(lambda shell: shell.refuse()),
    st.just(lambda shell: shell.change_model()),
    st.just(lambda shell: shell.restart()),
)
"""Those that free what waits more often than those that hold it, or most of a run would be
silence."""


def check_laws(core: Core, *, examples: int) -> None:
    """Raises AssertionError if a law does not hold in some run of `core`."""

    @settings(max_examples=examples, derandomize=True, report_multiple_bugs=False)
    @given(POLICIES, st.lists(MOVES, min_size=20, max_size=80), st.booleans())
    def run(policy: DmnPolicy, moves: list[Move], stops: bool) -> None:
        shell = Shell(core, policy)
        for move in moves:
            move(shell)
        if stops:
            shell.stop()
        shell.drain()

    run()


def test_laws_hold_in_any_run() -> None:
    check_laws(cast("Core", dmn), examples=150)


@pytest.mark.soak
def test_laws_hold_in_many_runs() -> None:
    check_laws(cast("Core", dmn), examples=1500)


models = st.sampled_from(("", "second"))
times = st.datetimes(timezones=st.just(UTC))
places = st.sampled_from(PLACES)
several = st.lists(places, max_size=3).map(tuple)
for_until = st.none() | times
ANY_STATE = st.builds(
    DmnState,
    running=several,
    chats=several,
    waiting=st.lists(st.builds(signals.PendingTurn, conversation=places), max_size=3).map(tuple),
    pending=several,
    continuing=several,
    low=several,
    low_since=for_until,
    put_off=st.lists(
        st.builds(
            signals.PutOffQuestion,
            conversation=places,
            model=models,
            wait_s=st.floats(0, 99),
            failed=for_until,
        ),
        max_size=3,
    ).map(tuple),
    answers=st.dictionaries(models, times),
    outages=st.dictionaries(models, st.builds(signals.Outage, since=times, until=times)),
    autonomous=st.integers(0, 10**6),
    turns_today=st.integers(0, 10**6),
    errors=st.integers(0, 10**6),
    quiet_until=for_until,
    stored_until=for_until,
    dreamt=for_until,
)
ANY_SIGNAL: st.SearchStrategy[Signal] = st.one_of(
    st.builds(signals.Noticed, at=times, conversation=places, urgency=st.integers(-1, 9)),
    st.builds(
        signals.TurnEnded,
        at=times,
        conversation=places,
        left=st.integers(0, 3),
    ),
    st.builds(
        signals.TurnEnded,
        failed=st.just(value=True),
        at=times,
        conversation=places,
        left=st.integers(0, 3),
        no_model=st.sampled_from([None, "overloaded"]),
        retry_after_s=st.floats(0, 1e6),
    ),
    st.builds(signals.RetryDue, at=times, conversation=places),
    st.builds(signals.ModelChanged, at=times),
    st.builds(signals.Tick, at=times, material_tokens=st.integers(0, 10**6)),
    st.builds(signals.Presence, at=times),
    st.builds(signals.Directive, at=times, until=for_until, on=st.just(("x",))),
    st.builds(signals.LeftOff, at=times, conversation=places),
    st.builds(signals.BudgetSpent, at=times),
    st.builds(signals.Stopping, at=times),
)


@settings(max_examples=examples(1000))
@given(ANY_STATE, ANY_SIGNAL, POLICIES)
def test_any_signal_in_any_state_gives_a_next_state(
    state: DmnState, signal: Signal, policy: DmnPolicy
) -> None:
    after, effects = dmn.step(state, signal, policy)
    assert all(effect.delay_s > 0 for effect in effects if isinstance(effect, SetTimer))
    assert dmn.load_state(dmn.dump_state(after)) == dmn.persistent(after)
    assert all(reason for reason in dmn.blocking_reasons(after, policy, signal.at))


@given(ANY_STATE, POLICIES, times)
def test_no_tick_comes_just_after_a_cache_died(
    state: DmnState, policy: DmnPolicy, now: datetime
) -> None:
    wait_s = dmn.interval_s(state, policy, now)
    for lifetime_s in policy.lifetimes_s:
        assert not lifetime_s - dmn.CACHE_MARGIN_S < wait_s <= lifetime_s * 1.1
