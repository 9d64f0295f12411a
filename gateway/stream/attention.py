"""Attention: how urgent an event is, and whether it starts a turn. Pure but for `LiveAttention`.

`judge` gives every notification a dotted type, most general part first, and an urgency: from the
first rule of the operator that matches, else from the kind of event. A threshold at any prefix of
the type cuts off lower urgencies. Rules are set in the configuration alone; thresholds also by
command, which come before the configured ones.

In a room where the operator lets the agent speak unasked (`speaks_up` of its binding), an open
question is normal, and other talk of people is low. `gateway.stream.inbox` announces it once nobody
writes there any more: a flood of questions makes one turn, not hundreds. In any room that the agent
hears, a line is normal that names an owner who has not written there lately: it may be for them.

Loops with bots are broken in two ways. A bot that the operator listed is answered, but after some
exchanges without a person's message in between its messages are only context (`break_loop`). A
program without a bot mark is recognised by the number of its answers in a row that came faster than
a person reads or types (`BotLoopGuard`).

`LiveAttention` holds the thresholds set by command in memory. The log has each
(`AttentionThresholdSet`), and the newest fact about a type holds.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Final, Literal

from channels.text import fold_words
from gateway.access.policy import AccessDecision
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.events import (
    Address,
    Alarm,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    MembershipChanged,
    Message,
    Notification,
    PlaceRenamed,
    PresenceLevel,
    ReactionChanged,
    TaskFinished,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    NORMAL,
    URGENT,
    AttentionThresholdSet,
    Fact,
    Judgement,
    address_of,
)
from gateway.core.fields import GuardedRegex
from gateway.core.identity import ROLE_ORDER, Role
from gateway.core.ratelimit import LruDict
from gateway.store import DueReason, LogEntry, Store

ListenMode = Literal["mention", "ambient", "all", "off"]
SpeaksUp = Literal["never", "when_useful", "sometimes"]
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


_URGENCIES: Final[Mapping[str, Urgency]] = {
    "ambient": AMBIENT,
    "low": LOW,
    "normal": NORMAL,
    "urgent": URGENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """A rule of the operator."""

    type: str
    """A type, a prefix of one (`irc.libera`), or a pattern with `*`."""
    urgency: Urgency
    keyword: str | None = None
    """Text that the event must contain, in any case."""
    role: Role | None = None
    """Lowest role of the person who caused the event: `member` matches admins and owners too."""
    regex: GuardedRegex | None = None
    """Expression that must match in the text."""

    def match(self, dotted: str, text: str, role: Role | None) -> bool:
        """Return whether this rule applies to such an event. `role`: of its sender; None: it has
        none.
        """
        type_matches = (
            dotted == self.type
            or dotted.startswith(f"{self.type}.")
            or fnmatchcase(dotted, self.type)
        )
        if not type_matches or (
            self.keyword is not None and self.keyword.casefold() not in text.casefold()
        ):
            return False
        if self.role is not None and (
            role is None or ROLE_ORDER.index(role) < ROLE_ORDER.index(self.role)
        ):
            return False
        return self.regex is None or self.regex.find(text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionPolicy:
    """The operator's settings for attention, and the thresholds set by command."""

    rules: tuple[AttentionRule, ...] = ()
    thresholds: Mapping[str, int]
    """Thresholds by prefix of the dotted type; `-1` inherits."""
    set_thresholds: Mapping[str, int] = field(default_factory=dict)
    """Those set by command, which replace the ones of the configuration for the same prefix."""


def build_attention_policy(settings: Settings) -> AttentionPolicy:
    """Build the policy of these settings, without thresholds set by command."""
    config = settings.attention
    rules = tuple(
        AttentionRule(
            type=rule.type,
            urgency=_URGENCIES[rule.urgency],
            keyword=rule.keyword,
            role=rule.role,
            regex=None if rule.regex is None else GuardedRegex(rule.regex),
        )
        for rule in config.rules
    )
    return AttentionPolicy(rules=rules, thresholds=config.thresholds)


def format_event_type(event: Notification) -> str:
    """Return the dotted type, e.g. `irc.libera.mention.#python`."""
    place = address_of(event)
    word = "reaction" if isinstance(event, ReactionChanged) else event.kind
    if place is None:
        return (
            f"{event.channel}.{word}" if isinstance(event, ConnectionChanged) else f"agent.{word}"
        )
    thread = f".{place.thread}" if place.thread is not None else ""
    return f"{place.channel}.{word}.{place.room}{thread}"


