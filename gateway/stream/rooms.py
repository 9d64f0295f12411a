"""Joining and leaving of rooms."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Literal

from channels.base import CanJoin, CanLeave, Channel, HasRooms, SendError
from gateway.access.channel_lookup import ChannelLookup
from gateway.core.events import Address, ChannelName, ConversationId

logger = logging.getLogger("reverie.travels")

RoomAction = Literal["enter", "leave"]
LEAVE_GRACE_S = 2.0
"""Real seconds in which queued posts to a room are delivered before it is left."""
FAILED_TEXT = "that did not work; the operator can look it up in the log"


class RoomMembership:
    """Membership in rooms of all channels."""

    def __init__(
        self,
        channels: Mapping[ChannelName, Channel],
        tasks: asyncio.TaskGroup,
        wait_until_sent: Callable[[ConversationId, float], Awaitable[None]],
    ) -> None:
        """`wait_until_sent(place, seconds)`: return once no post waits for that place, or after that many seconds."""
        self._tasks, self._wait_until_sent = tasks, wait_until_sent
        self._joinable = ChannelLookup[CanJoin](channels, lambda one: one if isinstance(one, CanJoin) else None)
        self._leavable = ChannelLookup[CanLeave](channels, lambda one: one if isinstance(one, CanLeave) else None)
        self._with_rooms = ChannelLookup[HasRooms](channels, lambda one: one if isinstance(one, HasRooms) else None)
        self._running: set[asyncio.Task[None]] = set()
        self._left: set[ConversationId] = set()
        """Rooms that this process was told to leave."""

    def can_join(self, channel: ChannelName) -> bool:
        """Return whether the bot can join rooms of that channel by itself."""
        return channel in self._joinable

    def can_leave(self, channel: ChannelName) -> bool:
        """Return whether the bot can leave rooms of that channel by itself."""
        return channel in self._leavable

    def is_inside(self, at: Address) -> bool | None:
        """Return whether the bot is in that room. None: the platform does not say."""
        channel = self._with_rooms.get(at.channel)
        return channel.is_joined(at.room) if channel is not None else None

    def was_sent_out(self, at: Address) -> bool:
        """Return whether somebody sent the bot out of this room, and nobody back in."""
        return at.conversation in self._left

    def accept_invite(self, at: Address) -> None:
        """Join, if the channel can, because of an invitation. Returns at once; a failure is logged."""
        if self.can_join(at.channel):
            self._start_task(self._enter_invited(at))

    def rejoin(self, places: Iterable[Address]) -> None:
        """Join these rooms, except those that the bot was told to leave. Returns at once; a failure is logged."""
        for at in places:
            if not self.was_sent_out(at):
                self.accept_invite(at)

    def start(self, way: RoomAction, at: Address, on_failure: Callable[[str], Awaitable[None]]) -> None:
        """Start to `enter` or `leave` a room; `on_failure` is called with the reason of a failure. Returns at once."""

        async def act() -> None:
            if reason := await (self.enter(at) if way == "enter" else self.leave(at)):
                await on_failure(reason)

        self._start_task(act())

    async def enter(self, at: Address) -> str:
        """Join a room. Return the reason of a failure; empty: done."""
        channel = self._joinable.get(at.channel)
        self._left.discard(at.conversation)
        if channel is None:
            return "rooms are not entered by themselves there"
        return await _explain_failure(channel.join(at), f"entering {at.conversation}")

    async def leave(self, at: Address) -> str:
        """Leave a room once its queued posts are delivered, and stay out.

        Return the reason of a failure; empty: done.
        """
        channel = self._leavable.get(at.channel)
        if channel is None:
            return "rooms are not left there"
        self._left.add(at.conversation)
        await self._wait_until_sent(at.conversation, LEAVE_GRACE_S)
        if reason := await _explain_failure(channel.leave(at), f"leaving {at.conversation}"):
            self._left.discard(at.conversation)
        return reason

    async def close(self) -> None:
        """Cancel the running attempts."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _enter_invited(self, at: Address) -> None:
        if reason := await self.enter(at):
            logger.warning("invited, but cannot enter %s: %s", at.conversation, reason)
        else:
            logger.info("invited, and entered %s", at.conversation)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


async def _explain_failure(act: Awaitable[None], doing: str) -> str:
    """Return the reason of a failure; empty: none."""
    try:
        await act
    except SendError as error:
        return error.reason
    except Exception:  # a bug in the adapter: it must not stop the gateway
        logger.exception("%s broke", doing)
        return FAILED_TEXT
    return ""
