"""The one way in: events become durable, are judged, and what is due reaches the inbox."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from channels.tasks import run_to_completion
from gateway.clock import Clock
from gateway.commands.desk import CommandResult
from gateway.correlation import log_context
from gateway.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    ConversationId,
    MembershipChanged,
    Message,
    Notification,
    PlaceNames,
    PlaceRenamed,
    ReactionChanged,
)
from gateway.inbox import ReadyConversation
from gateway.judging import IntakePolicy
from gateway.ops.stats import GatewayStats
from gateway.records import CursorMoved, Fact, PostQueued, dedup_key
from gateway.standing import Role
from gateway.store import AppendResult, NewEntry, OutboxPost, Store
from gateway.titles import PlaceTitles

logger = logging.getLogger("reverie.intake")


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeCallbacks:
    """Where an event goes once it is durable. Each is called on the event loop, and returns at once."""

    on_ready: Callable[[ReadyConversation], None]
    """Something is due."""
    on_link: Callable[[ChannelName, bool], None]
    """What is to be said on a channel may be tried from now on (True), or has to wait."""
    post: Callable[[OutboxPost], None]
    """An answer is to be delivered."""
    join: Callable[[Address], None]
    """Somebody who may has invited us there."""
    on_message: Callable[[Message, Role], None] = lambda _message, _role: None
    """Somebody who may be heard said something, and has this role."""
    find_new_audience: Callable[[Message], Fact | None] = lambda _message: None
    """What is to be written down with a message of who can read it. None: nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecidedEvent:
    event: Notification
    handled: CommandResult
    conversation: ConversationId | None
    """Where it is unread, if it is due; else where it happened."""
    entries: tuple[NewEntry, ...]
    """The event, its judgement, what it changes, and the answer if there is one."""


