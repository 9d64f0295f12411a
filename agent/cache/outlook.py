"""What the cache of a conversation's history is like just now, for whoever thinks of rewriting it. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.cache.ask import Ask
from agent.cache.cadence import Odds
from agent.cache.prices import Price
from agent.cache.warmth import LIFETIME_S, Lasting
from gateway.events import Lifetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Of one conversation."""

    cold: bool | None
    """Nothing of the history is cached. None: nobody knows, because it was not asked for in this process."""
    read: float
    """Share of the input price for what is read from the cache."""
    write: float
    """The same for what is written to it."""
    ahead: float
    """Requests expected before a gap that the cache does not survive."""


UNKNOWN = Outlook(cold=None, read=1.0, write=1.0, ahead=20.0)
"""Of a model whose cache nobody looks after: each request costs all of its tokens."""


def outlook(
    ask: Ask | None, lasting: Callable[[], Sequence[Lasting]], odds: Odds, price: Price, at_s: float
) -> Outlook:
    """`ask`: the conversation's last request; `lasting`: what of it is cached; `odds`: how soon it goes on."""
    lifetime: Lifetime = "5m"
    cold: bool | None = None
    if ask is not None:
        lifetime = ask.plan.marks[-1].lifetime if ask.plan.marks else lifetime
        cold = _cold(ask, lasting, lifetime, at_s)
    return Outlook(cold=cold, read=price.read, write=price.write(lifetime), ahead=ahead(odds, lifetime))


def _cold(ask: Ask, lasting: Callable[[], Sequence[Lasting]], lifetime: Lifetime, at_s: float) -> bool:
    places = [ask.plan.read - 1, *(unit for unit, _ in ask.plan.writes[-1:])]
    cached = any(place >= 0 and ask.laid[place].behind == "said" for place in places)
    if cached and 0 <= at_s - ask.at_s < LIFETIME_S[lifetime]:  # it was sent just now: nothing can be gone
        return False
    found = lasting()  # it may have been kept warm
    return not found or ask.laid[found[-1].place.unit].behind != "said"


def ahead(odds: Odds, lifetime: Lifetime) -> float:
    """How many more requests come before a gap that is longer than that: a Markov chain that ends there."""
    kinds = (0, 1) if lifetime == "1h" else (0,)
    first = sum(odds.next[kind] for kind in kinds)
    # Which kind of short gap came before matters little: they are weighed by how often they follow each other.
    weights = [odds.rows[kind][kind] for kind in kinds]
    goes_on = [sum(odds.rows[kind][other] for other in kinds) for kind in kinds]
    stays = sum(weight * share for weight, share in zip(weights, goes_on, strict=True)) / max(sum(weights), 1e-9)
    return min(odds.remaining, first / max(1.0 - stays, 1e-3))
