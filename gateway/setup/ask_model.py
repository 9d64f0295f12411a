"""What is asked about the model. Pure."""

from dataclasses import replace

from pydantic import SecretStr

from agent.models.config import (
    AnthropicConfig,
    LlamaCppConfig,
    LocalConfig,
    ModelConfig,
    OpenAIConfig,
    ProviderConfig,
)
from agent.models.http import endpoint
from gateway.probes.model import ModelSeen, Offered
from gateway.setup.answers import Kind, Thinking
from gateway.setup.dialog import Ask, AskSecret, Flow, Look, LookModel, ask, ask_secret, look, settle, tell

_KINDS: dict[str, tuple[Kind, str | None]] = {
    "anthropic": ("anthropic", None),
    "openai": ("openai", None),
    "compatible": ("openai", "http://127.0.0.1:8000/v1"),
    "llama.cpp": ("llamacpp", "http://127.0.0.1:9931"),
    "embedded": ("local", None),
}
_LINES = (
    "",
    "The model",
    "  anthropic   Claude; needs a key from console.anthropic.com",
    "  openai      needs a key from platform.openai.com",
    "  compatible  any server that speaks as OpenAI does: vLLM, Ollama, OpenRouter",
    "  llama.cpp   a llama.cpp server",
    "  embedded    a very small model in here, only to try the rest: needs nothing",
)
_DEFAULTS = {"anthropic": "claude-sonnet-5-5"}
_VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
_SHOWN = 12
_KEYLESS = "none"


def ask_model(before: Thinking | None, url: str | None = None) -> Flow[Thinking]:
    """One that answers, or that the person wants all the same. `url`: of the provider, in place of its kind's own."""
    yield from tell(*_LINES)
    kept = before.api_key if before else None
    while True:
        made = yield from _provider(before, url)
        way = "again"
        while way == "again":
            if made.api_key is not None and made.api_key.value is None:
                yield from tell(f"  {made.api_key.reference} is not set here, so the model cannot be asked now.")
                return (yield from _named(made, Offered()))
            offered = Offered()
            if made.kind in {"anthropic", "openai"}:
                yield from tell("  Asking which models there are ...")
                offered = yield from look(Look(provider_of(made)), Offered)
                way = yield from settle(offered.findings, skip=False)
                if way != "go on":
                    continue
            made = yield from _named(made, offered)
            yield from tell("  Asking it for one word ...")
            seen = yield from look(Look(LookModel(model_of(made), provider_of(made))), ModelSeen)
            way = yield from settle(seen.findings, skip=False)
            made = _fitted(made, seen)
            if way == "correct" and _only_name(seen):
                way = "again"
        if way == "go on":
            return made
        before = replace(made, api_key=made.api_key if made.api_key is None or not made.api_key.is_new else kept)


def _only_name(seen: ModelSeen) -> bool:
    return all(one.code == "model.name" for one in seen.findings if one.level == "bad")


def _fitted(made: Thinking, seen: ModelSeen) -> Thinking:
    """With the provider's own word on the window, where it is smaller than what would be taken."""
    small = any(one.code == "model.context" and one.level == "warning" for one in seen.findings)
    return replace(made, context_tokens=seen.context_tokens) if small and seen.context_tokens else made


def _provider(before: Thinking | None, other: str | None) -> Flow[Thinking]:
    known = _choice_of(before) if before else "anthropic"
    choice = yield from ask(
        Ask(key="model.provider", text="Who answers", default=known, choices=tuple(_KINDS), parse=str.lower)
    )
    kind, address = _KINDS[choice]
    same = before if before is not None and known == choice else None
    name = same.provider if same else choice.replace("llama.cpp", "llamacpp")
    made = same or Thinking(provider=name, kind=kind, base_url=None)
    if other is not None and kind != "local":
        made = replace(made, base_url=_url(other))
    elif choice in {"compatible", "llama.cpp"} or (same and same.base_url):
        default = (same.base_url if same else None) or address
        url = yield from ask(Ask(key="model.url", text="Its address", default=default, parse=_url))
        made = replace(made, base_url=url)
    if kind == "local":
        return replace(made, api_key=None, base_url=None)
    return (yield from _key(made, needed=address is None))


def _key(made: Thinking, *, needed: bool) -> Flow[Thinking]:
    if not needed:
        wants = yield from ask(
            Ask(
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
        AskSecret(key="model.key", text="Key", file=f"{made.provider}.key", existing=made.api_key, parse=_as_key)
    )
    return replace(made, api_key=None if key.value == _KEYLESS else key)


def _named(made: Thinking, offered: Offered) -> Flow[Thinking]:
    if made.kind in {"llamacpp", "local"}:
        return made
    names = offered.names
    if names:
        lines = [f"  {number:>2}  {name}" for number, name in enumerate(names[:_SHOWN], 1)]
        more = [f"      and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        yield from tell(*lines, *more)
    default = made.name or _DEFAULTS.get(made.provider)
    if names and default not in names:
        default = names[0]
    name = yield from ask(
        Ask(key="model.name", text="Model", default=default, choices=names, allows_other=True, parse=_as_name)
    )
    return replace(made, name=name, context_tokens=made.context_tokens if name == made.name else None)


def provider_of(made: Thinking) -> ProviderConfig:
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


def model_of(made: Thinking) -> ModelConfig:
    """The same."""
    return ModelConfig(provider=made.provider, name=made.name, context_tokens=made.context_tokens)


def variable_of(provider: str) -> str:
    """The environment variable that its key is looked for in; empty: none."""
    return _VARIABLES.get(provider, "")


def _choice_of(before: Thinking) -> str:
    if before.kind == "openai":
        return "openai" if before.base_url is None or "api.openai.com" in before.base_url else "compatible"
    return {"anthropic": "anthropic", "llamacpp": "llama.cpp", "local": "embedded"}[before.kind]


def _url(words: str) -> str:
    words = words.strip()
    endpoint(words, "/")  # raises ValueError with the remedy
    if "@" in words.partition("://")[2].partition("/")[0]:
        raise ValueError("write the key where it is asked for, not into the address")
    return words


def _as_key(words: str) -> str:
    words = words.strip()
    if not (words.isascii() and words.isprintable()) or " " in words:
        raise ValueError("a key is one word of plain ASCII; copy it again")
    return words


def _as_name(words: str) -> str:
    if not words.strip():
        raise ValueError("the model's name, as its provider writes it")
    return words.strip()
