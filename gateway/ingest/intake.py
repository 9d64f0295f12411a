"""The one way in: events become durable, are judged, and what is due reaches the inbox.

The way in of every channel, wired: who is heard, what is a command, where an event goes from there.

What becomes of everything that comes in on one channel: by access, by what it asks of us, by attention.
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from channels.aio import run_to_completion
from channels.base import CanPage, Channel, HasNick
from gateway.access.channel_lookup import ChannelLookup
from gateway.access.greeting import PairingNotice
from gateway.access.limits import LimitDecision
from gateway.access.policy import AccessDecision, decide
from gateway.access.texts import format_person, format_room
from gateway.commands.context import CommandContext, CommandHandler
from gateway.commands.dispatcher import CommandDispatcher, CommandResult
from gateway.commands.info import BASE_HANDLERS
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    MembershipChanged,
    Message,
    Notification,
    PlaceNames,
    PlaceRenamed,
    Post,
    PostKey,
    PresenceLevel,
    ReactionChanged,
)
from gateway.core.facts import (
    AMBIENT,
    MESSAGE_KINDS,
    CursorMoved,
    Fact,
    Judgement,
    PartSendStarted,
    PostQueued,
    address_of,
    dedup_key,
    inner_conversation,
)
from gateway.core.identity import ADMIN_ROLES, AccessPolicy, Role, person_key, role_of
from gateway.core.logging import log_context
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redact
from gateway.runtime.rewind import Rewinder
from gateway.store import AppendResult, NewEntry, OutboxPost, Store, StoreError, StoreReader
from gateway.stream import attention, policies
from gateway.stream.attention import (
    EXCHANGE_LOOK_BACK,
    BotExchangeCounter,
    BotLoopGuard,
    ListenMode,
    SalienceDetector,
    break_loop,
    count_exchanges,
    recount_exchanges,
)
from gateway.stream.inbox import ReadyConversation
from gateway.stream.place_names import PlaceTitles
from gateway.stream.routing import Bindings, CommandPrefixes, make_names_lookup, make_private_address_lookup
from gateway.tools.approvals import ApprovalDecisions
from gateway.tools.dispatch import ToolList

logger = logging.getLogger("reverie.judging")

LOOP_TEXT = "You answer me faster than a person can read. I say nothing more here for {} seconds."
GreetStranger = Callable[[Notification, AccessDecision], PairingNotice | None]
"""What is said to whoever is refused, and may ask to be let in; None: nothing."""
LimitCheck = Callable[[Message, Judgement, str], LimitDecision]
"""Whether a message may start a turn of that agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeRules:
    """What events are judged by, on all channels."""

    access: AccessPolicy
    attention: attention.AttentionPolicy
    bindings: Bindings
    dispatcher: CommandDispatcher
    max_bot_exchanges: Callable[[], int]
    greet: GreetStranger
    limit: LimitCheck
    level: Callable[[], PresenceLevel]
    """How near people are."""
    loop_guard: BotLoopGuard = field(default_factory=BotLoopGuard)
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    """A text for owners, with the name of what it is about."""


