"""Sections `llm.providers` and `llm.models`, and the models built from them.

The docstrings of fields are the texts of config/reference.md.
"""

import logging
import math
import random
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from agent.models.anthropic_wire import (
    Effort,
    ThinkingMode,
    find_known_capabilities,
    find_unsupported_setting,
)
from agent.models.base import Model
from agent.models.failover import FailoverModel
from agent.models.http import DEFAULT_TIMEOUT_S, format_host, join_endpoint
from agent.models.local_server import CONTEXT_TOKENS
from agent.view import ANSWER_SHARE
from gateway.core.clock import Clock
from gateway.core.fields import ConfigSection, Duration
from gateway.core.proxy import ProxySetting

if TYPE_CHECKING:
    from agent.models.llamacpp import LlamaCppModel
    from agent.models.openai import OpenAIModel

logger = logging.getLogger(__name__)

_VISION_MODELS = re.compile(
    r"gpt-(4o|4\.1|4-turbo|[5-9])|chatgpt-4o|o[1-9](?!-mini|-preview)|o4-mini"
)
"""Names of OpenAI's own models that take images, by their beginning
(platform.openai.com/docs/models)."""


_LEAKING_FAMILIES = re.compile(
    r"qwen|qwq|hermes|mimo|step-?3|llama|[a-z]+[sx]tral",
    re.IGNORECASE,
)
"""Matches names of models that write tool calls as text in forms that `agent.models.leaks` reads,
where their server does not parse them (SGLang, srt/function_call)."""


def _check_url(value: str) -> str:
    join_endpoint(value, "/")  # raises ValueError with the remedy
    return value


def _check_key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value().strip()
    if not (secret.isascii() and secret.isprintable()):
        raise ValueError("an api key is one line of plain ASCII; copy it again")
    return SecretStr(secret)


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


ProviderUrl = Annotated[str, AfterValidator(_check_url), Field(json_schema_extra={"format": "uri"})]
"""http or https; may end in `/v1` or not."""
ProviderKey = Annotated[SecretStr, AfterValidator(_check_key)]
"""Empty or `none`: no key is sent."""


class _ProviderConfig(ConfigSection):
    timeout: Duration = DEFAULT_TIMEOUT_S
    """Seconds of silence, before the first byte or between bytes, after which an answer counts as
    cut. Not 0."""
    first_token: Duration = 60.0
    """Seconds until the first token of an answer, over all tries; then the next of `fallbacks`. 0:
    no limit."""

    @model_validator(mode="after")
    def _check_timeout(self) -> Self:
        if self.timeout <= 0:
            raise ValueError("a timeout of 0 lets no answer through; leave it out for 120 s")
        return self


class AnthropicConfig(_ProviderConfig):
    """Anthropic's Messages API."""

    kind: Literal["anthropic"]
    base_url: ProviderUrl = "https://api.anthropic.com"
    """Any server with the Messages API, with `/v1` or without."""
    api_key: ProviderKey | None = None
    """From console.anthropic.com. Left out or `none`: no key is sent."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""


class _ChatCompletionsConfig(_ProviderConfig):
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""
    identity_in: Literal["system", "user"] = "system"
    """Place of the prompt's blocks. `user`: in front of the first user message, for models that
    follow it better."""


class OpenAIConfig(_ChatCompletionsConfig):
    """OpenAI, or any server with its chat completions (vLLM, Ollama, ...)."""

    kind: Literal["openai"]
    base_url: ProviderUrl = "https://api.openai.com/v1"
    """Any server with chat completions, with `/v1` or without."""
    api_key: ProviderKey | None = None
    """Left out or `none`: no key is sent."""


class LlamaCppConfig(_ChatCompletionsConfig):
    """A llama.cpp server."""

    kind: Literal["llamacpp"]
    base_url: ProviderUrl = "http://127.0.0.1:9931"
    """The root of a llama.cpp server."""
    api_key: ProviderKey | None = None
    """Left out or `none`: no key is sent."""
    first_token: Duration = 300.0
    """As elsewhere. A long prompt on a slow machine takes minutes to read."""


class LocalConfig(_ProviderConfig):
    """The embedded model."""

    kind: Literal["local"]
    first_token: Duration = 300.0
    """As elsewhere. A long prompt on a slow machine takes minutes to read."""


class ReplyConfig(ConfigSection):
    """A `ScriptRule` without tools."""

    match: Annotated[str, AfterValidator(_check_pattern)]
    """Regular expression, searched in the input."""
    reply: str
    """The answer then; {text} stands for the input."""


class ScriptedConfig(_ProviderConfig):
    """A model for tests, demos and dry runs, with scripted answers."""

    kind: Literal["scripted"]
    replies: tuple[ReplyConfig, ...] = Field(default=(), strict=False)
    """The first reply whose `match` is found in the input is used."""
    delay: Duration = 0.0
    """Seconds before each answer."""
    busy: int = Field(default=0, ge=0)
    """Number of first requests that are refused as if the server were overloaded."""


_LLAMACPP_PORTS = frozenset({8080, 9931})
"""Default ports of llama.cpp's server, before and since 2026 (tools/server/README.md)."""


