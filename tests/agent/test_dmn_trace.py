"""Traces of the network: a replay decides the same, and differences are found."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dmn
from agent.dmn_trace import FLUSH_SIGNALS, MAX_SIGNALS, DmnTrace, describe_effect, replay_trace
from agent.signals import Directive, DmnPolicy, DmnState, Noticed, Signal, StartTurn, Tick, TurnEnded, dump_state
from gateway.core.events import ConversationId
from gateway.core.facts import inner_conversation
from tests.agent.test_dmn_laws import ANY_SIGNAL, ANY_STATE, POLICIES

NOW = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
A = ConversationId("irc.x/#a")
POLICY = DmnPolicy(inner=inner_conversation("ana"))


def told(signals: list[Signal], state: DmnState | None = None, policy: DmnPolicy = POLICY) -> tuple[str, str]:
    """As a loop notes it: the stretch, and the state that is saved with it."""
    stretch, state = DmnTrace(), state or DmnState()
    for signal in signals:
        before = state
        state, effects = dmn.step(before, signal, policy)
        stretch.record(before, signal, policy, state, effects)
    return stretch.flush(state), dump_state(state)


TALK: list[Signal] = [
    Noticed(at=NOW, conversation=A, urgency=3, type="irc.x.mention.#a", trusted=True),
    Noticed(at=NOW + timedelta(seconds=1), conversation=A, urgency=3),
    TurnEnded(at=NOW + timedelta(seconds=2.5), conversation=A, used_tools=True, cost_usd=0.1),
    Tick(at=NOW + timedelta(seconds=5)),
    Directive(at=NOW + timedelta(minutes=5), order="quiet", until=dmn.FOREVER),
]


@given(ANY_STATE, st.lists(ANY_SIGNAL, max_size=20), POLICIES)
def test_it_decides_the_same_again(state: DmnState, signals: list[Signal], policy: DmnPolicy) -> None:
    written, saved = told(signals, state, policy)
    if not written:
        return
    found = replay_trace(written, saved)
    assert (found.skip_reason, found.differences, found.policy) == ("", (), policy)
    assert found.signal_count + found.quiet_count == len(signals)


def test_it_is_short() -> None:
    written, _ = told(TALK)
    assert json.loads(written) == {
        "policy": {"inner": "agent/ana"},
        "policy_sum": json.loads(written)["policy_sum"],
        "at": "2026-03-04T05:06:07.000089Z",
        "told": [
            [
                0,
                "Noticed",
                {"conversation": A, "urgency": 3, "type": "irc.x.mention.#a", "trusted": True},
                ["StartTurn irc.x/#a False False", "SetTimer 5.0 False", "Persist"],
            ],
            [1_000_000, "Noticed", {"conversation": A, "urgency": 3}, ["Steer irc.x/#a"]],
            [
                1_500_000,
                "TurnEnded",
                {"conversation": A, "used_tools": True, "cost_usd": 0.1},
                ["SetTimer 3.0 False", "Persist"],
            ],
            [2_500_000, "Tick", {}, ["StartTurn irc.x/#a True True", "SetTimer 3.0 False", "Persist"]],
            [
                295_000_000,
                "Directive",
                {"order": "quiet", "until": "9999-12-31T23:59:59.999999Z"},
                ["SetTimer 3.0 False", "Persist"],
            ],
        ],
        "end_sum": json.loads(written)["end_sum"],
    }


def test_idle_ticks_are_counted_and_not_listed() -> None:
    stretch, state = DmnTrace(), DmnState(day="2026-03-04")
    for number in range(10_000):
        before = state
        state, effects = dmn.step(before, tick := Tick(at=NOW + timedelta(seconds=number)), POLICY)
        stretch.record(before, tick, POLICY, state, effects)
    assert not stretch.is_full
    assert stretch.flush(state) == ""
    written, saved = told([*[Tick(at=NOW)] * 9, *TALK], state)
    assert (replay_trace(written, saved).signal_count, replay_trace(written, saved).quiet_count) == (5, 9)


def test_what_is_too_much_is_not_listed_and_said_to_be_so() -> None:
    steers: list[Signal] = [Noticed(at=NOW, conversation=A, urgency=3)] * (MAX_SIGNALS + 5)
    written, saved = told(steers)
    assert len(written) < 1_000
    found = replay_trace(written, saved)
    assert (found.signal_count, found.skip_reason) == (0, "there were too many signals to list")
    assert json.loads(written)["lost"] == MAX_SIGNALS + 5
    whole = told(steers[:MAX_SIGNALS])
    assert replay_trace(*whole).signal_count == MAX_SIGNALS
    stretch, state = DmnTrace(), DmnState()
    for number, signal in enumerate(steers[:FLUSH_SIGNALS], start=1):
        before = state
        state, effects = dmn.step(before, signal, POLICY)
        stretch.record(before, signal, POLICY, state, effects)
        assert stretch.is_full == (number >= FLUSH_SIGNALS)
    stretch.flush(state)
    assert not stretch.is_full
    assert stretch.flush(state) == ""


def test_a_policy_that_changed_in_between_is_not_guessed() -> None:
    stretch, state = DmnTrace(), DmnState()
    for signal, policy in zip(TALK, [POLICY, replace(POLICY, lanes=1), *[POLICY] * 3], strict=True):
        before = state
        state, effects = dmn.step(before, signal, policy)
        stretch.record(before, signal, policy, state, effects)
    assert replay_trace(stretch.flush(state), dump_state(state)).skip_reason


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda it: it["told"][2].__setitem__(3, ["Persist"]), "signal 3 (TurnEnded at 2026-03-04T05:06:09.500089"),
        (lambda it: it["told"][0][2].__setitem__("urgency", 1), "signal 1 (Noticed"),
        (lambda it: it["told"].pop(2), "signal 3 (Tick"),
        (lambda it: it.__setitem__("begin", {"errors": 3}), "signal"),
        (lambda it: it.__setitem__("end_sum", "0" * 16), "in what does not outlive the process"),
    ],
)
def test_what_is_not_the_same_is_found(change: Any, expected: str) -> None:
    written, saved = told(TALK)
    tampered = json.loads(written)
    change(tampered)
    found = replay_trace(json.dumps(tampered), saved)
    assert found.differences
    assert any(expected in one for one in found.differences), found.differences
    assert not found.skip_reason


def test_a_saved_state_that_is_another_one_is_found() -> None:
    written, saved = told(TALK)
    other = json.loads(saved) | {"mode": "off"}
    (found,) = replay_trace(written, json.dumps(other)).differences
    assert found == "the state that was written down is not what comes of it: mode was 'off', and is 'working'"
    assert replay_trace(written, "{").differences


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda it: it.__setitem__("more", 1), "another version wrote it"),
        (lambda it: it["told"][0].__setitem__(1, "Whispered"), "another version wrote it"),
        (lambda it: it["policy"].__setitem__("speed", 3), "another version wrote it"),
        (lambda it: it["told"][0].__setitem__(0, 10**30), "another version wrote it"),
        (lambda it: it.__setitem__("policy_sum", "0"), "the policy has other defaults in this version"),
    ],
)
def test_what_another_version_wrote_is_not_compared(change: Any, expected: str) -> None:
    written, saved = told(TALK)
    tampered = json.loads(written)
    change(tampered)
    found = replay_trace(json.dumps(tampered), saved)
    assert (found.skip_reason, found.differences) == (expected, ())


def test_an_effect_is_told_with_all_that_it_says() -> None:
    assert describe_effect(StartTurn(conversation=A, autonomous=True)) == "StartTurn irc.x/#a True False"
