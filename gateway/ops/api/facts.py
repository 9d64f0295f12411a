"""From what is in the log to the events that are told of it. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from gateway.events import Delivery, Usage
from gateway.ops.api.events import (
    DeliveryEvent,
    Event,
    FateEvent,
    NotificationEvent,
    PostEvent,
    TurnEvent,
)
from gateway.ops.api.now import tokens
from gateway.ops.api.wording import fate, text, who
from gateway.ops.onlookers import Running
from gateway.records import Fact, Judged, Queued, Seq, TurnEnded
from gateway.store import Appended, Entry
from gateway.store.lines import uncoded
from gateway.store.overview_rows import Event as Kept
from gateway.store.overview_rows import TurnSeen

Told = tuple[Seq, Sequence[Event]]
"""What is told of the entries up to a position of the log."""


def of_append(entries: Sequence[Entry], written: Sequence[Appended]) -> list[Told]:
    """What is told of an append."""
    seqs = {id(entry): done.seq for entry, done in zip(entries, written, strict=True)}
    told = list[Told]()
    for entry, done in zip(entries, written, strict=True):
        if done.is_new and (events := list(_of(entry, done.seq, seqs))):
            told.append((done.seq, events))
    return told


def _of(entry: Entry, seq: Seq, seqs: dict[int, Seq]) -> Iterator[Event]:
    if isinstance(entry.fact, Judged) and isinstance(entry.cause, Entry):
        yield from _noticed(
            Kept(
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
        yield from of_fact(entry.fact, seq, entry.at, entry.conversation or "")


def of_event(event: Kept) -> list[Event]:
    """What is told of a notification that is in the log already."""
    return list(_noticed(event))


def _noticed(event: Kept) -> Iterator[Event]:
    yield NotificationEvent(
        at=event.at,
        seq=event.seq,
        type=event.judged.type,
        kind=event.fact.kind,
        conversation=event.conversation,
        who=who(event.fact),
        text=text(event.fact),
        urgency=event.judged.urgency,
    )
    yield became(event)


def became(event: Kept, at: datetime | None = None) -> FateEvent:
    """What became of it. `at`: when that was seen; None: at once."""
    return FateEvent(
        at=at or event.at,
        seq=event.seq,
        conversation=event.conversation,
        fate=fate(event).value,
        rule=event.judged.rule,
    )


def of_fact(fact: Fact, seq: Seq, at: datetime, conversation: str) -> Iterator[Event]:
    """What is told of everything else."""
    match fact:
        case TurnEnded():
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
                **tokens(fact.usage, sum(one.cost_usd or 0.0 for one in fact.accounts)),
            )
        case Queued(post=post):
            yield PostEvent(at=at, seq=seq, conversation=post.to.conversation, text=uncoded(post.text))
        case Delivery():
            yield DeliveryEvent(
                at=at, seq=seq, conversation=fact.at.conversation, outcome=fact.state, reason=fact.reason
            )
        case _:
            pass


def of_turn(one: TurnSeen) -> TurnEvent:
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
        **tokens(one.usage, one.cost_usd),
    )


def turned(running: Running, at: datetime, state: Literal["started", "ended"]) -> TurnEvent:
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
        **tokens(Usage(), 0.0),
    )
