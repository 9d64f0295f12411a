"""What is known of the channels that there are just now, which come and go while the gateway runs.

Whoever needs to know what channels can do asks at the moment of use, and keeps nothing: so there is one place only
where a channel is put or taken away.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from channels.base import Channel
from gateway.core.events import ChannelName

T = TypeVar("T")


class ChannelLookup(Mapping[ChannelName, T]):
    """Something of each channel, asked when it is looked up: of those that have it."""

    def __init__(self, channels: Mapping[ChannelName, Channel], of: Callable[[Channel], T | None]) -> None:
        """`of`: what there is of one; None: nothing, and then it does not stand here. Called often: cheap and pure."""
        self._channels, self._of = channels, of

    def __getitem__(self, name: ChannelName) -> T:
        found = self._of(self._channels[name])
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[ChannelName]:
        return iter([name for name, channel in self._channels.items() if self._of(channel) is not None])

    def __len__(self) -> int:
        return sum(self._of(channel) is not None for channel in self._channels.values())
