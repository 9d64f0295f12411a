"""Checks across sections: names that must exist, people with two roles, and ids that anybody can
take.

They work on values as written, so that these problems are reported together with all others.
`access_warnings` reports settings that are valid but let in more people than intended,
`find_unrunnable` those with which no gateway can run.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from agent.models.config import ModelConfig, ProviderConfig, check_models
from channels.base import Denied
from channels.irc.config import IrcConfig
from gateway.config.models import AgentConfig, ChannelConfig, Settings
from gateway.config.source import Keys, Tree, format_key, value_at
from gateway.config.tools import TOOL_NAMES
from gateway.core.events import Address
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX

T = TypeVar("T")
_NICK: Final = re.compile(r"[^#&!+][^!]*")
"""A nick alone, as an IRC channel's room."""
_MODEL_ADAPTER: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)
_PROVIDER_ADAPTER: TypeAdapter[ProviderConfig] = TypeAdapter(ProviderConfig)


def find_unrunnable(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield what is valid alone, but keeps `reverie run` from starting: the same for every reader
    of these settings.
    """
    if not settings.channels:
        yield (
            ("channels",),
            "no channels are configured; add one under `channels`, or run `reverie setup`",
        )
    first = dict[tuple[object, ...], str]()
    for name, config in settings.channels.items():
        if config.platform == "console":
            yield (
                ("channels", name),
                "the console is part of `reverie demo --console`; remove the channel",
            )
            continue
        held = first.setdefault(account_key(config), name)
        if held != name and config.platform == "irc":
            yield (
                ("channels", name, "nick"),
                f"is the nick of channels.{held} on the same server; choose another one",
            )
        elif held != name:
            message = (
                f"is the token of channels.{held}, too; remove one of the two, or get a "
                "token for another bot"
            )
            yield ("channels", name, "token"), message


def account_key(config: ChannelConfig) -> tuple[object, ...]:
    """Return the account by which the platform knows this channel: two channels of one account
    disturb each other.
    """
    match config.platform:
        case "irc":
            return config.platform, config.host, config.port, config.nick
        case "console":
            return (config.platform,)
        case _:
            return config.platform, config.token.get_secret_value()


def explain_unconnectable(config: ChannelConfig) -> str:
    """Return why these settings cannot connect, as far as this machine can tell. Empty: no reason
    known.
    """
    if config.platform == "irc":
        from channels.irc import tls  # noqa: PLC0415 - only where IRC is used

        try:
            tls.create_ssl_context(config.tls)
        except Denied as error:
            return error.reason
    return ""


def check_access(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """Yield keys and message for each problem of `access`, in values as written."""
    yield from _check_duplicate_roles(value_at(data, "access", "roles"))
    channels = value_at(data, "channels")
    names = list(channels) if isinstance(channels, dict) else []
    ids = [one.get("id") for one in _list_of_maps(data, "agents")]
    for keys, person, role in _listed_people(data):
        channel, _, sender = person.partition(":")
        if role in ADMIN_ROLES and sender.startswith(MASK_PREFIX):
            yield (
                keys,
                (
                    "anybody can have that mask: administration needs an account; write "
                    "<channel>:account:<name>"
                ),
            )
        elif channel == OPERATOR_CHANNEL and value_at(data, "ops", "token") is not None:
            yield (
                keys,
                "whoever has ops.token is an owner there, and nobody else is there; remove this",
            )
        elif names and sender and channel not in names:
            yield keys, f"no such channel; in channels: {', '.join(map(str, names))}"
    for number, grant in enumerate(_list_of_maps(data, "access", "grants")):
        agent = grant.get("agent")
        if isinstance(agent, str) and agent not in ids:
            yield (
                ("access", "grants", number, "agent"),
                f"no such agent; in agents: {', '.join(map(str, ids))}",
            )
        yield from _check_place(("access", "grants", number, "room"), grant.get("room"), names)
    for number, rule in enumerate(_list_of_maps(data, "access", "platform_roles")):
        glob = rule.get("channel")
        if (
            isinstance(glob, str)
            and names
            and not any(fnmatchcase(str(name), glob) for name in names)
        ):
            yield (
                ("access", "platform_roles", number, "channel"),
                f"matches no channel; the channels are: {', '.join(names)}",
            )
    for keys in (("access", "tell"), ("tools", "approvals", "room")):
        yield from _check_place(keys, value_at(data, *keys), names)


def _sends_password_unchecked(channel: IrcConfig) -> bool:
    """Return whether a password goes to a server whose certificate is not checked."""
    if isinstance(channel.tls, bool) or channel.tls.verify:
        return False
    return bool(channel.password or (channel.sasl and channel.sasl.password))


def access_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield settings that are valid but let in more than intended."""
    access = settings.access
    if access.masks:
        yield (
            ("access", "masks"),
            "a mask that was approved may belong to somebody else tomorrow; accounts are safe",
        )
    for index, person in enumerate(access.roles.member):
        if f":{MASK_PREFIX}" in person:
            yield (
                ("access", "roles", "member", index),
                "anybody can have that mask; write account:<name> if there is one",
            )
    for index, grant in enumerate(access.grants):
        if f":{MASK_PREFIX}" in grant.who and grant.role != "blocked":
            yield (
                ("access", "grants", index, "who"),
                "anybody can have that mask; write account:<name> if there is one",
            )
    for name, channel in settings.channels.items():
        if channel.platform == "irc" and _sends_password_unchecked(channel):
            message = (
                "anybody on the way can read the password; name the server's root "
                "certificate in tls.ca_file"
            )
            yield ("channels", name, "tls", "verify"), message
    for index, rule in enumerate(access.platform_roles):
        if rule.role in ADMIN_ROLES and rule.room == "*":
            message = (
                "whoever has that platform role anywhere gets this role there; name the room or "
                "guild if you mean one"
            )
            yield ("access", "platform_roles", index, "room"), message
    yield from _find_nicks(settings)


def _find_nicks(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield rooms that are a nick alone."""
    for keys, room in (
        (("access", "tell"), settings.access.tell),
        (("tools", "approvals", "room"), settings.tools.approvals.room),
    ):
        at = Address.parse(room) if room else None
        channel = settings.channels.get(at.channel) if at is not None else None
        if (
            at is not None
            and channel is not None
            and channel.platform == "irc"
            and _NICK.fullmatch(at.room)
        ):
            yield keys, f"anybody can take that nick; write {at.room}!account:NAME instead"


def _check_duplicate_roles(roles: Tree) -> Iterator[tuple[Keys, str]]:
    first: dict[str, Keys] = {}
    for role, people in roles.items() if isinstance(roles, dict) else ():
        for index, person in enumerate(people if isinstance(people, list) else ()):
            keys: Keys = ("access", "roles", role, index)
            if isinstance(person, str) and first.setdefault(person, keys)[2] != role:
                yield keys, f"already has another role ({format_key(first[person])}); keep one"


def _listed_people(data: dict[str, Tree]) -> Iterator[tuple[Keys, str, str]]:
    """Yield every person with a role: keys, person key and role."""
    roles = value_at(data, "access", "roles")
    for role, people in roles.items() if isinstance(roles, dict) else ():
        for index, person in enumerate(people if isinstance(people, list) else ()):
            if isinstance(person, str):
                yield ("access", "roles", role, index), person, str(role)
    for number, grant in enumerate(_list_of_maps(data, "access", "grants")):
        if isinstance(who := grant.get("who"), str):
            yield ("access", "grants", number, "who"), who, str(grant.get("role"))


def _check_place(keys: Keys, room: Tree, channels: list[str]) -> Iterator[tuple[Keys, str]]:
    if not isinstance(room, str):
        return
    try:
        channel = Address.parse(room).channel
    except ValueError:  # reported by its own check
        return
    if channel not in channels:
        yield keys, f"no such channel; in channels: {', '.join(channels) or 'none'}"


def _list_of_maps(data: dict[str, Tree], *keys: str) -> list[dict[str, Tree]]:
    rows = value_at(data, *keys)
    return [row if isinstance(row, dict) else {} for row in rows] if isinstance(rows, list) else []


def cross_check(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """Yield keys and message for each problem. Missing sections are not reported."""
    names = value_at(data, "llm", "models")
    if isinstance(names, dict):
        for keys in _model_references(data):
            name = value_at(data, *keys)
            if name is None and keys[0] == "agents":
                name = AgentConfig.model_fields["model"].default
            if isinstance(name, str) and name and name not in names:
                yield keys, f"no such model; in llm.models: {', '.join(names) or 'none'}"
    agents = value_at(data, "agents")
    if isinstance(agents, list):
        yield from _check_agents(agents)
    yield from _check_models(data)
    yield from _check_operator_channel(data)
    yield from check_access(data)
    yield from _check_tool_names(data)


def _check_tool_names(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """Report rules for tools that do not exist: they protect nothing. MCP tools are known only at
    run time.
    """
    off, rules = value_at(data, "tools", "off"), value_at(data, "tools", "rules")
    named: list[tuple[Keys, Tree]] = []
    for index, glob in enumerate(off if isinstance(off, list) else ()):
        named.append((("tools", "off", index), glob))
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        named.append(
            (
                ("tools", "rules", index, "tool"),
                rule.get("tool") if isinstance(rule, dict) else None,
            )
        )
    for keys, glob in named:
        if (
            isinstance(glob, str)
            and not glob.startswith("mcp_")
            and not any(fnmatchcase(one, glob) for one in TOOL_NAMES)
        ):
            near = get_close_matches(glob, TOOL_NAMES, n=1)
            yield keys, f"no tool has that name{f'; did you mean {near[0]}?' if near else ''}"


def _check_operator_channel(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """With a token there is a channel of the operator's own, whose name is taken."""
    channels = value_at(data, "channels")
    if (
        value_at(data, "ops", "token") is not None
        and isinstance(channels, dict)
        and OPERATOR_CHANNEL in channels
    ):
        yield (
            ("channels", OPERATOR_CHANNEL),
            (
                "with ops.token the operator's own channel has that name; write another one, e.g. "
                f"{OPERATOR_CHANNEL}.local"
            ),
        )


def _check_agents(agents: list[Tree]) -> Iterator[tuple[Keys, str]]:
    if not agents:
        yield ("agents",), "at least one agent is needed: add one with an id"
    ids = [agent.get("id") if isinstance(agent, dict) else None for agent in agents]
    for place, name in enumerate(ids):
        if isinstance(name, str) and name in ids[:place]:
            yield (
                ("agents", place, "id"),
                f"there are two agents with the id {name!r}; choose another",
            )
    for place, agent in enumerate(agents[:-1]):
        if isinstance(agent, dict) and "bindings" not in agent:
            message = (
                "gets every conversation, so the agents below get none; give it bindings, or put "
                "it last"
            )
            yield ("agents", place), message


def _check_models(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    models, broken_models = _parse_valid(_MODEL_ADAPTER, value_at(data, "llm", "models"))
    providers, broken_providers = _parse_valid(
        _PROVIDER_ADAPTER, value_at(data, "llm", "providers")
    )
    broken = broken_models | broken_providers
    for path, message in check_models(models, providers):
        keys = ("llm", *path)
        value = value_at(data, *keys)
        names = value if isinstance(value, list) else [value]
        if not any(name in broken for name in names if isinstance(name, str)):
            yield keys, message


def _parse_valid(form: TypeAdapter[T], values: Tree) -> tuple[dict[str, T], set[str]]:
    """Return the valid values, and the names of the others (whose errors the whole validation
    reports).
    """
    good: dict[str, T] = {}
    broken: set[str] = set()
    for name, value in values.items() if isinstance(values, dict) else ():
        try:
            good[name] = form.validate_python(value)
        except ValidationError:
            broken.add(name)
    return good, broken


def _model_references(data: dict[str, Tree]) -> Iterator[Keys]:
    agents = value_at(data, "agents")
    for index in range(len(agents) if isinstance(agents, list) else 0):
        yield "agents", index, "model"
    yield "llm", "context_optimization", "compaction", "summarizer_model"
