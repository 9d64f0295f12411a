"""What a provider of models declares: its settings, and what the gateway asks of them.

The docstrings of fields are the texts of docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, NamedTuple, Self, TypedDict
from urllib.parse import SplitResult

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.models.base import Effort, ThinkingMode
from agent.models.http import DEFAULT_TIMEOUT_S, format_host, join_endpoint
from agent.turn_context import ANSWER_SHARE
from gateway.core.fields import ConfigSection, Duration
from gateway.core.proxy import ProxySetting

if TYPE_CHECKING:
    from agent.cache.prices import Price, PriceTable
    from agent.models.base import Model
    from agent.tokens.endpoint import EndpointCounter
    from gateway.core.clock import Clock


def _check_url(value: str) -> str:
    join_endpoint(value, "/")  # raises ValueError with the remedy
    return value


def _check_key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value().strip()
    if not (secret.isascii() and secret.isprintable()):
        raise ValueError("an api key is one line of plain ASCII; copy it again")
    return SecretStr(secret)


ProviderUrl = Annotated[str, AfterValidator(_check_url), Field(json_schema_extra={"format": "uri"})]
"""http or https; may end in `/v1` or not."""
ProviderKey = Annotated[SecretStr, AfterValidator(_check_key)]
"""Empty or `none`: no key is sent."""


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


class ModelOptions(TypedDict):
    """Arguments that the client of any model takes by name."""

    name: str
    """A key of `llm.models`."""
    model: str
    """The provider's name of the model. Empty: it has one only."""
    context_tokens: int
    max_output_tokens: int
    timeout_s: float
    takes_images: bool
    may_leak_calls: bool


class Connection(TypedDict):
    """Arguments that the client of a server with a key takes by name."""

    base_url: str
    api_key: str
    """Empty: none is sent."""
    proxy: SecretStr | None


class SetupChoice(NamedTuple):
    """A choice that `reverie setup` offers."""

    name: str
    """What the person writes."""
    about: str
    """What it is and needs, in a few words."""
    address: str = ""
    """Default of the address, which is asked for. Empty: the provider's own."""


Caching = Literal["marks", "automatic", "none"]
"""marks: only at `ModelRequest.breakpoints`, and the blocks are sent apart. automatic: equal
beginnings, by itself. none: nothing, as far as is known."""


class ModelTraits(NamedTuple):
    """What is known of a model before it is asked; the configuration may say otherwise."""

    context_tokens: int = 128_000
    """Window: input and output together."""
    output_tokens: int = 8_192
    """Limit of one answer, thinking included, in a large window."""
    caching: Caching = "none"
    takes_images: bool = False
    may_leak_calls: bool = False
    """True: it may write tool calls as text."""


class ProviderSettings(ConfigSection):
    """Settings of a provider, as far as all have them, and what the gateway asks of them.

    Those of a provider inherit it, with `kind: Literal[NAME]`, and have `make`.
    """

    usual: ClassVar[ModelTraits] = ModelTraits()
    """Traits of its models."""
    names_models: ClassVar[bool] = True
    """False: it has one model, whose name need not be written."""
    runs_here: ClassVar[bool] = False
    """True: it computes on a machine of the operator's, which answers few requests at a time."""
    is_metered: ClassVar[bool] = True
    """False: it computes nothing (a script), so that neither costs nor caches are accounted."""
    keeps_warm: ClassVar[bool] = False
    """True: reading a cached prompt again, with no output, makes it last longer and is worth it."""
    untested: ClassVar[str] = ""
    """Why `reverie doctor` does not ask its models. Empty: it does."""
    choices: ClassVar[tuple[SetupChoice, ...]] = ()
    """How `reverie setup` offers it. Empty: it does not."""
    setup_model: ClassVar[str] = ""
    """The model that setup suggests. Empty: the first one that the provider lists."""
    demo: ClassVar[tuple[str, str]] = ("", "")
    """Prefix of the environment variables `*_API_KEY` and `*_BASE_URL`, and the model that
    `reverie demo` asks if there is such a key. Empty: it asks none."""

    kind: str
    """Name of the kind of provider."""
    timeout: Duration = DEFAULT_TIMEOUT_S
    """Seconds of silence, before the first byte or between bytes, after which an answer counts as
    cut. Not 0. Left out: 120, or `first_token` if that is longer."""
    first_token: Duration = 60.0
    """Seconds until the first token of an answer, over all tries; then the next of `fallbacks`. 0:
    no limit."""

    @model_validator(mode="after")
    def _check_timeout(self) -> Self:
        if self.timeout <= 0:
            raise ValueError("a timeout of 0 lets no answer through; leave it out for 120 s")
        return self

    def __hash__(self) -> int:
        """Leave out what may not be hashable: fields of a provider may be lists."""
        return hash((type(self), self.kind))

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        """Return whether an address without a `kind` is meant to be of this one."""
        del url
        return False

    @property
    def family(self) -> str:
        """As `Model.family` of its models."""
        return self.kind

    @property
    def secret(self) -> str:
        """The key that it sends, to keep it out of messages. Empty: it sends none."""
        return ""

    @property
    def is_unknown_server(self) -> bool:
        """True: the software of the server is not known, so it may not parse calls of tools."""
        return False

    @property
    def is_free(self) -> bool:
        """True: a model that the price table has no price of costs nothing."""
        return False

    def find_price(self, prices: PriceTable, config: ModelConfig) -> Price:
        """Return the price of a model of it. `known` is False where it is the `default`."""
        price = prices.find(config.name or self.kind, provider=self.kind)
        if not self.is_free or (price.known and price.is_priced):
            return price
        return price.model_copy(update={"input_usd": 0.0, "output_usd": 0.0, "known": True})

    def traits(self, model: str) -> ModelTraits:
        """Return what is known of a model, by the provider's name of it: empty where there is one
        only.
        """
        del model
        return self.usual

    def find_refused_setting(self, config: ModelConfig) -> tuple[str, str] | None:
        """Return a setting that the model would refuse: key, and message with the remedy. None:
        there is none.
        """
        if config.effort is None and config.thinking == "default":
            return None
        key = "thinking" if config.effort is None else "effort"
        message = (
            f"is for models of kind anthropic or vertex, and {config.provider} is {self.kind}; "
            "leave it out"
        )
        return key, message

    def options(self, name: str, config: ModelConfig) -> ModelOptions:
        """Return what the configuration and the declarations say of a model. `name`: its key in
        `llm.models`.
        """
        model = config.name or ""
        known = self.traits(model)
        window = config.context_tokens or known.context_tokens
        output = min(known.output_tokens, max(1, int(window * ANSWER_SHARE)))
        leaks, sees = config.leaks, config.sees
        silent_s = 0.0 if "timeout" in self.model_fields_set else self.first_token
        return ModelOptions(
            name=name,
            model=model,
            context_tokens=window,
            max_output_tokens=config.max_output_tokens or output,
            timeout_s=max(self.timeout, silent_s),
            takes_images=known.takes_images if sees is None else sees,
            may_leak_calls=known.may_leak_calls if leaks is None else leaks,
        )

    def make(self, options: ModelOptions, *, config: ModelConfig, clock: Clock) -> Model:
        """Return the client of a model, without IO. Heavy libraries are imported there, and not
        before. `config`: its section. What is not needed is `**_: object`. Raises ValueError or
        ImportError, which the operator is told at the model's section.
        """
        raise NotImplementedError

    def make_counter(self, clock: Clock, capacity: int) -> EndpointCounter | None:
        """Return what has the provider count the tokens of requests, and remembers `capacity`
        counts. None: it cannot count.
        """
        del clock, capacity
        return None


