"""How much an event matters. Pure.

Every notification gets a dotted type, most general first, and an urgency: from the operator's first
rule that fits, else from what it is. A threshold at any prefix of the type cuts off what lies below it. What
administrators set while the gateway runs (`AttentionOverrides`) comes before what the configuration says of the same.

How long two bots have been talking to each other. Pure.

A bot that the operator listed is answered, but not for ever: what it says to us, time after time with no
person speaking in between, is at last only context. A program that carries no mark of a bot is known by how it answers.

What in a room's talk is worth a look, though nobody spoke to the agent. Pure: times come in.

Off unless the operator turns it on. A room is lifted once, and then not again for a while, whatever is said there:
a flood of questions makes one turn, not hundreds.

What administrators set of attention while the gateway runs: thresholds and rules.

The log has each (`AttentionThresholdSet`, `AttentionRuleSet`), and the newest word on a type or a rule holds. Here is
the picture of that in memory: `begin` reads it, and from then on it is told of all that is written, whoever wrote it.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from math import inf
from typing import Final, Literal, NamedTuple

from gateway.access.policy import AccessDecision
from gateway.core.events import (
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
    AttentionRuleSet,
    AttentionThresholdSet,
    Fact,
    Judgement,
    address_of,
)
from gateway.core.fields import GuardedRegex, RegexOutcome
from gateway.core.identity import ROLE_ORDER, Role
from gateway.store import AppendResult, NewEntry, StoreReader

MAX_SALIENCE_ROOMS: Final = 1_000
"""Remembered at once. One that was forgotten has no average until it has been watched anew."""
SHORT_AVERAGE_S: Final = 60.0
LONG_AVERAGE_S: Final = 3_600.0
"""Lines are counted with weights that fall off with these times, in seconds: what happens now, and what is usual."""
MIN_ACTIVE_LINES: Final = 10.0
"""Lines within the short time below which nothing is unusual, however quiet the room was."""

_QUESTION_MARKS: Final = ("?", "\uff1f", "\u061f")
"""Also the wide one of East Asian scripts, and the Arabic one."""
_TRAILING_CHARS: Final = " \t\r\n\"'\u201d\u2019\u00bb)]*_~`!"
"""What may stand behind a question mark: white space, quotes, brackets, marks of emphasis."""
_ADDRESSED: Final = re.compile(r"(?<!\S)@\w|\A\S{1,64}[:,]\s|\A<@")
"""`@name` anywhere, or `name:` or `name,` in front. Also `well, ...`: who is in doubt keeps quiet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaliencePolicy:
    """What the operator finds worth a look."""

    people: frozenset[str] = frozenset()
    """By `channel:sender id`. Whatever they say."""
    keywords: Sequence[str] = ()
    """Any of these in the text, in any case."""
    questions: bool = False
    """A question that is put to nobody."""
    activity: float = 0.0
    """So many times as many lines as are usual there. 0: however many."""
    rest_s: float = 300.0
    """Seconds after a room was lifted in which it is not lifted again."""


def is_open_question(message: Message) -> bool:
    """It ends with a question mark and names nobody, as far as its text shows."""
    text = message.text[-4_096:].rstrip(_TRAILING_CHARS)
    if not text.endswith(_QUESTION_MARKS) or message.reply_to is not None or _ADDRESSED.search(message.text[:4_096]):
        return False
    return "://" not in text.rsplit(maxsplit=1)[-1]


@dataclass(slots=True)
class _RoomActivity:
    watched_since: datetime
    last_line_at: datetime
    short_count: float = 0.0
    long_count: float = 0.0
    lifted_at: datetime | None = None

    def count(self, at: datetime) -> float:
        """Take in a line; how many times as many as usual there are now. 0: too few, or not watched long enough.

        The long count has only been growing since `since`, and is judged by what it could have become by now
        (the usual correction: https://arxiv.org/abs/1412.6980, section 3).
        """
        at = max(at, self.last_line_at)
        passed = (at - self.last_line_at).total_seconds()
        self.last_line_at = at
        self.long_count *= math.exp(-passed / LONG_AVERAGE_S)
        usual = self.long_count / LONG_AVERAGE_S
        watched = (at - self.watched_since).total_seconds()
        self.short_count = self.short_count * math.exp(-passed / SHORT_AVERAGE_S) + 1
        self.long_count += 1
        if self.short_count < MIN_ACTIVE_LINES or watched < LONG_AVERAGE_S or usual <= 0:
            return 0.0
        return (self.short_count / SHORT_AVERAGE_S) / (usual / (1 - math.exp(-watched / LONG_AVERAGE_S)))


