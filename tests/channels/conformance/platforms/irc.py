"""IRC, on the scripted server and on real ones: alice and bob are plain clients."""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Literal

from channels.base import Channel
from channels.irc.channel import IrcChannel
from channels.irc.config import IrcConfig
from gateway.core.clock import SystemClock
from gateway.core.events import Address, ChannelName, RoomId
from reverie.testing.platforms.base import Kit, Where
from reverie.testing.platforms.broken_channels import DropsFormatting, Twin
from reverie.testing.servers.ircd import MODERN, Ircd, Options
from tests.channels.irc.channel_kit import config
from tests.kits.platform_users import IrcClient
from tests.servers.real_ircd import inspircd, ngircd

_MARKS = re.compile("[\x02\x1d\x1e\x11\x1f\x0f]")
_PLAIN = "it sends plain lines"
_NOT_THERE = {
    "no_text_becomes_a_mass_mention": "IRC has no mass mentions",
    "a_rate_limit_says_how_long": "IRC servers delay or disconnect; the channel keeps its own pace",
    "it_previews": "nothing can be edited on IRC",
    "it_downloads": "IRC carries no files",
    "it_sends_files": "IRC carries no files",
    "it_edits": "nothing can be edited on IRC",
    "it_types": _PLAIN,
    "it_reacts": _PLAIN,
    "it_deletes": _PLAIN,
    "it_completes": "servers see a line when it is done",
    "it_offers": "clients know no commands of ours",
}
_REAL = {
    "a_repeat_has_the_same_id": "a real server delivers once",
    "own_messages_never_come_in": "an account has one connection there",
    "unknown_events_are_dropped_quietly": "a real server sends what it knows",
    "a_cut_mid_send_is_uncertain": "a real server cannot be told when to break",
    "without_a_link_nothing_was_sent": "the same",
    "refused_credentials_are_denied": "no services on this one; see test_irc_services.py",
    "a_cut_is_told_and_mended": "a real server cannot be told when to break",
    "what_was_said_meanwhile_arrives": "neither keeps history",
    "a_restart_goes_on_from_the_cursor": "neither keeps history",
}
PAGE = 200
"""Lines: more than any check says but the one about pages."""


class IrcKit(Kit):
    """What is the same on every server."""

    def __init__(self) -> None:
        self.name = ChannelName("irc.test")
        self.nowhere = RoomId("#nowhere")
        self.port = 6667
        self.password: str | None = None
        self.alice, self.bob = IrcClient("alice", 0), IrcClient("bob", 0)

    async def _enter(self) -> None:
        """Together, for InspIRCd lets people in once a second; alice is the first in the rooms, and
        operates them."""
        people = self.alice, self.bob = [IrcClient(one, self.port) for one in ("alice", "bob")]
        await asyncio.gather(*(one.begin() for one in people))
        for one in people:
            await one.join("#room")
            await one.join("#other")

    async def _leave(self) -> None:
        await self.alice.end()
        await self.bob.end()

    def make(self, cursor: str | None = None) -> Channel:
        return IrcChannel(
            self.name,
            self._config("#room", "#other"),
            SystemClock(),
            cursor=cursor,
            random=lambda: 0.0,
        )

    def moved(self, at: Address) -> IrcConfig:
        return self._config("#room", at.room)

    def _config(self, *rooms: str) -> IrcConfig:
        return config(self.port, rooms=list(rooms), page_lines=PAGE, password=self.password)

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=self.name, room=RoomId(f"#{where}"))

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        target = "reverie" if where == "direct" else f"#{where}"
        (self.alice if by == "alice" else self.bob).send(f"PRIVMSG {target} :{text}")

    async def mention(self, text: str) -> None:
        await self.say(f"reverie: {text}")

    async def formatted(self) -> str:
        await self.say("this is \x02bold\x02, \x1ditalic\x1d and \x0304red\x03")
        return "this is bold, italic and red"

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        target = "alice" if where == "direct" else f"#{where}"
        pattern = rf":reverie!\S+ (PRIVMSG|NOTICE) {target} :"
        await self.alice.settled()
        return [
            line.partition(" :")[2]
            for line in await self.alice.until(pattern, count, self.patience_s)
        ]

    def plain(self, seen: str) -> str:
        return _MARKS.sub("", seen)

    def fits(self, seen: str) -> bool:
        mine = next(line for line in self.alice.lines if line.endswith(seen))
        return len(mine.encode()) + 2 <= 512

    def replied(self, where: Where) -> bool:
        del where
        return False

    async def overheard(self) -> list[str]:
        await self.bob.settled()
        return [
            line.partition(" :")[2]
            for line in self.bob.lines
            if re.match(r":reverie!\S+ (PRIVMSG|NOTICE) ", line)
        ]

    async def appoint(self) -> None:
        self.alice.send("MODE #room +o reverie")
        await self.alice.settled()

    async def topic(self) -> str:
        await self.alice.settled()
        return (await self.alice.until(r":reverie!\S+ TOPIC #room :"))[-1].partition(" :")[2]

    async def gone(self) -> None:
        await self.alice.until(r":reverie!\S+ QUIT ")

    async def invited(self) -> Address:
        await self.alice.join("#third")
        return Address(channel=self.name, room=RoomId("#third"))

    async def joined(self, at: Address) -> None:
        await self.alice.until(rf":reverie!\S+ JOIN :?{at.room}", limit_s=self.patience_s)

    async def left(self, at: Address) -> None:
        await self.alice.until(rf":reverie!\S+ PART :?{at.room}", limit_s=self.patience_s)


