"""The `llm.providers` and `llm.models` sections, and the models that they describe."""

import random
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.models.anthropic import AnthropicModel
from agent.models.base import Model
from agent.models.failover import Failover
from agent.models.http import DEFAULT_TIMEOUT_S, endpoint
from agent.models.local import LocalModel
from agent.models.local_server import CONTEXT_TOKENS
from agent.models.openai import OpenAIModel
from agent.models.scripted import Rule, Script, ScriptedModel, busy
from gateway.clock import Clock
from gateway.fields import Duration, Section


def _url(value: str) -> str:
    endpoint(value, "/")  # raises ValueError with the remedy
    return value


def _key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value().strip()
    if not (secret.isascii() and secret.isprintable()):
        raise ValueError("an api key is one line of plain ASCII; copy it again")
    return SecretStr(secret)


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


Url = Annotated[str, AfterValidator(_url)]
"""http or https; may end in `/v1` or not."""
Key = Annotated[SecretStr, AfterValidator(_key)]
"""Empty or `none`: no key is sent."""


class _Provider(Section):
    timeout: Duration = DEFAULT_TIMEOUT_S
    """Seconds of silence, before the first byte or between bytes, after which an answer counts as cut. Not 0."""

    @model_validator(mode="after")
    def _waits(self) -> Self:
        if self.timeout <= 0:
            raise ValueError("a timeout of 0 lets no answer through; leave it out for 120 s")
        return self


class AnthropicConfig(_Provider):
    """Anthropic's Messages API."""

    kind: Literal["anthropic"]
    base_url: Url = "https://api.anthropic.com"
    api_key: Key | None = None


class OpenAIConfig(_Provider):
    """OpenAI, or any server with its chat completions (vLLM, Ollama, ...)."""

    kind: Literal["openai"]
    base_url: Url = "https://api.openai.com/v1"
    api_key: Key | None = None


class LlamaCppConfig(_Provider):
    """A llama.cpp server."""

    kind: Literal["llamacpp"]
    base_url: Url = "http://127.0.0.1:9931"
    api_key: Key | None = None


class LocalConfig(_Provider):
    """The embedded stand-in."""

    kind: Literal["local"]


class ReplyConfig(Section):
    """A `scripted.Rule` without tools."""

    match: Annotated[str, AfterValidator(_pattern)]
    reply: str


class ScriptedConfig(_Provider):
    """A model for tests, demos and dry runs: says what it is told to say."""

    kind: Literal["scripted"]
    replies: tuple[ReplyConfig, ...] = Field(default=(), strict=False)
    delay: Duration = 0.0
    """Seconds before each answer."""
    busy: int = Field(default=0, ge=0)
    """So many first requests are refused as if overloaded."""


ProviderConfig = Annotated[
    AnthropicConfig | OpenAIConfig | LlamaCppConfig | LocalConfig | ScriptedConfig, Field(discriminator="kind")
]


