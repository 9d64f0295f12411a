"""Who may be heard. Pure.

Closed unless opened: without a rule that lets an event through, it is refused (and still logged). Who somebody is says
`gateway.standing`.
"""

from dataclasses import dataclass
from typing import Literal

from gateway.events import Address, Command, Deleted, Edited, Membership, Message, Named, Notification, Reacted, Sender
from gateway.records import address_of
from gateway.standing import ADMINS, ANY_ROOM, DmPolicy, Policy, Role, Standing, role_of, standing

__all__ = ["ANY_ROOM", "Decision", "DmPolicy", "Policy", "Role", "decide", "listed", "role_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether an event is heard, and why."""

    allowed: bool
    role: Role
    rule: str
    global_role: Role = "guest"
    """As `Standing.everywhere`."""
    request_kind: Literal["", "pair", "room"] = ""
    """What whoever is refused may have approved: to speak to the agent alone; the room. Empty: nothing."""


def decide(policy: Policy, event: Notification) -> Decision:
    """Judge one event by the first rule that fits."""
    place = address_of(event)
    sender: Sender | None = getattr(event, "sender", None)
    if isinstance(event, Named) and not listed(policy, event.at):
        return Decision(allowed=False, role="guest", rule=f"not in channels.{event.at.channel}.rooms")
    if place is None or sender is None:
        return Decision(allowed=True, role="guest", rule="from the platform itself")
    who = standing(policy, place, sender)
    if place.channel == policy.operator_channel:
        return _yes(who, who.rule)
    if who.role == "blocked":
        return _no(who, who.rule)
    if sender.is_bot and who.role == "guest":
        return _no(who, "bots are not answered")
    if _is_direct(event):
        return _direct(policy, event, who)
    if isinstance(event, Membership) and event.change == "invite":
        return _invited(policy, place, who)
    if listed(policy, place):
        return _yes(who, f"channels.{place.channel}.rooms" if _configured(policy, place) else "the room was approved")
    if isinstance(event, Command) and who.role in ADMINS:
        return _yes(who, who.rule)
    spoken = isinstance(event, Command) or (isinstance(event, Message) and event.kind != "room")
    return _no(who, f"not in channels.{place.channel}.rooms", "room" if spoken and _asked(policy) else "")


def listed(policy: Policy, place: Address) -> bool:
    """Whether it is a room where the agent may act."""
    return _configured(policy, place) or _approved(policy, place)


def _configured(policy: Policy, place: Address) -> bool:
    rooms = policy.open_rooms.get(place.channel, frozenset())
    return place.room in rooms or ANY_ROOM in rooms or policy.space_of(place) in rooms


def _approved(policy: Policy, place: Address) -> bool:
    approved, space = policy.roster_state().rooms, policy.space_of(place)
    names = [place.room] if space is None else [place.room, space]
    return any(Address(channel=place.channel, room=name).conversation in approved for name in names)


def _asked(policy: Policy) -> bool:
    return policy.room_policy == "approval"


def _is_direct(event: Notification) -> bool:
    said = isinstance(event, Message) and event.kind == "direct"
    return said or (isinstance(event, Command | Edited | Deleted | Reacted) and event.direct)


def _invited(policy: Policy, place: Address, who: Standing) -> Decision:
    """Allowed means: go there. Only where the agent may act, and an admin calls."""
    rooms = f"channels.{place.channel}.rooms"
    if not listed(policy, place):
        return _no(who, f"invited, but not in {rooms}", "room" if _asked(policy) else "")
    if who.role not in ADMINS:
        return _no(who, "only an owner or admin may invite")
    return _yes(who, f"invited by an {who.role}, and in {rooms}")


def _direct(policy: Policy, event: Notification, who: Standing) -> Decision:
    if policy.dm_policy == "disabled":
        return _no(who, "access.dm: disabled")
    if policy.dm_policy == "open":
        return _yes(who, "access.dm: open")
    if who.role != "guest":
        return _yes(who, who.rule)
    spoken = isinstance(event, Message | Command)
    return _no(
        who, f"access.dm: {policy.dm_policy}, and no role", "pair" if spoken and policy.dm_policy == "pairing" else ""
    )


def _yes(who: Standing, rule: str) -> Decision:
    return Decision(allowed=True, role=who.role, rule=rule, global_role=who.global_role)


def _no(who: Standing, rule: str, asks: Literal["", "pair", "room"] = "") -> Decision:
    return Decision(allowed=False, role=who.role, rule=rule, global_role=who.global_role, request_kind=asks)
