"""What became of each event of a whole log."""

from collections.abc import Sequence

from gateway.core.facts import Judgement, Seq, TurnRecord, UnreadDismissed, is_inner
from gateway.store import LogEntry
from gateway.stream.trace import EventOutcome, EventTrail


def compute_outcomes(log: Sequence[LogEntry]) -> dict[Seq, EventOutcome]:
    """The outcome of each judged event, by the entries behind its judgement."""
    by_seq, found = {entry.seq: entry for entry in log}, dict[Seq, EventOutcome]()
    for judged in log:
        if isinstance(judged.fact, Judgement) and judged.cause is not None:
            found[judged.cause] = _find_trail(
                by_seq[judged.cause], judged, judged.fact.fate, log
            ).outcome
    return found


def _find_trail(
    event: LogEntry, judged: LogEntry, fate: str, log: Sequence[LogEntry]
) -> EventTrail:
    place = judged.conversation
    if fate in ("refused", "noted") or place is None:
        return EventTrail(event=event, judgement=judged)
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
        one
        for one, turn in here
        if isinstance(turn, TurnRecord)
        and turn.outcome != "interrupted"
        and (turn.within is None or turn.covers)
        and dealt is not None
        and one.seq > dealt.seq
    )
    is_cut = isinstance(end, TurnRecord) and end.outcome == "interrupted"
    return EventTrail(
        event=event,
        judgement=judged,
        looked_at=next(looks, None),
        dealt_with=dealt,
        next_turn=next(after, None) if is_cut else None,
    )
