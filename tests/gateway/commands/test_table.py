"""The table of commands: each row is answered, listed by the help, and suggested."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.scripted import Script
from channels.base import CommandArg, CommandCompletion, CommandSpec
from gateway import app
from gateway.access.limits import UsageLimiter
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.context import CommandContext
from gateway.commands.definition import CommandDefinition
from gateway.commands.dispatcher import (
    MAX_CHOICES,
    CommandDispatcher,
    rank_suggestions,
    suggest_values,
)
from gateway.core.events import Address, ChannelName, RoomId, Sender, SenderId
from gateway.core.facts import Judgement, Seq
from gateway.core.i18n import _, current_language, languages, use_language
from gateway.core.identity import AccessPolicy, RoleGrant
from gateway.store import AppendResult, Store
from gateway.store.effects import CommandEffect, done
from reverie.testing.gateway import CONSOLE, running
from tests.gateway.commands.commands_kit import command, counter, echo
from tests.kits.commands import TABLE, parts_of

# Every row of the table has an answer in the wired gateway, and every handler has its row

ACCESS = {
    "dm": "open",
    "roles": {"owner": ["console:olga"]},
    "rates": {"sender": {"per_minute": 6000, "burst": 1000}},
}
ARGS = {
    "who": "console:ann",
    "role": "member",
    "code": "ABCD EFGH",
    "room": "console/lobby",
    "entry": "1",
    "id": "k7qd",
    "note": "n1",
    "account": "console:ann",
    "tool": "bash",
    "text": "hello there",
    "what": "10m tea",
    "type": "direct",
    "urgency": "low",
    "name": "main",
    "channel": str(CONSOLE),
}
BROKEN = "That did not work"


def lines() -> list[str]:
    """Return a valid use of each command and subcommand; the one that disconnects comes last."""
    found = list[str]()
    for row in sorted(TABLE.rows, key=lambda one: one.name == "restart"):
        for sub in row.subs or (None,):
            args = [ARGS[arg.name] for arg in (sub.args if sub else row.args) if arg.required]
            found.append(" ".join(["!" + row.name, *([sub.name] if sub else []), *args]))
    return found


def arguments() -> Iterator[tuple[CommandDefinition, CommandDefinition | None, CommandArg]]:
    for row in TABLE.rows:
        yield from ((row, None, arg) for arg in row.args)
        yield from ((row, sub, arg) for sub in row.subs for arg in sub.args)


async def test_every_command_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, Script(), access=ACCESS, commands={"per_minute": 1000}) as gateway:
        for line in lines():
            await gateway.ask(line, sender="olga")
        assert not gateway.scripted.requests
        assert not any(BROKEN in part.body for part in gateway.screen.parts)
        unfit = [
            part.body
            for part in gateway.screen.parts
            if ": Write `!" in part.body or "one word too many" in part.body
        ]
        assert unfit == []
    async with await Store.open_readonly(gateway.path) as reader:
        given = await reader.entries(kinds=["command"])
        judged = [await reader.find_judgement(entry.seq) for entry in given]
    rules = [one.rule for one in judged if isinstance(one, Judgement)]
    assert rules == [f"command {line.split()[0].removeprefix('!')}" for line in lines()]
    assert "broke (reference" not in caplog.text


def test_each_command_has_a_handler_or_each_of_its_subcommands_has() -> None:
    for row in TABLE.operator.values():
        assert all(one.handler for one in row.subs or (row,)), row.name
        assert row.default_sub in ("", *(sub.name for sub in row.subs)), row.name


def test_the_operator_can_use_all_that_people_can() -> None:
    for name, row in TABLE.people.items():
        wide = TABLE.operator[name]
        assert wide.name == row.name
        assert {sub.name for sub in row.subs} <= {sub.name for sub in wide.subs}


def test_each_argument_whose_values_are_known_has_choices_or_suggestions() -> None:
    bare = [
        f"{row.name} {sub.name if sub else ''} {arg.name}"
        for row, sub, arg in arguments()
        if not (arg.choices or arg.suggests or arg.number)
    ]
    assert bare == ["link code code", "intentions add what", "say  text"]


async def test_who_has_a_role_elsewhere_is_suggested_to_who_administers_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[CommandDispatcher]()

    class Seen(CommandDispatcher):
        def __init__(self, context: CommandContext, limits: UsageLimiter) -> None:
            super().__init__(context, limits)
            made.append(self)

    monkeypatch.setattr(app, "CommandDispatcher", Seen)
    access = ACCESS | {
        "grants": [{"who": "console:root", "role": "admin", "room": "console/lobby"}]
    }
    async with running(tmp_path, Script(), access=access) as gateway:
        await gateway.ask("!role set console:far member", sender="olga")
        (desk,) = made

        async def suggested(who: str) -> list[str]:
            at = Address(channel=CONSOLE, room=RoomId("lobby"))
            sender = Sender(id=SenderId(who), name=who, verified=True)
            typed = CommandCompletion(
                at=at, sender=sender, direct=False, name="block", sub="", arg="who", prefix=""
            )
            return list(await suggest_values(desk._context, typed))

        assert await suggested("olga") == ["console:far"]
        assert await suggested("root") == []


async def test_who_waits_to_be_let_in_is_suggested_by_request_and_never_by_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[CommandContext]()

    class Seen(CommandDispatcher):
        def __init__(self, context: CommandContext, limits: UsageLimiter) -> None:
            super().__init__(context, limits)
            made.append(context)

    monkeypatch.setattr(app, "CommandDispatcher", Seen)
    async with running(tmp_path, Script(), access=ACCESS | {"dm": "pairing"}) as gateway:
        await gateway.ask("hello?", sender="zoe")
        (waiting,) = made[0].gateway.roster.pending_requests("pair")
        at, olga = (
            Address(channel=CONSOLE, room=RoomId("olga")),
            Sender(id=SenderId("olga"), name="o", verified=True),
        )
        typed = CommandCompletion(
            at=at, sender=olga, direct=True, name="pair", sub="approve", arg="code", prefix=""
        )
        assert waiting.request
        assert await suggest_values(made[0], typed) == [waiting.request]
        assert (
            await suggest_values(made[0], replace(typed, sender=replace(olga, id=SenderId("zoe"))))
            == ()
        )
        assert await suggest_values(made[0], replace(typed, name="room")) == []
        assert "8h" in await suggest_values(
            made[0], replace(typed, name="dmn", sub="sleep", arg="until")
        )


# Help is built from the table: it lists what somebody may use, and explains each subcommand


async def ask(folder: Path, *asked: tuple[str, str, str], direct: bool = False) -> list[str]:
    async with counter(folder) as it:
        return [await it.ask(name, args, who, direct=direct) for name, args, who in asked]


async def test_the_list_has_what_this_person_may_use_here(tmp_path: Path) -> None:
    roles = {"ann": "guest", "mia": "member", "root": "admin", "olga": "owner"}
    for direct in (False, True):
        lists = await ask(
            tmp_path / str(direct), *(("help", "", who) for who in roles), direct=direct
        )
        for role, listed in zip(roles.values(), lists, strict=True):
            for row in TABLE.rows:
                may = row.is_allowed_for(role, direct=direct) and (direct or not row.direct_only)  # type: ignore[arg-type] # roles
                assert (f"`!{row.name}`" in listed) is may, (role, row.name)
    (room_admin,) = await ask(tmp_path / "rick", ("help", "", "rick"))
    assert "`!block`" in room_admin
    assert "`!dmn`" not in room_admin


async def test_the_list_is_a_line_for_each_command_or_two_lines_where_answers_have_pages(
    tmp_path: Path,
) -> None:
    (listed,) = await ask(tmp_path, ("help", "", "olga"))
    assert "- `!whoami`: Show your id and your role." in listed.splitlines()
    lines = help.render_command_list(TABLE.rows, "!", brief=True).splitlines()
    assert (len(lines), max(map(len, lines)) < 400) == (2, True), "lines of IRC"


async def test_the_help_has_the_language_of_the_person(tmp_path: Path) -> None:
    with use_language("de"):
        listed, told, wrong = await ask(
            tmp_path,
            ("help", "", "olga"),
            ("help", "intentions drop", "olga"),
            ("intentions", "drop", "olga"),
        )
    assert "- `!whoami`: Zeigt deine ID und deine Rolle." in listed.splitlines()
    assert listed.splitlines()[-1] == "`!help <Befehl>` zeigt, wie man einen Befehl benutzt."
    assert told.splitlines()[0].startswith(
        "`!intentions drop <id>`: Streicht ein Vorhaben: das eigene, für Admins jedes."
    )
    assert told.splitlines()[1] == "- `id`: Wie list es zeigt."
    assert (
        wrong
        == "`id` fehlt. Schreib `!intentions drop <id>`: Streicht ein Vorhaben: das eigene, für Admins jedes."
    )


def test_menus_have_the_texts_of_each_language_and_room_for_them() -> None:
    english = {name: text for spec in TABLE.specs() for name, text in texts_of(spec).items()}
    for language in languages():
        with use_language(language):
            texts = {name: _(text) for name, text in english.items()}
        assert all(0 < len(text) <= 100 for text in texts.values())  # Discord's, the smallest
        assert [name for name in texts if texts[name] == english[name]] == []


def texts_of(spec: CommandSpec) -> dict[tuple[str, ...], str]:
    """Return the texts by the names of command, subcommand and argument."""
    found: dict[tuple[str, ...], str] = {(spec.name,): spec.summary}
    found |= {(spec.name, arg.name): arg.summary for arg in spec.args}
    for sub in spec.subs:
        found |= {(spec.name, sub.name): sub.summary}
        found |= {(spec.name, sub.name, arg.name): arg.summary for arg in sub.args}
    return found


def test_what_follows_a_command_has_its_language() -> None:
    began = list[str]()
    with use_language("de"):
        effect = done("", then=lambda _seq: began.append(current_language()))
    effect.settle(AppendResult(Seq(1), is_new=True))
    assert began == ["de"]


async def test_a_command_is_told_with_all_that_it_can_do(tmp_path: Path) -> None:
    role, sub, mine, no_sub, none = await ask(
        tmp_path,
        ("help", "role", "olga"),
        ("help", "role set", "olga"),
        ("help", "!new", "olga"),
        ("help", "role sett", "olga"),
        ("help", "role", "ann"),
    )
    assert role.splitlines() == [
        "`!role`: Show and change who may do what. For admin and above in all places.",
        "- `!role list`: List everybody who has a role, and why.",
        "- `!role set <who> <owner | admin | member> [here | everywhere]`: Give a person a role.",
        "- `!role clear <who> [here | everywhere]`: Take back a role that was given by command.",
    ]
    assert sub.splitlines()[0] == (
        "`!role set <who> <owner | admin | member> [here | everywhere]`: Give a person a role. "
        "For admin and above in all places."
    )
    assert sub.splitlines()[1].startswith("- `who`: A person: an id")
    assert mine.endswith("For admin and above, and for anybody in their own direct chat.")
    assert no_sub == "There is no `role sett`. Write `!role` and one of `list`, `set` or `clear`."
    assert none.startswith("I do not know that command.")


async def test_every_command_can_be_looked_up(tmp_path: Path) -> None:
    asked = [
        ("help", " ".join((row.name, *sub)), "olga")
        for row in TABLE.rows
        for sub in ((), *((s.name,) for s in row.subs))
    ]
    for (__, args, __), told in zip(asked, await ask(tmp_path, *asked, direct=True), strict=True):
        row = next(row for row in TABLE.rows if row.name == args.split()[0])
        assert told.startswith(f"`!{args}"), args
        assert row.summary in told or " " in args
        assert len(told) < 2000
        for each in row.subs if " " not in args else ():
            assert help.format_usage(row, "!", each) in told


@pytest.mark.parametrize(
    ("name", "args", "told"),
    [
        (
            "notify",
            "threshold",
            (
                "`type` is missing. Write `!notify threshold <type> [ambient | low | normal | "
                "urgent | reset]`: "
            ),
        ),
        ("dmn", "paus", "There is no `dmn paus`. Did you mean `!dmn pause`"),
        ("dmn", "zzz", "There is no `dmn zzz`. Write `!dmn` and one of `status`, `pause`, "),
        ("status", "now", "`now` is one word too many. Write `!status`: Show the connections"),
        ("link", "list", "`!link` works only in a direct chat with me."),
    ],
)
async def test_a_wrong_use_is_told_with_the_right_one(
    name: str, args: str, told: str, tmp_path: Path
) -> None:
    (answer,) = await ask(tmp_path, (name, args, "olga"))
    assert answer.startswith(told)


async def test_an_answer_knows_sub_and_arguments(tmp_path: Path) -> None:
    assert await ask(
        tmp_path, ("dmn", "", "root"), ("pair", "revoke a:1", "root"), ("approve", "k7qd", "rick")
    ) == [
        "dmn/status: \nmore of it",
        "pair/revoke: who=a:1\nmore of it",
        "approve/: id=k7qd\nmore of it",
    ]


async def test_a_sub_may_have_a_handler_of_its_own(tmp_path: Path) -> None:
    async def other(_ask: object, _world: object) -> CommandEffect:
        return done("other")

    async with counter(tmp_path, answers={"dmn": echo, "dmn pause": other}) as it:
        assert (await it.ask("dmn", "pause"), await it.ask("dmn", "wake")) == (
            "other",
            "dmn/wake: \nmore of it",
        )
        guest, admin = [
            await it.ask("status", who=who) for who in ("ann", "root")
        ]  # nothing answers it
        assert guest.startswith("An error in my program stopped this command. Try again")
        assert re.search(r"Search my log for [0-9a-f]{8}\.$", admin)
        handled = await it.judge(command("status"))
        assert handled.judgement.fate == "noted"


# Suggestions to people while they type a command

D = ChannelName("discord.x")
POLICY = AccessPolicy(
    dm_policy="pairing",
    roles={"discord.x:1": "admin", "discord.x:2": "member", "discord.x:9": "blocked"},
    open_rooms={D: frozenset({RoomId("7")})},
    grants={"discord.x:3": [RoleGrant("admin", "discord.x/7", "granted")]},
)


def typed(
    name: str,
    arg: str,
    who: str,
    *,
    sub: str = "",
    begun: str = "",
    room: str = "7",
    bot: bool = False,
    **given: str,
) -> CommandCompletion:
    return CommandCompletion(
        at=Address(channel=D, room=RoomId(room)),
        sender=Sender(id=SenderId(who), name="x", verified=True, is_bot=bot),
        direct=room == "alone",
        name=name,
        sub=sub,
        arg=arg,
        prefix=begun,
        given=given,
    )


CONTEXT: CommandContext = parts_of(gateway=parts_of(people=POLICY), commands=TABLE)


async def completed(one: CommandCompletion) -> list[str]:
    return list(await suggest_values(CONTEXT, one))


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (typed("role", "role", "1", sub="set", begun="me"), ["member"]),
        (typed("block", "where", "3"), ["here", "everywhere"]),
        (
            typed("block", "where", "1", room="8"),
            ["here", "everywhere"],
        ),  # admins may give commands anywhere
        (typed("link", "account", "1", sub="remove", room="7"), []),  # for direct chats
        (typed("role", "role", "3", sub="set"), []),  # an admin of that room alone
        (typed("block", "where", "2"), []),
        (typed("block", "where", "4"), []),
        (typed("block", "where", "9"), []),
        (typed("block", "where", "1", bot=True), []),
        (typed("help", "command", "4"), []),  # a guest
        (typed("help", "sub", "1", command="role"), ["list", "set", "clear"]),
        (typed("help", "sub", "1", command="/role", begun="c"), ["clear"]),
        (typed("help", "sub", "1", command="status"), []),
        (typed("help", "sub", "1"), []),
        (typed("help", "sub", "2", command="role"), []),  # which members may not use
        (typed("help", "command", "2", room="8"), []),  # where a member is not heard
        (typed("role", "nonsense", "1", sub="set"), []),
        (typed("nonsense", "who", "1"), []),
    ],
)
async def test_who_may_use_a_command_is_shown_what_fits(
    one: CommandCompletion, told: list[str]
) -> None:
    assert await completed(one) == told


@pytest.mark.parametrize(
    ("who", "room"), [("1", "7"), ("2", "7"), ("3", "7"), ("1", "alone"), ("2", "alone")]
)
async def test_help_is_for_what_somebody_may_use(who: str, room: str) -> None:
    role = {"1": "admin", "2": "member", "3": "admin"}[who]
    everywhere = "guest" if who == "3" else role
    able = [
        row.name
        for row in TABLE.rows
        if row.is_allowed_for(role, direct=room == "alone", everywhere=everywhere)  # type: ignore[arg-type] # roles
        and (room == "alone" or not row.direct_only)
    ]
    assert await completed(typed("help", "command", who, room=room)) == able[:MAX_CHOICES]
    assert await completed(typed("help", "command", who, room=room, begun="stat")) == ["status"]


async def test_a_source_that_breaks_is_the_channels_business() -> None:
    with pytest.raises(AttributeError):  # this context has no store
        await suggest_values(CONTEXT, typed("block", "who", "1"))


def test_what_fits_is_short_printable_and_not_much() -> None:
    assert rank_suggestions(["b", "a", "ba", "a", "", "x" * 101, "a\nb", "a\u202eb"], "A ") == [
        "a",
        "ba",
    ]
    assert len(rank_suggestions(map(str, range(100)), "")) == MAX_CHOICES
