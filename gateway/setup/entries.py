"""Answers as entries of the configuration, and the configuration as answers. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.settings_source import Keys, Tree, at
from gateway.setup.answers import Answers, Discord, Irc, Kind, Secret, Telegram, Thinking

Value = str | int | bool | tuple[str, ...] | None
"""None: the key is to be left out."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A text that holds a `${...}` which is meant as one."""

    text: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One value, and where it stands."""

    keys: Keys
    value: Value | Reference
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


def about(section: str) -> str:
    """What a top-level key is for."""
    return _SECTIONS.get(section, "")


def entries(answers: Answers) -> tuple[Entry, ...]:
    """All that is to be so."""
    return tuple(_entries(answers))


def _entries(answers: Answers) -> Iterator[Entry]:
    if answers.telegram:
        yield from _telegram(answers.telegram)
    if answers.discord:
        yield from _discord(answers.discord)
    if answers.irc:
        yield from _irc(answers.irc)
    yield Entry(("agents", 0, "id"), answers.agent_id)
    if answers.workspace:
        told = "IDENTITY.md, SOUL.md, AGENTS.md: read anew when they change"
        yield Entry(("agents", 0, "workspace"), answers.workspace, told)
    if answers.model:
        yield from _thinking(answers.model)
    if answers.owners:
        told = "<channel>:<id>, as /whoami shows it"
        yield Entry(("access", "roles", "owner"), answers.owners, told)
    if answers.ops_token:
        told = "what the page at 127.0.0.1:9090 asks for"
        yield Entry(("ops", "token"), Reference(answers.ops_token.reference), told)


def _telegram(said: Telegram) -> Iterator[Entry]:
    at_: Keys = ("channels", said.channel)
    yield Entry((*at_, "platform"), "telegram")
    yield Entry((*at_, "token"), Reference(said.token.reference), "from @BotFather")
    yield Entry((*at_, "base_url"), said.base_url)
    yield Entry((*at_, "rooms"), said.rooms, 'groups where it may act: ids in quotes, or "*"')


def _discord(said: Discord) -> Iterator[Entry]:
    at_: Keys = ("channels", said.channel)
    yield Entry((*at_, "platform"), "discord")
    yield Entry((*at_, "token"), Reference(said.token.reference), "from the developer portal")
    yield Entry((*at_, "api_url"), said.api_url)
    yield Entry((*at_, "gateway_url"), said.gateway_url)
    yield Entry((*at_, "rooms"), said.rooms, 'guilds or channels where it may act: ids in quotes, or "*"')


def _irc(said: Irc) -> Iterator[Entry]:
    at_: Keys = ("channels", said.channel)
    yield Entry((*at_, "platform"), "irc")
    yield Entry((*at_, "host"), said.host)
    yield Entry((*at_, "port"), said.port)
    yield Entry((*at_, "tls", "ca_file") if said.ca_file else (*at_, "tls"), said.ca_file or said.tls)
    yield Entry((*at_, "nick"), said.nick)
    password = said.server_password
    yield Entry((*at_, "password"), Reference(password.reference) if password else None, "of the server")
    if said.mechanism == "external":
        pass  # nothing was asked
    elif said.account and said.account_password:
        yield Entry((*at_, "sasl", "mechanism"), said.mechanism)
        yield Entry((*at_, "sasl", "account"), said.account)
        yield Entry((*at_, "sasl", "password"), Reference(said.account_password.reference))
    else:
        yield Entry((*at_, "sasl"), None)
    yield Entry((*at_, "contact"), said.contact, "shown to whoever asks who runs it")
    yield Entry((*at_, "rooms"), said.rooms)


def _thinking(said: Thinking) -> Iterator[Entry]:
    at_: Keys = ("llm", "providers", said.provider)
    yield Entry((*at_, "kind"), said.kind)
    yield Entry((*at_, "base_url"), said.base_url)
    yield Entry((*at_, "api_key"), Reference(said.api_key.reference) if said.api_key else None)
    main: Keys = ("llm", "models", said.model_key)
    yield Entry((*main, "provider"), said.provider)
    yield Entry((*main, "name"), said.name)
    yield Entry((*main, "context_tokens"), said.context_tokens)


def before(data: Mapping[str, Tree], values: Mapping[str, str]) -> Answers:
    """What a configuration says of what is asked; its texts are as written, so references are.

    `values`: what references stand for, as far as that is known. What is not as setup would write it is left out.
    """
    tree: Tree = dict(data)
    channels = at(tree, "channels")
    named: Mapping[str, Tree] = channels if isinstance(channels, dict) else {}

    def first(platform: str) -> str | None:
        return next((name for name, said in named.items() if at(said, "platform") == platform), None)

    def secret(*keys: str | int) -> Secret | None:
        text = _text(at(tree, *keys))
        return Secret(reference=text, value=values.get(text) if "${" in text else text) if text else None

    telegram, discord, irc = first("telegram"), first("discord"), first("irc")
    agent = _text(at(tree, "agents", 0, "id"))
    return Answers(
        telegram=_telegram_of(tree, telegram, secret("channels", telegram, "token")) if telegram else None,
        discord=_discord_of(tree, discord, secret("channels", discord, "token")) if discord else None,
        irc=_irc_of(tree, irc, secret("channels", irc, "sasl", "password"), secret("channels", irc, "password"))
        if irc
        else None,
        model=_thinking_of(tree, secret),
        owners=_texts(at(tree, "access", "roles", "owner")),
        agent_id=agent or "reverie",
        workspace=_text(at(tree, "agents", 0, "workspace")),
        ops_token=secret("ops", "token"),
    )


def _telegram_of(tree: Tree, name: str, token: Secret | None) -> Telegram | None:
    if token is None:
        return None
    base: Keys = ("channels", name)
    url = _text(at(tree, *base, "base_url"))
    return Telegram(channel=name, token=token, rooms=_texts(at(tree, *base, "rooms")), base_url=url)


def _discord_of(tree: Tree, name: str, token: Secret | None) -> Discord | None:
    if token is None:
        return None
    base: Keys = ("channels", name)
    urls = [_text(at(tree, *base, key)) for key in ("api_url", "gateway_url")]
    rooms = _texts(at(tree, *base, "rooms"))
    return Discord(channel=name, token=token, rooms=rooms, api_url=urls[0], gateway_url=urls[1])


def _irc_of(tree: Tree, name: str, password: Secret | None, server: Secret | None) -> Irc | None:
    base: Keys = ("channels", name)
    host, nick = _text(at(tree, *base, "host")), _text(at(tree, *base, "nick"))
    port = at(tree, *base, "port")
    if not host or not nick:
        return None
    return Irc(
        channel=name,
        host=host,
        port=port if isinstance(port, int) else 6697,
        tls=at(tree, *base, "tls") is not False,
        ca_file=_text(at(tree, *base, "tls", "ca_file")),
        nick=nick,
        account=_text(at(tree, *base, "sasl", "account")) if password else None,
        mechanism=_text(at(tree, *base, "sasl", "mechanism")) or "plain",
        account_password=password,
        server_password=server,
        contact=_text(at(tree, *base, "contact")),
        rooms=_texts(at(tree, *base, "rooms")),
    )


def _thinking_of(tree: Tree, secret: Callable[..., Secret | None]) -> Thinking | None:
    entry = _text(at(tree, "agents", 0, "model")) or "main"
    provider = _text(at(tree, "llm", "models", entry, "provider"))
    kinds: dict[str, Kind] = {"anthropic": "anthropic", "openai": "openai", "llamacpp": "llamacpp", "local": "local"}
    kind = kinds.get(_text(at(tree, "llm", "providers", provider or "", "kind")) or "")
    if provider is None or kind is None:
        return None
    window = at(tree, "llm", "models", entry, "context_tokens")
    return Thinking(
        model_key=entry,
        provider=provider,
        kind=kind,
        base_url=_text(at(tree, "llm", "providers", provider, "base_url")),
        api_key=secret("llm", "providers", provider, "api_key"),
        name=_text(at(tree, "llm", "models", entry, "name")),
        context_tokens=window if isinstance(window, int) else None,
    )


def _text(value: Tree) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: Tree) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
