"""The commands about rooms and channels in a whole gateway, as an owner on IRC gives them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from agent.models.scripted import ScriptedModel
from gateway import app
from gateway.core.clock import SystemClock
from gateway.core.events import ChannelName
from tests.channels.irc.channel_kit import config
from tests.kits.channels import story
from tests.kits.gateway import settings
from tests.servers.ircd import MODERN, Client, Ircd, Options

NAME = ChannelName("irc.test")
BOSS = "boss!b@host"


class Town:
    """A server, the gateway on it, and its owner: what is said to them is read off the gateway's wire."""

    def __init__(self, ircd: Ircd) -> None:
        self.ircd = ircd

    @property
    def bot(self) -> Client:
        return next(client for client in self.ircd.here() if client.nick == "reverie")

    async def owner(self, text: str, room: str = "#one") -> None:
        await self.ircd.say(room, text, by=BOSS, account="boss")

    async def told(self, words: str, room: str = "(#one|boss)", times: int = 1) -> None:
        """In the room, or aside."""
        await self.ircd.received(rf"(@\S+ )?(PRIVMSG|NOTICE) {room} :.*{words}", times=times)

    async def sent(self, line: str, times: int = 1) -> None:
        await self.ircd.received(rf"(@\S+ )?{line}", times=times)

    def here(self, room: str) -> bool:
        return any(client.nick == "reverie" and not client.closed for client in self.ircd.rooms.get(room, []))


@contextlib.asynccontextmanager
async def town(tmp: Path) -> AsyncIterator[Town]:
    options = Options(caps=MODERN, isupport=(*Options().isupport, "CHATHISTORY=50"))
    async with Ircd(options) as ircd:
        mine = config(ircd.port, rooms=["#one", "#two"]).model_dump(mode="json", exclude_none=True)
        owner = {"roles": {"owner": [f"{NAME}:account:boss"]}}
        made, stop = settings(tmp, channels={NAME: mine}, access=owner, commands={"per_minute": 100}), asyncio.Event()
        _, boss = await asyncio.open_connection("127.0.0.1", ircd.port)
        boss.write(b"NICK boss\r\nUSER boss 0 * :boss\r\n")
        await ircd.until(lambda: any(client.nick == "boss" for client in ircd.here()))
        task = asyncio.create_task(app.run(made, stop, model=ScriptedModel(clock=SystemClock())))
        try:
            it = Town(ircd)
            await ircd.until(lambda: it.here("#one") and it.here("#two"))
            yield it
        finally:
            stop.set()
            await task
            boss.close()


@story
async def test_an_owner_goes_about_with_it(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.owner("!rooms")
        await it.told("irc.test/#one.*in the configuration, I am in it")
        await it.owner("!part #TWO")
        await it.told("I leave .?irc.test/#two")
        await it.sent("PART #two")
        await it.owner("!rooms")
        await it.told("irc.test/#two.*in the configuration, left by command")
        await it.owner("!say #two hello there")
        await it.told("I am not in .?irc.test/#two.?. .?!join.? lets me enter it")
        await it.owner("!join #elsewhere")
        await it.told("is not approved")
        await it.owner("!join #two")
        await it.sent("JOIN #two")
        await it.ircd.until(lambda: it.here("#two"))
        await it.owner("!say #two hello again")
        await it.told("hello again", room="#two")
        await it.owner("!part")
        await it.told("I leave .?irc.test/#one")
        await it.sent("PART #one")


@story
async def test_an_owner_restarts_the_channel_that_they_are_on(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        for number in range(3):
            before = it.bot
            await it.owner("!restart irc.test")
            await it.told("I disconnect .?irc.test.? and connect it again", times=number + 1)
            await it.ircd.until(lambda gone=before: gone.closed and it.here("#one"))  # type: ignore[misc] # mypy cannot infer a lambda with a default
            assert any(line.startswith("QUIT") for line in before.lines)
            await it.owner("!status")
            await it.told("irc.test: up since", times=number + 1)
        posts = [line for line in it.ircd.lines if "I disconnect" in line]
        assert len(posts) == 3


@story
async def test_without_files_there_is_nothing_to_reload(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.owner("!reload")
        await it.told("I cannot read the configuration: .?it does not come from files")


@story
async def test_nobody_else_is_heard(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        for command in ("rooms", "part #two", "join #two", "say #two x", "restart irc.test", "reload"):
            await it.ircd.say("#one", f"!{command}", by="mallory!m@h", account="mallory")
            await it.ircd.say("#one", f"!{command}", by=BOSS)  # the same nick, without the account
        await it.owner("!version")
        await it.told("Reverie ")
        said = [line for line in it.ircd.lines if "PRIVMSG" in line or "NOTICE" in line or line.startswith("PART")]
        private = [line for line in said if "NOTICE" in line]
        assert len(said) == 1 + len(private)
        assert sorted(line.split("NOTICE ")[1].split(" :")[0] for line in private) == ["boss", "mallory"], "once each"
