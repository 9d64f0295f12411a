"""Command menus: shown to each person with a role and to nobody else, also after changes."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.access.channels import Channels
from gateway.access.roster import Roster
from gateway.cluster.cluster import channel_lease
from gateway.core.clock import ManualClock
from gateway.core.events import ChannelName, ConnectionChanged, EventId
from gateway.core.facts import Fact, IdentityLinked, RoleAssigned
from gateway.core.identity import AccessPolicy, Role
from gateway.plugins.menus import PersonWithRole, RoleMenus
from gateway.store import NewEntry, Store
from reverie.testing.console import ConsoleChannel
from tests.kits.cluster import ManualCluster
from tests.kits.handle import handle_of
from tests.kits.places import PlayedChannels
from tests.kits.plugins import subscribed_plugin
from tests.kits.policies import PlayedPolicy
from tests.kits.settings import live_settings

HERE = ChannelName("menu.x")
ROLES: Mapping[str, Role] = {
    "menu.x:1": "owner",
    "menu.x:2": "blocked",
    "irc.y:account:ann": "admin",
}


def menus_of(
    store: Store, clock: ManualClock, policy: AccessPolicy, channels: Channels
) -> RoleMenus:
    gateway = handle_of(store, clock, people=policy, channels=channels)
    return subscribed_plugin(RoleMenus, gateway=gateway)


class Menus(ConsoleChannel):
    def __init__(self) -> None:
        super().__init__(HERE, lambda _: None)
        self.shown = asyncio.Queue[dict[str, str]]()

    async def set_command_menus(self, to: Sequence[PersonWithRole]) -> None:
        self.shown.put_nowait({sender.id: role for sender, role in to})


async def test_menus_follow_roles_and_links(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "log.db", clock := ManualClock()) as store:
        roster, menus = Roster(store, clock), Menus()
        store.subscribe(roster.on_appended)
        policy = PlayedPolicy(
            dm_policy="open", roles=ROLES, open_rooms={}, roster=lambda: roster.known
        )
        offers = menus_of(store, clock, policy, PlayedChannels({HERE: menus}))
        await roster.load()
        running = asyncio.create_task(offers.run())

        async def told(*facts: Fact) -> dict[str, str]:
            await store.append(
                [NewEntry(fact=fact, at=datetime(2026, 3, 1, tzinfo=UTC)) for fact in facts]
            )
            return await menus.shown.get()

        assert await told() == {"1": "owner"}
        paired = RoleAssigned(person="menu.x:3", role="member", by="menu.x:1", why="pairing")
        elsewhere = RoleAssigned(
            person="menu.x:4", role="admin", scope="menu.x/-5", by="menu.x:1", why="role"
        )
        assert await told(paired, elsewhere) == {"1": "owner", "3": "member"}
        linked = IdentityLinked(
            one="irc.y:account:ann", other="menu.x:6", joined=True, by="menu.x:6"
        )
        assert await told(linked) == {"1": "owner", "3": "member", "6": "admin"}
        gone = RoleAssigned(person="menu.x:3", role="", by="menu.x:1", why="pairing")
        assert await told(gone) == {"1": "owner", "6": "admin"}
        running.cancel()
        await asyncio.wait([running])


async def test_a_channel_that_comes_later_shows_them_too(tmp_path: Path) -> None:
    """As one does that another process held before: that shows them there."""
    others, cluster = Menus(), ManualCluster([])
    channels = Channels(live_settings(), {HERE: others}, cluster)
    policy, now = (
        AccessPolicy(dm_policy="open", roles=ROLES, open_rooms={}),
        datetime(2026, 3, 1, tzinfo=UTC),
    )
    async with await Store.open(tmp_path / "log.db", clock := ManualClock()) as store:
        offers = menus_of(store, clock, policy, channels)
        running = asyncio.create_task(offers.run())
        await asyncio.sleep(0)
        await cluster.grant(channel_lease(HERE))
        channels[HERE] = menus = Menus()
        await asyncio.sleep(0)
        assert menus.shown.empty()
        for number in range(2):
            link = ConnectionChanged(
                id=EventId(str(number)), channel=HERE, up=True, reason="", sent=now
            )
            await store.append([NewEntry(fact=link, at=now)])
        assert await menus.shown.get() == {"1": "owner"}
        await asyncio.sleep(0)
        assert menus.shown.empty(), "it has its menu, and connects again"
        assert others.shown.empty()
        running.cancel()
        await asyncio.wait([running])