def _add_kind(value: object) -> object:
    """Add the kind that the address suggests, if none is given."""
    if (
        not isinstance(value, dict)
        or "kind" in value
        or not isinstance(url := value.get("base_url"), str)
    ):
        return value
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None  # validation by the chosen section reports the bad address
    kind = (
        "anthropic"
        if host == "api.anthropic.com"
        else "llamacpp"
        if port in _LLAMACPP_PORTS
        else "openai"
    )
    return {**value, "kind": kind}


ProviderConfig = Annotated[
    AnthropicConfig | OpenAIConfig | LlamaCppConfig | LocalConfig | ScriptedConfig,
    Field(discriminator="kind"),
    BeforeValidator(_add_kind),
]
"""Without a `kind`: `anthropic` at api.anthropic.com, `llamacpp` at port 9931 or 8080, else
`openai`."""


class ModelConfig(ConfigSection):
    """One model at a provider, and its fallbacks."""

    provider: str
    """A key of `llm.providers`."""
    name: str | None = None
    """The provider's name of the model. Required for anthropic and openai; others have one model
    only."""
    context_tokens: int | None = Field(default=None, gt=0)
    """None: 200000 for anthropic, 8192 for local, 128000 for others."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Limit of one answer, thinking included. None: 160 for local; 16384 for Claude models that
    think unless told not to, 8192 for others, but at most a quarter of `context_tokens`."""
    sees: bool | None = None
    """True: the model takes images. None: yes for anthropic and for those of OpenAI's own that do,
    no for others."""
    leaks: bool | None = None
    """True: the model may write tool calls as text. An answer that is nothing but a call is then
    executed, as text from outside (tools for admins need an approval); otherwise the model is asked
    again. None: yes for llamacpp, local, and openai at other servers than OpenAI's own if the name
    is of a family that does so (Qwen, Hermes, Llama, Mistral, ...); no for others."""
    effort: Effort | None = None
    """Effort for an answer; for anthropic only, and not for each of its models. None: the model's
    default."""
    thinking: ThinkingMode = "default"
    """For anthropic only: `off`, or `between_tools` for the least, where the model offers a
    choice."""
    fallbacks: tuple[str, ...] = Field(default=(), strict=False)
    """Keys of `llm.models`, used in this order when this model cannot answer; each is followed by
    its own fallbacks."""


