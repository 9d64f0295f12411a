"""Access policy."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import pytest
from pydantic import TypeAdapter

from gateway.access.policy import decide
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    EventId,
    Message,
    MessageEdited,
    MessageId,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.identity import (
    ANY_ROOM,
    AccessPolicy,
    PlatformRoleRule,
    Role,
    identify,
    person_key,
    stable_source,
)

IRC = ChannelName("irc.x")
ROOM = Address(channel=IRC, room=RoomId("#lobby"))
OTHER = Address(channel=IRC, room=RoomId("#other"))
NOW = datetime(2026, 3, 1, tzinfo=UTC)

OWNER = Sender(id=SenderId("account:ann"), name="ann", verified=True)
MEMBER = Sender(id=SenderId("account:bob"), name="bob", verified=True)
STRANGER = Sender(id=SenderId("mask:eve!e@h"), name="ann")
BLOCKED = Sender(id=SenderId("account:mal"), name="mal", verified=True)
BOT = Sender(id=SenderId("mask:bot!b@h"), name="bot", is_bot=True)


def policy(
    dm: Literal["pairing", "allowlist", "open", "disabled"] = "allowlist", rooms: str = "#lobby"
) -> AccessPolicy:
    return AccessPolicy(
        dm_policy=dm,
        roles={
            "irc.x:account:ann": "owner",
            "irc.x:account:bob": "member",
            "irc.x:account:mal": "blocked",
        },
        open_rooms={IRC: frozenset({RoomId(rooms)})},
    )


def message(
    sender: Sender, kind: Literal["direct", "mention", "reply", "room"], at: Address = ROOM
) -> Message:
    return Message(id=MessageId("1"), at=at, sender=sender, text="hi", sent=NOW, kind=kind)


@pytest.mark.parametrize(
    ("dm", "sender", "allowed"),
    [
        ("open", STRANGER, True),
        ("open", BLOCKED, False),
        ("open", BOT, False),
        ("allowlist", STRANGER, False),
        ("allowlist", MEMBER, True),
        ("allowlist", OWNER, True),
        ("pairing", STRANGER, False),
        ("pairing", MEMBER, True),
        ("disabled", OWNER, False),
    ],
)
def test_direct(
    dm: Literal["pairing", "allowlist", "open", "disabled"], sender: Sender, allowed: bool
) -> None:
    decision = decide(policy(dm), message(sender, "direct"))
    assert decision.allowed is allowed
    assert decision.rule


@pytest.mark.parametrize(
    ("rooms", "at", "sender", "allowed"),
    [
        ("#lobby", ROOM, STRANGER, True),
        ("#lobby", OTHER, STRANGER, False),
        ("#lobby", OTHER, OWNER, False),
        ("#lobby", ROOM, BLOCKED, False),
        ("#lobby", ROOM, BOT, False),
        (ANY_ROOM, OTHER, STRANGER, True),
        ("#nowhere", ROOM, STRANGER, False),
    ],
)
def test_rooms(rooms: str, at: Address, sender: Sender, allowed: bool) -> None:
    for kind in ("mention", "reply", "room"):
        assert decide(policy(rooms=rooms), message(sender, kind, at)).allowed is allowed


@pytest.mark.parametrize("dm", ["open", "allowlist", "pairing", "disabled"])
@pytest.mark.parametrize("sender", [OWNER, MEMBER, STRANGER, BLOCKED, BOT])
def test_all_that_happens_in_a_direct_chat_is_judged_alike(
    dm: Literal["pairing", "allowlist", "open", "disabled"], sender: Sender
) -> None:
    at, what = (
        OTHER,
        {"id": EventId("1"), "at": OTHER, "sender": sender, "sent": NOW, "direct": True},
    )
    edit = TypeAdapter(MessageEdited).validate_python({**what, "message": "1", "text": "ho"})
    reaction = TypeAdapter(ReactionChanged).validate_python(
        {**what, "message": "1", "reaction": "+", "added": True}
    )
    said = decide(policy(dm), message(sender, "direct", at))
    assert (
        decide(policy(dm), edit) == decide(policy(dm), reaction) == said._replace(request_kind="")
    )
    assert not decide(policy(dm), replace(edit, direct=False)).allowed  # a room that is not listed


def test_a_channel_without_rooms_is_closed() -> None:
    closed = AccessPolicy(dm_policy="open", roles={}, open_rooms={})
    assert not decide(closed, message(STRANGER, "mention")).allowed


def test_other_events_pass_the_same_door() -> None:
    event = ReactionChanged(
        id=EventId("1"),
        at=OTHER,
        sender=STRANGER,
        message=MessageId("1"),
        reaction="+",
        added=True,
        sent=NOW,
    )
    assert not decide(policy(), event).allowed
    command = Command(
        id=EventId("1"), at=OTHER, sender=STRANGER, name="status", args="", sent=NOW, origin="text"
    )
    assert not decide(policy(), command).allowed


def test_people_behind_a_bridge_are_guests_whatever_was_configured() -> None:
    room = Address(channel=ChannelName("irc.libera"), room=RoomId("#python"))
    kai, lea = (
        Sender(id=SenderId(f"bridge:relay:{name}"), name=name, ranks=("op",))
        for name in ("kai", "lea")
    )

    def roles(**given: Role) -> list[Role]:
        policy = AccessPolicy(
            dm_policy="open",
            roles={
                f"irc.libera:bridge:relay:{name.removeprefix('all')}": role
                for name, role in given.items()
            },
            open_rooms={},
            platform_roles=[PlatformRoleRule("*", "*", "op", "admin", "ops")],
        )
        return [identify(policy, room, one).role for one in (kai, lea)]

    assert roles(kai="owner", all="member") == ["guest", "guest"]
    assert roles(kai="blocked") == ["blocked", "guest"]
    assert roles(all="blocked") == ["blocked", "blocked"]
    sources = {stable_source(person_key(room.channel, one.id)) for one in (kai, lea)}
    assert sources == {"irc.libera:bridge:relay:"}, (
        "who may take any name counts as one where nothing else bounds it"
    )
