"""What the cache of a conversation's history is like just now, for whoever thinks of rewriting it. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.cache.ask import PlannedRequest
from agent.cache.cadence import GapOdds
from agent.cache.prices import Price
from agent.cache.warmth import LIFETIME_S, CachedUntil
from gateway.events import CacheTtl


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForecast:
    """Of one conversation."""

    is_cold: bool | None
    """Nothing of the history is cached. None: nobody knows, because it was not asked for in this process."""
    read_share: float
    """Share of the input price for what is read from the cache."""
    write_share: float
    """The same for what is written to it."""
    expected_requests: float
    """Requests expected before a gap that the cache does not survive."""


UNKNOWN_FORECAST = CacheForecast(is_cold=None, read_share=1.0, write_share=1.0, expected_requests=20.0)
"""Of a model whose cache nobody looks after: each request costs all of its tokens."""


def forecast_cache(
    ask: PlannedRequest | None, lasting: Callable[[], Sequence[CachedUntil]], odds: GapOdds, price: Price, at_s: float
) -> CacheForecast:
    """`ask`: the conversation's last request; `lasting`: what of it is cached; `odds`: how soon it goes on."""
    lifetime: CacheTtl = "5m"
    cold: bool | None = None
    if ask is not None:
        lifetime = ask.plan.breakpoints[-1].lifetime if ask.plan.breakpoints else lifetime
        cold = _is_history_cold(ask, lasting, lifetime, at_s)
    return CacheForecast(
        is_cold=cold,
        read_share=price.read,
        write_share=price.write_multiplier(lifetime),
        expected_requests=expected_requests(odds, lifetime),
    )


def _is_history_cold(
    ask: PlannedRequest, lasting: Callable[[], Sequence[CachedUntil]], lifetime: CacheTtl, at_s: float
) -> bool:
    places = [ask.plan.read_segments - 1, *(unit for unit, _ in ask.plan.writes[-1:])]
    cached = any(place >= 0 and ask.segments[place].behind == "said" for place in places)
    if cached and 0 <= at_s - ask.sent_at_s < LIFETIME_S[lifetime]:  # it was sent just now: nothing can be gone
        return False
    found = lasting()  # it may have been kept warm
    return not found or ask.segments[found[-1].prefix.segment].behind != "said"


def expected_requests(odds: GapOdds, lifetime: CacheTtl) -> float:
    """How many more requests come before a gap that is longer than that: a Markov chain that ends there."""
    kinds = (0, 1) if lifetime == "1h" else (0,)
    first = sum(odds.next_gap[kind] for kind in kinds)
    # Which kind of short gap came before matters little: they are weighed by how often they follow each other.
    weights = [odds.rows[kind][kind] for kind in kinds]
    goes_on = [sum(odds.rows[kind][other] for other in kinds) for kind in kinds]
    stays = sum(weight * share for weight, share in zip(weights, goes_on, strict=True)) / max(sum(weights), 1e-9)
    return min(odds.remaining_requests, first / max(1.0 - stays, 1e-3))