def check_models(
    models: Mapping[str, ModelConfig], providers: Mapping[str, ProviderConfig]
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
        elif model.name is None and provider.kind in {"anthropic", "openai"}:
            message = (
                f"needs a name: the model as {model.provider} calls it, e.g. name: "
                "claude-sonnet-5-5"
            )
            found.append((("models", key, "name"), message))
        elif output_tokens_of(model, provider) >= context_tokens_of(model, provider):
            message = "must be smaller than context_tokens, which holds input and output together"
            found.append((("models", key, "max_output_tokens"), message))
        if refused := provider and _find_refused_setting(model, provider):
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


def _find_refused_setting(model: ModelConfig, provider: ProviderConfig) -> tuple[str, str] | None:
    """Return a thinking setting that the model would refuse: key, and message with the remedy.
    None: there is none.
    """
    if provider.kind == "anthropic":
        return find_unsupported_setting(model.name or "", model.effort, model.thinking)
    if model.effort is not None or model.thinking != "default":
        key = "thinking" if model.effort is None else "effort"
        return (
            key,
            (
                f"is for models of kind anthropic, and {model.provider} is {provider.kind}; leave "
                "it out"
            ),
        )
    return None


def context_tokens_of(model: ModelConfig, provider: ProviderConfig) -> int:
    """Return the size of the window."""
    return model.context_tokens or {"local": CONTEXT_TOKENS, "anthropic": 200_000}.get(
        provider.kind, 128_000
    )


def output_tokens_of(model: ModelConfig, provider: ProviderConfig) -> int:
    """Return the output limit of one answer."""
    if model.max_output_tokens or provider.kind == "local":
        return model.max_output_tokens or 160
    known = find_known_capabilities(model.name or "") if provider.kind == "anthropic" else None
    most = 16_384 if known is not None and known.thinks_by_default else 8_192
    return min(most, max(1, int(context_tokens_of(model, provider) * ANSWER_SHARE)))


def takes_images(model: ModelConfig, provider: ProviderConfig) -> bool:
    """Return True if requests may hold images."""
    if model.sees is not None:
        return model.sees
    if isinstance(provider, OpenAIConfig):
        return (
            "api.openai.com" in provider.base_url
            and _VISION_MODELS.match(model.name or "") is not None
        )
    return provider.kind == "anthropic"


def may_leak_calls(model: ModelConfig, provider: ProviderConfig) -> bool:
    """Return True if the model may write tool calls as text."""
    if model.leaks is not None:
        return model.leaks
    if isinstance(provider, OpenAIConfig):  # a parser may be missing there, as for Qwen behind vLLM
        from agent.models.openai import find_dialect  # noqa: PLC0415 - only the configured clients are loaded

        name = model.name or ""
        is_openai = find_dialect(format_host(provider.base_url), name).is_openai
        return not is_openai and _LEAKING_FAMILIES.search(name) is not None
    return provider.kind in ("llamacpp", "local")


def takes_breakpoints(model: ModelConfig, provider: ProviderConfig) -> bool:
    """Return True if the provider caches at `ModelRequest.breakpoints`, and nowhere else."""
    if isinstance(provider, OpenAIConfig):
        from agent.models.openai import find_dialect  # noqa: PLC0415 - only the configured clients are loaded

        return find_dialect(format_host(provider.base_url), model.name or "").takes_breakpoints
    return provider.kind == "anthropic"


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


ModelWrapper = Callable[[Model, ModelConfig, ProviderConfig], Model]
"""Wraps a single model, given its entry and its provider's."""


def build_model(
    name: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderConfig],
    clock: Clock,
    *,
    made: dict[str, Model] | None = None,
    around: ModelWrapper = lambda model, _config, _provider: model,
) -> FailoverModel:
    """Build the model configured as `name` with its fallbacks. No IO.

    Raises ValueError with the remedy for what `check_models` finds. `made` holds single models by
    name and is added to: pass the same one to all calls, so that an embedded model is loaded once.
    `around` may wrap each single model.
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
            made[key] = around(_build_single(key, config, provider, clock), config, provider)
    jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
    return FailoverModel(
        [made[key] for key in names],
        clock=clock,
        random=jitter.random,
        first_token_s=[providers[models[key].provider].first_token or math.inf for key in names],
    )


def _build_single(key: str, config: ModelConfig, provider: ProviderConfig, clock: Clock) -> Model:
    window, output = context_tokens_of(config, provider), output_tokens_of(config, provider)
    if isinstance(provider, LocalConfig):
        from agent.models.local import LocalModel  # noqa: PLC0415 - only the configured clients are loaded

        window = min(window, CONTEXT_TOKENS)
        return LocalModel(
            name=key, context_tokens=window, max_output_tokens=output, timeout_s=provider.timeout
        )
    if isinstance(provider, ScriptedConfig):
        from agent.models.scripted import Script, ScriptedModel, ScriptRule, busy_errors  # noqa: PLC0415 - only the configured clients are loaded

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
            may_leak_calls=may_leak_calls(config, provider),
        )
    return _build_remote(key, config, provider)


def _build_remote(
    key: str, config: ModelConfig, provider: AnthropicConfig | LlamaCppConfig | OpenAIConfig
) -> Model:
    window, output = context_tokens_of(config, provider), output_tokens_of(config, provider)
    seeing = takes_images(config, provider)
    secret = provider.api_key.get_secret_value() if provider.api_key else ""
    if isinstance(provider, AnthropicConfig):
        from agent.models.anthropic import AnthropicModel  # noqa: PLC0415 - only the configured clients are loaded

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
            may_leak_calls=may_leak_calls(config, provider),
            proxy=provider.proxy,
        )
    return _chat_client(provider)(
        name=key,
        model=config.name or "llama.cpp",
        base_url=provider.base_url,
        api_key=secret,
        context_tokens=window,
        max_output_tokens=output,
        timeout_s=provider.timeout,
        takes_images=seeing,
        identity_in=provider.identity_in,
        may_leak_calls=may_leak_calls(config, provider),
        proxy=provider.proxy,
    )


def _chat_client(provider: LlamaCppConfig | OpenAIConfig) -> "type[LlamaCppModel | OpenAIModel]":
    if isinstance(provider, LlamaCppConfig):
        from agent.models.llamacpp import LlamaCppModel  # noqa: PLC0415 - only the configured clients are loaded

        return LlamaCppModel
    from agent.models.openai import OpenAIModel  # noqa: PLC0415 - only the configured clients are loaded

    return OpenAIModel


def _log_joined_blocks(
    key: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderConfig],
    *,
    known: Mapping[str, Model],
) -> None:
    """Log once for each provider that it takes no separate blocks, if that is so."""
    name = models[key].provider
    already_logged = any(other in models and models[other].provider == name for other in known)
    if already_logged or isinstance(providers[name], AnthropicConfig | ScriptedConfig):
        return
    logger.info("%s takes no separate prompt blocks: they are sent joined, in their order", name)


def fallback_chain(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """Return the model and all its fallbacks, each once, nearest first. The fallbacks must have no
    cycle.
    """
    names = [name]
    for fallback in models[name].fallbacks:
        names.extend(key for key in fallback_chain(fallback, models) if key not in names)
    return names
