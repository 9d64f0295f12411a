"""The model providers that come with Reverie. A client is imported where one is made.

The docstrings of fields are the texts of docs/configuration.md.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.models.anthropic_wire import (
    build_counted_body,
    find_known_capabilities,
    find_unsupported_setting,
)
from agent.models.base import Model
from agent.models.http import (
    GEMINI_VERSION,
    anthropic_headers,
    gemini_headers,
    join_endpoint,
)
from agent.models.local_server import CONTEXT_TOKENS
from agent.models.settings import (
    KeyedSettings,
    ModelConfig,
    ModelOptions,
    ModelTraits,
    ProviderKey,
    ProviderSettings,
    ProviderUrl,
    RemoteSettings,
    SetupChoice,
)
from agent.tokens.endpoint import EndpointCounter
from channels.text import get_objects, get_str
from gateway.core.addresses import is_private_host
from gateway.core.clock import Clock
from gateway.core.fields import ConfigSection, Duration
from gateway.plugin import Plugin

_THINKING_OUTPUT_TOKENS = 16_384
"""Output limit of models that think unless told not to: their thinking counts."""


class _ClaudeSettings(ProviderSettings):
    def traits(self, model: str) -> ModelTraits:
        known = find_known_capabilities(model)
        thinks = known is not None and known.thinks_by_default
        output = _THINKING_OUTPUT_TOKENS if thinks else 8_192
        return ModelTraits(200_000, output, "marks", takes_images=True)

    def find_refused_setting(self, config: ModelConfig) -> tuple[str, str] | None:
        return find_unsupported_setting(config.name or "", config.effort, config.thinking)


class AnthropicConfig(_ClaudeSettings, KeyedSettings):
    """Anthropic's Messages API."""

    keeps_warm: ClassVar = True
    choices: ClassVar = (
        SetupChoice("anthropic", "Claude; needs a key from console.anthropic.com"),
    )
    setup_model: ClassVar = "claude-sonnet-5-5"
    demo: ClassVar = ("ANTHROPIC", "claude-haiku-5-5")

    kind: Literal["anthropic"]
    base_url: ProviderUrl = "https://api.anthropic.com"
    """Any server with the Messages API, with `/v1` or without."""
    api_key: ProviderKey | None = None
    """From console.anthropic.com. Left out or `none`: no key is sent."""

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        return url.hostname == "api.anthropic.com"

    @property
    def headers(self) -> Mapping[str, str]:
        return anthropic_headers(self.secret)

    def list_request(self) -> tuple[str, Mapping[str, str]]:
        return f"{join_endpoint(self.base_url, '/models')}?limit=1000", self.headers

    def make(self, options: ModelOptions, *, config: ModelConfig, **_: object) -> Model:
        from agent.models.anthropic import AnthropicModel  # noqa: PLC0415 - only what is configured is loaded

        return AnthropicModel(
            **options, **self.connection, effort=config.effort, thinking=config.thinking
        )

    def make_counter(self, clock: Clock, capacity: int) -> EndpointCounter:
        return EndpointCounter(
            clock=clock, write=build_counted_body, capacity=capacity, **self.connection
        )


def _check_service_account(value: SecretStr) -> SecretStr:
    from agent.models.vertex import parse_service_account  # noqa: PLC0415 - only what is configured is loaded

    parse_service_account(value.get_secret_value())
    return value


class VertexConfig(_ClaudeSettings, RemoteSettings):
    """Claude in Google's Vertex AI."""

    account_site: ClassVar = "console.cloud.google.com"

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

    @model_validator(mode="before")
    @classmethod
    def _add_base_url(cls, value: object) -> object:
        from agent.models.vertex import find_base_url  # noqa: PLC0415 - only what is configured is loaded

        if not isinstance(value, dict) or value.get("base_url"):
            return value
        return {**value, "base_url": find_base_url(str(value.get("region", "global")))}

    @property
    def family(self) -> str:
        return "anthropic"

    @property
    def has_credential(self) -> bool:
        return True  # a token, which only the client knows

    def make(self, options: ModelOptions, *, config: ModelConfig, clock: Clock) -> Model:
        from agent.models.vertex import VertexModel, parse_service_account  # noqa: PLC0415 - only what is configured is loaded

        credentials = self.credentials and self.credentials.get_secret_value()
        return VertexModel(
            **options,
            project=self.project,
            clock=clock,
            region=self.region,
            account=parse_service_account(credentials) if credentials else None,
            base_url=self.base_url,
            metadata_url=self.metadata_url,
            effort=config.effort,
            thinking=config.thinking,
            proxy=self.proxy,
        )


class _ChatCompletionsConfig(KeyedSettings):
    identity_in: Literal["system", "user"] = "system"
    """Place of the prompt's blocks. `user`: in front of the first user message, for models that
    follow it better."""


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


