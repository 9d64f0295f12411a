"""Idle costs nothing: a day with three channels connected, and nobody who says anything."""

from pathlib import Path
from typing import Any

import pytest

from agent import signals
from gateway.runtime import agent
from reverie.testing.gateway import DISCORD, TELEGRAM, Gateway, on_platforms
from reverie.testing.played_model import PlayedModel
from reverie.testing.simulated_time import JumpingClock, simulated

HOUR_S = 3_600.0


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[signals.Signal]:
    """All that the network was told of by its timer."""
    seen: list[signals.Signal] = []
    send = agent.Agent.send

    def seeing(self: agent.Agent, signal: signals.Signal) -> None:
        if isinstance(signal, signals.Tick):
            seen.append(signal)
        send(self, signal)

    monkeypatch.setattr(agent.Agent, "send", seeing)
    return seen


@pytest.mark.parametrize("hours", [6, pytest.param(24, marks=pytest.mark.system)])
@pytest.mark.parametrize(
    ("dmn", "talks"),
    [
        ({"forage": False}, False),
        ({}, True),
        pytest.param({"forage": False}, True, marks=pytest.mark.system),
        pytest.param({}, False, marks=pytest.mark.system),
    ],
    ids=["resting", "foraging, after a conversation", "resting, after a conversation", "foraging"],
)
@simulated
async def test_a_day_without_a_word_makes_no_request(
    clock: JumpingClock,
    *,
    tmp_path: Path,
    ticks: list[signals.Signal],
    dmn: dict[str, Any],
    talks: bool,
    hours: int,
) -> None:
    brain = PlayedModel(clock)
    async with Gateway(on_platforms(tmp_path, dmn=dmn), brain, clock=clock) as gateway:
        if talks:
            await gateway.say("nice weather", sender="ann", room="#one")
            await gateway.say("hello", sender="ann", on=TELEGRAM)
            await gateway.say("reverie, hello", sender="bob", room="#two", on=DISCORD)
            await clock.sleep(600)
            assert len(gateway.screen.parts) == 2
        before, ticks[:] = len(brain.asked), []
        await clock.sleep(hours / 2 * HOUR_S)
        await gateway.end()  # a start fires nothing either
        gateway.start()
        await clock.sleep(hours / 2 * HOUR_S)
        assert len(brain.asked) == before == len(gateway.screen.parts)
    assert len(ticks) > 8 * hours
