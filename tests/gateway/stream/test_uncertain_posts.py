"""Answers that may not have arrived: one notice for the right person, and what `again` repeats."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from channels.base import BeforeSend, Capabilities, Part, Uncertain, no_before_send
from channels.console import ConsoleChannel
from gateway.core.events import DeliveryReport, Receipt
from gateway.core.facts import PostQueued
from gateway.stream import outbox
from tests.kits.gateway import CONSOLE, Running, Screen, running
from tests.kits.store import run

DOUBT = '(My last answer may not have reached you: say "again" and I repeat it.)'
SCRIPT = Script(
    rules=tuple(
        ScriptRule(match=rf"guest\): (reverie: )?{word}", reply=reply)
        for word, reply in {"again": "No.", "two": "Second.", "one": "First."}.items()
    )
)
IN_A_ROOM = '(My last answer may not have reached you: say "again" to me and I repeat it.)'


class Doubtful(ConsoleChannel):
    """A connection that is cut after some parts."""

    def __init__(self, screen: Screen, *, replies: bool = True, seen: bool = False) -> None:
        super().__init__(CONSOLE, screen.show)
        self.capabilities = replace(Capabilities(platform="console", formatting=""), replies=replies)
        self.cuts, self.seen, self.tried = 0, seen, list[str]()

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        self.tried.append(part.body)
        if self.cuts:
            self.cuts -= 1
            await going()
            if self.seen:
                await super().send(part)
            raise Uncertain("the line was cut")
        return await super().send(part, going)


class Talk(Running):
    """A gateway on such a connection."""

    def __init__(self, gateway: Running, channel: Doubtful) -> None:
        self.__dict__ |= gateway.__dict__
        self.channel = channel

    async def delivered(self, *states: str) -> None:
        while [one.state for one in await self.log("delivery") if isinstance(one, DeliveryReport)] != list(states):
            await asyncio.sleep(0.005)

    async def posts(self) -> Sequence[str]:
        return [one.post.text for one in await self.log("post") if isinstance(one, PostQueued)]


def story(tmp_path: Path, told: Any, **more: Any) -> None:
    async def play() -> None:
        screen = Screen()
        channel = Doubtful(screen, **more)
        async with running(tmp_path, SCRIPT, channels={CONSOLE: channel}) as gateway:
            gateway.screen, gateway.console = screen, channel
            await told(Talk(gateway, channel))

    run(play())


def test_a_person_is_told_before_the_next_answer_and_again_repeats_it_once(tmp_path: Path) -> None:
    async def told(it: Talk) -> None:
        it.channel.cuts = 1
        await it.console.receive_message("one", sender="ann")
        await it.delivered("uncertain")
        assert it.channel.tried == ["First."], "not told at once: perhaps the line comes back"
        await it.console.receive_message("two", sender="ann")
        await it.screen.until(2)
        assert it.screen.said("ann")[0] == DOUBT
        heard = str(it.scripted.requests[-1])
        assert "may or may not have been delivered" in heard
        assert "do not repeat it unasked" in heard
        asked = len(it.scripted.requests)
        await it.console.receive_message("Again!", sender="ann")
        await it.screen.until(3)
        assert it.screen.said("ann")[2] == "First."
        assert len(it.scripted.requests) == asked, "the model is not asked for it"
        await it.console.receive_message("again", sender="ann")
        await it.screen.until(4)
        assert it.screen.said("ann")[3] == "No.", "nothing is in doubt by now: it is a word like any"

    story(tmp_path, told)


def test_after_a_minute_it_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "UNCERTAIN_NOTICE_WAIT_S", 0.05)

    async def told(it: Talk) -> None:
        it.channel.cuts = 1
        await it.console.receive_message("one", sender="ann")
        await it.screen.until(1)
        assert it.screen.parts[0].style == "notice"
        assert it.screen.said("ann") == [DOUBT]

    story(tmp_path, told)


def test_several_answers_in_doubt_are_one_line_and_are_repeated_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "UNCERTAIN_NOTICE_WAIT_S", 0.0)

    async def told(it: Talk) -> None:
        it.channel.cuts = 3  # the notice about the first is cut, too
        await it.console.receive_message("one", sender="ann")
        await it.delivered("uncertain", "uncertain")
        await it.console.receive_message("two", sender="ann")
        await it.screen.until(1)
        assert it.screen.said("ann") == [DOUBT]
        await it.console.receive_message("again", sender="ann")
        await it.screen.until(2)
        assert it.screen.said("ann")[-1] == "First.\n\nSecond."

    story(tmp_path, told)


def test_in_a_room_only_whoever_was_answered_is_told_by_name(tmp_path: Path) -> None:
    async def told(it: Talk) -> None:
        it.channel.cuts = 1
        await it.console.receive_message("reverie: one", sender="ann", room="lobby")
        await it.delivered("uncertain")
        await it.console.receive_message("reverie: two", sender="bob", room="lobby")
        await it.screen.until(2)
        assert it.screen.said("lobby")[0] == f"ann: {IN_A_ROOM}"
        await it.console.receive_message("again", sender="bob", room="lobby")  # to nobody
        await it.console.receive_message("reverie: again", sender="ann", room="lobby")
        await it.screen.until(3)
        assert "First." in it.screen.said("lobby")[2]

    story(tmp_path, told, replies=False)


def test_what_is_told_is_told_once_over_restarts(tmp_path: Path) -> None:
    async def first(it: Talk) -> None:
        it.channel.cuts = 1
        await it.console.receive_message("one", sender="ann")
        await it.delivered("uncertain")

    async def then(it: Talk) -> None:
        await it.console.receive_message("two", sender="ann")
        while "Second." not in it.channel.tried:
            await asyncio.sleep(0.005)
        assert sum(text == DOUBT for text in await it.posts()) == 1

    story(tmp_path, first)
    story(tmp_path, then)
    story(tmp_path, then)


def test_a_notice_that_is_in_doubt_itself_is_left_at_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "UNCERTAIN_NOTICE_WAIT_S", 0.0)

    async def told(it: Talk) -> None:
        it.channel.cuts = 2
        await it.console.receive_message("one", sender="ann")
        await it.delivered("uncertain", "uncertain")
        await it.console.receive_message("two", sender="ann")
        await it.screen.until(1)
        assert it.channel.tried == ["First.", DOUBT, "Second."]

    story(tmp_path, told)
