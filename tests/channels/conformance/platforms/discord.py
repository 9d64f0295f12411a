"""Discord, on the strict loopback server."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import ClassVar, Literal

from channels.base import Channel
from channels.discord.channel import DiscordPreviewChannel
from channels.discord.config import DiscordConfig
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, RoomId, ThreadId
from reverie.testing.platforms.base import COMMANDS, Kit, Where
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.discord_api_world import Json


class DiscordKit(Kit):
    """Hands and eyes for `channels.discord`."""

    lacks: ClassVar = {
        "it_pages": "a screen scrolls, and a message holds 2,000 characters",
        "it_joins": "bots are added by people",
        "it_adapts": "it is made anew, and asks what it missed",
        "it_offers": "who is shown which commands is set by those who run a guild, and by no bot",
        "it_whispers": "answers to commands are shown to who asked, in the room itself",
    }

    def __init__(self) -> None:
        self.name = ChannelName("discord.test")
        self.nowhere = RoomId("999")
        self.api = DiscordApi(Options(limits=((r".*", 10_000, 1.0),), members=True))
        world = self.api.world
        self.people = {name: world.add_user(name) for name in ("alice", "bob")}
        self.rooms: dict[str, str] = {
            "room": world.room,
            "other": world.other,
            "direct": world.dm(self.people["alice"]),
        }
        self.direct = {"alice": self.rooms["direct"], "bob": world.dm(self.people["bob"])}

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
        return DiscordPreviewChannel(
            self.name, config, SystemClock(), cursor=cursor, commands=COMMANDS, random=lambda: 0.0
        )

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=self.name, room=RoomId(self.rooms[where]))

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        room = self.direct[by] if where == "direct" else self.rooms[where]
        self.api.says(room, self.people[by], text)

    async def mention(self, text: str) -> None:
        await self.say(f"<@{self.api.world.bot}> {text}")

    async def formatted(self) -> str:
        other = self.rooms["other"]
        await self.say(f"**bold**, *italic*, `a*b*c` and <:wave:42> <#{other}>")
        return f"**bold**, *italic*, `a*b*c` and :emoji: #{other}"

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        room = self.rooms[where]
        await self.api.until(lambda: len(self.api.visible(room)) >= count, self.patience_s)
        return [message["content"] for message in self.api.visible(room)]

    async def leavable(self) -> Address:
        thread = self.api.threads(self.rooms["room"], self.people["alice"], "a thread")
        return Address(channel=self.name, room=RoomId(self.rooms["room"]), thread=ThreadId(thread))

    async def left(self, at: Address) -> None:
        assert at.thread in self.api.world.left

    async def reactions(self) -> list[str]:
        newest = next(m for m in reversed(self._said()) if m["author"]["id"] != self.api.bot)
        return list(newest.get("bots_reactions", ()))

    async def topic(self) -> str:
        return self.api.world.channels[self.rooms["room"]]["topic"] or ""

    async def theirs(self) -> list[str]:
        return [
            message["content"]
            for message in self._said()
            if message["author"]["id"] != self.api.bot
        ]

    def files(self) -> list[tuple[str, str, bytes]]:
        found = [
            (m["content"], file)
            for m in self.api.visible(self.rooms["room"])
            for file in m["attachments"]
        ]
        kept = self.api.world.files
        return [
            (file["filename"], text, kept[file["url"].partition("/cdn/")[2]][0])
            for text, file in found
        ]

    def _said(self) -> list[Json]:
        return list(self.api.world.messages[self.rooms["room"]].values())

    def fits(self, seen: str) -> bool:
        return len(seen) <= 2000

    def plain(self, seen: str) -> str:
        return seen

    def replied(self, where: Where) -> bool:
        return self.api.visible(self.rooms[where])[-1].get("message_reference") is not None

    def alarmed(self) -> int:
        return len(self.api.offences)

    async def suggested(self, where: Where, begun: str) -> list[str]:
        typing = self.api.commands.type(
            self.rooms[where], self.people["alice"], "greet", "whom", begun
        )
        await self.api.until(lambda: typing.choices is not None, self.patience_s)
        return typing.choices or []

    async def again(self) -> None:
        newest = list(self.api.world.messages[self.rooms["room"]].values())[-1]
        self.api.dispatch("MESSAGE_CREATE", self.api.world.seen_live(newest))

    async def echo(self, text: str) -> None:
        self.api.says(self.rooms["room"], self.api.world.bot, text)

    async def noise(self) -> None:
        for event, data in (
            ("FROBNICATED", "{}"),
            ("MESSAGE_CREATE", "{}"),
            ("MESSAGE_CREATE", "null"),
        ):
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
        self.api.says(
            self.rooms["room"],
            self.people["alice"],
            "look",
            files=[("a.bin", data, "application/x-any")],
        )

    async def typing_seen(self) -> None:
        await self.api.until(lambda: self.rooms["room"] in self.api.typings)

    async def gone(self) -> None:
        await self.api.until(lambda: not self.api.live)
