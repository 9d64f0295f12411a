"""What the gateway tells the agent about a turn: facts, already filtered by access and scope.

The agent never sees the store. A `Brief` is everything that a prompt is made from, so the same brief
always gives the same bytes.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from agent.models.base import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One message as the agent reads it."""

    sender: str
    """Display name. Untrusted."""
    role: str
    """owner, admin, member, guest."""
    bot: bool = False
    """The platform says that it is a machine."""
    sent: datetime
    text: str
    """Untrusted; may hold line breaks."""
    addressed: bool
    """True: said to the agent (direct, mention, reply). False: overheard in a room."""
    answers: tuple[str, str] | None = None
    """Whom it replies to (`you`: the agent), and how that began. Untrusted. None: nobody, or it is not known."""
    edited: bool = False
    """`text` is not what was said first."""
    attached: tuple[str, ...] = ()
    """What came beside the text, a line each, as `gateway.describe` writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A past turn."""

    heard: str
    """What was new then, as `agent.prompt.hear` wrote it then."""
    reply: str
    """Empty: the agent said nothing."""
    images: tuple[Image, ...] = ()
    """What was shown then, in the order of the lines. Empty for a model that does not see."""


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
    images: tuple[Image, ...] = ()
    """What is shown with it, in the order of the lines."""
