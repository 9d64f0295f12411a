"""Prices of tokens per model, from `config/prices.yaml`. Pure: the text is passed in.

A model is found by its name alone or, for self-hosted servers, by the kind of its provider. A name
without an entry costs as much as the entry `default`, and the result is marked as such: the caller
warns, once.
"""

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from yaml.constructor import SafeConstructor

from gateway.core.events import CacheTtl, Usage
from gateway.core.yaml_text import compose_yaml

_TOKENS_PER_PRICE = 1_000_000


class _PriceModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class LongPrompt(_PriceModel):
    """Prices of a request whose whole prompt (read, written and neither) is longer than
    `above_tokens`.
    """

    above_tokens: int = Field(gt=0)
    input_usd: float = Field(ge=0)
    output_usd: float = Field(ge=0)


class Price(_PriceModel):
    """One entry: prices of a model's tokens, and properties of its cache."""

    match: tuple[str, ...] = ()
    """Names, with `*` and `?`, in lower case. Empty: any name of the providers in `provider`."""
    provider: tuple[str, ...] = ()
    """Kinds of provider, e.g. `llamacpp`. Empty: any."""
    input_usd: float | None = Field(None, ge=0)
    """Per million tokens that are neither read from a cache nor written to one. None: not known."""
    output_usd: float | None = Field(None, ge=0)
    """Per million tokens."""
    read: float = Field(0.1, ge=0)
    """Price of tokens read from the cache, as a share of the input price."""
    write_5m: float = Field(1.25, ge=0)
    """Price of tokens written for five minutes, as a share of the input price. For a provider with
    one lifetime only: for that."""
    write_1h: float = Field(2.0, ge=0)
    """Price of tokens written for an hour, as a share of the input price."""
    minimum_tokens: int = Field(1_024, ge=0)
    """Length of the shortest prefix that is cached. A shorter one is silently ignored."""
    long_prompt: LongPrompt | None = None
    """None: one price for all lengths."""
    known: bool = Field(default=True, exclude=True)
    """False: no entry has this name, and this is `default`."""

    @property
    def is_priced(self) -> bool:
        return self.input_usd is not None and self.output_usd is not None

    def write_multiplier(self, lifetime: CacheTtl) -> float:
        """Return the price of writing for this lifetime, as a share of the input price."""
        return self.write_1h if lifetime == "1h" else self.write_5m

    def input_cost_usd(self, usage: Usage) -> float | None:
        """Return the cost of one request's input. None: the price is not known."""
        return self._cost_usd(usage)[0]

    def cost_usd(self, usage: Usage) -> float | None:
        """Return the cost of one request. None: the price is not known.

        Use it for single requests only: the price of long prompts depends on the request.
        """
        inputs, outputs = self._cost_usd(usage)
        return None if inputs is None or outputs is None else inputs + outputs

    def _cost_usd(self, usage: Usage) -> tuple[float | None, float | None]:
        prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        long = self.long_prompt
        rates = self if long is None or prompt <= long.above_tokens else long
        weighted = (
            usage.input_tokens
            + usage.cache_read_tokens * self.read
            + (usage.cache_write_tokens - usage.cache_write_1h_tokens) * self.write_5m
            + usage.cache_write_1h_tokens * self.write_1h
        )
        input_usd, output_usd = rates.input_usd, rates.output_usd
        return (
            None if input_usd is None else input_usd / _TOKENS_PER_PRICE * weighted,
            None if output_usd is None else output_usd / _TOKENS_PER_PRICE * usage.output_tokens,
        )


ASSUMED_PRICE = Price(input_usd=5.0, output_usd=25.0)
"""Price of a model that is listed without one: as expensive as `default` in the table that ships
with the product."""


class PriceTable(_PriceModel):
    """Complete table."""

    models: tuple[Price, ...]
    """Entries; the first that matches counts."""
    default: Price

    @model_validator(mode="after")
    def _check_reachable(self) -> Self:
        for price in self.models:
            if not price.match and not price.provider:
                raise ValueError(
                    "an entry needs `match` or `provider`; what holds for all others is `default`"
                )
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse YAML. Raises ValueError with every mistake and its place."""
        try:
            node = compose_yaml(text)
            return cls.model_validate(node and SafeConstructor().construct_document(node))
        except yaml.YAMLError as error:
            raise ValueError(f"not YAML: {error}") from None
        except ValidationError as error:
            mistakes = [
                (".".join(map(str, detail["loc"])) or "the table", detail["msg"])
                for detail in error.errors()
            ]
            raise ValueError(
                "; ".join(f"{place}: {message}" for place, message in mistakes)
            ) from None

    def find(self, model: str, *, provider: str = "") -> Price:
        """Return the price of `model` at this kind of provider. `known` is False if it is only
        `default`.
        """
        return _find_price(self, model.lower(), provider)


@lru_cache(maxsize=256)
def _find_price(prices: PriceTable, model: str, provider: str) -> Price:
    for price in prices.models:
        if price.provider and provider not in price.provider:
            continue
        if not price.match or any(fnmatchcase(model, pattern) for pattern in price.match):
            return price
    return prices.default.model_copy(update={"known": False})
