"""Which limit bites, and what is said about it. Pure."""

from typing import Final, Literal, NamedTuple

from gateway.events import ConversationId
from gateway.tools.consent import inline_code

LimitKind = Literal["rate", "cost"]
LimitScope = Literal["sender", "room", "agent"]

SUBJECT_CHARS: Final = 160

_NOTICES: Final[dict[tuple[LimitKind, LimitScope], str]] = {
    ("rate", "sender"): "You write to me faster than I can answer. I go on reading, and will answer again in a while.",
    ("rate", "room"): "More is said to me here than I can answer. I go on reading, and will answer again in a while.",
    ("rate", "agent"): "I am asked for more than I can answer just now. I go on reading, and will answer again in a "
    "while.",
    ("cost", "sender"): "I have used up what I may spend on answering you today; from 00:00 UTC on again.",
    ("cost", "room"): "I have used up what I may spend here today; from 00:00 UTC on again.",
    ("cost", "agent"): "I have used up what I may spend on answers today; from 00:00 UTC on again.",
}


class LimitHit(NamedTuple):
    """A limit that is reached."""

    limit: LimitKind
    whose: LimitScope
    subject: str
    """The person, the room or the agent."""
    rule: str
    """The setting, and what it says."""

    def key(self, day: str) -> str:
        """Tells it from all others; what money may be spent is another limit each day (YYYY-MM-DD)."""
        own = f"{self.limit}:{self.whose}:{self.subject}"
        return f"{own}:{day}" if self.limit == "cost" else own


def format_limit_notice(bite: LimitHit) -> str:
    """What is said once to those who ask for too much."""
    return _NOTICES[bite.limit, bite.whose]


def format_limit_report(bite: LimitHit, place: ConversationId) -> str:
    """What owners are told, in Markdown. Names of people and places are theirs, so they stand in code."""
    whose, where = inline_code(bite.subject, SUBJECT_CHARS), inline_code(place, SUBJECT_CHARS)
    return (
        f"The {bite.whose} {whose} has reached a limit ({bite.rule}), in {where}. What comes beyond it is read, and "
        "not answered. I say this once a day."
    )
