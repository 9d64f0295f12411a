"""Intake of events: each is judged, appended with its judgement, and passed on if due.

`IntakePolicy` decides about the events of one channel: by access, as a command, by attention, by limits. `Intake` is
the channel's `Emit`: it appends a batch in one transaction. `ChannelIntakes` builds both for every
channel from `IntakeServices`.
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
from gateway.access.limits import UsageLimiter
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
    Judgement,
    PartSendStarted,
    PostQueued,
    address_of,
    dedup_key,
    inner_conversation,
)
from gateway.core.identity import ADMIN_ROLES, AccessPolicy, person_key
from gateway.core.logging import log_context
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.runtime.rewind import Rewinder
from gateway.store import AppendResult, LogEntry, NewEntry, Store, StoreError, StoreReader
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
from gateway.stream.place_names import PlaceTitles
from gateway.stream.routing import (
    Bindings,
    CommandPrefixes,
    PrivacyCache,
    make_private_address_lookup,
)
from gateway.tools.approvals import Approvals
from gateway.tools.dispatch import ToolList

logger = logging.getLogger("reverie.judging")

LOOP_TEXT = "You answer me faster than a person can read. I say nothing more here for {} seconds."
GreetStranger = Callable[[Notification, AccessDecision], PairingNotice | None]
"""Returns the notice to a refused sender who may ask for access; None: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeRules:
    """Rules by which events are judged, and what they ask; shared by all channels. Made from `IntakeServices`."""

    access: AccessPolicy
    attention: attention.AttentionPolicy
    bindings: Bindings
    dispatcher: CommandDispatcher
    max_bot_exchanges: Callable[[], int]
    """Returns `access.max_bot_exchanges`."""
    greet: GreetStranger
    limits: UsageLimiter | None
    level: Callable[[], PresenceLevel]
    """Returns the current presence of people."""
    loop_guard: BotLoopGuard = field(default_factory=BotLoopGuard)
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    """Sends a text to owners, with its key."""


