"""The platforms that come with Reverie. An adapter is imported where one is made."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from typing import ClassVar

from channels.base import Channel, CommandSpec
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.core.clock import Clock
from gateway.core.events import ChannelName
from gateway.plugin import PlatformFactory, Plugin

_CHECKS = "gateway.plugins.platforms_check"


def _make_irc(
    *, name: ChannelName, settings: IrcConfig, clock: Clock, cursor: str | None, **_: object
) -> Channel:
    # Its import inspects each function that calls it: 40 ms more below those of our own modules.
    import_module("irc.events")
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
