"""Suggestions to people while they type a command."""

import asyncio
from collections.abc import Sequence

import pytest

from channels.base import CommandCompletion
from gateway.commands.context import CommandContext
from gateway.commands.suggestions import MAX_CHOICES, SuggestionSource, rank_suggestions, suggest_values
from gateway.commands.table import COMMANDS
from gateway.core.events import Address, ChannelName, RoomId, Sender, SenderId
from gateway.core.identity import AccessPolicy, RoleGrant
from tests.kits.commands import parts_of

D = ChannelName("discord.x")
POLICY = AccessPolicy(
    dm_policy="pairing",
    roles={"discord.x:1": "admin", "discord.x:2": "member", "discord.x:9": "blocked"},
    open_rooms={D: frozenset({RoomId("7")})},
    grants={"discord.x:3": [RoleGrant("admin", "discord.x/7", "granted")]},
)


def typed(
    name: str, arg: str, who: str, *, sub: str = "", begun: str = "", room: str = "7", bot: bool = False
) -> CommandCompletion:
    return CommandCompletion(
        at=Address(channel=D, room=RoomId(room)),
        sender=Sender(id=SenderId(who), name="x", verified=True, is_bot=bot),
        direct=room == "alone",
        name=name,
        sub=sub,
        arg=arg,
        prefix=begun,
    )


async def _named(one: CommandCompletion, _: CommandContext) -> Sequence[str]:
    return [f"{one.name}.{one.sub}.{one.arg}"]


async def _ids(_: CommandCompletion, __: CommandContext) -> Sequence[str]:
    return ["id"]


async def _rules(_: CommandCompletion, __: CommandContext) -> Sequence[str]:
    return ["r1", "r2", "x-r1"]


SOURCES: dict[str, SuggestionSource] = {"who": _named, "id": _ids, "notify unrule id": _rules, "tool": _named}
CONTEXT: CommandContext = parts_of(access_policy=POLICY)


def ask(one: CommandCompletion) -> list[str]:
    return list(asyncio.run(suggest_values(CONTEXT, one, SOURCES)))


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (typed("role", "who", "1", sub="set"), ["role.set.who"]),
        (typed("role", "role", "1", sub="set", begun="me"), ["member"]),
        (typed("approve", "id", "1"), ["id"]),
        (typed("notify", "id", "1", sub="unrule"), ["r1", "r2", "x-r1"]),
        (typed("notify", "id", "1", sub="unrule", begun="R1"), ["r1", "x-r1"]),
        (typed("block", "who", "3"), ["block..who"]),
        (typed("block", "who", "1", room="8"), ["block..who"]),  # admins may give commands anywhere
        (typed("link", "account", "1", sub="remove", room="7"), []),  # for direct chats
        (typed("role", "who", "3", sub="set"), []),  # an admin of that room alone
        (typed("block", "who", "2"), []),
        (typed("block", "who", "4"), []),
        (typed("block", "who", "9"), []),
        (typed("block", "who", "1", bot=True), []),
        (typed("help", "command", "4"), []),  # a guest
        (typed("help", "command", "2", room="8"), []),  # where a member is not heard
        (typed("join", "room", "1"), []),  # nothing is known of it
        (typed("role", "nonsense", "1", sub="set"), []),
        (typed("nonsense", "who", "1"), []),
        (typed("pair", "code", "1", sub="approve"), []),
    ],
)
def test_who_may_use_a_command_is_shown_what_fits(one: CommandCompletion, told: list[str]) -> None:
    assert ask(one) == told


@pytest.mark.parametrize(("who", "room"), [("1", "7"), ("2", "7"), ("3", "7"), ("1", "alone"), ("2", "alone")])
def test_help_is_for_what_somebody_may_use(who: str, room: str) -> None:
    role = {"1": "admin", "2": "member", "3": "admin"}[who]
    everywhere = "guest" if who == "3" else role
    able = [
        row.name
        for row in COMMANDS
        if row.is_allowed_for(role, direct=room == "alone", everywhere=everywhere)  # type: ignore[arg-type] # roles
        and (room == "alone" or not row.direct_only)
    ]
    assert ask(typed("help", "command", who, room=room)) == able[:MAX_CHOICES]
    assert ask(typed("help", "command", who, room=room, begun="stat")) == ["status"]


def test_a_source_that_breaks_is_the_channels_business() -> None:
    async def broken(_: CommandCompletion, __: CommandContext) -> Sequence[str]:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        asyncio.run(suggest_values(CONTEXT, typed("block", "who", "1"), {"who": broken}))


def test_what_fits_is_short_printable_and_not_much() -> None:
    assert rank_suggestions(["b", "a", "ba", "a", "", "x" * 101, "a\nb", "a\u202eb"], "A ") == ["a", "ba"]
    assert len(rank_suggestions(map(str, range(100)), "")) == MAX_CHOICES
