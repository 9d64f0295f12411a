"""How much an event matters. Pure.

Every notification gets a dotted type, most general first, and an urgency: from the operator's first
rule that fits, else from what it is. A threshold at any prefix of the type cuts off what lies below it. What
administrators set while the gateway runs (`Made`) comes before what the configuration says of the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from agent.signals import Level
from gateway.access import Decision, Role
from gateway.events import Alarm, Delivery, Finished, Link, Membership, Message, Named, Notification, Reacted
from gateway.records import AMBIENT, LOW, NORMAL, URGENT, Judged, address_of
from gateway.regexes import Answer, Regex
from gateway.salience import Salience
from gateway.standing import RANKS

LATE: Final = "; too slow: the regex of "
"""In a reason: behind what decided, before each rule whose expression took too long, as `named` calls it."""

Listen = Literal["mention", "ambient", "all", "off"]
Urgency = Literal[0, 1, 2, 3]

INHERIT = -1
"""As a threshold: ask the next shorter prefix."""

OFFSETS: Final[Mapping[Level, int]] = {"focused": 1, "idle": -1, "away": -1}
"""What presence adds to a threshold that the operator has set. Of the others nothing: while people sleep, what is
below urgent is noticed, and held back by `agent.dmn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An operator's rule."""

    type: str
    """A type or a prefix of one (`irc.libera`), or a pattern with `*`."""
    urgency: Urgency
    keyword: str | None = None
    """Fits only if the text holds this, in any case."""
    role: Role | None = None
    """Fits only what somebody did who has this role or a higher one: `member` fits admins and owners, too."""
    regex: Regex | None = None
    """Fits only if this is found in the text."""
    name: str = ""
    """Of one that was made at run time. Empty: the configuration's, known by its place there."""

    def match(self, dotted: str, text: str, role: Role | None) -> Answer:
        """Whether this rule speaks of such an event. `role`: of who did it; None: nobody did."""
        named = dotted == self.type or dotted.startswith(f"{self.type}.") or fnmatchcase(dotted, self.type)
        if not named or (self.keyword is not None and self.keyword.casefold() not in text.casefold()):
            return "no"
        if self.role is not None and (role is None or RANKS.index(role) < RANKS.index(self.role)):
            return "no"
        return "yes" if self.regex is None else self.regex.find(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was set while gateways ran, as the log has it by now."""

    rules: tuple[Rule, ...] = ()
    """The first that fits decides, before any of the configuration's."""
    thresholds: Mapping[str, int] = field(default_factory=dict)
    """In place of the configuration's for the same prefix."""


NOTHING_MADE: Final = Made()


@dataclass(slots=True, kw_only=True, eq=False)
class Policy:
    """What the operator says about attention. One for all, so that it is another for everybody at once (`become`)."""

    rules: tuple[Rule, ...] = ()
    thresholds: Mapping[str, int]
    """By prefix of the dotted type; `-1` inherits."""
    salience: Salience = field(default_factory=Salience)
    """What lifts the talk of a room. For who makes `lift`: nothing here reads it."""
    overrides: Callable[[], Made] = lambda: NOTHING_MADE

    def update(self, other: "Policy") -> None:
        """Say from now on what the other says that comes from the configuration. Returns at once."""
        self.rules, self.thresholds, self.salience = other.rules, other.thresholds, other.salience


def type_of(event: Notification) -> str:
    """The dotted type, e.g. `irc.libera.mention.#python`."""
    place = address_of(event)
    word = "reaction" if isinstance(event, Reacted) else event.kind
    if place is None:
        return f"{event.channel}.{word}" if isinstance(event, Link) else f"agent.{word}"
    thread = f".{place.thread}" if place.thread is not None else ""
    return f"{place.channel}.{word}.{place.room}{thread}"


def judge(
    policy: Policy,
    event: Notification,
    decision: Decision,
    listen: Listen,
    lift: Callable[[Message], str | None] = lambda _: None,
    *,
    level: Level = "present",
) -> Judged:
    """Say what becomes of an event. Refused ones are never shown to the model.

    `level` shifts the operator's thresholds. What passes them but for that becomes context, so that it is told all
    the same. `lift` is asked, at most once, about a line that would be ambient in a room with `listen: ambient`:
    which rule makes it normal; None: none does.
    """
    dotted = type_of(event)
    if not decision.allowed:
        return Judged(type=dotted, urgency=AMBIENT, fate="refused", rule=decision.rule, role=decision.role)
    fate: Literal["due", "context", "noted"]
    urgency, rule = _urgency(policy, event, dotted, decision.role)
    if isinstance(event, Message) and event.history:
        urgency, rule = AMBIENT, "played back: it was said a while ago"
    if urgency is None:
        urgency, why = _by_nature(event, listen, lift)
        rule = why + rule
    if isinstance(event, Membership) and event.change == "invite":
        fate, rule = "noted", decision.rule
    elif listen == "off" and _is_told(event):
        fate, rule = "noted", "listen: off"
    elif not _is_told(event):
        fate = "noted"
    else:
        fate, urgency, because = _told(event, urgency, listen, level, bar_of(policy, dotted))
        rule = because or rule
    return Judged(type=dotted, urgency=urgency, fate=fate, rule=rule, role=decision.role)


