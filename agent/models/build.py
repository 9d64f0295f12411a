"""The models that the `llm.providers` and `llm.models` sections describe."""

import logging
import random
from collections.abc import Callable, Mapping

from agent.models.anthropic import AnthropicModel
from agent.models.base import Model
from agent.models.config import (
    AnthropicConfig,
    LlamaCppConfig,
    LocalConfig,
    ModelConfig,
    OpenAIConfig,
    ProviderConfig,
    ScriptedConfig,
    check_models,
    context_tokens_of,
    leaks,
    output_tokens_of,
    sees,
    unknown,
)
from agent.models.failover import Failover
from agent.models.llamacpp import LlamaCppModel
from agent.models.local import LocalModel
from agent.models.local_server import CONTEXT_TOKENS
from agent.models.openai import OpenAIModel
from agent.models.scripted import Rule, Script, ScriptedModel, busy
from gateway.clock import Clock

_log = logging.getLogger(__name__)

Around = Callable[[Model, ModelConfig, ProviderConfig], Model]
"""A single model, its entry and its provider's, to what is used in its place."""


def build_model(
    name: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderConfig],
    clock: Clock,
    *,
    made: dict[str, Model] | None = None,
    clear_keeping: int | None = None,
    around: Around = lambda model, _config, _provider: model,
) -> Failover:
    """Build the model configured as `name` with its fallbacks behind it. No IO.

    Raises ValueError, whose text says the remedy, for what `check_models` finds. `made` holds single models by
    name and is added to: hand the same one to all calls, so that an embedded model is loaded once. `clear_keeping`:
    providers that can leave old tool results out are asked to, but for so many. `around` may put something around each
    single model.
    """
    if name not in models:
        raise ValueError(unknown(name, "llm.models", models))
    for path, message in check_models(models, providers):
        raise ValueError(f"llm.{'.'.join(path)}: {message}")
    made = {} if made is None else made
    names = chain(name, models)
    for key in names:
        if key not in made:
            config, provider = models[key], providers[models[key].provider]
            _tell(key, models, providers, known=made)
            made[key] = around(_single(key, config, provider, clock, clear_keeping), config, provider)
    jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
    return Failover([made[key] for key in names], clock=clock, random=jitter.random)


def _single(key: str, config: ModelConfig, provider: ProviderConfig, clock: Clock, clear_keeping: int | None) -> Model:
    window, output = context_tokens_of(config, provider), output_tokens_of(config, provider)
    if isinstance(provider, LocalConfig):
        window = min(window, CONTEXT_TOKENS)
        return LocalModel(name=key, context_tokens=window, max_output_tokens=output, timeout_s=provider.timeout)
    if isinstance(provider, ScriptedConfig):
        script = Script(
            rules=tuple(Rule(match=r.match, reply=r.reply) for r in provider.replies),
            delay_s=provider.delay,
            errors=busy(provider.busy),
        )
        return ScriptedModel(
            script,
            clock=clock,
            name=key,
            context_tokens=window,
            max_output_tokens=output,
            takes_images=sees(config, provider),
            leaks=leaks(config, provider),
        )
    return _remote(key, config, provider, clear_keeping)


def _remote(
    key: str,
    config: ModelConfig,
    provider: AnthropicConfig | LlamaCppConfig | OpenAIConfig,
    clear_keeping: int | None,
) -> Model:
    window, output = context_tokens_of(config, provider), output_tokens_of(config, provider)
    seeing = sees(config, provider)
    secret = provider.api_key.get_secret_value() if provider.api_key else ""
    if isinstance(provider, AnthropicConfig):
        return AnthropicModel(
            name=key,
            model=config.name or "",
            api_key=secret,
            base_url=provider.base_url,
            context_tokens=window,
            max_output_tokens=output,
            timeout_s=provider.timeout,
            takes_images=seeing,
            effort=config.effort,
            thinking=config.thinking,
            leaks=leaks(config, provider),
            clear_keeping=clear_keeping,
        )
    kind = LlamaCppModel if isinstance(provider, LlamaCppConfig) else OpenAIModel
    return kind(
        name=key,
        model=config.name or "llama.cpp",
        base_url=provider.base_url,
        api_key=secret,
        context_tokens=window,
        max_output_tokens=output,
        timeout_s=provider.timeout,
        takes_images=seeing,
        identity_in=provider.identity_in,
        leaks=leaks(config, provider),
    )


def _tell(
    key: str, models: Mapping[str, ModelConfig], providers: Mapping[str, ProviderConfig], *, known: Mapping[str, Model]
) -> None:
    """Say once of each provider that it takes no blocks, if it takes none."""
    name = models[key].provider
    told = any(other in models and models[other].provider == name for other in known)
    if told or isinstance(providers[name], AnthropicConfig | ScriptedConfig):
        return
    _log.info("%s takes no separate prompt blocks: they are sent joined, in their order", name)


def chain(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """The model and all that may stand in for it, each once, nearest first. Free of cycles by now."""
    names = [name]
    for fallback in models[name].fallbacks:
        names.extend(key for key in chain(fallback, models) if key not in names)
    return names
