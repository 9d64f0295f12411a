"""A gateway whose old months have left the log goes on, and answers nothing of them again."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.config.models import Settings
from gateway.core.clock import ManualClock
from gateway.store import Store, rebuild
from gateway.store.retention import move_old_months
from tests.kits.simulated_gateway import (
    DISCORD,
    IRC,
    TELEGRAM,
    Ask,
    Brain,
    Say,
    World,
    echo,
    message,
    settings,
    world,
)
from tests.kits.simulated_time import JumpingClock, simulated

DAY_S = 86_400.0
KEEP_S = 31 * DAY_S
WINDOW = 6_000


class Later(ManualClock):
    """A clock on which nobody waits."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        await asyncio.sleep(0)


def _says(ask: Ask) -> Say:
    """Uses a tool for some, with a long result, so that views are compacted."""
    if "look" in ask.heard:
        return Say(calls=(("who", "{}"),))
    return replace(echo(ask), text=f"An answer of some length, {'so much for that ' * 20}")


def _configured(folder: Path) -> Settings:
    return settings(
        folder, dmn={"resting": "30d", "foraging": "30d", "engaged": "1h", "working": "1h"}
    )


def _brain(clock: JumpingClock) -> Brain:
    brain = Brain(clock, _says)
    brain.context_tokens = WINDOW
    return brain


async def _talk(gateway: World, clock: JumpingClock, days: int, *, first: int = 0) -> None:
    for day in range(first, first + days):
        for number in range(12):
            name = f"{day}x{number}"
            place, who = ((IRC, "ann"), (TELEGRAM, "olga"), (DISCORD, "dan"))[number % 3]
            text = (
                f"reverie, {'look' if number == 5 else 'tell'} me of {name}"
                if number % 2
                else f"just saying {name}"
            )
            room = None if number % 4 == 3 else "#one"
            await gateway.tell(place, message(place, who, text, clock, room=room, id=name))
            await clock.sleep(20)
        for place in (IRC, TELEGRAM, DISCORD):  # more than what stays of every place anyway
            for number in range(15):
                name = f"{day}y{number}"
                await gateway.tell(
                    place, message(place, "fay", f"small talk {name}", clock, room="#one", id=name)
                )


@pytest.mark.integration
@pytest.mark.parametrize("days", [3, 12])
def test_nothing_old_is_answered_and_all_that_is_new(tmp_path: Path, days: int) -> None:
    shown = dict[str, list[str]]()

    def go(story: Callable[[JumpingClock], Coroutine[Any, Any, None]]) -> None:
        simulated(lambda: story)()

    async def before(clock: JumpingClock) -> None:
        async with world(_configured(tmp_path / "kept"), clock, _brain(clock)) as gateway:
            await _talk(gateway, clock, days)
            await gateway.tell(
                IRC, message(IRC, "eve", "the last line of all", clock, room="#two", id="overheard")
            )

    (tmp_path / "kept").mkdir()
    go(before)
    shutil.copytree(tmp_path / "kept", tmp_path / "pruned")
    moved = list[int]()

    for name in ("kept", "pruned"):

        async def after(clock: JumpingClock, name: str = name) -> None:
            await clock.sleep(days * 300)
            made = _configured(tmp_path / name)
            if name == "pruned":
                later = Later(clock.now() + timedelta(days=400))
                async with await Store.open(made.store.path, clock) as store:
                    moved.append(await move_old_months(store, KEEP_S, later))
                assert await rebuild(made.store.path) == []
            async with world(made, clock, _brain(clock)) as gateway:
                for place in (IRC, TELEGRAM, DISCORD):  # what came long ago comes again
                    await gateway.tell(
                        place,
                        message(place, "ann", "reverie, once more", clock, room="#one", id="0x1"),
                    )
                    for number in range(12):
                        old = message(
                            place, "ann", "reverie, once more", clock, room="#one", id=f"0x{number}"
                        )
                        if (place, number % 3) in (
                            (IRC, 0),
                            (TELEGRAM, 1),
                            (DISCORD, 2),
                        ) and number % 4 != 3:
                            await gateway.tell(place, old)
                await clock.sleep(60)
                for place in (IRC, TELEGRAM, DISCORD):
                    await gateway.tell(
                        place, message(place, "olga", "reverie, now?", clock, room="#one", id="new")
                    )
                    await clock.sleep(60)
                await gateway.tell(
                    IRC, message(IRC, "olga", "reverie, and here?", clock, room="#two", id="two")
                )
                await clock.sleep(60)
            shown[name] = sorted(f"{part.to.conversation} {part.body}" for _, part in gateway.shown)

        go(after)
    assert moved[0] > 0
    assert len(shown["kept"]) >= 4
    assert shown["pruned"] == shown["kept"]
