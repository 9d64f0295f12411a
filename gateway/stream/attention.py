"""Attention: how urgent an event is, and whether it starts a turn. Pure but for `LiveAttention`,
`InternalIntake` and the direct chats.

`judge` gives every notification a dotted type, most general part first, and an urgency: from the
first rule of the operator that matches, else from the kind of event. A threshold at any prefix of
the type cuts off lower urgencies. Rules are set in the configuration alone; thresholds also by
command, which come before the configured ones.

In a room where the operator lets the agent speak unasked (`speaks_up` of its binding), an open
question is normal, and other talk of people is low. `gateway.stream.inbox` announces it once nobody
writes there any more: a flood of questions makes one turn, not hundreds. In any room that the agent
hears, a line is normal that names an owner who has not written there lately: it may be for them.

`LiveAttention` holds the thresholds set by command in memory. The log has each
(`AttentionThresholdSet`), and the newest fact about a type holds.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from channels.text import fold_words
from gateway.access.policy import AccessDecision, ListenMode, Routed, SpeaksUp
from gateway.config.models import AttentionRuleConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    Alarm,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    MembershipChanged,
    Message,
    MessageEdited,
    Notification,
    PlaceRenamed,
    PresenceLevel,
    ReactionChanged,
    Sender,
    TaskFinished,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    OPERATOR_CHANNEL,
    URGENT,
    AttentionThresholdSet,
    Fact,
    Judgement,
    TurnRecord,
    dedup_key,
    inner_conversation,
    is_direct_line,
)
from gateway.core.frozen import frozen
from gateway.core.identity import ROLE_ORDER, AccessPolicy, Role, identify
from gateway.core.ratelimit import LruDict
from gateway.store import DueReason, LogEntry, NewEntry, Store, StoreReader
from gateway.store.effects import Decision
from gateway.stream.presence import PresenceTracker
from gateway.stream.routing import Bindings

SPEAKS_UP: Final = "speaks_up: "
"""Beginning of the rules by which room talk is due because the agent may speak unasked there."""
TALK_RULE: Final = f"{SPEAKS_UP}talk of people"
MUCH_TALK_RULE: Final = f"{SPEAKS_UP}much talk"
MUCH_TALK_LINES: Final = 20
"""Lines that the agent has not looked at which are much talk (`speaks_up: sometimes`)."""
MAX_TALK_LOOKS: Final = 4
"""Looks at a room within a UTC day after which much talk asks for no other."""
Urgency = Literal[0, 1, 2, 3]
INHERIT = -1
"""Threshold value that means: use the next shorter prefix."""
PRESENCE_OFFSETS: Final[Mapping[PresenceLevel, int]] = {"focused": 1, "idle": -1, "away": -1}
"""Shift of the operator's thresholds by presence; other levels have none.

While people sleep, events below urgent are noticed, and held back by `agent.dmn`.
"""

PRESENT: Final[PresenceLevel] = "present"
_URGENCIES: Final[Mapping[str, Urgency]] = {
    "ambient": AMBIENT,
    "low": LOW,
    "normal": NORMAL,
    "urgent": URGENT,
}


@frozen(eq=False)
class AttentionPolicy:
    """The operator's settings for attention, and the thresholds set by command."""

    rules: Sequence[AttentionRuleConfig] = ()
    thresholds: Mapping[str, int]
    """Thresholds by prefix of the dotted type; `-1` inherits."""
    set_thresholds: Mapping[str, int] = field(default_factory=dict)
    """Those set by command, which replace the ones of the configuration for the same prefix."""


def format_event_type(event: Notification) -> str:
    """Return the dotted type, e.g. `irc.libera.mention.#python`."""
    place = event.at
    word = "reaction" if isinstance(event, ReactionChanged) else event.kind
    if place is None:
        return (
            f"{event.channel}.{word}" if isinstance(event, ConnectionChanged) else f"agent.{word}"
        )
    thread = f".{place.thread}" if place.thread is not None else ""
    return f"{place.channel}.{word}.{place.room}{thread}"


