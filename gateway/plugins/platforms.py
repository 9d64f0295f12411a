"""The platforms that come with Reverie. An adapter is imported where one is made."""

import contextlib
import inspect
import traceback
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from channels.base import Channel, CommandSpec
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.core.clock import Clock
from gateway.core.events import ChannelName
from gateway.plugin import PlatformFactory, Plugin

_CHECKS = "gateway.plugins.platforms_check"


@contextlib.contextmanager
def _stack_without_sources() -> Iterator[None]:
    """Make `inspect.stack` return the calling functions without the lines of their files.

    `irc.events` finds its own file by it while it is imported (`importlib_resources.files`), and
    looking for the lines takes 50 ms and a megabyte.
    """

    def stack(context: int = 0) -> list[inspect.FrameInfo]:  # noqa: ARG001 - as `inspect` has it
        own = inspect.currentframe()
        return [
            inspect.FrameInfo(
                frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None
            )
            for frame, line in traceback.walk_stack(own and own.f_back)
        ]

    whole, inspect.stack = inspect.stack, stack
    try:
        yield
    finally:
        inspect.stack = whole


def _make_irc(
    *, name: ChannelName, settings: IrcConfig, clock: Clock, cursor: str | None, **_: object
) -> Channel:
    with _stack_without_sources():
        from channels.irc.channel import IrcChannel  # noqa: PLC0415 - heavy: only where IRC is used

    return IrcChannel(name, settings, clock, cursor=cursor)


class Irc(Plugin):
    """Accounts on IRC networks."""

    name = "irc"
    summary = "connects to IRC networks"
    checks = _CHECKS
    platforms: ClassVar = {"irc": PlatformFactory(settings=IrcConfig, make=_make_irc)}


def _make_telegram(
    *,
    name: ChannelName,
    settings: TelegramConfig,
    clock: Clock,
    cursor: str | None,
    commands: Sequence[CommandSpec],
    ranked_rooms: AbstractSet[str],
) -> Channel:
    from channels.telegram.channel import TelegramChannel  # noqa: PLC0415 - heavy: only where it is used

    return TelegramChannel(
        name, settings, clock, cursor=cursor, commands=commands, ranks=ranked_rooms
    )


class Telegram(Plugin):
    """Bots on Telegram."""

    name = "telegram"
    summary = "connects to Telegram's Bot API"
    checks = _CHECKS
    platforms: ClassVar = {
        "telegram": PlatformFactory(settings=TelegramConfig, make=_make_telegram)
    }


def _make_discord(
    *,
    name: ChannelName,
    settings: DiscordConfig,
    clock: Clock,
    cursor: str | None,
    commands: Sequence[CommandSpec],
    **_: object,
) -> Channel:
    from channels.discord.channel import create_channel  # noqa: PLC0415 - heavy: only where it is used

    return create_channel(name, settings, clock, cursor=cursor, commands=commands)


class Discord(Plugin):
    """Bots on Discord."""

    name = "discord"
    summary = "connects to Discord"
    checks = _CHECKS
    platforms: ClassVar = {"discord": PlatformFactory(settings=DiscordConfig, make=_make_discord)}
