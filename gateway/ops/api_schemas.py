"""Models of the API's queries and answers, the gateway services behind them, and their way to JSON.

Texts in the models are redacted and cut when they are serialized (`serialize_answer`), not before. Times are UTC.
One-time codes are removed from the texts of facts.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.context.observer import TurnTracker
from gateway.core.clock import Clock
from gateway.core.control_messages import ControlRequest, ControlResponse, DmnStatus
from gateway.core.events import (
    Address,
    Alarm,
    CacheTtl,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    ReactionChanged,
    TaskFinished,
    Time,
)
from gateway.core.facts import Fact, PostQueued, Seq, is_inner
from gateway.core.metrics import ChannelState, GatewayStats
from gateway.core.redaction import Redact
from gateway.core.text_safety import shorten
from gateway.store import Store
from gateway.store.format import describe_fact, hide_codes, without_code
from gateway.store.overview import NotificationRow, OverviewReader
from gateway.stream.place_names import PlaceTitles
from gateway.stream.trace import EventOutcome

if TYPE_CHECKING:
    from agent.cache.plan import PlannedRequest


MAX_LIMIT = 200
"""Most entries of one answer."""
MAX_HOURS = 24 * 31

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Position = Annotated[int, Field(ge=0, lt=2**63)]
ConversationParam = Annotated[str, Field(max_length=2_000)]


class ApiQuery(BaseModel):
    """Query without parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


OrderHandler = Callable[[ControlRequest], Awaitable[ControlResponse]]
LastRequestLookup = Callable[[ConversationId], "PlannedRequest | None"]
"""Returns the last request of a conversation. None: there was none since the start, or it is no longer kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """Services of a running gateway that the API reads and calls."""

    store: Store
    clock: Clock
    stats: GatewayStats
    version: str
    turn_tracker: TurnTracker
    redact: Redact
    list_minds: Callable[[], Sequence[DmnStatus]]
    list_platforms: Callable[[], Mapping[ChannelName, str]]
    """Platform name of each channel."""
    describe_model: Callable[[], str]
    find_agent: Callable[[Address], str]
    """Returns the agent of a conversation. Empty: none."""
    find_last_request: LastRequestLookup
    titles: PlaceTitles
    carry_out_order: OrderHandler
    say_as_operator: Callable[[str], Awaitable[Seq]]
    """Posts a text as the operator. Returns its position in the log once it is durable."""


class ApiBackend:
    """Services of the gateway and a connection to its store, opened at the first use. Close it."""

    def __init__(self, services: ApiServices) -> None:
        self.services = services
        self._reader: OverviewReader | None = None
        self._opening = asyncio.Lock()

    async def open_reader(self) -> OverviewReader:
        """Return the reader of the store; open it at the first call. Raises StoreError."""
        async with self._opening:
            if self._reader is None:
                self._reader = await OverviewReader.open(self.services.store.path)
            return self._reader

    async def close(self) -> None:
        """Close the reader. May be called more than once."""
        async with self._opening:
            if self._reader is not None:
                reader, self._reader = self._reader, None
                await reader.close()


Share = Annotated[float, Field(ge=0, le=1)]
UrgencyLevel = Literal[0, 1, 2, 3]
"""0 ambient, 1 low, 2 normal, 3 urgent."""


class ApiModel(BaseModel):
    """Base of all models of answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BilledTokens(ApiModel):
    """Billed tokens and cost of model requests. The three kinds of input do not overlap."""

    input_tokens: int
    """Tokens neither read from a cache nor written to one."""
    read_tokens: int
    written_tokens: int
    output_tokens: int
    cost_usd: float
    """Cost of the requests whose price is known."""


class UsageTotals(BilledTokens):
    """Billed tokens and cost of several requests."""

    requests: int
    read_share: Share | None
    """Share of all input tokens that was read from the cache. None: there was no input."""


class TurnInProgress(ApiModel):
    """A running turn."""

    turn: str
    agent: str
    conversation: str
    title: str = ""
    """Display title of the conversation. Empty: none."""
    since: Time
    tool: str
    """Name of the running tool. Empty: none."""


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
    activity: tuple[TurnInProgress, ...]


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


