"""`speaks_up`: what the agent says in rooms without being asked, and when it looks at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway.config.models import Settings
from gateway.core.events import EventId, ReactionChanged
from gateway.core.facts import Judgement, PartSendEnded
from reverie.testing.gateway import IRC, TELEGRAM, Gateway, on_platforms
from reverie.testing.simulated_time import JumpingClock, simulated

DEV = f"{IRC}/#one"
QUESTION = "does anybody know how to rotate the logs?"
WHY = "a guest asked how to rotate logs and nobody answered"
YIELD = ("yield_to_user", "{}")
ATTEND = ("attend", json.dumps({"room": DEV, "reason": WHY}))

LOOKS = (
    ScriptRule(match=r"## .*rotate the logs", calls=(ATTEND, YIELD)),
    ScriptRule(match=r"## ", calls=(YIELD,)),
    ScriptRule(match="rotate the logs", reply="with logrotate"),
    ScriptRule(match=".", calls=(("stay_silent", "{}"),)),
)
"""A model that has a room attended where that is asked, and answers it there."""


def configured(tmp: Path, speaks_up: str, **more: Any) -> Settings:
    bindings = [{"private": False, "speaks_up": speaks_up}]
    return on_platforms(tmp, bindings=bindings, **{"dmn": {"dream_every": 0}, **more})


async def overhear(gateway: Gateway, text: str, who: str = "ewa", room: str = "#one") -> None:
    await gateway.say(text, sender=who, room=room, on=IRC)


@pytest.mark.parametrize("listen", ["ambient", "mention"])
@simulated
async def test_a_question_that_nobody_answers_is_answered_once_after_three_quiet_minutes(
    clock: JumpingClock, tmp_path: Path, listen: str
) -> None:
    bindings = [{"private": False, "speaks_up": "when_useful", "listen": listen}]
    made = on_platforms(tmp_path, bindings=bindings, dmn={"dream_every": 0})
    async with Gateway(made, Script(rules=LOOKS), clock=clock) as gateway:
        await clock.sleep(10)
        await overhear(gateway, QUESTION)
        await clock.sleep(60)
        await overhear(gateway, "no idea", who="tom")
        await clock.sleep(179)
        assert not gateway.scripted.requests
        await clock.sleep(2)
        await gateway.took(2)
        await clock.sleep(7_200)
    assert gateway.sent() == ["with logrotate"]
    looked, spoken = await gateway.turns()
    assert (looked.cause, spoken.cause) == ("digest", "attended")
    assert looked.heard.startswith(f'## "#one" ({DEV})\n(an open question, talk of people)\n')
    assert f'(you decided to look at this room: "{WHY}")' in spoken.heard
    assert "speak up here only if" in gateway.scripted.requests[1].now
    assert len(gateway.scripted.requests) == 2


@simulated
async def test_while_people_talk_nothing_is_asked_and_an_answer_of_theirs_is_enough(
    clock: JumpingClock, tmp_path: Path
) -> None:
    async with Gateway(
        configured(tmp_path, "when_useful"), Script(rules=LOOKS[1:]), clock=clock
    ) as gateway:
        await overhear(gateway, QUESTION)
        for number in range(30):
            await clock.sleep(120)
            await overhear(gateway, f"with logrotate, and this is line {number}", who="tom")
        assert not gateway.scripted.requests
        await clock.sleep(3_600)
    assert len(gateway.scripted.requests) == 1
    assert not gateway.sent()


@simulated
async def test_a_reminder_comes_at_its_time_while_people_talk(
    clock: JumpingClock, tmp_path: Path
) -> None:
    reminds = ScriptRule(match=r"\(reminder that ewa asked for", reply="dinner is ready")
    script = Script(rules=(reminds, *LOOKS[1:]))
    async with Gateway(configured(tmp_path, "when_useful"), script, clock=clock) as gateway:
        await overhear(gateway, "!remind 30m dinner")
        for number in range(20):
            await overhear(gateway, f"chatter {number}", who="tom")
            await clock.sleep(100)
        assert "dinner is ready" in gateway.sent()[-1]


@simulated
async def test_what_it_has_looked_at_for_days_does_not_make_a_look_dearer(
    clock: JumpingClock, tmp_path: Path
) -> None:
    script = Script(rules=(ScriptRule(match=r"## ", calls=(YIELD,)),))
    async with Gateway(configured(tmp_path, "when_useful"), script, clock=clock) as gateway:
        for number in range(60):
            await overhear(gateway, f"{number}: {'what a long word ' * 40} is it?")
            await clock.sleep(3_600)
        asked = [len(str(one.conversation)) for one in gateway.scripted.requests]
    assert len(asked) > 20
    assert max(asked) < 30_000


@simulated
async def test_never_is_the_default_and_looks_at_nothing(
    clock: JumpingClock, tmp_path: Path
) -> None:
    async with Gateway(on_platforms(tmp_path), Script(rules=LOOKS), clock=clock) as gateway:
        for _ in range(30):
            await overhear(gateway, QUESTION)
            await clock.sleep(400)
    assert not gateway.scripted.requests
    judged = [one for one in await gateway.facts("judged") if isinstance(one, Judgement)]
    assert [one.rule for one in judged if ".room." in one.type] == ["room talk is ambient"] * 30


@simulated
async def test_chatter_is_looked_at_once_an_hour_at_most(
    clock: JumpingClock, tmp_path: Path
) -> None:
    made = configured(tmp_path, "when_useful", dmn={"dream_every": 0, "forage": True})
    async with Gateway(made, Script(rules=LOOKS[1:]), clock=clock) as gateway:
        for number in range(3 * 12):
            await overhear(gateway, f"chatter {number}")
            await clock.sleep(200)
            await gateway.say("thanks!", sender="olga", on=TELEGRAM)  # makes it forage
            await clock.sleep(100)
        looks = [one for one in await gateway.turns() if one.cause == "digest"]
    assert len(looks) == 3


@simulated
async def test_chatter_is_looked_at_within_an_hour_although_nobody_speaks_to_the_agent(
    clock: JumpingClock, tmp_path: Path
) -> None:
    made = configured(tmp_path, "when_useful", dmn={"dream_every": 0, "forage_per_day": 2})
    async with Gateway(made, Script(rules=LOOKS[1:]), clock=clock) as gateway:
        await overhear(gateway, "the deploy of 13:00 went through, all is fine")
        await clock.sleep(3_600)
        assert not gateway.scripted.requests
        await clock.sleep(600)
        await gateway.took(1)
        await clock.sleep(20_000)
        assert len(gateway.scripted.requests) == 1, "once, and then silence costs nothing"
        for number in range(4):
            await overhear(gateway, f"well {number}")
            await clock.sleep(8_000)
        assert len(gateway.scripted.requests) == 2, "so many times a day"
    assert [turn.cause for turn in await gateway.turns()] == ["digest", "digest"]


@simulated
async def test_many_reactions_to_an_answer_are_looked_at_once(
    clock: JumpingClock, tmp_path: Path
) -> None:
    rules = (ScriptRule(match="deploy", reply="done"), *LOOKS[1:])
    made = configured(tmp_path, "never")
    async with Gateway(made, Script(rules=rules), clock=clock) as gateway:
        asked = await gateway.say("reverie: deploy", sender="ewa", room="#one", on=IRC)
        await gateway.screen.until(1)
        await clock.sleep(600)
        [posted] = [one for one in await gateway.facts("part") if isinstance(one, PartSendEnded)]
        for number in range(20):
            reacted = ReactionChanged(
                id=EventId(f"r{number}"),
                at=asked.at,
                sender=asked.sender,
                message=posted.ids[0],
                reaction=f"{number}",
                added=True,
                sent=clock.now(),
            )
            await gateway.tell(IRC, reacted)
        await clock.sleep(3_000)
        assert len(gateway.scripted.requests) == 1
        await clock.sleep(86_400)
        assert len(gateway.scripted.requests) == 2
    assert (await gateway.turns())[-1].cause == "digest"


@simulated
async def test_sometimes_much_talk_is_looked_at_four_times_a_day(
    clock: JumpingClock, tmp_path: Path
) -> None:
    made = configured(tmp_path, "sometimes", dmn={"dream_every": 0, "forage": False})
    async with Gateway(made, Script(rules=LOOKS[1:]), clock=clock) as gateway:
        for number in range(19):
            await overhear(gateway, f"well {number}")
        await clock.sleep(3_600)
        assert not gateway.scripted.requests
        for number in range(6):
            for line in range(20):
                await overhear(gateway, f"well {number} {line}")
            await clock.sleep(3_600)
        looks = await gateway.turns()
        assert len(looks) == 4
        assert "(much talk, talk of people)\n" in looks[0].heard
        await clock.sleep(86_400 - 7 * 3_600)
        for line in range(20):
            await overhear(gateway, f"next day {line}")
        await clock.sleep(600)
    assert len(await gateway.turns()) == 5


@simulated
async def test_what_waits_for_quiet_is_looked_at_after_a_restart(
    clock: JumpingClock, tmp_path: Path
) -> None:
    made = configured(tmp_path, "when_useful")
    async with Gateway(made, Script(rules=LOOKS), clock=clock) as before:
        await overhear(before, QUESTION)
        await clock.sleep(20)
    async with Gateway(made, Script(rules=LOOKS), clock=clock) as after:
        await clock.sleep(60)
        assert not after.scripted.requests
        await clock.sleep(600)
    assert before.sent() + after.sent() == ["with logrotate"]


@simulated
async def test_in_a_private_room_the_rooms_own_turn_is_taken(
    clock: JumpingClock, tmp_path: Path
) -> None:
    bindings = [{"private": True, "speaks_up": "when_useful"}]
    made = on_platforms(tmp_path, bindings=bindings, dmn={"dream_every": 0})
    async with Gateway(made, Script(rules=LOOKS), clock=clock) as gateway:
        await overhear(gateway, QUESTION)
        await clock.sleep(400)
        assert gateway.sent() == ["with logrotate"]
        for _ in range(6):
            await overhear(gateway, QUESTION)
            await clock.sleep(200)
    assert [one.cause for one in await gateway.turns()] == ["noticed"] * 3


@simulated
async def test_a_rule_of_the_operator_does_not_wait_for_quiet(
    clock: JumpingClock, tmp_path: Path
) -> None:
    rule = {"type": "*.room.*", "keyword": "outage", "urgency": "normal"}
    made = configured(tmp_path, "when_useful", attention={"rules": [rule]})
    async with Gateway(made, Script(rules=LOOKS[1:]), clock=clock) as gateway:
        await overhear(gateway, "there is an outage")
        for number in range(10):
            await clock.sleep(60)
            await overhear(gateway, f"oh no {number}", who="tom")
        (looked,) = await gateway.turns()
    assert "\n(a rule of your operator, talk of people)\n" in looked.heard


@simulated
async def test_a_model_without_tools_answers_questions_only(
    clock: JumpingClock, tmp_path: Path
) -> None:
    made = configured(tmp_path, "when_useful", dmn={"dream_every": 0, "forage": True})
    model = ScriptedModel(Script(rules=LOOKS[2:]), clock=clock, takes_tools=False)
    async with Gateway(made, model, clock=clock) as gateway:
        for line in ("lovely day", QUESTION):
            await overhear(gateway, line)
            await clock.sleep(1_000)
            await gateway.say("thanks!", sender="olga", on=TELEGRAM)  # makes it forage
            await clock.sleep(1_000)
    assert gateway.sent("#one") == ["with logrotate"]
