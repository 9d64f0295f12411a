"""Goes into rooms and out of them, because somebody who may says so."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Literal

from channels.base import CanJoin, CanLeave, Channel, HasRooms, SendError
from gateway.access.channel_lookup import ChannelLookup
from gateway.core.events import Address, ChannelName, ConversationId

logger = logging.getLogger("reverie.travels")

RoomAction = Literal["enter", "leave"]
LAST_WORDS_S = 2.0
"""Real seconds in which what waits to be said in a room is said before it is left."""
FAILED_TEXT = "that did not work; the operator can look it up in the log"


class RoomMembership:
    """Of all channels."""

    def __init__(
        self,
        channels: Mapping[ChannelName, Channel],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
        said: Callable[[ConversationId, float], Awaitable[None]],
    ) -> None:
        """`said(place, seconds)`: return once nothing waits to be said there, or after so long.

        `spawn` starts a task whose failure stops the gateway.
        """
        self._spawn, self._said = spawn, said
        self._joinable = ChannelLookup[CanJoin](channels, lambda one: one if isinstance(one, CanJoin) else None)
        self._leavable = ChannelLookup[CanLeave](channels, lambda one: one if isinstance(one, CanLeave) else None)
        self._with_rooms = ChannelLookup[HasRooms](channels, lambda one: one if isinstance(one, HasRooms) else None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: set[ConversationId] = set()
        """Told to leave, in the life of this process."""

    def can_join(self, channel: ChannelName) -> bool:
        """Whether we enter rooms there by ourselves."""
        return channel in self._joinable

    def can_leave(self, channel: ChannelName) -> bool:
        """Whether we leave rooms there by ourselves."""
        return channel in self._leavable

    def is_inside(self, at: Address) -> bool | None:
        """Whether we are there. None: the platform does not tell."""
        channel = self._with_rooms.get(at.channel)
        return channel.is_joined(at.room) if channel is not None else None

    def was_sent_out(self, at: Address) -> bool:
        """Whether somebody told us to leave, and nobody to come back."""
        return at.conversation in self._left

    def accept_invite(self, at: Address) -> None:
        """Enter, if the channel can, because we are invited. Returns at once; a failure is logged."""
        if self.can_join(at.channel):
            self._start_task(self._enter_invited(at))

    def rejoin(self, places: Iterable[Address]) -> None:
        """Enter those that we were not told to leave. Returns at once; a failure is logged."""
        for at in places:
            if not self.was_sent_out(at):
                self.accept_invite(at)

    def start(self, way: RoomAction, at: Address, told: Callable[[str], Awaitable[None]]) -> None:
        """`enter` or `leave`; `told` is called with why that did not work. Returns at once."""

        async def going() -> None:
            if reason := await (self.enter(at) if way == "enter" else self.leave(at)):
                await told(reason)

        self._start_task(going())

    async def enter(self, at: Address) -> str:
        """Enter; why that did not work. Empty: we are in."""
        channel = self._joinable.get(at.channel)
        self._left.discard(at.conversation)
        if channel is None:
            return "rooms are not entered by themselves there"
        return await _explain_failure(channel.join(at), f"entering {at.conversation}")

    async def leave(self, at: Address) -> str:
        """Leave, once what waits to be said there is said, and stay out; why that did not work. Empty: we are out."""
        channel = self._leavable.get(at.channel)
        if channel is None:
            return "rooms are not left there"
        self._left.add(at.conversation)
        await self._said(at.conversation, LAST_WORDS_S)
        if reason := await _explain_failure(channel.leave(at), f"leaving {at.conversation}"):
            self._left.discard(at.conversation)
        return reason

    async def close(self) -> None:
        """Stop trying."""
        going = list(self._tasks)
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)

    async def _enter_invited(self, at: Address) -> None:
        if reason := await self.enter(at):
            logger.warning("invited, but cannot enter %s: %s", at.conversation, reason)
        else:
            logger.info("invited, and entered %s", at.conversation)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = self._spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _explain_failure(act: Awaitable[None], doing: str) -> str:
    """Why it did not work. Empty: it did."""
    try:
        await act
    except SendError as error:
        return error.reason
    except Exception:  # a bug in the adapter: it must not stop the gateway
        logger.exception("%s broke", doing)
        return FAILED_TEXT
    return ""
