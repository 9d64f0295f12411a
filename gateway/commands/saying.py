"""The command by which admins speak elsewhere in the agent's name."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from gateway import access
from gateway.acting import Rooms
from gateway.bindings import Bindings
from gateway.changes import Change, Made
from gateway.commands.finding import NoRoom, find
from gateway.commands.later import key
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address, ChannelName, ConversationId, Message, Post, PostKey, Usage
from gateway.places import Places
from gateway.records import Queued, Seq, TurnEnded, TurnId
from gateway.rewinds import FREE_S
from gateway.standing import RANKS
from gateway.store import Appended, OutboxPost, Reader
from gateway.tools.consent import PLACE_CHARS, code

BUSY = "A turn is under way there just now. Say it again in a moment."


class Saying:
    """`say`."""

    def __init__(
        self,
        *,
        reader: Reader,
        who: access.Policy,
        bindings: Bindings,
        places: Places,
        channels: Collection[ChannelName],
        doors: Rooms,
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
    def handlers(self) -> Mapping[str, Handler]:
        """By the names of the table."""
        return {"say": self.say}

    async def say(self, ask: Ask, world: World) -> Answer:
        """Say it there: what was said is a turn of that room, so the agent there knows of it."""
        try:
            to = find(
                ask.arguments["room"], ask.command.at.channel, self._channels, await self._rooms(), self._places.titles
            )
        except NoRoom as no:
            return Answer(text=str(no), ok=False)
        name, text = code(to.conversation, PLACE_CHARS), ask.arguments["text"].strip()
        if not text:
            return Answer(text="Write what I am to say.", ok=False)
        newest = await self._places.newest_message(to.conversation)
        alone = newest is not None and newest.kind == "direct"
        if not (self._may_write_to(newest) if newest is not None and alone else access.listed(self._who, to)):
            return Answer(text=f"I may not speak in {name}: it is no room that is open to me.", ok=False)
        if not alone and self._inside(to) is False:
            text = f"I am not in {name}: `{world.prefixes[ask.command.at.channel]}join` takes me there."
            return Answer(text=text, ok=False)
        door = self._doors.lock_for(to.conversation)
        try:
            async with asyncio.timeout(FREE_S):
                await door.acquire()
        except TimeoutError:
            return Answer(text=BUSY, ok=False)
        said = _Said(key(ask.command, "said"), to, text, self._bindings.find(to).agent)
        words = f"I say it in {name}."

        def settle(asked: Appended | None) -> None:
            door.release()
            if asked is not None and asked.is_new:
                self._forget(to.conversation)
                self._spawn(self._post_stored(said.key))

        return Answer(text=words, effect=Change(answer=words, facts=said.facts, settle=settle))

    def _may_write_to(self, said: Message) -> bool:
        """Whether whoever said that directly has a role."""
        decided = access.decide(self._who, said)
        return decided.allowed and RANKS.index(decided.role) >= RANKS.index("member")

    async def _post_stored(self, post: PostKey) -> None:
        queued = await self._reader.entry_by_key(f"post:{post}")
        assert queued is not None
        assert isinstance(queued.fact, Queued)
        self._post(OutboxPost(seq=queued.seq, at=queued.at, post=queued.fact.post, parts=()))


class _Said:
    """What becomes durable of it."""

    def __init__(self, key: PostKey, to: Address, text: str, agent: str) -> None:
        """`agent`: whose room it is. Empty: nobody's, so nobody is to know of it."""
        self.key = key
        post = Made(Queued(post=Post(key=key, to=to, text=text)), to.conversation, f"post:{key}")
        turn = TurnEnded(
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
        known = (Made(turn, to.conversation, f"turn:{key}"),) if agent else ()
        self.facts: tuple[Made, ...] = (*known, post)
