"""An IRC channel running against the scripted server."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec

from channels.base import Part
from channels.irc.channel import IrcChannel
from channels.irc.config import IrcConfig
from gateway.clock import Clock, ManualClock, SystemClock
from gateway.events import Address, ChannelName, Link, Message, Notification, Receipt, RoomId
from tests.servers.ircd import Client, Ircd

NAME = ChannelName("irc.test")
P = ParamSpec("P")


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test to its end, with half a minute at most."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


def config(port: int, **changes: Any) -> IrcConfig:
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": port,
        "tls": False,
        "nick": "reverie",
        "rooms": ["#room"],
        "flood": {"burst": 100, "per_s": 100.0},
    }
    return IrcConfig.model_validate(settings | changes)


def part(body: str, room: str = "#room", key: str = "k", **more: Any) -> Part:
    return Part(key=key, to=Address(channel=NAME, room=RoomId(room)), body=body, **more)


class Running:
    """A channel, what it emitted, and its `run`."""

    def __init__(self, channel: IrcChannel) -> None:
        self.channel = channel
        self.seen: list[Notification] = []
        self.batches: list[int] = []
        self.cursors: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        """Clear it, and `emit` blocks."""
        self._condition = asyncio.Condition()
        self.task = asyncio.create_task(channel.run(self._emit))

    async def _emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        await self.open.wait()
        if cursor is not None:
            self.cursors.append(cursor)
        self.seen += batch
        self.batches.append(len(batch))
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

    async def until_advancing(self, clock: ManualClock, true: Callable[[], bool]) -> None:
        """Let a second pass again and again, with time for the sockets in between, until it is so."""
        async with asyncio.timeout(20):
            while not true():
                clock.advance(1)
                await asyncio.sleep(0.001)

    @property
    def messages(self) -> list[Message]:
        return [event for event in self.seen if isinstance(event, Message)]

    @property
    def links(self) -> list[bool]:
        return [event.up for event in self.seen if isinstance(event, Link)]

    async def up(self, times: int = 1) -> None:
        await self.until(lambda: self.links.count(True) >= times)

    async def message(self, number: int = 1) -> Message:
        await self.until(lambda: len(self.messages) >= number)
        return self.messages[number - 1]


async def settled(bot: Client, token: str) -> None:
    """Return once the channel has read all that was sent to it."""
    bot.send(f"PING :{token}")
    await bot.ircd.received(f"PONG :{token}")


async def sent_together(run: Running, parts: Sequence[Part]) -> list[Receipt | BaseException]:
    """What became of `parts`, sent without waiting for each other."""
    return await asyncio.gather(*(run.channel.send(part) for part in parts), return_exceptions=True)


@contextlib.asynccontextmanager
async def running(
    ircd: Ircd | int, clock: Clock | None = None, chance: Callable[[], float] = lambda: 0.0, **changes: Any
) -> AsyncIterator[Running]:
    port = ircd if isinstance(ircd, int) else ircd.port
    channel = IrcChannel(NAME, config(port, **changes), clock or SystemClock(), random=chance)
    run = Running(channel)
    try:
        yield run
    finally:
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)
