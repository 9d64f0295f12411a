"""Shows people with a role the commands that they may use, where the platform can."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from channels.base import CanSetCommandMenus, Channel
from gateway.channels_now import ChannelLookup
from gateway.events import Address, ChannelName, RoomId, Sender, SenderId
from gateway.records import IdentityLinked, RoleAssigned
from gateway.standing import AccessPolicy, identify
from gateway.store import AppendResult, NewEntry

PersonWithRole = tuple[Sender, Literal["owner", "admin", "member"]]


class CommandMenuPublisher:
    """Of all channels."""

    def __init__(self, policy: AccessPolicy, channels: Mapping[ChannelName, Channel]) -> None:
        self._policy = policy
        self._menu_channels = ChannelLookup[CanSetCommandMenus](
            channels, lambda one: one if isinstance(one, CanSetCommandMenus) else None
        )
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Show what holds now, and then what changes, until cancelled. Begin once it is known who has which role."""
        while True:
            self._changed.clear()
            for name, channel in list(self._menu_channels.items()):
                await channel.set_command_menus(self.list_people(name))
            await self._changed.wait()

    def refresh(self) -> None:
        """There is another channel, or what is configured of people has changed: show it anew."""
        self._changed.set()

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """These were appended to the log."""
        news = (entry.fact for entry, one in zip(entries, written, strict=True) if one.is_new)
        if any(isinstance(fact, RoleAssigned | IdentityLinked) for fact in news):
            self._changed.set()

    def list_people(self, channel: ChannelName) -> list[PersonWithRole]:
        """Who has a role there that holds everywhere."""
        return sorted(self._iter_people(channel), key=lambda one: one[0].id)

    def _iter_people(self, channel: ChannelName) -> Iterator[PersonWithRole]:
        known = self._policy.roster_state()
        people = {*self._policy.roles, *known.grants, *known.links}
        for one in people:
            where, _, sender_id = one.partition(":")
            if where != channel or not sender_id:
                continue
            sender = Sender(id=SenderId(sender_id), name=sender_id, verified=True)
            role = identify(self._policy, Address(channel=channel, room=RoomId(sender_id)), sender).global_role
            if role in ("owner", "admin", "member"):
                yield sender, role
