"""From what is in the log to the events that are told of it. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from gateway.events import DeliveryReport, Usage
from gateway.ops.api.events import ApiEvent, DeliveryEvent, FateEvent, NotificationEvent, PostEvent, TurnEvent
from gateway.ops.api.now import token_fields
from gateway.ops.api.wording import find_actor, find_outcome, render_fact_text
from gateway.ops.onlookers import RunningTurn
from gateway.records import Fact, Judgement, PostQueued, Seq, TurnRecord
from gateway.store import AppendResult, NewEntry
from gateway.store.lines import hide_codes
from gateway.store.overview_rows import NotificationRow, TurnRow

PositionedEvents = tuple[Seq, Sequence[ApiEvent]]
"""What is told of the entries up to a position of the log."""


def build_append_events(entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> list[PositionedEvents]:
    """What is told of an append."""
    seqs = {id(entry): done.seq for entry, done in zip(entries, written, strict=True)}
    told = list[PositionedEvents]()
    for entry, done in zip(entries, written, strict=True):
        if done.is_new and (events := list(_build_entry_events(entry, done.seq, seqs))):
            told.append((done.seq, events))
    return told


def _build_entry_events(entry: NewEntry, seq: Seq, seqs: dict[int, Seq]) -> Iterator[ApiEvent]:
    if isinstance(entry.fact, Judgement) and isinstance(entry.cause, NewEntry):
        yield from _notification_events(
            NotificationRow(
                seq=seqs[id(entry.cause)],
                at=entry.cause.at,
                fact=entry.cause.fact,
                conversation=entry.cause.conversation,
                judged=entry.fact,
                place=entry.conversation,
                unread=entry.fact.urgency,
            )
        )
    else:
        yield from build_fact_events(entry.fact, seq, entry.at, entry.conversation or "")


def build_notification_events(event: NotificationRow) -> list[ApiEvent]:
    """What is told of a notification that is in the log already."""
    return list(_notification_events(event))


def _notification_events(event: NotificationRow) -> Iterator[ApiEvent]:
    yield NotificationEvent(
        at=event.at,
        seq=event.seq,
        type=event.judged.type,
        kind=event.fact.kind,
        conversation=event.conversation,
        who=find_actor(event.fact),
        text=render_fact_text(event.fact),
        urgency=event.judged.urgency,
    )
    yield build_fate_event(event)


def build_fate_event(event: NotificationRow, at: datetime | None = None) -> FateEvent:
    """What became of it. `at`: when that was seen; None: at once."""
    return FateEvent(
        at=at or event.at,
        seq=event.seq,
        conversation=event.conversation,
        fate=find_outcome(event).value,
        rule=event.judged.rule,
    )


def build_fact_events(fact: Fact, seq: Seq, at: datetime, conversation: str) -> Iterator[ApiEvent]:
    """What is told of everything else."""
    match fact:
        case TurnRecord():
            yield TurnEvent(
                at=at,
                turn=fact.turn,
                agent=fact.agent,
                conversation=conversation,
                state="ended",
                autonomous=fact.autonomous,
                cause=fact.cause,
                outcome=fact.outcome,
                model=fact.model,
                **token_fields(fact.usage, sum(one.cost_usd or 0.0 for one in fact.accounts)),
            )
        case PostQueued(post=post):
            yield PostEvent(at=at, seq=seq, conversation=post.to.conversation, text=hide_codes(post.text))
        case DeliveryReport():
            yield DeliveryEvent(
                at=at, seq=seq, conversation=fact.at.conversation, outcome=fact.state, reason=fact.reason
            )
        case _:
            pass


def build_recorded_turn_event(one: TurnRow) -> TurnEvent:
    """What is told of a turn that is in the log already."""
    return TurnEvent(
        at=one.at,
        turn=one.turn,
        agent=one.agent,
        conversation=one.conversation,
        state="ended",
        autonomous=one.autonomous,
        cause=one.cause,
        outcome=one.outcome,
        model=one.model,
        **token_fields(one.usage, one.cost_usd),
    )


def build_live_turn_event(running: RunningTurn, at: datetime, state: Literal["started", "ended"]) -> TurnEvent:
    """A turn began, or ended without a record."""
    return TurnEvent(
        at=at,
        turn=running.turn,
        agent=running.agent,
        conversation=running.conversation,
        state=state,
        autonomous=running.autonomous,
        cause=running.cause,
        outcome="",
        model="",
        **token_fields(Usage(), 0.0),
    )
