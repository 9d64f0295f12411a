"""Questions about the model."""

from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from agent.cache.prices import PriceTable
from agent.models.config import (
    AnthropicConfig,
    LlamaCppConfig,
    LocalConfig,
    ModelConfig,
    OpenAIConfig,
    ProviderConfig,
)
from agent.models.http import join_endpoint
from gateway.cli.setup.dialog import (
    ModelAnswers,
    ProviderKind,
    Respondent,
    SecretQuestion,
    SetupQuestion,
    review_findings,
)
from gateway.config.model_check import ModelListing, list_models, probe_model
from gateway.config.secrets import PriceTableError, load_price_table

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
    "  compatible  any server with OpenAI's API: vLLM, Ollama, OpenRouter",
    "  llama.cpp   a llama.cpp server",
    "  embedded    a very small model inside this program, only for a first try: needs nothing",
)
_DEFAULTS = {"anthropic": "claude-sonnet-5-5"}
_MAX_LISTED = 12
_KEYLESS = "none"


def ask_model(
    person: Respondent, before: ModelAnswers | None, url: str | None = None
) -> ModelAnswers:
    """Ask for a model until it answers, or the person accepts that it does not.

    `url`: address of the provider, instead of the default of its kind.
    """
    person.tell(*_MODEL_INTRO)
    existing_key = before.api_key if before else None
    keyed = False
    while True:
        answers = _ask_provider(person, before, url, keyed=keyed)
        way, offered = "again", ModelListing()
        while way == "again":
            if answers.api_key is not None and answers.api_key.value is None:
                person.tell(
                    f"  {answers.api_key.reference} is not set here, so setup cannot test the "
                    "model now."
                )
                return _ask_model_name(person, answers, ModelListing())
            if answers.kind in {"anthropic", "openai"}:
                person.tell("  Asking the server for its models ...")
                offered = person.probe(list_models(build_provider_config(answers)))
                way = review_findings(person, offered.findings, skip=False)
                if way != "go on":
                    continue
            answers = _ask_model_name(person, answers, offered)
            person.tell("  Asking the model for one word ...")
            model = ModelConfig(
                provider=answers.provider, name=answers.name, context_tokens=answers.context_tokens
            )
            provider = build_provider_config(answers)
            findings, window = person.probe(
                probe_model(model, provider, _load_prices(person.directory))
            )
            way = review_findings(person, findings, skip=False)
            if window and any(
                one.code == "model.context" and one.level == "warning" for one in findings
            ):
                answers = replace(answers, context_tokens=window)
            if way == "correct" and all(
                one.code == "model.name" for one in findings if one.level == "bad"
            ):
                way = "again"
        if way == "go on":
            return answers
        keyed = answers.api_key is not None or any(
            one.code == "model.key" for one in offered.findings
        )
        before = replace(
            answers,
            api_key=answers.api_key
            if answers.api_key is None or not answers.api_key.is_new
            else existing_key,
        )


def _load_prices(directory: Path) -> PriceTable:
    """Load the operator's price table; if it is broken, the one that comes with the product."""
    try:
        return load_price_table(directory)
    except PriceTableError:
        return load_price_table(None)


def _ask_provider(
    person: Respondent, before: ModelAnswers | None, other: str | None, *, keyed: bool
) -> ModelAnswers:
    """Ask for the provider, its address and its key. `keyed`: it wanted one a moment ago."""
    known = _provider_choice(before) if before else "anthropic"
    choice = person.ask(
        SetupQuestion(
            "model.provider",
            "Who answers",
            default=known,
            choices=tuple(_PROVIDERS),
            parse=str.lower,
        )
    )
    kind, address = _PROVIDERS[choice]
    same = before if before is not None and known == choice else None
    name = same.provider if same else choice.replace("llama.cpp", "llamacpp")
    answers = same or ModelAnswers(provider=name, kind=kind, base_url=None)
    if other is not None and kind != "local":
        answers = replace(answers, base_url=_parse_url(other))
    elif choice in {"compatible", "llama.cpp"} or (same and same.base_url):
        default = (same.base_url if same else None) or address
        url = person.ask(
            SetupQuestion("model.url", "Its address", default=default, parse=_parse_url)
        )
        answers = replace(answers, base_url=url)
    if kind == "local":
        return replace(answers, api_key=None, base_url=None)
    return _ask_key(person, answers, needed=address is None, keyed=keyed)


def _ask_key(
    person: Respondent, answers: ModelAnswers, *, needed: bool, keyed: bool
) -> ModelAnswers:
    if not needed:
        default = "yes" if keyed or answers.api_key else "no"
        question = SetupQuestion(
            "model.keyed", "Does it need a key", default=default, choices=("no", "yes")
        )
        wants = person.ask(replace(question, secret_key="model.key"))  # noqa: S106 - the name of an answer
        if wants == "no":
            return replace(answers, api_key=None)
    key = person.ask_secret(
        SecretQuestion(
            "model.key",
            "Key",
            f"{answers.provider}.key",
            existing=answers.api_key,
            parse=_parse_key,
        )
    )
    return replace(answers, api_key=None if key.value == _KEYLESS else key)


def _ask_model_name(
    person: Respondent, answers: ModelAnswers, offered: ModelListing
) -> ModelAnswers:
    if answers.kind in {"llamacpp", "local"}:
        return answers
    names = offered.names
    if names:
        lines = [f"  {number:>2}  {name}" for number, name in enumerate(names[:_MAX_LISTED], 1)]
        more = [f"      and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
        person.tell(*lines, *more)
    default = answers.name or _DEFAULTS.get(answers.provider)
    if names and default not in names:
        default = names[0]
    name = person.ask(
        SetupQuestion(
            "model.name",
            "Model",
            default=default,
            choices=names,
            allows_other=True,
            parse=_parse_model_name,
        )
    )
    return replace(
        answers, name=name, context_tokens=answers.context_tokens if name == answers.name else None
    )


def build_provider_config(answers: ModelAnswers) -> ProviderConfig:
    """Build the provider as the configuration will have it."""
    base = {"base_url": answers.base_url} if answers.base_url else {}
    key = {"api_key": SecretStr(answers.api_key.value or "")} if answers.api_key else {}
    match answers.kind:
        case "anthropic":
            return AnthropicConfig.model_validate({"kind": "anthropic"} | base | key)
        case "openai":
            return OpenAIConfig.model_validate({"kind": "openai"} | base | key)
        case "llamacpp":
            return LlamaCppConfig.model_validate({"kind": "llamacpp"} | base | key)
        case "local":
            return LocalConfig(kind="local")


def _provider_choice(before: ModelAnswers) -> str:
    if before.kind == "openai":
        return (
            "openai"
            if before.base_url is None or "api.openai.com" in before.base_url
            else "compatible"
        )
    return {"anthropic": "anthropic", "llamacpp": "llama.cpp", "local": "embedded"}[before.kind]


def _parse_url(words: str) -> str:
    words = words.strip()
    join_endpoint(words, "/")  # raises ValueError with the remedy
    if "@" in words.partition("://")[2].partition("/")[0]:
        raise ValueError("write the key when setup asks for it, not into the address")
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
