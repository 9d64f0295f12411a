"""Who may be heard. Pure.

Closed unless opened: without a rule that lets an event through, it is refused (and still logged). A
person is known by `channel:sender id`; a name or a nick never counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.events import (
    Address,
    ChannelName,
    Command,
    Edited,
    Membership,
    Message,
    Notification,
    Reacted,
    RoomId,
    Sender,
)
from gateway.records import address_of

Role = Literal["owner", "admin", "member", "guest", "blocked"]
DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]

ANY_ROOM = RoomId("*")
"""In a channel's room list: every room. Must be written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Who is who, and what is open."""

    dm: DmPolicy
    roles: Mapping[str, Role]
    """By `channel:sender id`, e.g. `telegram.main:1001` or `irc.libera:account:someone`."""
    rooms: Mapping[ChannelName, frozenset[RoomId]]
    space_of: Callable[[Address], RoomId | None] = lambda _: None
    """What a room is part of (a Discord guild); `rooms` may name that instead. None: nothing, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether an event is heard, and why."""

    allowed: bool
    role: Role
    rule: str


def role_of(policy: Policy, channel: ChannelName, sender: Sender) -> Role:
    """What the operator says this person is; administration only where the platform vouches for the id."""
    role = policy.roles.get(f"{channel}:{sender.id}", "guest")
    if role in ("owner", "admin") and not sender.verified:
        return "member"
    return role


def decide(policy: Policy, event: Notification) -> Decision:
    """Judge one event by the first rule that fits."""
    place = address_of(event)
    sender: Sender | None = getattr(event, "sender", None)
    if place is None or sender is None:
        return Decision(allowed=True, role="guest", rule="from the platform itself")
    role = role_of(policy, place.channel, sender)
    if role == "blocked":
        return Decision(allowed=False, role=role, rule="access.roles.blocked")
    if sender.is_bot and role == "guest":
        return Decision(allowed=False, role=role, rule="bots are not answered")
    if (isinstance(event, Message) and event.kind == "direct") or (
        isinstance(event, Command | Edited | Reacted) and event.direct
    ):
        return _direct(policy, role)
    if isinstance(event, Membership) and event.change == "invite":
        return _invited(place.channel, role, listed=listed(policy, place))
    if listed(policy, place):
        return Decision(allowed=True, role=role, rule=f"channels.{place.channel}.rooms")
    if isinstance(event, Command) and role in ("owner", "admin"):
        return Decision(allowed=True, role=role, rule=f"access.roles.{role}")
    return Decision(allowed=False, role=role, rule=f"not in channels.{place.channel}.rooms")


def listed(policy: Policy, place: Address) -> bool:
    """Whether it is a room where the agent may act."""
    rooms = policy.rooms.get(place.channel, frozenset())
    return place.room in rooms or ANY_ROOM in rooms or policy.space_of(place) in rooms


def _invited(channel: ChannelName, role: Role, *, listed: bool) -> Decision:
    """Allowed means: go there. The operator lists the rooms; an admin may call into one of them."""
    if role not in ("owner", "admin"):
        return Decision(allowed=False, role=role, rule="only an owner or admin may invite")
    if not listed:
        return Decision(allowed=False, role=role, rule=f"invited, but not in channels.{channel}.rooms")
    return Decision(allowed=True, role=role, rule=f"invited by an {role}, and in channels.{channel}.rooms")


def _direct(policy: Policy, role: Role) -> Decision:
    if policy.dm == "disabled":
        return Decision(allowed=False, role=role, rule="access.dm: disabled")
    if policy.dm == "open":
        return Decision(allowed=True, role=role, rule="access.dm: open")
    if role != "guest":
        return Decision(allowed=True, role=role, rule=f"access.roles.{role}")
    return Decision(allowed=False, role=role, rule=f"access.dm: {policy.dm}, and no role")
