from agent.cache.cadence import Cadence
from agent.cache.keepwarm import MARGIN_S, Resting, refresh_at
from agent.cache.prices import Price

PRICE = Price(input_usd=2, output_usd=10, minimum_tokens=512)
ROOM = "irc/#room"


def cadence(gap_s: float) -> Cadence:
    made = Cadence()
    for number in range(20):
        made.asked(ROOM, gap_s * number)
    return made


def resting(*, tokens: int = 20_000, idle_s: float = 300.0) -> Resting:
    return Resting(conversation=ROOM, tokens=tokens, lifetime="5m", asked_s=1_000.0, until_s=1_000.0 + idle_s)


def test_an_idle_gateway_costs_nothing_unless_there_is_a_budget() -> None:
    assert refresh_at(resting(), cadence(400.0), PRICE) is None
    assert refresh_at(resting(), cadence(400.0), PRICE, budget_usd=1.0) == 1_300.0 - MARGIN_S


def test_the_budget_holds() -> None:
    assert refresh_at(resting(), cadence(400.0), PRICE, budget_usd=0.003_9) is None
    assert refresh_at(resting(), cadence(400.0), PRICE, budget_usd=0.004) is not None


def test_it_is_let_go_where_nobody_will_come_in_time() -> None:
    assert refresh_at(resting(), cadence(100_000.0), PRICE, budget_usd=1.0) is None
    assert refresh_at(resting(idle_s=3_000.0), cadence(400.0), PRICE, budget_usd=1.0) is None


def test_what_has_no_price_or_is_too_small_is_not_kept_warm() -> None:
    assert refresh_at(resting(), cadence(400.0), Price(), budget_usd=1.0) is None
    assert refresh_at(resting(tokens=100), cadence(400.0), PRICE, budget_usd=1.0) is None
    assert refresh_at(resting(), cadence(400.0), Price(input_usd=0, output_usd=0), budget_usd=1.0) is None
