"""Limits in a whole gateway: what the model is asked, and what people read."""

from pathlib import Path
from typing import Any

import pytest

from reverie.testing.gateway import DISCORD, TELEGRAM, UNBOUNDED, Gateway, on_platforms
from reverie.testing.played_model import PlayedModel, Say
from reverie.testing.simulated_time import JumpingClock, simulated

OLGA: dict[str, Any] = {"dm": "open", "roles": {"owner": [f"{TELEGRAM}:olga"]}}
TOO_MUCH = (
    "There are more messages here than I can answer. I keep reading, and answer again in a while."
)
BUSY = "I get more questions than I can answer right now."
FREE: dict[str, Any] = {**OLGA, "budgets": UNBOUNDED}
"""As with a model that costs nothing."""
LINES, MINUTE_S = 6_000, 60.0


@pytest.mark.system
@simulated
async def test_a_raid_of_mentions_is_answered_as_far_as_the_room_has_and_owners_hear_of_it(
    clock: JumpingClock,
    tmp_path: Path,
) -> None:
    brain = PlayedModel(clock, lambda _: Say(text="ok", takes_s=0.5))
    async with Gateway(
        on_platforms(tmp_path, access=OLGA, attention={"coalesce": 0}), brain, clock=clock
    ) as gateway:
        await gateway.say("good morning", sender="olga", on=TELEGRAM)
        await clock.sleep(10)
        asked = len(brain.asked)
        for number in range(LINES):
            if number % 1_000 == 0:
                await gateway.say("are you there?", sender=f"p{number}")
            await gateway.say(
                "reverie, look", sender=f"raider{number % 600}", room="#one", on=DISCORD
            )
            await clock.sleep(MINUTE_S / LINES)
        await clock.sleep(600)
        said = gateway.sent("#one")
        assert said.count(TOO_MUCH) == 1
        assert set(said) == {TOO_MUCH, "ok"}
        due = [
            one for one in await gateway.entries("judged") if getattr(one.fact, "fate", "") == "due"
        ]
        assert 400 <= sum(one.conversation == f"{DISCORD}/#one" for one in due) <= 400 + 90
        assert len(brain.asked) - asked <= 400 + 90 + 6
        for number in range(0, LINES, 1_000):
            assert gateway.sent(f"p{number}") == ["ok"], "nobody else is kept waiting"
        (told,) = [text for text in gateway.sent("olga") if text != "ok"]
        assert told.startswith(f"The room `{DISCORD}/#one` has reached a limit (access.rates.room")


@simulated
async def test_thirty_guests_have_a_model_asked_once_a_second_and_each_is_answered(
    clock: JumpingClock,
    tmp_path: Path,
) -> None:
    brain = PlayedModel(clock)
    access = FREE | {"rates": {"agent_turns": {"burst": 30, "per_minute": 60}}}
    async with Gateway(on_platforms(tmp_path, access=access), brain, clock=clock) as gateway:
        begun_s = clock.monotonic()
        for number in range(40):
            for guest in range(30):
                await gateway.say(f"question {number}.", sender=f"p{guest}")
            await clock.sleep(3)
        await clock.sleep(60)
        assert len(brain.asked) <= 30 + clock.monotonic() - begun_s
        for guest in range(30):
            assert any("question 39." in text for text in gateway.sent(f"p{guest}")), (
                "the last one, too"
            )
            assert sum(text.startswith(BUSY) for text in gateway.sent(f"p{guest}")) <= 1