class ScriptedIrcKit(IrcKit):
    """The scripted server with all that IRCv3 has, which can also fail."""

    harmless: ClassVar[Mapping[type[Twin], str]] = {
        DropsFormatting: "the adapter itself leaves it out"
    }
    lacks: ClassVar[Mapping[str, str]] = _NOT_THERE

    def __init__(self, caps: str | None = MODERN) -> None:
        super().__init__()
        self.password = "right"
        self.ircd = Ircd(
            Options(caps=caps, isupport=(*Options().isupport, "CHATHISTORY=50"), password=None)
        )
        self._count = 0
        self._newest = ""
        self._account: dict[str, str] = {}

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with self.ircd:
            self.port = self.ircd.port
            await self._enter()
            try:
                yield
            finally:
                await self._leave()

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        self._count += 1
        target = "reverie" if where == "direct" else f"#{where}"
        self._newest = f":{by}!{by}@test.host PRIVMSG {target} :{text}"
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        tags = {"msgid": f"said{self._count}", "time": now} | (
            self._account if by == "alice" else {}
        )
        self.ircd.options.history.append((target, tags, self._newest))
        self.ircd.relay(target, self._newest, tags)

    async def known(self, account: str | None) -> None:
        self._account = {"account": account} if account else {}
        for client in self.ircd.here():
            client.account = account or "" if client.nick == "alice" else client.account

    async def again(self) -> None:
        self.ircd.relay("#room", self._newest, {"msgid": f"said{self._count}"})

    async def echo(self, text: str) -> None:
        self.ircd.relay("#room", f":reverie!reverie@test.host PRIVMSG #room :{text}", {})

    async def noise(self) -> None:
        bot = next(client for client in self.ircd.here() if client.nick == "reverie")
        for line in (
            "WALLOPS :x",
            ":x",
            "PRIVMSG",
            ":a!b@c PRIVMSG",
            "@a=b",
            " ",
            ":s 999 reverie :?",
            "BATCH +x odd",
        ):
            bot.send(line)
        bot.raw(b"\xff\xfe\x00\r\n:a!b@c FROBNICATE #room :x\r\n\r\n")

    async def refuse(self) -> None:
        self.ircd.options.muted = {"#other": "404"}

    async def bad_login(self) -> None:
        self.ircd.options.password = "another"

    async def cut_send(self) -> None:
        self.ircd.faults.drop_on = r"PRIVMSG #room"

    async def cut(self) -> None:
        next(client for client in self.ircd.here() if client.nick == "reverie").drop()

    async def away(self) -> None:
        self.ircd.options.banned = True
        await self.cut()

    async def back(self) -> None:
        self.ircd.options.banned = False


class PlainIrcKit(ScriptedIrcKit):
    """The scripted server as servers were before IRCv3."""

    lacks: ClassVar[Mapping[str, str]] = _NOT_THERE | {
        "a_repeat_has_the_same_id": "messages have no ids there",
        "own_messages_never_come_in": "messages are not echoed there",
        "what_was_said_meanwhile_arrives": "no history is kept there",
        "a_restart_goes_on_from_the_cursor": "no history is kept there",
    }

    def __init__(self) -> None:
        super().__init__(caps=None)


class _RealIrcKit(IrcKit):
    server: Callable[[Path], AbstractContextManager[int]]

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        with (
            tempfile.TemporaryDirectory() as directory,
            type(self).server(Path(directory)) as self.port,
        ):
            await self._enter()
            try:
                yield
            finally:
                await self._leave()

    async def refuse(self) -> None:
        self.alice.send("MODE #other +m", "PING :moderated")
        await self.alice.until(r":\S+ PONG .*moderated")


class InspircdKit(_RealIrcKit):
    lacks: ClassVar = _NOT_THERE | _REAL
    server = staticmethod(inspircd)


class NgircdKit(_RealIrcKit):
    """ngIRCd, which knows no message tags."""

    lacks: ClassVar = _NOT_THERE | _REAL
    server = staticmethod(ngircd)
