"""Models of the API: queries, answers and events. The store and the server build them, and the console reads them.

Times are UTC. Texts of people and platforms are untrusted; the server redacts and cuts them where it makes JSON of
them.
"""

from datetime import date
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.control_messages import DmnStatus
from gateway.core.events import CacheTtl, Time, Usage
from gateway.core.metrics import ChannelState

MAX_LIMIT = 200
"""Most entries of one answer."""
MAX_HOURS = 24 * 31

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Position = Annotated[int, Field(ge=0, lt=2**63)]
ConversationParam = Annotated[str, Field(max_length=2_000)]


class ApiQuery(BaseModel):
    """Query without parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class LimitQuery(ApiQuery):
    """Query with a number of entries."""

    limit: Limit = 50


class ConversationQuery(ApiQuery):
    """Query for one conversation."""

    id: ConversationParam
    limit: Limit = 50


class PageQuery(LimitQuery):
    """Query for a page of the log."""

    before: Position | None = None
    """Only entries before this position."""


class ConversationPageQuery(PageQuery):
    """Query for a page of the log, of one conversation or of all."""

    conversation: ConversationParam | None = None


class NotificationQuery(ConversationPageQuery):
    """Query for a page of notifications, backward or forward."""

    after: Position | None = None
    """Only entries behind this position, oldest first."""


class HoursQuery(ApiQuery):
    """Query for a period up to now."""

    hours: Annotated[int, Field(ge=1, le=MAX_HOURS)] = 24


class SpendingQuery(HoursQuery):
    """Query for costs over a period, with the key to group by."""

    by: Literal["channel", "conversation", "agent", "model"] = "channel"


class EventsQuery(ApiQuery):
    """Query for the event stream."""

    after: Position | None = None
    """Begin behind this position of the log; None: now."""


class SayRequest(BaseModel):
    """Text that the operator posts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1, max_length=16_000)]


Share = Annotated[float, Field(ge=0, le=1)]
UrgencyLevel = Literal[0, 1, 2, 3]
"""0 ambient, 1 low, 2 normal, 3 urgent."""


class ApiModel(BaseModel):
    """Base of all models of answers and events. Each is built at its first use, for most commands use none."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class TitledModel(ApiModel):
    """Base of what belongs to one conversation."""

    title: str = ""
    """Display title of the conversation. Empty: none."""


class BilledTokens(ApiModel):
    """Billed tokens and cost of model requests. The three kinds of input do not overlap."""

    input_tokens: int
    """Tokens neither read from a cache nor written to one."""
    read_tokens: int
    written_tokens: int
    output_tokens: int
    cost_usd: float
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


class UsageTotals(BilledTokens):
    """Billed tokens and cost of several requests."""

    requests: int
    read_share: Share | None
    """Share of all input tokens that was read from the cache. None: there was no input."""


class TurnInProgress(TitledModel):
    """A running turn."""

    turn: str
    agent: str
    conversation: str
    since: Time
    tool: str
    """Name of the running tool. Empty: none."""


class StoreSize(ApiModel):
    """Size and growth of the store."""

    size_bytes: int
    bytes_per_day: float | None
    """None: the store is younger than a day."""
    full_on: date | None
    """Day on which its disk is full at this pace. None: not in ten years, or not known."""


ProcessState = Literal["starting", "running", "stopping", "cut off"]
"""`cut off`: its connection to the database is lost."""


class ProcessRecord(ApiModel):
    """One of the processes that share the store."""

    number: int
    name: str
    host: str
    ops: str = ""
    """Address of its HTTP server. Empty: it has none."""
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
    """The right to do all for a channel (`channel:NAME`), an agent's own work (`agent:ID`), or care for the store."""

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
    log_lag: int | None
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
    today: UsageTotals
    """Usage since midnight UTC."""
    store: StoreSize
    activity: tuple[TurnInProgress, ...]
    processes: ProcessReport | None = None
    """None: one process does everything."""


class ChannelStatus(ApiModel):
    """Connection of one account."""

    channel: str
    platform: str
    state: ChannelState
    since: Time
    reason: str
    last_event: Time | None
    """Time of the last event. None: none since the start."""
    events: dict[str, int]
    """Number of events received, by kind."""
    reconnects: int
    holder: str | None = None
    """Name of another process that holds it, empty: none does. None: the one that tells."""


class ChannelList(ApiModel):
    """Connections of all accounts."""

    channels: tuple[ChannelStatus, ...]


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
    """True while a turn is running there."""


class ConversationList(ApiModel):
    """Conversations, the most recently active first."""

    conversations: tuple[ConversationSummary, ...]


class ConversationMessage(ApiModel):
    """A message received or sent."""

    seq: int
    at: Time
    who: str
    ours: bool
    text: str
    kind: str
    """Kind of a received message; `post` for ours."""
    fate: str
    """Of received messages as in notifications; of ours `sent`, `uncertain`, `failed` or `waiting`."""


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


class RequestBill(BilledTokens):
    """Billed usage and cost of one request."""

    missed: str
    """Tokens expected from the cache but not read, with the reason. Empty: none."""


class PromptSnapshot(ApiModel):
    """The last request of a conversation as it was sent to the model, and its bill."""

    at: Time
    model: str
    blocks: tuple[PromptBlock, ...]
    """Blocks in the order of the request."""
    tools: tuple[str, ...]
    marks: int
    """Number of cache marks."""
    bill: RequestBill | None


