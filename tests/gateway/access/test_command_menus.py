"""Command menus: shown to each person with a role and to nobody else, also after changes."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from channels.base import Channel
from channels.console import ConsoleChannel
from gateway.access.owners import CommandMenuPublisher, PersonWithRole
from gateway.access.roster import Roster
from gateway.core.clock import ManualClock
from gateway.core.events import ChannelName, ConnectionChanged, EventId
from gateway.core.facts import Fact, IdentityLinked, RoleAssigned
from gateway.core.identity import AccessPolicy, Role
from gateway.store import NewEntry, Store
from tests.kits.channels import story
from tests.kits.policies import PlayedPolicy
from tests.kits.settings import live_settings

HERE = ChannelName("menu.x")
ROLES: Mapping[str, Role] = {"menu.x:1": "owner", "menu.x:2": "blocked", "irc.y:account:ann": "admin"}


class Menus(ConsoleChannel):
    """Records the menus that it gets."""

    def __init__(self) -> None:
        super().__init__(HERE, lambda _: None)
        self.shown = asyncio.Queue[dict[str, str]]()

    async def set_command_menus(self, to: Sequence[PersonWithRole]) -> None:
        self.shown.put_nowait({sender.id: role for sender, role in to})


@story
async def test_menus_follow_roles_and_links(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "log.db", clock := ManualClock()) as store:
        roster, menus = Roster(store, clock), Menus()
        store.subscribe(roster.on_appended)
        policy = PlayedPolicy(dm_policy="open", roles=ROLES, open_rooms={}, roster=lambda: roster.known)
        offers = CommandMenuPublisher(store, live_settings(), policy, {HERE: menus})
        await roster.load()
        running = asyncio.create_task(offers.run())

        async def told(*facts: Fact) -> dict[str, str]:
            await store.append([NewEntry(fact=fact, at=datetime(2026, 3, 1, tzinfo=UTC)) for fact in facts])
            return await menus.shown.get()

        assert await told() == {"1": "owner"}
        paired = RoleAssigned(person="menu.x:3", role="member", by="menu.x:1", why="pairing")
        elsewhere = RoleAssigned(person="menu.x:4", role="admin", scope="menu.x/-5", by="menu.x:1", why="role")
        assert await told(paired, elsewhere) == {"1": "owner", "3": "member"}
        linked = IdentityLinked(one="irc.y:account:ann", other="menu.x:6", joined=True, by="menu.x:6")
        assert await told(linked) == {"1": "owner", "3": "member", "6": "admin"}
        gone = RoleAssigned(person="menu.x:3", role="", by="menu.x:1", why="pairing")
        assert await told(gone) == {"1": "owner", "6": "admin"}
        running.cancel()
        await asyncio.wait([running])


@story
async def test_a_channel_that_comes_later_shows_them_too(tmp_path: Path) -> None:
    channels: dict[ChannelName, Channel] = {HERE: ConsoleChannel(HERE, lambda _: None)}  # which cannot show any
    policy, now = AccessPolicy(dm_policy="open", roles=ROLES, open_rooms={}), datetime(2026, 3, 1, tzinfo=UTC)
    async with await Store.open(tmp_path / "log.db", ManualClock()) as store:
        offers = CommandMenuPublisher(store, live_settings(), policy, channels)
        running = asyncio.create_task(offers.run())
        await asyncio.sleep(0)
        channels[HERE] = menus = Menus()
        await asyncio.sleep(0)
        assert menus.shown.empty()
        for number in range(2):
            link = ConnectionChanged(id=EventId(str(number)), channel=HERE, up=True, reason="", sent=now)
            await store.append([NewEntry(fact=link, at=now)])
        assert await menus.shown.get() == {"1": "owner"}
        await asyncio.sleep(0)
        assert menus.shown.empty(), "it has its menu, and connects again"
        running.cancel()
        await asyncio.wait([running])
