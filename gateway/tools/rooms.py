"""What the agent does on a platform besides posting, carried out.

Before it is done it is written down, and so is what came of it: what has begun and not ended may have been done.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, Literal

from agent.journal import to_single_line
from agent.tools import rooms
from agent.tools.schema import ToolCallRefused
from channels.base import CanDelete, CanEdit, CanReact, CanSetTopic, Channel, RateLimited, SendError, Uncertain
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId, MessageId
from gateway.hands import Tool, ToolContext
from gateway.hearing import ConversationReader
from gateway.outfiles import OutgoingFiles
from gateway.places import PrivacyCache
from gateway.records import PlatformAction, is_inner
from gateway.standing import AccessPolicy
from gateway.store import NewEntry, OutboxPost, Store
from gateway.tools.messages import MessageFinder, MessageTarget
from gateway.tools.permits import ALLOW_ANYBODY, ALLOW_MEMBERS, ToolPermit
from gateway.tools.reading import AttachmentDescriber, RoomReader
from gateway.tools.sending import FileReader, FileSender

logger = logging.getLogger("reverie.tools")

MAX_REASON_CHARS: Final = 300
SEND_FILE_PERMIT: Final = ToolPermit(role="member", approval="untrusted")
SET_TOPIC_PERMIT: Final = ToolPermit(role="admin", approval="untrusted")

PlatformActionKind = Literal["react", "unreact", "edit", "delete", "topic"]
ResolveReachable = Callable[[str, ToolContext], Awaitable[Address]]
"""Another place, where the agent may act from where it is: `gateway.acting.MessagingTools.reachable`. Raises
Refused."""


class PlatformTools:
    """Of one agent."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        places: PrivacyCache,
        bindings: Bindings,
        who: AccessPolicy,
        reach: ResolveReachable,
        files: FileReader,
        outfiles: OutgoingFiles,
        post: Callable[[OutboxPost], None],
    ) -> None:
        """`files`: the agent's. `outfiles`: the outbox's. `post` is called with what is posted, once it is durable."""
        self._store = store
        self._clock = clock
        self._channels = channels
        self._privacy = places
        self._resolve_reachable = reach
        hearing = ConversationReader(store, who, AttachmentDescriber())
        self._message_finder = MessageFinder(store, places, hearing)
        self._room_reader = RoomReader(
            reader=store,
            places=places,
            bindings=bindings,
            who=who,
            channels=channels,
            hearing=hearing,
            messages=self._message_finder,
        )
        self._file_sender = FileSender(
            store=store, clock=clock, channels=channels, files=files, outfiles=outfiles, post=post
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools."""
        return (
            Tool.create(rooms.REACT, rooms.ReactArgs, self.react, ALLOW_ANYBODY),
            Tool.create(rooms.EDIT_OWN, rooms.EditOwnArgs, self.edit_own, ALLOW_MEMBERS),
            Tool.create(rooms.DELETE_OWN, rooms.DeleteOwnArgs, self.delete_own, ALLOW_MEMBERS),
            Tool.create(rooms.READ_ROOM, rooms.ReadRoomArgs, self._room_reader.read_room, ALLOW_ANYBODY),
            Tool.create(rooms.WHO, rooms.WhoArgs, self._room_reader.list_people, ALLOW_ANYBODY),
            Tool.create(rooms.SET_TOPIC, rooms.SetTopicArgs, self.set_topic, SET_TOPIC_PERMIT),
            Tool.create(rooms.SEND_FILE, rooms.SendFileArgs, self._file_sender.send_file, SEND_FILE_PERMIT),
        )

    async def react(self, asked: rooms.ReactArgs, where: ToolContext) -> str:
        """Put a reaction on a message, or take it off. Raises Refused."""
        reaction, add = to_single_line(asked.reaction), not asked.remove
        if not reaction:
            raise ToolCallRefused("A reaction is an emoji.")
        message = await self._find_reachable(asked.message, where)
        channel: object = self._channels.get(message.at.channel)
        if not isinstance(channel, CanReact):
            raise ToolCallRefused(f"{self._platform_name(message.at)} has no reactions: answer in words.")
        target = _require_ids(message)[0]
        fact = _build_acted("react" if add else "unreact", message.at, target, reaction, where)
        await self._perform(fact, lambda: channel.react(message.at, target, reaction, add=add))
        return "It is there." if add else "It is taken off."

    async def edit_own(self, asked: rooms.EditOwnArgs, where: ToolContext) -> str:
        """Let a message of this agent read differently. Raises Refused."""
        if not asked.text.strip():
            raise ToolCallRefused("A message needs text; delete_own takes one back.")
        message = await self._find_own(asked.message, where)
        channel: object = self._channels.get(message.at.channel)
        if not isinstance(channel, CanEdit):
            raise ToolCallRefused(f"{self._platform_name(message.at)} lets nobody edit: post what is to be corrected.")
        target, *more = _require_ids(message)
        if more:
            raise ToolCallRefused(
                f"That answer was posted in {len(more) + 1} pieces, which cannot be edited as one: "
                "post what is to be corrected."
            )
        fact = _build_acted("edit", message.at, target, asked.text, where)
        await self._perform(fact, lambda: channel.edit(message.at, target, asked.text))
        return "It reads like that now. What you are shown of this conversation still has the old words."

    async def delete_own(self, asked: rooms.DeleteOwnArgs, where: ToolContext) -> str:
        """Take back a message of this agent, all pieces of it. Raises Refused."""
        message = await self._find_own(asked.message, where)
        channel: object = self._channels.get(message.at.channel)
        if not isinstance(channel, CanDelete):
            raise ToolCallRefused(f"{self._platform_name(message.at)} lets nobody delete: what was said stays.")
        for target in reversed(_require_ids(message)):  # if that breaks off, what is left is a beginning
            fact = _build_acted("delete", message.at, target, "", where)
            await self._perform(fact, self._delete_call(channel, message.at, target))
        return "It is gone there. What you are shown of this conversation still has it."

    @staticmethod
    def _delete_call(channel: CanDelete, at: Address, target: MessageId) -> Callable[[], Awaitable[None]]:
        return lambda: channel.delete(at, target)

    async def set_topic(self, asked: rooms.SetTopicArgs, where: ToolContext) -> str:
        """Change the topic of the room where the turn is. Raises Refused."""
        at, topic = where.at, to_single_line(asked.topic, rooms.MAX_TOPIC_CHARS)
        if is_inner(at.conversation) or await self._privacy.is_direct(at.conversation) is not False:
            raise ToolCallRefused("Only a room has a topic, and only the one that you are in can be given another.")
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, CanSetTopic):
            raise ToolCallRefused(f"{self._platform_name(at)} has no topics that you could change.")
        fact = _build_acted("topic", at, None, topic, where)
        await self._perform(fact, lambda: channel.set_topic(at, topic))
        return "That is the topic now."

    def _platform_name(self, at: Address) -> str:
        channel = self._channels.get(at.channel)
        return channel.capabilities.platform if channel is not None else "This platform"

    async def _find_reachable(self, message: str, where: ToolContext) -> MessageTarget:
        found = await self._message_finder.find(message, where)
        if found.at != where.at:
            await self._resolve_reachable(found.at.conversation, where)
        return found

    async def _find_own(self, message: str, where: ToolContext) -> MessageTarget:
        found = await self._find_reachable(message, where)
        if found.agent not in ("", where.agent):
            raise ToolCallRefused("That is somebody else's message: only your own can be changed.")
        return found

    async def _perform(self, fact: PlatformAction, does: Callable[[], Awaitable[None]]) -> None:
        """Do it, between two facts. Raises Refused. Cancelled in between, it may have been done: so the log says."""
        await self._record(fact)
        try:
            await does()
        except Uncertain as error:
            raise ToolCallRefused(f"It may or may not have been done: {_clean_reason(error)}.") from None
        except SendError as error:
            await self._record(replace(fact, state="failed", reason=_clean_reason(error)))
            later = f" Try again in {error.retry_after_s:.0f} s." if isinstance(error, RateLimited) else ""
            raise ToolCallRefused(f"It was not done: {_clean_reason(error)}.{later}") from None
        await self._record(replace(fact, state="done"))
        logger.info("%s: %s in %s", fact.turn, fact.what, fact.at.conversation)

    async def _record(self, fact: PlatformAction) -> None:
        place: ConversationId = fact.at.conversation
        await self._store.append([NewEntry(fact=fact, at=self._clock.now(), conversation=place)])


def _build_acted(
    what: PlatformActionKind, at: Address, message: MessageId | None, text: str, where: ToolContext
) -> PlatformAction:
    return PlatformAction(
        turn=where.turn, agent=where.agent, what=what, at=at, message=message, text=text, state="begun"
    )


def _require_ids(message: MessageTarget) -> tuple[MessageId, ...]:
    if not message.ids:
        raise ToolCallRefused("The platform did not say what it calls that message, so nothing can be done to it.")
    return message.ids


def _clean_reason(error: SendError) -> str:
    return to_single_line(error.reason[: 2 * MAX_REASON_CHARS], MAX_REASON_CHARS).rstrip(".")
