"""Access decisions: whether an event is accepted, and by which rule. Pure.

Closed by default: an event that no rule allows is refused (and still logged).
`gateway.core.identity` finds out who the sender is.
"""

from dataclasses import dataclass
from typing import Literal

from gateway.core.events import (
    Address,
    Command,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    Notification,
    PlaceRenamed,
    ReactionChanged,
    Sender,
)
from gateway.core.facts import address_of
from gateway.core.identity import ADMIN_ROLES, ANY_ROOM, AccessPolicy, Identity, Role, identify


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    """Result of the access check: allowed or not, and why."""

    allowed: bool
    role: Role
    rule: str
    global_role: Role = "guest"
    """As `Identity.global_role`."""
    request_kind: Literal["", "pair", "room"] = ""
    """Approval that a refused sender can ask for: to talk to the agent alone ("pair"), or to open
    the room.

    Empty: none.
    """


def decide(policy: AccessPolicy, event: Notification) -> AccessDecision:
    """Decide by the first rule that matches."""
    place = address_of(event)
    sender: Sender | None = getattr(event, "sender", None)
    if isinstance(event, PlaceRenamed) and not is_room_allowed(policy, event.at):
        return AccessDecision(
            allowed=False, role="guest", rule=f"not in channels.{event.at.channel}.rooms"
        )
    if place is None or sender is None:
        return AccessDecision(allowed=True, role="guest", rule="from the platform itself")
    who = identify(policy, place, sender)
    if place.channel == policy.operator_channel:
        return _allow(who, who.rule)
    if who.role == "blocked":
        return _deny(who, who.rule)
    if sender.is_bot and who.role == "guest":
        return _deny(who, "bots are not answered")
    if _is_direct(event):
        return _decide_direct(policy, event, who)
    if isinstance(event, MembershipChanged) and event.change == "invite":
        return _decide_invite(policy, place, who)
    if is_room_allowed(policy, place):
        return _allow(
            who,
            f"channels.{place.channel}.rooms"
            if is_room_configured(policy, place)
            else "the room was approved",
        )
    if isinstance(event, Command) and who.role in ADMIN_ROLES:
        return _allow(who, who.rule)
    spoken = isinstance(event, Command) or (isinstance(event, Message) and event.kind != "room")
    return _deny(
        who,
        f"not in channels.{place.channel}.rooms",
        "room" if spoken and policy.room_policy == "approval" else "",
    )


def is_room_allowed(policy: AccessPolicy, place: Address) -> bool:
    """Return whether the agent may act in this room."""
    return is_room_configured(policy, place) or _is_room_approved(policy, place)


def is_room_configured(policy: AccessPolicy, place: Address) -> bool:
    """Return whether the configuration opens this room."""
    rooms = policy.open_rooms.get(place.channel, frozenset())
    return place.room in rooms or ANY_ROOM in rooms or policy.space_of(place) in rooms


def list_open_rooms(policy: AccessPolicy) -> list[Address]:
    """Return the rooms that the configuration names one by one."""
    return [
        Address(channel=channel, room=room)
        for channel, rooms in policy.open_rooms.items()
        for room in sorted(rooms - {ANY_ROOM})
    ]


def is_room_chosen(policy: AccessPolicy, place: Address) -> bool:
    """Return whether the operator or an admin opened this very room or its space, not every room
    there is.
    """
    rooms = policy.open_rooms.get(place.channel, frozenset())
    return (
        place.room in rooms or policy.space_of(place) in rooms or _is_room_approved(policy, place)
    )


def _is_room_approved(policy: AccessPolicy, place: Address) -> bool:
    approved, space = policy.roster_state().rooms, policy.space_of(place)
    names = [place.room] if space is None else [place.room, space]
    return any(Address(channel=place.channel, room=name).conversation in approved for name in names)


def _is_direct(event: Notification) -> bool:
    is_direct_message = isinstance(event, Message) and event.kind == "direct"
    return is_direct_message or (
        isinstance(event, Command | MessageEdited | MessageDeleted | ReactionChanged)
        and event.direct
    )


def _decide_invite(policy: AccessPolicy, place: Address, who: Identity) -> AccessDecision:
    """Decide about an invitation; allowed: join.

    Only an admin may invite, and only to rooms where the agent may act.
    """
    rooms = f"channels.{place.channel}.rooms"
    if not is_room_allowed(policy, place):
        return _deny(
            who, f"invited, but not in {rooms}", "room" if policy.room_policy == "approval" else ""
        )
    if who.role not in ADMIN_ROLES:
        return _deny(who, "only an owner or admin may invite")
    return _allow(who, f"invited by an {who.role}, and in {rooms}")


def _decide_direct(policy: AccessPolicy, event: Notification, who: Identity) -> AccessDecision:
    if policy.dm_policy == "disabled":
        return _deny(who, "access.dm: disabled")
    if policy.dm_policy == "open":
        return _allow(who, "access.dm: open")
    if who.role != "guest":
        return _allow(who, who.rule)
    spoken = isinstance(event, Message | Command)
    return _deny(
        who,
        f"access.dm: {policy.dm_policy}, and no role",
        "pair" if spoken and policy.dm_policy == "pairing" else "",
    )


def _allow(who: Identity, rule: str) -> AccessDecision:
    return AccessDecision(allowed=True, role=who.role, rule=rule, global_role=who.global_role)


def _deny(who: Identity, rule: str, asks: Literal["", "pair", "room"] = "") -> AccessDecision:
    return AccessDecision(
        allowed=False, role=who.role, rule=rule, global_role=who.global_role, request_kind=asks
    )