class SalienceDetector:
    """Decides, and remembers what it must of the rooms in which something was said lately."""

    def __init__(self, said: Callable[[], SaliencePolicy]) -> None:
        """`said`: what the operator finds worth a look by now."""
        self._policy = said
        self._rooms: OrderedDict[ConversationId, _RoomActivity] = OrderedDict()

    def find_reason(self, message: Message, at: datetime) -> str | None:
        """Which key of the configuration makes this line of a room worth a look; None: none does.

        `at`: when we learnt of it. To be asked once for each line that would be ambient otherwise.
        """
        salience = self._policy()
        if not (salience.people or salience.keywords or salience.questions or salience.activity):
            return None
        place = message.at.conversation
        room = self._rooms.setdefault(place, _RoomActivity(watched_since=at, last_line_at=at))
        self._rooms.move_to_end(place)
        if len(self._rooms) > MAX_SALIENCE_ROOMS:
            self._rooms.popitem(last=False)
        why = _find_salience_key(salience, message, room.count(at))
        resting = room.lifted_at is not None and (at - room.lifted_at).total_seconds() < salience.rest_s
        if why is None or resting:
            return None
        room.lifted_at = at
        return f"attention.salience.{why}"


def _find_salience_key(salience: SaliencePolicy, message: Message, times: float) -> str | None:
    text = message.text.casefold()
    if f"{message.at.channel}:{message.sender.id}" in salience.people:
        return "people"
    if message.sender.is_bot:
        return None
    if any(word.casefold() in text for word in salience.keywords):
        return "keywords"
    if salience.questions and is_open_question(message):
        return "questions"
    return "activity" if 0 < salience.activity <= times else None


REGEX_TIMED_OUT: Final = "; too slow: the regex of "
"""In a reason: behind what decided, before each rule whose expression took too long, as `iter_named_rules` calls it."""

ListenMode = Literal["mention", "ambient", "all", "off"]
Urgency = Literal[0, 1, 2, 3]

INHERIT = -1
"""As a threshold: ask the next shorter prefix."""

