"""What an order says of the agents' networks, and what it tells them."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dmn
from agent.dmn import dump_state
from agent.signals import Directive, DmnMode, DmnPolicy, DmnState, PendingTurn
from gateway.core.events import ConversationId
from gateway.core.facts import DmnDirective, DmnStateSaved, inner_conversation
from gateway.runtime.dmn_admin import (
    direct_agents,
    format_dmn_status,
    parse_until,
    read_directive,
    snapshot_dmn,
)
from tests.kits.commands import parts_of

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
TODAY = "2026-03-04"
A, B = ConversationId("irc.x/#a"), ConversationId("irc.x/#b")


def mind(
    agent: str = "ana",
    state: DmnState | None = None,
    next_tick_s: float | None = 290.0,
    spent_usd: float = 0.0,
) -> Any:
    return parts_of(
        id=agent,
        state=state or DmnState(),
        policy=DmnPolicy(inner=inner_conversation(agent)),
        next_tick_s=next_tick_s,
        spent_today_usd=spent_usd,
    )


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
        autonomous=3,
        errors=2,
        quiet_until=NOW + timedelta(hours=2),
        presence="idle",
    )
    said = [
        snapshot_dmn(one, NOW)
        for one in (mind(state=busy, spent_usd=0.31), mind("bob", next_tick_s=None))
    ]
    assert [line for one in said for line in format_dmn_status(one, NOW)] == [
        "ana is at work, quiet until 2026-03-04 07:06 UTC (in 2 h); it checks again in 4 min",
        (
            "  on its own: 12 of 200 turns and $0.31 of $2.00 today; 3 of 20 turns in a row, 0 of 12 looks "
            "at what is less urgent today, 2 failed in a row"
        ),
        "  answering now: irc.x/#a",
        "  waiting to answer: irc.x/#b",
        "  wants to look at: irc.x/#c (pending), irc.x/#d (continuing)",
        "  less urgent: irc.x/#e",
        "  people: quiet for a while",
        "bob is resting",
        (
            "  on its own: 0 of 200 turns and $0.00 of $2.00 today; 0 of 20 turns in a row, 0 of 12 "
            "looks at what is less urgent today"
        ),
        "  people: around",
    ]
    assert said[0].wanted[1].why == "continuing"


def test_what_was_done_yesterday_is_not_told_as_today() -> None:
    old = DmnState(day="2026-03-03", turns_today=200)
    assert (
        "0 of 200 turns and $0.00 of $2.00 today"
        in format_dmn_status(snapshot_dmn(mind(state=old), NOW), NOW)[1]
    )


def test_each_directive_is_told_and_recorded() -> None:
    later, evening = NOW + timedelta(hours=1), NOW + timedelta(hours=8)
    table: list[tuple[str, datetime | None, tuple[str, ...], DmnState, str, str]] = [
        ("pause", None, (), DmnState(), "pause", "ana is paused"),
        ("off", later, (), DmnState(), "off", "ana is off"),
        ("rest", None, (), DmnState(mode=DmnMode.WORKING), "rest", "ana is resting"),
        ("wake", None, (), DmnState(mode=DmnMode.OFF), "wake", "ana is awake"),
        ("sleep", None, (), DmnState(), "store", "ana is asleep until `dmn wake`"),
        (
            "sleep",
            evening,
            ("telegram",),
            DmnState(),
            "store",
            (
                "ana is asleep until 2026-03-04 13:06 UTC (in 8 h) or until one of these comes: "
                "telegram"
            ),
        ),
        (
            "quiet",
            None,
            (),
            DmnState(),
            "quiet",
            "ana is resting, quiet until 2026-03-04 06:06 UTC (in 1 h)",
        ),
    ]
    for what, given_until, on, state, signal, line in table:
        lines, _, todo = direct_agents(
            what, [mind(state=state)], NOW, by="ops", until=given_until, on=on
        )
        assert lines == [line]
        ((directed, _),) = todo
        until = given_until if what == "sleep" else later if what == "quiet" else None
        assert read_directive(directed, NOW) == Directive(at=NOW, order=signal, until=until, on=on)  # type: ignore[arg-type]
        assert directed == DmnDirective(agent="ana", what=what, by="ops", until=until, on=on)


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
        ValueError,
        match=r"; write e\.g\. |^That is past: it is now 2026-03-04T06:06 |five years ahead",
    ):
        parse_until(said, NOW, ZURICH)


states = st.builds(
    DmnState,
    mode=st.sampled_from(DmnMode),
    pending=st.sampled_from([(), (A,), (A, B)]),
    quiet_until=st.sampled_from([None, NOW, NOW + timedelta(days=1), dmn.FOREVER]),
    stored_until=st.sampled_from([None, NOW - timedelta(days=1), NOW + timedelta(days=1)]),
)


@given(
    what=st.sampled_from(["pause", "wake", "sleep", "quiet", "rest", "off"]),
    until=st.none() | st.just(NOW + timedelta(hours=3)) | st.just(datetime.max.replace(tzinfo=UTC)),
    on=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    ana=states,
    bob=states,
)
def test_every_order_is_answered_in_every_state_and_what_is_answered_holds(
    what: str, until: datetime | None, on: tuple[str, ...], ana: DmnState, bob: DmnState
) -> None:
    minds = [mind("ana", ana), mind("bob", bob)]
    lines, statuses, todo = direct_agents(what, minds, NOW, by="ops", until=until, on=on)
    assert len(lines) == len(statuses) == 2
    after = {one.id: one.state for one in minds}
    for directed, saved in todo:
        state = dmn.step(after[saved.agent], read_directive(directed, NOW), minds[0].policy)[0]
        assert saved == DmnStateSaved(agent=directed.agent, state=dump_state(state))
        after[saved.agent] = state
    assert statuses == [snapshot_dmn(mind(agent, state), NOW) for agent, state in after.items()]