class Intake:
    """What channels are handed as `Emit`, one for each."""

    def __init__(
        self,
        channel: ChannelName,
        *,
        store: Store,
        clock: Clock,
        judging: IntakePolicy,
        stats: GatewayStats,
        doors: IntakeCallbacks,
        titles: PlaceTitles,
    ) -> None:
        """`judging` is this channel's own; the rest is shared by the intakes of all channels."""
        self._titles = titles
        self._channel = channel
        self._store = store
        self._clock = clock
        self._policy = judging
        self._stats = stats
        self._callbacks = doors

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Make a batch durable with what is decided about it, in one transaction. See `channels.base.Emit`.

        A command that changes something ends a transaction, for what comes behind it is decided by what then holds;
        the cursor moves in the last one. Cancelled, a transaction goes to its end with all that follows from it first:
        the platform tells of it again, and then it is no news.
        """
        taken, named = list[_DecidedEvent](), list[NewEntry]()
        names = dict[ConversationId, PlaceNames]()
        for event in batch:
            with log_context(**_log_context(event)):
                named += await self._build_name_entries(event, names)
                taken.append(await self._decide(event))
            if taken[-1].handled.effect is not None:
                await run_to_completion(self._write(taken, named))
                taken, named, names = [], [], {}
        await run_to_completion(self._write(taken, named, cursor))

    async def _build_name_entries(
        self, event: Notification, written: dict[ConversationId, PlaceNames]
    ) -> list[NewEntry]:
        """What its place is called, where that is new; and the judgement, where it is told as a line."""
        named = await self._titles.find_new_names(event, self._clock.now(), written)
        if named is None:
            return []
        now, place = self._clock.now(), named.at.conversation
        entry = NewEntry(fact=named, at=now, conversation=place, key=dedup_key(named))
        announced = isinstance(event, MembershipChanged) and event.change in ("title", "topic")
        judged = None if announced else self._policy.judge_name(named)
        return [entry] if judged is None else [entry, NewEntry(fact=judged, at=now, conversation=place, cause=entry)]

    async def _write(
        self, taken: Sequence[_DecidedEvent], named: Sequence[NewEntry], cursor: str | None = None
    ) -> None:
        """One transaction, and what follows from it. At most the last one changes something."""
        entries = [*named, *(entry for one in taken for entry in one.entries)]
        if cursor is not None:
            entries.append(NewEntry(fact=CursorMoved(channel=self._channel, value=cursor), at=self._clock.now()))
        written = dict[int, AppendResult]()
        try:
            written = dict(zip(map(id, entries), await self._store.append(entries), strict=True))
        finally:
            for one in taken:
                if one.handled.effect is not None:
                    one.handled.effect.settle(written.get(id(one.entries[0])))
        fresh = [one for one in taken if written[id(one.entries[0])].is_new]
        for entry in named:
            if isinstance(entry.fact, PlaceRenamed):
                self._titles.learn(entry.fact)
        self._stats.count_events(self._channel, (one.event for one in fresh), self._clock.now())
        for one in fresh:
            with log_context(**_log_context(one.event)):
                self._notify(one)
            if one.handled.post is not None:
                seq, at = written[id(one.entries[-1])].seq, one.entries[-1].at
                self._callbacks.post(OutboxPost(seq=seq, at=at, post=one.handled.post, parts=()))

    async def _decide(self, event: Notification) -> _DecidedEvent:
        """Decide about one event, and make what is to be written of it."""
        event, handled, place = await self._policy.handle(event)
        now = self._clock.now()
        noticed = NewEntry(fact=event, at=now, conversation=place, key=dedup_key(event))
        entries = [noticed, NewEntry(fact=handled.judgement, at=now, conversation=place, cause=noticed)]
        if isinstance(event, Message) and handled.judgement.fate != "refused":
            known = self._callbacks.find_new_audience(event)
            entries += [NewEntry(fact=known, at=now, conversation=place, cause=noticed)] if known is not None else []
        if handled.effect is not None:
            entries += handled.effect.entries(noticed)
        if handled.post is not None:
            queued = PostQueued(post=handled.post)
            key = f"post:{handled.post.key}"
            where = handled.post.to.conversation
            entries.append(NewEntry(fact=queued, at=now, conversation=where, key=key, cause=noticed))
        return _DecidedEvent(event=event, handled=handled, conversation=place, entries=tuple(entries))

    def _notify(self, one: _DecidedEvent) -> None:
        event, judged, place = one.event, one.handled.judgement, one.conversation
        if isinstance(event, ConnectionChanged):
            reason = f": {event.reason}" if event.reason else ""
            logger.info("%s is %s%s", event.channel, "up" if event.up else "down", reason)
            self._callbacks.on_link(event.channel, event.up or event.says)
        if judged.fate == "refused":
            logger.info("refused %s: %s", judged.type, judged.rule)
            return
        if isinstance(event, Message) and not event.history:
            self._callbacks.on_message(event, self._policy.find_role(event))
        if isinstance(event, MembershipChanged) and event.change == "invite":
            self._callbacks.join(event.at)
        elif place is not None and judged.fate == "due" and not isinstance(event, ReactionChanged):
            self._callbacks.on_ready(
                ReadyConversation(
                    conversation=place,
                    urgency=judged.urgency,
                    type=judged.type,
                    direct=_is_direct(event),
                    is_room_talk=event.kind == "room",
                    trusted=judged.role in ("owner", "admin"),
                )
            )


def _log_context(event: Notification) -> dict[str, str]:
    """For the log lines that it causes."""
    if isinstance(event, ConnectionChanged):
        return {"channel": event.channel}
    return {} if event.at is None else {"conversation": event.at.conversation}


def _is_direct(event: Notification) -> bool | None:
    """Whether it came in a direct chat. None: it does not tell."""
    if isinstance(event, Message):
        # What is said in a direct chat is `direct`, whatever else it is.
        return event.kind == "direct"
    return getattr(event, "direct", None)
