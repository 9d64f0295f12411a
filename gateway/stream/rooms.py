"""Joining and leaving of rooms."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Literal

from channels.base import CanJoin, CanLeave, HasRooms, SendError
from gateway.access.channels import Channels
from gateway.access.policy import is_room_allowed
from gateway.cluster.cluster import HELD_ELSEWHERE
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    ConversationId,
    MembershipChanged,
)
from gateway.core.facts import RoomAccessChanged, Seq
from gateway.core.i18n import N_, _
from gateway.core.identity import AccessPolicy
from gateway.store import LogEntry, Store
from gateway.stream.outbox import Outbox

logger = logging.getLogger("reverie.travels")

RoomAction = Literal["enter", "leave"]
LEAVE_GRACE_S = 2.0
"""Real seconds in which queued posts to a room are delivered before it is left."""
FAILED_TEXT = N_("an error in my program; my operator can find it in the log")


class RoomMembership:
    """Membership in rooms of all channels. It follows invitations, and decisions about who may be
    in which room.
    """

    def __init__(
        self,
        store: Store,
        channels: Channels,
        tasks: asyncio.TaskGroup,
        outbox: Outbox,
        policy: AccessPolicy,
    ) -> None:
        """`policy` must already reflect the appended facts: subscribe the roster before."""
        self._tasks, self._outbox, self._policy = tasks, outbox, policy
        self._channels = channels
        self._running: set[asyncio.Task[None]] = set()
        self._left: set[ConversationId] = set()
        """Rooms that this process was told to leave."""
        self._store = store
        store.subscribe(self._on_link, ConnectionChanged)
        store.subscribe(self._on_invited, MembershipChanged)
        store.subscribe(self._on_access_changed, RoomAccessChanged)

    def _on_link(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged) and (entry.fact.up or entry.fact.says):
                self.rejoin(entry.fact.channel)

    def _on_invited(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, MembershipChanged) and entry.fact.change == "invite":
                self._start_task(self._accept_judged(entry.seq, entry.fact.at))

    async def _accept_judged(self, invitation: Seq, at: Address) -> None:
        judged = await self._store.find_judgement(invitation)
        if judged is not None and judged.fate != "refused" and self._channels.holds(at.channel):
            self.accept_invite(at)

    def _on_access_changed(self, entries: Sequence[LogEntry]) -> None:
        """Join or leave the rooms of these entries, whoever decided it. The process that holds the
        channel does.
        """
        for entry in entries:
            match entry.fact:
                case RoomAccessChanged(room=room) if not self._channels.holds(room.channel):
                    pass
                case RoomAccessChanged(open=True, room=room):
                    self.accept_invite(room)
                case RoomAccessChanged(room=room) if not is_room_allowed(self._policy, room):
                    self.leave_closed(room)
                case _:
                    pass

    def can_join(self, channel: ChannelName) -> bool:
        """Return whether the bot can join rooms of that channel by itself."""
        return isinstance(self._channels.get(channel), CanJoin)

    def can_leave(self, channel: ChannelName) -> bool:
        """Return whether the bot can leave rooms of that channel by itself."""
        return isinstance(self._channels.get(channel), CanLeave)

    def is_inside(self, at: Address) -> bool | None:
        """Return whether the bot is in that room. None: the platform does not say."""
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, HasRooms):
            return None
        return channel.is_joined(at.room) if self._channels.holds(at.channel) else None

    def was_sent_out(self, at: Address) -> bool:
        """Return whether somebody sent the bot out of this room, and nobody back in. False also if
        it is not known.
        """
        return at.conversation in self._left

    def accept_invite(self, at: Address) -> None:
        """Join, if the channel can, because of an invitation. Returns at once; a failure is
        logged.
        """
        if self.can_join(at.channel):
            self._start_task(self._enter_invited(at))

    def rejoin(self, channel: ChannelName) -> None:
        """Join the approved rooms of a channel, except those that the bot was told to leave.

        Returns at once; a failure is logged.
        """
        for at in map(Address.parse, sorted(self._policy.roster_state().rooms)):
            if (
                at.channel == channel
                and at.conversation not in self._left
                and self._channels.holds(channel)
            ):
                self.accept_invite(at)

    def leave_closed(self, at: Address) -> None:
        """Leave a room that is not open any more. Returns at once; a failure is logged."""
        self._start_task(self._leave_closed(at))

    def start(
        self, way: RoomAction, at: Address, on_failure: Callable[[str], Awaitable[None]]
    ) -> None:
        """Start to `enter` or `leave` a room; `on_failure` is called with the reason of a failure.
        Returns at once.
        """

        async def act() -> None:
            if reason := await (self.enter(at) if way == "enter" else self.leave(at)):
                await on_failure(reason)

        self._start_task(act())

    async def enter(self, at: Address) -> str:
        """Join a room. Return the reason of a failure; empty: done."""
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, CanJoin):
            self._left.discard(at.conversation)
            return _("on that platform, people add me to rooms")
        if not self._channels.holds(at.channel):
            return _(HELD_ELSEWHERE)
        self._left.discard(at.conversation)
        return await _explain_failure(channel.join(at), f"entering {at.conversation}")

    async def leave(self, at: Address) -> str:
        """Leave a room once its queued posts are delivered, after 2 s of real time at the latest,
        and stay out.

        Return the reason of a failure; empty: done.
        """
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, CanLeave):
            return _("I cannot leave rooms on that platform")
        if not self._channels.holds(at.channel):
            return _(HELD_ELSEWHERE)
        self._left.add(at.conversation)
        await self._outbox.wait_until_sent(at, LEAVE_GRACE_S)
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

    async def _leave_closed(self, at: Address) -> None:
        await self._outbox.wait_until_sent(at, None)  # e.g. the notice of it
        if reason := await self.leave(at):
            logger.warning("cannot leave %s: %s", at.conversation, reason)

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


async def _explain_failure(act: Awaitable[None], doing: str) -> str:
    try:
        await act
    except SendError as error:
        return error.reason
    except Exception:  # a bug in the adapter: it must not stop the gateway
        logger.exception("%s broke", doing)
        return _(FAILED_TEXT)
    return ""
