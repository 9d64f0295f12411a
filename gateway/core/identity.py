"""Who somebody is: roles, and where they are from. Pure.

A person is known by `channel:sender id`; a name or a nick never counts. Roles are given by the operator, by
administrators while the gateway runs (`RosterState`), and by what a platform says of somebody in a place, where the
operator wants that. The strongest one counts; being blocked counts before all others; administration needs an id that
the platform vouches for.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final, Literal, NamedTuple

from gateway.core.events import Address, ChannelName, ConversationId, RoomId, Sender

Role = Literal["owner", "admin", "member", "guest", "blocked"]
DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]
RoomPolicy = Literal["approval", "listed"]

ROLE_ORDER: Final[tuple[Role, ...]] = ("blocked", "guest", "member", "admin", "owner")
"""Who may do less stands first."""
ADMIN_ROLES: Final[tuple[Role, ...]] = ("admin", "owner")
ANY_ROOM: Final = RoomId("*")
"""In a channel's room list: every room. Must be written out."""
MASK_PREFIX: Final = "mask:"
"""So begin ids that only say what a server shows of somebody. Anybody may have the same tomorrow."""
AGENT_SCOPE_PREFIX: Final = "agent:"
"""So begins a scope that is one agent."""
_ASCII_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
"""And no other letters: a Kelvin sign would become a `k`, and its account somebody else's."""
_CASE_INSENSITIVE_PREFIXES: Final = ("account:", MASK_PREFIX)
"""Ids of services accounts and masks are the same in any case (https://modern.ircdocs.horse/#casemapping-parameter)."""


class RoleGrant(NamedTuple):
    """A role that somebody was given."""

    role: Role
    scope: str
    """Empty: everywhere. `agent:ID`: with that agent. Else a room, or what rooms are part of: `channel/room`."""
    rule: str
    """Who or what gave it, for people."""


class PlatformRoleRule(NamedTuple):
    """A role for whom the platform says something of. No bot administers by it."""

    channel: str
    """A glob."""
    room: str
    """A room, or what rooms are part of. `*`: any."""
    platform_role: str
    """One of `Sender.ranks`."""
    role: Role
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterState:
    """What was decided while gateways ran, as the log has it by now."""

    grants: Mapping[str, Sequence[RoleGrant]] = field(default_factory=dict)
    """By person, as `person_key` writes them; masks as patterns."""
    rooms: AbstractSet[ConversationId] = frozenset()
    """Rooms, or what rooms are part of, that were approved."""
    links: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    """By person: the others that are the same one."""


EMPTY_ROSTER: Final = RosterState()


@dataclass(slots=True, kw_only=True, eq=False)
class AccessPolicy:
    """Who is who, and what is open. One for all, so that it is another for everybody at the same moment (`become`)."""

    dm_policy: DmPolicy
    roles: Mapping[str, Role]
    """By `channel:sender id`, e.g. `telegram.main:1001` or `irc.libera:account:someone`; masks as patterns."""
    open_rooms: Mapping[ChannelName, frozenset[RoomId]]
    grants: Mapping[str, Sequence[RoleGrant]] = field(default_factory=dict)
    """The same for roles that the operator gives in some places only."""
    platform_roles: Sequence[PlatformRoleRule] = ()
    room_policy: RoomPolicy = "listed"
    """approval: who speaks to the agent in another room is told how to have it approved."""
    allow_masks: bool = False
    """Whether somebody may be paired whom nobody vouches for."""
    space_of: Callable[[Address], RoomId | None] = lambda _: None
    """What a room is part of (a Discord guild); `rooms` may name that instead. None: nothing, or not known."""
    agent_of: Callable[[Address], str] = lambda _: ""
    """Whose conversation it is."""
    roster_state: Callable[[], RosterState] = lambda: EMPTY_ROSTER
    operator_channel: ChannelName | None = None
    """The operator's own channel: whoever speaks there is an owner, whatever else is said of them. None: there is none.
    """

    def update_from(self, other: "AccessPolicy") -> None:
        """Say from now on what the other says that comes from the configuration. Returns at once."""
        self.dm_policy, self.roles, self.open_rooms, self.grants = (
            other.dm_policy,
            other.roles,
            other.open_rooms,
            other.grants,
        )
        self.platform_roles, self.room_policy, self.allow_masks = (
            other.platform_roles,
            other.room_policy,
            other.allow_masks,
        )
        self.agent_of = other.agent_of


class Identity(NamedTuple):
    """Who somebody is in a place."""

    role: Role
    rule: str
    global_role: Role
    """By what holds in all places alone."""


def person_key(channel: ChannelName, sender_id: str) -> str:
    """`channel:sender id`, the same for all spellings of one id."""
    if sender_id.startswith(_CASE_INSENSITIVE_PREFIXES):
        sender_id = sender_id.translate(_ASCII_LOWER)
    return f"{channel}:{sender_id}"