class ConversationDetail(TitledModel):
    """One conversation with its newest messages and its last request."""

    conversation: str
    agent: str
    messages: tuple[ConversationMessage, ...]
    """The newest messages, oldest first."""
    prompt: PromptSnapshot | None
    """The last request. None: none since the start."""


class ApiEvent(ApiModel):
    """Base of all events."""

    at: Time


class NotificationEvent(ApiEvent, TitledModel):
    """A new notification."""

    seq: int
    type: str
    """Dotted type, e.g. `irc.libera.mention.#python`."""
    kind: str
    conversation: str | None
    who: str
    text: str
    urgency: UrgencyLevel


class NotificationRecord(NotificationEvent):
    """A notification and its outcome."""

    fate: str
    """Outcome; see `gateway.stream.trace`."""
    rule: str
    """Rule that decided."""


class NotificationPage(ApiModel):
    """A page of notifications, newest first; with `after` oldest first."""

    notifications: tuple[NotificationRecord, ...]
    next: int | None
    """Value of `before` (or `after`) for the next page. None: this is the last page."""


class TurnSummary(BilledTokens, TitledModel):
    """A turn that has ended."""

    seq: int
    at: Time
    turn: str
    agent: str
    conversation: str
    cause: str
    outcome: str
    model: str
    requests: int
    tools: tuple[str, ...]
    """Tools that it used, in order."""
    seconds: float | None
    """Duration. None: not known."""
    autonomous: bool
    """True if nobody had asked for it."""


class TurnPage(ApiModel):
    """A page of turns, newest first."""

    turns: tuple[TurnSummary, ...]
    next: int | None


class UsageBucket(BilledTokens):
    """Usage and cost of one time bucket."""

    at: Time
    """Start of the bucket."""
    key: str
    read_share: Share | None


class UsageTotal(UsageTotals):
    """Usage and cost of the whole period."""

    key: str


class CacheReport(ApiModel):
    """Costs of model requests and the share read from the cache."""

    by: str
    buckets: tuple[UsageBucket, ...]
    """Buckets in order of time; empty ones are left out."""
    totals: tuple[UsageTotal, ...]
    """Totals, the highest cost first."""


class DmnStatusList(ApiModel):
    """DMN status of all agents."""

    agents: tuple[DmnStatus, ...]


class DmnModeChange(ApiModel):
    """A change of an agent's DMN mode."""

    at: Time
    agent: str
    mode: str


class DmnHistory(ApiModel):
    """Changes of DMN modes, oldest first."""

    states: tuple[DmnModeChange, ...]


class PendingPart(ApiModel):
    """One part of a post."""

    index: int
    state: str
    attempts: int
    reason: str


class PendingPost(TitledModel):
    """A post that is not delivered yet."""

    seq: int
    at: Time
    to: str
    text: str
    parts: tuple[PendingPart, ...]


class DeliveryRecord(TitledModel):
    """Result of a post's delivery."""

    seq: int
    at: Time
    to: str
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class OutboxStatus(ApiModel):
    """Posts that wait for delivery, and the newest deliveries, newest first."""

    waiting: tuple[PendingPost, ...]
    deliveries: tuple[DeliveryRecord, ...]


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


class AuditPage(ApiModel):
    """A page of the audit log, newest first."""

    audit: tuple[AuditEntry, ...]
    next: int | None


class SayReceipt(ApiModel):
    """Position of the operator's durable post in the log."""

    seq: int


class FateEvent(ApiEvent):
    """The current outcome of a notification."""

    seq: int
    """Position of the notification."""
    conversation: str | None
    fate: str
    rule: str


class _TurnPartEvent(ApiEvent, TitledModel):
    turn: str
    agent: str
    conversation: str


class TurnEvent(_TurnPartEvent, BilledTokens):
    """Start or end of a turn. At the start tokens and cost are 0."""

    state: Literal["started", "ended"]
    autonomous: bool
    cause: str
    outcome: str
    """Empty: it has only started, or it ended without a record."""
    model: str


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


class PostEvent(ApiEvent, TitledModel):
    """A post that is to be delivered."""

    seq: int
    conversation: str
    text: str


class DeliveryEvent(ApiEvent, TitledModel):
    """Result of a post's delivery."""

    seq: int
    conversation: str
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class DmnEvent(ApiEvent, DmnStatus):
    """A change of an agent's DMN status."""


class ChannelEvent(ApiEvent, ChannelStatus):
    """A change of a connection."""


class ReloadedEvent(ApiEvent):
    """A reload of the configuration. Keys only, never values."""

    taken: tuple[str, ...]
    later: tuple[str, ...]
    problems: tuple[str, ...]


class LogEvent(ApiEvent):
    """A logged warning or error."""

    level: str
    logger: str
    message: str


class LostEvent(ApiEvent):
    """Number of events that were dropped because the client read too slowly."""

    count: int


EVENT_MODELS: Final[dict[str, type[ApiEvent]]] = {
    "notification": NotificationEvent,
    "fate": FateEvent,
    "turn": TurnEvent,
    "text": TextEvent,
    "thinking": ThinkingEvent,
    "tool": ToolEvent,
    "post": PostEvent,
    "delivery": DeliveryEvent,
    "dmn": DmnEvent,
    "channel": ChannelEvent,
    "reloaded": ReloadedEvent,
    "log": LogEvent,
    "lost": LostEvent,
}
"""Models of the events by name."""