PRESENCE_OFFSETS: Final[Mapping[PresenceLevel, int]] = {"focused": 1, "idle": -1, "away": -1}
"""What presence adds to a threshold that the operator has set. Of the others nothing: while people sleep, what is
below urgent is noticed, and held back by `agent.dmn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRule:
    """An operator's rule."""

    type: str
    """A type or a prefix of one (`irc.libera`), or a pattern with `*`."""
    urgency: Urgency
    keyword: str | None = None
    """Fits only if the text holds this, in any case."""
    role: Role | None = None
    """Fits only what somebody did who has this role or a higher one: `member` fits admins and owners, too."""
    regex: GuardedRegex | None = None
    """Fits only if this is found in the text."""
    name: str = ""
    """Of one that was made at run time. Empty: the configuration's, known by its place there."""

    def match(self, dotted: str, text: str, role: Role | None) -> RegexOutcome:
        """Whether this rule speaks of such an event. `role`: of who did it; None: nobody did."""
        named = dotted == self.type or dotted.startswith(f"{self.type}.") or fnmatchcase(dotted, self.type)
        if not named or (self.keyword is not None and self.keyword.casefold() not in text.casefold()):
            return "no"
        if self.role is not None and (role is None or ROLE_ORDER.index(role) < ROLE_ORDER.index(self.role)):
            return "no"
        return "yes" if self.regex is None else self.regex.find(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOverrides:
    """What was set while gateways ran, as the log has it by now."""

    rules: tuple[AttentionRule, ...] = ()
    """The first that fits decides, before any of the configuration's."""
    thresholds: Mapping[str, int] = field(default_factory=dict)
    """In place of the configuration's for the same prefix."""


NO_OVERRIDES: Final = AttentionOverrides()


@dataclass(slots=True, kw_only=True, eq=False)
class AttentionPolicy:
    """What the operator says about attention. One for all, so that it is another for everybody at once (`become`)."""

    rules: tuple[AttentionRule, ...] = ()
    thresholds: Mapping[str, int]
    """By prefix of the dotted type; `-1` inherits."""
    salience: SaliencePolicy = field(default_factory=SaliencePolicy)
    """What lifts the talk of a room. For who makes `lift`: nothing here reads it."""
    overrides: Callable[[], AttentionOverrides] = lambda: NO_OVERRIDES

    def update(self, other: "AttentionPolicy") -> None:
        """Say from now on what the other says that comes from the configuration. Returns at once."""
        self.rules, self.thresholds, self.salience = other.rules, other.thresholds, other.salience


def format_event_type(event: Notification) -> str:
    """The dotted type, e.g. `irc.libera.mention.#python`."""
    place = address_of(event)
    word = "reaction" if isinstance(event, ReactionChanged) else event.kind
    if place is None:
        return f"{event.channel}.{word}" if isinstance(event, ConnectionChanged) else f"agent.{word}"
    thread = f".{place.thread}" if place.thread is not None else ""
    return f"{place.channel}.{word}.{place.room}{thread}"


def judge(
    policy: AttentionPolicy,
    event: Notification,
    decision: AccessDecision,
    listen: ListenMode,
    lift: Callable[[Message], str | None] = lambda _: None,
    *,
    level: PresenceLevel = "present",
) -> Judgement:
    """Say what becomes of an event. Refused ones are never shown to the model.

    `level` shifts the operator's thresholds. What passes them but for that becomes context, so that it is told all
    the same. `lift` is asked, at most once, about a line that would be ambient in a room with `listen: ambient`:
    which rule makes it normal; None: none does.
    """
    dotted = format_event_type(event)
    if not decision.allowed:
        return Judgement(type=dotted, urgency=AMBIENT, fate="refused", rule=decision.rule, role=decision.role)
    fate: Literal["due", "context", "noted"]
    urgency, rule = _match_rules(policy, event, dotted, decision.role)
    if isinstance(event, Message) and event.history:
        urgency, rule = AMBIENT, "played back: it was said a while ago"
    if urgency is None:
        urgency, why = _default_urgency(event, listen, lift)
        rule = why + rule
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
    event: Notification, urgency: Urgency, listen: ListenMode, level: PresenceLevel, bar: tuple[int, str]
) -> tuple[Literal["due", "context", "noted"], Urgency, str]:
    """What becomes of an event that may be told, and which rule decided that, if another one did than until now."""
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
    """Whether the model may be told of such an event at all."""
    match event:
        case Message() | ConnectionChanged() | Alarm() | TaskFinished():
            return True
        case MembershipChanged():  # the channel card is not written anew for a changed topic, so that is told as a line
            return event.change in ("topic", "title") and event.news
        case PlaceRenamed():
            return bool(event.changed)
        case ReactionChanged():
            return event.added
        case DeliveryReport():
            return event.state != "sent"
        case _:
            return False


def _match_rules(policy: AttentionPolicy, event: Notification, dotted: str, role: Role) -> tuple[Urgency | None, str]:
    """The first rule that fits decides; None: none does.

    One whose expression took too long does not fit, and that is told behind the reason.
    """
    text: str = getattr(event, "text", None) or ""
    acted = role if getattr(event, "sender", None) is not None else None
    late = ""
    for name, rule in iter_named_rules(policy):
        answer = rule.match(dotted, text, acted)
        if answer == "yes":
            return rule.urgency, name + late
        if answer == "late":
            late += REGEX_TIMED_OUT + name
    return None, late


def _default_urgency(
    event: Notification, listen: ListenMode, lift: Callable[[Message], str | None]
) -> tuple[Urgency, str]:
    match event:
        case Message(kind="room") if listen == "all":
            return URGENT, "listen: all"
        case Message(kind="room"):
            why = lift(event) if listen == "ambient" else None
            return (AMBIENT, "room talk is ambient") if why is None else (NORMAL, why)
        case Message():
            return URGENT, f"a {event.kind} is urgent"
        case MembershipChanged():
            return AMBIENT, "membership is ambient"
        case PlaceRenamed():
            return AMBIENT, "a name is ambient"
        case Alarm():
            return NORMAL, "an alarm is normal"
        case DeliveryReport():
            return LOW, "a delivery report is low"
        case _:
            return LOW, f"{event.kind} is low"


