"""A Discord channel running against the loopback Discord."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from channels.base import CommandSpec, PostPart
from channels.discord.channel import DiscordChannel, DiscordPreviewChannel
from channels.discord.config import DiscordConfig
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import Address, ChannelName, Command, MessageId, RoomId, ThreadId
from reverie.testing.channels import Run
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options

NAME = ChannelName("discord.test")


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


def part(
    body: str, room: str, key: str = "post#0", *, thread: str | None = None, **more: Any
) -> PostPart:
    if "reply_to" in more:
        more["reply_to"] = MessageId(more["reply_to"])
    return PostPart(key=key, to=place(room, thread), body=body, **more)


class Running(Run[DiscordChannel]):
    """A channel, and how the tests of Discord read it."""

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.messages]

    @property
    def said(self) -> list[str]:
        """What was said, without the names of whom it was said to; each event once, as the store
        keeps it."""
        said = {event.id: event.text for event in self.messages}
        return [
            text.split("> ")[-1].split(" ", 1)[-1] if text.startswith(("<@", "@")) else text
            for text in said.values()
        ]

    async def heard(self, *texts: str) -> None:
        """Return once all of these have arrived; then nothing arrived twice or besides."""
        await self.until(lambda: set(texts) <= set(self.said))
        assert sorted(self.said) == sorted(texts)

    async def command(self, number: int = 1) -> Command:
        return await self.one(Command, number)


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
    kind = DiscordChannel if settings.preview == "off" else DiscordPreviewChannel
    channel = kind(
        NAME, settings, clock or SystemClock(), cursor=cursor, commands=commands, random=lambda: 0.0
    )
    run = Running(channel, cursor)
    try:
        yield run
    finally:
        async with asyncio.timeout(120):
            await run.end()


@contextlib.asynccontextmanager
async def both(
    clock: Clock | None = None, *, options: Options | None = None, **changes: Any
) -> AsyncIterator[tuple[DiscordApi, Running]]:
    """The server, and a channel that is up."""
    async with DiscordApi(options) as api, running(api, clock, **changes) as run:
        await run.up()
        yield api, run
