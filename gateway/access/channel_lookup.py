"""Mapping from the channels that exist at present to one of their abilities.

Channels come and go while the gateway runs. Code that needs an ability looks it up at the moment of use and stores
nothing, so channels are added and removed in one place only.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from channels.base import Channel
from gateway.core.events import ChannelName

T = TypeVar("T")


class ChannelLookup(Mapping[ChannelName, T]):
    """Abilities by channel name, computed at each look-up; channels without it are not in the mapping."""

    def __init__(self, channels: Mapping[ChannelName, Channel], ability: Callable[[Channel], T | None]) -> None:
        """`ability` returns a channel's ability, None: it has none. Called often: it must be cheap and pure."""
        self._channels, self._ability = channels, ability

    def __getitem__(self, name: ChannelName) -> T:
        found = self._ability(self._channels[name])
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[ChannelName]:
        return iter([name for name, channel in self._channels.items() if self._ability(channel) is not None])

    def __len__(self) -> int:
        return sum(self._ability(channel) is not None for channel in self._channels.values())
