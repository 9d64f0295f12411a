"""What a digest told of a room does not hold any more once the room's own turn has dealt with
it."""

from collections import Counter
from pathlib import Path

from gateway.core.facts import TurnRecord, is_inner
from tests.kits.simulated_gateway import (
    DISCORD,
    REST,
    TELEGRAM,
    Ask,
    Brain,
    Say,
    message,
    settings,
    world,
)
from tests.kits.simulated_time import JumpingClock, simulate


def test_nothing_is_dealt_with_twice(tmp_path: Path) -> None:
    async def story(clock: JumpingClock) -> None:
        def answer(ask: Ask) -> Say:
            if not is_inner(ask.place):
                return Say(text="I heard you.")
            if "#one" not in ask.heard:
                return REST
            room = f'{{"room":"{DISCORD}/#one"}}'
            return Say(calls=(("attend", room), ("yield_to_user", "{}")), takes_s=60.0)

        brain = Brain(clock, answer)
        made = settings(
            tmp_path,
            bindings=[{"match": {"channel": "*"}, "listen": "ambient", "private": False}],
            attention={"coalesce": 1.5, "salience": {"keywords": ["help"]}},
        )
        async with world(made, clock, brain) as gateway:
            await clock.sleep(10)
            await gateway.tell(
                DISCORD, message(DISCORD, "bob", "can anybody help?", clock, room="#one", id="1")
            )
            await _inner_begins(brain, clock, after=0)
            # A direct chat interrupts the inner turn; the next time it is let alone.
            asked = len(brain.asked)
            await gateway.tell(TELEGRAM, message(TELEGRAM, "zoe", "hello", clock, id="2"))
            await _inner_begins(brain, clock, after=asked)
            await clock.sleep(5)
            await gateway.tell(
                DISCORD,
                message(DISCORD, "ann", "reverie, do you know?", clock, room="#one", id="3"),
            )
            await clock.sleep(600)
            turns = [
                one.fact
                for one in await gateway.log("turn_ended")
                if isinstance(one.fact, TurnRecord)
            ]
            told = Counter(seq for turn in turns if turn.looked == () for seq in turn.covers)
            assert max(told.values()) == 1
            called = [
                call
                for turn in turns
                for step in turn.steps
                for call in step.calls
                if call.name == "attend"
            ]
            assert called
            assert all(call.error for call in called)
            assert [
                turn.text for turn in turns if not turn.looked and turn.agent and turn.text
            ].count("I heard you.") == 2

    simulate(story)


async def _inner_begins(brain: Brain, clock: JumpingClock, *, after: int) -> None:
    for _ in range(900):
        if any(is_inner(ask.place) for ask in brain.asked[after:]):
            return
        await clock.sleep(1)
    raise AssertionError("it never thought of it")
