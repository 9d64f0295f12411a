"""One turn as facts: what it begins with, and what it has dealt with. Pure."""

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
    """One turn, as it begins."""

    turn: TurnId
    place: Address
    autonomous: bool
    continuing: bool = False
    is_compaction: bool = False
    """It only folds the view, because somebody wants that."""
    unread: UnreadEntries
    messages: Sequence[CurrentMessage] = ()
    """What is left of the unread messages."""
    digest: Digest | None = None
    """Of the inner conversation, in place of both. None: nothing is pending, or it is another conversation."""

    @property
    def is_inner(self) -> bool:
        """It is a turn of the inner conversation."""
        return is_inner(self.place.conversation)

    @property
    def is_addressed(self) -> bool:
        """Somebody's unread words were said to the agent; a reminder's are nobody's."""
        return any(one.message.kind != "room" and not (one.is_topic_change or one.notice) for one in self.messages)

    @property
    def cause(self) -> TurnCause:
        """Why it is taken."""
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
    """What a turn was asked with, beside what is new: see the fields of `TurnEnded` with these names."""

    view: str = ""
    recalled: tuple[str, ...] = ()
    nudged: bool = False
    weighed: FoldDecision | None = None
    label: TrustLabel | None = None
    """None: no model was asked, so it follows from what was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedInput:
    """What a turn has dealt with."""

    rendered: RenderedInput
    omitted: int
    upto: Seq
    messages: Sequence[CurrentMessage] = ()
    """The messages among it: a reply is a reply to one of them."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    """As `TurnEnded.looked`."""
    basis: TurnBasis = TurnBasis()

    @property
    def as_stopped(self) -> "ConsumedInput":
        """The same of a turn that somebody ended: what it had heard is in the record of the word that did.

        Who said that bears what it cost.
        """
        told = RenderedInput(senders=self.rendered.senders)
        return replace(self, rendered=told, omitted=0, upto=Seq(0), messages=(), looked=())

    @property
    def is_addressed(self) -> bool:
        """Something of it was said to the agent."""
        return any(is_addressed(one.message) for one in self.messages)


def count_omitted(unread: UnreadEntries, told: RenderedInput) -> int:
    """How many unread ones up to `UnreadEntries.upto` are dealt with and not told."""
    return unread.omitted + len(unread.messages) - len(told.covers)
