"""What becomes of everything that comes in on one channel: by access, by what it asks of us, by attention."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agent.signals import Level
from gateway import access, attention, exchanges
from gateway.attention import Listen
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.commands.desk import Desk, Handled
from gateway.events import Command, ConversationId, Link, Message, Named, Notification, Post, PostKey, Reacted
from gateway.exchanges import LOOK_BACK, Exchanges, Loops
from gateway.limits.limits import Verdict
from gateway.records import AMBIENT, MESSAGES, Judged, address_of, inner, key_of
from gateway.roster.greeting import Greeting
from gateway.roster.words import named
from gateway.roster.words import place as place_name
from gateway.salience import Salient
from gateway.standing import ADMINS, person
from gateway.store import Reader, StoreError

logger = logging.getLogger("reverie.judging")

LOOPING = "You answer me faster than a person can read. I say nothing more here for {} seconds."
Greet = Callable[[Notification, access.Decision], Greeting | None]
"""What is said to whoever is refused, and may ask to be let in; None: nothing."""
Limit = Callable[[Message, Judged, str], Verdict]
"""Whether a message may start a turn of that agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What events are judged by, on all channels."""

    access: access.Policy
    attention: attention.Policy
    bindings: Bindings
    desk: Desk
    max_bot_exchanges: Callable[[], int]
    greet: Greet
    limit: Limit
    level: Callable[[], Level]
    """How near people are."""
    loops: Loops = field(default_factory=Loops)
    tell: Callable[[str, str], None] = lambda _key, _text: None
    """A text for owners, with the name of what it is about."""


class Judging:
    """For one channel."""

    def __init__(self, rules: Rules, reader: Reader, clock: Clock) -> None:
        self._rules = rules
        self._reader = reader
        self._clock = clock
        self._exchanges = Exchanges()
        self._salient = Salient(lambda: rules.attention.salience)
        self._up: bool | None = None
        """As the newest link says. None: nobody asked yet."""

    async def handle(self, event: Notification) -> tuple[Notification, Handled, ConversationId | None]:
        """The event as it is understood, what becomes of it, and where it is unread if it is due, or else was."""
        rules = self._rules
        if isinstance(event, Message) and not event.history:
            event = await rules.desk.command(event, self._listen(event)) or event
        at = address_of(event)
        place = at.conversation if at is not None else None
        if isinstance(event, Command):
            handled = await rules.desk.handle(event)
        elif isinstance(event, Message):
            judged = await self._judge_message(event)
            handled = self._looping(event, judged) or self._limited(event, judged)
        elif isinstance(event, Link):
            handled, place = await self._linked(event, self._judge(event))
        elif isinstance(event, Reacted):
            handled = await self._reacted(event, self._judge(event))
        else:
            handled = Handled(judged=self._judge(event))
        if handled.judged.fate == "refused" and handled.post is None and not getattr(event, "history", False):
            handled = self._greeted(event, handled)
        if handled.judged.fate == "refused" and handled.post is None and isinstance(event, Command):
            handled = replace(handled, post=rules.desk.regret(event))
        return event, handled, place

    def role(self, message: Message) -> access.Role:
        """Of who said it, there."""
        return access.role_of(self._rules.access, message.at, message.sender)

    def named(self, event: Named) -> Judged | None:
        """The judgement on a place's new name. None: it is not told as a line."""
        judged = self._judge(event)
        return judged if judged.fate == "context" else None

    def _looping(self, message: Message, judged: Judged) -> Handled | None:
        """What becomes of a line of somebody who answers as no person does. None: they are no such."""
        if judged.fate != "due" or judged.role in ADMINS:
            return None
        sender, conversation = message.sender, message.at.conversation
        pause = self._rules.loops.theirs(conversation, sender.id, message.text, self._clock.monotonic())
        if pause is None:
            return None
        rule = f"loop broken: no person answers so fast; they are answered again in {pause.left_s:.0f} s"
        judged = replace(judged, fate="context", urgency=AMBIENT, rule=rule)
        if not pause.begins:
            return Handled(judged=judged)
        who = named(person(message.at.channel, sender.id), sender.name)
        self._rules.tell(
            f"loop:{conversation}",
            f"{who} answers each of my lines in {place_name(conversation)} faster than a person can. I take it for a "
            "program, and answer it less and less. `block` ends that. I say this once a day.",
        )
        if not pause.first or sender.is_bot:
            return Handled(judged=judged)
        key = PostKey(hashlib.sha256(f"loop:{key_of(message)}".encode()).hexdigest()[:26])
        text = LOOPING.format(round(pause.left_s))
        return Handled(judged=judged, post=Post(key=key, to=message.at, text=text, style="notice"))

    def _limited(self, message: Message, judged: Judged) -> Handled:
        """Held back where somebody asks for more than they may."""
        verdict = self._rules.limit(message, judged, self._rules.bindings.of(message.at).agent)
        return Handled(judged=verdict.judged, post=verdict.post, change=verdict.change)

    def _greeted(self, event: Notification, handled: Handled) -> Handled:
        """With what is said to whoever may ask to be let in."""
        decision = access.decide(self._rules.access, event)
        if not decision.asks:
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
        changes = [one for one in (handled.change, greeting.change) if one is not None]
        return replace(handled, post=greeting.post, change=sum(changes[1:], changes[0]) if changes else None)

    async def _linked(self, link: Link, judged: Judged) -> tuple[Handled, ConversationId | None]:
        """A link that came up or went down is told to whose account it is. What only says so again is noted."""
        if self._up is None:
            self._up = next((one.up for one in await self._reader.links() if one.channel == link.channel), True)
        news, self._up = link.up != self._up, link.up
        if judged.fate not in ("due", "context"):
            return Handled(judged=judged), None
        agent = self._rules.bindings.agent_of(link.channel)
        if news and agent:
            return Handled(judged=judged), inner(agent)
        rule = "no agent is bound to this account" if news else "it was known"
        return Handled(judged=replace(judged, fate="noted", rule=rule)), None

    async def _reacted(self, reaction: Reacted, judged: Judged) -> Handled:
        """A reaction is told if it is to something that the agent said: one look into an index tells."""
        if judged.fate in ("due", "context"):
            ours = await self._reader.ours(reaction.at.conversation, reaction.message)
            if ours is None:
                judged = replace(judged, fate="noted", rule="a reaction to what somebody else said")
        return Handled(judged=judged)

    def _listen(self, event: Notification) -> Listen:
        place = address_of(event)
        return "all" if place is None else self._rules.bindings.of(place).listen

    def _judge(self, event: Notification) -> Judged:
        rules = self._rules
        decision = access.decide(rules.access, event)
        return attention.judge(rules.attention, event, decision, self._listen(event), level=rules.level())

    async def _judge_message(self, message: Message) -> Judged:
        """As policy says, unless two bots have been talking for too long.

        A repeat counts again: at worst such a talk ends, or a person is taken to have spoken, one message late.
        """
        rules = self._rules
        decision, level = access.decide(rules.access, message), rules.level()
        judged = attention.judge(rules.attention, message, decision, self._listen(message), self._lift, level=level)
        conversation = message.at.conversation
        if message.sender.is_bot and judged.fate != "due":
            return judged
        before = self._exchanges.get(conversation)
        if before is None and message.sender.is_bot:
            said = (
                entry.fact for entry in await self._reader.newest(LOOK_BACK, kinds=MESSAGES, conversation=conversation)
            )
            before = exchanges.recount((one for one in said if isinstance(one, Message)), self._judge)
        now = exchanges.count(before or 0, message, judged)
        self._exchanges.keep(conversation, now)
        return exchanges.broken(judged, now, rules.max_bot_exchanges())

    def _lift(self, message: Message) -> str | None:
        return self._salient.lift(message, self._clock.now())