class ChannelList(ApiModel):
    """Connections of all accounts."""

    channels: tuple[ChannelStatus, ...]


class ConversationSummary(ApiModel):
    """A conversation in a list, with its last message."""

    conversation: str
    title: str = ""
    """Display title of the conversation. Empty: none."""
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


class ConversationDetail(ApiModel):
    """One conversation with its newest messages and its last request."""

    conversation: str
    title: str = ""
    """Display title of the conversation. Empty: none."""
    agent: str
    messages: tuple[ConversationMessage, ...]
    """The newest messages, oldest first."""
    prompt: PromptSnapshot | None
    """The last request. None: none since the start."""


class NotificationRecord(ApiModel):
    """A notification and its outcome."""

    seq: int
    at: Time
    type: str
    """Dotted type, e.g. `irc.libera.mention.#python`."""
    kind: str
    conversation: str | None
    title: str = ""
    """Display title of the conversation. Empty: none."""
    who: str
    text: str
    urgency: UrgencyLevel
    fate: str
    """Outcome; see `gateway.stream.trace`."""
    rule: str
    """Rule that decided."""


class NotificationPage(ApiModel):
    """A page of notifications, newest first; with `after` oldest first."""

    notifications: tuple[NotificationRecord, ...]
    next: int | None
    """Value of `before` (or `after`) for the next page. None: this is the last page."""


class TurnSummary(BilledTokens):
    """A turn that has ended."""

    seq: int
    at: Time
    turn: str
    agent: str
    conversation: str
    title: str = ""
    """Display title of the conversation. Empty: none."""
    cause: str
    outcome: str
    model: str
    requests: int
    tools: tuple[str, ...]
    """Tools that it used, in order."""
    seconds: float | None
    """Duration. None: not known."""


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


class UsageTotal(BilledTokens):
    """Usage and cost of the whole period."""

    key: str
    requests: int
    read_share: Share | None


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


class PendingPost(ApiModel):
    """A post that is not delivered yet."""

    seq: int
    at: Time
    to: str
    title: str = ""
    """Display title of the conversation. Empty: none."""
    text: str
    parts: tuple[PendingPart, ...]


class DeliveryRecord(ApiModel):
    """Result of a post's delivery."""

    seq: int
    at: Time
    to: str
    title: str = ""
    """Display title of the conversation. Empty: none."""
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class OutboxStatus(ApiModel):
    """Posts that wait for delivery, and the newest deliveries, newest first."""

    waiting: tuple[PendingPost, ...]
    deliveries: tuple[DeliveryRecord, ...]


class AuditEntry(ApiModel):
    """An administrative act in the audit log."""

    seq: int
    at: Time
    actor: str
    place: str
    """Conversation in which it was given. Empty: on the command line or over the API."""
    title: str = ""
    """Display title of the conversation. Empty: none."""
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


_TURN_OUTCOMES = {
    "replied": EventOutcome.ANSWERED,
    "silent": EventOutcome.SILENT,
    "yielded": EventOutcome.YIELDED,
    "failed": EventOutcome.FAILED,
    "interrupted": EventOutcome.INTERRUPTED,
}


def find_actor(fact: Fact) -> str:
    """Return the display name of the sender. Untrusted. Empty: there is none, or it is not recorded."""
    match fact:
        case Message() | MessageEdited() | ReactionChanged() | MembershipChanged() | Command():
            return fact.sender.name
        case MessageDeleted():
            return fact.sender.name if fact.sender is not None else ""
        case Alarm():
            return fact.asked_by
        case _:
            return ""


