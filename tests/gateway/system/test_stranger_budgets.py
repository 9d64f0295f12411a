"""What strangers may spend, in a whole gateway: a strict model API, three platforms, and money that
is set aside."""

import asyncio
from pathlib import Path

from gateway.core.facts import TurnRecord
from reverie.testing.channels import story
from tests.kits.platform_users import (
    DISCORD,
    PLATFORMS,
    Seat,
)
from tests.kits.three_platforms import Town, town

USED_UP = "I have used up"
BUDGET_USD = 0.35
"""Of the fake's price: two answers that could be as long as they may."""
MOST_LINES = 60


async def asks(it: Town, seat: Seat) -> str:
    before = len(seat.shown())
    seat.say(f"and number {before}?", to_bot=True)
    await it.so(lambda: len(seat.shown()) > before, "an answer")
    return seat.shown()[-1]


async def spends(it: Town, seat: Seat) -> None:
    """Somebody writes again and again until they are told that there is no more."""
    for _ in range(MOST_LINES):
        if USED_UP in await asks(it, seat):
            return
    raise AssertionError(f"{seat.name} on {seat.platform} is never told")


async def cost_usd(it: Town) -> float:
    ended = [one for one in await it.facts("turn_ended") if isinstance(one, TurnRecord)]
    return sum(account.cost_usd or 0.0 for one in ended for account in one.accounts)


@story
async def test_strangers_on_all_platforms_at_once_spend_no_more_than_the_agent_has(
    tmp_path: Path,
) -> None:
    async with town(
        tmp_path, dm="open", budgets={"agent_usd": BUDGET_USD, "sender_usd": None}
    ) as it:
        await it.begin()
        olga = it.seat(DISCORD, "olga", "alone")
        olga.say("good morning", to_bot=True)
        await it.heard(olga, 0, "answer 1")
        owners = await cost_usd(it)
        seats = [
            it.seat(platform, who, "alone") for platform in PLATFORMS for who in ("gus", "nora")
        ]
        first = await asyncio.gather(*(asks(it, seat) for seat in seats))
        assert not any(USED_UP in one for one in first), (
            "who asks while others' money is set aside waits, and is not refused"
        )
        await asyncio.gather(*(spends(it, seat) for seat in seats))
        await it.delivered()
        assert 0 < await cost_usd(it) - owners <= BUDGET_USD
        asked = len(it.model.seen)
        for seat in seats:
            seat.say("and now?", to_bot=True)
        known = len(olga.shown())
        olga.say("and I?", to_bot=True)
        await it.heard(olga, known, f"answer {asked + 1}")
        assert len(it.model.seen) == asked + 1, "nobody but the owner is answered"
        assert [sum(USED_UP in one for one in seat.shown()) for seat in seats] == [1] * len(seats)
        assert sum("(access.budgets.agent_usd" in one for one in olga.shown()) == 1
        await it.end()
        await it.begin()
        seats[0].say("and after a restart?", to_bot=True)
        known = len(olga.shown())
        olga.say("and I?", to_bot=True)
        await it.heard(olga, known, f"answer {asked + 2}")
        assert len(it.model.seen) == asked + 2
        assert sum(USED_UP in one for one in seats[0].shown()) == 1
