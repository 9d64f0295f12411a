"""A Telegram channel running against the fake Bot API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

from telegram import Update

from channels.base import CommandSpec, PostPart
from channels.telegram.channel import TelegramChannel
from channels.telegram.config import TelegramConfig
from channels.telegram.wire import parse_updates
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import Address, ChannelName, Post, PostKey, RoomId, ThreadId
from reverie.testing.channels import EventT, Run
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person, complete

NAME = ChannelName("telegram.test")


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


def parsed(*raw: Any) -> tuple[Update, ...]:
    """Raw updates, completed, as the library's, the way they are received."""
    return parse_updates(map(complete, raw))


def parsed_one(raw: Any) -> Update:
    (update,) = parsed(raw)
    return update


def at(chat: Chat | Person | str, thread: int | None = None) -> Address:
    room = RoomId(chat if isinstance(chat, str) else str(chat.id))
    return Address(
        channel=NAME, room=room, thread=ThreadId(str(thread)) if thread is not None else None
    )


class Running(Run[TelegramChannel]):
    """A channel, and what the outbox does with it."""

    step_s: ClassVar[float] = 0.1

    async def some(self, kind: type[EventT], count: int = 1) -> list[EventT]:
        """The first `count` of a kind, as soon as they are there."""
        await self.one(kind, count)
        return self.all(kind)[:count]

    def parts(self, text: str, to: Address, **more: Any) -> list[PostPart]:
        """As the outbox makes them."""
        bodies = self.channel.split(
            Post(key=PostKey("k"), to=to, text=text, reply_to=more.get("reply_to"))
        )
        return [
            PostPart(key=f"k#{index}", to=to, body=body, **more)
            for index, body in enumerate(bodies)
        ]

    async def tell(self, text: str, to: Address, **more: Any) -> list[str]:
        """Say something as the outbox does; the ids."""
        return [
            made
            for part in self.parts(text, to, **more)
            for made in (await self.channel.send(part)).ids
        ]


@contextlib.asynccontextmanager
async def running(
    api: BotApi | str,
    clock: Clock | None = None,
    *,
    cursor: str | None = None,
    commands: Sequence[CommandSpec] = (),
    chance: Callable[[], float] = lambda: 0.0,
    ranks: frozenset[str] = frozenset(),
    **changes: Any,
) -> AsyncIterator[Running]:
    channel = TelegramChannel(
        NAME,
        config(api, **changes),
        clock or SystemClock(),
        cursor=cursor,
        commands=commands,
        ranks=ranks,
        random=chance,
    )
    before = asyncio.all_tasks()
    run = Running(channel)
    try:
        yield run
    finally:
        await run.end()
    ours = [task for task in asyncio.all_tasks() - before if "/tests/" not in repr(task.get_coro())]
    assert not [task for task in ours if "/channels/" in repr(task.get_stack())], (
        "a task is left behind"
    )
