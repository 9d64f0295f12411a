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
from gateway.core.events import ChannelName
from gateway.core.facts import Fact, IdentityLinked, RoleAssigned
from gateway.core.identity import AccessPolicy, Role
from gateway.store import NewEntry, Store
from tests.kits.channels import story
from tests.kits.policies import PlayedPolicy

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
        policy = PlayedPolicy(dm_policy="open", roles=ROLES, open_rooms={}, roster=lambda: roster.known)
        offers = CommandMenuPublisher(policy, {HERE: menus})
        for source in (roster, offers):
            store.subscribe(source.on_appended)
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
async def test_a_channel_that_comes_later_shows_them_too() -> None:
    channels: dict[ChannelName, Channel] = {HERE: ConsoleChannel(HERE, lambda _: None)}  # which cannot show any
    offers = CommandMenuPublisher(AccessPolicy(dm_policy="open", roles=ROLES, open_rooms={}), channels)
    running = asyncio.create_task(offers.run())
    await asyncio.sleep(0)
    channels[HERE] = menus = Menus()
    await asyncio.sleep(0)
    assert menus.shown.empty()
    offers.refresh()
    assert await menus.shown.get() == {"1": "owner"}
    running.cancel()
    await asyncio.wait([running])