class RemoteSettings(ProviderSettings):
    """Settings of a provider that is a server."""

    account_site: ClassVar[str] = ""
    """Where people look after their account. Empty: it follows from `base_url`."""

    base_url: ProviderUrl
    """Address of the server, with `/v1` or without."""
    proxy: ProxySetting | None = None
    """Way to it: `socks5://host:1080`, `http://host:3128`, or `none`. null: as the environment
    says."""

    @property
    def has_credential(self) -> bool:
        """Whether requests carry a credential."""
        return bool(self.secret)

    @property
    def host(self) -> str:
        """Name of the host, and the port if one is written."""
        return format_host(self.base_url)

    def list_request(self) -> tuple[str, Mapping[str, str]] | None:
        """Return address and headers of the request for a list of its models. None: it has no such
        list.
        """
        return None

    def listed_models(self, answer: object) -> Sequence[object]:
        """Return the models in the answer to `list_request`, which is untrusted: objects with `id`,
        and with the window as `context_length` where it is told. Others are left out by the caller.
        """
        rows = answer.get("data") if isinstance(answer, dict) else None
        return rows if isinstance(rows, list) else ()


_HOSTS_BY_KEY: Final = {
    "sk-ant-": "api.anthropic.com",
    "sk-proj-": "api.openai.com",
    "AIza": "generativelanguage.googleapis.com",
    "sk-or-": "openrouter.ai",
    "gsk_": "api.groq.com",
    "xai-": "api.x.ai",
}
"""Hosts that want a key, by how their keys begin."""
_NO_KEY: Final = re.compile(
    r".*(?:\.\.\.|x{6}|your[-_]|[ \"']).*|<.*>|change[-_]?me", re.IGNORECASE
)
"""Matches the place for a key, and one with something beside it."""


class KeyedSettings(RemoteSettings):
    """Settings of a server that may want a key, as a bearer token."""

    api_key: ProviderKey | None = None
    """Left out or `none`: no key is sent."""

    def find_wrong_key(self) -> str:
        """Return what is wrong with the key, with the remedy. Empty: nothing that can be seen."""
        known = self.host in _HOSTS_BY_KEY.values()
        meant = [host for begin, host in _HOSTS_BY_KEY.items() if self.secret.startswith(begin)]
        if known and not self.secret:
            return f"{self.host} wants a key; write the one that it gave you"
        if self.base_url.startswith("https:") and _NO_KEY.fullmatch(self.secret):
            return f"is not a key; write the one that {self.host} gave you, and nothing else"
        if known and meant and self.host not in meant:
            return f"is a key for {meant[0]}, not for {self.host}; correct it, or kind and base_url"
        return ""

    @property
    def secret(self) -> str:
        written = self.api_key.get_secret_value() if self.api_key else ""
        return "" if written.lower() == "none" else written

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of a request."""
        return {"authorization": f"Bearer {self.secret}"} if self.secret else {}

    @property
    def connection(self) -> Connection:
        """What a client needs to reach it."""
        return Connection(base_url=self.base_url, api_key=self.secret, proxy=self.proxy)

    def list_request(self) -> tuple[str, Mapping[str, str]] | None:
        return join_endpoint(self.base_url, "/models"), self.headers