class OpenAIConfig(_ChatCompletionsConfig):
    """OpenAI, or any server with its chat completions (vLLM, Ollama, ...)."""

    choices: ClassVar = (
        SetupChoice("openai", "needs a key from platform.openai.com"),
        SetupChoice(
            "compatible",
            "any server with OpenAI's API: vLLM, Ollama, OpenRouter",
            "http://127.0.0.1:8000/v1",
        ),
    )
    demo: ClassVar = ("OPENAI", "gpt-6-luna")

    kind: Literal["openai"]
    base_url: ProviderUrl = "https://api.openai.com/v1"
    """Any server with chat completions, with `/v1` or without."""
    first_token: Duration = 60.0
    """As elsewhere. Left out where `base_url` begins with `http:`: 300, as for kind llamacpp."""

    @model_validator(mode="before")
    @classmethod
    def _wait_for_slow_machines(cls, value: object) -> object:
        if not isinstance(value, dict) or not str(value.get("base_url")).startswith("http:"):
            return value
        return {"first_token": 300.0, **value}

    @property
    def is_unknown_server(self) -> bool:
        return self.base_url.strip().lower().startswith("http:")

    @property
    def is_free(self) -> bool:
        """True for a server of one's own. One that wants a key may bill, or pass requests on."""
        return not self.secret and is_private_host(urlsplit(self.base_url).hostname or "")

    def traits(self, model: str) -> ModelTraits:
        from agent.models.openai import find_dialect  # noqa: PLC0415 - only what is configured is loaded

        dialect = find_dialect(self.host, model)
        return ModelTraits(
            caching="marks" if dialect.takes_breakpoints else "automatic",
            takes_images="api.openai.com" in self.base_url and bool(_VISION_MODELS.match(model)),
            # A parser may be missing elsewhere, as for Qwen behind vLLM.
            may_leak_calls=not dialect.is_openai and bool(_LEAKING_FAMILIES.search(model)),
        )

    def make(self, options: ModelOptions, **_: object) -> Model:
        from agent.models.openai import OpenAIModel  # noqa: PLC0415 - only what is configured is loaded

        return OpenAIModel(**options, **self.connection, identity_in=self.identity_in)


class GeminiConfig(KeyedSettings):
    """Google's Gemini API."""

    usual: ClassVar = ModelTraits(200_000, _THINKING_OUTPUT_TOKENS, "automatic", takes_images=True)
    choices: ClassVar = (SetupChoice("gemini", "Google's; needs a key from aistudio.google.com"),)
    demo: ClassVar = ("GEMINI", "gemini-3.8-flash")

    kind: Literal["gemini"]
    base_url: ProviderUrl = "https://generativelanguage.googleapis.com"
    """Any server with the Gemini API. `/v1beta` is appended if it has no version."""
    api_key: ProviderKey | None = None
    """From aistudio.google.com. Left out or `none`: no key is sent."""

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        return url.hostname == "generativelanguage.googleapis.com" and "/openai" not in url.path

    @property
    def headers(self) -> Mapping[str, str]:
        return gemini_headers(self.secret)

    def list_request(self) -> tuple[str, Mapping[str, str]]:
        return (
            f"{join_endpoint(self.base_url, '/models', GEMINI_VERSION)}?pageSize=1000",
            self.headers,
        )

    def listed_models(self, answer: object) -> Sequence[object]:
        return [
            {**row, "id": get_str(row, "name").removeprefix("models/")}
            for row in get_objects(answer, "models")
            if "generateContent" in str(row.get("supportedGenerationMethods"))
        ]

    def make(self, options: ModelOptions, **_: object) -> Model:
        from agent.models.gemini import GeminiModel  # noqa: PLC0415 - only what is configured is loaded

        return GeminiModel(**options, **self.connection)


class MiniMaxConfig(_ChatCompletionsConfig):
    """MiniMax's own API."""

    kind: Literal["minimax"]
    base_url: ProviderUrl = "https://api.minimax.io/v1"
    """In China https://api.minimaxi.com/v1."""
    api_key: ProviderKey | None = None
    """From platform.minimax.io."""

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        return url.hostname in {"api.minimax.io", "api.minimaxi.com"}

    def traits(self, model: str) -> ModelTraits:
        sees = re.match(r"minimax-m([3-9]|\d\d)", model, re.IGNORECASE) is not None
        # MiniMax-M3 has a larger window.
        return ModelTraits(204_800, _THINKING_OUTPUT_TOKENS, "automatic", takes_images=sees)

    def make(self, options: ModelOptions, **_: object) -> Model:
        from agent.models.minimax import MiniMaxModel  # noqa: PLC0415 - only what is configured is loaded

        return MiniMaxModel(**options, **self.connection, identity_in=self.identity_in)


