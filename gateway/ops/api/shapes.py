"""What the API answers: one model for each answer, and of what it is made. Pure.

Texts in them are redacted and cut where they are written out (`gateway.ops.api.written`), not here. Times are UTC.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.events import CacheTtl, Time
from gateway.ops.stats import ChannelState
from gateway.orders import DmnStatus

Share = Annotated[float, Field(ge=0, le=1)]
UrgencyLevel = Literal[0, 1, 2, 3]
"""Ambient, low, normal, urgent."""


class ApiModel(BaseModel):
    """Part of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class BilledTokens(ApiModel):
    """What model requests were billed as. The three kinds of input do not overlap."""

    input_tokens: int
    """Neither read from a cache nor written to one."""
    read_tokens: int
    written_tokens: int
    output_tokens: int
    cost_usd: float
    """Of what has a known price."""


class UsageTotals(BilledTokens):
    """The same of many."""

    requests: int
    read_share: Share | None
    """Of all input, what was read from the cache. None: there was no input."""


class TurnInProgress(ApiModel):
    """A turn under way."""

    turn: str
    agent: str
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    since: Time
    tool: str
    """What is carried out just now. Empty: nothing."""


class GatewayStatus(ApiModel):
    """Of the gateway as a whole."""

    version: str
    started: Time
    now: Time
    ready: bool
    """Every channel that may be connected is."""
    model: str
    """What the agents think with, for people."""
    agents: tuple[DmnStatus, ...]
    today: UsageTotals
    """Since midnight UTC."""
    activity: tuple[TurnInProgress, ...]


class ChannelStatus(ApiModel):
    """One account's connection."""

    channel: str
    platform: str
    state: ChannelState
    since: Time
    reason: str
    last_event: Time | None
    """None: nothing has come since the start."""
    events: dict[str, int]
    """How many came, by kind."""
    reconnects: int


class ChannelList(ApiModel):
    """All of them."""

    channels: tuple[ChannelStatus, ...]


class ConversationSummary(ApiModel):
    """A place where something was said."""

    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    agent: str
    platform: str
    """Empty: it has no channel any more."""
    last_at: Time
    last_seq: int
    last_text: str
    last_who: str
    """Empty: we did."""
    unread: int
    running: bool
    """A turn is under way there."""


class ConversationList(ApiModel):
    """Those with the newest words, the newest first."""

    conversations: tuple[ConversationSummary, ...]


class ConversationMessage(ApiModel):
    """Something that was said, by us or to us."""

    seq: int
    at: Time
    who: str
    ours: bool
    text: str
    kind: str
    """Of a message its own kind; `post` for ours."""
    fate: str
    """Of theirs as in notifications; of ours `sent`, `uncertain`, `failed` or `waiting`."""


class PromptBlock(ApiModel):
    """A piece of a request that changes as a whole."""

    name: str
    lifetime: CacheTtl | None
    """Of the mark behind it. None: what it writes is written by none."""
    marked: bool
    """A cache mark stands at its end, or in it."""
    tokens: int
    read_tokens: int
    """Expected to be read from the cache."""
    written_tokens: int
    """Expected to be written to it."""
    text: str


class RequestBill(BilledTokens):
    """What a request turned out to cost."""

    missed: str
    """What was expected to be read from the cache and was not, and why. Empty: nothing."""


class PromptSnapshot(ApiModel):
    """The last request of a conversation, as the model was sent it, and how it was billed."""

    at: Time
    model: str
    blocks: tuple[PromptBlock, ...]
    """In the order of the request."""
    tools: tuple[str, ...]
    marks: int
    """Cache marks in it."""
    bill: RequestBill | None


class ConversationDetail(ApiModel):
    """One conversation."""

    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    agent: str
    messages: tuple[ConversationMessage, ...]
    """The newest, oldest first."""
    prompt: PromptSnapshot | None
    """None: the model was not asked there since the start."""


class NotificationRecord(ApiModel):
    """A notification, and what became of it."""

    seq: int
    at: Time
    type: str
    """Dotted, e.g. `irc.libera.mention.#python`."""
    kind: str
    conversation: str | None
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    who: str
    text: str
    urgency: UrgencyLevel
    fate: str
    """See `gateway.fates`."""
    rule: str
    """Which one decided."""


class NotificationPage(ApiModel):
    """A page of them, the newest first; with `after` the oldest first."""

    notifications: tuple[NotificationRecord, ...]
    next: int | None
    """To be given as `before` (or `after`) for the next page. None: there is none."""


class TurnSummary(BilledTokens):
    """A turn that has ended."""

    seq: int
    at: Time
    turn: str
    agent: str
    conversation: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    cause: str
    outcome: str
    model: str
    requests: int
    tools: tuple[str, ...]
    """That it used, in their order."""
    seconds: float | None
    """From its beginning. None: that is not known."""


class TurnPage(ApiModel):
    """A page of them, the newest first."""

    turns: tuple[TurnSummary, ...]
    next: int | None


class UsageBucket(BilledTokens):
    """What was spent in one stretch of time."""

    at: Time
    """Its beginning."""
    key: str
    read_share: Share | None


class UsageTotal(BilledTokens):
    """The same over the whole time."""

    key: str
    requests: int
    read_share: Share | None


class CacheReport(ApiModel):
    """What requests cost, and what the cache spared."""

    by: str
    buckets: tuple[UsageBucket, ...]
    """By time, oldest first; those in which nothing was asked are left out."""
    totals: tuple[UsageTotal, ...]
    """The dearest first."""


class DmnStatusList(ApiModel):
    """The agents' Default Mode Networks as they stand."""

    agents: tuple[DmnStatus, ...]


class DmnModeChange(ApiModel):
    """An agent entered a mode."""

    at: Time
    agent: str
    mode: str


class DmnHistory(ApiModel):
    """When which agent entered which mode, oldest first."""

    states: tuple[DmnModeChange, ...]


class PendingPart(ApiModel):
    """A part of a post."""

    index: int
    state: str
    attempts: int
    reason: str


class PendingPost(ApiModel):
    """A post whose delivery has not ended."""

    seq: int
    at: Time
    to: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    text: str
    parts: tuple[PendingPart, ...]


class DeliveryRecord(ApiModel):
    """How a post ended."""

    seq: int
    at: Time
    to: str
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    outcome: Literal["sent", "uncertain", "failed"]
    reason: str


class OutboxStatus(ApiModel):
    """What is to be delivered, and what was lately, the newest first."""

    waiting: tuple[PendingPost, ...]
    deliveries: tuple[DeliveryRecord, ...]


class AuditEntry(ApiModel):
    """An act of administration."""

    seq: int
    at: Time
    actor: str
    place: str
    """Empty: on the command line, or over the API."""
    title: str = ""
    """What people call that conversation. Empty: there is none."""
    command: str
    arguments: str
    result: str
    ok: bool
    """False: it was refused or did not work."""


class AuditPage(ApiModel):
    """A page of them, the newest first."""

    audit: tuple[AuditEntry, ...]
    next: int | None


class SayReceipt(ApiModel):
    """What the operator said is durable."""

    seq: int
