"""What holds by the newest word on it: which facts say so of what. Pure."""

from typing import NamedTuple

from gateway.events import Named
from gateway.records import (
    AudienceKnown,
    CodeGiven,
    CodeOver,
    Fact,
    IdentityLinked,
    McpToolApproved,
    ModelChosen,
    RoleGiven,
    RoomOpened,
    RuleSet,
    ThresholdSet,
)


class Holding(NamedTuple):
    """A word on something."""

    kind: str
    """Of the facts that can hold."""
    key: str
    """What it is about: the newest word on that counts."""
    is_current: bool
    """False: from now on nothing does."""


def holding(fact: Fact) -> Holding | None:  # noqa: C901 - one case per kind
    """What a fact says so. None: nothing."""
    match fact:
        case CodeGiven():
            return Holding("code_given", fact.request, is_current=True)
        case CodeOver():
            return Holding("code_given", fact.request, is_current=False)
        case RoleGiven():
            return Holding(fact.kind, f"{fact.person}\n{fact.scope}", is_current=bool(fact.role))
        case RoomOpened():
            return Holding(fact.kind, fact.room.conversation, is_current=fact.open)
        case AudienceKnown():
            return Holding(fact.kind, fact.at.conversation, is_current=True)
        case IdentityLinked():
            return Holding(fact.kind, f"{fact.one}\n{fact.other}", is_current=fact.joined)
        case ThresholdSet():
            return Holding(fact.kind, fact.type, is_current=fact.value is not None)
        case RuleSet():
            return Holding(fact.kind, fact.rule, is_current=not fact.gone)
        case Named():
            return Holding(fact.kind, fact.at.conversation, is_current=True)
        case ModelChosen():
            return Holding(fact.kind, fact.agent, is_current=bool(fact.model))
        case McpToolApproved():
            return Holding(fact.kind, f"{fact.server}\n{fact.tool}", is_current=True)
        case _:
            return None
