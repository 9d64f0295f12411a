"""Intake of events: the `emit` of every channel.

An event is read (a line may be a command), routed once (`gateway.access.policy`), and judged by
each of `Intake.judges` in their order. It is appended with all that follows from it in one
transaction. Whoever acts on an event subscribes to the log.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from channels.aio import run_to_completion
from channels.base import HasNick
from gateway.access.limits import UsageLimiter
from gateway.access.policy import UNBOUND, ConversationBinding, Routed, route
from gateway.commands.dispatcher import CommandDispatcher
from gateway.commands.parser import expand_command, narrow_mention, parse_command
from gateway.config.models import Settings
from gateway.core.context_var import log_context
from gateway.core.events import (
    EDITED,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    MembershipChanged,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    PlaceRenamed,
    ThreadId,
)
from gateway.core.facts import (
    AMBIENT,
    MESSAGE_KINDS,
    CursorMoved,
    Fact,
    Judgement,
    PostQueued,
    dedup_key,
    event_kinds,
    inner_conversation,
)
from gateway.core.i18n import use_language
from gateway.core.identity import identify
from gateway.hooks import Judging
from gateway.store import AppendResult, NewEntry
from gateway.store.effects import Decision
from gateway.stream.attention import LiveAttention, format_event_type
from gateway.stream.handle import GatewayHandle
from gateway.stream.loops import LoopGuard

logger = logging.getLogger("reverie.judging")

_ALL: Final = event_kinds()
_ANY: Final = frozenset({"noted", "context", "due", "refused"})


def undecided(routed: Routed) -> Decision:
    """Return the decision before any judge has changed it: the event is noted, or refused if access
    does not allow it. Then it is logged, and never shown to the model.
    """
    judgement = Judgement(
        type=format_event_type(routed.event),
        urgency=AMBIENT,
        fate="noted" if routed.access.allowed else "refused",
        rule=routed.access.rule,
        role=routed.role,
    )
    return Decision(judgement=judgement)


class _DecidedEvent(NamedTuple):
    event: Notification
    decision: Decision
    entries: tuple[NewEntry, ...]
    """The event, its judgement, its changes, and the answer if there is one."""


class Intake:
    """Entrance of the events of all channels: decides about each, and appends them."""

    def __init__(
        self,
        gateway: GatewayHandle,
        *,
        dispatcher: CommandDispatcher,
        attention: LiveAttention,
        loops: LoopGuard,
        limits: UsageLimiter,
        plugins: Sequence[Judging] = (),
    ) -> None:
        """`plugins`: judges of plugins, in their order."""
        self._store, self._clock, self._places = gateway.store, gateway.clock, gateway.places
        self._bindings, self._access_policy = gateway.places.bindings, gateway.people
        self._dispatcher, self._limits = dispatcher, limits
        commands = ("command",)
        self.judges: Final = (
            Judging(commands, _ANY, dispatcher.judge),
            Judging(_ALL.difference(commands), {"noted"}, attention.judge),
            Judging(MESSAGE_KINDS, _ANY, loops.judge),
            Judging(MESSAGE_KINDS, {"due"}, limits.judge),
            *plugins,
            Judging(commands, _ANY, dispatcher.explain),
        )
        """All judges, in their order."""
        gateway.live.follow(self._use)

    def _use(self, settings: Settings) -> None:
        self._prefix = settings.commands.prefix

    async def accept(
        self, channel: ChannelName, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        """Append a batch of a channel with the decisions about it, in one transaction. See
        `channels.base.Emit`.

        A decision with an effect ends a transaction, because the events after it are decided by the
        new state; the cursor moves in the last one. If cancelled, a running transaction with an
        effect is completed first, and the events of another one are in the log or not: the platform
        repeats them, and then they are not new.
        """
        decided, name_entries = list[_DecidedEvent](), list[NewEntry]()
        names = dict[ConversationId, PlaceRenamed]()
        for event in batch:
            with log_context(**_log_context(event)):
                routed, now = await self._read(event), self._clock.now()
                with use_language(routed.language):
                    name_entries += await self._build_name_entries(routed, now, names)
                    decided.append(await self._decide(routed, now))
            if decided[-1].decision.effect is not None:
                await run_to_completion(self._write(channel, decided, name_entries))
                decided, name_entries, names = [], [], {}
        await self._write(channel, decided, name_entries, cursor)

    async def _read(self, event: Notification) -> Routed:
        if isinstance(event, ConnectionChanged):
            agent = self._bindings.find_agent(event.channel)
            binding = ConversationBinding(listen="all", agent=agent)
            return route(self._access_policy, binding, event)
        binding = self._bindings.find(event.at) if event.at is not None else UNBOUND
        for_one = False
        if isinstance(event, MessageEdited) and event.mention:
            event = await self._read_mention(event)
        if isinstance(event, Message):
            event, binding = await self._read_message(event, binding)
        if isinstance(event, Command):
            channel = self._places.channels.get(event.at.channel)
            for_one = event.origin == "button" or (
                event.origin == "native"
                and channel is not None
                and channel.capabilities.defers_commands
            )
            event = expand_command(event)
        return route(self._access_policy, binding, event, for_one=for_one)

    async def _read_mention(self, edit: MessageEdited) -> MessageEdited | Message:
        """Return an edit that mentions us as a message to us, if what was edited was not."""
        key, as_new = f"message:{edit.at.conversation}:", MessageId(f"{edit.message}{EDITED}")
        if await self._store.entry_by_key(f"{key}{as_new}"):
            return replace(edit, message=as_new)
        first = await self._store.entry_by_key(f"{key}{edit.message}")
        said = None if first is None else first.fact
        if not isinstance(said, Message) or (said.kind, said.sender.id) != ("room", edit.sender.id):
            return edit
        return replace(
            said,
            id=as_new,
            sender=edit.sender,
            text=edit.text,
            sent=edit.sent,
            kind="mention",
            carried=edit.carried,
        )

    async def _read_message(
        self, message: Message, binding: ConversationBinding
    ) -> tuple[Message | Command, ConversationBinding]:
        """Return a message as it is for us: whom it quotes and is for, where it stands, and the
        command that it is; with the binding of its place.
        """
        channel = self._places.channels.get(message.at.channel)
        named: object = channel
        nicks = named.nicks(message.at) if isinstance(named, HasNick) else None
        if message.quoted is not None:
            quoted = identify(self._access_policy, message.at, message.quoted.sender).role
            message = replace(message, quoted=None) if quoted == "blocked" else message
        if binding.addressing == "start" and nicks is not None:
            message = narrow_mention(message, nicks)
        if message.kind == "mention" and channel is not None and channel.capabilities.threads:
            message = await self._keep_place(message)
            binding = self._bindings.find(message.at)
        if binding.listen == "off" or message.history:
            return message, binding
        ours = None if nicks is None else {*map(str.casefold, nicks)}
        read = parse_command(message, self._prefix, self._dispatcher.commands, ours)
        command = None if read is None else await self._dispatcher.confirm(read)
        return command or message, binding

    async def _keep_place(self, message: Message) -> Message:
        """Return the message at the place where it is known, if it is: whether it opens a thread
        may have changed.
        """
        room = replace(message.at, thread=None)
        if message.opens_thread and await self._store.entry_by_key(
            f"message:{room.conversation}:{message.id}"
        ):
            return replace(message, at=room, opens_thread=False)
        thread = replace(message.at, thread=ThreadId(message.id))
        if message.at.thread is None and await self._store.entry_by_key(
            f"message:{thread.conversation}:{message.id}"
        ):
            return replace(message, at=thread, opens_thread=True)
        return message

    async def _build_name_entries(
        self, routed: Routed, now: datetime, written: dict[ConversationId, PlaceRenamed]
    ) -> list[NewEntry]:
        """Return the new names of the event's place, and their judgement, if they are shown as a
        line.

        `written`: names that stand in the same transaction; the new ones are added.
        """
        named = await self._places.titles.find_new_names(routed, now, written, self._access_policy)
        if named is None:
            return []
        entry = NewEntry(
            fact=named, at=now, conversation=named.at.conversation, key=dedup_key(named)
        )
        event = routed.event
        if isinstance(event, MembershipChanged) and event.change in ("title", "topic"):
            return [entry]  # that tells it
        named_at = route(self._access_policy, self._bindings.find(named.at), named)
        judged = (await self._judge(named_at)).judgement
        return [entry, _consequence(judged, entry)] if judged.fate == "context" else [entry]

    async def _judge(self, routed: Routed) -> Decision:
        decided = undecided(routed)
        for kinds, fates, judge in self.judges:
            if routed.event.kind in kinds and decided.judgement.fate in fates:
                decided = await judge(routed, decided) or decided
        return decided

    async def _decide(self, routed: Routed, now: datetime) -> _DecidedEvent:
        event, decided, place = routed.event, await self._judge(routed), routed.conversation
        judged = decided.judgement
        if isinstance(event, ConnectionChanged) and judged.fate != "noted":
            place = inner_conversation(routed.agent)
        noticed = NewEntry(fact=event, at=now, conversation=place, key=dedup_key(event))
        entries = [noticed, _consequence(judged, noticed)]
        if isinstance(event, Message) and judged.fate != "refused":
            audience = self._places.find_new_audience(event)
            entries += [_consequence(audience, noticed)] if audience is not None else []
        if decided.effect is not None:
            entries += decided.effect.entries(noticed)
        if decided.post is not None:
            queued = PostQueued(post=decided.post)
            key = f"post:{decided.post.key}"
            where = decided.post.to.conversation
            entries.append(
                NewEntry(fact=queued, at=now, conversation=where, key=key, cause=noticed)
            )
        return _DecidedEvent(event, decided, tuple(entries))

    async def _write(
        self,
        channel: ChannelName,
        decided: Sequence[_DecidedEvent],
        name_entries: Sequence[NewEntry],
        cursor: str | None = None,
    ) -> None:
        entries = [*name_entries, *(entry for one in decided for entry in one.entries)]
        if cursor is not None:
            entries.append(
                NewEntry(fact=CursorMoved(channel=channel, value=cursor), at=self._clock.now())
            )
        written = dict[int, AppendResult]()
        try:
            written = dict(zip(map(id, entries), await self._store.append(entries), strict=True))
        finally:
            for one in decided:
                if one.decision.effect is not None:
                    one.decision.effect.settle(written.get(id(one.entries[0])))
        for one in decided:
            event, judged = one.event, one.decision.judgement
            if not written[id(one.entries[0])].is_new:
                if isinstance(event, Message | Command):
                    self._limits.give_back(event)
            elif isinstance(event, ConnectionChanged) or judged.fate == "refused":
                _log_event(event, judged)


def _consequence(fact: Fact, of: NewEntry) -> NewEntry:
    return NewEntry(fact=fact, at=of.at, conversation=of.conversation, cause=of)


def _log_event(event: Notification, judged: Judgement) -> None:
    with log_context(**_log_context(event)):
        if isinstance(event, ConnectionChanged):
            reason = f": {event.reason}" if event.reason else ""
            logger.info("%s is %s%s", event.channel, "up" if event.up else "down", reason)
        else:
            logger.info("refused %s: %s", judged.type, judged.rule)


def _log_context(event: Notification) -> dict[str, str]:
    if isinstance(event, ConnectionChanged):
        return {"channel": event.channel}
    return {} if event.at is None else {"conversation": event.at.conversation}
