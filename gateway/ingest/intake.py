"""Intake of events: the `emit` of every channel.

`EventJudge` judges events by access and attention. `Intake` decides about each event with its help
(as a command, by loop guard and limits, with a notice to strangers), and appends a batch in one
transaction. Whoever acts on an event subscribes to the log.
"""

import hashlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from channels.aio import run_to_completion
from gateway.access.greeting import Greeter
from gateway.access.limits import UsageLimiter
from gateway.access.owners import OwnerNotifier
from gateway.access.policy import AccessDecision, decide
from gateway.access.texts import format_person, format_room
from gateway.commands.dispatcher import CommandDispatcher, CommandResult
from gateway.config.reload import LiveSettings
from gateway.context.intentions import IntentionWatch
from gateway.core.clock import Clock
from gateway.core.events import (
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    MembershipChanged,
    Message,
    MessageEdited,
    Notification,
    PlaceRenamed,
    Post,
    PostKey,
    ReactionChanged,
    ThreadId,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    MESSAGE_KINDS,
    NORMAL,
    CursorMoved,
    Judgement,
    PartSendStarted,
    PostQueued,
    TurnRecord,
    address_of,
    dedup_key,
    inner_conversation,
)
from gateway.core.i18n import N_, _, language_for, use_language
from gateway.core.identity import ADMIN_ROLES, AccessPolicy, person_key, role_of
from gateway.core.logging import log_context
from gateway.core.metrics import GatewayStats
from gateway.core.ratelimit import LruDict
from gateway.store import (
    AppendResult,
    LogEntry,
    NewEntry,
    Store,
    StoreError,
    StoreReader,
)
from gateway.stream.attention import (
    EXCHANGE_LOOK_BACK,
    LOOP_PAUSE_S,
    MAX_LOOP_CONVERSATIONS,
    MAX_TALK_LOOKS,
    MUCH_TALK_LINES,
    MUCH_TALK_RULE,
    TALK_RULE,
    BotLoopGuard,
    ListenMode,
    LiveAttention,
    break_loop,
    count_exchanges,
    judge,
    names_any,
    recount_exchanges,
)
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import (
    Bindings,
    PrivacyCache,
)

logger = logging.getLogger("reverie.judging")

OWNER_STAYS: Final = timedelta(minutes=30)
"""Time after an owner's line in a room in which they are taken to read what names them there."""
_LOOK_BACK_TURNS = 200
"""Turns of an inner conversation that are searched for the looks of a day: `dmn.daily_turns`."""
LOOP_TEXT = N_("You answer faster than a person can read. I do not answer you here for an hour.")


