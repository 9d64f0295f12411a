"""Who wrote a text, as far as the authority of a tool call depends on it.

A model may act upon every text that its request holds. So a call has the authority of the least of those who wrote any
of it, for as long as the request holds it: lines in view, what stands in for folded ones, what was recalled, the
pinned topic, files and pages. Whoever carries somebody else's words (a forward, a quotation, an attachment) does not
lend them authority.
"""

import re
from dataclasses import dataclass
from typing import Final

from gateway.records import Carded, Folded, Noted, TurnEnded
from gateway.standing import RANKS
from gateway.store import Reader

ANYBODY: Final = "guest"
"""The role of whoever wrote words that may be anybody's."""
OLD: Final = "an earlier version, which did not record its source,"
_BRINGS: Final = frozenset(
    {"read_file", "grep", "glob", "view_image", "read_room", "who", "list_reminders", "forget", "call_capability"}
)
"""Tools that brought somebody's words into a turn of an earlier version, which did not record that."""
_CARRIED: Final = re.compile(
    r"\(forwarded from |\[forwarded\]|\(by way of @|\(in reply to |^ *>|\[(?:image|file|video)|changed the topic to",
    re.MULTILINE,
)
"""Found in what a turn of an earlier version heard: its line may hold words of others than its sender."""


_TOPIC: Final = "\nTopic, in the words of people there: "
"""In a card of an earlier version (`agent.prompt.card`)."""


@dataclass(frozen=True, slots=True)
class Label:
    """The join of all who wrote a text. The default: the operator, an owner, or the agent by itself."""

    role: str = "owner"
    """The lowest role among them. Who gave administration no proof is a member at most."""
    foreign: str = ""
    """What brought text from outside (a tool, a forwarded message, ...), for people. Empty: nothing did."""

    def __or__(self, other: "Label") -> "Label":
        """Both texts together."""
        return Label(min(self.role, other.role, key=rank), self.foreign or other.foreign)


CLEAN: Final = Label()
UNKNOWN: Final = Label(ANYBODY, OLD)


def rank(role: str) -> int:
    """The higher, the more it may. What is no role may the least."""
    return RANKS.index(role) if role in RANKS else -1


def label_of_head(folded: Folded | None) -> Label:
    """Of what stands in for the turns that have left the view."""
    if folded is None or not folded.head:
        return CLEAN
    return Label(folded.least_role, folded.foreign) if folded.least_role else UNKNOWN


def label_of_card(carded: Carded) -> Label:
    """Of the people's words in a pinned channel card."""
    return Label(carded.least_role or (ANYBODY if _TOPIC in carded.text else "owner"))


def label_of_note(noted: Noted) -> Label:
    """Of what the agent wrote down."""
    return Label(noted.role or ANYBODY, "a note" if noted.foreign else "")


def recorded(ended: TurnEnded) -> Label | None:
    """Of all that a turn's requests held, and so of what it said. None: an earlier version did not tell."""
    return Label(ended.least_role, ended.foreign) if ended.least_role else None


async def label_of(reader: Reader, ended: TurnEnded) -> Label:
    """The same; of a turn of an earlier version by the roles with which its messages were judged. Raises StoreError."""
    if (told := recorded(ended)) is not None:
        return told
    label = Label(foreign=ended.foreign)
    for seq in ended.covers:
        judged = await reader.find_judgement(seq)
        label |= Label(judged.role if judged is not None and judged.role else ANYBODY)
    if any(called.name in _BRINGS for step in ended.steps for called in step.calls) or _CARRIED.search(ended.heard):
        label |= UNKNOWN
    return label
