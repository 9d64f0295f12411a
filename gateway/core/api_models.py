"""Models of the API: answers and events, and types of its input. The store and the server build
them, and the console reads them.

Times are UTC. Texts of people and platforms are untrusted; the server redacts and cuts them where
it makes JSON of them.
"""

from datetime import date
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.control_messages import DmnStatus
from gateway.core.events import CacheTtl, Time, Usage
from gateway.core.metrics import ChannelStats
from gateway.core.route import ClientRole

ItemT = TypeVar("ItemT")
Limit = Annotated[int, Field(ge=1, le=200)]
Hours = Annotated[int, Field(ge=1, le=24 * 31)]
"""Input: a period up to now."""
Position = Annotated[int, Field(ge=0, lt=2**63)]
"""Input: a position in the log. `before`: only entries before it; `after`: only entries behind
it."""
ConversationParam = Annotated[str, Field(max_length=2_000)]
FileName = Annotated[str, Field(max_length=200)]
Share = Annotated[float, Field(ge=0, le=1)]
UrgencyLevel = Literal[0, 1, 2, 3]
"""0 ambient, 1 low, 2 normal, 3 urgent."""


class ApiModel(BaseModel):
    """Base of all models of answers and events. Each is built at its first use, for most commands
    use none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class TitledModel(ApiModel):
    """Base of what belongs to one conversation."""

    title: str = ""
    """Display title of the conversation. Empty: none."""


class Page(ApiModel, Generic[ItemT]):
    """A page of a list: of the log the newest first, with `after` the oldest first; else all of
    it.
    """

    items: tuple[ItemT, ...]
    next: int | None = None
    """Value of `before` (or `after`) for the next page. None: this is the last page."""


class BilledTokens(ApiModel):
    """Billed tokens and cost of model requests. The three kinds of input do not overlap."""

    input_tokens: int = 0
    """Tokens neither read from a cache nor written to one."""
    read_tokens: int = 0
    written_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    """Cost of the requests whose price is known."""


def token_fields(usage: Usage, cost_usd: float) -> dict[str, float]:
    """Return the fields of `BilledTokens`."""
    return {
        "input_tokens": usage.input_tokens,
        "read_tokens": usage.cache_read_tokens,
        "written_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": cost_usd,
    }


class UsageSum(BilledTokens):
    """Billed tokens and cost of several requests."""

    key: str = ""
    """What they are grouped by, e.g. a channel."""
    label: str = ""
    """Name of the person or the conversation that the key means. Empty: none is known."""
    at: Time | None = None
    """Start of the time bucket. None: the whole period."""
    requests: int
    read_share: Share | None
    """Share of all input tokens that was read from the cache. None: there was no input."""


class TurnSummary(BilledTokens, TitledModel):
    """A turn."""

    at: Time
    """Its end; of a running turn, its start."""
    turn: str
    agent: str
    conversation: str
    state: Literal["started", "ended"] = "ended"
    seq: int = 0
    """Position of its record in the log. 0: there is none yet."""
    cause: str
    autonomous: bool
    """True if nobody had asked for it."""
    outcome: str = ""
    """Empty: it has only started, or it ended without a record."""
    model: str = ""
    requests: int = 0
    tools: tuple[str, ...] = ()
    """Tools that it used, in order; of a running turn, those that run."""
    seconds: float | None = None
    """Duration. None: not known."""


class StoreSize(ApiModel):
    """Size and growth of the store."""

    size_bytes: int
    bytes_per_day: float | None
    """None: the store is younger than a day."""
    full_on: date | None
    """Day on which its disk is full at this pace. None: not in ten years, or not known."""


ProcessState = Literal["starting", "running", "stopping", "cut off"]
"""`starting`: it takes no lease yet. `stopping`: it takes nothing new. `cut off`: its connection to
the database is lost."""


class ProcessRecord(ApiModel):
    """One of the processes that share the store."""

    number: int
    """Fencing token, larger than that of every earlier process: the store takes no entry of one
    that was removed."""
    name: str
    """Name for people: of `--name`, or host and process id."""
    host: str
    ops: str = ""
    """Address of its HTTP server. Empty: it has none, or does not listen yet."""
    pid: int
    version: str
    started: Time
    age_s: float
    """Seconds since its last sign of life, which comes each second."""
    state: ProcessState
    leases: tuple[str, ...]
    answers: bool
    """True: this process tells."""


class LeaseRecord(ApiModel):
    """The right to do all for a channel (`channel:NAME`), an agent's own work (`agent:ID`), or care
    for the store.
    """

    name: str
    holder: str
    """Name of the process that has it. Empty: none does."""
    since: Time | None
    """Time of the last take-over. None: there was none."""
    free_s: float | None
    """Seconds for which nobody has had it. None: it has a holder."""


class ProcessReport(ApiModel):
    """The processes that share the store, and who holds what."""

    processes: tuple[ProcessRecord, ...]
    leases: tuple[LeaseRecord, ...]
    log_lag: int | None = None
    """Entries of the log that the process that tells had not read yet. None: not known."""


class GatewayStatus(ApiModel):
    """State of the gateway as a whole."""

    version: str
    started: Time
    now: Time
    ready: bool
    """True if every channel that may be connected is connected."""
    model: str
    """Description of the agents' model, for people."""
    agents: tuple[DmnStatus, ...]
    today: UsageSum
    """Usage since midnight UTC."""
    store: StoreSize
    activity: tuple[TurnSummary, ...]
    """Running turns, the oldest first."""
    processes: ProcessReport | None = None
    """None: one process does everything."""