class EventJudge:
    """Judges events of all channels by access and attention. Commands are judged by their
    dispatcher.
    """

    def __init__(
        self,
        reader: StoreReader,
        clock: Clock,
        *,
        live: LiveSettings,
        access_policy: AccessPolicy,
        attention: LiveAttention,
        bindings: Bindings,
        presence: PresenceTracker,
        owner_names: Collection[str] = (),
    ) -> None:
        """`owner_names`: see `OwnerNotifier.names`; may change."""
        self.access_policy, self.bindings = access_policy, bindings
        self._owner_names = owner_names
        self._reader, self._clock, self._live = reader, clock, live
        self._attention, self._presence = attention, presence
        self._exchanges = LruDict[ConversationId, int](MAX_LOOP_CONVERSATIONS)
        """Exchanges with bots since a person wrote."""
        self._looked_enough = LruDict[ConversationId, date](MAX_LOOP_CONVERSATIONS)
        """Day on which much talk asks for no other look there."""
        self._owner_there = LruDict[ConversationId, datetime](MAX_LOOP_CONVERSATIONS)
        """Time of an owner's newest line in each room."""
        self._links_up = dict[ChannelName, bool]()
        """Newest state of each channel's link to its platform in the log, as far as it was read."""

    def _names_absent_owner(self, message: Message, decision: AccessDecision) -> bool:
        """Return whether a line of a room names an owner who has not written there lately."""
        place, now = message.at.conversation, self._clock.now()
        if decision.role == "owner":
            self._owner_there.put(place, now)
        seen = self._owner_there.get(place)
        is_there = seen is not None and now - seen < OWNER_STAYS
        return not is_there and names_any(message.text, self._owner_names)

    def on_link(self, entries: Sequence[LogEntry]) -> None:
        """Update the states of links, whichever process holds the channel. Subscribes to
        `ConnectionChanged`.
        """
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                self._links_up[entry.fact.channel] = entry.fact.up

    def judge_name(self, event: PlaceRenamed) -> Judgement | None:
        """Return the judgement of a place's new name. None: it is not shown as a line."""
        judged = self.judge(event)
        return judged if judged.fate == "context" else None

    async def judge_link(self, link: ConnectionChanged) -> tuple[Judgement, ConversationId | None]:
        """Route a change of the link to the agent of that account. A repeated report is only
        noted.
        """
        if (was_up := self._links_up.get(link.channel)) is None:
            was_up = next(
                (
                    one.up
                    for one in await self._reader.connection_states()
                    if one.channel == link.channel
                ),
                True,
            )
        is_change, self._links_up[link.channel] = link.up != was_up, link.up
        judged = self.judge(link)
        if judged.fate not in ("due", "context"):
            return judged, None
        agent = self.bindings.find_agent(link.channel)
        if is_change and agent:
            return judged, inner_conversation(agent)
        rule = "no agent is bound to this account" if is_change else "it was known"
        return replace(judged, fate="noted", rule=rule), None

    async def judge_reaction(self, reaction: ReactionChanged) -> Judgement:
        """Only note a reaction, unless it is to a message of the agent: one look into an index
        tells that.
        """
        judged = self.judge(reaction)
        if judged.fate in ("due", "context"):
            ours = await self._reader.find_own_post(reaction.at.conversation, reaction.message)
            if ours is None:
                judged = replace(judged, fate="noted", rule="a reaction to what somebody else said")
        return judged

    async def judge_edit(self, edit: MessageEdited) -> Judgement:
        """Make the new text of a message that is for the model context for the next turn. Other
        edits are only noted.

        Platforms report edits that leave the text as it is, too: a link got a preview.
        """
        judged, place = self.judge(edit), edit.at.conversation
        first = await self._reader.entry_by_key(f"message:{place}:{edit.message}")
        if judged.fate == "refused" or first is None or not isinstance(first.fact, Message):
            return judged
        before = await self._reader.latest_message_change(first.fact, first.seq) or first
        is_new = isinstance(before.fact, Message | MessageEdited) and before.fact.text != edit.text
        known = await self._reader.find_judgement(first.seq)
        is_heard = known is not None and known.fate in ("due", "context")
        if not is_new or not is_heard or first.fact.sender.id != edit.sender.id:
            return judged
        return replace(
            judged, fate="context", urgency=AMBIENT, rule="a new text of an earlier message"
        )

    def listen_mode(self, event: Notification) -> ListenMode:
        """Return how the agent listens in the event's place."""
        place = address_of(event)
        return "all" if place is None else self.bindings.find(place).listen

    def judge(self, event: Notification) -> Judgement:
        """Return the judgement of an event by access and attention alone."""
        decision = decide(self.access_policy, event)
        return judge(
            self._attention.policy,
            event,
            decision,
            self.listen_mode(event),
            level=self._presence.level,
        )

    async def judge_message(self, message: Message) -> Judgement:
        """Judge a message, and break a loop of two bots.

        A repeated message counts again: at worst a loop ends, or a person's message counts, one
        message too late.
        """
        binding, conversation = self.bindings.find(message.at), message.at.conversation
        decision = decide(self.access_policy, message)
        judged = judge(
            self._attention.policy,
            message,
            decision,
            binding.listen,
            binding.speaks_up,
            level=self._presence.level,
            names_owner=self._names_absent_owner(message, decision),
        )
        is_talk = judged.rule == TALK_RULE and binding.speaks_up == "sometimes"
        if is_talk and await self._is_much_talk(conversation, binding.agent):
            judged = replace(judged, urgency=NORMAL, rule=MUCH_TALK_RULE)
        if message.sender.is_bot and judged.fate != "due":
            return judged
        before = self._exchanges.get(conversation)
        if before is None and message.sender.is_bot:
            recent = (
                entry.fact
                for entry in await self._reader.newest_entries(
                    EXCHANGE_LOOK_BACK, kinds=MESSAGE_KINDS, conversation=conversation
                )
            )
            before = recount_exchanges(
                (one for one in recent if isinstance(one, Message)), self.judge
            )
        now = count_exchanges(before or 0, message, judged)
        self._exchanges.put(conversation, now)
        return break_loop(judged, now, self._live.settings.access.max_bot_exchanges)

    async def _is_much_talk(self, conversation: ConversationId, agent: str) -> bool:
        """Return whether one more line makes the agent look there, although no question is open."""
        today = self._clock.now().date()
        if self._looked_enough.get(conversation) == today:
            return False
        due = await self._reader.due_reasons(conversation)
        if any(one.urgency > LOW for one in due):
            return False  # it looks there anyway
        if sum(one.entries for one in due) < MUCH_TALK_LINES - 1:
            return False
        turns = [
            one.fact
            for place in (inner_conversation(agent), conversation)
            for one in await self._reader.newest_entries(
                _LOOK_BACK_TURNS, kinds=["turn_ended"], conversation=place
            )
            if isinstance(one.fact, TurnRecord) and one.at.date() == today
        ]
        looks = sum(one.cause == "noticed" or conversation in dict(one.looked) for one in turns)
        if looks >= MAX_TALK_LOOKS:
            self._looked_enough.put(conversation, today)
        return looks < MAX_TALK_LOOKS


