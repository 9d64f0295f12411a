"""Checks across sections: names that must exist, people with two roles, and ids that anybody can
take.

`cross_check` reports what must be corrected in settings whose sections are valid each,
`access_warnings` what lets in more people than intended, `find_unrunnable` that with which no
gateway can run.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import import_module

from agent.models.config import check_models
from gateway.config.models import AgentConfig, Settings
from gateway.config.source import Keys, format_key
from gateway.core.events import Address
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX
from gateway.core.tool import permits_of


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
    for index, rule in enumerate(access.platform_roles):
        if rule.role in ADMIN_ROLES and rule.room == "*":
            message = (
                "whoever has that platform role anywhere gets this role there; name the room or "
                "guild if you mean one"
            )
            yield ("access", "platform_roles", index, "room"), message
    yield from _channel_warnings(settings)


def _channel_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """Yield what the settings of the channels warn of."""
    for name, channel in settings.channels.items():
        for keys, why in channel.find_warnings():
            yield ("channels", name, *keys), why
    for room_keys, room in _notified_rooms(settings):
        at = Address.parse(room) if room else None
        config = settings.channels.get(at.channel) if at is not None else None
        if at is not None and config is not None and (why := config.explain_unsafe_room(at.room)):
            yield room_keys, why


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
