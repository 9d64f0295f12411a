"""Limits in a whole gateway: what the model is asked, and what people read."""

from pathlib import Path
from typing import Any

import pytest

from gateway.stream.attention import LOOP_ROUNDS
from tests.kits.gateway import UNBOUNDED, UNHURRIED
from tests.kits.simulated_gateway import DISCORD, IRC, TELEGRAM, Brain, Say, settings, world
from tests.kits.simulated_time import JumpingClock, simulate

OLGA: dict[str, Any] = {"dm": "open", "roles": {"owner": [f"{TELEGRAM}:olga"]}}
TOO_MUCH = (
    "There are more messages here than I can answer. I keep reading, and answer again in a while."
)
BUSY = "I get more questions than I can answer right now."
FREE: dict[str, Any] = {**OLGA, "budgets": UNBOUNDED}
"""As with a model that costs nothing."""
LINES, MINUTE_S = 6_000, 60.0


@pytest.mark.system
def test_a_raid_of_mentions_is_answered_as_far_as_the_room_has_and_owners_hear_of_it(
    tmp_path: Path,
) -> None:
    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock, lambda _: Say(text="ok", takes_s=0.5))
        async with world(
            settings(tmp_path, access=OLGA, attention={"coalesce": 0}), clock, brain
        ) as gateway:
            await gateway.towns[TELEGRAM].receive_message("good morning", sender="olga")
            await clock.sleep(10)
            asked = len(brain.asked)
            for number in range(LINES):
                if number % 1_000 == 0:
                    await gateway.towns[IRC].receive_message("are you there?", sender=f"p{number}")
                await gateway.towns[DISCORD].receive_message(
                    "reverie, look", sender=f"raider{number % 600}", room="#one"
                )
                await clock.sleep(MINUTE_S / LINES)
            await clock.sleep(600)
            said = gateway.said("#one")
            assert said.count(TOO_MUCH) == 1
            assert set(said) == {TOO_MUCH, "ok"}
            due = [
                one for one in await gateway.log("judged") if getattr(one.fact, "fate", "") == "due"
            ]
            assert 400 <= sum(one.conversation == f"{DISCORD}/#one" for one in due) <= 400 + 90
            assert len(brain.asked) - asked <= 400 + 90 + 6
            for number in range(0, LINES, 1_000):
                assert gateway.said(f"p{number}") == ["ok"], "nobody else is kept waiting"
            (told,) = [text for text in gateway.said("olga") if text != "ok"]
            assert told.startswith(
                f"The room `{DISCORD}/#one` has reached a limit (access.rates.room"
            )

    simulate(story)


def test_what_is_limited_is_read_with_the_next_turn_and_told_once_over_a_kill(
    tmp_path: Path,
) -> None:
    rates = {"sender": {"burst": 1, "per_minute": 1}}

    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock)
        made = settings(tmp_path, access={**OLGA, "rates": rates}, attention={"coalesce": 0})
        async with world(made, clock, brain) as gateway:
            await gateway.towns[TELEGRAM].receive_message("good morning", sender="olga")
            for word in ("one", "two", "three"):
                await gateway.towns[IRC].receive_message(word, sender="ann")
                await clock.sleep(1)
            first, notice = gateway.said("ann")
            assert "one" in first
            assert notice.startswith("You write faster than I can answer.")
            await gateway.kill()
            gateway.begin()
            await gateway.towns[IRC].receive_message("four", sender="ann")
            await clock.sleep(5)
            *_, answer = gateway.said("ann")
            assert all(word in answer for word in ("two", "three", "four"))
            await gateway.towns[IRC].receive_message("five", sender="ann")
            await clock.sleep(5)
            assert len(gateway.said("ann")) == 3, "told before the end, and not again"
            assert sum("has reached a limit" in text for text in gateway.said("olga")) == 1
            for number in range(4):
                await gateway.towns[TELEGRAM].receive_message(f"and now {number}?", sender="olga")
                await clock.sleep(1)
            assert sum("and now" in text for text in gateway.said("olga")) == 4

    simulate(story)


def test_who_has_used_up_a_budget_has_nothing_answered_again_either(tmp_path: Path) -> None:
    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock)
        made = settings(
            tmp_path, access={**OLGA, "budgets": {"sender_usd": 0.0}}, attention={"coalesce": 0}
        )
        async with world(made, clock, brain) as gateway:
            for word in ("hello", "!retry", "!compact"):
                await gateway.towns[IRC].receive_message(word, sender="ann")
                await clock.sleep(5)
            spent = (
                "I have used up today's budget for answers to you. I answer again from 00:00 UTC."
            )
            assert gateway.said("ann") == [spent] * 3
            assert brain.asked == []
            await gateway.towns[TELEGRAM].receive_message("hello", sender="olga")
            await clock.sleep(5)
            await gateway.towns[TELEGRAM].receive_message("!retry", sender="olga")
            await clock.sleep(5)
            assert len(brain.asked) == 2, "owners have no budget"

    simulate(story)