class _DecidedEvent(NamedTuple):
    event: Notification
    handled: CommandResult
    entries: tuple[NewEntry, ...]
    """The event, its judgement, its changes, and the answer if there is one."""


class Intake:
    """Entrance of the events of all channels: decides about each, and appends them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        stats: GatewayStats,
        places: PrivacyCache,
        judge: EventJudge,
        intentions: IntentionWatch,
        dispatcher: CommandDispatcher,
        greeter: Greeter | None,
        limits: UsageLimiter | None,
        owners: OwnerNotifier | None,
    ) -> None:
        """`greeter` None: strangers are not greeted. `limits` None: there are none. `owners` None:
        nobody is told.
        """
        self._store, self._clock, self._stats = store, clock, stats
        self._places, self._titles = places, places.titles
        self._judge, self._intentions, self._dispatcher = judge, intentions, dispatcher
        self._greeter, self._limits, self._owners = greeter, limits, owners
        self._loop_guard = BotLoopGuard()
        store.subscribe(judge.on_link, ConnectionChanged)
        store.subscribe(self._titles.on_appended, PlaceRenamed)
        store.subscribe(self._record_own_posts, PartSendStarted)

    def _record_own_posts(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            first = isinstance(entry.fact, PartSendStarted) and not entry.fact.part
            if first and entry.conversation is not None:
                self._loop_guard.record_sending(entry.conversation, self._clock.monotonic())

    async def accept(
        self, channel: ChannelName, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        """Append a batch of a channel with the decisions about it, in one transaction. See
        `channels.base.Emit`.

        A command with an effect ends a transaction, because the events after it are decided by the
        new state; the cursor moves in the last one. If cancelled, a running transaction is
        completed first: the platform repeats its events, and then they are not new.
        """
        decided, name_entries = list[_DecidedEvent](), list[NewEntry]()
        names = dict[ConversationId, PlaceRenamed]()
        for event in batch:
            with log_context(**_log_context(event)), use_language(self._find_language(event)):
                name_entries += await self._build_name_entries(event, names)
                decided.append(await self._decide(event))
            if decided[-1].handled.effect is not None:
                await run_to_completion(self._write(channel, decided, name_entries))
                decided, name_entries, names = [], [], {}
        await run_to_completion(self._write(channel, decided, name_entries, cursor))

    def _find_language(self, event: Notification) -> str | None:
        """Return the tag of the language in which an answer to this event is written. None:
        English.
        """
        at = address_of(event)
        room = self._judge.bindings.find(at).language if at is not None else None
        person = event.language if isinstance(event, Message | Command) else None
        direct = (
            event.kind == "direct"
            if isinstance(event, Message)
            else getattr(event, "direct", False)
        )
        return language_for(room, person, direct=direct)

    async def _build_name_entries(
        self, event: Notification, written: dict[ConversationId, PlaceRenamed]
    ) -> list[NewEntry]:
        """Return the new names of the event's place, and their judgement, if they are shown as a
        line.

        `written`: names that stand in the same transaction; the new ones are added.
        """
        named = await self._titles.find_new_names(
            event, self._clock.now(), written, self._judge.access_policy
        )
        if named is None:
            return []
        now, place = self._clock.now(), named.at.conversation
        entry = NewEntry(fact=named, at=now, conversation=place, key=dedup_key(named))
        announced = isinstance(event, MembershipChanged) and event.change in ("title", "topic")
        judged = None if announced else self._judge.judge_name(named)
        return (
            [entry]
            if judged is None
            else [entry, NewEntry(fact=judged, at=now, conversation=place, cause=entry)]
        )

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
                if one.handled.effect is not None:
                    one.handled.effect.settle(written.get(id(one.entries[0])))
        fresh = [one for one in decided if written[id(one.entries[0])].is_new]
        for one in decided:
            is_repeated = not written[id(one.entries[0])].is_new
            if (
                is_repeated
                and self._limits is not None
                and isinstance(one.event, Message | Command)
            ):
                self._limits.give_back(one.event)
        self._stats.count_events(channel, (one.event for one in fresh), self._clock.now())
        for one in fresh:
            with log_context(**_log_context(one.event)):
                _log_event(one.event, one.handled.judgement)

    async def _decide(self, event: Notification) -> _DecidedEvent:
        if isinstance(event, Message) and event.quoted is not None:
            role = role_of(self._judge.access_policy, event.at, event.quoted.sender)
            event = replace(event, quoted=None) if role == "blocked" else event
        if isinstance(event, Message) and self._judge.bindings.find(event.at).addressing == "start":
            event = self._dispatcher.narrow_mention(event)
        if isinstance(event, Message) and event.kind == "mention":
            event = await self._keep_place(event)
        event, handled, place = await self._handle(event)
        now = self._clock.now()
        noticed = NewEntry(fact=event, at=now, conversation=place, key=dedup_key(event))
        judged, alarms = handled.judgement, list[NewEntry]()
        if isinstance(event, Message):
            judged, alarms = await self._intentions.judge(event, judged, noticed)
            handled = replace(handled, judgement=judged)
        entries = [
            noticed,
            NewEntry(fact=judged, at=now, conversation=place, cause=noticed),
            *alarms,
        ]
        if isinstance(event, Message) and handled.judgement.fate != "refused":
            known = self._places.find_new_audience(event)
            entries += (
                [NewEntry(fact=known, at=now, conversation=place, cause=noticed)]
                if known is not None
                else []
            )
        if handled.effect is not None:
            entries += handled.effect.entries(noticed)
        if handled.post is not None:
            queued = PostQueued(post=handled.post)
            key = f"post:{handled.post.key}"
            where = handled.post.to.conversation
            entries.append(
                NewEntry(fact=queued, at=now, conversation=where, key=key, cause=noticed)
            )
        return _DecidedEvent(event, handled, tuple(entries))

    async def _keep_place(self, message: Message) -> Message:
        """Return the message at the place where it is known, if it is: whether it opens a thread
        may have changed.
        """
        channel = self._places.channels.get(message.at.channel)
        if channel is None or not channel.capabilities.threads:
            return message
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

    async def _handle(
        self, event: Notification
    ) -> tuple[Notification, CommandResult, ConversationId | None]:
        """Return the event as it was understood (text may be a command), its result, and its
        conversation.

        The conversation is where it is unread, if it is due, else where it happened. None: nowhere.
        """
        judge = self._judge
        if isinstance(event, Message) and not event.history:
            event = await self._dispatcher.parse(event, judge.listen_mode(event)) or event
        if isinstance(event, Command):
            event = self._dispatcher.read_link_payload(event)
        at = address_of(event)
        place = at.conversation if at is not None else None
        if isinstance(event, Command):
            handled = await self._dispatcher.handle(event)
        elif isinstance(event, Message):
            judged = await judge.judge_message(event)
            handled = self._check_loop(event, judged) or self._check_limit(event, judged)
        elif isinstance(event, ConnectionChanged):
            judged, place = await judge.judge_link(event)
            handled = CommandResult(judgement=judged)
        elif isinstance(event, ReactionChanged):
            handled = CommandResult(judgement=await judge.judge_reaction(event))
        elif isinstance(event, MessageEdited):
            judged = await judge.judge_edit(event)
            handled = CommandResult(judgement=judged)
        else:
            handled = CommandResult(judgement=judge.judge(event))
        quiet = getattr(event, "history", False) or (
            isinstance(event, Command) and event.origin == "button"
        )
        if handled.judgement.fate == "refused" and handled.post is None and not quiet:
            handled = self._add_greeting(event, handled)
        if handled.post is None and isinstance(event, Command):
            handled = replace(handled, post=self._dispatcher.build_refusal_post(event))
        return event, handled, place

    def _check_loop(self, message: Message, judged: Judgement) -> CommandResult | None:
        """Return the result of a line from a sender who answers as no person does.

        None: a person may have written it.
        """
        if judged.fate != "due" or judged.role in ADMIN_ROLES:
            return None
        sender, conversation = message.sender, message.at.conversation
        left_s = self._loop_guard.check_line(
            conversation, sender.id, message.text, self._clock.monotonic()
        )
        if not left_s:
            return None
        rule = f"loop broken: no person answers so fast; they are answered again in {left_s:.0f} s"
        judged = replace(judged, fate="context", urgency=AMBIENT, rule=rule)
        if left_s < LOOP_PAUSE_S:
            return CommandResult(judgement=judged)
        who = format_person(person_key(message.at.channel, sender.id), sender.name)
        if self._owners is not None:
            self._owners.notify(
                f"loop:{conversation}",
                lambda _to: _(
                    "{person} answers all my messages in {room} faster than a person can, so it is "
                    "probably a program. I do not answer it for an hour. `block` ends that. I "
                    "tell you this once a day."
                ).format(person=who, room=format_room(conversation)),
            )
        if sender.is_bot:
            return CommandResult(judgement=judged)
        key = PostKey(hashlib.sha256(f"loop:{dedup_key(message)}".encode()).hexdigest()[:26])
        return CommandResult(
            judgement=judged, post=Post(key=key, to=message.at, text=_(LOOP_TEXT), style="notice")
        )

    def _check_limit(self, message: Message, judged: Judgement) -> CommandResult:
        if self._limits is None:
            return CommandResult(judgement=judged)
        verdict = self._limits.check(message, judged, self._judge.bindings.find(message.at).agent)
        return CommandResult(judgement=verdict.judged, post=verdict.post, effect=verdict.change)

    def _add_greeting(self, event: Notification, handled: CommandResult) -> CommandResult:
        decision = decide(self._judge.access_policy, event)
        if self._greeter is None or not decision.request_kind:
            return handled
        try:
            greeting = self._greeter.greet(event, decision)
        except StoreError:
            raise
        except Exception:  # a bug: the sender gets no notice, and the stream goes on
            logger.exception("whoever is refused cannot be greeted")
            return handled
        if greeting is None:
            return handled
        changes = [one for one in (handled.effect, greeting.change) if one is not None]
        return replace(
            handled, post=greeting.post, effect=sum(changes[1:], changes[0]) if changes else None
        )


def _log_event(event: Notification, judged: Judgement) -> None:
    if isinstance(event, ConnectionChanged):
        reason = f": {event.reason}" if event.reason else ""
        logger.info("%s is %s%s", event.channel, "up" if event.up else "down", reason)
    if judged.fate == "refused":
        logger.info("refused %s: %s", judged.type, judged.rule)


def _log_context(event: Notification) -> dict[str, str]:
    if isinstance(event, ConnectionChanged):
        return {"channel": event.channel}
    return {} if event.at is None else {"conversation": event.at.conversation}
