"""What is wrong, and what is unwise, in the section about people: names that must exist, ids that anybody can take."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from gateway.events import Address
from gateway.records import OPERATOR_CHANNEL
from gateway.settings import Settings
from gateway.settings_source import Keys, Tree, format_key, value_at
from gateway.standing import ADMIN_ROLES, MASK_PREFIX


def check_access(data: dict[str, Tree]) -> Iterator[tuple[Keys, str]]:
    """Keys and message for each mistake, in values as they were written."""
    yield from _check_duplicate_roles(value_at(data, "access", "roles"))
    channels = value_at(data, "channels")
    names = list(channels) if isinstance(channels, dict) else []
    ids = [one.get("id") for one in _list_of_maps(data, "agents")]
    for keys, person, role in _listed_people(data):
        channel, _, sender = person.partition(":")
        if role in ADMIN_ROLES and sender.startswith(MASK_PREFIX):
            yield keys, "anybody can have that mask: administration needs an account; write <channel>:account:<name>"
        elif channel == OPERATOR_CHANNEL and value_at(data, "ops", "token") is not None:
            yield keys, "whoever bears ops.token is an owner there, and nobody else is there; leave this out"
        elif names and sender and channel not in names:
            yield keys, f"no such channel; in channels: {', '.join(map(str, names))}"
    for number, grant in enumerate(_list_of_maps(data, "access", "grants")):
        agent = grant.get("agent")
        if isinstance(agent, str) and agent not in ids:
            yield ("access", "grants", number, "agent"), f"no such agent; in agents: {', '.join(map(str, ids))}"
        yield from _check_place(("access", "grants", number, "room"), grant.get("room"), names)
    for number, rule in enumerate(_list_of_maps(data, "access", "platform_roles")):
        glob = rule.get("channel")
        if isinstance(glob, str) and names and not any(fnmatchcase(str(name), glob) for name in names):
            yield ("access", "platform_roles", number, "channel"), f"fits no channel; there are: {', '.join(names)}"
    access = value_at(data, "access")
    yield from _check_place(("access", "tell"), access.get("tell") if isinstance(access, dict) else None, names)


def access_warnings(settings: Settings) -> Iterator[tuple[Keys, str]]:
    """What works, and lets in more than is meant."""
    said = settings.access
    if said.masks:
        yield ("access", "masks"), "who is paired by a mask is whoever has that mask tomorrow; accounts are safe"
    for index, person in enumerate(said.roles.member):
        if f":{MASK_PREFIX}" in person:
            yield (
                ("access", "roles", "member", index),
                "anybody can have that mask; write account:<name> if there is one",
            )
    for index, grant in enumerate(said.grants):
        if f":{MASK_PREFIX}" in grant.who and grant.role != "blocked":
            yield ("access", "grants", index, "who"), "anybody can have that mask; write account:<name> if there is one"
    for name, channel in settings.channels.items():
        unchecked = channel.platform == "irc" and not isinstance(channel.tls, bool) and not channel.tls.verify
        if channel.platform == "irc" and unchecked and (channel.password or (channel.sasl and channel.sasl.password)):
            told = "whoever is between us and the server gets the password; name the server's root in tls.ca_file"
            yield ("channels", name, "tls", "verify"), told
    for index, rule in enumerate(said.platform_roles):
        if rule.role in ADMIN_ROLES and rule.room == "*":
            told = "whoever the platform gives that anywhere administers there; name the room or guild if one is meant"
            yield ("access", "platform_roles", index, "room"), told


def _check_duplicate_roles(roles: Tree) -> Iterator[tuple[Keys, str]]:
    first: dict[str, Keys] = {}
    for role, people in roles.items() if isinstance(roles, dict) else ():
        for index, person in enumerate(people if isinstance(people, list) else ()):
            keys: Keys = ("access", "roles", role, index)
            if isinstance(person, str) and first.setdefault(person, keys)[2] != role:
                yield keys, f"has another role already ({format_key(first[person])}); keep one"


def _listed_people(data: dict[str, Tree]) -> Iterator[tuple[Keys, str, str]]:
    """Everybody who is written down: where, who, and with which role."""
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
    except ValueError:  # its own check tells that
        return
    if channel not in channels:
        yield keys, f"no such channel; in channels: {', '.join(channels) or 'none'}"


def _list_of_maps(data: dict[str, Tree], *keys: str) -> list[dict[str, Tree]]:
    rows = value_at(data, *keys)
    return [row if isinstance(row, dict) else {} for row in rows] if isinstance(rows, list) else []
