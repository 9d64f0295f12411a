from datetime import date

import pytest

from agent.cache.plan import REFRESH_MARGIN_S, IdleConversation, KeepWarmBudget, plan_refresh
from agent.cache.prices import Price
from agent.cache.state import Cadence
from gateway.core.events import CacheTtl

PRICE = Price(input_usd=2, output_usd=10, minimum_tokens=512)
ROOM = "irc/#room"


def cadence(gap_s: float, *, between: int = 3) -> Cadence:
    """Bursts of so many messages, so far apart."""
    made = Cadence()
    for number in range(20):
        for more in range(between + 1):
            made.observe_request(ROOM, (gap_s + 60.0 * between) * number + 60.0 * more)
    return made


def resting(
    *, tokens: int = 20_000, mortal: int = 0, idle_s: float = 3_600.0, lifetime: CacheTtl = "1h", where: str = ROOM
) -> IdleConversation:
    return IdleConversation(
        conversation=where,
        refresh_tokens=tokens,
        expiring_tokens=mortal or tokens,
        max_billed_tokens=tokens + 1_000,
        lifetime=lifetime,
        last_request_s=1_000.0,
        expires_s=1_000.0 + idle_s,
    )


def test_an_idle_gateway_costs_nothing_unless_there_is_a_budget() -> None:
    assert plan_refresh(resting(), cadence(5_000.0), PRICE) is None
    due = plan_refresh(resting(), cadence(5_000.0), PRICE, budget_usd=1.0)
    assert due is not None
    assert due.at_s == 4_600.0 - REFRESH_MARGIN_S
    assert due.max_cost_usd == pytest.approx(21_000 * 2 * 2 / 1e6)


def test_what_should_be_cached_for_an_hour_is_not_kept_alive_for_five_minutes() -> None:
    soon = resting(idle_s=300.0, lifetime="5m")
    assert plan_refresh(soon, cadence(400.0, between=0), PRICE, budget_usd=1.0) is None
    assert plan_refresh(soon, cadence(400.0, between=0), PRICE, budget_usd=1.0, lengthens=False) is not None


def test_the_budget_holds_even_if_the_provider_has_lost_everything() -> None:
    assert plan_refresh(resting(), cadence(5_000.0), PRICE, budget_usd=0.083_9) is None
    assert plan_refresh(resting(), cadence(5_000.0), PRICE, budget_usd=0.084_1) is not None


def test_little_that_would_be_gone_is_not_worth_reading_much_that_would_not() -> None:
    assert plan_refresh(resting(mortal=15_000), cadence(5_000.0), PRICE, budget_usd=1.0) is not None
    assert plan_refresh(resting(mortal=1_000), cadence(5_000.0), PRICE, budget_usd=1.0) is None


def test_keeping_never_costs_more_than_losing() -> None:
    always = cadence(70_000.0, between=0)
    late = resting(idle_s=17 * 3_600.0)
    assert plan_refresh(late, always, PRICE, budget_usd=1.0) is not None
    assert plan_refresh(resting(idle_s=19.2 * 3_600.0), always, PRICE, budget_usd=1.0) is None
    assert plan_refresh(resting(idle_s=17 * 3_600.0, mortal=17_000), always, PRICE, budget_usd=1.0) is None


def test_several_refreshes_bridge_a_gap_that_one_does_not() -> None:
    soon = resting(idle_s=300.0, lifetime="5m")
    assert plan_refresh(soon, cadence(900.0, between=0), PRICE, budget_usd=1.0, lengthens=False) is not None
    assert plan_refresh(soon, cadence(9_000.0, between=0), PRICE, budget_usd=1.0, lengthens=False) is None


def test_a_new_conversation_is_thought_to_be_as_all_others_are() -> None:
    others, new = cadence(5_000.0, between=0), resting(where="irc/#new")
    others.observe_request("irc/#new", 1_000.0)
    assert plan_refresh(new, others, PRICE, budget_usd=1.0) is not None
    assert plan_refresh(new, cadence(100_000.0, between=0), PRICE, budget_usd=1.0) is None


def test_what_is_spent_counts_until_the_end_of_the_day() -> None:
    purse, today, tomorrow = KeepWarmBudget(), date(2026, 3, 1), date(2026, 3, 2)
    assert purse.remaining_usd("ana", today, 1.0) == 1.0
    purse.spend("ana", 0.75)
    purse.spend("ana", -0.5)
    assert (purse.remaining_usd("ana", today, 1.0), purse.remaining_usd("bo", today, 1.0)) == (0.75, 1.0)
    purse.spend("ana", 5.0)
    assert purse.remaining_usd("ana", today, 1.0) == 0.0
    assert purse.remaining_usd("ana", tomorrow, 1.0) == 1.0
    purse.spend("ana", -5.0)  # taken out yesterday
    assert purse.remaining_usd("ana", tomorrow, 1.0) == 1.0


def test_it_is_let_go_where_nobody_will_come_in_time() -> None:
    assert plan_refresh(resting(), cadence(100_000.0), PRICE, budget_usd=1.0) is None
    assert plan_refresh(resting(idle_s=20_000.0), cadence(5_000.0), PRICE, budget_usd=1.0) is None


def test_what_has_no_price_or_is_too_small_is_not_kept_warm() -> None:
    assert plan_refresh(resting(), cadence(5_000.0), Price(), budget_usd=1.0) is None
    assert plan_refresh(resting(tokens=100), cadence(5_000.0), PRICE, budget_usd=1.0) is None
    assert plan_refresh(resting(), cadence(5_000.0), Price(input_usd=0, output_usd=0), budget_usd=1.0) is None
