"""What became of every event, as the log tells it: exactly one fate each. Pure.

The same rules count a whole log (`compute_outcomes`, or `OutcomeTracker` one entry after the other) and tell one
event's story (`gateway.why`, which hands over the few entries that concern it). They follow
`gateway.store.projections`: what a turn or a decision deals with is what that takes out of the table of unread events.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from gateway.events import Command, ConversationId
from gateway.records import Judgement, Seq, TurnRecord, UnreadDismissed, is_inner
from gateway.store import LogEntry


class EventOutcome(StrEnum):
    """What became of an event. The first four are not the last word: see `OPEN_OUTCOMES`."""

    WAITING = "waiting"
    """Due for a turn, and none has come yet."""
    OVERHEARD = "overheard"
    """Context for the next turn in its conversation, and none has come yet."""
    LOOKED_AT = "looked at"
    """The agent looked at its conversation by itself, and did nothing yet: it is context for the next turn there."""
    INTERRUPTED = "interrupted"
    """Heard by a turn that was interrupted; the next one there will answer it."""
    REFUSED = "refused"
    """By access: never shown to the model."""
    NOTED = "noted"
    """It needs no turn."""
    COMMAND = "command"
    """Answered without the model."""
    CONTEXT = "context"
    """Told to a turn that was about something else."""
    COUNTED = "counted"
    """A turn was told how many such there were, for newer ones filled its prompt."""
    ANSWERED = "answered"
    SILENT = "silent"
    YIELDED = "yielded"
    FAILED = "failed"
    """By the turn that was told it."""
    TAKEN_UP = "taken up"
    """It was told to the agent by itself, in its inner conversation, and what the agent did then is in that turn."""
    ANSWERED_ELSEWHERE = "answered elsewhere"
    """The agent answered it out of its inner conversation."""
    HANDLED = "handled"
    """The agent decided there that nothing is to be done."""


OPEN_OUTCOMES = frozenset(
    {EventOutcome.WAITING, EventOutcome.OVERHEARD, EventOutcome.LOOKED_AT, EventOutcome.INTERRUPTED}
)
"""What may still become something else."""

_TURN_OUTCOMES = {
    "replied": EventOutcome.ANSWERED,
    "silent": EventOutcome.SILENT,
    "yielded": EventOutcome.YIELDED,
    "failed": EventOutcome.FAILED,
    "interrupted": EventOutcome.INTERRUPTED,
}


@dataclass(slots=True)
class _UnreadEvent:
    seq: Seq
    conversation: ConversationId
    is_due: bool
    was_looked_at: bool = False

    @property
    def outcome(self) -> EventOutcome:
        if not self.is_due:
            return EventOutcome.OVERHEARD
        return EventOutcome.LOOKED_AT if self.was_looked_at else EventOutcome.WAITING


class OutcomeTracker:
    """Reads a log from its beginning. What it remembers grows only with what is unread."""

    def __init__(self) -> None:
        self._commands: set[Seq] = set()
        """Not judged yet: their judgements come with the same append."""
        self._unread: dict[Seq, _UnreadEvent] = {}
        self._by_conversation: dict[ConversationId, dict[Seq, _UnreadEvent]] = {}
        self._interrupted: dict[ConversationId, list[Seq]] = {}
        """Due, and heard by a turn that was interrupted."""

    def add(self, entry: LogEntry) -> list[tuple[Seq, EventOutcome]]:
        """The events whose fate this entry, the next one of the log, seals. Each event is named once."""
        match entry.fact:
            case Command():
                self._commands.add(entry.seq)
            case Judgement() if entry.cause is not None:
                return self._add_judgement(entry.fact, entry.cause, entry.conversation)
            case TurnRecord() if entry.conversation is not None:
                return list(self._add_turn_end(entry.fact, entry.conversation))
            case UnreadDismissed() if entry.conversation is not None:
                return [(one.seq, EventOutcome.HANDLED) for one in self._pop_read(entry.conversation, entry.fact.upto)]
            case _:
                pass
        return []

    def open_outcomes(self) -> Iterator[tuple[Seq, EventOutcome]]:
        """The events that have been judged and whose fate is not sealed, with the one that they have until then."""
        yield from ((seq, one.outcome) for seq, one in self._unread.items())
        yield from ((seq, EventOutcome.INTERRUPTED) for heard in self._interrupted.values() for seq in heard)

    def _add_judgement(
        self, judged: Judgement, event: Seq, conversation: ConversationId | None
    ) -> list[tuple[Seq, EventOutcome]]:
        command = event in self._commands
        self._commands.discard(event)
        if judged.fate == "refused":
            return [(event, EventOutcome.REFUSED)]
        if judged.fate == "noted" or conversation is None:
            return [(event, EventOutcome.COMMAND if command else EventOutcome.NOTED)]
        one = _UnreadEvent(event, conversation, judged.fate == "due")
        self._unread[event] = one
        self._by_conversation.setdefault(conversation, {})[event] = one
        return []

    def _add_turn_end(self, turn: TurnRecord, conversation: ConversationId) -> Iterator[tuple[Seq, EventOutcome]]:
        outcome = _TURN_OUTCOMES[turn.outcome]
        if outcome is EventOutcome.ANSWERED and is_inner(conversation):
            outcome = EventOutcome.TAKEN_UP
        elif outcome is EventOutcome.ANSWERED and turn.within is not None:
            outcome = EventOutcome.ANSWERED_ELSEWHERE
        if outcome is not EventOutcome.INTERRUPTED and (turn.within is None or turn.covers):
            yield from ((seq, outcome) for seq in self._interrupted.pop(conversation, ()))
        shown = frozenset(turn.covers)
        for one in self._pop_read(conversation, turn.upto):
            if one.seq not in shown:
                yield one.seq, EventOutcome.COUNTED
            elif not one.is_due or one.was_looked_at:
                yield one.seq, EventOutcome.CONTEXT
            elif outcome is EventOutcome.INTERRUPTED:
                self._interrupted.setdefault(conversation, []).append(one.seq)
            else:
                yield one.seq, outcome
        for place, upto in turn.looked:
            for one in self._by_conversation.get(place, {}).values():
                one.was_looked_at |= one.seq <= upto

    def _pop_read(self, conversation: ConversationId, upto: Seq) -> list[_UnreadEvent]:
        there = self._by_conversation.get(conversation, {})
        read = [one for one in there.values() if one.seq <= upto]
        for one in read:
            del there[one.seq], self._unread[one.seq]
        if not there:
            self._by_conversation.pop(conversation, None)
        return read


def compute_outcomes(entries: Iterable[LogEntry]) -> dict[Seq, EventOutcome]:
    """What became of each event that was judged. `entries`: the log, or what of it concerns some, oldest first."""
    told, found = OutcomeTracker(), dict[Seq, EventOutcome]()
    for entry in entries:
        found.update(told.add(entry))
    found.update(told.open_outcomes())
    return found
