"""What becomes of everything that comes in on one channel: by access, by what it asks of us, by attention."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agent.signals import PresenceLevel
from gateway import access, attention, exchanges
from gateway.attention import ListenMode
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.commands.desk import CommandDispatcher, CommandResult
from gateway.events import (
    Command,
    ConnectionChanged,
    ConversationId,
    Message,
    Notification,
    PlaceRenamed,
    Post,
    PostKey,
    ReactionChanged,
)
from gateway.exchanges import EXCHANGE_LOOK_BACK, BotExchangeCounter, BotLoopGuard
from gateway.limits.limits import LimitDecision
from gateway.records import AMBIENT, MESSAGE_KINDS, Judgement, address_of, dedup_key, inner_conversation
from gateway.roster.greeting import PairingNotice
from gateway.roster.words import format_person, format_room
from gateway.salience import SalienceDetector
from gateway.standing import ADMIN_ROLES, AccessPolicy, Role, person_key, role_of
from gateway.store import StoreError, StoreReader

logger = logging.getLogger("reverie.judging")

LOOP_TEXT = "You answer me faster than a person can read. I say nothing more here for {} seconds."
GreetStranger = Callable[[Notification, access.AccessDecision], PairingNotice | None]
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
        decision = access.decide(self._rules.access, event)
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
        decision = access.decide(rules.access, event)
        return attention.judge(rules.attention, event, decision, self._listen_mode(event), level=rules.level())

    async def _judge_message(self, message: Message) -> Judgement:
        """As policy says, unless two bots have been talking for too long.

        A repeat counts again: at worst such a talk ends, or a person is taken to have spoken, one message late.
        """
        rules = self._rules
        decision, level = access.decide(rules.access, message), rules.level()
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
            before = exchanges.recount_exchanges((one for one in said if isinstance(one, Message)), self._judge)
        now = exchanges.count_exchanges(before or 0, message, judged)
        self._exchanges.put(conversation, now)
        return exchanges.break_loop(judged, now, rules.max_bot_exchanges())

    def _find_salience(self, message: Message) -> str | None:
        return self._salience.find_reason(message, self._clock.now())
