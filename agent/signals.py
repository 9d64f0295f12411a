"""Vocabulary of the Default Mode Network: its policy, state, signals and effects. `agent.dmn`
decides. Pure.

All types are frozen: a state is a value. Times are aware, in UTC, and come with the signals.
States, policies and signals are stored, so their class and field names are a file format.
"""

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from agent.models.base import FailureCause
from gateway.core.events import ConversationId, PresenceLevel
from gateway.core.frozen import frozen

LOW, NORMAL, URGENT = 1, 2, 3
"""Urgencies that reach the agent. 0, ambient, never does."""

ArrivalPolicy = Literal["steer", "queue", "interrupt"]
"""Effect of a message to the agent on the turn that runs in the same conversation. `steer`: the
turn receives it at its next tool boundary. `queue`: the turn goes on, and the next one receives it.
`interrupt`: the turn ends, and the next one begins at once."""


DmnOrder = Literal["wake", "pause", "rest", "store", "quiet", "off"]
"""Order of an operator, or of the agent itself. `store`: rest until a time or a kind of event."""


MAX_AWAY_HINT_S = 300.0
"""Longest time for which no model is asked because its provider says so."""
MAX_TOLD_WAIT_S = 7 * 86_400.0
"""A longer wait for a model counts, and is told, as this."""


class DmnMode(StrEnum):
    """Activity of the agent, which decides how soon the next tick comes."""

    ENGAGED = "engaged"
    WORKING = "working"
    FORAGING = "foraging"
    RESTING = "resting"
    STORED = "stored"
    DREAMING = "dreaming"
    PAUSED = "paused"
    OFF = "off"


PASSIVE_MODES = frozenset({DmnMode.STORED, DmnMode.PAUSED, DmnMode.OFF})
"""Modes in which no autonomous turn starts, and which the end of a turn does not change."""


@frozen
class DmnPolicy:
    """Settings of the network, made by the operator."""

    inner: ConversationId
    engaged_s: float = 5.0
    working_s: float = 3.0
    foraging_s: float = 30.0
    resting_s: float = 300.0
    dreaming_s: float = 600.0
    max_autonomous_turns: int = 20
    """Limit of autonomous turns in a row. A message from a person resets the count."""
    daily_turns: int = 200
    """Limit of autonomous turns per UTC day."""
    daily_cost_usd: float = 2.0
    """Limit of the cost of autonomous turns per UTC day, for people: the shell keeps it, and sends
    `BudgetSpent`."""
    forage_per_day: int = 12
    """Limit of turns per UTC day that only low notifications cause. 0: none."""
    lanes: int = 8
    """Limit of turns that run side by side. If it is more than one, one lane is for direct chats
    alone."""
    dream_every_s: float = 64_800.0
    """Least time between two dreams. 0: no dreams."""
    dream_tokens: int = 500
    """Least amount of notes since the last dream."""
    lifetimes_s: tuple[float, ...] = (300.0, 3600.0)
    """Lifetimes of cached prompts. An interval that would end shortly after one of them is
    shortened to end before it."""


@frozen
class PendingTurn:
    """Turn that is due at once."""

    conversation: ConversationId
    direct: bool


@frozen
class Outage:
    """A provider wants to be left alone."""

    since: datetime
    until: datetime
    """As the provider says. Its model is asked again before, see `asks_from`."""
    cause: FailureCause
    """How turns fail meanwhile."""
    reason: str
    """The same in words. Holds no secrets."""

    @property
    def asks_from(self) -> datetime:
        """Time from which the model is asked again."""
        return min(self.until, self.since + timedelta(seconds=MAX_AWAY_HINT_S))


@frozen
class PutOffQuestion:
    """Question of a person that waits for a model, until one has answered it or it has waited too
    long.
    """

    conversation: ConversationId
    direct: bool
    model: str = ""
    wait_s: float
    """Time after which it is asked again."""
    failed: datetime | None = None
    """Time at which a model was asked it in vain last. None: none was, or the model is another one
    now."""


@frozen
class DmnState:
    """Complete memory of the network. `persistent` is the part that survives a restart."""

    mode: DmnMode = DmnMode.RESTING
    running: tuple[ConversationId, ...] = ()
    chats: tuple[ConversationId, ...] = ()
    """Subset of `running`: direct chats in which a person wrote."""
    waiting: tuple[PendingTurn, ...] = ()
    """Turns owed to people, oldest first."""
    pending: tuple[ConversationId, ...] = ()
    """Conversations to take up at the next tick, oldest first."""
    continuing: tuple[ConversationId, ...] = ()
    """Conversations whose last turn left work open and did not yield. The next tick continues
    them."""
    low: tuple[ConversationId, ...] = ()
    low_since: datetime | None = None
    """Time since which one of them waits. None: none does."""
    spared: bool = False
    """True: the inner turn was interrupted once already, and is not interrupted again."""
    presence: PresenceLevel = "present"
    autonomous: int = 0
    """Autonomous turns in a row: since a person last spoke to the agent, or it had rested."""
    acted: datetime | None = None
    """Time at which the last of them began or ended."""
    day: str = ""
    """UTC date of the next three fields."""
    turns_today: int = 0
    foraged_today: int = 0
    """Those of them that only low notifications caused."""
    spent_up: bool = False
    """True: a request was refused because it could have cost more than what is left of the daily
    budget."""
    errors: int = 0
    """Failed turns in a row."""
    quiet_until: datetime | None = None
    """Time until which nothing below urgent starts a turn. None: not quiet."""
    stored_until: datetime | None = None
    """Time at which a stored agent wakes. None: only an event or a person wakes it."""
    wake_on: tuple[str, ...] = ()
    """Dotted types of notifications that wake a stored agent. A type includes its subtypes."""
    woken: bool = False
    """True: the agent was stored, and no turn has ended since it woke."""
    dreamt: datetime | None = None
    """Start of the last dream. None: none yet."""
    put_off: tuple[PutOffQuestion, ...] = ()
    answers: Mapping[str, datetime] = field(default_factory=dict)
    """Model -> start of the newest turn that it has answered since the process began."""
    outages: Mapping[str, Outage] = field(default_factory=dict)
    """Model -> its newest outage, which may be over."""
    stopping: bool = False


