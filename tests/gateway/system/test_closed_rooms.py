"""What is said in a room that is closed to them is told to nobody elsewhere, by whatever way they ask.

A whole gateway with the shipped adapters, against loopback servers. A guest asks in another room of the same account
for what was said in the closed one: by each tool, and by what comes to mind. The same room, open, is told of.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from agent.models.base import ModelRequest
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway import app
from gateway.config.loader import parse_config
from gateway.core.clock import SystemClock
from gateway.core.facts import AudienceReported, TurnRecord
from gateway.store import LogEntry, Store, StoreError
from tests.kits.channels import story
from tests.kits.gateway import UNHURRIED
from tests.servers.bot_api import BotApi
from tests.servers.discord_api import DiscordApi
from tests.servers.ircd import Ircd, Options

Form = Literal["closed", "open"]
SECRET = "the payroll of bob is 91337"
LATER = "a pension of 55221 for alice"
VIEW = str(1 << 10)
CLOSED_TO_ALL = {"type": 0, "allow": "0", "deny": VIEW}


@dataclass
class Street:
    """Two rooms of one account, and the gateway."""

    name: str
    channel: dict[str, Any]
    here: str
    """Where a guest asks."""
    there: str
    """Of which they ask: its address."""
    ask: Callable[[str], Awaitable[None]]
    """The guest says something to the agent, here."""
    tell: Callable[[str], Awaitable[None]]
    """Somebody says something there, to nobody."""
    turn: Callable[[Form], Awaitable[None]]
    """The platform opens or closes that room."""
    path: Path = Path()
    models: list[ScriptedModel] = field(default_factory=list)

    async def log(self, *kinds: str) -> list[LogEntry]:
        try:
            async with await Store.open_readonly(self.path) as reader:
                return list(await reader.entries(kinds=kinds))
        except StoreError:  # it is being made
            return []

    async def until(self, true: Callable[[list[LogEntry]], bool], *kinds: str) -> list[LogEntry]:
        async with asyncio.timeout(120):
            while not true(found := await self.log(*kinds)):
                await asyncio.sleep(0.02)
            return found

    async def said(self, text: str) -> None:
        """It is said there, and the gateway has it."""
        await self.tell(text)
        await self.until(lambda all_: any(getattr(one.fact, "text", "") == text for one in all_), "room")

    async def answered(self, text: str) -> str:
        """All that the model was asked because a guest said that, here."""
        before, asked = len(await self.turns()), [len(one.requests) for one in self.models]
        await self.ask(text)
        await self.until(lambda all_: sum(self._here(one) for one in all_) > before, "turn_ended")
        new = [one for model, begun in zip(self.models, asked, strict=True) for one in list(model.requests)[begun:]]
        return "\n".join(map(_read, new))

    async def turns(self) -> list[LogEntry]:
        return [one for one in await self.log("turn_ended") if self._here(one)]

    def _here(self, one: LogEntry) -> bool:
        return isinstance(one.fact, TurnRecord) and one.conversation == f"{self.name}/{self.here}"

    def script(self) -> Script:
        there = json.dumps({"address": f"{self.name}/{self.there}"})
        calls = {
            "recall": ("recall", json.dumps({"query": "payroll"})),
            "read": ("read_room", there),
            "people": ("who", there),
            **{f"open{number}": ("fetch_evidence", json.dumps({"handle": f"m{number}"})) for number in range(1, 60)},
            "later": ("recall", json.dumps({"query": "pension"})),
        }
        rules = [ScriptRule(match=rf"use {word}\b", calls=(call,)) for word, call in calls.items()]
        return Script(rules=(*rules, ScriptRule(match="", reply="Well.")))

    @contextlib.asynccontextmanager
    async def gateway(self, tmp: Path) -> AsyncIterator[None]:
        self.path = tmp / "reverie.db"
        made = parse_config(
            {
                "channels": {self.name: self.channel},
                "agents": [{"id": "reverie", "bindings": [{"listen": "ambient"}]}],
                "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
                "attention": {"coalesce": 0},
                "access": {"dm": "open", "rates": UNHURRIED},
                "store": {"path": "reverie.db"},
                "ops": {"port": 0},
            },
            tmp,
        )
        self.models.append(ScriptedModel(self.script(), clock=SystemClock()))
        stop = asyncio.Event()
        task = asyncio.create_task(app.run(made, stop, model=self.models[-1]))
        try:
            yield
        finally:
            stop.set()
            await task


def _read(request: ModelRequest) -> str:
    """All that a model reads."""
    return "\n".join(
        [*(block.text for block in request.blocks), repr(request.conversation), request.aside, request.now]
    )


@contextlib.asynccontextmanager
async def telegram() -> AsyncIterator[Street]:
    async with BotApi() as api:
        square, staff = api.group("square"), api.group("staff")
        square.username = "the_square"
        guest, boss = api.person("Gus"), api.person("Boss")

        async def ask(text: str) -> None:
            api.mentions(square, guest, text)

        async def tell(text: str) -> None:
            api.group_says(staff, boss, text)

        async def turn(form: Form) -> None:
            staff.username = "the_staff" if form == "open" else None

        config = {
            "platform": "telegram",
            "token": api.token,
            "base_url": api.url,
            "rooms": [str(square.id), str(staff.id)],
        }
        yield Street("telegram.test", config, str(square.id), str(staff.id), ask, tell, turn)


@contextlib.asynccontextmanager
async def discord() -> AsyncIterator[Street]:
    async with DiscordApi() as api:

        async def ask(text: str) -> None:
            await api.connected()
            api.says(api.room, api.ben, f"<@{api.bot}> {text}")

        async def tell(text: str) -> None:
            await api.connected()
            api.says(api.other, api.ann, text)

        async def turn(form: Form) -> None:
            channel = api.world.channels[api.other]
            channel["permission_overwrites"] = [{"id": api.guild, **CLOSED_TO_ALL}] if form == "closed" else []
            for session in api.live:
                session.dispatch("CHANNEL_UPDATE", channel)

        config = {
            "platform": "discord",
            "token": api.token,
            "api_url": api.api_url,
            "gateway_url": api.gateway_url,
            "rooms": [api.guild],
        }
        yield Street("discord.test", config, api.room, api.other, ask, tell, turn)


@contextlib.asynccontextmanager
async def irc() -> AsyncIterator[Street]:
    modes = {"#square": "+nt", "#staff": "+nt"}
    async with Ircd(Options(modes=modes)) as ircd:

        async def known(room: str) -> None:
            await ircd.joined("reverie", room)
            await ircd.received(f"MODE {room}")

        async def ask(text: str) -> None:
            await known("#square")
            await ircd.say("#square", f"reverie: {text}", by="gus!g@host")

        async def tell(text: str) -> None:
            await known("#staff")
            await ircd.say("#staff", text, by="boss!b@host")

        async def turn(form: Form) -> None:
            modes["#staff"] = "+nt" if form == "open" else "+nti"
            ircd.relay("#staff", f":boss!b@host MODE #staff {'-i' if form == 'open' else '+i'}", {})
            await ircd.changed()

        config = {"platform": "irc", "host": "127.0.0.1", "port": ircd.port, "tls": False, "nick": "reverie"}
        rooms = {"rooms": ["#square", "#staff"], "flood": {"burst": 100, "per_s": 100.0}}
        yield Street("irc.test", config | rooms, "#square", "#staff", ask, tell, turn)


STREETS = {"telegram": telegram, "discord": discord, "irc": irc}
PLATFORMS = [pytest.param("telegram", marks=pytest.mark.system), "discord", "irc"]


async def every_way(street: Street, secret: str = SECRET, question: str = "and the payroll of bob?") -> str:
    """All that a guest here can have the model told of what was said there."""
    (number,) = [one.seq for one in await street.log("room") if getattr(one.fact, "text", "") == secret]
    told = [await street.answered(f"use {word}") for word in ("recall", "read", "people", f"open{number}")]
    return "\n".join([*told, await street.answered(question)])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_closed_room_is_told_to_nobody_elsewhere_also_after_a_restart(tmp_path: Path, platform: str) -> None:
    @story
    async def run() -> None:
        async with STREETS[platform]() as street:
            await street.turn("closed")
            async with street.gateway(tmp_path):
                await street.said(SECRET)
                told = await every_way(street)
                assert "91337" not in told
                assert "There is no place with that address" in told
            async with street.gateway(tmp_path):
                assert "91337" not in await every_way(street)

    run()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_open_room_is_told_of_and_no_more_once_it_has_closed(tmp_path: Path, platform: str) -> None:
    @story
    async def run() -> None:
        async with STREETS[platform]() as street:
            await street.turn("open")
            async with street.gateway(tmp_path):
                await opened(street)
                await street.said(SECRET)
                assert "91337" in await street.answered("and the payroll of bob?"), "it comes to mind"
            async with street.gateway(tmp_path):
                assert "91337" in await street.answered("use recall"), "it is known over a restart"
                assert "91337" in await street.answered("use read")
                await street.said(LATER)
                await street.turn("closed")
                await street.said("now we are among us")
                assert "among us" not in (told := await every_way(street, LATER, "what pension has alice?"))
                assert "There is nothing with that handle" in told
                assert "There is no place with that address" in told
                assert "55221" not in await street.answered("use later"), "which was said while it was open"

    run()


async def opened(street: Street) -> None:
    """The gateway has it in its log that everybody here may read there."""
    number = 0

    def is_open(found: list[LogEntry]) -> bool:
        audiences = [one.fact for one in found if isinstance(one.fact, AudienceReported)]
        mine = [one for one in audiences if one.at.room == street.there]
        return bool(mine) and mine[-1].scope != mine[-1].at.conversation

    async with asyncio.timeout(120):
        while not is_open(await street.log("audience")):
            number += 1
            await street.said(f"line {number}")