def find_threshold(thresholds: Mapping[str, int], dotted: str) -> tuple[int, str]:
    """The lowest urgency that passes, and the prefix that says so: the longest one; empty if none does."""
    prefix = dotted
    while prefix:
        value = thresholds.get(prefix, INHERIT)
        if value != INHERIT:
            return value, prefix
        prefix = prefix.rpartition(".")[0]
    return AMBIENT, ""


def iter_named_rules(policy: AttentionPolicy) -> Iterator[tuple[str, AttentionRule]]:
    """All rules in the order in which they are tried, each with what reasons call it."""
    for rule in policy.overrides().rules:
        yield f"notify rule {rule.name}", rule
    for index, rule in enumerate(policy.rules):
        yield f"attention.rules[{index}]", rule


def find_effective_threshold(policy: AttentionPolicy, dotted: str) -> tuple[int, str]:
    """As `find_threshold` by now, with what reasons call what says so; empty if nothing does."""
    made = policy.overrides().thresholds
    level, prefix = find_threshold({**policy.thresholds, **made} if made else policy.thresholds, dotted)
    return level, prefix and f"{'notify threshold ' if prefix in made else 'attention.thresholds.'}{prefix}"


MAX_LOOP_CONVERSATIONS = 1_000
"""Remembered at once; the others are counted again from the log."""
EXCHANGE_LOOK_BACK = 50
"""Messages of the log that are counted again; `access.max_bot_exchanges` beyond it counts as this."""


def count_exchanges(exchanges: int, message: Message, judged: Judgement) -> int:
    """Exchanges with bots in a row, this message included."""
    if judged.fate == "refused":
        return exchanges
    if not message.sender.is_bot:
        return 0
    return exchanges + (judged.fate == "due")


def break_loop(judged: Judgement, exchanges: int, limit: int) -> Judgement:
    """The judgement of a bot's message, after the loop is broken if it is time. `exchanges`: with this one."""
    if judged.fate != "due" or exchanges <= min(limit, EXCHANGE_LOOK_BACK):
        return judged
    rule = f"loop broken: {limit} exchanges with bots (access.max_bot_exchanges)"
    return replace(judged, fate="context", urgency=AMBIENT, rule=rule)


def recount_exchanges(messages: Iterable[Message], judge: Callable[[Message], Judgement]) -> int:
    """The count that the log's newest messages give, oldest first."""
    exchanges = 0
    for message in messages:
        exchanges = count_exchanges(exchanges, message, judge(message))
    return exchanges


class BotExchangeCounter:
    """The counts of the conversations in which something was said lately."""

    def __init__(self) -> None:
        self._counts: OrderedDict[ConversationId, int] = OrderedDict()

    def get(self, conversation: ConversationId) -> int | None:
        """None: not remembered."""
        return self._counts.get(conversation)

    def put(self, conversation: ConversationId, exchanges: int) -> None:
        """Remember."""
        self._counts[conversation] = exchanges
        self._counts.move_to_end(conversation)
        if len(self._counts) > MAX_LOOP_CONVERSATIONS:
            self._counts.popitem(last=False)


LOOP_SCORE: Final = 120
"""Of what rounds in a row count: then it is a program, whatever its platform says of it."""
REPEATED_LOOP_SCORE: Final = 42
"""The same after it was found out once."""
ECHO_SCORE: Final = 21
"""What a round counts in which somebody says at once what was said before: six are enough."""
SLOW_ECHO_SCORE: Final = 9
"""The same within seconds: a person who plays a game may do so for a while."""
SIMILAR_SCORE: Final = 2
"""Nearly the same words as before, at once."""
FAST_SCORE: Final = 1
"""Other words, but faster than anybody reads or types: who writes ahead of our answers may seem so for a while."""
REACTION_S: Final = 0.7
"""Nobody reads a line and answers it faster."""
MAX_TYPING_CHARS_S: Final = 20.0
"""Nobody types faster for long: 240 words a minute."""
LONG_CHARS: Final = 40
"""Shorter lines say nothing about the pace of typing."""
ECHO_S: Final = 1.5
"""Who says the same again as fast as this has not read our line."""
SLOW_ECHO_S: Final = 4.0
"""Who does so time after time hardly reads it."""
REMEMBERED_LINES: Final = 2
"""Of what somebody said last."""
SAME_RATIO: Final = 0.9
COMPARED_CHARS: Final = 400
_WORDS: Final = re.compile(r"\w+")
FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 3_600.0
CALM_S: Final = 3_600.0
"""Who was calm for so long begins anew."""


