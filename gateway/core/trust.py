"""Who wrote a text, as far as the authority of a tool call depends on it.

A model may act upon every text that its request holds. So a call has the authority of the least of those who wrote any
of it, for as long as the request holds it: lines in view, what stands in for folded ones, what was recalled, the
pinned topic, files and pages. Whoever carries somebody else's words (a forward, a quotation, an attachment) does not
lend them authority.
"""

from dataclasses import dataclass
from typing import Final

from gateway.core.facts import ChannelCardPinned, NoteWritten, TurnRecord, ViewFolded
from gateway.core.identity import ROLE_ORDER

ANYBODY_ROLE: Final = "guest"
"""The role of whoever wrote words that may be anybody's."""
UNRECORDED_SOURCE: Final = "an earlier version, which did not record its source,"


_OLD_CARD_TOPIC: Final = "\nTopic, in the words of people there: "
"""In a card of an earlier version (`agent.prompt.render_channel_card`)."""


@dataclass(frozen=True, slots=True)
class TrustLabel:
    """The join of all who wrote a text. The default: the operator, an owner, or the agent by itself."""

    role: str = "owner"
    """The lowest role among them. Who gave administration no proof is a member at most."""
    foreign: str = ""
    """What brought text from outside (a tool, a forwarded message, ...), for people. Empty: nothing did."""

    def __or__(self, other: "TrustLabel") -> "TrustLabel":
        """Both texts together."""
        return TrustLabel(min(self.role, other.role, key=role_rank), self.foreign or other.foreign)


TRUSTED_LABEL: Final = TrustLabel()
UNKNOWN_LABEL: Final = TrustLabel(ANYBODY_ROLE, UNRECORDED_SOURCE)


def role_rank(role: str) -> int:
    """The higher, the more it may. What is no role may the least."""
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1


def label_of_summary(folded: ViewFolded | None) -> TrustLabel:
    """Of what stands in for the turns that have left the view."""
    if folded is None or not folded.head:
        return TRUSTED_LABEL
    return TrustLabel(folded.least_role, folded.foreign) if folded.least_role else UNKNOWN_LABEL


def label_of_card(carded: ChannelCardPinned) -> TrustLabel:
    """Of the people's words in a pinned channel card."""
    return TrustLabel(carded.least_role or (ANYBODY_ROLE if _OLD_CARD_TOPIC in carded.text else "owner"))


def label_of_note(noted: NoteWritten) -> TrustLabel:
    """Of what the agent wrote down."""
    return TrustLabel(noted.role or ANYBODY_ROLE, "a note" if noted.foreign else "")


def recorded_label(ended: TurnRecord) -> TrustLabel | None:
    """Of all that a turn's requests held, and so of what it said. None: an earlier version did not tell."""
    return TrustLabel(ended.least_role, ended.foreign) if ended.least_role else None
