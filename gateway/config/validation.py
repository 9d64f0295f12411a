"""Checks across sections: names that must exist, people with two roles, and ids that anybody can
take.

`cross_check` reports what must be corrected in settings whose sections are valid each,
`find_warnings` what is hardly meant, `find_unrunnable` that with which no gateway can run.
"""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Final

from agent.models.config import check_models, fallback_chain
from agent.models.settings import KeyedSettings
from gateway.config.models import AgentConfig, BindingMatch, Settings
from gateway.config.source import Keys, format_key
from gateway.core.events import Address
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX
from gateway.core.tool import permits_of

MIN_WINDOW_TOKENS: Final = 4_096
"""Smallest window of a model in which the persona leaves room for a conversation."""


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
        if config.unrunnable:
            yield ("channels", name), config.unrunnable
        elif account := config.account():
            held, key = first.setdefault(account, name), config.account_keys[0]
            if held != name:
                message = (
                    f"is the {key} of channels.{held}, too; remove one of the two, or give this "
                    "one another account"
                )
                yield ("channels", name, key), message


def _check_people(settings: Settings) -> Iterator[tuple[Keys, str]]:
    first: dict[str, Keys] = {}
    for keys, person, role in _listed_people(settings):
        if keys[1] == "roles" and first.setdefault(person, keys)[2] != role:
            yield keys, f"already has another role ({format_key(first[person])}); keep one"
        channel, _, sender = person.partition(":")
        if role in ADMIN_ROLES and sender.startswith(MASK_PREFIX):
            yield (
                keys,
                (
                    "anybody can have that mask: administration needs an account; write "
                    "<channel>:account:<name>"
                ),
            )
        elif channel == OPERATOR_CHANNEL and settings.ops.token is not None:
            yield (
                keys,
                "whoever has ops.token is an owner there, and nobody else is there; remove this",
            )
        elif settings.channels and channel not in settings.channels:
            yield keys, f"no such channel; in channels: {', '.join(settings.channels)}"


def _check_places(settings: Settings) -> Iterator[tuple[Keys, str]]:
    access, names = settings.access, ", ".join(settings.channels) or "none"
    ids = [one.id for one in settings.agents]
    places: list[tuple[Keys, str | None]] = [
        (("access", "grants", number, "room"), one.room) for number, one in enumerate(access.grants)
    ]
    for number, grant in enumerate(access.grants):
        if grant.agent is not None and grant.agent not in ids:
            yield (
                ("access", "grants", number, "agent"),
                f"no such agent; in agents: {', '.join(ids)}",
            )
    for number, rule in enumerate(access.platform_roles):
        if settings.channels and not any(
            fnmatchcase(name, rule.channel) for name in settings.channels
        ):
            yield (
                ("access", "platform_roles", number, "channel"),
                f"matches no channel; the channels are: {names}",
            )
    for keys, room in (*places, *_notified_rooms(settings)):
        if room and Address.parse(room).channel not in settings.channels:
            yield keys, f"no such channel; in channels: {names}"


def _notified_rooms(settings: Settings) -> tuple[tuple[Keys, str | None], ...]:
    """Return the rooms where owners and admins are told something, with their keys."""
    return (
        (("access", "tell"), settings.access.tell),
        (("tools", "approvals", "room"), settings.tools.approvals.room),
    )


def find_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield settings that are valid, but let in more than intended, or have no effect."""
    yield from _access_warnings(settings)
    yield from _idle_access(settings)
    yield from _channel_warnings(settings)
    yield from _binding_warnings(settings)
    yield from _model_warnings(settings)


def _idle_access(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield what holds for nobody."""
    for keys, person, _ in _listed_people(settings):
        name, _, sender = person.partition(":")
        channel = settings.channels.get(name)
        if channel and not re.fullmatch(channel.sender_ids, sender, re.DOTALL):
            yield (
                keys,
                f"nobody there has such an id; write e.g. {name}:{channel.sender_id_example}",
            )
    for name, usd in settings.access.budgets:
        if usd == 0:
            yield (
                ("access", "budgets", name),
                "with 0, only owners and admins are answered; write an amount, or null: no limit",
            )


def _access_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    access = settings.access
    if access.masks:
        yield (
            ("access", "masks"),
            "a mask that was approved may belong to somebody else tomorrow; write masks: false",
        )
    for keys, person, role in _listed_people(settings):
        if f":{MASK_PREFIX}" in person and role == "member":
            yield keys, "anybody can have that mask; write account:<name> if there is one"
    for index, rule in enumerate(access.platform_roles):
        if rule.role in ADMIN_ROLES and rule.room == "*":
            message = (
                "whoever has that platform role anywhere gets this role there; name the room or "
                "guild if you mean one"
            )
            yield ("access", "platform_roles", index, "room"), message


def _channel_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    heard = [
        one.match.channel
        for agent in settings.agents
        for one in agent.bindings
        if one.listen != "off"
    ]
    for name, channel in settings.channels.items():
        for keys, why in channel.find_warnings():
            yield ("channels", name, *keys), why
        rooms = [room.casefold() for room in channel.rooms]
        for index in range(len(rooms)):
            if rooms[index] in rooms[:index]:
                yield ("channels", name, "rooms", index), "is listed twice; remove one of the two"
        if not any(fnmatchcase(name, glob) for glob in heard):
            message = (
                "no agent reads this channel; add a binding that matches it to an agent "
                "(agents[].bindings), or remove the channel"
            )
            yield ("channels", name), message
    for room_keys, room in _notified_rooms(settings):
        at = Address.parse(room) if room else None
        config = settings.channels.get(at.channel) if at is not None else None
        if at is not None and config is not None and (why := config.explain_unsafe_room(at.room)):
            yield room_keys, why