def normalize_person_key(written: str) -> str:
    """The same for what an operator has written: `channel:sender id`."""
    channel, _, sender_id = written.partition(":")
    return person_key(ChannelName(channel), sender_id)


def stable_source(one: str) -> str:
    """Where a person, as `person_key` writes them, comes from, as far as they cannot change that at once.

    Of a mask that is its host: nick and user are whatever somebody likes. Everybody else is who they are.
    """
    channel, mask, rest = one.partition(f":{MASK_PREFIX}")
    nick, at, host = rest.rpartition("@")
    return f"{channel}{mask}*!*{at}{host}" if mask and nick and host else one


def identify(policy: AccessPolicy, at: Address, sender: Sender) -> Identity:
    """Who this is there. Administration only where the platform vouches for the id."""
    if at.channel == policy.operator_channel:
        return Identity("owner", "the operator's own channel", "owner")
    found = list(_roles_found(policy, at, sender))
    for role, rule, _ in found:
        if role == "blocked":
            return Identity(role, rule, role)
    able = [one for one in found if sender.verified or one[0] not in ADMIN_ROLES]
    if len(able) < len(found):
        far = any(everywhere for role, _, everywhere in found if role in ADMIN_ROLES)
        able.append(("member", "an administrator's id that the platform does not vouch for", far))
    best = max(able, key=lambda one: ROLE_ORDER.index(one[0]), default=("guest", "nobody gave a role", True))
    wide: list[Role] = ["guest", *(role for role, _, everywhere in able if everywhere)]
    return Identity(best[0], best[1], max(wide, key=ROLE_ORDER.index))


def role_of(policy: AccessPolicy, at: Address, sender: Sender) -> Role:
    """Who this is there, in a word."""
    return identify(policy, at, sender).role


def _roles_found(policy: AccessPolicy, at: Address, sender: Sender) -> Iterator[tuple[Role, str, bool]]:
    """Every role that somebody has there: role, rule, and whether it holds everywhere."""
    known, own = policy.roster_state(), person_key(at.channel, sender.id)
    same = sorted(known.links.get(own, ())) if sender.verified else ()
    for one in (own, *same):
        via = f", as {one}" if one != own else ""
        for key in _matching_keys(one, policy.roles):
            yield policy.roles[key], f"access.roles.{policy.roles[key]}{via}", True
        for given in (policy.grants, known.grants):
            for key in _matching_keys(one, given):
                for grant in given[key]:
                    if scope_covers(policy, grant.scope, at):
                        yield grant.role, grant.rule + via, not grant.scope
    for rule in policy.platform_roles if sender.ranks else ():
        if sender.is_bot and rule.role in ADMIN_ROLES:
            continue  # bots that keep order say what anybody has them say
        if (
            rule.platform_role in sender.ranks
            and fnmatchcase(at.channel, rule.channel)
            and _is_in_room(policy, rule.room, at)
        ):
            yield rule.role, rule.rule, False


def _matching_keys(one: str, given: Mapping[str, object]) -> Iterator[str]:
    """Under which keys this person stands there."""
    if one in given:
        yield one
    if f":{MASK_PREFIX}" in one:
        yield from (
            key for key in given if key != one and f":{MASK_PREFIX}" in key and _mask_pattern(key).fullmatch(one)
        )


@lru_cache(maxsize=1_000)
def _mask_pattern(mask: str) -> re.Pattern[str]:
    # `*` and `?` as in a ban: https://modern.ircdocs.horse/#wildcard-expressions. A nick may hold a glob's brackets.
    # `translate` gives each star one try, so that no pattern of an admin's takes longer than its length times the id's.
    return re.compile(translate(mask.replace("[", "[[]")))


def scope_covers(policy: AccessPolicy, scope: str, at: Address) -> bool:
    """Whether a role of that scope holds there."""
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
    """Whether anybody is an owner or admin by name."""
    given = (
        one.role for all_ in (policy.grants, policy.roster_state().grants) for some in all_.values() for one in some
    )
    return any(role in ADMIN_ROLES for role in (*policy.roles.values(), *given))


def has_role_holder(policy: AccessPolicy, channel: ChannelName, roles: Sequence[str]) -> bool:
    """Whether anybody on that channel may have one of these roles."""
    if channel == policy.operator_channel:
        return "owner" in roles
    given = [(key, role) for key, role in policy.roles.items()]
    given += [
        (key, one.role) for all_ in (policy.grants, policy.roster_state().grants) for key in all_ for one in all_[key]
    ]
    if any(role in roles and key.startswith(f"{channel}:") for key, role in given):
        return True
    if any(rule.role in roles and fnmatchcase(channel, rule.channel) for rule in policy.platform_roles):
        return True
    links = policy.roster_state().links
    same = (one for key, role in given if role in roles for one in links.get(key, ()))
    return any(one.startswith(f"{channel}:") for one in same)
