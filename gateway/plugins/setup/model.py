"""Questions about the model."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agent.cache.prices import PriceTable
from agent.models.http import join_endpoint
from agent.models.settings import (
    KeyedSettings,
    ModelConfig,
    ProviderSettings,
    RemoteSettings,
    SetupChoice,
)
from gateway.config.model_check import ModelListing, list_models, probe_model
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.config.source import value_at
from gateway.plugins import find_providers
from gateway.plugins.setup.dialog import (
    AGAIN,
    CORRECT,
    GO_ON,
    YES_OR_NO,
    Respondent,
    Values,
    parse_choice,
    unset,
)

_MAX_LISTED: Final = 12
_UNKNOWN: Final = {"context_tokens": None}
"""What is not known of another model."""


def ask_model(person: Respondent, config: Values) -> None:
    """Ask for a model until it answers, or the person accepts that it does not; change the
    configuration.
    """
    choices = [choice for _, choice in _find_choices()]
    person.tell("", "The model", *(f"  {one.name:<11} {one.about}" for one in choices))
    entry = value_at(config, "agents", 0, "model") or "main"
    llm: Values = config.setdefault("llm", {})
    model: Values = dict(value_at(llm, "models", str(entry)) or {})  # type: ignore[arg-type] # a section
    name: str = model.get("provider", "")
    provider: Values = dict(value_at(llm, "providers", name) or {})  # type: ignore[arg-type] # as above
    provider = provider if provider.get("kind") in {kind for kind, _ in _find_choices()} else {}
    keyed, way = False, CORRECT
    while way != GO_ON:
        name, provider, kept = _ask_provider(person, name, provider, keyed=keyed)
        model |= {"provider": name} if kept else {"provider": name, "name": None, **_UNKNOWN}
        key, offered, way = provider.get("api_key"), ModelListing(), AGAIN
        kind = find_providers()[provider["kind"]]
        if key and person.reveal(key) is None:
            person.review([unset("model.answer", key)])
            model = _ask_model_name(person, kind, model, offered)
            break
        settings = person.build(kind, provider)
        while way == AGAIN:
            if kind.names_models:
                person.tell("  Asking the server for its models ...")
                offered = asyncio.run(list_models(settings))
                way = person.review(offered.findings)
                if way != GO_ON:
                    continue
            model = _ask_model_name(person, kind, model, offered)
            person.tell("  Asking the model for one word ...")
            prices, wanted = _load_prices(person.directory), person.build(ModelConfig, model)
            findings, window = asyncio.run(probe_model(wanted, settings, prices))
            way = person.review(findings)
            if window and any(
                one.code == "model.context" and one.level == "warning" for one in findings
            ):
                model["context_tokens"] = window
            bad = {one.code for one in findings if one.level == "bad"}
            if way == CORRECT and bad <= {"model.name"}:
                way = AGAIN
        keyed = key is not None or any(one.code == "model.key" for one in offered.findings)
    llm["providers"] = llm.get("providers", {}) | {name: provider}
    llm["models"] = llm.get("models", {}) | {entry: model}


def _load_prices(directory: Path) -> PriceTable:
    """Load the operator's price table; if it is broken, the one that comes with the product."""
    try:
        return load_price_table(directory)
    except PriceTableError:
        return load_price_table(None)


def _find_choices() -> list[tuple[str, SetupChoice]]:
    found = [(kind, choice) for kind, one in find_providers().items() for choice in one.choices]
    return sorted(
        found,
        key=lambda one: (
            bool(one[1].address) or not issubclass(find_providers()[one[0]], KeyedSettings)
        ),
    )


def _ask_provider(
    person: Respondent, name: str, before: Values, *, keyed: bool
) -> tuple[str, Values, bool]:
    """Ask for the provider, its address and its key; return its name, its section, and whether it
    is the one of `before`. `keyed`: it wanted a key a moment ago.
    """
    choices = {choice.name: (kind, choice) for kind, choice in _find_choices()}
    own = [one.name for kind, one in choices.values() if kind == before.get("kind")]
    if url := before.get("base_url") or "":
        field = find_providers()[before["kind"]].model_fields["base_url"]
        is_usual = field.is_required() or str(urlsplit(field.default).hostname) in url
        own = own if is_usual else own[::-1]
    known = next(iter(own or choices))
    choice = person.ask("model.provider", default=known, parse=partial(parse_choice, (*choices,)))
    kind, (_, _, address) = choices[choice]
    kept = bool(before) and choice == known
    provider = dict(before) if kept else {"kind": kind}
    name = name if kept else choice.replace("llama.cpp", "llamacpp")
    settings = find_providers()[kind]
    if not issubclass(settings, RemoteSettings):
        return name, provider, kept
    url = person.ask(
        "model.url",
        default=provider.get("base_url") or address or None,
        parse=_parse_url,
        optional=not (address or settings.model_fields["base_url"].is_required()),
    )
    provider |= {"base_url": url} if url else {}
    if not issubclass(settings, KeyedSettings):
        return name, provider, kept
    key = provider.pop("api_key", None)
    if address:
        wants = keyed or key or person.has_secret("model.key")
        question, parse = "Does it need a key", partial(parse_choice, YES_OR_NO)
        if person.ask(question, default="yes" if wants else "no", parse=parse) == "no":
            return name, provider, kept
    key = person.ask_secret("model.key", f"{name}.key", key, parse=_parse_key)
    return name, provider | {"api_key": key}, kept


def _ask_model_name(
    person: Respondent, kind: type[ProviderSettings], model: Values, offered: ModelListing
) -> Values:
    if not kind.names_models:
        return model
    names = offered.names
    for number, name in enumerate(names[:_MAX_LISTED], 1):
        person.tell(f"  {number:>2}  {name}")
    if len(names) > _MAX_LISTED:
        person.tell(f"      and {len(names) - _MAX_LISTED} more")
    default = model.get("name") or kind.setup_model or None
    if names and default not in names:
        default = names[0]

    def parse(words: str) -> str:
        word = words.strip()
        is_number = word.isdecimal() and 1 <= int(word) <= len(names)
        return names[int(word) - 1] if is_number else word

    name = person.ask("model.name", default=default, parse=parse)
    return model | ({"name": name} if name == model.get("name") else {"name": name, **_UNKNOWN})


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
