"""What facts say, for whoever looks on: who did it, and in which words. Pure. One-time codes are not in it."""

from gateway.events import (
    Alarm,
    Command,
    ConnectionChanged,
    DeliveryReport,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    ReactionChanged,
    TaskFinished,
)
from gateway.fates import EventOutcome
from gateway.records import Fact, PostQueued, is_inner
from gateway.store.lines import describe_fact, hide_codes, without_code
from gateway.store.overview_rows import NotificationRow

_TURN_OUTCOMES = {
    "replied": EventOutcome.ANSWERED,
    "silent": EventOutcome.SILENT,
    "yielded": EventOutcome.YIELDED,
    "failed": EventOutcome.FAILED,
    "interrupted": EventOutcome.INTERRUPTED,
}


def find_actor(fact: Fact) -> str:
    """The display name of who did it. Untrusted. Empty: nobody, or it is not told."""
    match fact:
        case Message() | MessageEdited() | ReactionChanged() | MembershipChanged() | Command():
            return fact.sender.name
        case MessageDeleted():
            return fact.sender.name if fact.sender is not None else ""
        case Alarm():
            return fact.asked_by
        case _:
            return ""


def render_fact_text(fact: Fact) -> str:  # noqa: C901 - a table of kinds reads best in one piece
    """What it says, without who did it. Untrusted."""
    match without_code(fact):
        case Message() | MessageEdited() as said:
            return hide_codes(said.text)
        case Command() as said:
            return hide_codes(f"{said.name} {said.args}".rstrip())
        case MembershipChanged() as said:
            return " ".join(filter(None, [said.change, said.subject, said.text]))
        case MessageDeleted() as said:
            return f"deleted {said.message}"
        case ReactionChanged() as said:
            return f"{'+' if said.added else '-'}{said.reaction}"
        case ConnectionChanged() as said:
            return f"{'up' if said.up else 'down'}{f': {said.reason}' if said.reason else ''}"
        case Alarm() as said:
            return said.text
        case TaskFinished() as said:
            return f"{said.what} {'is done' if said.ok else 'failed'}: {said.text}"
        case DeliveryReport() as said:
            return f"{said.state}{f': {said.reason}' if said.reason else ''}"
        case PostQueued() as said:
            return hide_codes(said.post.text)
        case said:
            return hide_codes(describe_fact(said))


def find_outcome(event: NotificationRow) -> EventOutcome:
    """What became of it: as `gateway.fates` has it, which reads the whole log for that."""
    judged = event.judged.fate
    if judged == "refused":
        return EventOutcome.REFUSED
    if judged == "noted" or event.place is None:
        return EventOutcome.COMMAND if isinstance(event.fact, Command) else EventOutcome.NOTED
    if not event.dealt:
        if judged != "due":
            return EventOutcome.OVERHEARD
        return (
            EventOutcome.LOOKED_AT
            if event.unread is not None and event.unread < event.judged.urgency
            else EventOutcome.WAITING
        )
    if event.dealt == "handled":
        return EventOutcome.HANDLED
    if not event.shown:
        return EventOutcome.COUNTED
    if judged != "due" or event.looked:
        return EventOutcome.CONTEXT
    if event.outcome != "interrupted":
        return _find_turn_outcome(event, event.outcome, within=event.within)
    return (
        _find_turn_outcome(event, event.after, within=event.after_within) if event.after else EventOutcome.INTERRUPTED
    )


def _find_turn_outcome(event: NotificationRow, outcome: str, *, within: bool) -> EventOutcome:
    ended = _TURN_OUTCOMES[outcome]
    if ended is not EventOutcome.ANSWERED:
        return ended
    if event.place is not None and is_inner(event.place):
        return EventOutcome.TAKEN_UP
    return EventOutcome.ANSWERED_ELSEWHERE if within else ended
