"""What an order says of the agents' networks, and what it tells them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dmn
from agent.signals import Directive, DmnMode, DmnPolicy, DmnState, PendingTurn
from gateway.core.control_messages import CONTROL_REQUEST, CONTROL_RESPONSE, DmnAction, DmnRequest
from gateway.core.events import ConversationId
from gateway.core.facts import DmnDirective, inner_conversation
from gateway.runtime.dmn_admin import SavedDmn, answer_order, parse_until

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
TODAY = "2026-03-04"
A, B = ConversationId("irc.x/#a"), ConversationId("irc.x/#b")


def mind(agent: str = "ana", state: DmnState | None = None, next_tick_s: float | None = 290.0) -> SavedDmn:
    return SavedDmn(
        id=agent,
        state=state or DmnState(),
        policy=DmnPolicy(inner=inner_conversation(agent)),
        next_tick_s=next_tick_s,
    )


def order(what: DmnAction, agent: str | None = None, **more: object) -> DmnRequest:
    return DmnRequest(what=what, by="ops", agent=agent, **more)  # type: ignore[arg-type]


def test_the_status_tells_what_an_agent_does_and_may_do() -> None:
    busy = DmnState(
        mode=DmnMode.WORKING,
        running=(A,),
        waiting=(PendingTurn(conversation=B, direct=True),),
        pending=(ConversationId("irc.x/#c"),),
        continuing=(ConversationId("irc.x/#d"),),
        low=(ConversationId("irc.x/#e"),),
        day=TODAY,
        turns_today=12,
        spent_today_usd=0.31,
        autonomous=3,
        errors=2,
        quiet_until=NOW + timedelta(hours=2),
        presence="idle",
    )
    said, todo = answer_order(order("status"), [mind(state=busy), mind("bob", next_tick_s=None)], NOW)
    assert (said.ok, todo) == (True, [])
    assert said.lines == (
        "ana is working, and quiet until 2026-03-04 07:06 UTC (for 2 h); it looks again in 4 min",
        "  unasked: 12 of 200 turns, $0.31 of $2.00 today; 3 of 20 turns in a row, 2 failed in a row",
        "  running: irc.x/#a",
        "  waiting: irc.x/#b",
        "  pending: irc.x/#c (pending), irc.x/#d (continuing)",
        "  low: irc.x/#e",
        "  people: idle",
        "bob is resting",
        "  unasked: 0 of 200 turns, $0.00 of $2.00 today; 0 of 20 turns in a row",
        "  people: present",
    )
    assert [one.agent for one in said.data] == ["ana", "bob"]
    assert said.data[0].wanted[1].why == "continuing"


def test_what_was_spent_yesterday_is_not_told_as_today() -> None:
    old = DmnState(day="2026-03-03", turns_today=200, spent_today_usd=2.0)
    said, _ = answer_order(order("status"), [mind(state=old)], NOW)
    assert "0 of 200 turns, $0.00 of $2.00 today" in said.lines[1]


def test_debug_tells_what_would_fire_and_what_it_is_blocked_by() -> None:
    quiet = DmnState(pending=(A,), quiet_until=NOW + timedelta(hours=1), presence="sleeping")
    free = DmnState(pending=(A,), continuing=(B,), waiting=(PendingTurn(conversation=B, direct=False),))
    minds = [mind("a", quiet), mind("b", free), mind("c"), mind("d", DmnState(mode=DmnMode.OFF))]
    said, todo = answer_order(order("debug"), minds, NOW)
    assert todo == []
    assert said.lines == (
        "a is resting",
        "  would fire: irc.x/#a (pending) - blocked by: it is quiet until 2026-03-04 06:06 UTC; the people are asleep",
        "b is resting",
        "  irc.x/#b: a turn is owed, and waits for a lane",
        "  would fire: irc.x/#a (pending)",
        "  would fire: irc.x/#b (continuing)",
        "c is resting",
        "  nothing is pending",
        "d is off",
        "  nothing is pending; anything would be blocked by: it is off",
    )
    assert [len(one.held) for one in said.data] == [2, 0, 0, 1]


def test_each_directive_is_told_and_recorded() -> None:
    table: list[tuple[DmnRequest, DmnState, str, str]] = [
        (order("pause"), DmnState(), "pause", "ana is paused"),
        (order("off", until=NOW + timedelta(hours=1)), DmnState(), "off", "ana is off"),
        (order("rest"), DmnState(mode=DmnMode.WORKING), "rest", "ana is resting"),
        (order("wake"), DmnState(mode=DmnMode.OFF), "wake", "ana is foraging"),
        (order("sleep"), DmnState(), "store", "ana is stored until it is woken"),
        (
            order("sleep", until=NOW + timedelta(hours=8), on=("telegram",)),
            DmnState(),
            "store",
            "ana is stored until 2026-03-04 13:06 UTC (for 8 h) or telegram comes",
        ),
        (order("quiet"), DmnState(), "quiet", "ana is resting, and quiet until 2026-03-04 06:06 UTC (for 1 h)"),
    ]
    for told, state, signal, line in table:
        said, todo = answer_order(told, [mind(state=state)], NOW)
        assert (said.ok, said.lines) == (True, (line,))
        ((agent, directive, directed),) = todo
        assert agent == "ana"
        until = told.until if told.what == "sleep" else NOW + timedelta(hours=1) if told.what == "quiet" else None
        assert directive == Directive(at=NOW, order=signal, until=until, on=told.on)  # type: ignore[arg-type]
        assert directed == DmnDirective(agent="ana", what=told.what, by="ops", until=until)


def test_what_is_off_is_not_put_to_sleep() -> None:
    said, todo = answer_order(order("sleep"), [mind("a", DmnState(mode=DmnMode.OFF)), mind("b")], NOW)
    assert not said.ok
    assert said.lines == ("a is off, which is more: wake it first", "b is stored until it is woken")
    assert [one.agent for one in todo] == ["b"]


def test_an_unknown_agent_is_answered_with_those_there_are() -> None:
    said, todo = answer_order(order("off", "eve"), [mind("ana"), mind("bob")], NOW)
    assert (said.ok, said.lines, todo) == (False, ("there is no agent eve; there is ana, bob",), [])
    _, (only,) = answer_order(order("off", "bob"), [mind("ana"), mind("bob")], NOW)
    assert only.agent == "bob"


ZURICH = ZoneInfo("Europe/Zurich")


@pytest.mark.parametrize(
    ("said", "until"),
    [
        ("", None),
        ("until", None),
        ("2h", NOW + timedelta(hours=2)),
        ("90", NOW + timedelta(seconds=90)),
        ("1 day and 2h30m", NOW + timedelta(hours=26, minutes=30)),
        ("tomorrow 7:00", datetime(2026, 3, 5, 6, tzinfo=UTC)),
        ("until 07:00", datetime(2026, 3, 4, 6, tzinfo=UTC)),
        ("06:00", datetime(2026, 3, 5, 5, tzinfo=UTC)),  # it is 06:06 there
        ("2026-03-29T03:30", datetime(2026, 3, 29, 1, 30, tzinfo=UTC)),  # summer time has begun
        ("2026-03-04T12:00+00:00", datetime(2026, 3, 4, 12, tzinfo=UTC)),
    ],
)
def test_times_and_durations(said: str, until: datetime | None) -> None:
    assert parse_until(said, NOW, ZURICH) == until


@pytest.mark.parametrize(
    "said", ["soon", "-2h", "0", "25:00", "99999999999999d", "2026-13-01T00:00", "2020-01-01T00:00"]
)
def test_what_is_no_time_is_said_to_be_none(said: str) -> None:
    with pytest.raises(
        ValueError, match=r"; write e\.g\. |^That is past: it is now 2026-03-04T06:06 |five years ahead"
    ):
        parse_until(said, NOW, ZURICH)


states = st.builds(
    DmnState,
    mode=st.sampled_from(DmnMode),
    pending=st.sampled_from([(), (A,), (A, B)]),
    quiet_until=st.sampled_from([None, NOW, NOW + timedelta(days=1), dmn.FOREVER]),
    stored_until=st.sampled_from([None, NOW - timedelta(days=1), NOW + timedelta(days=1)]),
    spent_today_usd=st.floats(0, 1e6),
)
orders = st.builds(
    DmnRequest,
    agent=st.none() | st.sampled_from(["ana", "bob", "eve"]),
    until=st.none() | st.just(NOW + timedelta(hours=3)) | st.just(datetime.max.replace(tzinfo=UTC)),
    by=st.text(max_size=20),
    on=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@given(told=orders, ana=states, bob=states)
def test_every_order_is_answered_in_every_state_and_what_is_answered_holds(
    told: DmnRequest, ana: DmnState, bob: DmnState
) -> None:
    minds = [mind("ana", ana), mind("bob", bob)]
    assert CONTROL_REQUEST.validate_json(CONTROL_REQUEST.dump_json(told)) == told
    said, todo = answer_order(told, minds, NOW)
    assert CONTROL_RESPONSE.validate_json(CONTROL_RESPONSE.dump_json(said)) == said
    assert b"\n" not in CONTROL_RESPONSE.dump_json(said)
    after = {one.id: one.state for one in minds}
    for agent, directive, directed in todo:
        assert directed.agent == agent
        after[agent], _ = dmn.step(after[agent], directive, minds[0].policy)
    later, _ = answer_order(order("status"), [mind(agent, state) for agent, state in after.items()], NOW)
    now = {one.agent: one for one in later.data}
    assert all(one == now[one.agent] for one in said.data)


def test_a_state_that_is_not_today_counts_nothing() -> None:
    one = mind(state=replace(DmnState(day=TODAY), turns_today=4))
    tomorrow = NOW + timedelta(days=1)
    assert answer_order(order("status"), [one], NOW)[0].data[0].turns_today == 4
    assert answer_order(order("status"), [one], tomorrow)[0].data[0].turns_today == 0
