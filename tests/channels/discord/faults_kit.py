"""A Discord channel running against the loopback Discord, and a way to start it again where it
stopped."""

import asyncio
import contextlib
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.core.clock import Clock
from reverie.testing.servers.discord_api import DiscordApi
from tests.channels.discord import channel_kit
from tests.channels.discord.channel_kit import Running

SAY = r"POST /channels/\d+/messages"


def hello(api: DiscordApi, text: str, *, room: str = "", ago_s: float = 0.0) -> str:
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


def running(
    api: DiscordApi, cursor: str | None = None, clock: Clock | None = None, **changes: Any
) -> contextlib.AbstractAsyncContextManager[Running]:
    """A channel; unless there is a `clock`, time goes by twenty times as fast."""
    return channel_kit.running(api, clock or Hurried(20), cursor=cursor, **changes)
