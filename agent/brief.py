"""What the gateway tells the agent about a turn: facts, already filtered by access and scope.

The agent never sees the store. A `Brief` is everything that a prompt is made from, so the same brief
always gives the same bytes.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message as the agent reads it."""

    sender: str
    """Display name. Untrusted."""
    role: str
    """owner, admin, member, guest."""
    sent: datetime
    text: str
    """Untrusted; may hold line breaks."""
    addressed: bool
    """True: said to the agent (direct, mention, reply). False: overheard in a room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A past turn."""

    heard: str
    """What was new then, as `agent.prompt.hear` wrote it then."""
    reply: str
    """Empty: the agent said nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the turn happens: facts that change rarely or never."""

    platform: str
    channel: str
    room: str
    """As people there call it."""
    kind: Literal["direct", "room"]
    formatting: str
    """One sentence: what becomes of Markdown there."""
    prompt: str = ""
    """The operator's own words for this binding."""
    language: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """One turn, before anything is decided about it."""

    persona: str
    """Identity text, the same for every place and hour."""
    place: Place
    history: tuple[Exchange, ...]
    """Oldest first; only ever grows at its end between folds."""
    heard: str
    """What is unread now, as `agent.prompt.hear` writes it."""
