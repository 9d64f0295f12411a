"""Answers as entries of the configuration, and the configuration as answers. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.settings_source import Keys, Tree, value_at
from gateway.setup.answers import (
    DiscordAnswers,
    IrcAnswers,
    ModelAnswers,
    ProviderKind,
    SecretReference,
    SetupAnswers,
    TelegramAnswers,
)

ConfigValue = str | int | bool | tuple[str, ...] | None
"""None: the key is to be left out."""


@dataclass(frozen=True, slots=True)
class ConfigReference:
    """A text that holds a `${...}` which is meant as one."""

    text: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value, and where it stands."""

    keys: Keys
    value: ConfigValue | ConfigReference
    comment: str = ""
    """For a new file."""


_SECTIONS: Final[Mapping[str, str]] = {
    "channels": "accounts on platforms",
    "agents": "who answers",
    "llm": "with which model",
    "access": "who may do what",
    "ops": "the page and the console of the operator",
}
"""Top-level keys in the order of a new file, and what they are for."""


def section_comment(section: str) -> str:
    """What a top-level key is for."""
    return _SECTIONS.get(section, "")


def build_entries(answers: SetupAnswers) -> tuple[ConfigEntry, ...]:
    """All that is to be so."""
    return tuple(_iter_entries(answers))


def _iter_entries(answers: SetupAnswers) -> Iterator[ConfigEntry]:
    if answers.telegram:
        yield from _telegram_entries(answers.telegram)
    if answers.discord:
        yield from _discord_entries(answers.discord)
    if answers.irc:
        yield from _irc_entries(answers.irc)
    yield ConfigEntry(("agents", 0, "id"), answers.agent_id)
    if answers.workspace:
        told = "IDENTITY.md, SOUL.md, AGENTS.md: read anew when they change"
        yield ConfigEntry(("agents", 0, "workspace"), answers.workspace, told)
    if answers.model:
        yield from _model_entries(answers.model)
    if answers.owners:
        told = "<channel>:<id>, as /whoami shows it"
        yield ConfigEntry(("access", "roles", "owner"), answers.owners, told)
    if answers.ops_token:
        told = "what the page at 127.0.0.1:9090 asks for"
        yield ConfigEntry(("ops", "token"), ConfigReference(answers.ops_token.reference), told)


