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
    format_unknown,
    may_leak_calls,
    output_tokens_of,
    takes_images,
)
from agent.models.failover import FailoverModel
from agent.models.llamacpp import LlamaCppModel
from agent.models.local import LocalModel
from agent.models.local_server import CONTEXT_TOKENS
from agent.models.openai import OpenAIModel
from agent.models.scripted import Script, ScriptedModel, ScriptRule, busy_errors
from gateway.clock import Clock

logger = logging.getLogger(__name__)

ModelWrapper = Callable[[Model, ModelConfig, ProviderConfig], Model]
"""A single model, its entry and its provider's, to what is used in its place."""


def build_model(
    name: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderConfig],
    clock: Clock,
    *,
    made: dict[str, Model] | None = None,
    clear_keeping: int | None = None,
    around: ModelWrapper = lambda model, _config, _provider: model,
) -> FailoverModel:
    """Build the model configured as `name` with its fallbacks behind it. No IO.

    Raises ValueError, whose text says the remedy, for what `check_models` finds. `made` holds single models by
    name and is added to: hand the same one to all calls, so that an embedded model is loaded once. `clear_keeping`:
    providers that can leave old tool results out are asked to, but for so many. `around` may put something around each
    single model.
    """
    if name not in models:
        raise ValueError(format_unknown(name, "llm.models", models))
    for path, message in check_models(models, providers):
        raise ValueError(f"llm.{'.'.join(path)}: {message}")
    made = {} if made is None else made
    names = fallback_chain(name, models)
    for key in names:
        if key not in made:
            config, provider = models[key], providers[models[key].provider]
            _log_joined_blocks(key, models, providers, known=made)
            made[key] = around(_build_single(key, config, provider, clock, clear_keeping), config, provider)
    jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
    return FailoverModel([made[key] for key in names], clock=clock, random=jitter.random)


def _build_single(
    key: str, config: ModelConfig, provider: ProviderConfig, clock: Clock, clear_keeping: int | None
) -> Model:
    window, output = context_tokens_of(config, provider), output_tokens_of(config, provider)
    if isinstance(provider, LocalConfig):
        window = min(window, CONTEXT_TOKENS)
        return LocalModel(name=key, context_tokens=window, max_output_tokens=output, timeout_s=provider.timeout)
    if isinstance(provider, ScriptedConfig):
        script = Script(
            rules=tuple(ScriptRule(match=r.match, reply=r.reply) for r in provider.replies),
            delay_s=provider.delay,
            errors=busy_errors(provider.busy),
        )
        return ScriptedModel(
            script,
            clock=clock,
            name=key,
            context_tokens=window,
            max_output_tokens=output,
            takes_images=takes_images(config, provider),
            leaks=may_leak_calls(config, provider),
        )
    return _build_remote(key, config, provider, clear_keeping)


def _build_remote(
    key: str,
    config: ModelConfig,
    provider: AnthropicConfig | LlamaCppConfig | OpenAIConfig,
    clear_keeping: int | None,
) -> Model:
    window, output = context_tokens_of(config, provider), output_tokens_of(config, provider)
    seeing = takes_images(config, provider)
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
            leaks=may_leak_calls(config, provider),
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
        leaks=may_leak_calls(config, provider),
    )


def _log_joined_blocks(
    key: str, models: Mapping[str, ModelConfig], providers: Mapping[str, ProviderConfig], *, known: Mapping[str, Model]
) -> None:
    """Say once of each provider that it takes no blocks, if it takes none."""
    name = models[key].provider
    told = any(other in models and models[other].provider == name for other in known)
    if told or isinstance(providers[name], AnthropicConfig | ScriptedConfig):
        return
    logger.info("%s takes no separate prompt blocks: they are sent joined, in their order", name)


def fallback_chain(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """The model and all that may stand in for it, each once, nearest first. Free of cycles by now."""
    names = [name]
    for fallback in models[name].fallbacks:
        names.extend(key for key in fallback_chain(fallback, models) if key not in names)
    return names
