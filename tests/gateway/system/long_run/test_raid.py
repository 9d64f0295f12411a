"""A raid: thousands of lines in a minute cost next to nothing, and keep nobody else waiting."""

from pathlib import Path

import pytest

from gateway.core.facts import is_inner
from gateway.store.overview import EventOutcome
from reverie.testing.gateway import DISCORD, IRC, TELEGRAM, Gateway, on_platforms
from reverie.testing.played_model import Ask, PlayedModel
from reverie.testing.simulated_time import JumpingClock, simulated
from tests.kits.outcomes import compute_outcomes

LINES, MINUTE_S = 6_000, 60.0
COALESCE_S = 1.5
DIRECT = (5.0, 17.3, 30.05, 44.9, 59.9)
"""When somebody writes directly, in the middle of it."""


async def raid(
    gateway: Gateway, clock: JumpingClock, *, lines: int = LINES, word: str = ""
) -> dict[str, float]:
    """Thousands of lines in a minute, and people who write to the agent meanwhile: when each
    did."""
    begun, wrote, waiting = clock.monotonic(), dict[str, float](), list(DIRECT)
    for number in range(lines):
        while waiting and begun + waiting[0] <= clock.monotonic():
            who = f"p{len(wrote)}"
            wrote[who] = clock.monotonic()
            await gateway.consoles[(TELEGRAM, DISCORD, IRC)[len(wrote) % 3]].receive_message(
                f"are you there? {who}", sender=who
            )
            del waiting[0]
        text = f"line {number}, can anybody help?" if number % 7 == 0 else f"line {number}"
        await gateway.say(word + text, sender=f"raider{number % 40}", room="#one", on=DISCORD)
        await clock.sleep(MINUTE_S / lines)
    return wrote


def nobody_waited(gateway: Gateway, brain: PlayedModel, wrote: dict[str, float]) -> None:
    """Everybody who wrote directly was answered once, and soon."""
    waits = answered(brain, wrote)
    assert waits.keys() == wrote.keys()
    assert max(waits.values()) <= COALESCE_S + 1.0, waits
    for who in wrote:
        assert len(gateway.sent(who)) == 1


def answered(brain: PlayedModel, wrote: dict[str, float]) -> dict[str, float]:
    """Seconds from when somebody wrote until the model was asked."""
    first = dict[str, float]()
    for ask in brain.asked:
        who = ask.place.rpartition("/")[2]
        if who in wrote:
            assert who not in first, "asked about once"
            first[who] = ask.at_s - wrote[who]
    return first


def of_the_raid(brain: PlayedModel) -> list[Ask]:
    return [ask for ask in brain.asked if ask.place.endswith("#one") or is_inner(ask.place)]


@pytest.mark.parametrize(
    ("listen", "lines"),
    [
        ("ambient", LINES // 4),
        pytest.param("ambient", LINES, marks=pytest.mark.system),
        pytest.param("mention", LINES, marks=pytest.mark.system),
    ],
)
@simulated
async def test_a_raid_makes_at_most_two_requests_and_nobody_waits_for_it(
    clock: JumpingClock, tmp_path: Path, listen: str, lines: int
) -> None:
    brain = PlayedModel(clock)
    made = on_platforms(
        tmp_path,
        bindings=[{"private": False, "listen": listen, "speaks_up": "sometimes"}],
        attention={"coalesce": COALESCE_S},
    )
    async with Gateway(made, brain, clock=clock) as gateway:
        await clock.sleep(10)
        wrote = await raid(gateway, clock, lines=lines)
        await clock.sleep(3_600)
        assert len(of_the_raid(brain)) <= 2
        assert len(brain.asked) <= 2 + len(DIRECT)
        nobody_waited(gateway, brain, wrote)
        told = compute_outcomes(await gateway.entries())
    assert sum(fate is EventOutcome.ANSWERED for fate in told.values()) == len(DIRECT)
