"""How much an event matters. Pure.

Every notification gets a dotted type, most general first, and an urgency: from the operator's first
rule that fits, else from what it is. A threshold at any prefix of the type cuts off what lies below it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from gateway.access import Decision
from gateway.events import Alarm, Delivery, Link, Membership, Message, Notification, Reacted
from gateway.records import AMBIENT, LOW, NORMAL, URGENT, Judged, address_of

Listen = Literal["mention", "ambient", "all", "off"]
Urgency = Literal[0, 1, 2, 3]

INHERIT = -1
"""As a threshold: ask the next shorter prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An operator's rule."""

    type: str
    """A type or a prefix of one (`irc.libera`), or a pattern with `*`."""
    urgency: Urgency
    keyword: str | None = None
    """Fits only if the text holds this, in any case."""

    def fits(self, dotted: str, text: str) -> bool:
        """Whether this rule speaks of such an event."""
        named = dotted == self.type or dotted.startswith(f"{self.type}.") or fnmatchcase(dotted, self.type)
        return named and (self.keyword is None or self.keyword.casefold() in text.casefold())


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator says about attention."""

    rules: tuple[Rule, ...] = ()
    thresholds: Mapping[str, int]
    """By prefix of the dotted type; `-1` inherits."""


def type_of(event: Notification) -> str:
    """The dotted type, e.g. `irc.libera.mention.#python`."""
    place = address_of(event)
    word = "reaction" if isinstance(event, Reacted) else event.kind
    if place is None:
        return f"{event.channel}.{word}" if isinstance(event, Link) else f"agent.{word}"
    thread = f".{place.thread}" if place.thread is not None else ""
    return f"{place.channel}.{word}.{place.room}{thread}"


def judge(policy: Policy, event: Notification, decision: Decision, listen: Listen) -> Judged:
    """Say what becomes of an event. Refused ones are never shown to the model."""
    dotted = type_of(event)
    if not decision.allowed:
        return Judged(type=dotted, urgency=AMBIENT, fate="refused", rule=decision.rule, role=decision.role)
    urgency, rule = _urgency(policy, event, dotted, listen)
    threshold, prefix = _threshold(policy.thresholds, dotted)
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


def _urgency(policy: Policy, event: Notification, dotted: str, listen: Listen) -> tuple[Urgency, str]:
    text: str = getattr(event, "text", None) or ""
    for index, rule in enumerate(policy.rules):
        if rule.fits(dotted, text):
            return rule.urgency, f"attention.rules[{index}]"
    match event:
        case Message(kind="room"):
            return (URGENT, "listen: all") if listen == "all" else (AMBIENT, "room talk is ambient")
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


def _threshold(thresholds: Mapping[str, int], dotted: str) -> tuple[int, str]:
    prefix = dotted
    while prefix:
        value = thresholds.get(prefix, INHERIT)
        if value != INHERIT:
            return value, prefix
        prefix = prefix.rpartition(".")[0]
    return AMBIENT, ""
