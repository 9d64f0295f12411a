"""The channels that exist at present, and their abilities.

Channels come and go while the gateway runs. Code that needs an ability asks for it at the moment of
use and stores nothing, so channels are added and removed in one place only. In place of a channel
that another process holds stands an adapter of the same settings that never connects: it knows what
follows from these, and of the platform nothing.
"""

from collections.abc import Mapping
from types import MappingProxyType

from channels.base import (
    Audience,
    CanDirectMessage,
    Capabilities,
    Channel,
    HasAudience,
    HasSpaces,
    KnowsLogins,
    KnowsMembers,
    ListsRooms,
    Membership,
)
from gateway.cluster.cluster import Cluster, channel_lease
from gateway.config.reload import LiveSettings
from gateway.core.events import Address, ChannelName, RoomId, Sender, SenderId, room_of
from gateway.core.facts import OPERATOR_CHANNEL
from gateway.core.scopes import PUBLIC, space_scope


class Channels(dict[ChannelName, Channel]):
    """The channels of a gateway by name, and what is asked of the channel of one place."""

    def __init__(
        self,
        live: LiveSettings,
        channels: Mapping[ChannelName, Channel] = MappingProxyType[ChannelName, Channel]({}),
        cluster: Cluster | None = None,
    ) -> None:
        """`cluster` None: this is the only process."""
        super().__init__(channels)
        self._live, self.cluster = live, cluster or Cluster()
        self._spaces = dict[tuple[ChannelName, RoomId], RoomId]()
        """Spaces of rooms of channels that other processes hold. A room never moves to another."""

    def holds(self, name: ChannelName) -> bool:
        """Return whether this process holds a channel: only then can anything be done with it."""
        return self.cluster.holds(channel_lease(name))

    def command_prefix(self, name: ChannelName) -> str:
        """Return the prefix of commands, also of a channel that was removed. Empty: commands cannot
        be given there.
        """
        settings, channel = self._live.settings, self.get(name)
        is_operator = name == OPERATOR_CHANNEL and settings.ops.token is not None
        is_native = is_operator or (channel is not None and channel.capabilities.native_commands)
        return "/" if is_native else settings.commands.prefix

    @property
    def capabilities(self) -> Mapping[ChannelName, Capabilities]:
        """What the platform of each channel is and can."""
        return {name: channel.capabilities for name, channel in self.items()}

    def private_address(self, at: Address, sender: Sender) -> Address:
        """Return the direct chat with a sender; the room itself where the platform has none."""
        channel: object = self.get(at.channel)
        direct = channel.direct_room(sender) if isinstance(channel, CanDirectMessage) else None
        return at if direct is None else Address(channel=at.channel, room=direct)

    def space_of(self, place: Address) -> RoomId | None:
        """Return the space of a room, e.g. a Discord guild. None: none, or unknown."""
        channel: object = self.get(place.channel)
        space = channel.space(place.room) if isinstance(channel, HasSpaces) else None
        return space or self._spaces.get((place.channel, place.room))

    def list_rooms(self) -> list[Address]:
        """Return the rooms that platforms report before anybody has written there."""
        return [
            Address(channel=name, room=room)
            for name, channel in self.items()
            if isinstance(channel, ListsRooms)
            for room in channel.rooms()
        ]

    def record_space(self, place: Address, space: RoomId) -> None:
        """Record the space of a room, as the log tells it."""
        self._spaces[place.channel, place.room] = space

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        """Return what a person can read there now. None: nothing, or unknown. See
        `KnowsMembers`.
        """
        channel: object = self.get(at.channel)
        return await channel.membership(at, person) if isinstance(channel, KnowsMembers) else None

    async def is_logged_in(self, at: Address, person: Sender) -> bool:
        """Return whether the login that proves who a person is holds still. See `KnowsLogins`; True
        without it.
        """
        channel: object = self.get(at.channel)
        return await channel.is_logged_in(person) if isinstance(channel, KnowsLogins) else True

    def scope_of(self, at: Address) -> str | None:
        """Return who can read a place, as its platform reports it now. None: unknown."""
        channel: object = self.get(at.channel)
        audience: Audience | None = None
        if isinstance(channel, HasAudience):
            audience = channel.audience(at)
        if audience == "everybody":
            return PUBLIC
        if audience == "space":
            space = self.space_of(at)
            return None if space is None else space_scope(at.channel, space)
        if audience == "room":
            return room_of(at.conversation)
        return None if audience is None else at.conversation
