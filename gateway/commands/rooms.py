"""Commands about rooms: `rooms`, `join`, `part`, and `say`, with which admins post elsewhere in the agent's name."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.access.approval_texts import PLACE_CHARS, inline_code
from gateway.access.policy import decide, is_room_allowed
from gateway.access.texts import format_room
from gateway.commands.context import (
    CommandCall,
    CommandContext,
    CommandFollowUp,
    CommandHandler,
    CommandReply,
    RoomNotFound,
    follow_up_key,
    resolve_room,
)
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, ConversationId, Message, Post, PostKey, Usage
from gateway.core.facts import CodeIssued, PostQueued, RoomAccessChanged, Seq, TurnId, TurnRecord
from gateway.core.identity import ANY_ROOM, ROLE_ORDER, AccessPolicy
from gateway.runtime.rewind import LOCK_TIMEOUT_S
from gateway.store import AppendResult, StoreReader
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.attention import ListenMode
from gateway.stream.place_names import PlaceTitles
from gateway.stream.rooms import RoomAction, RoomMembership
from gateway.stream.routing import Bindings, PrivacyCache
from gateway.tools.platform import ConversationLocks

BUSY = "A turn is under way there just now. Say it again in a moment."


class SayCommand:
    """Handler of `say`."""

    def __init__(
        self,
        *,
        policy: AccessPolicy,
        bindings: Bindings,
        places: PrivacyCache,
        channels: Collection[ChannelName],
        locks: ConversationLocks,
        forget: Callable[[ConversationId], None],
        rooms: Callable[[], Awaitable[Sequence[Address]]],
        inside: Callable[[Address], bool | None] = lambda _: None,
    ) -> None:
        """`rooms`: rooms known by name. `inside`: whether the bot is in a room; None: the platform does not say.

        `forget` is called with a place whose view has grown.
        """
        self._policy, self._bindings, self._places = policy, bindings, places
        self._channels, self._locks, self._forget = channels, locks, forget
        self._rooms, self._inside = rooms, inside

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by command name."""
        return {"say": self.say}

    async def say(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """Post the text there. It is recorded as a turn of that room, so its agent knows of it."""
        try:
            to = resolve_room(
                call.arguments["room"],
                call.command.at.channel,
                self._channels,
                await self._rooms(),
                self._places.titles,
            )
        except RoomNotFound as no:
            return CommandReply(text=str(no), ok=False)
        name, text = inline_code(to.conversation, PLACE_CHARS), call.arguments["text"].strip()
        if not text:
            return CommandReply(text="Write what I am to say.", ok=False)
        newest = await self._places.newest_message(to.conversation)
        alone = newest is not None and newest.kind == "direct"
        if not (self._may_write_to(newest) if newest is not None and alone else is_room_allowed(self._policy, to)):
            return CommandReply(text=f"I may not speak in {name}: it is no room that is open to me.", ok=False)
        if not alone and self._inside(to) is False:
            text = f"I am not in {name}: `{context.prefixes[call.command.at.channel]}join` takes me there."
            return CommandReply(text=text, ok=False)
        lock = self._locks.lock_for(to.conversation)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await lock.acquire()
        except TimeoutError:
            return CommandReply(text=BUSY, ok=False)
        facts = _SayFacts(follow_up_key(call.command, "said"), to, text, self._bindings.find(to).agent)
        words = f"I say it in {name}."

        def settle(appended: AppendResult | None) -> None:
            lock.release()
            if appended is not None and appended.is_new:
                self._forget(to.conversation)

        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=facts.facts, settle=settle))

    def _may_write_to(self, message: Message) -> bool:
        """Return whether the sender of this direct message has a role."""
        decided = decide(self._policy, message)
        return decided.allowed and ROLE_ORDER.index(decided.role) >= ROLE_ORDER.index("member")


class _SayFacts:
    """Facts of a post by `say`."""

    def __init__(self, key: PostKey, to: Address, text: str, agent: str) -> None:
        """`agent`: agent of the room. Empty: none, so no turn is recorded."""
        self.key = key
        post = EffectFact(PostQueued(post=Post(key=key, to=to, text=text)), to.conversation, f"post:{key}")
        turn = TurnRecord(
            turn=TurnId(key),
            covers=(),
            omitted=0,
            heard="",
            upto=Seq(0),
            outcome="replied",
            text=text,
            reason="",
            model="",
            usage=Usage(),
            requests=0,
            autonomous=False,
            agent=agent,
        )
        known = (EffectFact(turn, to.conversation, f"turn:{key}"),) if agent else ()
        self.facts: tuple[EffectFact, ...] = (*known, post)


MAX_ROOMS = 200
"""Most rooms listed by name."""


@dataclass(frozen=True, slots=True)
class _KnownRoom:
    """One line of the list."""

    at: Address
    reason: str
    """Reason why it is open, or that it waits."""
    title: str = ""
    """Its own title. Untrusted."""


