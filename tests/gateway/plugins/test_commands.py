"""Commands of plugins: from their declaration to their answer, everywhere where commands are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import Field

from agent.models.scripted import Script
from channels.base import CommandCompletion
from channels.telegram.channel import build_menu
from gateway.app import carry_out_stopped
from gateway.cli.ctl import operator_commands
from gateway.commands import help  # noqa: A004 - the command has this name
from gateway.commands.context import CommandCall
from gateway.commands.definition import command
from gateway.commands.dispatcher import suggest_values
from gateway.commands.parser import InvalidArguments, ParsedArguments, parse_arguments
from gateway.commands.table import UnusableCommand, build_table
from gateway.core.clock import ManualClock
from gateway.core.control_messages import CommandRequest
from gateway.core.events import Address, RoomId, Sender, SenderId
from gateway.core.facts import AuditRecord
from gateway.core.identity import AccessPolicy
from gateway.hooks import Plugins
from gateway.plugin import Plugin
from gateway.plugins import find_plugins, use_plugins
from gateway.store import Store
from gateway.store.effects import CommandEffect, refuse
from reverie.testing.gateway import CONSOLE, UNHURRIED, Gateway, settings
from tests.kits.commands import command_context

Colour = Literal["red", "green"]


class Dice(Plugin):
    name = "dice"

    @command("roll", "Roll a die.", example="!roll 20")
    async def roll_command(
        self,
        call: CommandCall,
        sides: Annotated[int, "How many sides.", Field(le=100)] = 6,
        colour: Colour | None = None,
        *,
        why: Annotated[str, "What it is for."] = "",
    ) -> str:
        return f"{call.agent} rolled {sides!r}, {colour!r}, {why!r}"

    async def suggest_games(self, typed: CommandCompletion) -> Sequence[str]:
        return ["craps", f"{typed.arg} of {self.name}"]

    games = command("games", "Play.", role="admin", private=True, group="how I run")

    @command("games end", "End a game.")
    async def end_game(
        self, _call: CommandCall, game: Annotated[str, suggest_games]
    ) -> CommandEffect:
        return refuse(f"{game} is not played")

    @command("games list", "List games.")
    async def list_games(self, _call: CommandCall) -> str:
        raise RuntimeError("lost")

    @command("forget", "Forget the answer.")
    async def forget(self, _call: CommandCall) -> str:
        return None  # type: ignore[return-value]  # it is the fault


ACCESS = {"dm": "open", "roles": {"owner": ["console:olga"]}, "rates": UNHURRIED}


async def test_commands_are_answered_audited_and_refused_as_built_in_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with use_plugins(Dice):
        async with Gateway(settings(tmp_path, access=ACCESS), Script()) as gateway:
            asked = (
                "!roll",
                "!roll 20 red to win it",
                "!roll 101",
                "!games end craps",
                "!games list",
            )
            for line in asked:
                await gateway.ask(line, sender="olga")
            await gateway.say("!games end craps", sender="ann")
            await gateway.screen.until(len(asked) + 1)  # with the notice to the owner
            answers = [part.body for part in gateway.screen.parts]
            await gateway.until(lambda: gateway.entries("audited"))
            told = "dice does not work: command games has failed"
            await gateway.until(lambda: any(told in one for one in caplog.messages))
            audited = [
                one for one in await gateway.facts("audited") if isinstance(one, AuditRecord)
            ]
            given = gateway.settings
        order = CommandRequest(words=("roll", "20", "red"), by="somebody", agent="reverie")
        done = await carry_out_stopped(given, order)
    assert (done.ok, done.lines) == (True, ("reverie rolled 20, 'red', ''",))
    assert answers[0] == "reverie rolled 6, None, ''"
    assert answers[1] == "reverie rolled 20, 'red', 'to win it'"
    assert "from 1 to 100" in answers[2]
    assert answers[3] == "craps is not played"
    assert not gateway.scripted.requests
    assert [(one.what, one.ok) for one in audited][:2] == [("games", False)] * 2
    [broke] = [one.getMessage() for one in caplog.records if "broke" in one.getMessage()]
    assert "games of plugin dice" in broke
    reference = broke.rpartition(" ")[2].rstrip(")")
    assert any(one.endswith(f"{reference}.") for one in answers[4:])


async def test_a_command_without_an_answer_is_answered_as_a_broken_one(tmp_path: Path) -> None:
    with use_plugins(Dice):
        async with Gateway(settings(tmp_path), Script()) as gateway:
            assert "error" in await gateway.ask("!forget")
            assert await gateway.ask("!roll")


def test_arguments_come_from_the_signature() -> None:
    roll = build_table((Dice,)).people["roll"]
    sides, colour, why = roll.args
    assert (sides.summary, sides.number, colour.choices) == (
        "How many sides.",
        True,
        ("red", "green"),
    )
    assert (colour.summary, why.rest, sides.required) == ("colour", True, False)
    assert isinstance(parse_arguments(roll, "many"), InvalidArguments)
    assert parse_arguments(roll, "8 green at  last") == ParsedArguments(
        arguments={"sides": "8", "colour": "green", "why": "at  last"}
    )
    [end, listing] = build_table((Dice,)).people["games"].subs
    assert [one.required for one in end.args] == [True]
    assert (end.role, listing.private) == ("admin", True)


async def test_commands_are_in_help_menus_completion_and_the_shell() -> None:
    table = build_table((Dice,))
    assert {"roll", "games"} <= {one.name for one in table.specs()}
    menu = {one.command for one in build_menu(table.specs(), "guest", direct=True)}
    assert menu & {"roll", "games"} == {"roll"}
    shown = help.render_command(table.people["roll"], "/")
    assert "/roll [sides] [red | green] [why]" in shown
    assert "`/roll 20`" in shown
    assert "roll" not in operator_commands()
    with use_plugins(Dice):
        assert "roll" in operator_commands()


async def test_values_are_suggested_by_a_method_of_the_plugin(tmp_path: Path) -> None:
    clock = ManualClock()
    people = AccessPolicy(dm_policy="open", roles={"console:olga": "owner"}, open_rooms={})
    async with await Store.open(tmp_path / "reverie.db", clock) as store:
        context = replace(
            command_context(store, clock, people=people),
            plugins=Plugins(Dice(cast("Any", None))),
            commands=build_table((Dice,)),
        )
        typed = CommandCompletion(
            at=Address(channel=CONSOLE, room=RoomId("olga")),
            sender=Sender(id=SenderId("olga"), name="olga", verified=True),
            direct=True,
            name="games",
            sub="end",
            arg="game",
            prefix="cr",
        )
        assert await suggest_values(context, typed) == ["craps"]
        assert await suggest_values(context, replace(typed, prefix="")) == ["craps", "game of dice"]


def _with(name: str, **more: object) -> type[Plugin]:
    class Other(Plugin):
        @command(name, "Do it.")
        async def do(self, _call: CommandCall) -> str:
            return ""

    Other.name = "other"
    for key, value in more.items():
        setattr(Other, key, value)
    return Other


class OptionalFirst(Plugin):
    name = "other"

    @command("fine", "Do it.")
    async def do(self, _call: CommandCall, one: str = "", *, two: str) -> str:
        return one + two


class OfBytes(Plugin):
    name = "other"

    @command("fine", "Do it.")
    async def do(self, _call: CommandCall, one: bytes) -> str:
        return str(one)


@pytest.mark.parametrize(
    "plugin",
    [
        *map(
            _with, ("status", "commands", "roll", "games end", "games more", "none at", "Bad-Name")
        ),
        OptionalFirst,
        OfBytes,
    ],
)
def test_command_that_clashes_or_breaks_a_rule_keeps_its_plugin_out(plugin: type[Plugin]) -> None:
    with use_plugins(Dice):
        with pytest.raises(UnusableCommand), use_plugins(plugin):
            pass
        assert plugin not in find_plugins().classes