@frozen
class Noticed:
    """Event that is ready for a turn in this conversation."""

    at: datetime
    conversation: ConversationId
    urgency: int
    type: str = ""
    """Dotted type. Empty: several types, or no longer known."""
    direct: bool = False
    arrivals: ArrivalPolicy = "steer"
    trusted: bool = False
    """True: the sender is an owner or admin, whose message ends a pause."""
    elsewhere: bool = False
    """True: another process takes the turn."""


@frozen
class TurnEnded:
    """End of a turn by a reply, by silence, by yielding, by an interruption or by a failure."""

    at: datetime
    conversation: ConversationId
    used_tools: bool = False
    """True: it used tools, so the next mode is Working."""
    open_work: bool = False
    """True: work of this conversation is open, and the next tick goes on with it."""
    yielded: bool = False
    interrupted: bool = False
    autonomous: bool = False
    left: int = 0
    """Highest urgency among messages that are still unread there: they arrived while the turn
    ran."""
    direct: bool = False
    model: str = ""
    """Key of the model that the turn was for."""
    answered: datetime | None = None
    """Start of the turn, if the model answered it. None: it was not asked."""
    failed: bool = False
    """True: it ended without an answer, and the rest says why."""
    continues: bool = False
    """True: work was in progress, and goes on at a later tick."""
    no_model: FailureCause | None = None
    """Cause, if no model answered and one may later. None: it is another failure."""
    reason: str = ""
    """The same in words."""
    asked: bool = True
    """False: no model was asked, because of an outage."""
    retry_after_s: float = 0.0
    """Time for which the provider wants to be left alone. 0: it did not say."""
    awaited: bool = False
    """True: a person waits for an answer, and their question for a model."""


@frozen
class Tick:
    """Expiry of the timer."""

    at: datetime
    material_tokens: int = 0
    """Amount of notes written since the last dream."""
    arriving: tuple[ConversationId, ...] = ()
    """Conversations in which no turn begins now: a person has just spoken to the agent, and the
    `Noticed` that follows in a moment begins the turn."""
    promised: tuple[ConversationId, ...] = ()
    """Conversations where the time has come for which people asked. What they may have limits
    these, and not the sleep of people or the number of autonomous turns."""


@frozen
class Presence:
    """Change in the presence of the people."""

    at: datetime
    level: PresenceLevel


@frozen
class Directive:
    """Order of an operator or of the agent itself."""

    at: datetime
    order: DmnOrder
    until: datetime | None = None
    """End of `store` or `quiet`. None: until woken."""
    on: tuple[str, ...] = ()
    """For `store`: types of notifications that wake the agent."""


@frozen
class LeftOff:
    """Cancellation of the work in a conversation: no turn is owed for anything that was pending
    there until now.
    """

    at: datetime
    conversation: ConversationId


@frozen
class RetryDue:
    """Expiry of a `SetRetryTimer`."""

    at: datetime
    conversation: ConversationId


@frozen
class ModelChanged:
    """Another model is asked from now on."""

    at: datetime


@frozen
class BudgetSpent:
    """Refusal of a request of an autonomous turn, for want of money.

    The request could have cost more than what is left of the daily budget.
    """

    at: datetime


@frozen
class Stopping:
    """Announcement that the process ends soon. No more turns start."""

    at: datetime


Signal = (
    Noticed
    | TurnEnded
    | Tick
    | Presence
    | Directive
    | LeftOff
    | RetryDue
    | ModelChanged
    | BudgetSpent
    | Stopping
)


@frozen
class StartTurn:
    """Begin a turn in this conversation now."""

    conversation: ConversationId
    autonomous: bool
    continuing: bool = False
    """True: continue the last turn's work; there may be no unread messages."""


@frozen
class Steer:
    """Pass new messages to the turn that runs in this conversation, at its next tool boundary."""

    conversation: ConversationId


@frozen
class Interrupt:
    """End the turn that runs in this conversation, and record what it did."""

    conversation: ConversationId


@frozen
class Dream:
    """Consolidate notes into memory, as a turn of the inner conversation."""


@frozen
class SetTimer:
    """Send a `Tick` after `delay_s` seconds, in place of the timer set before."""

    delay_s: float
    sooner: bool = False
    """True: only if that is earlier than the timer set before, which otherwise stays."""


@frozen
class SetRetryTimer:
    """Send a `RetryDue` after `delay_s` seconds, in place of the timer set for that conversation
    before.
    """

    conversation: ConversationId
    delay_s: float


@frozen
class Persist:
    """Save the state: the part that must survive a restart has changed."""


Effect = StartTurn | Steer | Interrupt | Dream | SetTimer | SetRetryTimer | Persist
