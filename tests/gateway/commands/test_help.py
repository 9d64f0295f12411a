"""Help is built from the table: it lists what somebody may use, and explains each subcommand."""

import asyncio
from pathlib import Path

import pytest

from channels.irc.config import IrcConfig
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.definition import COMMAND_GROUPS
from gateway.commands.table import COMMANDS
from tests.gateway.commands.dispatcher_kit import Counter, command, counter, echo


def ask(folder: Path, *asked: tuple[str, str, str], direct: bool = False) -> list[str]:
    async def story() -> list[str]:
        async with counter(folder) as it:
            return [await it.ask(name, args, who, direct=direct) for name, args, who in asked]

    return asyncio.run(story())


def test_the_list_has_what_this_person_may_use_here(tmp_path: Path) -> None:
    roles = {"ann": "guest", "mia": "member", "root": "admin", "olga": "owner"}
    for direct in (False, True):
        lists = ask(tmp_path / str(direct), *(("help", "", who) for who in roles), direct=direct)
        for role, listed in zip(roles.values(), lists, strict=True):
            for row in COMMANDS:
                may = row.is_allowed_for(role, direct=direct) and (direct or not row.direct_only)  # type: ignore[arg-type] # roles
                assert (f"`!{row.name}`" in listed) is may, (role, row.name)
    (room_admin,) = ask(tmp_path / "rick", ("help", "", "rick"))
    assert "`!block`" in room_admin
    assert "`!dmn`" not in room_admin


def test_the_list_is_a_line_for_each_group(tmp_path: Path) -> None:
    (listed,) = ask(tmp_path, ("help", "", "olga"))
    lines = listed.splitlines()
    assert len(lines) == len(COMMAND_GROUPS) + 1
    assert max(map(len, lines)) < 400  # a line of IRC


def test_a_command_is_told_with_all_that_it_can_do(tmp_path: Path) -> None:
    role, sub, mine, no_sub, none = ask(
        tmp_path,
        ("help", "role", "olga"),
        ("help", "role set", "olga"),
        ("help", "!new", "olga"),
        ("help", "role sett", "olga"),
        ("help", "role", "ann"),
    )
    assert role.splitlines() == [
        "`!role`: Who may do what. For admin and above in all places.",
        "- `!role list`: Everybody who has a role, and why.",
        "- `!role set <who> <owner | admin | member> [here | everywhere]`: Give somebody a role.",
        "- `!role clear <who> [here | everywhere]`: Take back what was given here.",
    ]
    assert sub.splitlines()[0] == (
        "`!role set <who> <owner | admin | member> [here | everywhere]`: Give somebody a role. "
        "For admin and above in all places."
    )
    assert sub.splitlines()[1].startswith("- `who`: A person: channel:id")
    assert mine.endswith("For admin and above, and for anybody in their own direct chat.")
    assert no_sub == "There is no `role sett`. Write `!role` and one of `list`, `set`, `clear`."
    assert none.startswith("I do not know that command.")


def test_every_command_can_be_looked_up(tmp_path: Path) -> None:
    asked = [
        ("help", " ".join((row.name, *sub)), "olga") for row in COMMANDS for sub in ((), *((s.name,) for s in row.subs))
    ]
    for (_, args, _), told in zip(asked, ask(tmp_path, *asked, direct=True), strict=True):
        row = next(row for row in COMMANDS if row.name == args.split()[0])
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
            "`type` is missing. Write `!notify threshold <type> [ambient | low | normal | urgent | reset]`: ",
        ),
        ("dmn", "paus", "There is no `dmn paus`. Did you mean `!dmn pause`"),
        ("dmn", "zzz", "There is no `dmn zzz`. Write `!dmn` and one of `status`, `pause`, "),
        ("status", "now", "`now` is more than it takes. Write `!status`: Where I am connected"),
        ("link", "list", "`!link` is for direct chats: write it to me alone."),
    ],
)
def test_a_wrong_use_is_told_with_the_right_one(name: str, args: str, told: str, tmp_path: Path) -> None:
    (answer,) = ask(tmp_path, (name, args, "olga"))
    assert answer.startswith(told)


def test_an_answer_knows_sub_and_arguments(tmp_path: Path) -> None:
    assert ask(tmp_path, ("dmn", "", "root"), ("pair", "revoke a:1", "root"), ("approve", '"" always', "rick")) == [
        "dmn/status: \nmore of it",
        "pair/revoke: who=a:1\nmore of it",
        "approve/: lasting=always\nmore of it",
    ]


def test_a_sub_may_have_a_handler_of_its_own(tmp_path: Path) -> None:
    async def other(_ask: object, _world: object) -> str:
        return "other"

    async def story(it: Counter) -> None:
        assert (await it.ask("dmn", "pause"), await it.ask("dmn", "wake")) == ("other", "dmn/wake: \nmore of it")

    async def run() -> None:
        async with counter(tmp_path, answers={"dmn": echo, "dmn pause": other}) as it:
            await story(it)
            assert (await it.ask("status")).startswith("That did not work (reference ")  # nothing answers it
            handled = await it.desk.handle(command("status"))
            assert handled.judgement.fate == "noted"

    asyncio.run(run())


def test_help_is_two_pages_of_irc_at_most(tmp_path: Path) -> None:
    (listed,) = ask(tmp_path, ("help", "", "olga"))
    assert len(listed.splitlines()) <= 2 * IrcConfig.model_fields["page_lines"].default
