"""What is asked about the model. Pure."""

from dataclasses import replace

from pydantic import SecretStr

from agent.models.config import AnthropicConfig, LlamaCppConfig, LocalConfig, ModelConfig, OpenAIConfig, ProviderConfig
from agent.models.http import join_endpoint
from gateway.cli.probes.model import ModelListing, ModelProbeResult
from gateway.cli.setup.dialog import (
    DialogFlow,
    ModelAnswers,
    ModelProbeRequest,
    ProbeRequest,
    ProviderKind,
    SecretQuestion,
    SetupQuestion,
    ask,
    ask_secret,
    request_probe,
    review_findings,
    tell,
)

_PROVIDERS: dict[str, tuple[ProviderKind, str | None]] = {
    "anthropic": ("anthropic", None),
    "openai": ("openai", None),
    "compatible": ("openai", "http://127.0.0.1:8000/v1"),
    "llama.cpp": ("llamacpp", "http://127.0.0.1:9931"),
    "embedded": ("local", None),
}
_MODEL_INTRO = (
    "",
    "The model",
    "  anthropic   Claude; needs a key from console.anthropic.com",
    "  openai      needs a key from platform.openai.com",
    "  compatible  any server that speaks as OpenAI does: vLLM, Ollama, OpenRouter",
    "  llama.cpp   a llama.cpp server",
    "  embedded    a very small model in here, only to try the rest: needs nothing",
)
_DEFAULTS = {"anthropic": "claude-sonnet-5-5"}
_KEY_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
_MAX_LISTED = 12
_KEYLESS = "none"


def ask_model(before: ModelAnswers | None, url: str | None = None) -> DialogFlow[ModelAnswers]:
    """One that answers, or that the person wants all the same. `url`: of the provider, in place of its kind's own."""
    yield from tell(*_MODEL_INTRO)
    kept = before.api_key if before else None
    while True:
        made = yield from _ask_provider(before, url)
        way = "again"
        while way == "again":
            if made.api_key is not None and made.api_key.value is None:
                yield from tell(f"  {made.api_key.reference} is not set here, so the model cannot be asked now.")
                return (yield from _ask_model_name(made, ModelListing()))
            offered = ModelListing()
            if made.kind in {"anthropic", "openai"}:
                yield from tell("  Asking which models there are ...")
                offered = yield from request_probe(ProbeRequest(build_provider_config(made)), ModelListing)
                way = yield from review_findings(offered.findings, skip=False)
                if way != "go on":
                    continue
            made = yield from _ask_model_name(made, offered)
            yield from tell("  Asking it for one word ...")
            seen = yield from request_probe(
                ProbeRequest(ModelProbeRequest(build_model_config(made), build_provider_config(made))), ModelProbeResult
            )
            way = yield from review_findings(seen.findings, skip=False)
            made = _with_context_limit(made, seen)
            if way == "correct" and _is_only_name_wrong(seen):
                way = "again"
        if way == "go on":
            return made
        before = replace(made, api_key=made.api_key if made.api_key is None or not made.api_key.is_new else kept)


def _is_only_name_wrong(seen: ModelProbeResult) -> bool:
    return all(one.code == "model.name" for one in seen.findings if one.level == "bad")


def _with_context_limit(made: ModelAnswers, seen: ModelProbeResult) -> ModelAnswers:
    """With the provider's own word on the window, where it is smaller than what would be taken."""
    small = any(one.code == "model.context" and one.level == "warning" for one in seen.findings)
    return replace(made, context_tokens=seen.context_tokens) if small and seen.context_tokens else made


