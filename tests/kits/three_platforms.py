"""Three platforms around one gateway: a Bot API, a Discord, an IRC server, and a model that refuses
what is wrong."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gateway import app
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.reload import LiveSettings
from gateway.core.events import ConnectionChanged
from gateway.core.facts import Fact
from gateway.store import Store, StoreClosed, StoreReader
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import CAPS, Ircd
from reverie.testing.servers.ircd import Options as IrcOptions
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from tests.kits.commands import TABLE
from tests.kits.platform_users import (
    ACCOUNTS,
    DISCORD,
    IRC,
    NICK,
    PLATFORMS,
    TELEGRAM,
    WAIT_S,
    IrcClient,
    OnDiscord,
    OnIrc,
    OnTelegram,
    Seat,
    so,
)

ROOM, DEN = "#room", "#den"
"""On IRC. The first is open on each platform, the other is not yet."""
Where = Literal["room", "den", "alone"]


@dataclass
class Town:
    """All of it, with the gateway between `begin` and `end`."""

    directory: Path
    telegram: BotApi
    discord: DiscordApi
    model: ModelApi
    clients: dict[str, IrcClient]
    persons: dict[str, Person]
    lounge: Chat
    den: Chat
    config: Json
    ircd: Ircd | None = None
    """The scripted one, if there is no other."""
    reader: StoreReader | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None
    _open: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    def seat(self, platform: str, who: str, where: Where) -> Seat:
        if platform == TELEGRAM:
            chat = {"room": self.lounge, "den": self.den, "alone": None}[where]
            return OnTelegram(self.telegram, self.persons[who], chat)
        if platform == DISCORD:
            user = self.user(who)
            channels = {
                "room": self.discord.room,
                "den": self.discord.other,
                "alone": self.discord.world.dm(user),
            }
            return OnDiscord(self.discord, user, channels[where])
        return OnIrc(self.clients[who], {"room": ROOM, "den": DEN, "alone": ""}[where])

    def answering(self, seat: Seat, name: str) -> Seat:
        """Where what a command is answered is read: on IRC also aside, where most is told."""
        name, __, sub = name.partition(" ")
        row = TABLE.people[name]
        if not isinstance(seat, OnIrc) or seat.direct:
            return seat
        private = (row.find_sub(sub) or row).private
        return self.seat(IRC, seat.name, "alone") if private else seat

    def room(self, platform: str, where: Where) -> str:
        """A room, as the gateway calls it."""
        chat, channel = (
            (self.lounge, self.discord.room) if where == "room" else (self.den, self.discord.other)
        )
        return {TELEGRAM: str(chat.id), DISCORD: channel, IRC: ROOM if where == "room" else DEN}[
            platform
        ]

    def user(self, who: str) -> str:
        return next(
            number for number, one in self.discord.world.users.items() if one["username"] == who
        )

    def id(self, platform: str, who: str) -> str:
        """A person, as `whoami` shows them."""
        if platform == TELEGRAM:
            return f"{TELEGRAM}:{self.persons[who].id}"
        return f"{DISCORD}:{self.user(who)}" if platform == DISCORD else f"{IRC}:account:{who}"

    async def begin(self) -> None:
        """Start the gateway; return once it is on all three."""
        identified, polled, joined = (
            len(self.discord.identifies),
            len(self.telegram.asked("getUpdates")),
            self.joins(),
        )
        file = self.directory / "reverie.yaml"
        file.write_text(json.dumps(self.config))  # JSON is YAML
        file.chmod(0o600)
        settings = read_config(self.directory, {}).settings
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(
            app.run(
                settings, self._stop, live=LiveSettings(settings, ConfigFiles(self.directory, {}))
            )
        )
        await self.so(
            lambda: len(self.discord.identifies) > identified and bool(self.discord.live), "Discord"
        )
        await self.so(
            lambda: bool(self.discord.commands.table.get("global")), "the commands on Discord"
        )
        await self.so(lambda: len(self.telegram.asked("getUpdates")) > polled, "Telegram")
        await self.so(lambda: self.joins() > joined, "IRC")
        self.reader = await self._open.enter_async_context(
            await Store.open_readonly(self.directory / "reverie.db")
        )

    async def end(self) -> None:
        """As SIGTERM does."""
        await self._open.aclose()
        self.reader = None
        if self._running is not None:
            self._stop.set()
            await self._running
            self._running = None

    async def kill(self) -> None:
        """As `kill -9` does: nothing more is written down, and all that was in memory is gone."""
        await self._open.aclose()
        self.reader = None
        assert self._running is not None
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError, StoreClosed):
            await self._running
        self._running = None

    async def so(self, true: Callable[[], bool], what: str) -> None:
        """Wait for it while the gateway runs. Raises what ended that, or TimeoutError."""
        running = self._running
        assert running is not None
        await so(lambda: true() or running.done(), what)
        if running.done():
            await running

    async def delivered(self) -> None:
        """Return once nothing is left to be said."""
        assert self.reader is not None
        async with asyncio.timeout(WAIT_S):
            while await self.reader.undelivered_posts():
                await asyncio.sleep(0.002)

    async def facts(self, kind: str) -> list[Fact]:
        assert self.reader is not None
        return [entry.fact for entry in await self.reader.entries(kinds=[kind])]

    async def ups(self, channel: str) -> int:
        found = await self.facts("link")
        return sum(
            isinstance(one, ConnectionChanged) and one.channel == channel and one.up
            for one in found
        )

    async def heard(self, seat: Seat, since: int, says: str) -> re.Match[str]:
        """What is shown to somebody behind what they knew, once it says this and nothing is left to
        be said."""

        def found() -> re.Match[str] | None:
            return re.search(says, plain(seat.shown()[since:]), re.DOTALL)

        try:
            await self.so(lambda: found() is not None, "")
        except TimeoutError:
            shown = plain(seat.shown()[since:])
            raise AssertionError(
                f"{seat.name} on {seat.platform} waits for {says!r}, and was shown {shown!r}"
            ) from None
        await self.delivered()
        await seat.settled()
        match = found()
        assert match is not None
        return match

    def joins(self, room: str = ROOM) -> int:
        """How often the bot has entered a room on IRC."""
        return self.clients["olga"].saw(rf":{NICK}!\S+ JOIN :?{room}\b")


def plain(shown: Sequence[str]) -> str:
    """Without marks of code, which Telegram has beside the text."""
    return "\n".join(shown).replace("`", "")


def configured(it: Town, irc_port: int, **more: Any) -> Json:
    """One agent on all three, with an owner on each, and no limits that a person would meet."""
    return {
        "channels": {
            TELEGRAM: {
                "platform": "telegram",
                "token": it.telegram.token,
                "base_url": it.telegram.url,
                "rooms": [str(it.lounge.id)],
                "poll_timeout": 2,
                "request_timeout": 5,
                "typing": False,
                "preview": "off",
                "flood": {"per_chat_s": 0, "group_per_min": 10000, "overall_per_s": 10000},
            },
            DISCORD: {
                "platform": "discord",
                "token": it.discord.token,
                "api_url": it.discord.api_url,
                "gateway_url": it.discord.gateway_url,
                "rooms": [it.discord.room],
                "request_timeout": 5,
                "typing": False,
            },
            IRC: {
                "platform": "irc",
                "host": "127.0.0.1",
                "port": irc_port,
                "tls": False,
                "nick": NICK,
                "rooms": [ROOM],
                "flood": {"burst": 100, "per_s": 1000.0},
            },
        },
        "agents": [{"id": "reverie"}],
        "llm": {
            "providers": {"fake": {"kind": "openai", "base_url": it.model.url, "api_key": "k"}},
            "models": {
                "main": {"provider": "fake", "name": "fake-main", "context_tokens": 100_000},
                "second": {"provider": "fake", "name": "fake-second", "context_tokens": 100_000},
            },
        },
        "attention": {"coalesce": 0},
        "commands": {"per_minute": 10_000},
        "store": {"path": "reverie.db"},
        "ops": {"port": 0},
    } | more


@contextlib.asynccontextmanager
async def town(directory: Path, **access: Any) -> AsyncIterator[Town]:
    """Servers up, and olga, gus and nora in the rooms; start the gateway with `begin`. `access`: as
    configured."""
    async with contextlib.AsyncExitStack() as opened:
        telegram, discord = (
            await opened.enter_async_context(BotApi()),
            await opened.enter_async_context(DiscordApi()),
        )
        model = await opened.enter_async_context(ModelApi())
        ircd = await opened.enter_async_context(
            Ircd(IrcOptions(caps=f"{CAPS} sasl=PLAIN", sasl=ACCOUNTS))
        )
        clients = {name: IrcClient(name, ircd.port, name) for name in ACCOUNTS}
        for client in clients.values():
            await client.begin()
            opened.push_async_callback(client.end)
            await client.join(ROOM)
        await clients["nora"].join(DEN)  # who is there first may invite others
        await clients["olga"].join(DEN)
        for name in ACCOUNTS:
            discord.world.add_user(name)
        persons = {name: telegram.person(name.title(), username=name) for name in ACCOUNTS}
        lounge, den = telegram.group("lounge"), telegram.group("den")
        den.left = True
        it = Town(directory, telegram, discord, model, clients, persons, lounge, den, {}, ircd)
        owners = [it.id(platform, "olga") for platform in PLATFORMS]
        rules = {"dm": "pairing", "roles": {"owner": owners}} | access
        it.config = configured(it, ircd.port, access=rules)
        model.default = lambda _: Answer(text=f"answer {len(model.seen)}: so much for that")
        try:
            yield it
        finally:
            await it.end()
        assert model.violations == []
        assert discord.offences == []
