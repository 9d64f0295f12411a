"""A Discord channel running against the loopback Discord, and a way to start it again where it stopped."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec

from channels.base import Part
from channels.discord.channel import DiscordChannel
from channels.discord.config import DiscordConfig
from gateway.clock import Clock
from gateway.events import Address, ChannelName, Link, Message, MessageId, Notification, RoomId
from tests.servers.discord_api import DiscordApi

NAME = ChannelName("discord.test")
P = ParamSpec("P")
SAY = r"POST /channels/\d+/messages"


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test to its end, with a minute at most."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


def config(api: DiscordApi, **changes: Any) -> DiscordConfig:
    settings: dict[str, Any] = {
        "platform": "discord",
        "token": api.token,
        "api_url": api.api_url,
        "gateway_url": api.gateway_url,
        "rooms": ["*"],
    }
    return DiscordConfig.model_validate(settings | changes)


def part(body: str, room: str, key: str = "k1", reply_to: str | None = None) -> Part:
    to = Address(channel=NAME, room=RoomId(room))
    return Part(key=key, to=to, body=body, reply_to=MessageId(reply_to) if reply_to else None)


def hello(api: DiscordApi, text: str, *, room: str = "", ago_s: float = 0.0) -> str:
    """Ann mentions the bot."""
    return api.says(room or api.room, api.ann, f"<@{api.bot}> {text}", ago_s=ago_s)


class Hurried:
    """A clock on which everything happens `times` as fast: waits of minutes without waiting for them."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._start, self._start_s = datetime.now(UTC), time.monotonic()

    def monotonic(self) -> float:
        return (time.monotonic() - self._start_s) * self._times

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, delay_s) / self._times)


class Running:
    """A channel, what it emitted, and its `run`."""

    def __init__(self, channel: DiscordChannel, cursor: str | None) -> None:
        self.channel = channel
        self.seen: list[Notification] = []
        self.cursor = cursor
        """The last durable one."""
        self._condition = asyncio.Condition()
        self.task = asyncio.create_task(channel.run(self._emit))

    async def _emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        self.seen += batch
        self.cursor = cursor or self.cursor
        async with self._condition:
            self._condition.notify_all()

    async def until(self, true: Callable[[], bool], limit_s: float = 20) -> None:
        async def wait() -> None:
            async with self._condition:
                await self._condition.wait_for(true)

        waiting = asyncio.create_task(wait())
        try:
            await asyncio.wait({waiting, self.task}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if self.task.done():
                await self.task
            if not waiting.done():
                raise TimeoutError(f"seen so far: {self.seen[-20:]}")
            await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    @property
    def texts(self) -> list[str]:
        """What was said, without the names of whom it was said to; each event once, as the store keeps it."""
        said = {event.id: event.text for event in self.seen if isinstance(event, Message)}
        return [
            text.split("> ")[-1].split(" ", 1)[-1] if text.startswith(("<@", "@")) else text for text in said.values()
        ]

    @property
    def links(self) -> list[Link]:
        return [event for event in self.seen if isinstance(event, Link)]

    async def up(self, times: int = 1) -> None:
        await self.until(lambda: sum(link.up for link in self.links) >= times)

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
    channel = DiscordChannel(NAME, config(api, **changes), clock or Hurried(20), cursor=cursor, commands=())
    run = Running(channel, cursor)
    try:
        yield run
    finally:
        run.task.cancel()
        async with asyncio.timeout(3):
            await asyncio.gather(run.task, return_exceptions=True)
