"""The kit of plugins: it holds for a good plugin, and finds what broken ones do wrong."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import pytest

from agent.models.scripted import Script, ScriptRule
from gateway.core.clock import SystemClock
from gateway.store import NewEntry
from reverie import (
    OWN,
    TRUSTED_LABEL,
    ConfigSection,
    Fact,
    Label,
    Part,
    Plugin,
    PluginFact,
    ToolContext,
    hook,
    tool,
)
from reverie.testing.plugins import PluginConformance, find_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled(PluginFact):
    sides: int
    kind: Literal["dice.rolled"] = "dice.rolled"

    def describe(self) -> str:
        return f"a die with {self.sides} sides was rolled"


class DiceSettings(ConfigSection):
    sides: int = 6


class Dice(Plugin):
    name = "dice"
    Settings = DiceSettings
    facts: ClassVar[tuple[type[PluginFact], ...]] = (Rolled,)

    @tool("Roll a die.", effect=OWN)
    async def roll(self, _context: ToolContext) -> str:
        return "6"

    @hook
    async def parts(self) -> Iterable[Part]:
        return [Part(block="now", text="The dice are hot.", label=TRUSTED_LABEL)]

    @hook
    async def after_turn(self) -> Iterable[Fact]:
        return [Rolled(sides=self.settings.sides)]


class TestDice(PluginConformance):
    plugin = Dice
    settings: ClassVar = {"sides": 20}
    lines = ("throw it", "hello")
    script = Script(rules=(ScriptRule(match="throw", calls=(("roll", "{}"),)),))


class Appends(Dice):
    @hook
    async def after_turn(self) -> Iterable[Fact]:
        entry = NewEntry(at=SystemClock().now(), fact=Rolled(sides=6))
        await self.context.gateway.store.append([entry])
        return []


class Blocks(Dice):
    @hook
    async def parts(self) -> Iterable[Part]:
        time.sleep(0.5)
        return []


class BlocksAtNews(Dice):
    @hook
    def on_progress(self) -> None:
        time.sleep(0.5)


class Raises(Dice):
    @hook
    async def parts(self) -> Iterable[Part]:
        raise RuntimeError("no dice")


class HasBlankParts(Dice):
    @hook
    async def parts(self) -> Iterable[Part]:
        return [Part(block="now", text="", label=TRUSTED_LABEL)]


class ForgetsTheLabel(Dice):
    @hook
    async def parts(self) -> Iterable[Part]:
        return [Part(block="now", text="The dice are hot.", label=cast("Label", None))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rambles(PluginFact):
    sides: int
    kind: Literal["dice.rolled"] = "dice.rolled"

    def describe(self) -> str:
        return "a die\nwas rolled"


class TellsInLines(Dice):
    facts = (Rambles,)

    @hook
    async def after_turn(self) -> Iterable[Fact]:
        return [Rambles(sides=6)]


class IsTooNew(Dice):
    api = 99


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (Appends, "after_turn appends"),
        (Blocks, "parts keeps the event loop busy"),
        (BlocksAtNews, "on_progress keeps the event loop busy"),
        (Raises, "parts raises RuntimeError"),
        (HasBlankParts, "without words"),
        (ForgetsTheLabel, "without a label"),
        (TellsInLines, "several lines"),
        (IsTooNew, "version 99"),
    ],
)
async def test_a_broken_plugin_is_found_out(broken: Any, told: str, tmp_path: Path) -> None:
    faults = await find_faults(broken, tmp_path)
    assert any(told in fault for fault in faults), faults
    assert all(told in fault for fault in faults), faults
