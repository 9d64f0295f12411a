"""What holds by the newest word on it: which facts say so of what. Pure."""

from typing import NamedTuple

from gateway.events import PlaceRenamed
from gateway.records import (
    AttentionRuleSet,
    AttentionThresholdSet,
    AudienceReported,
    CodeEnded,
    CodeIssued,
    Fact,
    IdentityLinked,
    McpToolApproved,
    ModelSelected,
    RoleAssigned,
    RoomAccessChanged,
)


class CurrentFactKey(NamedTuple):
    """A word on something."""

    kind: str
    """Of the facts that can hold."""
    key: str
    """What it is about: the newest word on that counts."""
    is_current: bool
    """False: from now on nothing does."""


def current_fact_key(fact: Fact) -> CurrentFactKey | None:  # noqa: C901 - one case per kind
    """What a fact says so. None: nothing."""
    match fact:
        case CodeIssued():
            return CurrentFactKey("code_given", fact.request, is_current=True)
        case CodeEnded():
            return CurrentFactKey("code_given", fact.request, is_current=False)
        case RoleAssigned():
            return CurrentFactKey(fact.kind, f"{fact.person}\n{fact.scope}", is_current=bool(fact.role))
        case RoomAccessChanged():
            return CurrentFactKey(fact.kind, fact.room.conversation, is_current=fact.open)
        case AudienceReported():
            return CurrentFactKey(fact.kind, fact.at.conversation, is_current=True)
        case IdentityLinked():
            return CurrentFactKey(fact.kind, f"{fact.one}\n{fact.other}", is_current=fact.joined)
        case AttentionThresholdSet():
            return CurrentFactKey(fact.kind, fact.type, is_current=fact.value is not None)
        case AttentionRuleSet():
            return CurrentFactKey(fact.kind, fact.rule, is_current=not fact.gone)
        case PlaceRenamed():
            return CurrentFactKey(fact.kind, fact.at.conversation, is_current=True)
        case ModelSelected():
            return CurrentFactKey(fact.kind, fact.agent, is_current=bool(fact.model))
        case McpToolApproved():
            return CurrentFactKey(fact.kind, f"{fact.server}\n{fact.tool}", is_current=True)
        case _:
            return None
