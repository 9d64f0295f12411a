"""How channels are spoken of, and how commands are written there. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.events import ChannelName


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStyle:
    """Of all channels of the gateway."""

    prefixes: Mapping[ChannelName, str]
    """What stands in front of a command's name there."""
    platforms: Mapping[ChannelName, str]
    """As `Capabilities.platform`. Its keys are all the channels that there are."""

    def command_prefix(self, channel: ChannelName) -> str:
        """In front of a command there."""
        return self.prefixes.get(channel, "")

    def platform_name(self, channel: ChannelName) -> str:
        """What it is, for people."""
        return self.platforms.get(channel, "this platform")
