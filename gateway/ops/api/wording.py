"""What facts say, for whoever looks on: who did it, and in which words. Pure. One-time codes are not in it."""

from gateway.events import Alarm, Command, Deleted, Delivery, Edited, Finished, Link, Membership, Message, Reacted
from gateway.fates import Fate
from gateway.records import Fact, Queued, is_inner
from gateway.store.lines import codeless, told, uncoded
from gateway.store.overview_rows import Event

_OUTCOMES = {
    "replied": Fate.ANSWERED,
    "silent": Fate.SILENT,
    "yielded": Fate.YIELDED,
    "failed": Fate.FAILED,
    "interrupted": Fate.INTERRUPTED,
}


def who(fact: Fact) -> str:
    """The display name of who did it. Untrusted. Empty: nobody, or it is not told."""
    match fact:
        case Message() | Edited() | Reacted() | Membership() | Command():
            return fact.sender.name
        case Deleted():
            return fact.sender.name if fact.sender is not None else ""
        case Alarm():
            return fact.asked_by
        case _:
            return ""


def text(fact: Fact) -> str:  # noqa: C901 - a table of kinds reads best in one piece
    """What it says, without who did it. Untrusted."""
    match codeless(fact):
        case Message() | Edited() as said:
            return uncoded(said.text)
        case Command() as said:
            return uncoded(f"{said.name} {said.args}".rstrip())
        case Membership() as said:
            return " ".join(filter(None, [said.change, said.subject, said.text]))
        case Deleted() as said:
            return f"deleted {said.message}"
        case Reacted() as said:
            return f"{'+' if said.added else '-'}{said.reaction}"
        case Link() as said:
            return f"{'up' if said.up else 'down'}{f': {said.reason}' if said.reason else ''}"
        case Alarm() as said:
            return said.text
        case Finished() as said:
            return f"{said.what} {'is done' if said.ok else 'failed'}: {said.text}"
        case Delivery() as said:
            return f"{said.state}{f': {said.reason}' if said.reason else ''}"
        case Queued() as said:
            return uncoded(said.post.text)
        case said:
            return uncoded(told(said))


def fate(event: Event) -> Fate:
    """What became of it: as `gateway.fates` has it, which reads the whole log for that."""
    judged = event.judged.fate
    if judged == "refused":
        return Fate.REFUSED
    if judged == "noted" or event.place is None:
        return Fate.COMMAND if isinstance(event.fact, Command) else Fate.NOTED
    if not event.dealt:
        if judged != "due":
            return Fate.OVERHEARD
        return Fate.LOOKED_AT if event.unread is not None and event.unread < event.judged.urgency else Fate.WAITING
    if event.dealt == "handled":
        return Fate.HANDLED
    if not event.shown:
        return Fate.COUNTED
    if judged != "due" or event.looked:
        return Fate.CONTEXT
    if event.outcome != "interrupted":
        return _outcome(event, event.outcome, within=event.within)
    return _outcome(event, event.after, within=event.after_within) if event.after else Fate.INTERRUPTED


def _outcome(event: Event, outcome: str, *, within: bool) -> Fate:
    ended = _OUTCOMES[outcome]
    if ended is not Fate.ANSWERED:
        return ended
    if event.place is not None and is_inner(event.place):
        return Fate.TAKEN_UP
    return Fate.ANSWERED_ELSEWHERE if within else ended
