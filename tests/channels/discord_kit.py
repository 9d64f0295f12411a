"""A Discord channel running against the loopback Discord."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from channels.base import CommandSpec, Part
from channels.discord.channel import DiscordChannel, PreviewingChannel
from channels.discord.config import DiscordConfig
from gateway.clock import Clock, SystemClock
from gateway.events import Address, ChannelName, Command, Link, Message, MessageId, Notification, RoomId, ThreadId
from tests.servers.discord_api import DiscordApi, Options

NAME = ChannelName("discord.test")
P = ParamSpec("P")
E = TypeVar("E")


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test to its end, with half a minute at most."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

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


def place(room: str, thread: str | None = None) -> Address:
    return Address(channel=NAME, room=RoomId(room), thread=ThreadId(thread) if thread else None)


def part(body: str, room: str, *, key: str = "post#0", thread: str | None = None, **more: Any) -> Part:
    if "reply_to" in more:
        more["reply_to"] = MessageId(more["reply_to"])
    return Part(key=key, to=place(room, thread), body=body, **more)


class Quick:
    """The system's clock, on which waiting goes a hundred times as fast: back-off without the waiting."""

    def __init__(self, speed: float = 100.0) -> None:
        self._clock, self._speed = SystemClock(), speed
        self.slept: list[float] = []
        self.now = self._clock.now

    def monotonic(self) -> float:
        return self._clock.monotonic() * self._speed

    async def sleep(self, delay_s: float) -> None:
        self.slept.append(delay_s)
        await asyncio.sleep(delay_s / self._speed)


class Running:
    """A channel, what it emitted, and its `run`."""

    def __init__(self, channel: DiscordChannel) -> None:
        self.channel = channel
        self.seen: list[Notification] = []
        self.cursor: str | None = None
        """The last durable one."""
        self.open = asyncio.Event()
        self.open.set()
        """Clear it, and `emit` blocks."""
        self._condition = asyncio.Condition()
        self.task = asyncio.create_task(channel.run(self._emit))

    async def _emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        await self.open.wait()
        self.seen += batch
        self.cursor = cursor or self.cursor
        async with self._condition:
            self._condition.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with self._condition:
                await self._condition.wait_for(true)

        try:
            await asyncio.wait_for(wait(), 20)
        except TimeoutError:
            raise TimeoutError(f"seen so far: {self.seen[-20:]}") from None

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.seen if isinstance(event, kind)]

    @property
    def messages(self) -> list[Message]:
        return self.of(Message)

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]

    @property
    def links(self) -> list[bool]:
        return [event.up for event in self.of(Link)]

    async def up(self, times: int = 1) -> None:
        await self.until(lambda: self.links.count(True) >= times)

    async def one(self, kind: type[E], number: int = 1) -> E:
        await self.until(lambda: len(self.of(kind)) >= number)
        return self.of(kind)[number - 1]

    async def message(self, number: int = 1) -> Message:
        return await self.one(Message, number)

    async def command(self, number: int = 1) -> Command:
        return await self.one(Command, number)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(
    api: DiscordApi,
    clock: Clock | None = None,
    *,
    cursor: str | None = None,
    commands: Sequence[CommandSpec] = (),
    **changes: Any,
) -> AsyncIterator[Running]:
    """A channel on a server that is up; ended at the end."""
    settings = config(api, **changes)
    kind = DiscordChannel if settings.preview == "off" else PreviewingChannel
    channel = kind(NAME, settings, clock or SystemClock(), cursor=cursor, commands=commands, random=lambda: 0.0)
    run = Running(channel)
    try:
        yield run
    finally:
        await run.end()


@contextlib.asynccontextmanager
async def both(
    clock: Clock | None = None, *, options: Options | None = None, **changes: Any
) -> AsyncIterator[tuple[DiscordApi, Running]]:
    """The server, and a channel that is up."""
    async with DiscordApi(options) as api, running(api, clock, **changes) as run:
        await run.up()
        yield api, run
