"""Command menus by role: people with a role are shown the commands that they may use, where the
platform can.
"""

import asyncio
from collections.abc import Sequence
from typing import Literal
from weakref import WeakSet

from channels.base import CanSetCommandMenus, Channel
from gateway.core.events import Address, ChannelName, ConnectionChanged, RoomId, Sender, SenderId
from gateway.core.facts import IdentityLinked, RoleAssigned
from gateway.core.identity import identify
from gateway.plugin import Plugin, PluginContext, hook
from gateway.store import LogEntry

PersonWithRole = tuple[Sender, Literal["owner", "admin", "member"]]


class RoleMenus(Plugin):
    """Publishes the command menus of people with a role, on all channels of this process that
    can.
    """

    name = "menus"
    summary = "shows people with a role the commands that they may use, where the platform can"
    watches = (RoleAssigned, IdentityLinked, ConnectionChanged)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._policy, self._channels = context.gateway.people, context.gateway.channels
        self._published = WeakSet[Channel]()
        """Channels that have a menu, if they can. One that is added later gets it when its link
        comes up."""
        self._changed = asyncio.Event()
        context.gateway.live.on_change(lambda _: self._changed.set)

    async def run(self) -> None:
        """Publish the current menus, then publish again after each change."""
        while True:
            self._changed.clear()
            for name, channel in list(self._channels.items()):
                self._published.add(channel)
                if isinstance(channel, CanSetCommandMenus) and self._channels.holds(name):
                    await channel.set_command_menus(self._list_people(name))
            await self._changed.wait()

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        """Publish again if roles may have changed, or a channel without a menu has come up."""
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                channel = self._channels.get(entry.fact.channel)
                if not entry.fact.up or channel is None or channel in self._published:
                    continue
            self._changed.set()

    def _list_people(self, channel: ChannelName) -> list[PersonWithRole]:
        known, found = self._policy.roster_state(), list[PersonWithRole]()
        for one in sorted({*self._policy.roles, *known.grants, *known.links}):
            where, __, sender_id = one.partition(":")
            if where != channel or not sender_id:
                continue
            sender = Sender(id=SenderId(sender_id), name=sender_id, verified=True)
            at = Address(channel=channel, room=RoomId(sender_id))
            role = identify(self._policy, at, sender).global_role
            if role in ("owner", "admin", "member"):
                found.append((sender, role))
        return found
