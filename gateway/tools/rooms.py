"""What the agent does on a platform besides posting, carried out.

Before it is done it is written down, and so is what came of it: what has begun and not ended may have been done.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, Literal

from agent.journal import flat
from agent.tools import rooms as specs
from agent.tools.schema import Refused
from channels.base import CanDelete, CanEdit, CanReact, CanSetTopic, Channel, RateLimited, SendError, Uncertain
from gateway import access
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId, MessageId
from gateway.hands import Hand, Whereabouts
from gateway.hearing import Hearing
from gateway.outfiles import OutFiles
from gateway.places import Places
from gateway.records import Acted, is_inner
from gateway.store import Entry, OutboxPost, Store
from gateway.tools.messages import Messages, Pointed
from gateway.tools.permits import ANYBODY, MEMBERS, Permit
from gateway.tools.reading import Describing, Reading
from gateway.tools.sending import Files, Sending

logger = logging.getLogger("reverie.tools")

MAX_REASON_CHARS: Final = 300
SENDING: Final = Permit(role="member", approval="untrusted")
TOPICS: Final = Permit(role="admin", approval="untrusted")

What = Literal["react", "unreact", "edit", "delete", "topic"]
Reach = Callable[[str, Whereabouts], Awaitable[Address]]
"""Another place, where the agent may act from where it is: `gateway.acting.Acting.reachable`. Raises Refused."""


class RoomHands:
    """Of one agent."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        places: Places,
        bindings: Bindings,
        who: access.Policy,
        reach: Reach,
        files: Files,
        outfiles: OutFiles,
        post: Callable[[OutboxPost], None],
    ) -> None:
        """`files`: the agent's. `outfiles`: the outbox's. `post` is called with what is posted, once it is durable."""
        self._store = store
        self._clock = clock
        self._channels = channels
        self._privacy = places
        self._resolve_reachable = reach
        hearing = Hearing(store, who, Describing())
        self._message_finder = Messages(store, places, hearing)
        self._room_reader = Reading(
            reader=store,
            places=places,
            bindings=bindings,
            who=who,
            channels=channels,
            hearing=hearing,
            messages=self._message_finder,
        )
        self._file_sender = Sending(
            store=store, clock=clock, channels=channels, files=files, outfiles=outfiles, post=post
        )

    @property
    def tools(self) -> tuple[Hand, ...]:
        """The tools."""
        return (
            Hand.create(specs.REACT, specs.React, self.react, ANYBODY),
            Hand.create(specs.EDIT_OWN, specs.EditOwn, self.edit_own, MEMBERS),
            Hand.create(specs.DELETE_OWN, specs.DeleteOwn, self.delete_own, MEMBERS),
            Hand.create(specs.READ_ROOM, specs.ReadRoom, self._room_reader.read_room, ANYBODY),
            Hand.create(specs.WHO, specs.Who, self._room_reader.list_people, ANYBODY),
            Hand.create(specs.SET_TOPIC, specs.SetTopic, self.set_topic, TOPICS),
            Hand.create(specs.SEND_FILE, specs.SendFile, self._file_sender.send_file, SENDING),
        )

    async def react(self, asked: specs.React, where: Whereabouts) -> str:
        """Put a reaction on a message, or take it off. Raises Refused."""
        reaction, add = flat(asked.reaction), not asked.remove
        if not reaction:
            raise Refused("A reaction is an emoji.")
        message = await self._find_reachable(asked.message, where)
        channel: object = self._channels.get(message.at.channel)
        if not isinstance(channel, CanReact):
            raise Refused(f"{self._platform_name(message.at)} has no reactions: answer in words.")
        target = _known(message)[0]
        fact = _acted("react" if add else "unreact", message.at, target, reaction, where)
        await self._perform(fact, lambda: channel.react(message.at, target, reaction, add=add))
        return "It is there." if add else "It is taken off."

    async def edit_own(self, asked: specs.EditOwn, where: Whereabouts) -> str:
        """Let a message of this agent read differently. Raises Refused."""
        if not asked.text.strip():
            raise Refused("A message needs text; delete_own takes one back.")
        message = await self._find_own(asked.message, where)
        channel: object = self._channels.get(message.at.channel)
        if not isinstance(channel, CanEdit):
            raise Refused(f"{self._platform_name(message.at)} lets nobody edit: post what is to be corrected.")
        target, *more = _known(message)
        if more:
            raise Refused(
                f"That answer was posted in {len(more) + 1} pieces, which cannot be edited as one: "
                "post what is to be corrected."
            )
        fact = _acted("edit", message.at, target, asked.text, where)
        await self._perform(fact, lambda: channel.edit(message.at, target, asked.text))
        return "It reads like that now. What you are shown of this conversation still has the old words."

    async def delete_own(self, asked: specs.DeleteOwn, where: Whereabouts) -> str:
        """Take back a message of this agent, all pieces of it. Raises Refused."""
        message = await self._find_own(asked.message, where)
        channel: object = self._channels.get(message.at.channel)
        if not isinstance(channel, CanDelete):
            raise Refused(f"{self._platform_name(message.at)} lets nobody delete: what was said stays.")
        for target in reversed(_known(message)):  # if that breaks off, what is left is a beginning
            fact = _acted("delete", message.at, target, "", where)
            await self._perform(fact, self._delete_call(channel, message.at, target))
        return "It is gone there. What you are shown of this conversation still has it."

    @staticmethod
    def _delete_call(channel: CanDelete, at: Address, target: MessageId) -> Callable[[], Awaitable[None]]:
        return lambda: channel.delete(at, target)

    async def set_topic(self, asked: specs.SetTopic, where: Whereabouts) -> str:
        """Change the topic of the room where the turn is. Raises Refused."""
        at, topic = where.at, flat(asked.topic, specs.MAX_TOPIC_CHARS)
        if is_inner(at.conversation) or await self._privacy.is_direct(at.conversation) is not False:
            raise Refused("Only a room has a topic, and only the one that you are in can be given another.")
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, CanSetTopic):
            raise Refused(f"{self._platform_name(at)} has no topics that you could change.")
        fact = _acted("topic", at, None, topic, where)
        await self._perform(fact, lambda: channel.set_topic(at, topic))
        return "That is the topic now."

    def _platform_name(self, at: Address) -> str:
        channel = self._channels.get(at.channel)
        return channel.capabilities.platform if channel is not None else "This platform"

    async def _find_reachable(self, message: str, where: Whereabouts) -> Pointed:
        found = await self._message_finder.find(message, where)
        if found.at != where.at:
            await self._resolve_reachable(found.at.conversation, where)
        return found

    async def _find_own(self, message: str, where: Whereabouts) -> Pointed:
        found = await self._find_reachable(message, where)
        if found.agent not in ("", where.agent):
            raise Refused("That is somebody else's message: only your own can be changed.")
        return found

    async def _perform(self, fact: Acted, does: Callable[[], Awaitable[None]]) -> None:
        """Do it, between two facts. Raises Refused. Cancelled in between, it may have been done: so the log says."""
        await self._record(fact)
        try:
            await does()
        except Uncertain as error:
            raise Refused(f"It may or may not have been done: {_why(error)}.") from None
        except SendError as error:
            await self._record(replace(fact, state="failed", reason=_why(error)))
            later = f" Try again in {error.retry_after_s:.0f} s." if isinstance(error, RateLimited) else ""
            raise Refused(f"It was not done: {_why(error)}.{later}") from None
        await self._record(replace(fact, state="done"))
        logger.info("%s: %s in %s", fact.turn, fact.what, fact.at.conversation)

    async def _record(self, fact: Acted) -> None:
        place: ConversationId = fact.at.conversation
        await self._store.append([Entry(fact=fact, at=self._clock.now(), conversation=place)])


def _acted(what: What, at: Address, message: MessageId | None, text: str, where: Whereabouts) -> Acted:
    return Acted(turn=where.turn, agent=where.agent, what=what, at=at, message=message, text=text, state="begun")


def _known(message: Pointed) -> tuple[MessageId, ...]:
    if not message.ids:
        raise Refused("The platform did not say what it calls that message, so nothing can be done to it.")
    return message.ids


def _why(error: SendError) -> str:
    return flat(error.reason[: 2 * MAX_REASON_CHARS], MAX_REASON_CHARS).rstrip(".")
