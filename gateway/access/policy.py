"""An event with all that is known of its place and its sender, and whether it is accepted, and by
which rule: resolved once, in the intake. Pure.

Closed by default: an event that no rule allows is refused (and still logged). Whoever decides about
an event reads its `Routed`. A role is asked for again only where power is used later: at a command,
at a call of a tool, at an approval, and before a post. `gateway.core.identity` finds out who the
sender is.
"""

from collections.abc import Set as AbstractSet
from typing import Final, Literal, NamedTuple

from agent.signals import ArrivalPolicy
from gateway.core.events import (
    Address,
    Command,
    ConversationId,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    Notification,
    PlaceRenamed,
    ReactionChanged,
    Sender,
)
from gateway.core.frozen import frozen
from gateway.core.i18n import language_for
from gateway.core.identity import (
    ADMIN_ROLES,
    ANY_ROOM,
    AccessPolicy,
    Identity,
    Role,
    identify,
    person_key,
)


class AccessDecision(NamedTuple):
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


def decide(
    policy: AccessPolicy, event: Notification, who: Identity | None = None
) -> AccessDecision:
    """Decide by the first rule that matches. `who`: its sender there; None: that is asked."""
    place = event.at
    sender: Sender | None = getattr(event, "sender", None)
    if isinstance(event, PlaceRenamed) and not is_room_allowed(policy, event.at):
        return AccessDecision(
            allowed=False, role="guest", rule=f"not in channels.{event.at.channel}.rooms"
        )
    if place is None or sender is None:
        return AccessDecision(allowed=True, role="guest", rule="from the platform itself")
    who = who or identify(policy, place, sender)
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
    rooms = f"channels.{place.channel}.rooms"
    opened = rooms if is_room_configured(policy, place) else ""
    if opened or _is_room_approved(policy, place):
        return _allow(who, opened or "the room was approved")
    if isinstance(event, Command) and who.role in ADMIN_ROLES:
        return _allow(who, who.rule)
    spoken = isinstance(event, Command) or (isinstance(event, Message) and event.kind != "room")
    return _deny(
        who,
        f"not in {rooms}",
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
    """Return the rooms where the agent may act, as far as they are known without anybody's words:
    by the configuration, by an approval, or by their platform.
    """
    named = [
        Address(channel=channel, room=room)
        for channel, rooms in policy.open_rooms.items()
        for room in sorted(rooms - {ANY_ROOM})
    ]
    approved = map(Address.parse, sorted(policy.roster_state().rooms))
    listed = (one for one in policy.listed_rooms() if is_room_allowed(policy, one))
    return [*dict.fromkeys((*named, *approved, *listed))]


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


ListenMode = Literal["mention", "ambient", "all", "off"]
SpeaksUp = Literal["never", "when_useful", "sometimes"]
PlaceVisibility = Literal["direct", "private", "shared"]
"""A direct chat; a room that the operator declares private; any other room, whose readers its
platform reports (`gateway.stream.routing.PrivacyCache`)."""


@frozen
class ConversationBinding:
    """Agent of a conversation, and its behaviour there."""

    listen: ListenMode
    speaks_up: SpeaksUp = "never"
    """Whether the agent may speak there without being asked."""
    agent: str = ""
    model: str = ""
    """Key of the model that was chosen there. Empty: that of the agent."""
    addressing: Literal["anywhere", "start"] = "anywhere"
    """Place of our nick in a line that speaks to the agent."""
    prompt: str = ""
    language: str | None = None
    private: bool | None = None
    """True: its messages are not used elsewhere. False: everybody may read them. None: as the
    platform says."""
    group: str = ""
    """Group of rooms whose people may know what is said in each of them. Empty: none."""
    arrivals: ArrivalPolicy = "steer"
    """Effect of a message to the agent on a running turn."""
    skills: tuple[str, ...] | None = None
    """Skills available there. None: all."""


UNBOUND: Final = ConversationBinding(listen="off")
"""Where no pattern applies."""


class Routed(NamedTuple):
    """An event, its place, and its sender."""

    event: Notification
    at: Address | None
    """None: it belongs to no place."""
    conversation: ConversationId | None
    room: ConversationId | None
    """The room of `at`: the same for all its threads."""
    binding: ConversationBinding
    agent: str
    """Agent of the place; of an event without one, of its channel. Empty: none."""
    person: str
    """Its sender, in the form of `gateway.core.identity.person_key`. Empty: it has none."""
    linked: AbstractSet[str]
    """Their other accounts, where the platform vouches for this one."""
    role: Role
    access: AccessDecision
    visibility: PlaceVisibility
    language: str | None
    """Tag of the language in which an answer is written. None: English."""


_NOBODY: Final = frozenset[str]()


def route(
    policy: AccessPolicy,
    binding: ConversationBinding,
    event: Notification,
    *,
    for_one: bool = False,
) -> Routed:
    """Resolve an event. `binding`: of its place; `for_one`: nobody else sees the answer to it."""
    at, person, linked = event.at, "", _NOBODY
    sender: Sender | None = getattr(event, "sender", None)
    who = None
    if at is not None and sender is not None:
        who, person = identify(policy, at, sender), person_key(at.channel, sender.id)
        if sender.verified:
            linked = frozenset(policy.roster_state().links.get(person, ()))
    access = decide(policy, event, who)
    direct = _is_direct(event)
    spoken = event.language if isinstance(event, Message | Command) else None
    is_thread = at is not None and at.thread is not None
    room = Address(channel=at.channel, room=at.room) if at is not None and is_thread else at
    return Routed(
        event=event,
        at=at,
        conversation=at.conversation if at is not None else None,
        room=room.conversation if room is not None else None,
        binding=binding,
        agent=binding.agent,
        person=person,
        linked=linked,
        role=access.role,
        access=access,
        visibility="direct" if direct else "private" if binding.private else "shared",
        language=language_for(binding.language, spoken, direct=direct or for_one),
    )