def assess(
    policy: AttentionPolicy,
    event: Notification,
    decision: AccessDecision,
    listen: ListenMode,
    speaks_up: SpeaksUp = "never",
    *,
    level: PresenceLevel = "present",
    names_owner: bool = False,
) -> Judgement:
    """Return the judgement of an event that access allows.

    `level` shifts the operator's thresholds. An event that is held back only by this shift becomes
    context, so that a later turn shows it. `names_owner`: room talk names an owner who is not
    there, so that the agent may tell them.
    """
    dotted = format_event_type(event)
    fate: Literal["due", "context", "noted"] = "noted"
    urgency, rule = None, ""
    if policy.rules:
        urgency, rule = _match_rules(policy, event, dotted, decision.role)
    if isinstance(event, Message) and event.history:
        urgency, rule = (
            AMBIENT,
            "context: it was said a while ago, or the platform reports what somebody did",
        )
    if urgency is None:
        urgency, rule = _default_urgency(event, listen, speaks_up, names_owner=names_owner)
    if isinstance(event, MembershipChanged) and event.change == "invite":
        rule = decision.rule
    elif _is_reportable(event) and listen == "off":
        rule = "listen: off"
    elif _is_reportable(event):
        bar = AMBIENT, ""
        if policy.thresholds or policy.set_thresholds:
            bar = find_effective_threshold(policy, dotted)
        fate, urgency, because = _apply_threshold(event, urgency, listen, level, bar)
        rule = because or rule
    return Judgement(type=dotted, urgency=urgency, fate=fate, rule=rule, role=decision.role)


def _apply_threshold(
    event: Notification,
    urgency: Urgency,
    listen: ListenMode,
    level: PresenceLevel,
    bar: tuple[int, str],
) -> tuple[Literal["due", "context", "noted"], Urgency, str]:
    """Return fate and urgency of a reportable event, and the rule that decided; empty: the rule so
    far.
    """
    threshold, says = bar
    passes = min(max(threshold + PRESENCE_OFFSETS.get(level, 0), AMBIENT), URGENT)
    if urgency < min(threshold, passes):
        return "noted", urgency, f"{says} is {threshold}"
    if AMBIENT < urgency < passes:
        return "context", AMBIENT, f"{says} is {threshold}, and people are {level}"
    if urgency > AMBIENT:
        return "due", urgency, ""
    if not isinstance(event, Message | MembershipChanged | PlaceRenamed):
        return "noted", urgency, ""
    if event.kind == "room" and listen == "mention":
        return "noted", urgency, "listen: mention"
    return "context", urgency, ""


def _is_reportable(event: Notification) -> bool:
    match event:
        case Message() | ConnectionChanged() | Alarm() | TaskFinished():
            return True
        # the channel card is not rewritten for a new topic, so that is shown as a line
        case MembershipChanged():
            return event.change in ("topic", "title") and event.news
        case PlaceRenamed():
            return bool(event.changed)
        case ReactionChanged():
            return event.added
        case DeliveryReport():
            return event.state != "sent"
        case _:
            return False


def _match_rules(
    policy: AttentionPolicy, event: Notification, dotted: str, role: Role
) -> tuple[Urgency | None, str]:
    """Return the urgency by the first rule that matches, and its name. None: none does."""
    text: str = getattr(event, "text", None) or ""
    rank = ROLE_ORDER.index(role) if getattr(event, "sender", None) is not None else -1
    matching = (
        (_URGENCIES[rule.urgency], f"attention.rules[{index}]")
        for index, rule in enumerate(policy.rules)
        if (f"{dotted}.".startswith(f"{rule.type}.") or fnmatchcase(dotted, rule.type))
        and (rule.keyword or "").casefold() in text.casefold()
        and (rule.role is None or rank >= ROLE_ORDER.index(rule.role))
    )
    return next(matching, (None, ""))


NAMES_OWNER: Final = "it names an owner"
"""The rule of a line of a room that makes the agent look there, so that it tells the owner."""


def _default_urgency(
    event: Notification, listen: ListenMode, speaks_up: SpeaksUp, *, names_owner: bool
) -> tuple[Urgency, str]:
    match event:
        case Message(kind="room") if listen == "all":
            return URGENT, "listen: all"
        case Message(kind="room") if names_owner and listen == "ambient":
            return NORMAL, NAMES_OWNER
        case Message(kind="room") if speaks_up != "never" and not event.sender.is_bot:
            is_question = is_open_question(event)
            return (NORMAL, f"{SPEAKS_UP}an open question") if is_question else (LOW, TALK_RULE)
        case Message(kind="room"):
            return AMBIENT, "room talk is ambient"
        case Message():
            return URGENT, f"a {event.kind} is urgent"
        case MembershipChanged():
            return AMBIENT, "membership is ambient"
        case PlaceRenamed():
            return AMBIENT, "a name is ambient"
        case Alarm() | TaskFinished(at=Address()):  # of a job that somebody is to hear of
            return NORMAL, "an alarm or the end of a job is normal"
        case DeliveryReport():
            return LOW, "a delivery report is low"
        case _:
            return LOW, f"{event.kind} is low"