class ConversationSummary(TitledModel):
    """A conversation in a list, with its last message."""

    conversation: str
    agent: str
    platform: str
    """Platform of its channel. Empty: the channel no longer exists."""
    last_at: Time
    last_seq: int
    last_text: str
    last_who: str
    """Display name of the last sender. Empty: we sent it."""
    unread: int
    running: bool


class LogRow(TitledModel):
    """An entry of the log that has a text."""

    at: Time
    seq: int
    conversation: str | None = None
    """None: none, or it is said elsewhere in the answer."""
    who: str
    """Empty: the gateway itself."""
    text: str
    kind: str
    """Kind of a received message; `post` for ours."""


class ConversationMessage(LogRow):
    """A message received or sent."""

    ours: bool
    fate: str
    """Of received messages as in notifications; of ours `sent`, `uncertain`, `failed` or
    `waiting`."""


class PromptBlock(ApiModel):
    """A part of a request that changes as a whole."""

    name: str
    lifetime: CacheTtl | None
    """Lifetime of the cache mark behind it. None: no mark stands there."""
    marked: bool
    """True if a cache mark stands at its end, or in it."""
    tokens: int
    read_tokens: int
    """Tokens expected to be read from the cache."""
    written_tokens: int
    """Tokens expected to be written to the cache."""
    text: str


class PromptSnapshot(ApiModel):
    """The last request of a conversation as it was sent to the model, and its bill."""

    at: Time
    model: str
    blocks: tuple[PromptBlock, ...]
    tools: tuple[str, ...]
    marks: int
    bill: BilledTokens | None
    """None: not known yet."""
    missed: str = ""
    """Tokens expected from the cache but not read, with the reason. Empty: none."""


class ConversationDetail(TitledModel):
    """One conversation with its newest messages and its last request."""

    conversation: str
    agent: str
    messages: tuple[ConversationMessage, ...]
    """The newest messages, oldest first."""
    prompt: PromptSnapshot | None
    """The last request. None: none since the start."""


class NotificationRecord(LogRow):
    """A notification and its outcome."""

    type: str
    """Dotted type, e.g. `irc.libera.mention.#python`."""
    urgency: UrgencyLevel
    fate: str
    """Outcome; see `gateway.store.overview.EventOutcome`."""
    rule: str


class CacheReport(ApiModel):
    """Costs of model requests and the share read from the cache."""

    by: str
    buckets: tuple[UsageSum, ...]
    """Buckets in order of time; empty ones are left out."""
    totals: tuple[UsageSum, ...]
    """Totals, the highest cost first."""


class DmnModeChange(ApiModel):
    """A change of an agent's DMN mode."""

    at: Time
    agent: str
    mode: str


class PendingPart(ApiModel):
    """One part of a post."""

    index: int
    state: str
    attempts: int
    reason: str


class PostRecord(TitledModel):
    """A post that is to be delivered."""

    at: Time
    seq: int
    conversation: str
    text: str
    parts: tuple[PendingPart, ...] = ()


class DeliveryRecord(TitledModel):
    """Result of a post's delivery."""

    at: Time
    seq: int
    conversation: str
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class OutboxStatus(ApiModel):
    """Posts that wait for delivery, and the newest deliveries, newest first."""

    waiting: tuple[PostRecord, ...]
    deliveries: tuple[DeliveryRecord, ...]


