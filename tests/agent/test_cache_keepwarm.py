from agent.cache.cadence import Cadence
from agent.cache.keepwarm import MARGIN_S, Resting, refresh_at
from agent.cache.prices import Price
from gateway.events import Lifetime

PRICE = Price(input_usd=2, output_usd=10, minimum_tokens=512)
ROOM = "irc/#room"


def cadence(gap_s: float, *, between: int = 3) -> Cadence:
    """Bursts of so many messages, so far apart."""
    made = Cadence()
    for number in range(20):
        for more in range(between + 1):
            made.asked(ROOM, (gap_s + 60.0 * between) * number + 60.0 * more)
    return made


def resting(*, tokens: int = 20_000, idle_s: float = 3_600.0, lifetime: Lifetime = "1h") -> Resting:
    return Resting(conversation=ROOM, tokens=tokens, lifetime=lifetime, asked_s=1_000.0, until_s=1_000.0 + idle_s)


def test_an_idle_gateway_costs_nothing_unless_there_is_a_budget() -> None:
    assert refresh_at(resting(), cadence(5_000.0), PRICE) is None
    assert refresh_at(resting(), cadence(5_000.0), PRICE, budget_usd=1.0) == 4_600.0 - MARGIN_S


def test_what_should_be_cached_for_an_hour_is_not_kept_alive_for_five_minutes() -> None:
    assert refresh_at(resting(idle_s=300.0, lifetime="5m"), cadence(400.0, between=0), PRICE, budget_usd=1.0) is None


def test_the_budget_holds() -> None:
    assert refresh_at(resting(), cadence(5_000.0), PRICE, budget_usd=0.003_9) is None
    assert refresh_at(resting(), cadence(5_000.0), PRICE, budget_usd=0.004) is not None


def test_it_is_let_go_where_nobody_will_come_in_time() -> None:
    assert refresh_at(resting(), cadence(100_000.0), PRICE, budget_usd=1.0) is None
    assert refresh_at(resting(idle_s=20_000.0), cadence(5_000.0), PRICE, budget_usd=1.0) is None


def test_what_has_no_price_or_is_too_small_is_not_kept_warm() -> None:
    assert refresh_at(resting(), cadence(5_000.0), Price(), budget_usd=1.0) is None
    assert refresh_at(resting(tokens=100), cadence(5_000.0), PRICE, budget_usd=1.0) is None
    assert refresh_at(resting(), cadence(5_000.0), Price(input_usd=0, output_usd=0), budget_usd=1.0) is None
