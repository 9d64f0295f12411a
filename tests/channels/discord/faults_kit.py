"""A Discord channel running against the loopback Discord, and a way to start it again where it
stopped."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.base import Part
from channels.discord.channel import DiscordChannel
from gateway.core.clock import Clock
from gateway.core.events import Address, MessageId, RoomId
from tests.channels.discord.channel_kit import NAME, config
from tests.kits.channels import Run
from tests.servers.discord_api import DiscordApi

SAY = r"POST /channels/\d+/messages"


def part(body: str, room: str, key: str = "k1", reply_to: str | None = None) -> Part:
    to = Address(channel=NAME, room=RoomId(room))
    return Part(key=key, to=to, body=body, reply_to=MessageId(reply_to) if reply_to else None)


def hello(api: DiscordApi, text: str, *, room: str = "", ago_s: float = 0.0) -> str:
    """Ann mentions the bot."""
    return api.says(room or api.room, api.ann, f"<@{api.bot}> {text}", ago_s=ago_s)


class Hurried:
    """A clock on which everything happens `times` as fast: waits of minutes without waiting for
    them."""

    def __init__(self, times: float) -> None:
        self.times = times
        self._start, self._start_s = datetime.now(UTC), time.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self._start_s) * self.times

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s) / self.times)


class Hasty(Hurried):
    """Waits are short, but the time is the server's."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class Running(Run[DiscordChannel]):
    """A channel that is started again where it stopped."""

    @property
    def texts(self) -> list[str]:
        """What was said, without the names of whom it was said to; each event once, as the store
        keeps it."""
        said = {event.id: event.text for event in self.messages}
        return [
            text.split("> ")[-1].split(" ", 1)[-1] if text.startswith(("<@", "@")) else text
            for text in said.values()
        ]

    async def heard(self, *texts: str) -> None:
        """Return once all of these have arrived; then nothing arrived twice or besides."""
        await self.until(lambda: set(texts) <= set(self.texts))
        assert sorted(self.texts) == sorted(texts)


@contextlib.asynccontextmanager
async def running(
    api: DiscordApi, cursor: str | None = None, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[Running]:
    """Up to the end of the block; then it has to end by itself, soon.

    Unless there is a `clock`, time goes by twenty times as fast.
    """
    channel = DiscordChannel(
        NAME, config(api, **changes), clock or Hurried(20), cursor=cursor, commands=()
    )
    run = Running(channel, cursor)
    try:
        yield run
    finally:
        async with asyncio.timeout(120):
            await run.end()