def find_effective_threshold(policy: AttentionPolicy, dotted: str) -> tuple[int, str]:
    """Return the threshold that holds now, the lowest urgency that passes, and its name for
    reasons, by the longest prefix that is set; empty: none is.
    """
    here, prefix = policy.set_thresholds, dotted
    thresholds = {**policy.thresholds, **here} if here else policy.thresholds
    while prefix:
        level = thresholds.get(prefix, INHERIT)
        if level != INHERIT:
            given = "notify threshold " if prefix in here else "attention.thresholds."
            return level, f"{given}{prefix}"
        prefix = prefix.rpartition(".")[0]
    return AMBIENT, ""


_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f")
"""The ASCII mark, the wide one of East Asian scripts, and the Arabic one."""
_TRAILING_CHARS: Final = " \t\r\n\"'\u201d\u2019\u00bb)]*_~`!"
"""Characters that may follow a question mark: white space, quotes, brackets, marks of emphasis."""
_ADDRESSED: Final = re.compile(r"(?<!\S)@\w|\A\S{1,64}[:,]\s|\A<@")
"""`@name` anywhere, or `name:` or `name,` at the start. Also matches `well, ...`: in doubt the
agent is silent."""


def is_open_question(message: Message) -> bool:
    """Return whether a message ends with a question mark and is addressed to nobody, as far as its
    text shows.
    """
    text = message.text[-4_096:].rstrip(_TRAILING_CHARS)
    if (
        not text.endswith(_QUESTION_MARKS)
        or message.reply_to is not None
        or _ADDRESSED.search(message.text[:4_096])
    ):
        return False
    return "://" not in text.rsplit(maxsplit=1)[-1]


def is_talk_alone(reasons: Sequence[DueReason]) -> bool:
    """Return whether nothing but talk that waits for quiet is due."""
    return all(one.rule.startswith(SPEAKS_UP) for one in reasons)


def was_ordered(reasons: Sequence[DueReason]) -> bool:
    """Return whether something is due there by a rule of the operator, or by an intention."""
    return any(one.rule.startswith(("attention.rules", "intention ")) for one in reasons)


def describe_reason(rule: str) -> str:
    """Return in words, for the agent, why an entry with this `Judgement.rule` is due."""
    if rule.startswith("attention.rules"):
        return "a rule of your operator"
    if rule.startswith("intention "):
        return f"your {rule}"
    return _REASONS.get(rule, rule.removeprefix(SPEAKS_UP))


_REASONS: Final = {
    "reacted is low": "a reaction to your message",
    "a delivery report is low": "a delivery that failed",
}


DIRECT_KINDS: Final = ("direct", "command")
"""Kinds of entries that somebody may have written in a direct chat."""
MAX_ENTRIES: Final = 3_000
"""Direct messages that are searched for one from an owner, newest first."""


class DirectChat(NamedTuple):
    """A direct chat, as its newest line shows it."""

    at: Address
    sender: Sender
    language: str | None = None
    """Tag of the language of their client, if known."""


def parse_direct_chat(fact: Fact) -> DirectChat | None:
    """Return the direct chat in which somebody wrote this. None: it was not written in one."""
    if isinstance(fact, Message | Command) and is_direct_line(fact):
        return DirectChat(fact.at, fact.sender, fact.language)
    return None


async def iter_direct_chats(reader: StoreReader) -> AsyncIterator[DirectChat]:
    """Yield the direct chats in which people wrote, the newest lines first; a chat again for each
    of them. Raises StoreError.
    """
    async for one in reader.iter_newest(MAX_ENTRIES, kinds=DIRECT_KINDS):
        if (chat := parse_direct_chat(one.fact)) is not None:
            yield chat


