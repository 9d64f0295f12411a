"""Abilities of channels that another process holds."""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from typing_extensions import get_protocol_members, is_protocol

from channels import base
from channels.base import (
    Channel,
    Emit,
    Part,
    no_before_send,
)
from gateway.access.remote import (
    ABILITIES,
    HOLDER_ONLY,
    QUESTIONS,
    RemoteChannel,
    build_remote_channel,
    remote_methods,
    serve_channels,
)
from gateway.cluster.cluster import channel_lease
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import (
    Address,
    ChannelName,
    Receipt,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from tests.channels.conformance import actions, lifecycle
from tests.channels.conformance.platforms.base import Bench, Kit, bench
from tests.channels.conformance.platforms.console import ConsoleKit
from tests.channels.conformance.platforms.discord import DiscordKit
from tests.channels.conformance.platforms.irc import ScriptedIrcKit
from tests.channels.conformance.platforms.telegram import TelegramKit
from tests.kits.cluster import ManualCluster
from tests.kits.store import NOW

KITS: Sequence[type[Kit]] = (ConsoleKit, ScriptedIrcKit, TelegramKit, DiscordKit)
NAME = ChannelName("far.away")
ROOM = Address(channel=NAME, room=RoomId("#room"), thread=ThreadId("7"))
ANN = Sender(id=SenderId("1"), name="Ann", account="ann", verified=True, ranks=("role:7", "op"))
PINNED_AT_ONCE = frozenset({
    "typing_interval_s", "preview_interval_s", "page_count", "line_count", "place_names", "nick", "direct_room",
    "position", "learn", "set_completer", "apply_config", "join_refusal", "dropped_count",
})  # fmt: skip
"""What is answered by an adapter that is not connected: it follows from the settings, or only the holder needs it."""


class _Held(RemoteChannel):
    """A remote channel in a test that also runs it: that part is the adapter's own."""

    async def run(self, emit: Emit) -> None:
        await self._adapter.run(emit)

    async def send(self, part: Part, before_send: base.BeforeSend = no_before_send) -> Receipt:
        return await self._adapter.send(part, before_send)


def held_elsewhere(adapter: Channel) -> Channel:
    """Return the channel as another process sees it that has the adapter's answers at once."""
    peers = list[ManualCluster]()
    holder, worker = ManualCluster(peers, channel_lease(adapter.name)), ManualCluster(peers)
    serve_channels(holder, {adapter.name: adapter})
    abilities = type(build_remote_channel(adapter, worker, SystemClock()))
    far: RemoteChannel = type("Held", (_Held, abilities), {})(adapter, worker, SystemClock())
    serve_channels(worker, {adapter.name: far})
    return far


def _checks() -> Iterator[object]:
    for kit in KITS:
        for check in (*actions.CHECKS, *lifecycle.HONEST):
            if check.__name__ not in kit.lacks and check.__name__ != "it_sends_files":
                yield pytest.param(kit, check, id=f"{kit.label}-{check.__name__}")


@pytest.mark.parametrize(("kit", "check"), [*_checks()])
async def test_abilities_of_every_platform_work_from_another_process(
    kit: type[Kit], check: Callable[[Bench], Any]
) -> None:
    async with asyncio.timeout(60), bench(kit(), held_elsewhere) as ready:
        assert isinstance(ready.channel, RemoteChannel)
        await check(ready)


@pytest.mark.parametrize("kit", KITS)
async def test_a_remote_channel_has_exactly_the_abilities_of_its_adapter(kit: type[Kit]) -> None:
    adapter = kit().make()
    far = build_remote_channel(adapter, ManualCluster([]), ManualClock(NOW))
    assert {one for one in ABILITIES if isinstance(far, one)} == {one for one in ABILITIES if isinstance(adapter, one)}
    assert (far.name, far.capabilities) == (adapter.name, adapter.capabilities)


def test_every_method_of_every_ability_is_forwarded_or_known_to_be_answered_here() -> None:
    declared = {one for one in vars(base).values() if inspect.isclass(one) and is_protocol(one)} - {Channel, Emit}
    protocols = {one for one in declared if one.__module__ == base.__name__}
    assert protocols == {*ABILITIES}
    for name in (name for ability in ABILITIES for name in get_protocol_members(ability)):
        kinds = [name in remote_methods(), name in PINNED_AT_ONCE, name in HOLDER_ONLY]
        assert sum(kinds) == 1, f"{name}: say whether it needs the connection"
    assert remote_methods().keys() >= QUESTIONS
