"""How much an event matters. Pure.

Every notification gets a dotted type, most general first, and an urgency: from the operator's first
rule that fits, else from what it is. A threshold at any prefix of the type cuts off what lies below it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, Literal

from gateway.access import Decision, Role
from gateway.events import Alarm, Delivery, Link, Membership, Message, Notification, Reacted
from gateway.records import AMBIENT, LOW, NORMAL, URGENT, Judged, address_of
from gateway.regexes import Answer, Regex
from gateway.salience import Salience

LATE: Final = "; too slow: the regex of attention.rules["
"""In a reason: behind what decided, before each rule whose expression took too long, by its index."""

Listen = Literal["mention", "ambient", "all", "off"]
Urgency = Literal[0, 1, 2, 3]

INHERIT = -1
"""As a threshold: ask the next shorter prefix."""

RANKS: Final[Mapping[Role, int]] = {"blocked": -1, "guest": 0, "member": 1, "admin": 2, "owner": 3}
"""Who may do more stands higher."""


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

    def fits(self, dotted: str, text: str, role: Role | None) -> Answer:
        """Whether this rule speaks of such an event. `role`: of who did it; None: nobody did."""
        named = dotted == self.type or dotted.startswith(f"{self.type}.") or fnmatchcase(dotted, self.type)
        if not named or (self.keyword is not None and self.keyword.casefold() not in text.casefold()):
            return "no"
        if self.role is not None and (role is None or RANKS[role] < RANKS[self.role]):
            return "no"
        return "yes" if self.regex is None else self.regex.find(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator says about attention."""

    rules: tuple[Rule, ...] = ()
    thresholds: Mapping[str, int]
    """By prefix of the dotted type; `-1` inherits."""
    salience: Salience = field(default_factory=Salience)
    """What lifts the talk of a room. For who makes `lift`: nothing here reads it."""


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
) -> Judged:
    """Say what becomes of an event. Refused ones are never shown to the model.

    `lift` is asked, at most once, about a line that would be ambient in a room with `listen: ambient`: which rule
    makes it normal; None: none does.
    """
    dotted = type_of(event)
    if not decision.allowed:
        return Judged(type=dotted, urgency=AMBIENT, fate="refused", rule=decision.rule, role=decision.role)
    urgency, rule = _urgency(policy, event, dotted, decision.role)
    if urgency is None:
        urgency, why = _by_nature(event, listen, lift)
        rule = why + rule
    threshold, prefix = threshold_of(policy.thresholds, dotted)
    fate: Literal["due", "context", "noted"]
    # The channel card is not written anew for a changed topic, so that is told as a line.
    told = isinstance(event, Message) or (isinstance(event, Membership) and event.change == "topic" and event.news)
    if not told or listen == "off":
        fate = "noted"
        if isinstance(event, Message):
            rule = "listen: off"
        elif isinstance(event, Membership) and event.change == "invite":
            rule = decision.rule
    elif urgency < threshold:
        fate, rule = "noted", f"attention.thresholds.{prefix} is {threshold}"
    elif urgency > AMBIENT:
        fate = "due"
    elif event.kind == "room" and listen == "mention":
        fate, rule = "noted", "listen: mention"
    else:
        fate = "context"
    return Judged(type=dotted, urgency=urgency, fate=fate, rule=rule, role=decision.role)


def _urgency(policy: Policy, event: Notification, dotted: str, role: Role) -> tuple[Urgency | None, str]:
    """The first rule that fits decides; None: none does.

    One whose expression took too long does not fit, and that is told behind the reason.
    """
    text: str = getattr(event, "text", None) or ""
    acted = role if getattr(event, "sender", None) is not None else None
    late = ""
    for index, rule in enumerate(policy.rules):
        answer = rule.fits(dotted, text, acted)
        if answer == "yes":
            return rule.urgency, f"attention.rules[{index}]{late}"
        if answer == "late":
            late += f"{LATE}{index}]"
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
