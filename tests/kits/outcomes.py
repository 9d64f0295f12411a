"""What became of each event of a whole log."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.core.facts import Judgement, Seq, TurnRecord, UnreadDismissed, is_inner
from gateway.store import LogEntry
from gateway.store.overview import EventOutcome, NotificationRow


def compute_outcomes(log: Sequence[LogEntry]) -> dict[Seq, EventOutcome]:
    """The outcome of each judged event, by the entries behind its judgement."""
    by_seq, found = {entry.seq: entry for entry in log}, dict[Seq, EventOutcome]()
    for judged in log:
        if isinstance(judged.fact, Judgement) and judged.cause is not None:
            found[judged.cause] = _find_row(by_seq[judged.cause], judged, judged.fact, log).fate
    return found


def _find_row(
    event: LogEntry, judged: LogEntry, judgement: Judgement, log: Sequence[LogEntry]
) -> NotificationRow:
    place = judged.conversation
    row = NotificationRow(
        seq=event.seq,
        at=event.at,
        fact=event.fact,
        conversation=event.conversation,
        judged=judgement,
        place=place,
        unread=None,
    )
    if judgement.fate in ("refused", "noted") or place is None:
        return row
    later = [one for one in log if one.seq > judged.seq]
    here = [(one, one.fact) for one in later if one.conversation == place]
    turns = [
        (one, one.fact)
        for one in later
        if isinstance(one.fact, TurnRecord) and is_inner(one.conversation or place)
    ]
    ends = (
        (one, end)
        for one, end in here
        if isinstance(end, TurnRecord | UnreadDismissed) and end.upto >= event.seq
    )
    looks = (
        one
        for one, turn in turns
        if any(at == place and upto >= event.seq for at, upto in turn.looked)
    )
    dealt, end = next(ends, (None, None))
    after = (
        turn
        for one, turn in here
        if isinstance(turn, TurnRecord)
        and turn.outcome != "interrupted"
        and (turn.within is None or turn.covers)
        and dealt is not None
        and one.seq > dealt.seq
    )
    look = next(looks, None)
    if dealt is None:
        return replace(row, unread=judgement.urgency - (look is not None))
    if not isinstance(end, TurnRecord):
        return replace(row, dealt="handled")
    then = next(after, None) if end.outcome == "interrupted" else None
    return replace(
        row,
        dealt="turn_ended",
        outcome=end.outcome,
        within=end.within is not None,
        shown=event.seq in end.covers,
        looked=look is not None and look.seq < dealt.seq and end.cause != "attended",
        after=then.outcome if then is not None else "",
        after_within=then is not None and then.within is not None,
    )
