"""An owner is told, unasked, in their own chat: at once, together with what can wait, never twice;
and what they answer reaches the place that it came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.core.clock import ManualClock
from gateway.core.facts import Judgement, OwnerTold, is_inner
from tests.kits.gateway import TELEGRAM, Gateway, on_platforms
from tests.kits.played_model import REST, Ask, PlayedModel, Say
from tests.kits.simulated_time import JumpingClock, simulated

NOTICED = [{"type": "*", "urgency": "normal", "keyword": "failed"}]
"""What is worth a look."""
OLGA_CHAT = f"{TELEGRAM}/olga"


def tell(text: str, **more: str) -> tuple[str, str]:
    return ("tell", json.dumps({"text": text, **more}))


class Mind:
    """Does what is written down for the words that it hears; greets otherwise, and rests by
    itself."""

    def __init__(self, *rules: tuple[str, Say]) -> None:
        self.rules = list(rules)
        self.results = list[str]()
        """Of the tools that it called."""

    def __call__(self, ask: Ask) -> Say:
        self.results += ask.results
        if not ask.results:
            for words, say in self.rules:
                if words in ask.heard.rpartition("] ")[2] or words in ask.heard:
                    return say
        return REST if is_inner(ask.place) else Say(text="Yes.")


def gateway(tmp: Path, clock: ManualClock, mind: Callable[[Ask], Say], **more: Any) -> Gateway:
    made = on_platforms(tmp, attention={"rules": NOTICED, **more.pop("attention", {})}, **more)
    return Gateway(made, PlayedModel(clock, mind), clock=clock)


async def greets(it: Gateway, who: str = "olga", on: str = TELEGRAM) -> None:
    """An owner has a chat with the agent."""
    await it.say("hello", sender=who, on=on)
    await it.clock.sleep(10)


def told(it: Gateway, room: str = "olga") -> list[str]:
    """What the owner was told, without the answers."""
    return [text for text in it.sent(room) if text != "Yes."]


async def told_facts(it: Gateway, state: str = "posted") -> list[OwnerTold]:
    found = [one for one in await it.facts("told") if isinstance(one, OwnerTold)]
    return [one for one in found if one.state == state]


@simulated
async def test_what_it_notices_by_itself_it_tells_at_once_with_room_and_person(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("deploy of 15:00 failed", Say(calls=(tell("The deploy of 15:00 failed."),))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await it.say("the deploy of 15:00 failed", sender="bob", room="#one", on="irc.libera")
        await clock.sleep(600)
        assert told(it) == [
            "From `#one`, after words of `bob` (guest):\n> The deploy of 15:00 failed."
        ]
        (fact,) = await told_facts(it)
        assert (fact.who, fact.about, fact.people) == ("olga", fact.about, ("irc.libera:bob",))
        record = (await it.turns())[-2:]
        assert OLGA_CHAT in {one.conversation for one in await it.entries("turn_ended")}
        assert all(one.label.integrity == "guest" for one in record)


@simulated
async def test_a_guest_may_have_an_owner_told_from_their_room(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("tell olga", Say(calls=(tell("The disk is full.", who="Olga"),))))
    async with gateway(tmp_path, clock, mind) as it:
        await greets(it)
        await it.say("reverie: tell olga that the disk is full", sender="ann", room="#two")
        await clock.sleep(60)
        assert mind.results == ["olga is told now."]
        assert told(it) == ["From `#two`, after words of `ann` (guest):\n> The disk is full."]


@simulated
async def test_a_line_that_names_an_owner_who_is_not_there_is_looked_at_and_told(
    tmp_path: Path, clock: JumpingClock
) -> None:
    mind = Mind(("should know", Say(calls=(tell("The deploy failed."),))))
    model = PlayedModel(clock, mind)
    async with Gateway(on_platforms(tmp_path), model, clock=clock) as it:
        await greets(it)
        for words, room in (("a solga, and what she saw", "#one"), ("the folga", "#two")):
            await it.say(words, sender="bob", room=room, on="irc.libera")
        await clock.sleep(600)
        assert len(model.asked) == 1  # words that hold her name are not her name
        await it.say(
            "Olga, should know: the deploy failed", sender="bob", room="#one", on="discord.main"
        )
        await clock.sleep(600)
        assert len(told(it)) == 1
        judged = [one for one in await it.facts("judged") if isinstance(one, Judgement)]
        assert judged[-1].rule == "it names an owner"
    async with Gateway(on_platforms(tmp_path), model, clock=clock) as it:
        await it.say("I am here", sender="olga", room="#two", on=TELEGRAM)
        await it.say("Olga should know of the disk", sender="bob", room="#two", on=TELEGRAM)
        asked = len(model.asked)
        await clock.sleep(600)
        assert len(model.asked) == asked  # she reads it herself
        await clock.sleep(1_800)
        await it.say("Olga should know of the disk", sender="bob", room="#two", on=TELEGRAM)
        await clock.sleep(600)
        assert len(model.asked) > asked
