"""An owner is told, unasked, in their own chat: at once, together with what can wait, never twice;
and what they answer reaches the place that it came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.core.clock import ManualClock
from gateway.core.facts import OwnerTold, is_inner
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