class LoopPause(NamedTuple):
    """Somebody is not answered for a while."""

    remaining_s: float
    is_new: bool
    """It was found out just now."""
    is_first: bool
    """For the first time since they were calm, and nobody else was told so there in that time."""


@dataclass(slots=True)
class _SenderTalk:
    """Between us and one sender in one conversation. Times are monotonic, in seconds."""

    score: int = 0
    """What their last answers in a row count that no person would give so."""
    recent_texts: tuple[str, ...] = ()
    """What they said last, the newest at the end."""
    last_said_s: float = -inf
    pause_count: int = 0
    """How often they were found out."""
    paused_until_s: float = -inf
    """Not answered until then."""


class BotLoopGuard:
    """Finds senders that answer each of our lines as no person does: by rhythm, and by what both sides say."""

    def __init__(self) -> None:
        self._own_posts: OrderedDict[ConversationId, tuple[float, str]] = OrderedDict()
        """When we last said something there, and what."""
        self._talks: OrderedDict[tuple[ConversationId, str], _SenderTalk] = OrderedDict()
        self._notified: OrderedDict[ConversationId, float] = OrderedDict()
        """When somebody was first told there that they are not answered: a crowd is told once."""

    def record_post(self, conversation: ConversationId, text: str) -> None:
        """We are about to say that there."""
        at_s, _ = self._own_posts.pop(conversation, (-inf, ""))
        self._own_posts[conversation] = at_s, text[:COMPARED_CHARS]
        if len(self._own_posts) > MAX_LOOP_CONVERSATIONS:
            self._own_posts.popitem(last=False)

    def record_sending(self, conversation: ConversationId, now_s: float) -> None:
        """The beginning of it is handed to the platform."""
        self._own_posts[conversation] = now_s, self._own_posts.get(conversation, (-inf, ""))[1]

    def check_line(self, conversation: ConversationId, sender: str, text: str, now_s: float) -> LoopPause | None:
        """They say something that would be answered. Not None: it is not to be.

        A round is our line and then theirs. What they say without a line of ours in between belongs to the same round.
        """
        talk = self._talks.pop((conversation, sender), None) or _SenderTalk()
        self._talks[conversation, sender] = talk
        if len(self._talks) > MAX_LOOP_CONVERSATIONS:
            self._talks.popitem(last=False)
        if now_s < talk.paused_until_s:
            return LoopPause(talk.paused_until_s - now_s, is_new=False, is_first=False)
        if now_s - max(talk.last_said_s, talk.paused_until_s) > CALM_S:
            talk.pause_count = 0
        ours_s, ours = self._own_posts.get(conversation, (-inf, ""))
        if ours_s > talk.last_said_s:  # else it is more of what they said before
            counts = _score_round(talk, text, now_s - ours_s, now_s, ours)
            talk.score = talk.score + counts if counts else 0
        talk.recent_texts, talk.last_said_s = (*talk.recent_texts, _normalize_words(text))[-REMEMBERED_LINES:], now_s
        if talk.score < (REPEATED_LOOP_SCORE if talk.pause_count else LOOP_SCORE):
            return None
        pause_s = min(FIRST_PAUSE_S * 2.0**talk.pause_count, LONGEST_PAUSE_S)
        talk.score, talk.pause_count, talk.paused_until_s = 0, talk.pause_count + 1, now_s + pause_s
        first = talk.pause_count == 1 and now_s - self._notified.get(conversation, -inf) > CALM_S
        if first:
            self._notified.pop(conversation, None)
            self._notified[conversation] = now_s
            if len(self._notified) > MAX_LOOP_CONVERSATIONS:
                self._notified.popitem(last=False)
        return LoopPause(pause_s, is_new=True, is_first=first)


def _score_round(talk: _SenderTalk, text: str, after_s: float, now_s: float, ours: str) -> int:
    """What this round counts. 0: a person may have read our line and written this. `after_s`: after our line."""
    said, before = _normalize_words(text), (*talk.recent_texts, _normalize_words(ours))
    if said in before and after_s <= SLOW_ECHO_S:
        return ECHO_SCORE if after_s <= ECHO_S else SLOW_ECHO_SCORE
    if after_s <= ECHO_S and any(_is_similar(said, one) for one in before[-2:]):
        return SIMILAR_SCORE
    typed = len(text) >= LONG_CHARS and len(text) / max(now_s - talk.last_said_s, 0.001) > MAX_TYPING_CHARS_S
    return FAST_SCORE if typed or after_s <= REACTION_S else 0