class ModelConfig(Section):
    """One model at a provider, and who stands in for it."""

    provider: str
    """A key of `llm.providers`."""
    name: str | None = None
    """As the provider calls it. Required for anthropic and openai; others have one model only."""
    context_tokens: int | None = Field(default=None, gt=0)
    """None: 200000 for anthropic, 8192 for local, 128000 for others."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """None: 160 for local, 4096 for others."""
    fallbacks: tuple[str, ...] = Field(default=(), strict=False)
    """Keys of `llm.models`, asked in this order when this one cannot answer; theirs follow each."""


def check_models(
    models: Mapping[str, ModelConfig], providers: Mapping[str, ProviderConfig]
) -> list[tuple[tuple[str, ...], str]]:
    """Return what is wrong between the sections: (key path below `llm`, message with the remedy)."""
    found: list[tuple[tuple[str, ...], str]] = []
    for key, model in models.items():
        provider = providers.get(model.provider)
        if provider is None:
            found.append((("models", key, "provider"), _unknown(model.provider, "llm.providers", providers)))
        elif model.name is None and provider.kind in {"anthropic", "openai"}:
            message = f"needs a name: the model as {model.provider} calls it, e.g. name: claude-sonnet-5-5"
            found.append((("models", key, "name"), message))
        elif _output_tokens(model, provider) >= _context_tokens(model, provider):
            message = "must be smaller than context_tokens, which holds input and output together"
            found.append((("models", key, "max_output_tokens"), message))
        found.extend(
            (("models", key, "fallbacks"), _unknown(name, "llm.models", models))
            for name in model.fallbacks
            if name not in models
        )
        if cycle := _cycle(key, models):
            message = f"fall back in a circle ({' -> '.join(cycle)}); take one of them out"
            found.append((("models", key, "fallbacks"), message))
    return found


def build_model(
    name: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderConfig],
    clock: Clock,
    *,
    made: dict[str, Model] | None = None,
) -> Failover:
    """Build the model configured as `name` with its fallbacks behind it. No IO.

    Raises ValueError, whose text says the remedy, for what `check_models` finds. `made` holds single models by
    name and is added to: hand the same one to all calls, so that an embedded model is loaded once.
    """
    if name not in models:
        raise ValueError(_unknown(name, "llm.models", models))
    for path, message in check_models(models, providers):
        raise ValueError(f"llm.{'.'.join(path)}: {message}")
    made = {} if made is None else made
    chain = _chain(name, models)
    for key in chain:
        if key not in made:
            made[key] = _single(key, models[key], providers[models[key].provider], clock)
    jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
    return Failover([made[key] for key in chain], clock=clock, random=jitter.random)


def _single(key: str, config: ModelConfig, provider: ProviderConfig, clock: Clock) -> Model:
    window, output = _context_tokens(config, provider), _output_tokens(config, provider)
    if isinstance(provider, LocalConfig):
        window = min(window, CONTEXT_TOKENS)
        return LocalModel(name=key, context_tokens=window, max_output_tokens=output, timeout_s=provider.timeout)
    if isinstance(provider, ScriptedConfig):
        script = Script(
            rules=tuple(Rule(match=r.match, reply=r.reply) for r in provider.replies),
            delay_s=provider.delay,
            errors=busy(provider.busy),
        )
        return ScriptedModel(script, clock=clock, name=key, context_tokens=window, max_output_tokens=output)
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
        )
    return OpenAIModel(
        name=key,
        model=config.name or "llama.cpp",
        base_url=provider.base_url,
        api_key=secret,
        context_tokens=window,
        max_output_tokens=output,
        timeout_s=provider.timeout,
        family="local" if isinstance(provider, LlamaCppConfig) else "openai",
        reuse=not isinstance(provider, LlamaCppConfig),
    )


def _context_tokens(model: ModelConfig, provider: ProviderConfig) -> int:
    return model.context_tokens or {"local": CONTEXT_TOKENS, "anthropic": 200_000}.get(provider.kind, 128_000)


def _output_tokens(model: ModelConfig, provider: ProviderConfig) -> int:
    return model.max_output_tokens or (160 if provider.kind == "local" else 4096)


def _chain(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """The model and all that may stand in for it, each once, nearest first. Free of cycles by now."""
    chain = [name]
    for fallback in models[name].fallbacks:
        chain.extend(key for key in _chain(fallback, models) if key not in chain)
    return chain


def _cycle(start: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """A way from `start` back to it along fallbacks; empty if there is none."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        for key in models[way[-1]].fallbacks:
            if key == start:
                return [*way, start]
            if key in models and key not in seen:
                seen.add(key)
                ways.append([*way, key])
    return []


def _unknown(name: str, section: str, known: Mapping[str, object]) -> str:
    names = ", ".join(sorted(known)) or "none yet"
    return f"there is no {name!r} in {section} (there: {names}); add it or correct the name"