class IntakePolicy:
    """For one channel."""

    def __init__(self, rules: IntakeRules, reader: StoreReader, clock: Clock) -> None:
        self._rules = rules
        self._reader = reader
        self._clock = clock
        self._exchanges = BotExchangeCounter()
        self._salience = SalienceDetector(lambda: rules.attention.salience)
        self._was_up: bool | None = None
        """As the newest link says. None: nobody asked yet."""

    async def handle(self, event: Notification) -> tuple[Notification, CommandResult, ConversationId | None]:
        """The event as it is understood, what becomes of it, and where it is unread if it is due, or else was."""
        rules = self._rules
        if isinstance(event, Message) and not event.history:
            event = await rules.dispatcher.parse(event, self._listen_mode(event)) or event
        at = address_of(event)
        place = at.conversation if at is not None else None
        if isinstance(event, Command):
            handled = await rules.dispatcher.handle(event)
        elif isinstance(event, Message):
            judged = await self._judge_message(event)
            handled = self._check_loop(event, judged) or self._check_limit(event, judged)
        elif isinstance(event, ConnectionChanged):
            handled, place = await self._judge_link(event, self._judge(event))
        elif isinstance(event, ReactionChanged):
            handled = await self._judge_reaction(event, self._judge(event))
        else:
            handled = CommandResult(judgement=self._judge(event))
        if handled.judgement.fate == "refused" and handled.post is None and not getattr(event, "history", False):
            handled = self._add_greeting(event, handled)
        if handled.judgement.fate == "refused" and handled.post is None and isinstance(event, Command):
            handled = replace(handled, post=rules.dispatcher.build_refusal_post(event))
        return event, handled, place

    def find_role(self, message: Message) -> Role:
        """Of who said it, there."""
        return role_of(self._rules.access, message.at, message.sender)

    def judge_name(self, event: PlaceRenamed) -> Judgement | None:
        """The judgement on a place's new name. None: it is not told as a line."""
        judged = self._judge(event)
        return judged if judged.fate == "context" else None

    def _check_loop(self, message: Message, judged: Judgement) -> CommandResult | None:
        """What becomes of a line of somebody who answers as no person does. None: they are no such."""
        if judged.fate != "due" or judged.role in ADMIN_ROLES:
            return None
        sender, conversation = message.sender, message.at.conversation
        pause = self._rules.loop_guard.check_line(conversation, sender.id, message.text, self._clock.monotonic())
        if pause is None:
            return None
        rule = f"loop broken: no person answers so fast; they are answered again in {pause.remaining_s:.0f} s"
        judged = replace(judged, fate="context", urgency=AMBIENT, rule=rule)
        if not pause.is_new:
            return CommandResult(judgement=judged)
        who = format_person(person_key(message.at.channel, sender.id), sender.name)
        self._rules.notify_owners(
            f"loop:{conversation}",
            f"{who} answers each of my lines in {format_room(conversation)} faster than a person can. I take it for a "
            "program, and answer it less and less. `block` ends that. I say this once a day.",
        )
        if not pause.is_first or sender.is_bot:
            return CommandResult(judgement=judged)
        key = PostKey(hashlib.sha256(f"loop:{dedup_key(message)}".encode()).hexdigest()[:26])
        text = LOOP_TEXT.format(round(pause.remaining_s))
        return CommandResult(judgement=judged, post=Post(key=key, to=message.at, text=text, style="notice"))

    def _check_limit(self, message: Message, judged: Judgement) -> CommandResult:
        """Held back where somebody asks for more than they may."""
        verdict = self._rules.limit(message, judged, self._rules.bindings.find(message.at).agent)
        return CommandResult(judgement=verdict.judged, post=verdict.post, effect=verdict.change)

    def _add_greeting(self, event: Notification, handled: CommandResult) -> CommandResult:
        """With what is said to whoever may ask to be let in."""
        decision = decide(self._rules.access, event)
        if not decision.request_kind:
            return handled
        try:
            greeting = self._rules.greet(event, decision)
        except StoreError:
            raise
        except Exception:  # a bug: nobody is let in by it, and the stream goes on
            logger.exception("whoever is refused cannot be greeted")
            return handled
        if greeting is None:
            return handled
        changes = [one for one in (handled.effect, greeting.change) if one is not None]
        return replace(handled, post=greeting.post, effect=sum(changes[1:], changes[0]) if changes else None)

    async def _judge_link(
        self, link: ConnectionChanged, judged: Judgement
    ) -> tuple[CommandResult, ConversationId | None]:
        """A link that came up or went down is told to whose account it is. What only says so again is noted."""
        if self._was_up is None:
            self._was_up = next(
                (one.up for one in await self._reader.connection_states() if one.channel == link.channel), True
            )
        news, self._was_up = link.up != self._was_up, link.up
        if judged.fate not in ("due", "context"):
            return CommandResult(judgement=judged), None
        agent = self._rules.bindings.find_agent(link.channel)
        if news and agent:
            return CommandResult(judgement=judged), inner_conversation(agent)
        rule = "no agent is bound to this account" if news else "it was known"
        return CommandResult(judgement=replace(judged, fate="noted", rule=rule)), None

    async def _judge_reaction(self, reaction: ReactionChanged, judged: Judgement) -> CommandResult:
        """A reaction is told if it is to something that the agent said: one look into an index tells."""
        if judged.fate in ("due", "context"):
            ours = await self._reader.find_own_post(reaction.at.conversation, reaction.message)
            if ours is None:
                judged = replace(judged, fate="noted", rule="a reaction to what somebody else said")
        return CommandResult(judgement=judged)

    def _listen_mode(self, event: Notification) -> ListenMode:
        place = address_of(event)
        return "all" if place is None else self._rules.bindings.find(place).listen

    def _judge(self, event: Notification) -> Judgement:
        rules = self._rules
        decision = decide(rules.access, event)
        return attention.judge(rules.attention, event, decision, self._listen_mode(event), level=rules.level())

    async def _judge_message(self, message: Message) -> Judgement:
        """As policy says, unless two bots have been talking for too long.

        A repeat counts again: at worst such a talk ends, or a person is taken to have spoken, one message late.
        """
        rules = self._rules
        decision, level = decide(rules.access, message), rules.level()
        judged = attention.judge(
            rules.attention, message, decision, self._listen_mode(message), self._find_salience, level=level
        )
        conversation = message.at.conversation
        if message.sender.is_bot and judged.fate != "due":
            return judged
        before = self._exchanges.get(conversation)
        if before is None and message.sender.is_bot:
            said = (
                entry.fact
                for entry in await self._reader.newest_entries(
                    EXCHANGE_LOOK_BACK, kinds=MESSAGE_KINDS, conversation=conversation
                )
            )
            before = recount_exchanges((one for one in said if isinstance(one, Message)), self._judge)
        now = count_exchanges(before or 0, message, judged)
        self._exchanges.put(conversation, now)
        return break_loop(judged, now, rules.max_bot_exchanges())

    def _find_salience(self, message: Message) -> str | None:
        return self._salience.find_reason(message, self._clock.now())


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


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeServices:
    """What the intakes of all channels share."""

    live: LiveSettings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    access_policy: AccessPolicy
    bindings: Bindings
    stats: GatewayStats
    model: Callable[[], str]
    mode: Callable[[], str]
    rewinds: Rewinder
    titles: PlaceTitles | None = None
    """What places are called. None: what the channels tell."""
    greet: GreetStranger = lambda _event, _decision: None
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    limit: LimitCheck = lambda _message, judged, _agent: LimitDecision(judged)
    level: Callable[[], PresenceLevel] = lambda: "present"
    """How near people are."""
    attention_policy: attention.AttentionPolicy | None = None
    """What attention goes by. None: what is configured."""
    handlers: Mapping[str, CommandHandler] = field(default_factory=lambda: BASE_HANDLERS)
    """What answers commands, by `name` or `name sub`."""
    redact: Redact = str
    """Given what commands answer, and what is written down of administration."""
    approvals: ApprovalDecisions | None = None
    """As `CommandContext.deciding`."""
    tools: Callable[[Address], ToolList] = lambda _: ToolList()
    """As `CommandContext.tools`."""


