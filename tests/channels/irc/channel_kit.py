"""An IRC channel running against the scripted server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from channels.base import PostPart
from channels.irc.channel import IrcChannel
from channels.irc.config import IrcConfig
from channels.irc.state import Changes, IrcState
from channels.irc.wire import Isupport, parse_line
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import Address, ChannelName, Receipt, RoomId
from reverie.testing.channels import Run
from reverie.testing.servers.ircd import Client, Ircd

NAME = ChannelName("irc.test")
Running = Run[IrcChannel]


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


def features(*tokens: str) -> Isupport:
    """What a server says of itself in numeric 005."""
    isupport = Isupport()
    isupport.load(["reverie", *tokens, "are supported by this server"])
    return isupport


def hear(state: IrcState, raw: str) -> Changes:
    """Apply a line of a server; return what it changed."""
    said = parse_line(raw)
    assert said is not None
    told = state.apply(said, 1.0)
    assert told is not None
    return told


def part(body: str, room: str = "#room", key: str = "k", **more: Any) -> PostPart:
    return PostPart(key=key, to=Address(channel=NAME, room=RoomId(room)), body=body, **more)


async def settled(bot: Client, token: str) -> None:
    """Return once the channel has read all that was sent to it."""
    bot.send(f"PING :{token}")
    await bot.ircd.received(f"PONG :{token}")


async def sent_together(run: Running, parts: Sequence[PostPart]) -> list[Receipt | BaseException]:
    """What became of `parts`, sent without waiting for each other."""
    return await asyncio.gather(*(run.channel.send(part) for part in parts), return_exceptions=True)


@contextlib.asynccontextmanager
async def running(
    ircd: Ircd | int,
    clock: Clock | None = None,
    chance: Callable[[], float] = lambda: 0.0,
    cursor: str | None = None,
    **changes: Any,
) -> AsyncIterator[Running]:
    port = ircd if isinstance(ircd, int) else ircd.port
    channel = IrcChannel(
        NAME, config(port, **changes), clock or SystemClock(), cursor=cursor, random=chance
    )
    run = Running(channel)
    try:
        yield run
    finally:
        await run.end()