async def find_owner_chat(
    reader: StoreReader, policy: AccessPolicy, beside: ChannelName | None = None
) -> DirectChat | None:
    """Return the chat in which an owner wrote last; that of the operator's own channel only if
    there is no other. Raises StoreError.

    `beside`: a channel that does not count.
    """
    operator_chat = None
    async for chat in iter_direct_chats(reader):
        if chat.at.channel != beside and is_of_owner(chat, policy):
            if chat.at.channel != OPERATOR_CHANNEL:
                return chat
            operator_chat = operator_chat or chat
    return operator_chat


def is_of_owner(chat: DirectChat, policy: AccessPolicy) -> bool:
    """Return whether this is a verified owner everywhere: an owner of one room or agent gets no
    notices.
    """
    return identify(policy, chat.at, chat.sender).global_role == "owner"


MAX_PLACES: Final = 1_000
"""Places of which something is remembered."""
MAX_THRESHOLDS: Final = 200
MIN_NAME_CHARS: Final = 3
"""Shorter names of owners are words of the talk too often."""
OWNER_STAYS: Final = timedelta(minutes=30)
"""Time after an owner's line in a room in which they are taken to read what names them there."""
_LOOK_BACK_TURNS: Final = 200
"""Turns of an inner conversation that are searched for the looks of a day: `dmn.daily_turns`."""