def judge(
    policy: AttentionPolicy,
    event: Notification,
    decision: AccessDecision,
    listen: ListenMode,
    speaks_up: SpeaksUp = "never",
    *,
    level: PresenceLevel = "present",
    names_owner: bool = False,
) -> Judgement:
    """Judge an event. Refused events are never shown to the model.

    `level` shifts the operator's thresholds. An event that is held back only by this shift becomes
    context, so that a later turn shows it. `names_owner`: room talk names an owner who is not
    there, so that the agent may tell them.
    """
    dotted = format_event_type(event)
    if not decision.allowed:
        return Judgement(
            type=dotted, urgency=AMBIENT, fate="refused", rule=decision.rule, role=decision.role
        )
    fate: Literal["due", "context", "noted"]
    urgency, rule = _match_rules(policy, event, dotted, decision.role)
    if isinstance(event, Message) and event.history:
        urgency, rule = (
            AMBIENT,
            "context: it was said a while ago, or the platform reports what somebody did",
        )
    if urgency is None:
        urgency, rule = _default_urgency(event, listen, speaks_up, names_owner=names_owner)
    if isinstance(event, MembershipChanged) and event.change == "invite":
        fate, rule = "noted", decision.rule
    elif listen == "off" and _is_reportable(event):
        fate, rule = "noted", "listen: off"
    elif not _is_reportable(event):
        fate = "noted"
    else:
        fate, urgency, because = _apply_threshold(
            event, urgency, listen, level, find_effective_threshold(policy, dotted)
        )
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
    acted = role if getattr(event, "sender", None) is not None else None
    matching = (
        (rule.urgency, f"attention.rules[{index}]")
        for index, rule in enumerate(policy.rules)
        if rule.match(dotted, text, acted)
    )
    return next(matching, (None, ""))


def _default_urgency(
    event: Notification, listen: ListenMode, speaks_up: SpeaksUp, *, names_owner: bool
) -> tuple[Urgency, str]:
    match event:
        case Message(kind="room") if listen == "all":
            return URGENT, "listen: all"
        case Message(kind="room") if names_owner and listen == "ambient":
            return NORMAL, "it names an owner"
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


def names_any(text: str, names: Iterable[str]) -> bool:
    """Return whether a text has one of these names as words of its own. Pure. `names`: as
    `fold_words` returns them.
    """
    said = f" {fold_words(text)} "
    return any(f" {name} " in said for name in names)


def find_threshold(thresholds: Mapping[str, int], dotted: str) -> tuple[int, str]:
    """Return the lowest urgency that passes, and the longest prefix that sets it; empty: none
    does.
    """
    prefix = dotted
    while prefix:
        value = thresholds.get(prefix, INHERIT)
        if value != INHERIT:
            return value, prefix
        prefix = prefix.rpartition(".")[0]
    return AMBIENT, ""


def find_effective_threshold(policy: AttentionPolicy, dotted: str) -> tuple[int, str]:
    """Return the threshold that holds now, and its name for reasons; empty: none is set."""
    here = policy.set_thresholds
    level, prefix = find_threshold(
        {**policy.thresholds, **here} if here else policy.thresholds, dotted
    )
    return (
        level,
        prefix and f"{'notify threshold ' if prefix in here else 'attention.thresholds.'}{prefix}",
    )


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
MAX_LOOP_CONVERSATIONS = 1_000
"""Conversations remembered at once; the others are counted again from the log."""
EXCHANGE_LOOK_BACK = 50
"""Messages of the log that are counted again; a larger `access.max_bot_exchanges` counts as
this."""


def count_exchanges(exchanges: int, message: Message, judged: Judgement) -> int:
    """Return the exchanges with bots in a row, with this message."""
    if judged.fate == "refused":
        return exchanges
    if not message.sender.is_bot:
        return 0
    return exchanges + (judged.fate == "due")


def break_loop(judged: Judgement, exchanges: int, limit: int) -> Judgement:
    """Return the judgement of a bot's message, turned into context above the limit. `exchanges`:
    with this message.
    """
    if judged.fate != "due" or exchanges <= min(limit, EXCHANGE_LOOK_BACK):
        return judged
    rule = f"loop broken: {limit} exchanges with bots (access.max_bot_exchanges)"
    return replace(judged, fate="context", urgency=AMBIENT, rule=rule)


