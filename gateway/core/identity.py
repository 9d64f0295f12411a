"""Identity: the role of a sender in a place (`identify`), and the sources of roles
(`AccessPolicy`). Pure.

A person is identified by `channel:sender id`; a display name or a nick never counts. Roles are
given by the operator, by administrators while the gateway runs (`RosterState`), and by a platform's
ranks in a place, if the operator configures that. The strongest role counts; being blocked counts
before all others; administration needs an id that the platform vouches for. Whether an event is
accepted is decided with that in `gateway.access.policy`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from gateway.core.control_messages import OPERATOR
from gateway.core.events import Address, ChannelName, ConversationId, Message, RoomId, Sender
from gateway.core.frozen import frozen
from gateway.core.labels import rank_integrity

Role = Literal["owner", "admin", "member", "guest", "blocked"]
"""Rights of a person, in all places or in some."""
DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]
RoomPolicy = Literal["approval", "listed"]

ROLE_ORDER: Final[tuple[Role, ...]] = ("blocked", "guest", "member", "admin", "owner")
"""Roles in ascending order of rights."""
ADMIN_ROLES: Final[tuple[Role, ...]] = ("admin", "owner")
ANY_ROOM: Final = RoomId("*")
"""Stands for every room in a channel's room list. Must be written out."""
MASK_PREFIX: Final = "mask:"
"""Prefix of ids that are only the mask that an IRC server shows. Anybody may have the same one
tomorrow."""
BRIDGE_PREFIX: Final = "bridge:"
"""Prefix of ids of people behind an IRC bridge, `bridge:BRIDGE:NAME`. They are guests: they can
take any name."""
BRIDGE_MARK: Final = " (via "
"""Stands between the name of such a person and that of the bridge, in `Sender.name`."""
AGENT_SCOPE_PREFIX: Final = "agent:"
"""Prefix of a scope that is one agent."""
_CASE_INSENSITIVE_PREFIXES: Final = ("account:", MASK_PREFIX)
"""Ids of services accounts and masks ignore case
(https://modern.ircdocs.horse/#casemapping-parameter)."""


class RoleGrant(NamedTuple):
    """A role given to a person."""

    role: Role
    scope: str
    """Empty: everywhere. `agent:ID`: with that agent. Else a room, or a space of rooms:
    `channel/room`."""
    rule: str
    """The rule or person that gave it, for people."""


class PlatformRoleRule(NamedTuple):
    """A role for senders with a platform rank. Never gives administration to a bot."""

    channel: str
    """A glob."""
    room: str
    """A room, or a space of rooms. `*`: any."""
    platform_role: str
    """One of `Sender.ranks`."""
    role: Role
    rule: str


@frozen
class RosterState:
    """Decisions made while gateways ran, as recorded in the log so far."""

    grants: Mapping[str, Sequence[RoleGrant]] = field(default_factory=dict)
    """By person, in the form of `person_key`; masks as patterns."""
    rooms: AbstractSet[ConversationId] = frozenset()
    """Approved rooms, and spaces of rooms."""
    links: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    """By person: their other linked accounts."""


@frozen(slots=False, eq=False)
class AccessPolicy:
    """Roles and open rooms. `gateway.stream.routing.LiveAccessPolicy` is the one in force."""

    dm_policy: DmPolicy
    roles: Mapping[str, Role]
    """By `channel:sender id`, e.g. `telegram.main:1001` or `irc.libera:account:someone`; masks as
    patterns."""
    open_rooms: Mapping[ChannelName, frozenset[RoomId]]
    grants: Mapping[str, Sequence[RoleGrant]] = field(default_factory=dict)
    """Roles that the operator gives in some places only, by the same keys."""
    platform_roles: Sequence[PlatformRoleRule] = ()
    room_policy: RoomPolicy = "listed"
    """approval: a person who addresses the agent in another room is shown how to have it
    approved."""
    allow_masks: bool = False
    """True if a person may be paired whose id the platform does not vouch for."""
    operator_channel: ChannelName | None = None
    """The operator's own channel: the operator is an owner there, and every other sender an admin,
    whatever other rules exist. None: there is none."""

    def space_of(self, at: Address) -> RoomId | None:  # noqa: ARG002 - for those that know
        """Return the space of a room (a Discord guild); `open_rooms` may name that instead. None:
        none, or unknown.
        """
        return None

    def listed_rooms(self) -> Sequence[Address]:
        """Return the rooms that platforms report before anybody has written there."""
        return ()

    def agent_of(self, at: Address) -> str:  # noqa: ARG002 - for those that know
        """Return the agent of a conversation."""
        return ""

    def roster_state(self) -> RosterState:
        """Return what administrators have decided so far."""
        return RosterState()