class LiveAttention:
    """Attention by the settings in force, the thresholds of the log, and what happened in a place.
    Call `load` before the first use.
    """

    policy: AttentionPolicy

    def __init__(
        self,
        store: Store,
        clock: Clock,
        live: LiveSettings,
        presence: PresenceTracker,
        people: AccessPolicy,
    ) -> None:
        self._reader, self._clock, self.presence = store, clock, presence
        self._people = people
        self._owner_names = set[str]()
        """Names of the owners who wrote to an agent, each as words in lower case with a space
        between: whole, and its first word."""
        self.thresholds: Mapping[str, int] = {}
        self._looked_enough = LruDict[ConversationId, date](MAX_PLACES)
        """Day on which much talk asks for no other look there."""
        self._owner_there = LruDict[ConversationId, datetime](MAX_PLACES)
        """Time of an owner's newest line in each room."""
        self._links_up = dict[ChannelName, bool]()
        """Newest state of each channel's link to its platform in the log, as far as it was read."""
        live.follow(self._use)
        store.subscribe(self._on_appended, AttentionThresholdSet, ConnectionChanged)
        store.subscribe(self._on_direct, Message, Command, where=is_direct_line)

    def _use(self, settings: Settings) -> None:
        config = settings.attention
        self.policy = AttentionPolicy(
            rules=config.rules, thresholds=config.thresholds, set_thresholds=self.thresholds
        )

    async def load(self) -> None:
        """Read the thresholds, and the name of an owner. Call it once roles are loaded. Raises
        StoreError.
        """
        if (chat := await find_owner_chat(self._reader, self._people)) is not None:
            self._learn_name(chat.sender)
        self._on_appended(await self._reader.current_facts("threshold_set"))

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            fact = entry.fact
            if isinstance(fact, ConnectionChanged):  # whichever process holds the channel
                self._links_up[fact.channel] = fact.up
            elif isinstance(fact, AttentionThresholdSet):
                values = {**self.thresholds, fact.type: fact.value}
                self.thresholds = {
                    prefix: value for prefix, value in values.items() if value is not None
                }
                self.policy = replace(self.policy, set_thresholds=self.thresholds)

    def _on_direct(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            chat = parse_direct_chat(entry.fact)
            if chat is not None and is_of_owner(chat, self._people):
                self._learn_name(chat.sender)

    def _learn_name(self, owner: Sender) -> None:
        names = (owner.name, owner.name.partition(" ")[0], owner.account or "")
        self._owner_names.update(
            one for one in map(fold_words, names) if len(one) >= MIN_NAME_CHARS
        )

    def assess(
        self,
        event: Notification,
        decision: AccessDecision,
        listen: ListenMode,
        speaks_up: SpeaksUp = "never",
        *,
        names_owner: bool = False,
    ) -> Judgement:
        """Return the judgement of an event by the policy and the presence of this moment, which
        counts only where there are thresholds that it could shift.
        """
        policy, level = self.policy, PRESENT
        if policy.thresholds or policy.set_thresholds:
            level = self.presence.level
        return assess(
            policy, event, decision, listen, speaks_up, level=level, names_owner=names_owner
        )

    async def judge(self, routed: Routed, decided: Decision) -> Decision | None:
        """Judge an event that is no command and that access allows. Raises StoreError."""
        event, binding, names_owner = routed.event, routed.binding, False
        if isinstance(event, Message):
            if routed.role == "owner":
                self._owner_there.put(event.at.conversation, self._clock.now())
            names_owner = event.kind == "room" and self._names_absent_owner(event)
        judged = self.assess(
            event, routed.access, binding.listen, binding.speaks_up, names_owner=names_owner
        )
        if isinstance(event, Message):
            is_talk = judged.rule == TALK_RULE and binding.speaks_up == "sometimes"
            if is_talk and await self._is_much_talk(event.at.conversation, routed.agent):
                judged = replace(judged, urgency=NORMAL, rule=MUCH_TALK_RULE)
        elif isinstance(event, ConnectionChanged):
            judged = await self._judge_link(routed, event, judged)
        elif isinstance(event, ReactionChanged):
            judged = await self._judge_reaction(event, judged)
        elif isinstance(event, MessageEdited):
            judged = await self._judge_edit(event, judged)
        return Decision(judgement=judged, post=decided.post, effect=decided.effect)

    def _names_absent_owner(self, message: Message) -> bool:
        """Return whether a line of a room names an owner who has not written there lately."""
        if not self._owner_names:
            return False
        seen = self._owner_there.get(message.at.conversation)
        is_there = seen is not None and self._clock.now() - seen < OWNER_STAYS
        said = f" {fold_words(message.text)} "
        return not is_there and any(f" {name} " in said for name in self._owner_names)

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

    async def _judge_link(
        self, routed: Routed, link: ConnectionChanged, judged: Judgement
    ) -> Judgement:
        """Only note a repeated report, and a change of an account without an agent."""
        if (was_up := self._links_up.get(link.channel)) is None:
            states = await self._reader.connection_states()
            was_up = next((one.up for one in states if one.channel == link.channel), True)
        is_change, self._links_up[link.channel] = link.up != was_up, link.up
        if judged.fate not in ("due", "context") or (is_change and routed.agent):
            return judged
        rule = "no agent is bound to this account" if is_change else "nothing had changed"
        return replace(judged, fate="noted", rule=rule)

    async def _judge_reaction(self, reaction: ReactionChanged, judged: Judgement) -> Judgement:
        """Only note a reaction, unless it is to a message of the agent: one look into an index
        tells that.
        """
        if judged.fate in ("due", "context"):
            ours = await self._reader.find_own_post(reaction.at.conversation, reaction.message)
            if ours is None:
                judged = replace(judged, fate="noted", rule="a reaction to what somebody else said")
        return judged

    async def _judge_edit(self, edit: MessageEdited, judged: Judgement) -> Judgement:
        """Make the new text of a message that is for the model context for the next turn. Other
        edits are only noted.

        Platforms report edits that leave the text as it is, too: a link got a preview.
        """
        first = await self._reader.entry_by_key(f"message:{edit.at.conversation}:{edit.message}")
        if first is None or not isinstance(first.fact, Message):
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


class InternalIntake:
    """Intake of alarms and finished tasks."""

    def __init__(
        self, store: Store, clock: Clock, attention: LiveAttention, bindings: Bindings
    ) -> None:
        self._store, self._clock = store, clock
        self._attention, self._bindings = attention, bindings

    async def submit(self, event: Alarm | TaskFinished, *, cause: NewEntry | None = None) -> None:
        """Append and judge an event. Returns once it is durable; a repeated event is ignored.

        An event without a place goes to the agent's inner conversation. Raises ValueError for one
        without place and agent. `cause`: appended with it.
        """
        if event.at is None and not event.agent:
            raise ValueError("it concerns nobody")
        place = event.at.conversation if event.at is not None else inner_conversation(event.agent)
        judged, now = self.build_judgement(event), self._clock.now()
        noticed = NewEntry(
            fact=event, at=now, conversation=place, key=dedup_key(event), cause=cause
        )
        judgement = NewEntry(fact=judged, at=now, conversation=place, cause=noticed)
        await self._store.append([*([cause] if cause is not None else []), noticed, judgement])

    def build_judgement(self, event: Alarm | TaskFinished | DeliveryReport) -> Judgement:
        """Return the judgement of an event. The outbox appends that of a delivery together with
        it.
        """
        listen = self._bindings.find(event.at).listen if event.at is not None else "all"
        return self._attention.assess(
            event, AccessDecision(allowed=True, role="guest", rule="from inside"), listen
        )