def _binding_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    above = list[BindingMatch]()
    for number, agent in enumerate(settings.agents):
        for index, binding in enumerate(agent.bindings):
            keys: Keys = ("agents", number, "bindings", index)
            here = binding.match
            if not any(fnmatchcase(name, here.channel) for name in settings.channels or ["*"]):
                message = (
                    f"matches no channel (there are {', '.join(settings.channels)}); correct it, "
                    "or remove the binding"
                )
                yield (*keys, "match", "channel"), message
            elif any(_covers(one, here) for one in above):
                message = (
                    "no conversation comes to this binding, for one above it matches them all; put "
                    "this one above it"
                )
                yield keys, message
            above.append(here)


def _covers(one: BindingMatch, other: BindingMatch) -> bool:
    """Return whether `one` surely matches all that `other` does."""
    return (
        one.channel in ("*", other.channel)
        and one.room in ("*", other.room)
        and one.thread in (None, other.thread)
    )


def list_used_models(settings: Settings) -> list[str]:
    """Return the keys of `llm.models` in use: by agents, as fallbacks, or for summaries."""
    models, summarizer = (
        settings.llm.models,
        settings.llm.context_optimization.compaction.summarizer_model,
    )
    first = [*(agent.model for agent in settings.agents), *([summarizer] if summarizer else [])]
    return list(dict.fromkeys(key for one in first for key in fallback_chain(one, models)))


def _model_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    llm = settings.llm
    for key in list_used_models(settings):
        model = llm.models[key]
        provider = llm.providers[model.provider]
        window = provider.options(key, model)["context_tokens"]
        if window < MIN_WINDOW_TOKENS:
            message = (
                f"{window} tokens leave no room for a conversation beside the persona; write what "
                f"the model takes, at least {MIN_WINDOW_TOKENS}"
            )
            yield ("llm", "models", key, "context_tokens"), message
        if isinstance(provider, KeyedSettings) and (wrong := provider.find_wrong_key()):
            yield ("llm", "providers", model.provider, "api_key"), wrong


def _listed_people(settings: Settings) -> Iterator[tuple[Keys, str, str]]:
    """Yield every person with a role: keys, person key and role."""
    for role, people in settings.access.roles:
        for index, person in enumerate(people):
            yield ("access", "roles", role, index), person, role
    for number, grant in enumerate(settings.access.grants):
        yield ("access", "grants", number, "who"), grant.who, grant.role


def cross_check(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield keys and message for each problem between sections."""
    llm = settings.llm
    named: list[tuple[Keys, str]] = [
        (("agents", number, "model"), one.model) for number, one in enumerate(settings.agents)
    ]
    keys: Keys = ("llm", "context_optimization", "compaction", "summarizer_model")
    named.append((keys, llm.context_optimization.compaction.summarizer_model))
    for keys, name in named:
        if name and name not in llm.models:
            yield keys, f"no such model; in llm.models: {', '.join(llm.models) or 'none'}"
    yield from _check_agents(settings.agents)
    for path, message in check_models(llm.models, llm.providers):
        yield ("llm", *path), message
    if settings.ops.tokens and settings.ops.token is None:
        yield (
            ("ops", "tokens"),
            "these need ops.token as well, for what only an owner may do: set it",
        )
    if settings.ops.token in [one.token for one in settings.ops.tokens]:
        yield ("ops", "tokens"), "one of them is ops.token: give each a token of its own"
    if settings.ops.token is not None and OPERATOR_CHANNEL in settings.channels:
        yield (
            ("channels", OPERATOR_CHANNEL),
            (
                "with ops.token the operator's own channel has that name; write another one, e.g. "
                f"{OPERATOR_CHANNEL}.local"
            ),
        )
    yield from _check_people(settings)
    yield from _check_places(settings)
    yield from _check_tool_names(settings)


def _check_tool_names(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Report rules for tools that do not exist: they protect nothing. MCP tools are known only at
    run time.
    """
    tools = settings.tools
    named: list[tuple[Keys, str]] = [
        (("tools", "off", index), glob) for index, glob in enumerate(tools.off)
    ]
    named += [
        (("tools", "rules", index, "tool"), rule.tool) for index, rule in enumerate(tools.rules)
    ]
    # Plugins, which have all tools but those of MCP servers, stand above the configuration.
    names = sorted(permits_of(*import_module("gateway.plugins").find_plugins().classes))
    for keys, glob in named:
        if not glob.startswith("mcp_") and not any(fnmatchcase(one, glob) for one in names):
            near = get_close_matches(glob, names, n=1)
            yield keys, f"no tool has that name{f'; did you mean {near[0]}?' if near else ''}"


def _check_agents(agents: Sequence[AgentConfig]) -> Iterator[tuple[Keys, str]]:
    if not agents:
        yield ("agents",), "at least one agent is needed: add one with an id"
    ids = [one.id for one in agents]
    for place, name in enumerate(ids):
        if name in ids[:place]:
            yield (
                ("agents", place, "id"),
                f"there are two agents with the id {name!r}; choose another",
            )
    for place, agent in enumerate(agents[:-1]):
        if "bindings" not in agent.model_fields_set:
            message = (
                "gets every conversation, so the agents below get none; give it bindings, or put "
                "it last"
            )
            yield ("agents", place), message