def render_fact_text(fact: Fact) -> str:  # noqa: C901 - a table of kinds reads best in one piece
    """Render the contents of a fact, without its sender. Untrusted."""
    match without_code(fact):
        case Message() | MessageEdited() as shown:
            return hide_codes(shown.text)
        case Command() as shown:
            return hide_codes(f"{shown.name} {shown.args}".rstrip())
        case MembershipChanged() as shown:
            return " ".join(filter(None, [shown.change, shown.subject, shown.text]))
        case MessageDeleted() as shown:
            return f"deleted {shown.message}"
        case ReactionChanged() as shown:
            return f"{'+' if shown.added else '-'}{shown.reaction}"
        case ConnectionChanged() as shown:
            return f"{'up' if shown.up else 'down'}{f': {shown.reason}' if shown.reason else ''}"
        case Alarm() as shown:
            return shown.text
        case TaskFinished() as shown:
            return f"{shown.what} {'is done' if shown.ok else 'failed'}: {shown.text}"
        case DeliveryReport() as shown:
            return f"{shown.state}{f': {shown.reason}' if shown.reason else ''}"
        case PostQueued() as shown:
            return hide_codes(shown.post.text)
        case shown:
            return hide_codes(describe_fact(shown))


def find_outcome(event: NotificationRow) -> EventOutcome:
    """Return the outcome of a notification, as `gateway.stream.trace` derives it from the whole log."""
    judged = event.judged.fate
    if judged == "refused":
        return EventOutcome.REFUSED
    if judged == "noted" or event.place is None:
        return EventOutcome.COMMAND if isinstance(event.fact, Command) else EventOutcome.NOTED
    if not event.dealt:
        if judged != "due":
            return EventOutcome.OVERHEARD
        return (
            EventOutcome.LOOKED_AT
            if event.unread is not None and event.unread < event.judged.urgency
            else EventOutcome.WAITING
        )
    if event.dealt == "handled":
        return EventOutcome.HANDLED
    if not event.shown:
        return EventOutcome.COUNTED
    if judged != "due" or event.looked:
        return EventOutcome.CONTEXT
    if event.outcome != "interrupted":
        return _find_turn_outcome(event, event.outcome, within=event.within)
    return (
        _find_turn_outcome(event, event.after, within=event.after_within) if event.after else EventOutcome.INTERRUPTED
    )


def _find_turn_outcome(event: NotificationRow, outcome: str, *, within: bool) -> EventOutcome:
    ended = _TURN_OUTCOMES[outcome]
    if ended is not EventOutcome.ANSWERED:
        return ended
    if event.place is not None and is_inner(event.place):
        return EventOutcome.TAKEN_UP
    return EventOutcome.ANSWERED_ELSEWHERE if within else ended


MAX_TEXT_CHARS: Final = 16_000
"""Longest text of an answer, except prompts."""
MAX_PROMPT_CHARS: Final = 2_000_000
"""Longest text of a prompt block: more than any context window."""
_CONVERSATION_KEYS: Final = ("conversation", "to", "place")
"""Keys whose value is a conversation."""


def serialize_answer(tree: object, redact: Redact, *, chars: int = MAX_TEXT_CHARS) -> bytes:
    """Serialize a dumped answer to JSON in UTF-8, redacted and cut."""
    redacted = redact_tree(tree, redact, chars)
    return json.dumps(redacted, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def find_untitled(tree: object) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each part of a dumped answer that has a conversation and an empty title, with that conversation."""
    if isinstance(tree, dict):
        named = next((tree[key] for key in _CONVERSATION_KEYS if tree.get(key)), None)
        if isinstance(named, str) and tree.get("title") == "":
            yield tree, named
        for value in tree.values():
            yield from find_untitled(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from find_untitled(value)


def add_titles(tree: object, title: Callable[[str], str]) -> None:
    """Fill in the display title of each conversation."""
    for part, conversation in find_untitled(tree):
        part["title"] = title(conversation)


def redact_tree(tree: object, redact: Redact, chars: int = MAX_TEXT_CHARS) -> object:
    """Return the tree with its texts redacted and cut. Keys of mappings are not changed."""
    if isinstance(tree, str):
        return shorten(redact(tree), chars) if tree else tree
    if isinstance(tree, dict):
        return {key: redact_tree(value, redact, chars) for key, value in tree.items()}
    if isinstance(tree, list):
        return [redact_tree(value, redact, chars) for value in tree]
    return tree