def recount_exchanges(messages: Iterable[Message], judge: Callable[[Message], Judgement]) -> int:
    """Count again from the log's newest messages, oldest first."""
    exchanges = 0
    for message in messages:
        exchanges = count_exchanges(exchanges, message, judge(message))
    return exchanges


LOOP_ROUNDS: Final = 120
"""Rounds in a row that no person could have written at which a sender is taken for a program,
whatever its platform says."""
LOOP_PAUSE_S: Final = 3_600.0
"""Time for which a program is not answered then."""
REACTION_S: Final = 0.7
"""Shortest time, in seconds, in which a person reads a line and answers it."""
MAX_TYPING_CHARS_S: Final = 20.0
"""Fastest typing of a person over a longer text: 240 words a minute."""
LONG_CHARS: Final = 40
"""Length below which a line says nothing about the pace of typing."""


@dataclass(slots=True)
class _SenderTalk:
    rounds: int = 0
    """Their last answers in a row that no person could have written in that time."""
    last_said_s: float = -inf
    paused_until_s: float = -inf


class BotLoopGuard:
    """Recognises senders that answer line after line of ours faster than a person reads or
    types.
    """

    def __init__(self) -> None:
        self._posted = LruDict[ConversationId, float](MAX_LOOP_CONVERSATIONS)
        """Time of our last post."""
        self._talks = LruDict[tuple[ConversationId, str], _SenderTalk](MAX_LOOP_CONVERSATIONS)

    def record_sending(self, conversation: ConversationId, now_s: float) -> None:
        """Record that the first part of a post is handed to the platform."""
        self._posted.put(conversation, now_s)

    def check_line(
        self, conversation: ConversationId, sender: str, text: str, now_s: float
    ) -> float:
        """Check a line that would be answered. Return the seconds for which its sender is not: all
        of `LOOP_PAUSE_S` with the line that shows it, 0 for a person.

        A round is our line followed by theirs. Further lines of theirs without one of ours belong
        to the same round.
        """
        talk = self._talks.get((conversation, sender)) or _SenderTalk()
        self._talks.put((conversation, sender), talk)
        ours_s, before_s, talk.last_said_s = (
            self._posted.get(conversation, -inf),
            talk.last_said_s,
            now_s,
        )
        if now_s < talk.paused_until_s:
            return talk.paused_until_s - now_s
        if ours_s > before_s:  # else it continues what they wrote before
            typed_s = len(text) / MAX_TYPING_CHARS_S if len(text) >= LONG_CHARS else 0.0
            is_fast = now_s - ours_s <= REACTION_S or now_s - before_s < typed_s
            talk.rounds = talk.rounds + 1 if is_fast else 0
        if talk.rounds < LOOP_ROUNDS:
            return 0.0
        talk.rounds, talk.paused_until_s = 0, now_s + LOOP_PAUSE_S
        return LOOP_PAUSE_S


MAX_THRESHOLDS: Final = 200
"""Most thresholds that are set by command."""


class LiveAttention:
    """Attention policy of the settings in force, with the thresholds of the log. Call `load` before
    the first use.
    """

    def __init__(self, store: Store, live: LiveSettings) -> None:
        self._reader = store
        self._live = live
        self.thresholds: Mapping[str, int] = {}
        """Thresholds set by command, by prefix; replaced when one changes."""
        store.subscribe(self._on_appended, AttentionThresholdSet)

    @property
    def policy(self) -> AttentionPolicy:
        """The policy at this moment."""
        return replace(self._live.derive(build_attention_policy), set_thresholds=self.thresholds)

    async def load(self) -> None:
        """Read the thresholds. Raises StoreError."""
        for holding in await self._reader.current_facts("threshold_set"):
            self._apply(holding.fact)

    def _on_appended(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            self._apply(entry.fact)

    def _apply(self, fact: Fact) -> None:
        if isinstance(fact, AttentionThresholdSet):
            others = {
                prefix: value for prefix, value in self.thresholds.items() if prefix != fact.type
            }
            self.thresholds = others if fact.value is None else {**others, fact.type: fact.value}