class Identity(NamedTuple):
    """Role of a person in a place."""

    role: Role
    rule: str
    global_role: Role
    """Role by the rules alone that hold in all places."""


_NOBODY: Final = Identity("guest", "nobody gave a role", "guest")


def person_key(channel: ChannelName, sender_id: str) -> str:
    """Return `channel:sender id`, equal for all spellings of one id."""
    is_folded = sender_id.startswith(_CASE_INSENSITIVE_PREFIXES)
    return f"{channel}:{fold_account(sender_id) if is_folded else sender_id}"


def fold_account(name: str) -> str:
    """Return a text that is equal for all spellings of one account.

    Lowers only the letters of ASCII: a Kelvin sign would become a `k`, and its account equal to
    another person's.
    """
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def normalize_person_key(text: str) -> str:
    """Return the `person_key` of an id that an operator has written as `channel:sender id`."""
    channel, _, sender_id = text.partition(":")
    return person_key(ChannelName(channel), sender_id)


def stable_source(person: str) -> str:
    """Return a `person_key` without what the person can change at once, for limits that count by
    person.

    Of a mask only the host stays: nick and user can be chosen freely. All people behind one bridge
    are one source. All other keys are returned unchanged.
    """
    return _bridge_of(person) if is_bridged(person) else hide_nick(person)


def hide_nick(person: str) -> str:
    """Return the `person_key` of a mask with its host alone, and all other keys unchanged."""
    channel, _, sender_id = person.partition(":")
    nick, _, host = sender_id.removeprefix(MASK_PREFIX).rpartition("@")
    is_mask = sender_id.startswith(MASK_PREFIX) and nick and host
    return f"{channel}:{MASK_PREFIX}*!*@{host}" if is_mask else person


def is_bridged(person: str) -> bool:
    """Return whether a `person_key` is of somebody behind a bridge."""
    return person.partition(":")[2].startswith(BRIDGE_PREFIX)


def name_to_address(sender: Sender) -> str:
    """Return the name by which others address somebody: of a person behind a bridge, without the
    bridge.
    """
    return (
        sender.name.rpartition(BRIDGE_MARK)[0] or sender.name
        if sender.id.startswith(BRIDGE_PREFIX)
        else sender.name
    )


def _bridge_of(person: str) -> str:
    return ":".join([*person.split(":", 3)[:3], ""])


def identify(policy: AccessPolicy, at: Address, sender: Sender) -> Identity:
    """Return the role of a sender in a place. Administration only where the platform vouches for
    the id.
    """
    if at.channel == policy.operator_channel:
        role: Role = "owner" if sender.id == OPERATOR else "admin"  # one of `ops.tokens`
        return Identity(role, "the operator's own channel", role)
    found = list(_find_roles(policy, at, sender, person_key(at.channel, sender.id)))
    for role, rule, _ in found:
        if role == "blocked":
            return Identity(role, rule, role)
    if sender.id.startswith(BRIDGE_PREFIX):
        return Identity("guest", "behind a bridge", "guest")
    if not found:
        return _NOBODY
    allowed = [one for one in found if sender.verified or one[0] not in ADMIN_ROLES]
    if len(allowed) < len(found):
        is_global = any(everywhere for role, _, everywhere in found if role in ADMIN_ROLES)
        allowed.append(
            ("member", "an administrator's id that the platform does not vouch for", is_global)
        )
    best = max(allowed, key=lambda one: ROLE_ORDER.index(one[0]))
    global_roles: list[Role] = ["guest", *(role for role, _, everywhere in allowed if everywhere)]
    return Identity(best[0], best[1], max(global_roles, key=ROLE_ORDER.index))


def author_role(policy: AccessPolicy, message: Message) -> Role:
    """Return the role with which the text of a message counts: that of its sender, or less
    (`Message.as_guest`).
    """
    return text_role(message, identify(policy, message.at, message.sender).role)


def text_role(message: Message, role: Role) -> Role:
    """Return the role with which the text of a message of somebody with this role counts."""
    return "guest" if message.as_guest and role != "blocked" else role


