"""What happened while somebody was away: told unasked to an owner who comes back, by the tool, and
by `/recap` without a model. A whole gateway in simulated time."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.prompts import load_prompt
from gateway.core.events import ConversationId
from gateway.core.facts import is_inner
from reverie.testing.gateway import DISCORD, IRC, TELEGRAM, Gateway, on_platforms
from reverie.testing.played_model import REST, Ask, PlayedModel, Say
from reverie.testing.simulated_time import JumpingClock, simulated
from tests.gateway.system.test_inner_conversation_privacy import nothing_is_private

LIFTED = {"rules": [{"type": "irc.libera.room.#one", "urgency": "normal"}]}
HELP = "logrotate -f forces it"


def plays(ask: Ask) -> Say:
    """Attends the room with a question, answers there, and calls `recap` where it is asked to."""
    if is_inner(ask.place):
        if "rotate" not in ask.heard:
            return REST
        attend = json.dumps({"room": "#one", "reason": "nobody answers tom"})
        return Say(calls=(("attend", attend), ("yield_to_user", '{"note": "Tom needs help."}')))
    if ask.results:
        return Say(text="This happened.")
    if "rotate" in ask.heard:
        return Say(text=HELP)
    if "find your note" in ask.heard:
        return Say(calls=(("recall", '{"query": "needs help"}'),))
    if "what happened" in ask.heard:
        since = {"since": "2h"} if "2h" in ask.heard else {}
        return Say(calls=(("recap", json.dumps(since)),))
    return Say(text="Yes.")


def gateway(tmp: Path, clock: JumpingClock, **more: Any) -> Gateway:
    made = on_platforms(tmp, attention=LIFTED, **more)
    return Gateway(made, PlayedModel(clock, plays), clock=clock)


async def hour(it: Gateway, clock: JumpingClock, *, cut: bool = False) -> None:
    """An hour in three rooms and a private chat; the owner was there before."""
    await it.say("hello", sender="olga", on=TELEGRAM)
    await clock.sleep(600)
    await it.say("how do I rotate the logs?", sender="tom", room="#one", on=IRC)
    await clock.sleep(900)
    if cut:
        await it.kill()
        it.start()
        await clock.sleep(5)
    for name in ("ewa", "ewa", "jan"):
        await it.say("the docs are down", sender=name, room="#two", on=DISCORD)
        await clock.sleep(60)
    await it.say("reverie: are you there?", sender="jan", room="#three", on=TELEGRAM)
    await clock.sleep(60)
    await it.say("my secret", sender="ann", on=DISCORD)
    await clock.sleep(1800)


def last(it: Gateway, place: str) -> Ask:
    """The newest request of a place."""
    assert isinstance(it.model, PlayedModel)
    return [one for one in it.model.asked if one.place == ConversationId(place)][-1]


OLGA = f"{TELEGRAM}/olga"
ROOMS = (
    '#one: 1 line (tom); attended, because "nobody answers tom"; wrote: "logrotate -f forces it"',
    "#three: 1 line (jan); 1 answer",
    "#two: 3 lines (ewa, jan)",
)

PLAIN = "#one: 1 line (tom); attended, because of a rule of your operator; posted a message"
HINT = "(`recap` tells more.)"
"""Unasked, nothing that rests on a guest's words is quoted."""


@pytest.mark.parametrize("cut", [False, True])
@simulated
async def test_an_owner_who_comes_back_is_told_what_happened(
    tmp_path: Path, clock: JumpingClock, *, cut: bool
) -> None:
    async with gateway(tmp_path, clock) as it:
        await hour(it, clock, cut=cut)
        if cut:
            await it.kill()
            it.start()
            await clock.sleep(5)
        await it.say("I am back", sender="olga", on=TELEGRAM)
        await clock.sleep(30)
        told = last(it, OLGA).request
        head, *lines = told.aside.splitlines()
        assert head.startswith("[MEANWHILE] Since your owner last wrote, at 2026")
        assert lines == [PLAIN, "discord.main/ann: 1 line (ann); 1 answer", *ROOMS[1:], HINT]
        assert told.now.startswith(load_prompt("returned"))
        await it.say("and now?", sender="olga", on=TELEGRAM)
        await clock.sleep(30)
        assert (last(it, OLGA).request.aside, last(it, OLGA).request.now) == ("", "")
        assert {one.label.integrity for one in (await it.turns())[-2:]} == {"owner"}