def _normalize_words(text: str) -> str:
    """The words alone."""
    return " ".join(_WORDS.findall(text[:COMPARED_CHARS].casefold())) or text[:COMPARED_CHARS]


def _is_similar(one: str, other: str) -> bool:
    shortest, longest = sorted((len(one), len(other)))
    if not longest or shortest / longest < SAME_RATIO:
        return False
    return SequenceMatcher(None, one, other, autojunk=False).ratio() >= SAME_RATIO


MAX_RULES: Final = 50
"""Each event is held against all of them."""
MAX_THRESHOLDS: Final = 200
_RULE_LOOK_BACK: Final = 2 * MAX_RULES + 1
"""Among so many entries about rules one makes a rule: no more than `MAX_RULES` can be taken back in a row."""


class AttentionOverrideStore:
    """Those of a store. `wrote` is for `Store.hear`; then `begin`, before the first use."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._rules: dict[str, AttentionRuleSet] = {}
        """By name, in the order of the log."""
        self._thresholds: dict[str, int] = {}
        self._overrides = NO_OVERRIDES
        self._newest_number = 0
        """The number of the newest rule."""
        self._reserved_names: set[str] = set()
        """Names of rules that may be written soon."""
        self._buffered: list[Fact] | None = []
        """What was written while the log is read. None: it was read."""

    async def load(self) -> None:
        """Read what holds. Raises StoreError."""
        numbered = await self._reader.newest_entries(_RULE_LOOK_BACK, kinds=["rule_set"])
        holding = [*await self._reader.current_facts("threshold_set"), *await self._reader.current_facts("rule_set")]
        early, self._buffered = self._buffered or [], None
        for fact in (*(one.fact for one in (*numbered, *holding)), *early):
            self._apply(fact)
        self._overrides = build_overrides(self._rules.values(), self._thresholds)

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """Take what was written now into the picture."""
        news = [
            entry.fact
            for entry, one in zip(entries, written, strict=True)
            if one.is_new and isinstance(entry.fact, AttentionRuleSet | AttentionThresholdSet)
        ]
        if self._buffered is not None:
            self._buffered += news
            return
        for fact in news:
            self._apply(fact)
        if news:
            self._overrides = build_overrides(self._rules.values(), self._thresholds)

    def current(self) -> AttentionOverrides:
        """What holds, for `attention.Policy.made`."""
        return self._overrides

    @property
    def rules(self) -> Sequence[AttentionRuleSet]:
        """In the order in which they were made."""
        return list(self._rules.values())

    @property
    def is_full(self) -> bool:
        """Whether there may be no more rules."""
        return len(self._rules.keys() | self._reserved_names) >= MAX_RULES

    def reserve_name(self) -> tuple[str, Callable[[], None]]:
        """For a rule that is to be made: a name that none ever had. Call the other once that is written, or is not."""
        self._newest_number += 1
        name = f"r{self._newest_number}"
        self._reserved_names.add(name)
        return name, lambda: self._reserved_names.discard(name)

    def _apply(self, fact: Fact) -> None:
        match fact:
            case AttentionRuleSet(rule=name, gone=gone):
                self._rules.pop(name, None)
                if not gone:
                    self._rules[name] = fact
                number = name.removeprefix("r")
                self._newest_number = max(
                    self._newest_number, int(number) if number.isascii() and number.isdigit() else 0
                )
            case AttentionThresholdSet(type=dotted, value=None):
                self._thresholds.pop(dotted, None)
            case AttentionThresholdSet(type=dotted, value=int(value)):
                self._thresholds[dotted] = value
            case _:
                pass


def build_override_rule(fact: AttentionRuleSet) -> AttentionRule:
    """As attention reads it. Pure."""
    return AttentionRule(type=fact.type, urgency=fact.urgency, keyword=fact.keyword or None, name=fact.rule)


def build_overrides(rules: Iterable[AttentionRuleSet], thresholds: Mapping[str, int]) -> AttentionOverrides:
    """As attention reads them: the newest rule is tried first, so that it holds as soon as it is made. Pure."""
    return AttentionOverrides(rules=tuple(map(build_override_rule, rules))[::-1], thresholds=dict(thresholds))
