"""What the agent does in other places than the one it is in: it speaks there, or puts away what is pending.

What it says is written down as a turn of that place, in one transaction with its post and with what it deals with
there: so that place's own view has it, and nothing is answered twice.
"""

import asyncio
from collections.abc import Callable, Collection
from weakref import WeakValueDictionary

from agent.tools.mind import MarkHandledArgs, SendMessageArgs
from agent.tools.schema import ToolCallRefused
from gateway import access
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.digest import DigestBuilder, RoomDigest
from gateway.events import Address, ChannelName, ConversationId, Message, Post, PostKey, Usage
from gateway.fitting import RenderedInput
from gateway.hands import ToolContext
from gateway.ids import new_id
from gateway.labels import role_rank
from gateway.places import PrivacyCache
from gateway.records import PostQueued, Seq, TurnId, TurnRecord, UnreadDismissed, is_inner
from gateway.standing import ANY_ROOM, AccessPolicy, role_of
from gateway.store import NewEntry, OutboxPost, Store

MAX_PLACES = 20
"""Told of by name."""


class ConversationLocks:
    """One turn at a time in a place, also of those that come from elsewhere."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[ConversationId, asyncio.Lock] = WeakValueDictionary()

    def lock_for(self, conversation: ConversationId) -> asyncio.Lock:
        """Held while a turn runs there."""
        lock = self._locks.get(conversation)
        if lock is None:
            self._locks[conversation] = lock = asyncio.Lock()
        return lock

    def is_busy(self, conversation: ConversationId) -> bool:
        """Whether a turn runs there."""
        lock = self._locks.get(conversation)
        return lock is not None and lock.locked()


class MessagingTools:
    """The hands of one agent, as far as they reach."""

    def __init__(
        self,
        *,
        agent: str,
        store: Store,
        clock: Clock,
        bindings: Bindings,
        places: PrivacyCache,
        who: AccessPolicy,
        channels: Collection[ChannelName],
        doors: ConversationLocks,
        digests: DigestBuilder,
        post: Callable[[OutboxPost], None],
        forget: Callable[[ConversationId], None],
    ) -> None:
        """`post` is called with what is said, after it is durable; `forget` with a place whose view has grown."""
        self._agent = agent
        self._store = store
        self._clock = clock
        self._bindings = bindings
        self._privacy = places
        self._access_policy = who
        self._channels = channels
        self._locks = doors
        self._digests = digests
        self._post = post
        self._forget_view = forget

    async def send_message(self, asked: SendMessageArgs, where: ToolContext) -> str:
        """Say something there. Raises Refused."""
        if not asked.text.strip():
            raise ToolCallRefused("A message needs text.")
        to = await self.resolve_reachable(asked.address, where, approved=True)
        place = to.conversation
        door = self._locks.lock_for(place)
        if door.locked():
            raise ToolCallRefused(
                "A turn is under way there just now, which is told what is pending. Leave it to that."
            )
        async with door:
            shown = self._digests.room_digests.pop(place, None) if is_inner(where.at.conversation) else None
            await self._post_turn(to, asked.text, shown, where)
        return "It is posted."

    async def _post_turn(self, to: Address, text: str, shown: RoomDigest | None, where: ToolContext) -> None:
        now, told = self._clock.now(), shown.rendered if shown is not None else RenderedInput()
        turn = TurnId(new_id(now))
        record = NewEntry(
            fact=TurnRecord(
                turn=turn,
                covers=told.covers,
                omitted=shown.omitted if shown is not None else 0,
                heard=told.text,
                upto=shown.upto if shown is not None else Seq(0),
                outcome="replied",
                text=text,
                reason="",
                model="",
                usage=Usage(),
                requests=0,
                autonomous=True,
                agent=self._agent,
                senders=told.senders,
                cause="digest",
                within=where.turn,
                foreign=where.trust.foreign,
                least_role=where.trust.role,
            ),
            at=now,
            conversation=to.conversation,
            key=f"turn:{turn}",
        )
        post = Post(key=PostKey(turn), to=to, text=text, reply_to=shown.reply_to if shown is not None else None)
        queued = NewEntry(
            fact=PostQueued(post=post), at=now, conversation=to.conversation, key=f"post:{post.key}", cause=record
        )
        _, waiting = await self._store.append([record, queued])
        self._forget_view(to.conversation)
        self._post(OutboxPost(seq=waiting.seq, at=now, post=post, parts=()))

    async def mark_handled(self, asked: MarkHandledArgs, where: ToolContext) -> str:
        """Put away what the newest digest showed of a place. Raises Refused."""
        if not is_inner(where.at.conversation):
            raise ToolCallRefused("Only what you are shown when you are by yourself can be put away.")
        shown = self._digests.room_digests
        found = [at.conversation for at in self._privacy.titles.find_places(asked.address) if at.conversation in shown]
        if len(found) != 1:
            named = ", ".join(map(self._privacy.titles.label, shown))
            raise ToolCallRefused(f"Nothing is pending there. You were shown: {named or 'no place'}.")
        place = found[0]
        door = self._locks.lock_for(place)
        if door.locked():
            raise ToolCallRefused("A turn is under way there just now, which deals with it.")
        async with door:
            handled = UnreadDismissed(turn=where.turn, upto=shown.pop(place).upto)
            await self._store.append([NewEntry(fact=handled, at=self._clock.now(), conversation=place)])
        return "It is put away."

    async def risk(self, asked: SendMessageArgs, where: ToolContext) -> str:
        """Why an admin has to approve that something is said there, for people. Empty: nobody has to.

        By itself the agent answers where it was shown that something is pending. What anybody else's words have it say
        elsewhere, or what it was told in private, is for an admin to allow.
        """
        try:
            to = await self.resolve_reachable(asked.address, where, approved=True)
        except ToolCallRefused:  # as its tool says then
            return ""
        return self._foreign_influence(to.conversation, where)

    def _foreign_influence(self, place: ConversationId, where: ToolContext) -> str:
        seen = where.trust.label
        trusted = not seen.foreign and role_rank(seen.role) >= role_rank("admin")
        if trusted or (is_inner(where.at.conversation) and place in self._digests.room_ids):
            return ""
        others = f"text from outside, by {seen.foreign}, is" if seen.foreign else f"words of a {seen.role} are"
        return f"it is done in another place, and {others} in view here, whose idea it may be"

    async def resolve_reachable(self, address: str, where: ToolContext, *, approved: bool = False) -> Address:
        """Another place, where the agent may act from here. Raises Refused. `approved`: `risk` was asked before."""
        if not is_inner(where.at.conversation) and not where.visibility.sees_everything:
            raise ToolCallRefused(
                "From here only an owner alone with you can have you speak elsewhere. Answer here instead."
            )
        to = await self._resolve_place(address)
        if not approved and (why := self._foreign_influence(to.conversation, where)):
            raise ToolCallRefused(f"Nothing is changed there from here: {why}. Say here what you would do.")
        if to == where.at:
            raise ToolCallRefused("You are there: what you write as your answer is posted.")
        if not self._is_bound_here(to):
            raise ToolCallRefused("You do not live there.")
        if not await self._may_speak(to):
            raise ToolCallRefused("You may not speak there unasked.")
        return to

    def _is_bound_here(self, at: Address) -> bool:
        bound = self._bindings.find(at)
        return at.channel in self._channels and bound.agent == self._agent and bound.listen != "off"

    async def _resolve_place(self, written: str) -> Address:
        """The one place that is meant by an address, or by a title that is shown. Raises Refused."""
        titles = self._privacy.titles
        found = titles.find_places(written, self.list_places())
        if len(found) != 1:
            found = [at for at in found if self._is_bound_here(at) and await self._may_speak(at)]
        if not found:
            raise ToolCallRefused("That is no address: write it as it stands above what is pending there.")
        if len(found) > 1:
            named = ", ".join(titles.label(at.conversation) for at in found[:MAX_PLACES])
            raise ToolCallRefused(f"Several places are called so: {named}. Name one by the address in parentheses.")
        return found[0]

    async def _may_speak(self, to: Address) -> bool:
        """A listed room; or the direct chat of an owner or admin."""
        if await self._privacy.is_direct(to.conversation):
            newest = await self._privacy.newest_message(to.conversation)
            return newest is not None and self._is_trusted_sender(newest)
        return access.is_room_allowed(self._access_policy, to)

    def _is_trusted_sender(self, message: Message) -> bool:
        role = role_of(self._access_policy, message.at, message.sender)
        return role in ("owner", "admin") and access.decide(self._access_policy, message).allowed

    def list_places(self) -> list[Address]:
        """The rooms that are listed by name, where the agent may speak by itself."""
        named = [
            Address(channel=channel, room=room)
            for channel, rooms in self._access_policy.open_rooms.items()
            for room in sorted(rooms - {ANY_ROOM})
            if channel in self._channels
        ]
        mine = [at for at in named if self._bindings.find(at).agent == self._agent]
        return [at for at in mine if self._bindings.find(at).listen != "off"][:MAX_PLACES]
