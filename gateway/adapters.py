"""The one place that knows concrete platforms: from a channel's settings to its adapter."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Final

from channels.base import Channel, Denied
from gateway.clock import Clock
from gateway.commands.table import COMMAND_SPECS
from gateway.events import ChannelName
from gateway.settings import ChannelConfig, Settings

_ADAPTER_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "irc": ("channels.irc.channel", "channels.irc.connection"),
    "telegram": ("channels.telegram.channel",),
    "discord": ("channels.discord.channel", "channels.discord.life"),
}
"""What an adapter needs, with the libraries that it imports only once it connects."""


class ChannelUnavailable(Exception):
    """The configuration asks for something that this version does not have. The text says what to change."""


def check_adapters(settings: Settings) -> None:
    """Raise `ChannelUnavailable` for a channel that `make_channel` cannot make."""
    for name, why in find_unavailable(settings):
        raise ChannelUnavailable(f"channels.{name}: {why}")


def find_unavailable(settings: Settings) -> Iterator[tuple[str, str]]:
    """Each channel that `make_channel` cannot make, and why."""
    for name, config in settings.channels.items():
        if config.platform == "console":
            yield name, "the console is part of `reverie demo --console`; remove the channel"


def explain_unconnectable(config: ChannelConfig) -> str:
    """Why nothing can be connected by these settings, as far as this machine can tell. Empty: nothing is known."""
    if config.platform == "irc":
        from channels.irc import tls  # noqa: PLC0415 - only where IRC is used

        try:
            tls.create_ssl_context(config.tls)
        except Denied as error:
            return error.reason
    return ""


def account_key(config: ChannelConfig) -> tuple[object, ...]:
    """What its platform knows this channel as: two of the same disturb each other."""
    match config.platform:
        case "irc":
            return config.platform, config.host, config.port, config.nick
        case "console":
            return (config.platform,)
        case _:
            return config.platform, config.token.get_secret_value()


def import_adapter(config: ChannelConfig) -> None:
    """Import what its platform needs. Takes up to a second the first time: where people wait, do it in a thread."""
    for module in _ADAPTER_MODULES.get(config.platform, ()):
        import_module(module)


def find_ranked_rooms(name: ChannelName, settings: Settings) -> frozenset[str]:
    """The rooms of one account where something follows from what the platform says of people; `*`: all."""
    return frozenset(rule.room for rule in settings.access.platform_roles if fnmatchcase(name, rule.channel))


def make_channel(
    name: ChannelName, settings: Settings, clock: Clock, cursor: str | None, before: Channel | None = None
) -> Channel:
    """The adapter for one account, to go on from `cursor`. Call `check_adapters` before.

    `before`: what had that name until now, and has said goodbye: what that knows goes over to the new one.
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
                name, config, clock, cursor=cursor, commands=COMMAND_SPECS, ranks=find_ranked_rooms(name, settings)
            )
        case "discord":
            from channels.discord.channel import DiscordChannel, create_channel  # noqa: PLC0415 - heavy: only where it is used

            made = create_channel(name, config, clock, cursor=cursor, commands=COMMAND_SPECS)
            if isinstance(before, DiscordChannel):
                made.take_over(before)
            return made
        case "console":
            raise AssertionError("a console has no adapter; the settings were not checked")
