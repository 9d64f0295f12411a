"""Every command of the table on all three platforms, through one whole gateway, as people give them
there."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from channels.base import CommandArg
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.definition import CommandDefinition
from gateway.core.facts import AuditRecord, Judgement
from gateway.core.i18n import languages
from gateway.core.identity import ROLE_ORDER, Role
from reverie.testing.channels import story
from reverie.testing.servers.model_api import Json
from tests.gateway.system import commands_script
from tests.gateway.system.commands_play import Play, Say
from tests.kits.commands import TABLE
from tests.kits.platform_users import DISCORD, IRC, PLATFORMS, TELEGRAM, OnIrc, Seat
from tests.kits.three_platforms import DEN, Town, plain, town

TOOLS = {"rules": [{"tool": "who", "approval": "always"}]}
GUEST: Role = "guest"


def uses() -> Iterator[tuple[CommandDefinition, CommandDefinition | None]]:
    """All that can be used: each command, or each of its subs."""
    return ((row, sub) for row in TABLE.rows for sub in row.subs or (None,))


def named(row: CommandDefinition, sub: CommandDefinition | None) -> str:
    return f"{row.name} {sub.name}" if sub is not None else row.name


def some(args: tuple[CommandArg, ...]) -> Mapping[str, str]:
    values = {"who": "irc.main:account:ghost", "until": "30m"}
    return {
        arg.name: arg.choices[0] if arg.choices else values.get(arg.name, "x9")
        for arg in args
        if arg.required
    }


async def whole(it: Town, platform: str) -> Play:
    play = Play(it, platform)
    there = it.joins(DEN)
    await play.all(
        *commands_script.ME_AND_YOU,
        *commands_script.CONVERSATION,
        *commands_script.APPROVALS,
        *commands_script.PEOPLE,
        *commands_script.ROOMS,
    )
    if platform == IRC:
        await it.so(lambda: it.joins(DEN) > there, "the den on IRC")
    await play.all(
        *commands_script.INSIDE,
        *commands_script.OUTSIDE,
        *commands_script.CLOSING,
        *commands_script.WHAT_I_DO,
    )
    await play.restarted()
    await play.act(Say(text="are you still there?", says=r"answer \d+"))
    return play


async def misused(it: Town, seat: Seat) -> list[str]:
    """What is not told how it is used, though it was used wrong."""
    prefix, wrong = "!" if seat.platform == IRC else "/", []
    for row, sub in uses():
        args = row.args if sub is None else sub.args
        where = it.seat(seat.platform, "olga", "alone") if row.direct_only else seat
        watched = it.answering(where, named(row, sub))
        since = len(watched.shown())
        if any(arg.required for arg in args):
            where.give(row.name, sub.name if sub else "", {})
        elif seat.platform == DISCORD or (
            args and args[-1].rest
        ):  # no one can write more than that there
            continue
        else:
            where.type(f"{prefix}{named(row, sub)} {' '.join(['7'] * (len(args) + 1))}")
        usage = help.format_usage(row, prefix, sub).replace("`", "")
        shown = (await it.heard(watched, since, r"\S")).string
        wrong += [f"{named(row, sub)}: {shown}"] if usage not in shown else []
    return wrong


@pytest.mark.parametrize("platform", PLATFORMS)
@story
async def test_an_owner_is_answered_whatever_they_use(platform: str, tmp_path: Path) -> None:
    """An owner uses everything, rightly and wrong, and the model is told nothing of it."""
    async with town(tmp_path) as it:
        it.config["tools"] = TOOLS
        await it.begin()
        play = await whole(it, platform)
        models = [one.body["model"] for one in it.model.seen]
        asked = " ".join(str(one.body) for one in it.model.seen)
        assert await misused(it, it.seat(platform, "olga", "room")) == []
        assert len(it.model.seen) == len(models)
        audited = [one for one in await it.facts("audited") if isinstance(one, AuditRecord)]
        assert play.used == {named(row, sub) for row, sub in uses()}
        assert models.count("fake-second") == 1
        assert not [line for line in play.written if line in asked]
        assert not [line for line in play.answers if line in asked]
        assert {row.name for row in TABLE.rows if row.is_administrative} <= {
            one.what for one in audited
        }


@pytest.mark.parametrize("platform", PLATFORMS)
@story
async def test_a_guest_is_answered_what_guests_may_use_and_nothing_else(
    platform: str, tmp_path: Path
) -> None:
    async with town(tmp_path) as it:
        await it.begin()
        seat = it.seat(platform, "gus", "room")
        seat = replace(seat, aside=True) if isinstance(seat, OnIrc) else seat
        before = len(await it.facts("judged"))
        for row, sub in uses():
            if not row.is_allowed_for(GUEST, direct=False):
                seat.give(
                    row.name, sub.name if sub else "", some(row.args if sub is None else sub.args)
                )
        since = 0
        for row in TABLE.rows:
            if row.is_allowed_for(GUEST, direct=False):
                seat.give(row.name, "", {})
                answer = (await it.heard(seat, since, r"\S")).string
                assert "only in a direct chat" in answer if row.direct_only else answer, row.name
                since = len(seat.shown())
        assert it.model.seen == []
        facts = [one for one in await it.facts("judged") if isinstance(one, Judgement)][before:]
        refused = [one for one in facts if one.fate == "refused"]
        answered = [
            one for one in facts if one.rule.startswith("command ") and one.fate != "refused"
        ]
        assert len(answered) == sum(row.is_allowed_for(GUEST, direct=False) for row in TABLE.rows)
        closed = [
            named(row, sub) for row, sub in uses() if not row.is_allowed_for(GUEST, direct=False)
        ]
        assert len(refused) == len(closed) > len(TABLE.rows)
        assert plain(seat.shown()).count("Reverie ") == 1


@story
async def test_menus_are_the_table(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.seat(TELEGRAM, "olga", "alone").say("!")  # people begin chats, and only those have menus
        await it.begin()
        assert it.discord.commands.table.keys() == {"global"}
        rows = [one for one in it.discord.commands.table["global"] if one["type"] == 1]
        told = [{key: one[key] for key in ("name", "description", "contexts")} for one in rows]
        assert told == [
            {
                "name": row.name,
                "description": row.summary,
                "contexts": [1] if row.direct_only else [0, 1],
            }
            for row in TABLE.rows
        ]
        for one, row in zip(rows, TABLE.rows, strict=True):
            assert one["options"] == (
                [offered(sub) for sub in row.subs] or [option(arg) for arg in row.args]
            )
        menus, chat = it.telegram.methods.commands, f"chat/{it.persons['olga'].id}/"
        await it.so(lambda: chat in menus, "the owner's menu")
        scopes = ("default/", "all_group_chats/", "all_private_chats/", chat)
        tongues = ("", *languages())
        assert menus.keys() == {scope + tongue for scope in scopes for tongue in tongues}
        assert menus["default/"] == menus["all_group_chats/"] == menu("guest", direct=False)
        assert menus["all_private_chats/"] == menu("guest", direct=True)
        assert menus[chat] == menu("owner", direct=True)
        assert [one["command"] for one in menus[chat]] == [row.name for row in TABLE.rows]


def menu(role: Role, *, direct: bool) -> list[Json]:
    able = (
        row
        for row in TABLE.rows
        if ROLE_ORDER.index(role) >= ROLE_ORDER.index(row.role)
        or (row.allowed_in_own_chat and direct)
    )
    return [
        {"command": row.name, "description": row.summary}
        for row in able
        if direct or not row.direct_only
    ]


def offered(sub: CommandDefinition) -> Json:
    return {
        "type": 1,
        "name": sub.name,
        "description": sub.summary,
        "options": [option(arg) for arg in sub.args],
    }


def option(arg: CommandArg) -> Json:
    made: Json = {"type": 3, "name": arg.name, "description": arg.summary, "required": arg.required}
    if arg.choices:
        return made | {"choices": [{"name": one, "value": one} for one in arg.choices]}
    return made | ({"autocomplete": True} if arg.suggests else {})