def _telegram_entries(said: TelegramAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("channels", said.channel)
    yield ConfigEntry((*at_, "platform"), "telegram")
    yield ConfigEntry((*at_, "token"), ConfigReference(said.token.reference), "from @BotFather")
    yield ConfigEntry((*at_, "base_url"), said.base_url)
    yield ConfigEntry((*at_, "rooms"), said.rooms, 'groups where it may act: ids in quotes, or "*"')


def _discord_entries(said: DiscordAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("channels", said.channel)
    yield ConfigEntry((*at_, "platform"), "discord")
    yield ConfigEntry((*at_, "token"), ConfigReference(said.token.reference), "from the developer portal")
    yield ConfigEntry((*at_, "api_url"), said.api_url)
    yield ConfigEntry((*at_, "gateway_url"), said.gateway_url)
    yield ConfigEntry((*at_, "rooms"), said.rooms, 'guilds or channels where it may act: ids in quotes, or "*"')


def _irc_entries(said: IrcAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("channels", said.channel)
    yield ConfigEntry((*at_, "platform"), "irc")
    yield ConfigEntry((*at_, "host"), said.host)
    yield ConfigEntry((*at_, "port"), said.port)
    yield ConfigEntry((*at_, "tls", "ca_file") if said.ca_file else (*at_, "tls"), said.ca_file or said.tls)
    yield ConfigEntry((*at_, "nick"), said.nick)
    password = said.server_password
    yield ConfigEntry((*at_, "password"), ConfigReference(password.reference) if password else None, "of the server")
    if said.mechanism == "external":
        pass  # nothing was asked
    elif said.account and said.account_password:
        yield ConfigEntry((*at_, "sasl", "mechanism"), said.mechanism)
        yield ConfigEntry((*at_, "sasl", "account"), said.account)
        yield ConfigEntry((*at_, "sasl", "password"), ConfigReference(said.account_password.reference))
    else:
        yield ConfigEntry((*at_, "sasl"), None)
    yield ConfigEntry((*at_, "contact"), said.contact, "shown to whoever asks who runs it")
    yield ConfigEntry((*at_, "rooms"), said.rooms)


def _model_entries(said: ModelAnswers) -> Iterator[ConfigEntry]:
    at_: Keys = ("llm", "providers", said.provider)
    yield ConfigEntry((*at_, "kind"), said.kind)
    yield ConfigEntry((*at_, "base_url"), said.base_url)
    yield ConfigEntry((*at_, "api_key"), ConfigReference(said.api_key.reference) if said.api_key else None)
    main: Keys = ("llm", "models", said.model_key)
    yield ConfigEntry((*main, "provider"), said.provider)
    yield ConfigEntry((*main, "name"), said.name)
    yield ConfigEntry((*main, "context_tokens"), said.context_tokens)


def read_answers(data: Mapping[str, Tree], values: Mapping[str, str]) -> SetupAnswers:
    """What a configuration says of what is asked; its texts are as written, so references are.

    `values`: what references stand for, as far as that is known. What is not as setup would write it is left out.
    """
    tree: Tree = dict(data)
    channels = value_at(tree, "channels")
    named: Mapping[str, Tree] = channels if isinstance(channels, dict) else {}

    def first(platform: str) -> str | None:
        return next((name for name, said in named.items() if value_at(said, "platform") == platform), None)

    def secret(*keys: str | int) -> SecretReference | None:
        text = _as_text(value_at(tree, *keys))
        return SecretReference(reference=text, value=values.get(text) if "${" in text else text) if text else None

    telegram, discord, irc = first("telegram"), first("discord"), first("irc")
    agent = _as_text(value_at(tree, "agents", 0, "id"))
    return SetupAnswers(
        telegram=_read_telegram(tree, telegram, secret("channels", telegram, "token")) if telegram else None,
        discord=_read_discord(tree, discord, secret("channels", discord, "token")) if discord else None,
        irc=_read_irc(tree, irc, secret("channels", irc, "sasl", "password"), secret("channels", irc, "password"))
        if irc
        else None,
        model=_read_model(tree, secret),
        owners=_as_texts(value_at(tree, "access", "roles", "owner")),
        agent_id=agent or "reverie",
        workspace=_as_text(value_at(tree, "agents", 0, "workspace")),
        ops_token=secret("ops", "token"),
    )


def _read_telegram(tree: Tree, name: str, token: SecretReference | None) -> TelegramAnswers | None:
    if token is None:
        return None
    base: Keys = ("channels", name)
    url = _as_text(value_at(tree, *base, "base_url"))
    return TelegramAnswers(channel=name, token=token, rooms=_as_texts(value_at(tree, *base, "rooms")), base_url=url)


def _read_discord(tree: Tree, name: str, token: SecretReference | None) -> DiscordAnswers | None:
    if token is None:
        return None
    base: Keys = ("channels", name)
    urls = [_as_text(value_at(tree, *base, key)) for key in ("api_url", "gateway_url")]
    rooms = _as_texts(value_at(tree, *base, "rooms"))
    return DiscordAnswers(channel=name, token=token, rooms=rooms, api_url=urls[0], gateway_url=urls[1])


def _read_irc(
    tree: Tree, name: str, password: SecretReference | None, server: SecretReference | None
) -> IrcAnswers | None:
    base: Keys = ("channels", name)
    host, nick = _as_text(value_at(tree, *base, "host")), _as_text(value_at(tree, *base, "nick"))
    port = value_at(tree, *base, "port")
    if not host or not nick:
        return None
    return IrcAnswers(
        channel=name,
        host=host,
        port=port if isinstance(port, int) else 6697,
        tls=value_at(tree, *base, "tls") is not False,
        ca_file=_as_text(value_at(tree, *base, "tls", "ca_file")),
        nick=nick,
        account=_as_text(value_at(tree, *base, "sasl", "account")) if password else None,
        mechanism=_as_text(value_at(tree, *base, "sasl", "mechanism")) or "plain",
        account_password=password,
        server_password=server,
        contact=_as_text(value_at(tree, *base, "contact")),
        rooms=_as_texts(value_at(tree, *base, "rooms")),
    )


def _read_model(tree: Tree, secret: Callable[..., SecretReference | None]) -> ModelAnswers | None:
    entry = _as_text(value_at(tree, "agents", 0, "model")) or "main"
    provider = _as_text(value_at(tree, "llm", "models", entry, "provider"))
    kinds: dict[str, ProviderKind] = {
        "anthropic": "anthropic",
        "openai": "openai",
        "llamacpp": "llamacpp",
        "local": "local",
    }
    kind = kinds.get(_as_text(value_at(tree, "llm", "providers", provider or "", "kind")) or "")
    if provider is None or kind is None:
        return None
    window = value_at(tree, "llm", "models", entry, "context_tokens")
    return ModelAnswers(
        model_key=entry,
        provider=provider,
        kind=kind,
        base_url=_as_text(value_at(tree, "llm", "providers", provider, "base_url")),
        api_key=secret("llm", "providers", provider, "api_key"),
        name=_as_text(value_at(tree, "llm", "models", entry, "name")),
        context_tokens=window if isinstance(window, int) else None,
    )


def _as_text(value: Tree) -> str | None:
    return value if isinstance(value, str) and value else None


def _as_texts(value: Tree) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