def test_a_guest_with_quick_questions_gets_an_answer_to_all_of_them_but_at_a_pace_that_can_be_read(
    tmp_path: Path,
) -> None:
    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock)
        async with world(settings(tmp_path, access=FREE), clock, brain) as gateway:
            begun_s = clock.monotonic()
            for number in range(100):
                await gateway.towns[IRC].receive_message(f"question {number}.", sender="eve")
                await clock.sleep(1.8)
            await clock.sleep(20)
            assert len(brain.asked) <= 6 + (clock.monotonic() - begun_s) * 6 / 60
            said = gateway.said("eve")
            assert len(said) == len(brain.asked), "answers alone"
            assert all(any(f"question {number}." in text for text in said) for number in range(100))

            for _ in range(5):  # nobody else waits for them
                await gateway.towns[IRC].receive_message("hello", sender="eve")
            asked, begun_s = len(brain.asked), clock.monotonic()
            await gateway.towns[IRC].receive_message("hello", sender="ann")
            await gateway.towns[TELEGRAM].receive_message("hello", sender="olga")
            await clock.sleep(30)
            ann, olga = (
                next(one for one in brain.asked[asked:] if who in one.place)
                for who in ("ann", "olga")
            )
            assert max(ann.at_s, olga.at_s) - begun_s < 3

    simulate(story)


def test_thirty_guests_have_a_model_asked_once_a_second_and_each_is_answered(
    tmp_path: Path,
) -> None:
    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock)
        async with world(settings(tmp_path, access=FREE), clock, brain) as gateway:
            begun_s = clock.monotonic()
            for number in range(40):
                for guest in range(30):
                    await gateway.towns[IRC].receive_message(
                        f"question {number}.", sender=f"p{guest}"
                    )
                await clock.sleep(3)
            await clock.sleep(60)
            assert len(brain.asked) <= 30 + clock.monotonic() - begun_s
            for guest in range(30):
                assert any("question 39." in text for text in gateway.said(f"p{guest}")), (
                    "the last one, too"
                )
                assert sum(text.startswith(BUSY) for text in gateway.said(f"p{guest}")) <= 1

    simulate(story)


def test_who_comes_beyond_what_an_agent_can_answer_soon_is_told_once(tmp_path: Path) -> None:
    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock)
        async with world(settings(tmp_path, access=FREE), clock, brain) as gateway:
            for word in ("one", "two"):
                for guest in range(80):
                    await gateway.towns[IRC].receive_message(word, sender=f"p{guest}")
            await clock.sleep(1)
            told = [part.to.room for _, part in gateway.shown if part.body.startswith(BUSY)]
            assert 0 < len(told) == len({*told}), "once each"
            await clock.sleep(60)
            assert sum("p" in one.place for one in brain.asked) <= 30 + 31
            await gateway.towns[IRC].receive_message("three", sender="p79")
            await clock.sleep(10)
            *_, answer = gateway.said("p79")
            assert all(word in answer for word in ("one", "two", "three")), (
                "what was not answered was read"
            )

    simulate(story)


def test_a_program_that_answers_each_line_is_left_alone_and_owners_hear_of_it(
    tmp_path: Path,
) -> None:
    async def story(clock: JumpingClock) -> None:
        brain = Brain(clock, lambda _: Say(text="And what else?", takes_s=0.05))
        made = settings(tmp_path, access={**FREE, "rates": UNHURRIED}, attention={"coalesce": 0})
        async with world(made, clock, brain) as gateway:
            await gateway.towns[TELEGRAM].receive_message("good morning", sender="olga")
            await clock.sleep(10)
            asked = len(brain.asked)
            for _ in range(130):
                before = len(gateway.said("eve"))
                await gateway.towns[IRC].receive_message("Pardon?", sender="eve")
                for _ in range(10):
                    await clock.sleep(0.02)
                    if len(gateway.said("eve")) > before:
                        break
            assert len(brain.asked) - asked <= LOOP_ROUNDS
            assert sum("faster than a person" in text for text in gateway.said("eve")) == 1
            (told,) = [text for text in gateway.said("olga") if text != "And what else?"]
            assert f"`{IRC}:eve`" in told
            await gateway.towns[DISCORD].receive_message("hello", sender="ann")
            await clock.sleep(5)
            assert gateway.said("ann") == ["And what else?"], "nobody else is kept waiting"

    simulate(story)