class IntakePolicy:
    """Decisions about the events of one channel."""

    def __init__(self, rules: IntakeRules, reader: StoreReader, clock: Clock) -> None:
        self._rules = rules
        self._reader = reader
        self._clock = clock
        self._exchanges = BotExchangeCounter()
        self._salience = SalienceDetector(lambda: rules.attention.salience)
        self._was_up: bool | None = None
        """Newest state of the channel's link to its platform. None: not read from the log yet."""

    async def handle(self, event: Notification) -> tuple[Notification, CommandResult, ConversationId | None]:
        """Return the event as it was understood (text may be a command), its result, and its conversation.

        The conversation is where it is unread, if it is due, else where it happened. None: nowhere.
        """
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

    def forget_repeated(self, event: Notification) -> None:
        """Give back what the limits took for an event that the log had already."""
        if isinstance(event, Message) and self._rules.limits is not None:
            self._rules.limits.give_back(event)

    def judge_name(self, event: PlaceRenamed) -> Judgement | None:
        """Return the judgement of a place's new name. None: it is not shown as a line."""
        judged = self._judge(event)
        return judged if judged.fate == "context" else None

    def _check_loop(self, message: Message, judged: Judgement) -> CommandResult | None:
        """Return the result of a line from a sender who answers as no person does.

        None: a person may have written it.
        """
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
        """Apply the limits to a message."""
        if self._rules.limits is None:
            return CommandResult(judgement=judged)
        verdict = self._rules.limits.check(message, judged, self._rules.bindings.find(message.at).agent)
        return CommandResult(judgement=verdict.judged, post=verdict.post, effect=verdict.change)

    def _add_greeting(self, event: Notification, handled: CommandResult) -> CommandResult:
        """Add the notice for a refused sender, if they may ask for access."""
        decision = decide(self._rules.access, event)
        if not decision.request_kind:
            return handled
        try:
            greeting = self._rules.greet(event, decision)
        except StoreError:
            raise
        except Exception:  # a bug: the sender gets no notice, and the stream goes on
            logger.exception("whoever is refused cannot be greeted")
            return handled
        if greeting is None:
            return handled
        changes = [one for one in (handled.effect, greeting.change) if one is not None]
        return replace(handled, post=greeting.post, effect=sum(changes[1:], changes[0]) if changes else None)

    async def _judge_link(
        self, link: ConnectionChanged, judged: Judgement
    ) -> tuple[CommandResult, ConversationId | None]:
        """Route a change of the link to the agent of that account. A repeated report is only noted."""
        if self._was_up is None:
            self._was_up = next(
                (one.up for one in await self._reader.connection_states() if one.channel == link.channel), True
            )
        is_change, self._was_up = link.up != self._was_up, link.up
        if judged.fate not in ("due", "context"):
            return CommandResult(judgement=judged), None
        agent = self._rules.bindings.find_agent(link.channel)
        if is_change and agent:
            return CommandResult(judgement=judged), inner_conversation(agent)
        rule = "no agent is bound to this account" if is_change else "it was known"
        return CommandResult(judgement=replace(judged, fate="noted", rule=rule)), None

    async def _judge_reaction(self, reaction: ReactionChanged, judged: Judgement) -> CommandResult:
        """Only note a reaction, unless it is to a message of the agent: one look into an index tells that."""
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
        """Judge a message, and break a loop of two bots.

        A repeated message counts again: at worst a loop ends, or a person's message counts, one message too late.
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
            recent = (
                entry.fact
                for entry in await self._reader.newest_entries(
                    EXCHANGE_LOOK_BACK, kinds=MESSAGE_KINDS, conversation=conversation
                )
            )
            before = recount_exchanges((one for one in recent if isinstance(one, Message)), self._judge)
        now = count_exchanges(before or 0, message, judged)
        self._exchanges.put(conversation, now)
        return break_loop(judged, now, rules.max_bot_exchanges())

    def _find_salience(self, message: Message) -> str | None:
        return self._salience.find_reason(message, self._clock.now())


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecidedEvent:
    event: Notification
    handled: CommandResult
    conversation: ConversationId | None
    """Conversation in which it is unread, if due; else the one in which it happened."""
    entries: tuple[NewEntry, ...]
    """The event, its judgement, its changes, and the answer if there is one."""


class Intake:
    """The `Emit` of one channel."""

    def __init__(
        self,
        channel: ChannelName,
        *,
        store: Store,
        clock: Clock,
        policy: IntakePolicy,
        stats: GatewayStats,
        places: PrivacyCache | None,
        titles: PlaceTitles,
    ) -> None:
        """`policy` is this channel's own; the rest is shared by the intakes of all channels."""
        self._titles = titles
        self._channel = channel
        self._store = store
        self._clock = clock
        self._policy = policy
        self._stats = stats
        self._places = places

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Append a batch with the decisions about it, in one transaction. See `channels.base.Emit`.

        A command with an effect ends a transaction, because the events after it are decided by the new state; the
        cursor moves in the last one. If cancelled, a running transaction is completed first: the
        platform repeats its events, and then they are not new.
        """
        decided, name_entries = list[_DecidedEvent](), list[NewEntry]()
        names = dict[ConversationId, PlaceNames]()
        for event in batch:
            with log_context(**_log_context(event)):
                name_entries += await self._build_name_entries(event, names)
                decided.append(await self._decide(event))
            if decided[-1].handled.effect is not None:
                await run_to_completion(self._write(decided, name_entries))
                decided, name_entries, names = [], [], {}
        await run_to_completion(self._write(decided, name_entries, cursor))

    async def _build_name_entries(
        self, event: Notification, written: dict[ConversationId, PlaceNames]
    ) -> list[NewEntry]:
        """Return the new names of the event's place, and their judgement, if they are shown as a line.

        `written`: names that stand in the same transaction; the new ones are added.
        """
        named = await self._titles.find_new_names(event, self._clock.now(), written)
        if named is None:
            return []
        now, place = self._clock.now(), named.at.conversation
        entry = NewEntry(fact=named, at=now, conversation=place, key=dedup_key(named))
        announced = isinstance(event, MembershipChanged) and event.change in ("title", "topic")
        judged = None if announced else self._policy.judge_name(named)
        return [entry] if judged is None else [entry, NewEntry(fact=judged, at=now, conversation=place, cause=entry)]

    async def _write(
        self, decided: Sequence[_DecidedEvent], name_entries: Sequence[NewEntry], cursor: str | None = None
    ) -> None:
        """Append one transaction. At most the last event has an effect."""
        entries = [*name_entries, *(entry for one in decided for entry in one.entries)]
        if cursor is not None:
            entries.append(NewEntry(fact=CursorMoved(channel=self._channel, value=cursor), at=self._clock.now()))
        written = dict[int, AppendResult]()
        try:
            written = dict(zip(map(id, entries), await self._store.append(entries), strict=True))
        finally:
            for one in decided:
                if one.handled.effect is not None:
                    one.handled.effect.settle(written.get(id(one.entries[0])))
        fresh = [one for one in decided if written[id(one.entries[0])].is_new]
        for one in decided:
            if not written[id(one.entries[0])].is_new:
                self._policy.forget_repeated(one.event)
        for entry in name_entries:
            if isinstance(entry.fact, PlaceRenamed):
                self._titles.learn(entry.fact)
        self._stats.count_events(self._channel, (one.event for one in fresh), self._clock.now())
        for one in fresh:
            with log_context(**_log_context(one.event)):
                _log_event(one.event, one.handled.judgement)

    async def _decide(self, event: Notification) -> _DecidedEvent:
        """Decide about one event, and build its entries."""
        event, handled, place = await self._policy.handle(event)
        now = self._clock.now()
        noticed = NewEntry(fact=event, at=now, conversation=place, key=dedup_key(event))
        entries = [noticed, NewEntry(fact=handled.judgement, at=now, conversation=place, cause=noticed)]
        if isinstance(event, Message) and handled.judgement.fate != "refused":
            known = self._places.find_new_audience(event) if self._places is not None else None
            entries += [NewEntry(fact=known, at=now, conversation=place, cause=noticed)] if known is not None else []
        if handled.effect is not None:
            entries += handled.effect.entries(noticed)
        if handled.post is not None:
            queued = PostQueued(post=handled.post)
            key = f"post:{handled.post.key}"
            where = handled.post.to.conversation
            entries.append(NewEntry(fact=queued, at=now, conversation=where, key=key, cause=noticed))
        return _DecidedEvent(event=event, handled=handled, conversation=place, entries=tuple(entries))


def _log_event(event: Notification, judged: Judgement) -> None:
    """Log a new event, as far as operators want to know of it."""
    if isinstance(event, ConnectionChanged):
        reason = f": {event.reason}" if event.reason else ""
        logger.info("%s is %s%s", event.channel, "up" if event.up else "down", reason)
    if judged.fate == "refused":
        logger.info("refused %s: %s", judged.type, judged.rule)


def _log_context(event: Notification) -> dict[str, str]:
    """Return the context of log lines about this event."""
    if isinstance(event, ConnectionChanged):
        return {"channel": event.channel}
    return {} if event.at is None else {"conversation": event.at.conversation}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeServices:
    """Services from which the intakes of all channels are built."""

    live: LiveSettings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    access_policy: AccessPolicy
    bindings: Bindings
    stats: GatewayStats
    model: Callable[[], str]
    """As `CommandContext.model_name`."""
    mode: Callable[[], str]
    """As `CommandContext.agent_mode`."""
    rewinds: Rewinder
    titles: PlaceTitles | None = None
    """Titles of places. None: those that channels report."""
    greet: GreetStranger = lambda _event, _decision: None
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    limits: UsageLimiter | None = None
    """Limits on messages that start turns. None: there are none."""
    level: Callable[[], PresenceLevel] = lambda: "present"
    """Returns the current presence of people."""
    places: PrivacyCache | None = None
    """Knows who reads a place. None: what platforms say about that is not recorded."""
    attention_policy: attention.AttentionPolicy | None = None
    """Policy of attention. None: the configured one."""
    handlers: Mapping[str, CommandHandler] = field(default_factory=lambda: BASE_HANDLERS)
    """Command handlers, by `name` or `name sub`."""
    redactor: Redactor
    """Applied to answers of commands, and to audit records."""
    approvals: Approvals | None = None
    """As `CommandContext.approvals`."""
    tools: Callable[[Address], ToolList] = lambda _: ToolList()
    """As `CommandContext.tools_at`."""


class ChannelIntakes(Mapping[ChannelName, Intake]):
    """Intakes by channel, made at the first look-up."""

    def __init__(self, services: IntakeServices) -> None:
        self._services, self._rules = services, _build_rules(services)
        self._titles = services.titles or PlaceTitles(services.store, services.redactor, services.channels)
        self._intakes: dict[ChannelName, Intake] = {}

    def __getitem__(self, name: ChannelName) -> Intake:
        services = self._services
        if name not in services.channels:
            raise KeyError(name)
        if name not in self._intakes:
            policy = IntakePolicy(self._rules, services.store, services.clock)
            self._intakes[name] = Intake(
                name,
                store=services.store,
                clock=services.clock,
                policy=policy,
                stats=services.stats,
                places=services.places,
                titles=self._titles,
            )
        return self._intakes[name]

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._services.channels)

    def __len__(self) -> int:
        return len(self._services.channels)

    def drop(self, name: ChannelName) -> None:
        """Forget a removed channel."""
        self._intakes.pop(name, None)


def _build_rules(services: IntakeServices) -> IntakeRules:
    """Build the rules that all channels share."""
    live = services.live
    dispatcher = CommandDispatcher(
        _build_command_context(services),
        services.access_policy,
        lambda: live.settings.commands,
        handlers=services.handlers,
        own_names=_make_nick_lookup(services.channels),
        redactor=services.redactor,
        with_titles=services.titles.add_titles if services.titles is not None else str,
    )
    loops = BotLoopGuard()

    def record_own_posts(entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is None:
                continue
            if isinstance(entry.fact, PostQueued):
                loops.record_post(entry.conversation, entry.fact.post.text)
            elif isinstance(entry.fact, PartSendStarted) and not entry.fact.part:
                loops.record_sending(entry.conversation, services.clock.monotonic())

    services.store.subscribe(record_own_posts, PostQueued, PartSendStarted)
    return IntakeRules(
        access=services.access_policy,
        attention=services.attention_policy or policies.build_attention_policy(live.settings),
        bindings=services.bindings,
        dispatcher=dispatcher,
        max_bot_exchanges=lambda: live.settings.access.max_bot_exchanges,
        greet=services.greet,
        limits=services.limits,
        level=services.level,
        loop_guard=loops,
        notify_owners=services.notify_owners,
    )


def _make_nick_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[ChannelName], Collection[str] | None]:
    """Return a function that finds the bot's own names on a channel, where commands may follow a name."""
    named = ChannelLookup[HasNick](channels, lambda one: one if isinstance(one, HasNick) else None)

    def own_names(name: ChannelName) -> Collection[str] | None:
        channel = named.get(name)
        return None if channel is None else {channel.nick.casefold()}

    return own_names


def _build_command_context(services: IntakeServices) -> CommandContext:
    paged = ChannelLookup[CanPage](services.channels, lambda one: one if isinstance(one, CanPage) else None)
    private_address = make_private_address_lookup(services.channels)

    def find_contact(name: ChannelName) -> str | None:
        settings = services.live.settings
        return getattr(settings.channels.get(name), "contact", None) or settings.commands.contact

    def count_pages(post: Post) -> int:
        channel = paged.get(post.to.channel)
        return 1 if channel is None else channel.page_count(post)

    return CommandContext(
        reader=services.store,
        clock=services.clock,
        stats=services.stats,
        version=version("reverie-gateway"),
        model_name=services.model,
        agent_mode=services.mode,
        operator_contact=find_contact,
        prefixes=CommandPrefixes(services.live, services.channels),
        rewinds=services.rewinds,
        count_pages=count_pages,
        approvals=services.approvals,
        tools_at=services.tools,
        awaiting_channels=ChannelLookup(
            services.channels, lambda channel: channel.capabilities.defers_commands or None
        ),
        private_address=lambda command: private_address(command.at, command.sender),
    )
