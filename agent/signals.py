"""What the Default Mode Network is told, what it remembers, and what it asks for. `agent.dmn` decides.

Pure, and frozen: a state is a value. Times are aware and in UTC; they come with the signals.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import TypeAdapter

from gateway.core.events import ConversationId, PresenceLevel

LOW, NORMAL, URGENT = 1, 2, 3
"""Urgencies that reach the agent (0, ambient, never does)."""

ArrivalPolicy = Literal["steer", "queue", "interrupt"]
"""What becomes of a running turn when somebody speaks to the agent there: it is told at its next tool boundary; it goes
on, and the next turn is told; it is ended, and the next turn begins at once."""


DmnOrder = Literal["wake", "pause", "rest", "store", "quiet", "off"]
"""What an operator, or the agent itself, tells the network. `store`: rest until a time or a kind of event."""


class DmnMode(StrEnum):
    """What the agent is doing, by how soon it looks again."""

    ENGAGED = "engaged"
    WORKING = "working"
    FORAGING = "foraging"
    RESTING = "resting"
    STORED = "stored"
    DREAMING = "dreaming"
    PAUSED = "paused"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class DmnPolicy:
    """How the operator wants it."""

    inner: ConversationId
    """The agent's own conversation."""
    engaged_s: float = 5.0
    working_s: float = 3.0
    foraging_s: float = 30.0
    resting_s: float = 300.0
    dreaming_s: float = 600.0
    """A dream takes no longer."""
    max_autonomous_turns: int = 20
    """In a row; a person's word starts the count again."""
    daily_turns: int = 200
    """Autonomous ones, per UTC day."""
    daily_cost_usd: float = 2.0
    """Of autonomous turns, per UTC day. 0: none that cost anything."""
    forage: bool = False
    """True: a foraging agent also takes up low notifications."""
    lanes: int = 8
    """Turns side by side. With more than one, one of them is for direct chats alone."""
    dream_every_s: float = 64_800.0
    """At most so often does it dream. 0: never."""
    dream_tokens: int = 500
    """So much must have been written down since."""
    lifetimes_s: tuple[float, ...] = (300.0, 3600.0)
    """Of cached prompts: an interval that would end just past one of them ends before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTurn:
    """A turn that is due at once."""

    conversation: ConversationId
    direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DmnState:
    """All that the network remembers. A restart keeps what `lasting` names."""

    mode: DmnMode = DmnMode.RESTING
    running: tuple[ConversationId, ...] = ()
    """A turn is under way here."""
    chats: tuple[ConversationId, ...] = ()
    """Of these, the direct chats that somebody wrote in."""
    waiting: tuple[PendingTurn, ...] = ()
    """Somebody is owed a turn here; oldest first."""
    pending: tuple[ConversationId, ...] = ()
    """Taken up when a tick comes; oldest first."""
    continuing: tuple[ConversationId, ...] = ()
    """The last turn here used tools and did not yield: it goes on when a tick comes."""
    low: tuple[ConversationId, ...] = ()
    """Something low waits here."""
    spared: bool = False
    """The inner turn was interrupted once already, and is let alone now."""
    presence: PresenceLevel = "present"
    autonomous: int = 0
    """Autonomous turns since a person last spoke to the agent."""
    day: str = ""
    """The UTC date that the next three are of."""
    turns_today: int = 0
    """Autonomous ones."""
    spent_today_usd: float = 0.0
    """By these."""
    spent_up: bool = False
    """A request was refused because it could have cost more than is left."""
    errors: int = 0
    """Failed turns in a row."""
    quiet_until: datetime | None = None
    """Nothing below urgent starts anything until then."""
    stored_until: datetime | None = None
    """Stored: woken then. None: only by an event, or a person."""
    wake_on: tuple[str, ...] = ()
    """Stored: woken by a notification of such a type, or one below it."""
    woken: bool = False
    """It was stored, and no turn has ended since it was woken."""
    dreamt: datetime | None = None
    """When the last dream began."""
    stopping: bool = False

    @property
    def persistent(self) -> "DmnState":
        """What outlives the process. Nobody is owed anything: what is unread is noticed anew.

        A dream that the process does not outlive is dreamt again; one that was whole left nothing to dream of.
        """
        if self.mode is DmnMode.DREAMING:
            self = replace(self, mode=DmnMode.RESTING, dreamt=None)  # noqa: PLW0642 - as of then
        kept = replace(self, running=(), chats=(), waiting=(), pending=(), continuing=(), low=())
        return replace(kept, spared=False, woken=False, stopping=False)


_STATE_ADAPTER: TypeAdapter[DmnState] = TypeAdapter(DmnState)


def dump_state(state: DmnState) -> str:
    """The part of a state that outlives the process, as JSON."""
    return _STATE_ADAPTER.dump_json(state.persistent).decode()


def load_state(saved: str) -> DmnState:
    """Reverse `dump_state`. Raises ValueError for text that `dump_state` did not make."""
    return _STATE_ADAPTER.validate_json(saved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Something is ripe, for a turn in this conversation."""

    at: datetime
    conversation: ConversationId
    urgency: int
    type: str = ""
    """Its dotted type; empty: several, or not known any more."""
    direct: bool = False
    """It is a direct chat."""
    arrivals: ArrivalPolicy = "steer"
    trusted: bool = False
    """An owner or admin said it: their word lifts a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn ended in a reply, in silence, by yielding, or because it was interrupted."""

    at: datetime
    conversation: ConversationId
    used_tools: bool = False
    """Tools that do something, and not only end the turn or write something down."""
    yielded: bool = False
    interrupted: bool = False
    autonomous: bool = False
    cost_usd: float = 0.0
    left: int = 0
    """Highest urgency still unread there: what came while the turn ran."""
    direct: bool = False
    addressed: bool = False
    """It began by itself, and somebody spoke to the agent in it: so it was not one of the agent's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed:
    """A turn ended without an answer."""

    at: datetime
    conversation: ConversationId
    autonomous: bool = False
    cost_usd: float = 0.0
    left: int = 0
    direct: bool = False
    addressed: bool = False
    """As in `TurnEnded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The timer came."""

    at: datetime
    material_tokens: int = 0
    """Written down since the last dream."""
    arriving: tuple[ConversationId, ...] = ()
    """Here somebody has just spoken to the agent, which is noticed in a moment: that begins the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """The people came nearer, or went."""

    at: datetime
    level: PresenceLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """An operator, or the agent itself, says what to do."""

    at: datetime
    order: DmnOrder
    until: datetime | None = None
    """Of `store` and `quiet`. None: until woken."""
    on: tuple[str, ...] = ()
    """Of `store`: types of notifications that wake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOff:
    """Somebody has what goes on here left off: nobody is owed a turn by what was there until now."""

    at: datetime
    conversation: ConversationId


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent:
    """A request of an autonomous turn was refused, because it could have cost more than is left of the day's money."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The process ends soon: start nothing more."""

    at: datetime


Signal = Noticed | TurnEnded | TurnFailed | Tick | Presence | Directive | LeftOff | BudgetSpent | Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTurn:
    """Begin a turn in this conversation now."""

    conversation: ConversationId
    autonomous: bool
    continuing: bool = False
    """Nothing need be unread: it goes on with what it was doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer:
    """Tell the turn that runs there what has arrived, at its next tool boundary."""

    conversation: ConversationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """End the turn that runs there, leaving a record of what it did."""

    conversation: ConversationId


@dataclass(frozen=True, slots=True, kw_only=True)
class Dream:
    """Consolidate what was written down into memory, as a turn of the inner conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send a `Tick` after `delay_s` seconds, instead of any set before."""

    delay_s: float
    sooner: bool = False
    """True: only if that comes before the one set before, which else stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Write the state down: what a restart must keep has changed."""


Effect = StartTurn | Steer | Interrupt | Dream | SetTimer | Persist
