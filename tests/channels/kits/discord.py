"""Discord, on the strict loopback server."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import ClassVar, Literal

from channels.base import Channel
from channels.discord.channel import PreviewingChannel
from channels.discord.config import DiscordConfig
from gateway.clock import SystemClock
from gateway.events import Address, ChannelName, RoomId
from tests.channels.kits.base import Kit, Where
from tests.servers.discord_api import DiscordApi, Options


class DiscordKit(Kit):
    """Hands and eyes for `channels.discord`."""

    label = "discord"
    lacks: ClassVar = {
        "it_pages": "a screen scrolls, and a message holds 2,000 characters",
        "it_joins": "bots are added by people",
    }

    def __init__(self) -> None:
        self.name = ChannelName("discord.test")
        self.nowhere = RoomId("999")
        self.api = DiscordApi(Options(limits=((r".*", 10_000, 1.0),)))
        world = self.api.world
        self.people = {name: world.add_user(name) for name in ("alice", "bob")}
        self.rooms: dict[str, str] = {
            "room": world.room,
            "other": world.other,
            "direct": world.dm(self.people["alice"]),
        }

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with self.api:
            yield

    def make(self, cursor: str | None = None) -> Channel:
        config = DiscordConfig.model_validate(
            {
                "platform": "discord",
                "token": self.api.token,
                "api_url": self.api.api_url,
                "gateway_url": self.api.gateway_url,
                "rooms": ["*"],
                "preview": "all",
            }
        )
        return PreviewingChannel(self.name, config, SystemClock(), cursor=cursor, random=lambda: 0.0)

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=self.name, room=RoomId(self.rooms[where]))

    async def say(self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice") -> None:
        self.api.says(self.rooms[where], self.people[by], text)

    async def mention(self, text: str) -> None:
        await self.say(f"<@{self.api.world.bot}> {text}")

    async def formatted(self) -> str:
        await self.say("**bold**, *italic*, `a*b*c` and <:wave:42> <#" + self.rooms["other"] + ">")
        return "**bold**, *italic*, `a*b*c` and :wave: #other"

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        room = self.rooms[where]
        await self.api.until(lambda: len(self.api.visible(room)) >= count, self.patience_s)
        return [message["content"] for message in self.api.visible(room)]

    def fits(self, seen: str) -> bool:
        return len(seen) <= 2000

    def plain(self, seen: str) -> str:
        return seen

    def replied(self, where: Where) -> bool:
        return self.api.visible(self.rooms[where])[-1].get("message_reference") is not None

    def alarmed(self) -> int:
        return len(self.api.offences)

    async def again(self) -> None:
        newest = list(self.api.world.messages[self.rooms["room"]].values())[-1]
        self.api.dispatch("MESSAGE_CREATE", self.api.world.seen_live(newest))

    async def echo(self, text: str) -> None:
        self.api.says(self.rooms["room"], self.api.world.bot, text)

    async def noise(self) -> None:
        for event, data in (("FROBNICATED", "{}"), ("MESSAGE_CREATE", "{}"), ("MESSAGE_CREATE", "null")):
            self.api.raw(f'{{"op": 0, "s": null, "t": "{event}", "d": {data}}}')
        self.api.raw('{"op": 0, "t": "MESSAGE_REACTION_ADD", "d": {"emoji": 5}, "s": null}')
        self.api.raw('{"op": 99, "d": null}')

    async def refuse(self) -> None:
        self.api.world.muted.add(self.rooms["other"])

    async def limit(self, seconds: float) -> None:
        self.api.faults.add(r"POST /channels/\d+/messages", "429", times=50, retry_after_s=seconds)

    async def cut_send(self) -> None:
        self.api.faults.add(r"POST /channels/\d+/messages", "reset after", times=50)

    async def bad_login(self) -> None:
        self.api.options = replace(self.api.options, token="another")

    async def cut(self) -> None:
        self.api.cut(4000)

    async def away(self) -> None:
        await self.api.stop()

    async def back(self) -> None:
        await self.api.start()

    async def attach(self, data: bytes) -> None:
        self.api.says(self.rooms["room"], self.people["alice"], "look", files=[("a.bin", data, "application/x-any")])

    async def typing_seen(self) -> None:
        await self.api.until(lambda: self.rooms["room"] in self.api.typings)

    async def gone(self) -> None:
        await self.api.until(lambda: not self.api.live)