def _ask_provider(before: ModelAnswers | None, other: str | None) -> DialogFlow[ModelAnswers]:
    known = _provider_choice(before) if before else "anthropic"
    choice = yield from ask(
        SetupQuestion(
            key="model.provider", text="Who answers", default=known, choices=tuple(_PROVIDERS), parse=str.lower
        )
    )
    kind, address = _PROVIDERS[choice]
    same = before if before is not None and known == choice else None
    name = same.provider if same else choice.replace("llama.cpp", "llamacpp")
    made = same or ModelAnswers(provider=name, kind=kind, base_url=None)
    if other is not None and kind != "local":
        made = replace(made, base_url=_parse_url(other))
    elif choice in {"compatible", "llama.cpp"} or (same and same.base_url):
        default = (same.base_url if same else None) or address
        url = yield from ask(SetupQuestion(key="model.url", text="Its address", default=default, parse=_parse_url))
        made = replace(made, base_url=url)
    if kind == "local":
        return replace(made, api_key=None, base_url=None)
    return (yield from _ask_key(made, needed=address is None))


def _ask_key(made: ModelAnswers, *, needed: bool) -> DialogFlow[ModelAnswers]:
    if not needed:
        wants = yield from ask(
            SetupQuestion(
                key="model.keyed",
                text="Does it want a key",
                default="yes" if made.api_key else "no",
                choices=("no", "yes"),
                secret_key="model.key",  # noqa: S106 - the name of an answer
            )
        )
        if wants == "no":
            return replace(made, api_key=None)
    key = yield from ask_secret(
        SecretQuestion(
            key="model.key", text="Key", file=f"{made.provider}.key", existing=made.api_key, parse=_parse_key
        )
    )
    return replace(made, api_key=None if key.value == _KEYLESS else key)


def _ask_model_name(made: ModelAnswers, offered: ModelListing) -> DialogFlow[ModelAnswers]:
    if made.kind in {"llamacpp", "local"}:
        return made
    names = offered.names
    if names:
        lines = [f"  {number:>2}  {name}" for number, name in enumerate(names[:_MAX_LISTED], 1)]
        more = [f"      and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
        yield from tell(*lines, *more)
    default = made.name or _DEFAULTS.get(made.provider)
    if names and default not in names:
        default = names[0]
    name = yield from ask(
        SetupQuestion(
            key="model.name", text="Model", default=default, choices=names, allows_other=True, parse=_parse_model_name
        )
    )
    return replace(made, name=name, context_tokens=made.context_tokens if name == made.name else None)


def build_provider_config(made: ModelAnswers) -> ProviderConfig:
    """As the configuration will have it."""
    base = {"base_url": made.base_url} if made.base_url else {}
    key = {"api_key": SecretStr(made.api_key.value or "")} if made.api_key else {}
    match made.kind:
        case "anthropic":
            return AnthropicConfig.model_validate({"kind": "anthropic"} | base | key)
        case "openai":
            return OpenAIConfig.model_validate({"kind": "openai"} | base | key)
        case "llamacpp":
            return LlamaCppConfig.model_validate({"kind": "llamacpp"} | base | key)
        case "local":
            return LocalConfig(kind="local")


def build_model_config(made: ModelAnswers) -> ModelConfig:
    """The same."""
    return ModelConfig(provider=made.provider, name=made.name, context_tokens=made.context_tokens)


def api_key_variable(provider: str) -> str:
    """The environment variable that its key is looked for in; empty: none."""
    return _KEY_VARIABLES.get(provider, "")


def _provider_choice(before: ModelAnswers) -> str:
    if before.kind == "openai":
        return "openai" if before.base_url is None or "api.openai.com" in before.base_url else "compatible"
    return {"anthropic": "anthropic", "llamacpp": "llama.cpp", "local": "embedded"}[before.kind]


def _parse_url(words: str) -> str:
    words = words.strip()
    join_endpoint(words, "/")  # raises ValueError with the remedy
    if "@" in words.partition("://")[2].partition("/")[0]:
        raise ValueError("write the key where it is asked for, not into the address")
    return words


def _parse_key(words: str) -> str:
    words = words.strip()
    if not (words.isascii() and words.isprintable()) or " " in words:
        raise ValueError("a key is one word of plain ASCII; copy it again")
    return words


def _parse_model_name(words: str) -> str:
    if not words.strip():
        raise ValueError("the model's name, as its provider writes it")
    return words.strip()
