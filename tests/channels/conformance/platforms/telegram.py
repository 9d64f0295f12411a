"""Telegram, on the strict fake Bot API."""

import contextlib
from collections.abc import AsyncIterator
from typing import ClassVar, Literal

from channels.base import Channel
from channels.telegram.channel import TelegramChannel
from channels.telegram.config import TelegramConfig
from gateway.core.events import Address, ChannelName, RoomId
from reverie.testing.platforms.base import COMMANDS, Kit, Where
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, units
from reverie.testing.waiting import until
from tests.channels.discord.faults_kit import Hasty


class TelegramKit(Kit):
    """Hands and eyes for `channels.telegram`."""

    lacks: ClassVar = {
        "no_text_becomes_a_mass_mention": "bots cannot mention everybody on Telegram",
        "it_pages": "a screen scrolls, and a message holds 4,096 characters",
        "it_joins": "bots are added by people",
        "it_adapts": "it is made anew, and Telegram keeps what it missed",
        "it_completes": "a bot is not told what is still being written behind a command",
        "it_whispers": "a bot may write only to who has written to it, and that has a chat already",
    }

    def __init__(self) -> None:
        self.name = ChannelName("telegram.test")
        self.nowhere = RoomId("-100999")
        self.api = BotApi()
        self.clock = Hasty(1)
        self.people = {name: self.api.person(name) for name in ("alice", "bob")}
        self.rooms = {name: self.api.group(name) for name in ("room", "other")}

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with self.api:
            yield

    def make(self, cursor: str | None = None) -> Channel:
        config = TelegramConfig.model_validate(
            {
                "platform": "telegram",
                "token": self.api.token,
                "base_url": self.api.url,
                "rooms": ["*"],
                "flood": {"per_chat_s": 0, "group_per_min": 1000, "overall_per_s": 1000},
            }
        )
        return TelegramChannel(
            self.name, config, self.clock, cursor=cursor, commands=COMMANDS, random=lambda: 0.0
        )

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=self.name, room=RoomId(str(self.rooms[where].id)))

    def _chat(self, where: Where, by: Literal["alice", "bob"] = "alice") -> Chat:
        return self.api.world.private(self.people[by]) if where == "direct" else self.rooms[where]

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        self.api.group_says(self._chat(where, by), self.people[by], text)

    async def mention(self, text: str) -> None:
        self.api.mentions(self.rooms["room"], self.people["alice"], text)

    async def formatted(self) -> str:
        text = "👍 bold and italic and a*b*c"
        spans = (
            ("bold", 3, 4),
            ("italic", 12, 6),
            ("code", 23, 5),
        )  # in UTF-16 units: the thumb has two
        entities = [
            {"type": kind, "offset": offset, "length": length} for kind, offset, length in spans
        ]
        self.api.group_says(self.rooms["room"], self.people["alice"], text, entities=entities)
        return "👍 **bold** and *italic* and `a*b*c`"

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        await self.api.until(
            lambda: len(self.api.said(self._chat(where))) >= count, self.patience_s
        )
        return self.api.said(self._chat(where))

    async def appoint(self) -> None:
        self.rooms["room"].administrators = list(self.people.values())

    async def left(self, at: Address) -> None:
        assert self.api.world.chats[int(at.room)].left

    async def reactions(self) -> list[str]:
        newest = next(
            shown for shown in reversed(self.api.shown(self.rooms["room"])) if not shown.by_bot
        )
        return [one["emoji"] for one in newest.reaction]

    async def topic(self) -> str:
        return self.rooms["room"].description

    async def theirs(self) -> list[str]:
        return [shown.text for shown in self.api.shown(self.rooms["room"]) if not shown.by_bot]

    def files(self) -> list[tuple[str, str, bytes]]:
        shown = [
            one
            for one in self.api.shown(self.rooms["room"])
            if one.by_bot and "document" in one.body
        ]
        sent = [(one.text, one.body["document"]) for one in shown]
        return [
            (file["file_name"], text, self.api.world.files[file["file_id"]][1])
            for text, file in sent
        ]

    async def menu(self, where: Where, by: Literal["alice", "bob"]) -> list[str]:
        """By the narrowest scope that is set: https://core.telegram.org/bots/api#botcommandscope"""
        chat, person, kept = self._chat(where, by).id, self.people[by].id, self.api.methods.commands
        everywhere = "all_private_chats" if where == "direct" else "all_group_chats"
        scopes = (f"chat_member/{chat}/{person}/", f"chat/{chat}/", f"{everywhere}/", "default/")
        shown = next((kept[scope] for scope in scopes if scope in kept), [])
        return [row["command"] for row in shown]

    def fits(self, seen: str) -> bool:
        return units(seen) <= 4096

    def replied(self, where: Where) -> bool:
        del where
        return bool(self.api.asked("sendMessage")[-1].get("reply_parameters"))

    async def again(self) -> None:
        newest = self.api.shown(self.rooms["room"])[-1]
        self.api.updates.put("message", newest.body)

    async def echo(self, text: str) -> None:
        self.api.group_says(self.rooms["room"], self.api.world.bot, text)

    async def noise(self) -> None:
        odd: list[object] = [
            {"message": None},
            {"message": {"message_id": "x"}},
            {"message": {"message_id": 1, "chat": {"id": 1}}},
            {"frobnicated": {}},
            {"edited_message": []},
            {"message_reaction": {"chat": {}}},
            {},
            {
                "channel_post": {
                    "message_id": 5,
                    "date": 10**18,
                    "chat": {"id": 5, "type": "channel"},
                    "text": "x",
                }
            },
        ]
        for update in odd:
            assert isinstance(update, dict)
            self.api.updates.put_raw({"update_id": 1} | update)

    async def refuse(self) -> None:
        self.rooms["other"].closed = True

    async def limit(self, seconds: float) -> None:
        self.api.faults.fail("sendMessage", 429, retry_after=seconds)

    async def cut_send(self) -> None:
        self.api.faults.drop("*", after=True, where=lambda call: call.method.startswith("send"))

    async def bad_login(self) -> None:
        self.api.token = "7000000001:another"
        self.clock.times = 200.0  # it is asked for minutes whether that is so

    async def cut(self) -> None:
        await self.away()
        await self.back()

    async def away(self) -> None:
        # Before it polls it sets the command menu, which may fail without a word. Who is refused
        # polls no more.
        with contextlib.suppress(TimeoutError):
            await until(lambda: self.api.updates.polling, limit_s=1.0)
        await self.api.stop()

    async def back(self) -> None:
        await self.api.start()

    async def attach(self, data: bytes) -> None:
        self.api.sends(self.rooms["room"], self.people["alice"], "document", data)

    async def typing_seen(self) -> None:
        await self.api.called("sendChatAction")

    async def gone(self) -> None:
        await until(lambda: not self.api.updates.polling, limit_s=self.patience_s)
