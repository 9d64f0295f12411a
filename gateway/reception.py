"""The way in of every channel, wired: who is heard, what is a command, where an event goes from there."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from channels.base import CanJoin, CanPage, Channel, HasSpaces, SendError
from gateway import access, policies
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.commands.desk import Desk
from gateway.commands.world import World
from gateway.events import Address, ChannelName, Post, RoomId
from gateway.intake import Doors, Intake
from gateway.ops.stats import Stats
from gateway.rewinds import Rewinds
from gateway.settings import Settings
from gateway.store import Store

logger = logging.getLogger("reverie.reception")

NATIVE = frozenset({"telegram", "discord"})
"""Platforms with commands of their own, which begin with a slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the intakes of all channels share."""

    settings: Settings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    who: access.Policy
    bindings: Bindings
    stats: Stats
    model: Callable[[], str]
    mode: Callable[[], str]
    rewinds: Rewinds


def intakes(parts: Parts, doors: Doors) -> dict[ChannelName, Intake]:
    """One for each channel."""
    settings = parts.settings
    desk = Desk(_world(parts), parts.who, settings.commands.prefix, settings.commands.per_minute)
    attention_policy = policies.attention_policy(settings)
    return {
        name: Intake(
            name,
            store=parts.store,
            clock=parts.clock,
            access_policy=parts.who,
            attention_policy=attention_policy,
            bindings=parts.bindings,
            desk=desk,
            max_bot_exchanges=settings.access.max_bot_exchanges,
            stats=parts.stats,
            doors=doors,
        )
        for name in parts.channels
    }


def _world(parts: Parts) -> World:
    said = parts.settings.commands
    contacts = {name: getattr(parts.settings.channels.get(name), "contact", None) for name in parts.channels}
    platforms = {name: channel.capabilities.platform.lower() for name, channel in parts.channels.items()}

    paged: dict[ChannelName, CanPage] = {n: c for n, c in parts.channels.items() if isinstance(c, CanPage)}

    def pages(post: Post) -> int:
        return paged[post.to.channel].pages(post) if post.to.channel in paged else 1

    return World(
        reader=parts.store,
        clock=parts.clock,
        stats=parts.stats,
        version=version("reverie-gateway"),
        model=parts.model,
        mode=parts.mode,
        contacts={name: found for name, own in contacts.items() if (found := own or said.contact)},
        prefix={name: "/" if platform in NATIVE else said.prefix for name, platform in platforms.items()},
        rewinds=parts.rewinds,
        pages=pages,
    )


def space_of(channels: Mapping[ChannelName, Channel]) -> Callable[[Address], RoomId | None]:
    """What a room is part of, asked of its channel."""
    grouped: dict[ChannelName, HasSpaces] = {n: c for n, c in channels.items() if isinstance(c, HasSpaces)}
    return lambda place: grouped[place.channel].space(place.room) if place.channel in grouped else None


class Invitations:
    """Goes where it may be asked to."""

    def __init__(
        self,
        channels: Mapping[ChannelName, Channel],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """`spawn` starts a task whose failure stops the gateway."""
        self._able: dict[ChannelName, CanJoin] = {n: c for n, c in channels.items() if isinstance(c, CanJoin)}
        self._spawn = spawn
        self._going: set[asyncio.Task[None]] = set()

    def accept(self, at: Address) -> None:
        """Enter, if the channel can. Returns at once; a failure is logged."""
        if at.channel in self._able:
            task = self._spawn(self._enter(self._able[at.channel], at))
            self._going.add(task)
            task.add_done_callback(self._going.discard)

    async def close(self) -> None:
        """Stop trying."""
        going = list(self._going)
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    async def _enter(self, channel: CanJoin, at: Address) -> None:
        try:
            await channel.join(at)
            logger.info("invited, and entered %s", at.conversation)
        except SendError as error:
            logger.warning("invited, but cannot enter %s: %s", at.conversation, error.reason)
        except Exception:  # a bug in the adapter: an invitation must not stop the gateway
            logger.exception("invited, but entering %s broke", at.conversation)
