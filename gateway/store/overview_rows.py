"""What `gateway.store.overview` gives: entries of the log without their long bodies."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from gateway.events import ConversationId, Usage
from gateway.records import FACT, Fact, Judgement, Seq
from gateway.store.spending import usage_of

_NOWHERE = Seq(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRow:
    """A notification, what was decided about it, and what dealt with it."""

    seq: Seq
    at: datetime
    fact: Fact
    conversation: ConversationId | None
    """Where it happened."""
    judged: Judgement
    place: ConversationId | None
    """Where it is unread, if it is due."""
    unread: int | None
    """How urgent it is where it is still unread. None: it is not."""
    dealt: Literal["", "turn_ended", "handled"] = ""
    """What kind of entry dealt with it. Empty: none has."""
    dealt_seq: Seq = _NOWHERE
    """Where that stands."""
    outcome: str = ""
    """Of that turn."""
    within: bool = False
    """That turn was what another one did there."""
    shown: bool = False
    """That turn was told it word for word."""
    looked: bool = False
    """A turn of an inner conversation had looked at it before."""
    after: str = ""
    """If that turn was interrupted: how the next one there ended. Empty: none has."""
    after_within: bool = False
    """That one was what another turn did there."""
    after_seq: Seq = _NOWHERE
    """Where that one stands."""

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of what `overview_queries.NOTICED` gives."""
        seq, at, body, conversation, judged, place, unread, dealt, dealt_seq, outcome, within, shown, looked, then = row
        after, after_within, after_seq = json.loads(then) if then is not None else ("", 0, 0)
        said = FACT.validate_json(judged)
        assert isinstance(said, Judgement)
        return cls(
            seq=Seq(seq),
            at=datetime.fromisoformat(at),
            fact=FACT.validate_json(body),
            conversation=conversation,
            judged=said,
            place=place,
            unread=unread,
            dealt=dealt or "",
            dealt_seq=Seq(dealt_seq or 0),
            outcome=outcome or "",
            within=bool(within),
            shown=bool(shown),
            looked=bool(looked),
            after=after,
            after_within=bool(after_within),
            after_seq=Seq(after_seq),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenRow:
    """Something that was said somewhere."""

    seq: Seq
    at: datetime
    fact: Fact
    delivered: str
    """Of a post of ours, how its delivery ended. Empty: it has not, or it is none."""

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Make it of what `overview_queries.SPOKEN` gives."""
        seq, at, body, delivered = row
        fact = FACT.validate_json(body)
        return cls(seq=Seq(seq), at=datetime.fromisoformat(at), fact=fact, delivered=delivered or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    """A conversation in which something is in the log."""

    conversation: ConversationId
    last: SpokenRow | None
    """What was said there last. None: nothing lately."""
    seq: Seq
    """Of its last entry, whatever that is."""
    at: datetime
    """Of the same."""
    unread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """The record of a turn, without what was heard and said."""

    seq: Seq
    at: datetime
    conversation: ConversationId
    turn: str
    agent: str
    cause: str
    outcome: str
    model: str
    requests: int
    tools: tuple[str, ...]
    usage: Usage
    cost_usd: float
    within: bool
    """It is what another turn did there, and asked no model."""
    autonomous: bool

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of what `overview_queries.TURNS` gives."""
        seq, at, place, turn, agent, cause, outcome, model, requests, tools, usage, cost, within, autonomous = row
        return cls(
            seq=Seq(seq),
            at=datetime.fromisoformat(at),
            conversation=ConversationId(place),
            turn=turn,
            agent=agent or "",
            cause=cause or "addressed",
            outcome=outcome,
            model=model,
            requests=requests,
            tools=tuple(json.loads(tools)),
            usage=Usage(**json.loads(usage)),
            cost_usd=cost,
            within=bool(within),
            autonomous=bool(autonomous),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingBucket:
    """What was spent in one hour or day, by a key."""

    at: datetime
    """Its beginning, UTC."""
    key: str
    requests: int
    usage: Usage
    cost_usd: float

    @classmethod
    def from_row(cls, row: Iterable[Any]) -> Self:
        """Make it of what `overview_queries.SPENT_BY` and `DAYS_BY` give."""
        at, key, requests, *usage, cost = row
        began = datetime.fromisoformat(at).replace(tzinfo=UTC)
        return cls(at=began, key=key or "", requests=requests, usage=usage_of(*usage), cost_usd=cost)
