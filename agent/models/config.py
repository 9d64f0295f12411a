"""Sections `llm.providers` and `llm.models`, and the models built from them.

The docstrings of fields are the texts of config/reference.md.
"""

import logging
import math
import random
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from agent.cache.prompt_cache import PromptCache
from agent.models.anthropic_wire import (
    Effort,
    ThinkingMode,
    find_known_capabilities,
    find_unsupported_setting,
)
from agent.models.base import Model
from agent.models.client import Candidate, ModelClient
from agent.models.gemini import GeminiConfig, GeminiModel
from agent.models.http import format_host
from agent.models.local_server import CONTEXT_TOKENS
from agent.models.settings import ProviderKey, ProviderSettings, ProviderUrl
from agent.turn_context import ANSWER_SHARE
from gateway.core.clock import Clock
from gateway.core.fields import ConfigSection, Duration
from gateway.core.proxy import ProxySetting

if TYPE_CHECKING:
    from agent.models.llamacpp import LlamaCppModel
    from agent.models.minimax import MiniMaxModel
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


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


class AnthropicConfig(ProviderSettings):
    """Anthropic's Messages API."""

    kind: Literal["anthropic"]
    base_url: ProviderUrl = "https://api.anthropic.com"
    """Any server with the Messages API, with `/v1` or without."""
    api_key: ProviderKey | None = None
    """From console.anthropic.com. Left out or `none`: no key is sent."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""


class _ChatCompletionsConfig(ProviderSettings):
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


class MiniMaxConfig(_ChatCompletionsConfig):
    """MiniMax's own API."""

    kind: Literal["minimax"]
    base_url: ProviderUrl = "https://api.minimax.io/v1"
    """In China https://api.minimaxi.com/v1."""
    api_key: ProviderKey | None = None
    """From platform.minimax.io."""


def _check_service_account(value: SecretStr) -> SecretStr:
    from agent.models.vertex import parse_service_account  # noqa: PLC0415 - only the configured clients are loaded

    parse_service_account(value.get_secret_value())
    return value


class VertexConfig(ProviderSettings):
    """Claude in Google's Vertex AI."""

    kind: Literal["vertex"]
    project: str = Field(pattern=r"^[a-z0-9][a-z0-9.:-]*$")
    """Id of the Google Cloud project that is billed."""
    region: str = Field(default="global", pattern=r"^[a-z0-9-]+$")
    """`global`, several regions (`us`, `eu`), or one such as `europe-west1`; all but `global` cost
    more."""
    credentials: Annotated[SecretStr, AfterValidator(_check_service_account)] | None = None
    """JSON key of a service account: `${file:PATH}`. null: the account of the machine, which runs
    in Google Cloud."""
    metadata_url: ProviderUrl = "http://metadata.google.internal"
    """Address that gives the tokens of the machine's account."""
    base_url: ProviderUrl = ""
    """Left out: Google's endpoint for the region."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""

    @model_validator(mode="before")
    @classmethod
    def _add_base_url(cls, value: object) -> object:
        from agent.models.vertex import find_base_url  # noqa: PLC0415 - only the configured clients are loaded

        if not isinstance(value, dict) or value.get("base_url"):
            return value
        return {**value, "base_url": find_base_url(str(value.get("region", "global")))}


class LlamaCppConfig(_ChatCompletionsConfig):
    """A llama.cpp server."""

    kind: Literal["llamacpp"]
    base_url: ProviderUrl = "http://127.0.0.1:9931"
    """The root of a llama.cpp server."""
    api_key: ProviderKey | None = None
    """Left out or `none`: no key is sent."""
    first_token: Duration = 300.0
    """As elsewhere. A long prompt on a slow machine takes minutes to read."""


class LocalConfig(ProviderSettings):
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


class ScriptedConfig(ProviderSettings):
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
_MINIMAX_HOSTS = frozenset({"api.minimax.io", "api.minimaxi.com"})
_CLAUDE_KINDS = frozenset({"anthropic", "vertex"})
"""Kinds whose models are Claude."""


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
        else "minimax"
        if host in _MINIMAX_HOSTS
        else "gemini"
        if host == "generativelanguage.googleapis.com" and "/openai" not in url
        else "llamacpp"
        if port in _LLAMACPP_PORTS
        else "openai"
    )
    return {**value, "kind": kind}


ProviderConfig = Annotated[
    AnthropicConfig
    | VertexConfig
    | OpenAIConfig
    | GeminiConfig
    | MiniMaxConfig
    | LlamaCppConfig
    | LocalConfig
    | ScriptedConfig,
    Field(discriminator="kind"),
    BeforeValidator(_add_kind),
]
"""Without a `kind`: `anthropic` at api.anthropic.com, `minimax` at api.minimax.io, `gemini` at
generativelanguage.googleapis.com (without `/openai`), `llamacpp` at port 9931 or 8080, else
`openai`."""


class ModelConfig(ConfigSection):
    """One model at a provider, and its fallbacks."""

    provider: str
    """A key of `llm.providers`."""
    name: str | None = None
    """The provider's name of the model. Required where a provider has several: for all kinds but
    llamacpp, local and scripted."""
    context_tokens: int | None = Field(default=None, gt=0)
    """None: 200000 for anthropic, vertex and gemini, 204800 for minimax, 8192 for local, 128000 for
    others."""
    max_output_tokens: int | None = Field(default=None, gt=0)
    """Limit of one answer, thinking included. None: 160 for local; 16384 for gemini, minimax and
    Claude models that think unless told not to, 8192 for others, but at most a quarter of
    `context_tokens`."""
    sees: bool | None = None
    """True: the model takes images. None: yes for anthropic, vertex and gemini, and for those of
    OpenAI's and MiniMax's own that do, no for others."""
    leaks: bool | None = None
    """True: the model may write tool calls as text. An answer that is nothing but a call is then
    executed, as text from outside (tools for admins need an approval); otherwise the model is asked
    again. None: yes for llamacpp, local, and openai at other servers than OpenAI's own if the name
    is of a family that does so (Qwen, Hermes, Llama, Mistral, ...); no for others."""
    effort: Effort | None = None
    """Effort for an answer; for anthropic and vertex only, and not for each of their models. None:
    the model's default."""
    thinking: ThinkingMode = "default"
    """For anthropic and vertex only: `off`, or `between_tools` for the least, where the model
    offers a choice."""
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
        elif model.name is None and provider.kind in {
            *_CLAUDE_KINDS,
            "openai",
            "gemini",
            "minimax",
        }:
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
    if provider.kind in _CLAUDE_KINDS:
        return find_unsupported_setting(model.name or "", model.effort, model.thinking)
    if model.effort is not None or model.thinking != "default":
        key = "thinking" if model.effort is None else "effort"
        return (
            key,
            (
                f"is for models of kind anthropic or vertex, and {model.provider} is "
                f"{provider.kind}; leave it out"
            ),
        )
    return None


