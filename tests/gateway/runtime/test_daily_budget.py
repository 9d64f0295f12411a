"""No request is made that could cost more than is left of the day."""

from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelRequest
from gateway.core.events import ConversationId
from gateway.runtime.models import DailyBudget


def asking(place: str) -> ModelRequest:
    return ModelRequest(blocks=(), conversation=(), max_output_tokens=10, shared_key="a", conversation_id=place)


def test_what_costs_nothing_is_always_affordable() -> None:
    purse = DailyBudget(left_usd=lambda: 0.0)
    assert all(purse.reserve(asking("x/a"), 0.0) for _ in range(3))


def test_money_is_set_aside_until_the_turn_is_over() -> None:
    purse = DailyBudget(left_usd=lambda: 1.0)
    assert purse.reserve(asking("x/a"), 0.4)
    assert purse.reserve(asking("x/b"), 0.4)
    assert not purse.reserve(asking("x/c"), 0.4)
    purse.settle(ConversationId("x/a"))
    assert purse.reserve(asking("x/c"), 0.4)


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
    purse = DailyBudget(left_usd=lambda: limit - spent)
    for place, ends, most, share in events:
        if ends:
            spent += running.pop(place, 0.0)
            purse.settle(ConversationId(place))
        elif purse.reserve(asking(place), most):
            running[place] = running.get(place, 0.0) + most * share
        assert spent + sum(running.values()) <= limit + 1e-9
