"""The command by which admins speak elsewhere in the agent's name."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from gateway import access
from gateway.acting import ConversationLocks
from gateway.bindings import Bindings
from gateway.changes import CommandEffect, EffectFact
from gateway.commands.finding import RoomNotFound, resolve_room
from gateway.commands.later import follow_up_key
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import Address, ChannelName, ConversationId, Message, Post, PostKey, Usage
from gateway.places import PrivacyCache
from gateway.records import PostQueued, Seq, TurnId, TurnRecord
from gateway.rewinds import LOCK_TIMEOUT_S
from gateway.standing import ROLE_ORDER, AccessPolicy
from gateway.store import AppendResult, OutboxPost, StoreReader
from gateway.tools.consent import PLACE_CHARS, inline_code

BUSY = "A turn is under way there just now. Say it again in a moment."


class SayCommand:
    """`say`."""

    def __init__(
        self,
        *,
        reader: StoreReader,
        who: AccessPolicy,
        bindings: Bindings,
        places: PrivacyCache,
        channels: Collection[ChannelName],
        doors: ConversationLocks,
        forget: Callable[[ConversationId], None],
        post: Callable[[OutboxPost], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        rooms: Callable[[], Awaitable[Sequence[Address]]],
        inside: Callable[[Address], bool | None] = lambda _: None,
    ) -> None:
        """`rooms`: those that are known by name. `inside`: whether we are in one; None: the platform does not tell.

        `forget` is called with a place whose view has grown.
        `post` is called with what is said, after it is durable. `spawn` starts a task whose failure stops the gateway.
        """
        self._reader, self._who, self._bindings, self._places = reader, who, bindings, places
        self._channels, self._doors, self._forget = channels, doors, forget
        self._post, self._spawn, self._rooms, self._inside = post, spawn, rooms, inside

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of the table."""
        return {"say": self.say}

    async def say(self, ask: CommandCall, world: CommandContext) -> CommandReply:
        """Say it there: what was said is a turn of that room, so the agent there knows of it."""
        try:
            to = resolve_room(
                ask.arguments["room"], ask.command.at.channel, self._channels, await self._rooms(), self._places.titles
            )
        except RoomNotFound as no:
            return CommandReply(text=str(no), ok=False)
        name, text = inline_code(to.conversation, PLACE_CHARS), ask.arguments["text"].strip()
        if not text:
            return CommandReply(text="Write what I am to say.", ok=False)
        newest = await self._places.newest_message(to.conversation)
        alone = newest is not None and newest.kind == "direct"
        if not (self._may_write_to(newest) if newest is not None and alone else access.is_room_allowed(self._who, to)):
            return CommandReply(text=f"I may not speak in {name}: it is no room that is open to me.", ok=False)
        if not alone and self._inside(to) is False:
            text = f"I am not in {name}: `{world.prefixes[ask.command.at.channel]}join` takes me there."
            return CommandReply(text=text, ok=False)
        door = self._doors.lock_for(to.conversation)
        try:
            async with asyncio.timeout(LOCK_TIMEOUT_S):
                await door.acquire()
        except TimeoutError:
            return CommandReply(text=BUSY, ok=False)
        said = _SayFacts(follow_up_key(ask.command, "said"), to, text, self._bindings.find(to).agent)
        words = f"I say it in {name}."

        def settle(asked: AppendResult | None) -> None:
            door.release()
            if asked is not None and asked.is_new:
                self._forget(to.conversation)
                self._spawn(self._post_stored(said.key))

        return CommandReply(text=words, effect=CommandEffect(answer=words, facts=said.facts, settle=settle))

    def _may_write_to(self, said: Message) -> bool:
        """Whether whoever said that directly has a role."""
        decided = access.decide(self._who, said)
        return decided.allowed and ROLE_ORDER.index(decided.role) >= ROLE_ORDER.index("member")

    async def _post_stored(self, post: PostKey) -> None:
        queued = await self._reader.entry_by_key(f"post:{post}")
        assert queued is not None
        assert isinstance(queued.fact, PostQueued)
        self._post(OutboxPost(seq=queued.seq, at=queued.at, post=queued.fact.post, parts=()))


class _SayFacts:
    """What becomes durable of it."""

    def __init__(self, key: PostKey, to: Address, text: str, agent: str) -> None:
        """`agent`: whose room it is. Empty: nobody's, so nobody is to know of it."""
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