def _find_roles(
    policy: AccessPolicy, at: Address, sender: Sender, own_key: str
) -> Iterator[tuple[Role, str, bool]]:
    """Yield every role of a sender in a place: role, rule, and whether it holds everywhere."""
    roster = policy.roster_state()
    linked = sorted(roster.links.get(own_key, ())) if sender.verified else ()
    for person in (own_key, *linked):
        via = f", as {person}" if person != own_key else ""
        for key in _matching_keys(person, policy.roles):
            yield policy.roles[key], f"access.roles.{policy.roles[key]}{via}", True
        for grants in (policy.grants, roster.grants):
            for key in _matching_keys(person, grants):
                for grant in grants[key]:
                    if scope_covers(policy, grant.scope, at):
                        yield grant.role, grant.rule + via, not grant.scope
    for rule in policy.platform_roles if sender.ranks else ():
        if sender.is_bot and rule.role in ADMIN_ROLES:
            continue  # moderation bots repeat text that anybody may have written
        if (
            rule.platform_role in sender.ranks
            and fnmatchcase(at.channel, rule.channel)
            and _is_in_room(policy, rule.room, at)
        ):
            yield rule.role, rule.rule, False


def _matching_keys(person: str, mapping: Mapping[str, object]) -> Sequence[str]:
    if not mapping:
        return ()
    bridge = _bridge_of(person) if f":{BRIDGE_PREFIX}" in person and is_bridged(person) else person
    keys = [key for key in dict.fromkeys([person, bridge]) if key in mapping]
    if f":{MASK_PREFIX}" in person:
        keys += (
            key
            for key in mapping
            if key != person and f":{MASK_PREFIX}" in key and _mask_pattern(key).fullmatch(person)
        )
    return keys


@lru_cache(maxsize=1_000)
def _mask_pattern(mask: str) -> re.Pattern[str]:
    # `*` and `?` as in a ban: https://modern.ircdocs.horse/#wildcard-expressions. A nick may hold a
    # glob's brackets. `translate` tries each star once, so no pattern takes longer than its length
    # times that of the id.
    return re.compile(translate(mask.replace("[", "[[]")))


def scope_covers(policy: AccessPolicy, scope: str, at: Address) -> bool:
    """Return whether a role of that scope holds in that place."""
    if not scope or scope.startswith(AGENT_SCOPE_PREFIX):
        return not scope or policy.agent_of(at) == scope.removeprefix(AGENT_SCOPE_PREFIX)
    try:
        place = Address.parse(scope)
    except ValueError:
        return False
    return place.channel == at.channel and _is_in_room(policy, place.room, at)


def _is_in_room(policy: AccessPolicy, room: str, at: Address) -> bool:
    return room in (ANY_ROOM, at.room) or (policy.space_of(at) == room)


def has_administrator(policy: AccessPolicy) -> bool:
    """Return whether any person is an owner or admin by id."""
    return any(role in ADMIN_ROLES for _, role in _role_holders(policy))


def has_role_holder(policy: AccessPolicy, channel: ChannelName, roles: Sequence[str]) -> bool:
    """Return whether any person on that channel may have one of these roles."""
    if channel == policy.operator_channel:
        return "owner" in roles
    holders = list(_role_holders(policy))
    if any(role in roles and person.startswith(f"{channel}:") for person, role in holders):
        return True
    if any(
        rule.role in roles and fnmatchcase(channel, rule.channel) for rule in policy.platform_roles
    ):
        return True
    links = policy.roster_state().links
    linked = (other for person, role in holders if role in roles for other in links.get(person, ()))
    return any(other.startswith(f"{channel}:") for other in linked)


def _role_holders(policy: AccessPolicy) -> Iterator[tuple[str, Role]]:
    yield from policy.roles.items()
    for by_person in (policy.grants, policy.roster_state().grants):
        for person, grants in by_person.items():
            for grant in grants:
                yield person, grant.role


def proven_role(role: str, *, verified: bool) -> str:
    """Return the role that counts: without proof of identity, an owner or admin counts as a
    member.
    """
    return "member" if role in ("owner", "admin") and not verified else role


def lowest_role(roles: Iterable[str]) -> str:
    """Return the role with the fewest rights. Raises ValueError for none."""
    return min(roles, key=rank_integrity)
