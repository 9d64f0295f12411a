"""How much an event matters. Pure.

Every notification gets a dotted type, most general first, and an urgency: from the operator's first
rule that fits, else from what it is. A threshold at any prefix of the type cuts off what lies below it. What
administrators set while the gateway runs (`AttentionOverrides`) comes before what the configuration says of the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from agent.signals import PresenceLevel
from gateway.access import AccessDecision
from gateway.events import (
    Alarm,
    ConnectionChanged,
    DeliveryReport,
    MembershipChanged,
    Message,
    Notification,
    PlaceRenamed,
    ReactionChanged,
    TaskFinished,
)
from gateway.records import AMBIENT, LOW, NORMAL, URGENT, Judgement, address_of
from gateway.regexes import GuardedRegex, RegexOutcome
from gateway.salience import SaliencePolicy
from gateway.standing import ROLE_ORDER, Role

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
