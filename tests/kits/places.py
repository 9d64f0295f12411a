"""Channels and places without a platform."""

from collections.abc import Callable, Mapping

from channels.base import Capabilities, Channel, Membership
from gateway.access.channels import Channels
from gateway.access.place_names import PlaceTitles
from gateway.core.events import Address, ChannelName, RoomId, Sender, SenderId
from gateway.core.redaction import Redactor
from gateway.store import StoreReader
from gateway.stream.routing import Bindings, PrivacyCache
from tests.kits.settings import live_settings


class PlayedChannels(Channels):
    """Channels of which the test says what their platforms answer."""

    def __init__(
        self,
        channels: Mapping[ChannelName, Channel] | None = None,
        *,
        prefixes: Mapping[ChannelName, str] | None = None,
        platforms: Mapping[ChannelName, Capabilities] | None = None,
        scope_of: Callable[[Address], str | None] | None = None,
        space_of: Callable[[Address], RoomId | None] | None = None,
        private_address: Callable[[Address, Sender], Address] | None = None,
        membership: Callable[[Address, SenderId], Membership | None] = lambda _, __: None,
    ) -> None:
        """What is None is asked of the channels."""
        super().__init__(live_settings(), channels or {})
        self._prefixes, self._platforms = prefixes, platforms
        self._membership = membership
        self._scope_of, self._space_of, self._private_address = scope_of, space_of, private_address

    def command_prefix(self, name: ChannelName) -> str:
        return (
            super().command_prefix(name) if self._prefixes is None else self._prefixes.get(name, "")
        )

    @property
    def capabilities(self) -> Mapping[ChannelName, Capabilities]:
        return super().capabilities if self._platforms is None else self._platforms

    def private_address(self, at: Address, sender: Sender) -> Address:
        played = self._private_address
        return super().private_address(at, sender) if played is None else played(at, sender)

    def space_of(self, place: Address) -> RoomId | None:
        return super().space_of(place) if self._space_of is None else self._space_of(place)

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        return self._membership(at, person) or await super().membership(at, person)

    def scope_of(self, at: Address) -> str | None:
        return super().scope_of(at) if self._scope_of is None else self._scope_of(at)


def privacy(
    store: StoreReader, bindings: Bindings, channels: Channels | None = None
) -> PrivacyCache:
    """Return who can read the places of these channels; None: there are none."""
    return PrivacyCache(
        store, bindings, PlayedChannels() if channels is None else channels, titles(store)
    )


def titles(store: StoreReader) -> PlaceTitles:
    return PlaceTitles(store, Redactor())
