"""Channel factory: makes the adapter of a platform from a channel's settings. Only this module
knows all platforms.
"""

from channels.base import Channel
from gateway.commands.table import COMMAND_SPECS
from gateway.config.models import Settings
from gateway.config.source import format_key
from gateway.config.validation import find_unrunnable
from gateway.core.clock import Clock
from gateway.core.events import ChannelName
from gateway.stream.supervisor import find_ranked_rooms


class ChannelUnavailable(Exception):
    """No gateway can run with the channels of the configuration. The text says what to change."""


def check_adapters(settings: Settings) -> None:
    """Raise `ChannelUnavailable` for channels that `make_channel` cannot make, or that disturb each
    other.
    """
    for keys, why in find_unrunnable(settings):
        raise ChannelUnavailable(f"{format_key(keys)}: {why}")


def make_channel(
    name: ChannelName,
    settings: Settings,
    clock: Clock,
    cursor: str | None,
    before: Channel | None = None,
) -> Channel:
    """Return the adapter of one account, which goes on from `cursor`. Call `check_adapters` first.

    `before`: the stopped channel of that name, if there was one; the new adapter takes over its
    state.
    """
    config = settings.channels[name]
    match config.platform:
        case "irc":
            from channels.irc.channel import IrcChannel  # noqa: PLC0415 - heavy: only where IRC is used

            irc = IrcChannel(name, config, clock, cursor=cursor, commands=COMMAND_SPECS)
            if isinstance(before, IrcChannel):
                irc.take_over(before)
            return irc
        case "telegram":
            from channels.telegram.channel import TelegramChannel  # noqa: PLC0415 - heavy: only where it is used

            return TelegramChannel(
                name,
                config,
                clock,
                cursor=cursor,
                commands=COMMAND_SPECS,
                ranks=find_ranked_rooms(name, settings),
            )
        case "discord":
            from channels.discord.channel import DiscordChannel, create_channel  # noqa: PLC0415 - heavy: only where it is used

            discord = create_channel(name, config, clock, cursor=cursor, commands=COMMAND_SPECS)
            if isinstance(before, DiscordChannel):
                discord.take_over(before)
            return discord
        case "console":
            raise AssertionError("a console has no adapter; the settings were not checked")
