"""What must be known of a model's provider to look after its cache. Pure."""

from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from agent.cache.prices import ASSUMED_PRICE, Price
from agent.tokens.meter import TokenEstimate
from gateway.events import Usage

ESTIMATE_MARGIN: Final = 1.25
"""An estimate of tokens is hardly ever this much too low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheProfile:
    """One model of one provider."""

    provider: str
    """Its kind: anthropic, openai, llamacpp, ..."""
    model: str
    """As the provider names it."""
    price: Price
    caching: Literal["marks", "automatic", "none"]
    """It is told what to cache; or it caches every prefix by itself; or nothing."""

    def calibrated_price(self, estimate: TokenEstimate) -> Price:
        """The price, its smallest prefix in tokens as they are estimated: what counts is how they are billed."""
        billed = max(1, estimate.correct(10_000))
        minimum = -(-self.price.minimum_tokens * 10_000 // billed)
        return self.price.model_copy(update={"minimum_tokens": minimum})

    def max_cost_usd(self, prompt_tokens: int, output_tokens: int, *, long: bool) -> float:
        """What a request may cost at most; where the price is not known, by one that is assumed.

        Nothing is read from the cache, all is written for as long as it can be (`long`: an hour), and the answer is
        as long as it may be.
        """
        tokens = ceil(prompt_tokens * ESTIMATE_MARGIN)
        written = tokens if self.caching == "marks" else 0
        usage = Usage(
            input_tokens=tokens - written,
            cache_write_tokens=written,
            cache_write_1h_tokens=written if long else 0,
            output_tokens=output_tokens,
        )
        price = self.price if self.price.is_priced else ASSUMED_PRICE
        return price.cost_usd(usage) or 0.0
