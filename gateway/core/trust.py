"""Authorship of a text, as far as the authority of a tool call depends on it.

A model may act upon every text in its request. So a call has the authority of the lowest role among the authors of all
that text, for as long as the request holds it: lines in view, summaries of folded lines, recalled texts, the pinned
topic, files and pages. A person who passes on other people's words (a forward, a quotation, an attachment) does not
lend them authority.
"""

from dataclasses import dataclass
from typing import Final

from gateway.core.facts import ChannelCardPinned, NoteWritten, TurnRecord, ViewFolded
from gateway.core.identity import ROLE_ORDER

ANYBODY_ROLE: Final = "guest"
"""Role of the author of a text that anybody may have written."""
UNRECORDED_SOURCE: Final = "an earlier version, which did not record its source,"


_OLD_CARD_TOPIC: Final = "\nTopic, in the words of people there: "
"""Start of the topic in a card of an earlier version (`agent.prompt.render_channel_card`)."""


@dataclass(frozen=True, slots=True)
class TrustLabel:
    """Combined authorship of a text. Default: only the operator, an owner, or the agent itself."""

    role: str = "owner"
    """The lowest role among the authors. Without proof of an administrator's identity, a member at most."""
    foreign: str = ""
    """Source that brought text from outside (a tool, a forwarded message, ...), for people. Empty: none."""

    def __or__(self, other: "TrustLabel") -> "TrustLabel":
        """Label of both texts together."""
        return TrustLabel(min(self.role, other.role, key=role_rank), self.foreign or other.foreign)


TRUSTED_LABEL: Final = TrustLabel()
UNKNOWN_LABEL: Final = TrustLabel(ANYBODY_ROLE, UNRECORDED_SOURCE)


def role_rank(role: str) -> int:
    """Return the rank of a role: higher means more rights. An unknown role has the lowest."""
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1


def label_of_summary(folded: ViewFolded | None) -> TrustLabel:
    """Label of the text that replaces the turns that have left the view."""
    if folded is None or not folded.head:
        return TRUSTED_LABEL
    return TrustLabel(folded.least_role, folded.foreign) if folded.least_role else UNKNOWN_LABEL


def label_of_card(card: ChannelCardPinned) -> TrustLabel:
    """Label of the people's words in a pinned channel card."""
    return TrustLabel(card.least_role or (ANYBODY_ROLE if _OLD_CARD_TOPIC in card.text else "owner"))


def label_of_note(note: NoteWritten) -> TrustLabel:
    """Label of a note written by the agent."""
    return TrustLabel(note.role or ANYBODY_ROLE, "a note" if note.foreign else "")


def recorded_label(turn: TurnRecord) -> TrustLabel | None:
    """Label of all texts in a turn's requests, and so of its answer. None: recorded by a version without labels."""
    return TrustLabel(turn.least_role, turn.foreign) if turn.least_role else None
