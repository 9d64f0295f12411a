"""The whole gateway on real IRC servers with their own flood limits: people in a room and one in private, at once."""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import pytest

from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway import app
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.core.clock import SystemClock
from gateway.core.events import ConnectionChanged, DeliveryReport
from gateway.core.facts import Fact, TurnRecord
from gateway.store import Store, StoreError
from tests.kits.waiting import until
from tests.servers.real_ircd import inspircd, ngircd

LINES = 2
LONG = "answer {text} " + "и это длинная строка " * 15


class Person:
    """Somebody with an IRC client."""

    def __init__(self, nick: str, port: int) -> None:
        self.nick = nick
        self.port = port
        self.heard: list[tuple[str, str]] = []
        """(to whom, text) of what the bot said, in order."""
        self.saw_end = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.say(f"NICK {self.nick}", f"USER {self.nick} 0 * :{self.nick}")
        await self._until(r":\S+ (376|422) ")
        self.say("JOIN #room")
        await self._until(r":\S+ 366 ")
        self._listening = asyncio.create_task(self._until("never"))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        await self._writer.wait_closed()

    def say(self, *lines: str) -> None:
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())

    async def _until(self, pattern: str) -> None:
        while True:
            line = (await self._reader.readuntil(b"\r\n")).decode().rstrip("\r\n")
            if line.startswith("PING"):
                self.say("PONG" + line[4:])
            if said := re.match(r":reverie!\S+ PRIVMSG (\S+) :(.*)", line):
                self.heard.append((said[1], said[2]))
            if re.match(pattern, line):
                return


@contextlib.contextmanager
def served(
    server: Callable[..., AbstractContextManager[int]], directory: Path, limits: bool | str = True
) -> Iterator[int]:
    try:
        with server(directory, limits=limits) as port:
            yield port
    except FileNotFoundError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.mark.parametrize("server", [inspircd, ngircd])
def test_each_gets_their_answer_in_the_right_place_in_order_once(
    server: Callable[..., AbstractContextManager[int]], tmp_path: Path
) -> None:
    with served(server, tmp_path) as port:
        asyncio.run(_story(port, tmp_path))


def _settings(port: int, tmp: Path, **irc: object) -> Settings:
    here = {"platform": "irc", "host": "127.0.0.1", "port": port, "tls": False, "nick": "reverie", "rooms": ["#room"]}
    return parse_config(
        {
            "channels": {"irc": here | irc},
            "agents": [{"id": "reverie"}],
            "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
            "attention": {"coalesce": 0},
            "access": {"dm": "open"},
            "store": {"path": "reverie.db"},
        },
        tmp,
    )


STRICT = 'hardsendq="1M" softsendq="100k" recvq="64k" threshold="45" commandrate="20000" fakelag="no" maxchans="20"'
"""45 commands at once, then twenty a second; who sends more is thrown off."""


def test_who_is_thrown_off_for_flooding_says_the_rest_more_slowly_and_once(tmp_path: Path) -> None:
    said = [f"line {number} of an answer" for number in range(80)]

    async def flooding(port: int) -> None:
        pace = {"flood": {"burst": 60, "per_s": 20}, "page_lines": 0}
        script = Script(rules=(ScriptRule(match="long", reply="\n".join(said)),))
        stop, model = asyncio.Event(), ScriptedModel(script, clock=SystemClock())
        gateway = asyncio.create_task(app.run(_settings(port, tmp_path, **pace), stop, model=model))
        try:
            async with Person("ann", port) as ann:
                await _joined(tmp_path)
                ann.say("PRIVMSG #room :reverie: long")
                await until(lambda: len(ann.heard) >= len(said))
                assert [text for _, text in ann.heard] == said
        finally:
            stop.set()
            await gateway

    with served(inspircd, tmp_path, STRICT) as port:
        asyncio.run(flooding(port))

    async def log() -> list[Fact]:
        async with await Store.open_readonly(tmp_path / "reverie.db") as reader:
            return [one.fact for one in await reader.entries(kinds=["link", "delivery"])]

    facts = asyncio.run(log())
    downs = [one.reason for one in facts if isinstance(one, ConnectionChanged) and not one.up]
    assert ["Excess Flood" in reason for reason in downs] == [True], "the half of its pace is no flood"
    assert [one.state for one in facts if isinstance(one, DeliveryReport)] == ["sent"], "nothing is uncertain"


async def _story(port: int, tmp: Path) -> None:
    settings = _settings(port, tmp)
    script = Script(rules=(ScriptRule(match="long", reply=LONG),), delay_s=0.05)
    stop = asyncio.Event()
    gateway = asyncio.create_task(app.run(settings, stop, model=ScriptedModel(script, clock=SystemClock())))
    try:
        async with Person("ann", port) as ann, Person("bob", port) as bob, Person("cat", port) as cat:
            await _joined(tmp)
            for number in range(1, LINES + 1):
                ann.say(f"PRIVMSG #room :reverie: ann-{number} long")
                bob.say(f"PRIVMSG #room :hey reverie, bob-{number}")
                cat.say(f"PRIVMSG reverie :cat-{number}")
                await asyncio.sleep(0.3)  # people are not machines, and the servers slow machines down
            turns = await _all_answered(tmp, LINES * 3)
            room = [text for to, text in ann.heard if to == "#room"]
            private = [text for to, text in cat.heard if to == "cat"]
            assert [text for to, text in bob.heard if to == "#room"] == room
            assert not [to for to, _ in (*ann.heard, *bob.heard) if to != "#room"]
    finally:
        stop.set()
        await gateway
    assert _squeezed(room) == _squeezed(turn.text for turn in turns if "cat-" not in turn.heard)
    assert _squeezed(private) == _squeezed(turn.text for turn in turns if "cat-" in turn.heard)
    for name in ("ann", "bob", "cat"):
        for number in range(1, LINES + 1):
            assert sum(f"{name}-{number}" in turn.text for turn in turns) == 1


def _squeezed(lines: object) -> str:
    """Words in order: the cuts between lines are the channel's."""
    assert hasattr(lines, "__iter__")
    return " ".join(" ".join(lines).split())


async def _joined(tmp: Path) -> None:
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(StoreError):  # the store is not made yet
                async with await Store.open_readonly(tmp / "reverie.db") as reader:
                    if any(link.up for link in await reader.connection_states()):
                        return
            await asyncio.sleep(0.05)


async def _all_answered(tmp: Path, lines: int) -> list[TurnRecord]:
    """The turns, once they cover that many lines and every post of theirs is delivered."""
    async with asyncio.timeout(90), await Store.open_readonly(tmp / "reverie.db") as reader:
        while True:
            facts = [stored.fact for stored in await reader.entries(kinds=["turn_ended", "delivery"])]
            turns = [fact for fact in facts if isinstance(fact, TurnRecord)]
            delivered = [fact for fact in facts if isinstance(fact, DeliveryReport)]
            if sum(len(turn.covers) for turn in turns) >= lines and len(delivered) == len(turns):
                assert {delivery.state for delivery in delivered} == {"sent"}
                return turns
            await asyncio.sleep(0.1)
