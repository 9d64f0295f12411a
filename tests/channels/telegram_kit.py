"""A Telegram channel running against the fake Bot API."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

from channels.base import CommandSpec, Part
from channels.telegram.channel import TelegramChannel
from channels.telegram.config import TelegramConfig
from gateway.clock import Clock, ManualClock, SystemClock
from gateway.events import Address, ChannelName, Link, Message, Notification, Post, PostKey, RoomId, ThreadId
from tests.servers.bot_api import BotApi, Chat, Person

NAME = ChannelName("telegram.test")
P = ParamSpec("P")
T = TypeVar("T", bound=Notification)


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test to its end, with half a minute at most; no task may be left behind."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


def config(api: BotApi | str, **changes: Any) -> TelegramConfig:
    settings: dict[str, Any] = {
        "platform": "telegram",
        "token": api.token if isinstance(api, BotApi) else "1:none",
        "base_url": api.url if isinstance(api, BotApi) else api,
        "rooms": ["*"],
        "flood": {"per_chat_s": 0, "group_per_min": 1000, "overall_per_s": 1000},
        "poll_timeout": 5,
        "request_timeout": 5,
    }
    return TelegramConfig.model_validate(settings | changes)


def at(chat: Chat | Person | str, thread: int | None = None) -> Address:
    room = RoomId(chat if isinstance(chat, str) else str(chat.id))
    return Address(channel=NAME, room=room, thread=ThreadId(str(thread)) if thread is not None else None)


class Running:
    """A channel, what it emitted, and its `run`."""

    def __init__(self, channel: TelegramChannel) -> None:
        self.channel = channel
        self.seen: list[Notification] = []
        self.batches: list[tuple[int, str | None]] = []
        """Of every emit: how many events, and the cursor."""
        self.open = asyncio.Event()
        self.open.set()
        """Clear it, and `emit` blocks."""
        self.broken: Exception | None = None
        """Raised by the next `emit`."""
        self._condition = asyncio.Condition()
        self.task = asyncio.create_task(channel.run(self._emit))

    async def _emit(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        await self.open.wait()
        if self.broken is not None:
            raise self.broken
        self.seen += batch
        self.batches.append((len(batch), cursor))
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
        """Let a tenth of a second pass again and again, with time for the sockets in between, until it is so."""
        async with asyncio.timeout(20):
            while not true():
                clock.advance(0.1)
                await asyncio.sleep(0.001)

    def all(self, kind: type[T]) -> list[T]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def some(self, kind: type[T], count: int = 1) -> list[T]:
        """The first `count` of a kind, as soon as they are there."""
        await self.until(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[:count]

    @property
    def links(self) -> list[bool]:
        return [link.up for link in self.all(Link)]

    @property
    def cursor(self) -> str | None:
        """The last durable one."""
        return next((cursor for _, cursor in reversed(self.batches) if cursor is not None), None)

    async def up(self, times: int = 1) -> None:
        await self.until(lambda: self.links.count(True) >= times or self.task.done())
        if self.task.done():
            self.task.result()

    async def message(self, number: int = 1) -> Message:
        return (await self.some(Message, number))[number - 1]

    def parts(self, text: str, to: Address, **more: Any) -> list[Part]:
        """As the outbox makes them."""
        bodies = self.channel.split(Post(key=PostKey("k"), to=to, text=text))
        return [Part(key=f"k#{index}", to=to, body=body, **more) for index, body in enumerate(bodies)]

    async def tell(self, text: str, to: Address, **more: Any) -> list[str]:
        """Say something as the outbox does; the ids."""
        return [made for part in self.parts(text, to, **more) for made in (await self.channel.send(part)).ids]

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(
    api: BotApi | str,
    clock: Clock | None = None,
    *,
    cursor: str | None = None,
    commands: Sequence[CommandSpec] = (),
    chance: Callable[[], float] = lambda: 0.0,
    **changes: Any,
) -> AsyncIterator[Running]:
    channel = TelegramChannel(
        NAME, config(api, **changes), clock or SystemClock(), cursor=cursor, commands=commands, random=chance
    )
    before = asyncio.all_tasks()
    run = Running(channel)
    try:
        yield run
    finally:
        await run.end()
    ours = [task for task in asyncio.all_tasks() - before if "/tests/" not in repr(task.get_coro())]
    assert not [task for task in ours if "/channels/" in repr(task.get_stack())], "a task is left behind"
