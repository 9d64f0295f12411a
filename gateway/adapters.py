"""The one place that knows concrete platforms: from a channel's settings to its adapter."""

from channels.base import Channel
from gateway.clock import Clock
from gateway.commands.table import SPECS
from gateway.events import ChannelName
from gateway.settings import Settings


class Unavailable(Exception):
    """The configuration asks for something that this version does not have. The text says what to change."""


def check_adapters(settings: Settings) -> None:
    """Raise `Unavailable` for a channel that `make_channel` cannot make."""
    for name, config in settings.channels.items():
        if config.platform == "console":
            raise Unavailable(f"channels.{name}: the console is part of `reverie demo --console`; remove the channel")


def make_channel(name: ChannelName, settings: Settings, clock: Clock, cursor: str | None) -> Channel:
    """The adapter for one account, to go on from `cursor`. Call `check_adapters` before."""
    config = settings.channels[name]
    match config.platform:
        case "irc":
            from channels.irc.channel import IrcChannel  # noqa: PLC0415 - heavy: only where IRC is used

            return IrcChannel(name, config, clock, cursor=cursor, commands=SPECS)
        case "telegram":
            from channels.telegram.channel import TelegramChannel  # noqa: PLC0415 - heavy: only where it is used

            return TelegramChannel(name, config, clock, cursor=cursor, commands=SPECS)
        case "discord":
            from channels.discord.channel import make  # noqa: PLC0415 - heavy: only where it is used

            return make(name, config, clock, cursor=cursor, commands=SPECS)
        case "console":
            raise AssertionError("a console has no adapter; the settings were not checked")
