"""Every row of the table has an answer in the wired gateway, and every handler has its row."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.models.scripted import Script
from channels.base import CommandArg, CommandCompletion
from gateway import app
from gateway.commands.context import CommandContext
from gateway.commands.definition import CommandDefinition, SubcommandDefinition
from gateway.commands.dispatcher import CommandDispatcher
from gateway.commands.suggestions import SOURCES
from gateway.commands.table import COMMANDS, COMMANDS_BY_NAME, OPERATOR_COMMANDS
from gateway.core.events import Address, RoomId, Sender, SenderId
from gateway.core.facts import Judgement
from gateway.store import Store
from tests.kits.gateway import CONSOLE, running

ACCESS = {"dm": "open", "roles": {"owner": ["console:olga"]}, "rates": {"sender": {"per_minute": 6000, "burst": 1000}}}
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
    "type": "direct",
    "urgency": "low",
    "name": "main",
    "channel": str(CONSOLE),
}
BROKEN = "That did not work"


def lines() -> list[str]:
    """Return a valid use of each command and subcommand; the one that disconnects comes last."""
    found = list[str]()
    for row in sorted(COMMANDS, key=lambda one: one.name == "restart"):
        for sub in row.subs or (None,):
            args = [ARGS[arg.name] for arg in (sub.args if sub else row.args) if arg.required]
            found.append(" ".join(["!" + row.name, *([sub.name] if sub else []), *args]))
    return found


def arguments() -> Iterator[tuple[CommandDefinition, SubcommandDefinition | None, CommandArg]]:
    for row in COMMANDS:
        yield from ((row, None, arg) for arg in row.args)
        yield from ((row, sub, arg) for sub in row.subs for arg in sub.args)


def keys(row: CommandDefinition, sub: SubcommandDefinition | None, arg: CommandArg) -> tuple[str, ...]:
    """Return the keys under which a source may be registered."""
    return f"{row.name} {f'{sub.name} ' if sub else ''}{arg.name}", f"{row.name} {arg.name}", arg.name


def test_every_command_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with running(tmp_path, Script(), access=ACCESS, commands={"per_minute": 1000}) as gateway:
            for count, line in enumerate(lines(), start=1):
                await gateway.console.receive_message(line, sender="olga")
                await gateway.screen.until(count)
            assert not gateway.scripted.requests
            assert not any(BROKEN in part.body for part in gateway.screen.parts)
            unfit = [
                part.body
                for part in gateway.screen.parts
                if ": Write `!" in part.body or "more than it takes" in part.body
            ]
            assert unfit == []
        async with await Store.open_readonly(gateway.path) as reader:
            given = await reader.entries(kinds=["command"])
            judged = [await reader.find_judgement(entry.seq) for entry in given]
        rules = [one.rule for one in judged if isinstance(one, Judgement)]
        assert rules == [f"command {line.split()[0].removeprefix('!')}" for line in lines()]

    asyncio.run(story())
    assert "broke (reference" not in caplog.text


def test_each_command_has_a_handler_or_each_of_its_subcommands_has() -> None:
    for row in OPERATOR_COMMANDS.values():
        assert (row.handler is None) is bool(row.subs), row.name
        assert row.default_sub in ("", *(sub.name for sub in row.subs)), row.name


def test_the_operator_can_use_all_that_people_can() -> None:
    for name, row in COMMANDS_BY_NAME.items():
        wide = OPERATOR_COMMANDS[name]
        assert wide.name == row.name
        assert {sub.name for sub in row.subs} <= {sub.name for sub in wide.subs}


def test_what_is_suggested_is_all_of_the_table() -> None:
    wanted = [keys(row, sub, arg) for row, sub, arg in arguments() if arg.suggests]
    assert set(SOURCES) <= {key for some in wanted for key in some}
    assert [some[0] for some in wanted if not set(SOURCES) & set(some)] == ["help command"]  # the table itself


def test_who_has_a_role_elsewhere_is_suggested_to_who_administers_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[CommandDispatcher]()

    class Seen(CommandDispatcher):
        """Records itself."""

        def __init__(self, context: CommandContext) -> None:
            super().__init__(context)
            made.append(self)

    monkeypatch.setattr(app, "CommandDispatcher", Seen)
    access = ACCESS | {"grants": [{"who": "console:root", "role": "admin", "room": "console/lobby"}]}

    async def story() -> None:
        async with running(tmp_path, Script(), access=access) as gateway:
            await gateway.console.receive_message("!role set console:far member", sender="olga")
            await gateway.screen.until(1)
            (desk,) = made

            async def suggested(who: str) -> list[str]:
                at = Address(channel=CONSOLE, room=RoomId("lobby"))
                sender = Sender(id=SenderId(who), name=who, verified=True)
                typed = CommandCompletion(
                    at=at, sender=sender, direct=False, name="block", sub="", arg="who", prefix=""
                )
                return list(await SOURCES["who"](typed, desk._context))

            assert await suggested("olga") == ["console:far"]
            assert await suggested("root") == []

    asyncio.run(story())