class ChannelIntakes(Mapping[ChannelName, Intake]):
    """One for each channel, made when it is asked for first."""

    def __init__(self, parts: IntakeServices, doors: IntakeCallbacks) -> None:
        self._parts, self._doors, self._rules = parts, doors, _build_rules(parts)
        self._titles = parts.titles or PlaceTitles(parts.store, names=make_names_lookup(parts.channels))
        self._intakes: dict[ChannelName, Intake] = {}

    def __getitem__(self, name: ChannelName) -> Intake:
        parts = self._parts
        if name not in parts.channels:
            raise KeyError(name)
        if name not in self._intakes:
            judging = IntakePolicy(self._rules, parts.store, parts.clock)
            self._intakes[name] = Intake(
                name,
                store=parts.store,
                clock=parts.clock,
                judging=judging,
                stats=parts.stats,
                doors=self._doors,
                titles=self._titles,
            )
        return self._intakes[name]

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._parts.channels)

    def __len__(self) -> int:
        return len(self._parts.channels)

    def drop(self, name: ChannelName) -> None:
        """Forget a channel that has gone."""
        self._intakes.pop(name, None)


def _build_rules(parts: IntakeServices) -> IntakeRules:
    """What all of them judge by."""
    live = parts.live
    desk = CommandDispatcher(
        _build_command_context(parts),
        parts.access_policy,
        lambda: live.settings.commands,
        answers=parts.handlers,
        ours=_make_nick_lookup(parts.channels),
        redact=parts.redact,
        named=parts.titles.add_titles if parts.titles is not None else str,
    )
    loops = BotLoopGuard()

    def spoke(entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        for entry, one in zip(entries, written, strict=True):
            if not one.is_new or entry.conversation is None:
                continue
            if isinstance(entry.fact, PostQueued):
                loops.record_post(entry.conversation, entry.fact.post.text)
            elif isinstance(entry.fact, PartSendStarted) and not entry.fact.part:
                loops.record_sending(entry.conversation, parts.clock.monotonic())

    parts.store.add_listener(spoke)
    return IntakeRules(
        access=parts.access_policy,
        attention=parts.attention_policy or policies.build_attention_policy(live.settings),
        bindings=parts.bindings,
        dispatcher=desk,
        max_bot_exchanges=lambda: live.settings.access.max_bot_exchanges,
        greet=parts.greet,
        limit=parts.limit,
        level=parts.level,
        loop_guard=loops,
        notify_owners=parts.notify_owners,
    )


def _make_nick_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[ChannelName], Collection[str] | None]:
    """What we are called where commands may be given by saying our name."""
    named = ChannelLookup[HasNick](channels, lambda one: one if isinstance(one, HasNick) else None)

    def called(name: ChannelName) -> Collection[str] | None:
        channel = named.get(name)
        return None if channel is None else {channel.nick.casefold()}

    return called


def _build_command_context(parts: IntakeServices) -> CommandContext:
    paged = ChannelLookup[CanPage](parts.channels, lambda one: one if isinstance(one, CanPage) else None)
    reach = make_private_address_lookup(parts.channels)

    def contact(name: ChannelName) -> str | None:
        said = parts.live.settings
        return getattr(said.channels.get(name), "contact", None) or said.commands.contact

    def pages(post: Post) -> int:
        channel = paged.get(post.to.channel)
        return 1 if channel is None else channel.page_count(post)

    return CommandContext(
        reader=parts.store,
        clock=parts.clock,
        stats=parts.stats,
        version=version("reverie-gateway"),
        model_name=parts.model,
        agent_mode=parts.mode,
        operator_contact=contact,
        prefixes=CommandPrefixes(parts.live, parts.channels),
        rewinds=parts.rewinds,
        count_pages=pages,
        approvals=parts.approvals,
        tools_at=parts.tools,
        awaiting_channels=ChannelLookup(parts.channels, lambda channel: channel.capabilities.defers_commands or None),
        private_address=lambda command: reach(command.at, command.sender),
    )