@simulated
async def test_where_nothing_happened_nothing_is_said(tmp_path: Path, clock: JumpingClock) -> None:
    async with gateway(tmp_path, clock) as it:
        for _ in range(2):
            await it.say("hello", sender="olga", on=TELEGRAM)
            await clock.sleep(7200)
            assert (last(it, OLGA).request.aside, last(it, OLGA).request.now) == ("", "")


@simulated
async def test_a_turn_that_was_cut_off_is_told_again(tmp_path: Path, clock: JumpingClock) -> None:
    """The process ends after the owner's message is durable, and before its turn is."""

    async with gateway(tmp_path, clock) as it:
        await hour(it, clock)
        await it.say("I am back", sender="olga", on=TELEGRAM)
        await it.kill()
        it.start()
        await clock.sleep(30)
        assert PLAIN in last(it, OLGA).request.aside


def told_in(
    tmp: Path, who: str, room: str | None, on: str, *, since: str = "2h"
) -> tuple[str, str]:
    """What the tool returns to somebody who asks what happened, and what the command shows."""
    found = list[str]()

    @simulated
    async def story(clock: JumpingClock) -> None:
        async with gateway(tmp, clock) as it:
            await hour(it, clock)
            await it.say(f"reverie: what happened {since}?", sender=who, room=room, on=on)
            await clock.sleep(30)
            (result,) = last(it, f"{on}/{room or who}").results
            await it.say(f"!recap {since}", sender=who, room=room, on=on)
            await clock.sleep(30)
            found.extend((result, it.sent(room or who)[-1]))

    story()
    return found[0], found[1]


@pytest.mark.parametrize(
    ("who", "room", "on"),
    [
        ("mia", "#two", DISCORD),
        ("tom", None, IRC),
        ("jan", None, TELEGRAM),
        ("olga", "#two", DISCORD),
    ],
)
def test_a_room_is_told_what_all_there_may_know(
    tmp_path: Path, who: str, room: str | None, on: str
) -> None:
    def run(tmp: Path) -> None:
        tool, command = told_in(tmp, who, room, on)
        for told in (tool, command):
            assert "ann: " not in told, "it leaks"
            assert "#three: 1 line (jan); 1 answer" in told.replace("\\", "")
            assert "logrotate" in told

    run(tmp_path)
    with nothing_is_private(), pytest.raises(AssertionError, match="it leaks"):
        run(tmp_path / "leaking")


def test_an_owner_alone_is_told_all(tmp_path: Path) -> None:
    tool, command = told_in(tmp_path, "olga", None, TELEGRAM, since="")
    assert "Since 2026-03-02 06:00:00 UTC" in tool, "she wrote then"
    for line in ("ann: 1 line; 1 answer", *ROOMS[1:]):
        assert line in tool
        assert line in command.replace("\\", "")
    assert re.search(r'wrote: "logrotate -f forces it" \[m\d+\]', tool)


@simulated
async def test_what_a_turn_noted_is_read_by_the_next_and_found_by_its_owner(
    tmp_path: Path, clock: JumpingClock
) -> None:
    async with gateway(tmp_path, clock) as it:
        await hour(it, clock)
        await it.say("and rotate mine, too?", sender="tom", room="#one", on=IRC)
        await clock.sleep(900)
        said = last(it, "agent/reverie").request.conversation
        assert any(one.role == "assistant" and "Tom needs help." in repr(one) for one in said)
        for who, on, found in (("olga", TELEGRAM, True), ("jan", TELEGRAM, False)):
            await it.say("find your note", sender=who, on=on)
            await clock.sleep(30)
            (result,) = last(it, f"{on}/{who}").results
            assert ('you, by yourself: "Tom needs help."' in result) is found