class RoomCommands:
    """Handlers of `rooms`, `join` and `part`."""

    def __init__(
        self,
        *,
        reader: StoreReader,
        clock: Clock,
        policy: AccessPolicy,
        bindings: Bindings,
        channels: Collection[ChannelName],
        membership: RoomMembership,
        follow_up: CommandFollowUp,
        titles: PlaceTitles | None = None,
    ) -> None:
        """`channels`: all that exist. `titles`: titles of places. None: rooms have only ids."""
        self._titles = titles
        self._reader, self._clock, self._policy, self._bindings = reader, clock, policy, bindings
        self._channels, self._membership, self._follow_up = channels, membership, follow_up

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by command name."""
        return {"rooms": self.rooms, "join": self.join, "part": self.part}

    async def rooms(self, _call: CommandCall, _context: CommandContext) -> CommandReply:
        """List every room that is open, or waits for approval."""
        found = await self._find_known()
        lines = [self._format_room(room) for room in found[:MAX_ROOMS]]
        lines += [f"- {inline_code(name)}: any room is open." for name in self._find_open_channels()]
        lines += [f"- and {len(found) - MAX_ROOMS} more."] if len(found) > MAX_ROOMS else []
        return CommandReply(text="\n".join(lines) or "No room is open to me, and none waits to be opened.")

    async def join(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """Join a room that is open."""
        prefix = context.prefixes[call.command.at.channel]
        try:
            at = await self._resolve(call.arguments["room"], call)
        except RoomNotFound as no:
            return CommandReply(text=str(no), ok=False)
        name = inline_code(at.conversation, PLACE_CHARS)
        if not self._membership.can_join(at.channel):
            text = f"People add a bot to rooms there: add me to it, and `{prefix}room approve` opens it."
            return CommandReply(text=text, ok=False)
        if not is_room_allowed(self._policy, at):
            text = f"{name} is not open to me. An admin opens it by `{prefix}room approve`, or the operator lists it."
            return CommandReply(text=text, ok=False)
        if self._membership.is_inside(at) and not self._membership.was_sent_out(at):
            return CommandReply(text=f"I am in {name} already.")
        words = f"I enter {name}. If I cannot, I say so here."
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, settle=lambda appended: self._begin_travel(call, at, "enter", appended)),
        )

    async def part(self, call: CommandCall, context: CommandContext) -> CommandReply:
        """Leave a room, and stay out of it."""
        command, prefix = call.command, context.prefixes[call.command.at.channel]
        written = call.arguments.get("room", "")
        if not written and command.direct:
            return CommandReply(text="We are alone here: name the room that I am to leave.", ok=False)
        try:
            at = await self._resolve(written, call) if written else command.at
        except RoomNotFound as no:
            return CommandReply(text=str(no), ok=False)
        name = inline_code(at.conversation, PLACE_CHARS)
        if not self._membership.can_leave(at.channel):
            return CommandReply(text="Rooms are not left there.", ok=False)
        if self._membership.is_inside(at) is False and self._membership.was_sent_out(at):
            return CommandReply(text=f"I am not in {name}.")
        words = f"I leave {name}, and stay out until `{prefix}join` or until I am started anew."
        return CommandReply(
            text=words,
            effect=CommandEffect(answer=words, settle=lambda appended: self._begin_travel(call, at, "leave", appended)),
        )

    def _begin_travel(self, call: CommandCall, at: Address, way: RoomAction, appended: AppendResult | None) -> None:
        if appended is None or not appended.is_new:
            return

        async def on_failure(reason: str) -> None:
            words = f"I cannot {way} {inline_code(at.conversation, PLACE_CHARS)}: {inline_code(reason, PLACE_CHARS)}."
            await self._follow_up.send(call.command, appended.seq, words, private=False)

        self._membership.start(way, at, on_failure)

    async def _resolve(self, written: str, call: CommandCall) -> Address:
        """Raises `RoomNotFound`."""
        return resolve_room(written, call.command.at.channel, self._channels, await self.known_rooms(), self._titles)

    async def known_rooms(self) -> list[Address]:
        """Return every room that is known by name, sorted."""
        return [room.at for room in await self._find_known()]

    async def _find_known(self) -> list[_KnownRoom]:
        """Return the configured, the approved and the waiting rooms; each once, sorted by name."""
        found: dict[Address, _KnownRoom] = {}
        for channel, rooms in self._policy.open_rooms.items():
            for name in rooms - {ANY_ROOM}:
                at = Address(channel=channel, room=name)
                found[at] = _KnownRoom(at, "configured")
        about = {
            one.fact.room: one.fact
            for one in await self._reader.current_facts("room_opened")
            if isinstance(one.fact, RoomAccessChanged)
        }
        for conversation in self._policy.roster_state().rooms:
            at = Address.parse(conversation)
            opened = about.get(at)
            found.setdefault(at, _KnownRoom(at, "approved", opened.about if opened else ""))
        now = self._clock.now()
        for one in await self._reader.current_facts("code_given"):
            if isinstance(one.fact, CodeIssued) and one.fact.room is not None and one.fact.until > now:
                found.setdefault(one.fact.room, _KnownRoom(one.fact.room, "waits to be approved", one.fact.about))
        return sorted(found.values(), key=lambda room: room.at.conversation)

    def _find_open_channels(self) -> list[ChannelName]:
        return sorted(channel for channel, rooms in self._policy.open_rooms.items() if ANY_ROOM in rooms)

    def _format_room(self, room: _KnownRoom) -> str:
        at, bound = room.at, self._bindings.find(room.at)
        inside = "stays out" if self._membership.was_sent_out(at) else _PRESENCE_WORDS[self._membership.is_inside(at)]
        agent = f"agent {inline_code(bound.agent)}" if bound.agent else "nobody's"
        words = [room.reason, inside, _LISTEN_WORDS[bound.listen], agent, "private" if bound.private else ""]
        return f"- {format_room(at.conversation, room.title)}: {', '.join(filter(None, words))}"


_LISTEN_WORDS: Mapping[ListenMode, str] = {
    "off": "listens to nothing",
    "mention": "listens to mentions",
    "ambient": "listens to mentions, and reads the rest",
    "all": "listens to all",
}
_PRESENCE_WORDS = {True: "in it", False: "not in it", None: ""}
