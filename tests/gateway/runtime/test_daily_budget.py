"""No request is made that could cost more than is left of the day."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from agent.signals import DmnPolicy, DmnState
from gateway.core.clock import ManualClock
from gateway.core.events import ConversationId
from gateway.core.facts import inner_conversation
from gateway.runtime.loop import AgentLoop
from gateway.store import Store
from tests.kits.tasks import LooseTasks
from tests.kits.turns import Idle

CLOCK = ManualClock()
TODAY = CLOCK.now().date().isoformat()


class Purse(Idle):
    """The loop of an agent that may spend so much today."""

    reserve = AgentLoop.reserve

    def __init__(self, limit_usd: float) -> None:
        policy, state = DmnPolicy(inner=inner_conversation("ana"), daily_cost_usd=limit_usd), DmnState(day=TODAY)
        AgentLoop.__init__(self, "ana", cast("Store", None), CLOCK, policy=policy, state=state, tasks=LooseTasks())


A, B, C = (ConversationId(f"x/{name}") for name in "abc")


def test_what_costs_nothing_is_always_affordable() -> None:
    purse = Purse(0.0)
    assert all(purse.reserve(A, 0.0) for _ in range(3))


def test_money_is_set_aside_until_the_turn_is_over() -> None:
    purse = Purse(1.0)
    assert purse.reserve(A, 0.4)
    assert purse.reserve(B, 0.4)
    assert not purse.reserve(C, 0.4)
    purse.settle_turn(A)
    assert purse.reserve(C, 0.4)


def test_what_was_spent_on_another_day_does_not_count() -> None:
    purse = Purse(1.0)
    purse.state = DmnState(day="2020-01-01", spent_today_usd=1.0)
    assert purse.reserve(A, 1.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["x/a", "x/b", "x/c"]), st.booleans(), st.floats(0, 0.5), st.floats(0, 1)),
        max_size=60,
    )
)
def test_whatever_happens_the_day_never_costs_more_than_its_money(
    events: list[tuple[str, bool, float, float]],
) -> None:
    """A request costs a share of what it could have; its turn's cost is counted when that has ended."""
    limit, spent, running = 1.0, 0.0, dict[str, float]()
    purse = Purse(limit)
    for place, ends, most, share in events:
        if ends:
            spent += running.pop(place, 0.0)
            purse.state = DmnState(day=TODAY, spent_today_usd=spent)
            purse.settle_turn(ConversationId(place))
        elif purse.reserve(ConversationId(place), most):
            running[place] = running.get(place, 0.0) + most * share
        assert spent + sum(running.values()) <= limit + 1e-9
