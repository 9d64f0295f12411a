"""The adapter holds what every adapter must hold, and works in a whole gateway."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar, Literal

from acme_server import BOT, AcmeServer
from pydantic import SecretStr
from reverie_acme import TEXT_LIMIT, AcmeChannel, AcmeSettings

from reverie.platforms import Address, ChannelName, RoomId, SystemClock
from reverie.testing.gateway import Gateway, settings
from reverie.testing.platforms import Kit, PlatformConformance, Where

NAME = ChannelName("acme.main")
ROOMS = {"room": "lobby", "other": "library"}
LACKING = """
    it_types it_previews it_downloads it_pages it_joins it_leaves it_adapts it_reacts it_edits
    it_deletes it_set_topics it_lists it_sends_files it_completes it_offers it_whispers it_confides
    no_text_becomes_a_mass_mention
""".split()  # noqa: SIM905 - shorter
"""Checks of what the platform does not have."""


class AcmeKit(Kit):
    """Alice and bob on a server of Acme."""

    lacks: ClassVar = dict.fromkeys(LACKING, "Acme has no such thing")
    name = NAME
    nowhere = RoomId("nowhere")

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with AcmeServer() as self.server:
            self.token = self.server.token
            yield

    def make(self, cursor: str | None = None) -> AcmeChannel:
        # Before it is connected, the suite asks only what the adapter is able to do.
        server = getattr(self, "server", None)
        port, token = (1, "") if server is None else (server.port, self.token)
        made = AcmeSettings(platform="acme", host="127.0.0.1", port=port, token=SecretStr(token))
        return AcmeChannel(NAME, made, SystemClock(), cursor=cursor)

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=NAME, room=RoomId(ROOMS[where]))

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        await self.server.add(f"user-{by}", ROOMS.get(where, f"dm-{by}"), text)

    async def mention(self, text: str) -> None:
        await self.server.add("user-alice", ROOMS["room"], text, mention=True)

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        room = ROOMS.get(where, "dm-alice")
        said = self.server.said
        await self.server.until(lambda: len(said(room)) >= count, limit_s=self.patience_s)
        return said(room)

    async def again(self) -> None:
        await self.server.pass_on(self.server.events[-1])

    async def formatted(self) -> str:
        await self.say("this is **bold**")
        return "this is **bold**"

    async def echo(self, text: str) -> None:
        await self.server.add(BOT, ROOMS["room"], text)

    async def noise(self) -> None:
        for event in ({}, {"id": -1, "type": "news"}, {"from": "alice", "room": ["lobby"]}):
            await self.server.pass_on(event)

    async def refuse(self) -> None:
        self.server.refused_rooms.add(ROOMS["other"])

    async def limit(self, seconds: float) -> None:
        self.server.limited_s = seconds

    async def cut_send(self) -> None:
        self.server.cuts_post = True

    async def bad_login(self) -> None:
        self.server.token = "another-token"

    async def cut(self) -> None:
        for one in self.server.listeners:
            one.transport.abort()

    async def away(self) -> None:
        await self.server.stop()

    async def back(self) -> None:
        await self.server.start()

    async def gone(self) -> None:
        await self.server.until(lambda: not self.server.listeners, limit_s=self.patience_s)

    def replied(self, where: Where) -> bool:
        return False

    def fits(self, seen: str) -> bool:
        return len(seen.encode("utf-16-le")) <= 2 * TEXT_LIMIT


class TestAcme(PlatformConformance):
    """All checks."""

    kit = AcmeKit


async def test_a_gateway_answers_there(tmp_path: Path) -> None:
    async with AcmeServer() as server:
        channel = {
            "platform": "acme",
            "host": "127.0.0.1",
            "port": server.port,
            "token": server.token,
        }
        async with Gateway(settings(tmp_path, channels={NAME: channel})):
            await server.until(lambda: bool(server.listeners), limit_s=10.0)
            await server.add("user-alice", "dm-alice", "hello")
            await server.until(lambda: bool(server.said("dm-alice")), limit_s=10.0)
        [answer] = server.said("dm-alice")
        assert answer.startswith("You said: ")  # as the model of the test does