class LlamaCppConfig(_ChatCompletionsConfig):
    """A llama.cpp server."""

    usual: ClassVar = ModelTraits(caching="automatic", may_leak_calls=True)
    names_models: ClassVar = False
    runs_here: ClassVar = True
    choices: ClassVar = (SetupChoice("llama.cpp", "a llama.cpp server", "http://127.0.0.1:9931"),)

    kind: Literal["llamacpp"]
    base_url: ProviderUrl = "http://127.0.0.1:9931"
    """The root of a llama.cpp server."""
    first_token: Duration = 300.0
    """As elsewhere. A long prompt on a slow machine takes minutes to read."""

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        # Default ports of its server, before and since 2026 (tools/server/README.md).
        return url.port in {8080, 9931}

    def make(self, options: ModelOptions, **_: object) -> Model:
        from agent.models.llamacpp import LlamaCppModel  # noqa: PLC0415 - only what is configured is loaded

        options["model"] = options["model"] or "llama.cpp"
        return LlamaCppModel(**options, **self.connection, identity_in=self.identity_in)


class LocalConfig(ProviderSettings):
    """The embedded model."""

    usual: ClassVar = ModelTraits(CONTEXT_TOKENS, 160, "automatic", may_leak_calls=True)
    names_models: ClassVar = False
    runs_here: ClassVar = True
    untested: ClassVar = "it is on this machine, and was not tested"
    choices: ClassVar = (
        SetupChoice(
            "embedded",
            "a very small model inside this program, only for a first try: needs nothing",
        ),
    )

    kind: Literal["local"]
    first_token: Duration = 300.0
    """As elsewhere. A long prompt on a slow machine takes minutes to read."""

    def make(self, options: ModelOptions, **_: object) -> Model:
        from agent.models.local import LocalModel  # noqa: PLC0415 - only what is configured is loaded

        return LocalModel(
            name=options["name"],
            context_tokens=min(options["context_tokens"], CONTEXT_TOKENS),
            max_output_tokens=options["max_output_tokens"],
            timeout_s=options["timeout_s"],
        )


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


class ReplyConfig(ConfigSection):
    """A `ScriptRule` without tools."""

    match: Annotated[str, AfterValidator(_check_pattern)]
    """Regular expression, searched in the input."""
    reply: str
    """The answer then; {text} stands for the input."""


class ScriptedConfig(ProviderSettings):
    """A model for tests, demos and dry runs, with scripted answers."""

    names_models: ClassVar = False
    is_metered: ClassVar = False
    untested: ClassVar = "it answers with fixed texts"

    kind: Literal["scripted"]
    replies: tuple[ReplyConfig, ...] = Field(default=(), strict=False)
    """The first reply whose `match` is found in the input is used."""
    delay: Duration = 0.0
    """Seconds before each answer."""
    busy: int = Field(default=0, ge=0)
    """Number of first requests that are refused as if the server were overloaded."""

    def make(self, options: ModelOptions, *, clock: Clock, **_: object) -> Model:
        from agent.models.scripted import Script, ScriptedModel, ScriptRule, busy_errors  # noqa: PLC0415 - only what is configured is loaded

        script = Script(
            rules=tuple(ScriptRule(match=r.match, reply=r.reply) for r in self.replies),
            delay_s=self.delay,
            errors=busy_errors(self.busy),
        )
        return ScriptedModel(
            script,
            clock=clock,
            name=options["name"],
            context_tokens=options["context_tokens"],
            max_output_tokens=options["max_output_tokens"],
            takes_images=options["takes_images"],
            may_leak_calls=options["may_leak_calls"],
        )


def _declare(settings: type[ProviderSettings], summary: str, *, checks: str = "") -> type[Plugin]:
    """Return the plugin of one provider. It has the name of the provider's kind."""
    (kind,) = get_args(settings.model_fields["kind"].annotation)
    declared = {"name": kind, "summary": summary, "checks": checks, "providers": {kind: settings}}
    return type(kind, (Plugin,), declared)


Anthropic = _declare(AnthropicConfig, "asks Claude, at Anthropic")
Vertex = _declare(VertexConfig, "asks Claude, in Google's Vertex AI")
OpenAI = _declare(OpenAIConfig, "asks OpenAI, and servers with its chat completions")
Gemini = _declare(GeminiConfig, "asks Google's Gemini")
MiniMax = _declare(MiniMaxConfig, "asks MiniMax")
LlamaCpp = _declare(LlamaCppConfig, "asks a llama.cpp server")
Local = _declare(LocalConfig, "runs the embedded model", checks="gateway.plugins.providers_check")
Scripted = _declare(ScriptedConfig, "answers with fixed texts")
