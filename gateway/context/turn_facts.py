"""Start and result of a turn as plain data. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.context.conversation import CurrentMessage, RenderedInput, is_addressed
from gateway.context.digest import Digest
from gateway.core.events import Address, Alarm, ConversationId
from gateway.core.facts import FoldDecision, Seq, TurnCause, TurnId, is_inner
from gateway.core.trust import TrustLabel
from gateway.store import UnreadEntries

NO_UNREAD = UnreadEntries(messages=(), omitted=0, upto=Seq(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """Input with which a turn begins."""

    turn: TurnId
    place: Address
    autonomous: bool
    continuing: bool = False
    is_compaction: bool = False
    """The turn only folds the view, on request."""
    unread: UnreadEntries
    messages: Sequence[CurrentMessage] = ()
    """Unread messages that still exist."""
    digest: Digest | None = None
    """Input of the inner conversation, in place of both. None: nothing is pending, or it is another conversation."""

    @property
    def is_inner(self) -> bool:
        """The turn belongs to the inner conversation."""
        return is_inner(self.place.conversation)

    @property
    def is_addressed(self) -> bool:
        """An unread message is addressed to the agent. Reminders do not count."""
        return any(one.message.kind != "room" and not (one.is_topic_change or one.notice) for one in self.messages)

    @property
    def cause(self) -> TurnCause:
        """Cause that the turn's record names."""
        if self.is_compaction:
            return "compact"
        if not self.autonomous:
            return "addressed"
        if self.continuing:
            return "continued"
        if self.is_inner:
            return "digest"
        return "alarm" if any(isinstance(one.fact, Alarm) for one in self.unread.messages) else "noticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBasis:
    """Request data for the turn's record, beside the new input: see the fields of `TurnRecord` with these names."""

    view: str = ""
    recalled: tuple[str, ...] = ()
    nudged: bool = False
    weighed: FoldDecision | None = None
    label: TrustLabel | None = None
    """None: no model was asked, so the label follows from the rendered input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedInput:
    """Input that a turn has consumed."""

    rendered: RenderedInput
    omitted: int
    upto: Seq
    messages: Sequence[CurrentMessage] = ()
    """Messages among it: a reply refers to one of them."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    """See `TurnRecord.looked`."""
    basis: TurnBasis = TurnBasis()

    @property
    def as_stopped(self) -> "ConsumedInput":
        """Form for a turn that a command stopped: the record of that command holds the input.

        Only the senders stay, because they bear what the turn cost.
        """
        rendered = RenderedInput(senders=self.rendered.senders)
        return replace(self, rendered=rendered, omitted=0, upto=Seq(0), messages=(), looked=())

    @property
    def is_addressed(self) -> bool:
        """An entry of it is addressed to the agent."""
        return any(is_addressed(one.message) for one in self.messages)


def count_omitted(unread: UnreadEntries, rendered: RenderedInput) -> int:
    """Return how many unread entries up to `UnreadEntries.upto` count as consumed without being rendered."""
    return unread.omitted + len(unread.messages) - len(rendered.covers)
