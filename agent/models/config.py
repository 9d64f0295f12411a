"""Sections `llm.providers` and `llm.models`: their checks, and the models built from them."""

import logging
import math
import random
from collections.abc import Callable, Mapping

from agent.cache.prompt_cache import PromptCache
from agent.models.base import Model
from agent.models.client import Candidate, ModelClient
from agent.models.settings import ModelConfig, ProviderSettings
from gateway.core.clock import Clock

logger = logging.getLogger(__name__)


def check_models(
    models: Mapping[str, ModelConfig], providers: Mapping[str, ProviderSettings]
) -> list[tuple[tuple[str, ...], str]]:
    """Return the problems between the sections: (key path below `llm`, message with the remedy)."""
    found: list[tuple[tuple[str, ...], str]] = []
    for key, model in models.items():
        provider = providers.get(model.provider)
        if provider is None:
            found.append(
                (
                    ("models", key, "provider"),
                    format_unknown(model.provider, "llm.providers", providers),
                )
            )
        elif model.name is None and provider.names_models:
            message = (
                f"needs a name: the model as {model.provider} calls it, e.g. name: "
                "claude-sonnet-5-5"
            )
            found.append((("models", key, "name"), message))
        else:
            options = provider.options(key, model)
            if options["max_output_tokens"] >= options["context_tokens"]:
                message = (
                    "must be smaller than context_tokens, which holds input and output together"
                )
                found.append((("models", key, "max_output_tokens"), message))
        if refused := provider and provider.find_refused_setting(model):
            found.append((("models", key, refused[0]), refused[1]))
        found.extend(
            (("models", key, "fallbacks"), format_unknown(name, "llm.models", models))
            for name in model.fallbacks
            if name not in models
        )
        if cycle := _find_cycle(key, models):
            message = f"fall back in a circle ({' -> '.join(cycle)}); take one of them out"
            found.append((("models", key, "fallbacks"), message))
    return found


def _find_cycle(start: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """Return a path from `start` back to it along fallbacks; empty if there is none."""
    paths = [[start]]
    visited: set[str] = set()
    while paths:
        path = paths.pop()
        for key in models[path[-1]].fallbacks:
            if key == start:
                return [*path, start]
            if key in models and key not in visited:
                visited.add(key)
                paths.append([*path, key])
    return []


def format_unknown(name: str, section: str, known: Mapping[str, object]) -> str:
    """Return the error message for an unknown name."""
    names = ", ".join(sorted(known)) or "none yet"
    return f"there is no {name!r} in {section} (there: {names}); add it or correct the name"


CacheFactory = Callable[[Model, ModelConfig, ProviderSettings], PromptCache | None]
"""Makes the prompt cache of a single model, given its entry and its provider's. None: it has
none."""


def build_model(
    name: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderSettings],
    clock: Clock,
    *,
    made: dict[str, Candidate] | None = None,
    cache: CacheFactory = lambda _model, _config, _provider: None,
) -> ModelClient:
    """Build the client of the model configured as `name` with its fallbacks. No IO.

    Raises ValueError with the remedy for what `check_models` finds. `made` holds single models by
    name and is added to: pass the same one to all calls, so that an embedded model is loaded once.
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
            if not any(one in models and models[one].provider == config.provider for one in made):
                _log_joined_blocks(config, provider)
            model = provider.make(provider.options(key, config), config=config, clock=clock)
            made[key] = Candidate(
                model, cache(model, config, provider), provider.first_token or math.inf
            )
    jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
    return ModelClient([made[key] for key in names], clock=clock, random=jitter.random)


def _log_joined_blocks(config: ModelConfig, provider: ProviderSettings) -> None:
    """Log that a provider takes no separate blocks, or no cache marks, if that is so."""
    caching = provider.traits(config.name or "").caching
    if caching == "marks" or not provider.is_metered:
        return
    itself = " and without cache marks: it caches equal beginnings by itself"
    logger.info(
        "%s takes no separate prompt blocks: they are sent joined, in their order%s",
        config.provider,
        itself if caching == "automatic" else "",
    )


def fallback_chain(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """Return the model and all its fallbacks, each once, nearest first. The fallbacks must have no
    cycle.
    """
    names = [name]
    for fallback in models[name].fallbacks:
        names.extend(key for key in fallback_chain(fallback, models) if key not in names)
    return names