def _told(
    event: Notification, urgency: Urgency, listen: Listen, level: Level, bar: tuple[int, str]
) -> tuple[Literal["due", "context", "noted"], Urgency, str]:
    """What becomes of an event that may be told, and which rule decided that, if another one did than until now."""
    threshold, says = bar
    passes = min(max(threshold + OFFSETS.get(level, 0), AMBIENT), URGENT)
    if urgency < min(threshold, passes):
        return "noted", urgency, f"{says} is {threshold}"
    if AMBIENT < urgency < passes:
        return "context", AMBIENT, f"{says} is {threshold}, and people are {level}"
    if urgency > AMBIENT:
        return "due", urgency, ""
    if not isinstance(event, Message | Membership | Named):
        return "noted", urgency, ""
    if event.kind == "room" and listen == "mention":
        return "noted", urgency, "listen: mention"
    return "context", urgency, ""


def _is_told(event: Notification) -> bool:
    """Whether the model may be told of such an event at all."""
    match event:
        case Message() | Link() | Alarm() | Finished():
            return True
        case Membership():  # the channel card is not written anew for a changed topic, so that is told as a line
            return event.change in ("topic", "title") and event.news
        case Named():
            return bool(event.changed)
        case Reacted():
            return event.added
        case Delivery():
            return event.state != "sent"
        case _:
            return False


def _urgency(policy: Policy, event: Notification, dotted: str, role: Role) -> tuple[Urgency | None, str]:
    """The first rule that fits decides; None: none does.

    One whose expression took too long does not fit, and that is told behind the reason.
    """
    text: str = getattr(event, "text", None) or ""
    acted = role if getattr(event, "sender", None) is not None else None
    late = ""
    for name, rule in named(policy):
        answer = rule.match(dotted, text, acted)
        if answer == "yes":
            return rule.urgency, name + late
        if answer == "late":
            late += LATE + name
    return None, late


def _by_nature(event: Notification, listen: Listen, lift: Callable[[Message], str | None]) -> tuple[Urgency, str]:
    match event:
        case Message(kind="room") if listen == "all":
            return URGENT, "listen: all"
        case Message(kind="room"):
            why = lift(event) if listen == "ambient" else None
            return (AMBIENT, "room talk is ambient") if why is None else (NORMAL, why)
        case Message():
            return URGENT, f"a {event.kind} is urgent"
        case Membership():
            return AMBIENT, "membership is ambient"
        case Named():
            return AMBIENT, "a name is ambient"
        case Alarm():
            return NORMAL, "an alarm is normal"
        case Delivery():
            return LOW, "a delivery report is low"
        case _:
            return LOW, f"{event.kind} is low"


def threshold_of(thresholds: Mapping[str, int], dotted: str) -> tuple[int, str]:
    """The lowest urgency that passes, and the prefix that says so: the longest one; empty if none does."""
    prefix = dotted
    while prefix:
        value = thresholds.get(prefix, INHERIT)
        if value != INHERIT:
            return value, prefix
        prefix = prefix.rpartition(".")[0]
    return AMBIENT, ""


def named(policy: Policy) -> Iterator[tuple[str, Rule]]:
    """All rules in the order in which they are tried, each with what reasons call it."""
    for rule in policy.overrides().rules:
        yield f"notify rule {rule.name}", rule
    for index, rule in enumerate(policy.rules):
        yield f"attention.rules[{index}]", rule


def bar_of(policy: Policy, dotted: str) -> tuple[int, str]:
    """As `threshold_of` by now, with what reasons call what says so; empty if nothing does."""
    made = policy.overrides().thresholds
    level, prefix = threshold_of({**policy.thresholds, **made} if made else policy.thresholds, dotted)
    return level, prefix and f"{'notify threshold ' if prefix in made else 'attention.thresholds.'}{prefix}"