def context_tokens_of(model: ModelConfig, provider: ProviderConfig) -> int:
    """Return the size of the window."""
    windows = {"local": CONTEXT_TOKENS, "minimax": 204_800}  # MiniMax-M3 has a larger one
    windows |= dict.fromkeys((*_CLAUDE_KINDS, "gemini"), 200_000)
    return model.context_tokens or windows.get(provider.kind, 128_000)


def output_tokens_of(model: ModelConfig, provider: ProviderConfig) -> int:
    """Return the output limit of one answer."""
    if model.max_output_tokens or provider.kind == "local":
        return model.max_output_tokens or 160
    known = find_known_capabilities(model.name or "") if provider.kind in _CLAUDE_KINDS else None
    thinks = provider.kind in {"gemini", "minimax"} or (
        known is not None and known.thinks_by_default
    )
    most = 16_384 if thinks else 8_192
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
    if provider.kind == "minimax":
        return re.match(r"minimax-m([3-9]|\d\d)", model.name or "", re.IGNORECASE) is not None
    return provider.kind in {*_CLAUDE_KINDS, "gemini"}


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
    return provider.kind in _CLAUDE_KINDS


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


CacheFactory = Callable[[Model, ModelConfig, ProviderConfig], PromptCache | None]
"""Makes the prompt cache of a single model, given its entry and its provider's. None: it has
none."""


def build_model(
    name: str,
    models: Mapping[str, ModelConfig],
    providers: Mapping[str, ProviderConfig],
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
            _log_joined_blocks(key, models, providers, known=made)
            model = _build_single(key, config, provider, clock)
            made[key] = Candidate(
                model, cache(model, config, provider), provider.first_token or math.inf
            )
    jitter = random.Random()  # noqa: S311 - spreads retries, guards nothing
    return ModelClient([made[key] for key in names], clock=clock, random=jitter.random)


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
    if isinstance(provider, VertexConfig):
        from agent.models.vertex import VertexModel, parse_service_account  # noqa: PLC0415 - only the configured clients are loaded

        credentials = provider.credentials and provider.credentials.get_secret_value()
        return VertexModel(
            name=key,
            model=config.name or "",
            project=provider.project,
            clock=clock,
            region=provider.region,
            account=parse_service_account(credentials) if credentials else None,
            base_url=provider.base_url,
            metadata_url=provider.metadata_url,
            context_tokens=window,
            max_output_tokens=output,
            timeout_s=provider.timeout,
            takes_images=takes_images(config, provider),
            effort=config.effort,
            thinking=config.thinking,
            may_leak_calls=may_leak_calls(config, provider),
            proxy=provider.proxy,
        )
    return _build_remote(key, config, provider)


def _build_remote(
    key: str,
    config: ModelConfig,
    provider: AnthropicConfig | GeminiConfig | LlamaCppConfig | MiniMaxConfig | OpenAIConfig,
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
    if isinstance(provider, GeminiConfig):
        return GeminiModel(
            name=key,
            model=config.name or "",
            api_key=secret,
            base_url=provider.base_url,
            context_tokens=window,
            max_output_tokens=output,
            timeout_s=provider.timeout,
            takes_images=seeing,
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


def _chat_client(
    provider: LlamaCppConfig | MiniMaxConfig | OpenAIConfig,
) -> "type[LlamaCppModel | MiniMaxModel | OpenAIModel]":
    if isinstance(provider, MiniMaxConfig):
        from agent.models.minimax import MiniMaxModel  # noqa: PLC0415 - only the configured clients are loaded

        return MiniMaxModel
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
    known: Mapping[str, Candidate],
) -> None:
    """Log once for each provider that it takes no separate blocks, or no cache marks, if that is
    so.
    """
    name = models[key].provider
    already_logged = any(other in models and models[other].provider == name for other in known)
    kind = providers[name].kind
    if already_logged or kind in _CLAUDE_KINDS or kind == "scripted":
        return
    caches = kind in {"gemini", "minimax"}
    caching = " and without cache marks: it caches equal beginnings by itself" * caches
    logger.info(
        "%s takes no separate prompt blocks: they are sent joined, in their order%s", name, caching
    )


def fallback_chain(name: str, models: Mapping[str, ModelConfig]) -> list[str]:
    """Return the model and all its fallbacks, each once, nearest first. The fallbacks must have no
    cycle.
    """
    names = [name]
    for fallback in models[name].fallbacks:
        names.extend(key for key in fallback_chain(fallback, models) if key not in names)
    return names
