"""The one way in: events become durable, are judged, and what is due reaches the inbox."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.signals import Level
from gateway import access, attention, exchanges
from gateway.attention import Listen
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.commands.desk import Desk, Handled
from gateway.events import (
    Address,
    ChannelName,
    Command,
    ConversationId,
    Link,
    Membership,
    Message,
    Notification,
    Reacted,
)
from gateway.exchanges import LOOK_BACK, Exchanges
from gateway.inbox import Arrival
from gateway.ops.stats import Stats
from gateway.records import MESSAGES, CursorMoved, Judged, Queued, address_of, inner, key_of
from gateway.salience import Salient
from gateway.store import Appended, Entry, OutboxPost, Store

logger = logging.getLogger("reverie.intake")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Where an event goes once it is durable. Each is called on the event loop, and returns at once."""

    arrived: Callable[[Arrival], None]
    """Something is due."""
    link: Callable[[ChannelName, bool], None]
    """A channel came up (True) or went down."""
    post: Callable[[OutboxPost], None]
    """An answer is to be delivered."""
    join: Callable[[Address], None]
    """Somebody who may has invited us there."""
    heard: Callable[[Message, access.Role], None] = lambda _message, _role: None
    """Somebody who may be heard said something, and has this role."""
    level: Callable[[], Level] = lambda: "present"
    """How near people are: asked as each event comes in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    event: Notification
    handled: Handled
    conversation: ConversationId | None
    """Where it is unread, if it is due; else where it happened."""
    entries: tuple[Entry, ...]
    """The event, its judgement, what it changes, and the answer if there is one."""


class Intake:
    """What channels are handed as `Emit`, one for each."""

    def __init__(
        self,
        channel: ChannelName,
        *,
        store: Store,
        clock: Clock,
        access_policy: access.Policy,
        attention_policy: attention.Policy,
        bindings: Bindings,
        desk: Desk,
        max_bot_exchanges: int,
        stats: Stats,
        doors: Doors,
    ) -> None:
        """Everything that it is handed is shared by the intakes of all channels."""
        self._channel = channel
        self._store = store
        self._clock = clock
        self._access = access_policy
        self._attention = attention_policy
        self._bindings = bindings
        self._desk = desk
        self._max_bot_exchanges = max_bot_exchanges
        self._exchanges = Exchanges()
        self._salient = Salient(attention_policy.salience)
        self._up: bool | None = None
        """As the newest link says. None: nobody asked yet."""
        self._stats = stats
        self._doors = doors

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Make a batch durable with what is decided about it, in one transaction. See `channels.base.Emit`.

        A command that changes something ends a transaction, for what comes behind it is decided by what then holds;
        the cursor moves in the last one.
        """
        taken = list[_Taken]()
        for event in batch:
            taken.append(await self._take(event))
            if taken[-1].handled.change is not None:
                await self._write(taken)
                taken = []
        await self._write(taken, cursor)

    async def _write(self, taken: Sequence[_Taken], cursor: str | None = None) -> None:
        """One transaction, and what follows from it. At most the last one changes something."""
        entries = [entry for one in taken for entry in one.entries]
        if cursor is not None:
            entries.append(Entry(fact=CursorMoved(channel=self._channel, value=cursor), at=self._clock.now()))
        written = dict[int, Appended]()
        try:
            written = dict(zip(map(id, entries), await self._store.append(entries), strict=True))
        finally:
            for one in taken:
                if one.handled.change is not None:
                    one.handled.change.settle(written.get(id(one.entries[0])))
        fresh = [one for one in taken if written[id(one.entries[0])].fresh]
        self._stats.took(self._channel, (one.event for one in fresh), self._clock.now())
        for one in fresh:
            self._announce(one)
            if one.handled.post is not None:
                seq, at = written[id(one.entries[-1])].seq, one.entries[-1].at
                self._doors.post(OutboxPost(seq=seq, at=at, post=one.handled.post, parts=()))

    async def _take(self, event: Notification) -> _Taken:
        """Decide about one event, and make what is to be written of it."""
        if isinstance(event, Message):
            event = await self._desk.command(event, self._listen(event)) or event
        if isinstance(event, Command):
            handled = await self._desk.handle(event)
        elif isinstance(event, Message):
            handled = Handled(judged=await self._judge_message(event))
        else:
            handled = Handled(judged=self._judge(event))
        at = address_of(event)
        place = at.conversation if at is not None else None
        if isinstance(event, Link):
            handled, place = await self._linked(event, handled.judged)
        elif isinstance(event, Reacted):
            handled = await self._reacted(event, handled.judged)
        now = self._clock.now()
        noticed = Entry(fact=event, at=now, conversation=place, key=key_of(event))
        entries = [noticed, Entry(fact=handled.judged, at=now, conversation=place, cause=noticed)]
        for number, fact in enumerate(handled.change.facts if handled.change is not None else ()):
            key = f"changed:{key_of(event)}:{number}"
            entries.append(Entry(fact=fact, at=now, conversation=place, key=key, cause=noticed))
        if handled.post is not None:
            queued = Queued(post=handled.post)
            key = f"post:{handled.post.key}"
            entries.append(Entry(fact=queued, at=now, conversation=place, key=key, cause=noticed))
        return _Taken(event=event, handled=handled, conversation=place, entries=tuple(entries))

    async def _linked(self, link: Link, judged: Judged) -> tuple[Handled, ConversationId | None]:
        """A link that came up or went down is told to whose account it is. What only says so again is noted."""
        if self._up is None:
            self._up = next((one.up for one in await self._store.links() if one.channel == link.channel), True)
        news, self._up = link.up != self._up, link.up
        if judged.fate not in ("due", "context"):
            return Handled(judged=judged), None
        agent = self._bindings.agent_of(link.channel)
        if news and agent:
            return Handled(judged=judged), inner(agent)
        rule = "no agent is bound to this account" if news else "it was known"
        return Handled(judged=replace(judged, fate="noted", rule=rule)), None

    async def _reacted(self, reaction: Reacted, judged: Judged) -> Handled:
        """A reaction is told if it is to something that the agent said: one look into an index tells."""
        if judged.fate in ("due", "context"):
            ours = await self._store.ours(reaction.at.conversation, reaction.message)
            if ours is None:
                judged = replace(judged, fate="noted", rule="a reaction to what somebody else said")
        return Handled(judged=judged)

    def _listen(self, event: Notification) -> Listen:
        place = address_of(event)
        return "all" if place is None else self._bindings.of(place).listen

    def _judge(self, event: Notification) -> Judged:
        decision = access.decide(self._access, event)
        return attention.judge(self._attention, event, decision, self._listen(event), level=self._doors.level())

    async def _judge_message(self, message: Message) -> Judged:
        """As policy says, unless two bots have been talking for too long.

        A repeat counts again: at worst such a talk ends, or a person is taken to have spoken, one message late.
        """
        decision, level = access.decide(self._access, message), self._doors.level()
        judged = attention.judge(self._attention, message, decision, self._listen(message), self._lift, level=level)
        conversation = message.at.conversation
        if message.sender.is_bot and judged.fate != "due":
            return judged
        before = self._exchanges.get(conversation)
        if before is None and message.sender.is_bot:
            said = (
                entry.fact for entry in await self._store.newest(LOOK_BACK, kinds=MESSAGES, conversation=conversation)
            )
            before = exchanges.recount((one for one in said if isinstance(one, Message)), self._judge)
        now = exchanges.count(before or 0, message, judged)
        self._exchanges.keep(conversation, now)
        return exchanges.broken(judged, now, self._max_bot_exchanges)

    def _lift(self, message: Message) -> str | None:
        return self._salient.lift(message, self._clock.now())

    def _announce(self, one: _Taken) -> None:
        event, judged, place = one.event, one.handled.judged, one.conversation
        if isinstance(event, Link):
            reason = f": {event.reason}" if event.reason else ""
            logger.info("%s is %s%s", event.channel, "up" if event.up else "down", reason)
            self._doors.link(event.channel, event.up)
        if judged.fate == "refused":
            logger.info("refused %s: %s", judged.type, judged.rule)
            return
        if isinstance(event, Message):
            self._doors.heard(event, self._role(event))
        if isinstance(event, Membership) and event.change == "invite":
            self._doors.join(event.at)
        elif place is not None and judged.fate == "due" and not isinstance(event, Reacted):
            self._doors.arrived(
                Arrival(
                    conversation=place,
                    urgency=judged.urgency,
                    type=judged.type,
                    direct=_is_direct(event),
                    talk=event.kind == "room",
                    trusted=judged.role in ("owner", "admin"),
                )
            )

    def _role(self, message: Message) -> access.Role:
        return access.role_of(self._access, message.at.channel, message.sender)


def _is_direct(event: Notification) -> bool | None:
    """Whether it came in a direct chat. None: it does not tell."""
    if isinstance(event, Message):
        # What is said in a direct chat is `direct`, whatever else it is.
        return event.kind == "direct"
    return getattr(event, "direct", None)
