"""Whether to read a prefix only so that it stays cached. Pure: the caller sends the request, if any.

A refresh costs one read and saves, if the conversation comes back within the next lifetime, what writing it again
costs more than reading it. The budget is money that may be spent for this; its default is none, because an idle
gateway must cost nothing.
"""

from dataclasses import dataclass

from agent.cache.cadence import Cadence
from agent.cache.lifetimes import Multipliers, expected
from agent.cache.prices import Price
from agent.cache.warmth import LIFETIME_S
from gateway.events import Lifetime, Usage

MARGIN_S = 10.0
"""Before the end: as long as a request may take to arrive."""


_WORTH = 2.0
"""What is expected to be saved, against what it surely costs: the odds are estimates, and money spent is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """What of a conversation is cached while nobody asks."""

    conversation: str
    tokens: int
    """That a refresh would read."""
    lifetime: Lifetime
    """The shortest of its segments'."""
    asked_s: float
    """When it was last really asked for."""
    until_s: float
    """When it will be gone (`Warmth.until_s`)."""


def refresh_at(resting: Resting, cadence: Cadence, price: Price, *, budget_usd: float = 0.0) -> float | None:
    """Return when to read it again, a little before it is gone; None: let it go.

    Ask anew after each refresh and after each request: the longer nobody came, the less likely it pays.
    """
    lasts_s = LIFETIME_S[resting.lifetime]
    cost = price.input_cost_usd(Usage(cache_read_tokens=resting.tokens))
    if cost is None or not 0.0 < cost <= budget_usd or resting.tokens < price.minimum_tokens:
        return None
    costs = Multipliers(price.read, price.write_5m, price.write_1h)
    if resting.lifetime == "5m" and expected(cadence.odds(resting.conversation), costs).best() == "1h":
        return None  # once it is gone it will be written for an hour, which it could not be as long as it lives
    idle_s = max(0.0, resting.until_s - resting.asked_s)
    saved = price.write(resting.lifetime) - price.read
    if cadence.returns(resting.conversation, idle_s, lasts_s - MARGIN_S) * saved <= _WORTH * price.read:
        return None
    return resting.until_s - MARGIN_S