class WaitingAction(ApiModel):
    """What can be done about something that waits: an order, see `CommandRequest`."""

    label: str
    words: tuple[str, ...]
    place: str = ""
    agent: str = ""
    style: Literal["yes", "no", ""] = ""
    role: ClientRole = "operate"


class WaitingItem(ApiModel):
    """Something that waits for a person."""

    id: str
    kind: str
    """E.g. pairing, room, approval, note."""
    who: str
    """Name of the person whose matter it is. Untrusted."""
    place: str
    """Conversation. Empty: none."""
    place_title: str = ""
    """Its title, which the gateway fills in."""
    what: str
    """What is wanted, in a sentence without a full stop."""
    words: str = ""
    """What they wrote, or what is to be decided about. Untrusted."""
    since: Time | None = None
    """None: not known."""
    until: Time | None = None
    """Time at which it ends by itself. None: never."""
    actions: tuple[WaitingAction, ...]


class CommandEntry(ApiModel):
    """A command that can be ordered."""

    name: str
    """With its subcommand."""
    usage: str
    help: str
    role: str


class ConfigFile(ApiModel):
    """A file of the configuration."""

    name: str
    text: str
    """A comment that says why, if the file is not shown."""
    sha256: str
    """Of the file."""
    writable: bool = True


class ConfigReport(ApiModel):
    """The configuration."""

    files: tuple[ConfigFile, ...]
    structure: dict[str, Any]
    """JSON schema of all keys."""


class ConfigMistake(ApiModel):
    """Something to correct."""

    line: int
    """From 1; 0: not known."""
    key: str
    message: str


class ConfigChange(ApiModel):
    """What a new text means."""

    saved: bool = False
    problems: tuple[ConfigMistake, ...]
    diff: str
    """Unified diff."""
    needs_restart: tuple[str, ...]
    """Keys that change, and take effect after a restart only: then all of the new text waits for
    it."""


class ModelEntry(ApiModel):
    """A configured model."""

    name: str
    agents: tuple[str, ...]
    """Agents that use it now, besides in rooms that have one of their own."""


class PluginEntry(ApiModel):
    """A plugin in use."""

    name: str
    summary: str
    problem: str
    """What failed last. Empty: nothing did."""
    panels: dict[str, str]
    """Paths of the API whose answers are panels of the dashboard, by heading."""


class AuditEntry(TitledModel):
    """An administrative act in the audit log."""

    seq: int
    at: Time
    actor: str
    place: str
    """Conversation in which it was given. Empty: on the command line or over the API."""
    command: str
    arguments: str
    result: str
    ok: bool
    """False: it was refused or failed."""


class SayReceipt(ApiModel):
    """Position of the operator's durable post in the log."""

    seq: int


class _TurnPartEvent(TitledModel):
    at: Time
    turn: str
    agent: str
    conversation: str


class TextEvent(_TurnPartEvent):
    """Text added to the answer of a turn."""

    autonomous: bool
    delta: str
    begins: bool
    """True if the text sent before is void: another answer begins, or the same one again."""


class ThinkingEvent(_TurnPartEvent):
    """Text added to the thinking of a turn."""

    autonomous: bool
    delta: str


class ToolEvent(_TurnPartEvent):
    """Start or end of a tool call."""

    call: str
    name: str
    state: Literal["started", "ended"]
    arguments: str
    result: str
    error: bool


class DmnEvent(ApiModel, DmnStatus):
    """A change of an agent's DMN status."""

    at: Time


class ReloadedEvent(ApiModel):
    """A reload of the configuration. Keys only, never values."""

    at: Time
    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


class LogEvent(ApiModel):
    """A logged warning or error."""

    at: Time
    level: str
    logger: str
    message: str


class LostEvent(ApiModel):
    """Number of events that were dropped because the client read too slowly."""

    at: Time
    count: int


ApiEvent = (
    NotificationRecord
    | TurnSummary
    | TextEvent
    | ThinkingEvent
    | ToolEvent
    | PostRecord
    | DeliveryRecord
    | DmnEvent
    | ChannelStats
    | ReloadedEvent
    | LogEvent
    | LostEvent
)
EVENT_MODELS: Final[dict[str, type[ApiEvent]]] = {
    "notification": NotificationRecord,
    "turn": TurnSummary,
    "text": TextEvent,
    "thinking": ThinkingEvent,
    "tool": ToolEvent,
    "post": PostRecord,
    "delivery": DeliveryRecord,
    "dmn": DmnEvent,
    "channel": ChannelStats,
    "reloaded": ReloadedEvent,
    "log": LogEvent,
    "lost": LostEvent,
}
