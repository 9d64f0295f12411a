"""Joining and leaving of rooms."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from channels.base import CanJoin, CanLeave, Channel, HasRooms, SendError
from gateway.access.policy import is_room_allowed
from gateway.access.remote import ACT_TIMEOUT_S, ASK_TIMEOUT_S, RemoteChannel
from gateway.cluster.cluster import CallFailed, Cluster
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    MembershipChanged,
    PostKey,
)
from gateway.core.facts import Judgement, PostQueued, RoomAccessChanged
from gateway.core.i18n import N_, _, current_language, use_language
from gateway.core.identity import AccessPolicy
from gateway.store import LogEntry, Store
from gateway.store.types import judged_events
from gateway.stream.outbox import Outbox

logger = logging.getLogger("reverie.travels")

RoomAction = Literal["enter", "leave"]
LEAVE_GRACE_S = 2.0
"""Real seconds in which queued posts to a room are delivered before it is left."""
FAILED_TEXT = N_("an error in my program; my operator can find it in the log")
UNREACHED_TEXT: Final = N_("my process with that connection cannot be reached just now")
SILENT_TEXT: Final = N_("my process with that connection does not answer; perhaps it is done all the same")


_MAX_ROOMS_LEAVING: Final = 1_000
_CALL: Final = "room"
"""Name of the call to the process that holds a channel."""


def accepted_invitations(entries: Iterable[LogEntry]) -> Iterator[Address]:
    """Yield the rooms to which the bot was invited by somebody who may."""
    for event, __, judged in judged_events(entries):
        if isinstance(event, MembershipChanged) and event.change == "invite" and judged.fate != "refused":
            yield event.at


class RoomMembership:
    """Membership in rooms of all channels. It follows invitations, and decisions about who may be in which room."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[ChannelName, Channel],
        tasks: asyncio.TaskGroup,
        outbox: Outbox,
        policy: AccessPolicy,
        *,
        cluster: Cluster | None = None,
    ) -> None:
        """`policy` must already reflect the appended facts: subscribe the roster before.

        `cluster` None: this is the only process.
        """
        self._tasks, self._outbox, self._policy = tasks, outbox, policy
        self._channels = channels
        self._running: set[asyncio.Task[None]] = set()
        self._left: set[ConversationId] = set()
        """Rooms that this process was told to leave."""
        self._leaving: dict[PostKey, Address] = {}
        """Rooms to leave once this post was delivered there."""
        (cluster or Cluster()).serve(_CALL, self._serve)
        store.subscribe(self._on_link, ConnectionChanged)
        store.subscribe(self._on_invited, Judgement, MembershipChanged)
        store.subscribe(self._on_access_changed, PostQueued, RoomAccessChanged, DeliveryReport)

    async def _serve(self, _caller: int, arguments: list[str]) -> str | bool:
        """Do for another process what it asks of a channel that this one holds."""
        what, at, language = arguments[0], Address.parse(arguments[1]), arguments[2]
        if self._find_remote(at) is not None:
            raise CallFailed(f"{at.channel} is not held here just now", is_refused=True)
        if what == "was_sent_out":
            return await self.was_sent_out(at)
        with use_language(language):
            return await (self.enter(at) if what == "enter" else self.leave(at))

    def _find_remote(self, at: Address) -> RemoteChannel | None:
        """Return the channel of that address if another process holds it."""
        channel = self._channels.get(at.channel)
        return channel if isinstance(channel, RemoteChannel) else None

    def _on_link(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged) and (entry.fact.up or entry.fact.says):
                self.rejoin(entry.fact.channel)

    def _on_invited(self, entries: Sequence[LogEntry]) -> None:
        for at in accepted_invitations(entries):
            if self._find_remote(at) is None:
                self.accept_invite(at)

    def _on_access_changed(self, entries: Sequence[LogEntry]) -> None:
        """Join or leave the rooms of these entries, whoever decided it. The process that holds the channel does."""
        for entry in entries:
            match entry.fact:
                case RoomAccessChanged(room=room) if self._find_remote(room) is not None:
                    pass
                case RoomAccessChanged(open=True, room=room):
                    self.accept_invite(room)
                case RoomAccessChanged(room=room) if not is_room_allowed(self._policy, room):
                    self._leave_after_notice(room, entries)
                case DeliveryReport(post=key) if key in self._leaving:
                    self.leave_closed(self._leaving.pop(key))
                case _:
                    pass

    def _leave_after_notice(self, room: Address, entries: Sequence[LogEntry]) -> None:
        """Leave the room at once, or once the notice that was appended with the change has been delivered."""
        posts = [entry.fact.post for entry in entries if isinstance(entry.fact, PostQueued)]
        last = next(
            (post for post in reversed(posts) if (post.to.channel, post.to.room) == (room.channel, room.room)), None
        )
        if last is None or len(self._leaving) >= _MAX_ROOMS_LEAVING:
            self.leave_closed(room)
        else:
            self._leaving[last.key] = room

    def can_join(self, channel: ChannelName) -> bool:
        """Return whether the bot can join rooms of that channel by itself."""
        return isinstance(self._channels.get(channel), CanJoin)

    def can_leave(self, channel: ChannelName) -> bool:
        """Return whether the bot can leave rooms of that channel by itself."""
        return isinstance(self._channels.get(channel), CanLeave)

    async def is_inside(self, at: Address) -> bool | None:
        """Return whether the bot is in that room. None: the platform does not say."""
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, HasRooms):
            return None
        if isinstance(channel, RemoteChannel):
            joined: bool | None = await channel.ask("is_joined", at.room)
            return joined
        return channel.is_joined(at.room)

    async def was_sent_out(self, at: Address) -> bool:
        """Return whether somebody sent the bot out of this room, and nobody back in. False also if it is not known."""
        if (remote := self._find_remote(at)) is not None:
            try:
                return await remote.call_holder(_CALL, ["was_sent_out", at.conversation, ""], ASK_TIMEOUT_S) is True
            except CallFailed as failed:
                logger.info("whether %s was left is not known: %s", at.conversation, failed.reason)
                return False
        return at.conversation in self._left

    def accept_invite(self, at: Address) -> None:
        """Join, if the channel can, because of an invitation. Returns at once; a failure is logged."""
        if self.can_join(at.channel):
            self._start_task(self._enter_invited(at))

    def rejoin(self, channel: ChannelName) -> None:
        """Join the approved rooms of a channel, except those that the bot was told to leave.

        Returns at once; a failure is logged.
        """
        for at in map(Address.parse, sorted(self._policy.roster_state().rooms)):
            if at.channel == channel and at.conversation not in self._left and self._find_remote(at) is None:
                self.accept_invite(at)

    def leave_closed(self, at: Address) -> None:
        """Leave a room that is not open any more. Returns at once; a failure is logged."""
        self.start("leave", at, _log_refusal(at))

    def start(self, way: RoomAction, at: Address, on_failure: Callable[[str], Awaitable[None]]) -> None:
        """Start to `enter` or `leave` a room; `on_failure` is called with the reason of a failure. Returns at once."""

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
        if isinstance(channel, RemoteChannel):
            return await _let_holder(channel, "enter", at)
        self._left.discard(at.conversation)
        return await _explain_failure(channel.join(at), f"entering {at.conversation}")

    async def leave(self, at: Address) -> str:
        """Leave a room once its queued posts are delivered, and stay out.

        Return the reason of a failure; empty: done.
        """
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, CanLeave):
            return _("I cannot leave rooms on that platform")
        if isinstance(channel, RemoteChannel):
            return await _let_holder(channel, "leave", at)
        self._left.add(at.conversation)
        await self._outbox.wait_until_sent(at.conversation, LEAVE_GRACE_S)
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


async def _let_holder(channel: RemoteChannel, way: RoomAction, at: Address) -> str:
    """Let the process that holds the channel enter or leave a room. Return the reason of a failure; empty: done."""
    try:
        return str(await channel.call_holder(_CALL, [way, at.conversation, current_language()], ACT_TIMEOUT_S))
    except CallFailed as failed:
        logger.warning("%s was not told to %s: %s", at.conversation, way, failed.reason)
        return _(UNREACHED_TEXT if failed.is_refused else SILENT_TEXT)


def _log_refusal(at: Address) -> Callable[[str], Awaitable[None]]:
    """Return a callback that logs a refusal."""

    async def on_refused(reason: str) -> None:
        logger.warning("cannot leave %s: %s", at.conversation, reason)

    return on_refused


async def _explain_failure(act: Awaitable[None], doing: str) -> str:
    """Return the reason of a failure; empty: none."""
    try:
        await act
    except SendError as error:
        return error.reason
    except Exception:  # a bug in the adapter: it must not stop the gateway
        logger.exception("%s broke", doing)
        return _(FAILED_TEXT)
    return ""
