"""What the API answers: one model for each answer, and of what it is made. Pure.

Texts in them are redacted and cut where they are written out (`gateway.ops.api_schemas`), not here. Times are UTC.

What facts say, for whoever looks on: who did it, and in which words. Pure. One-time codes are not in it.

From answers to bytes: every text in them is redacted, then cut. Pure.

What can be asked of the API with a path: one model for each query. Pure.

What the API looks at, and what it hands on. Wired once.

Where the API's questions are answered: the house, and a connection of its own to the store.
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
from gateway.store import Store
from gateway.store.format import describe_fact, hide_codes, without_code
from gateway.store.overview import NotificationRow, OverviewReader
from gateway.stream.place_names import PlaceTitles
from gateway.stream.trace import EventOutcome

if TYPE_CHECKING:
    from agent.cache.plan import PlannedRequest


MAX_LIMIT = 200
"""Entries of one answer."""
MAX_HOURS = 24 * 31

Limit = Annotated[int, Field(ge=1, le=MAX_LIMIT)]
Position = Annotated[int, Field(ge=0, lt=2**63)]
ConversationParam = Annotated[str, Field(max_length=2_000)]


class ApiQuery(BaseModel):
    """Nothing is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LimitQuery(ApiQuery):
    """How many."""

    limit: Limit = 50


class ConversationQuery(ApiQuery):
    """Which conversation."""

    id: ConversationParam
    limit: Limit = 50


class PageQuery(LimitQuery):
    """A page of the log."""

    before: Position | None = None
    """Only what stands in front of this."""


class ConversationPageQuery(PageQuery):
    """The same of one conversation."""

    conversation: ConversationParam | None = None


class NotificationQuery(ConversationPageQuery):
    """The same, or forward."""

    after: Position | None = None
    """Only what stands behind this, the oldest first."""


class HoursQuery(ApiQuery):
    """How far back."""

    hours: Annotated[int, Field(ge=1, le=MAX_HOURS)] = 24


class SpendingQuery(HoursQuery):
    """And by what."""

    by: Literal["channel", "conversation", "agent", "model"] = "channel"


class EventsQuery(ApiQuery):
    """Where events begin."""

    after: Position | None = None
    """Behind this position of the log; None: now."""


class SayRequest(BaseModel):
    """What the operator says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, Field(min_length=1, max_length=16_000)]


OrderHandler = Callable[[ControlRequest], Awaitable[ControlResponse]]
LastRequestLookup = Callable[[ConversationId], "PlannedRequest | None"]
"""The last request of a conversation. None: there was none since the start, or it is not kept any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """A running gateway, as whoever looks on sees it."""

    store: Store
    clock: Clock
    stats: GatewayStats
    version: str
    turn_tracker: TurnTracker
    redact: Redact
    list_minds: Callable[[], Sequence[DmnStatus]]
    list_platforms: Callable[[], Mapping[ChannelName, str]]
    """What each channel is called."""
    describe_model: Callable[[], str]
    find_agent: Callable[[Address], str]
    """Whose conversation it is. Empty: nobody's."""
    find_last_request: LastRequestLookup
    titles: PlaceTitles
    carry_out_order: OrderHandler
    say_as_operator: Callable[[str], Awaitable[Seq]]
    """Says something as the operator; where it then stands in the log. Waits until that is durable."""


class ApiBackend:
    """Opens its connection when it is first asked for. Close it."""

    def __init__(self, house: ApiServices) -> None:
        self.services = house
        self._reader: OverviewReader | None = None
        self._opening = asyncio.Lock()

    async def open_reader(self) -> OverviewReader:
        """What reads the store. Raises StoreError."""
        async with self._opening:
            if self._reader is None:
                self._reader = await OverviewReader.open(self.services.store.path)
            return self._reader

    async def close(self) -> None:
        """Let go of it. More than once is as good as once."""
        async with self._opening:
            if self._reader is not None:
                reader, self._reader = self._reader, None
                await reader.close()


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
    """See `gateway.stream.trace`."""
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


_TURN_OUTCOMES = {
    "replied": EventOutcome.ANSWERED,
    "silent": EventOutcome.SILENT,
    "yielded": EventOutcome.YIELDED,
    "failed": EventOutcome.FAILED,
    "interrupted": EventOutcome.INTERRUPTED,
}


def find_actor(fact: Fact) -> str:
    """The display name of who did it. Untrusted. Empty: nobody, or it is not told."""
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
    """What it says, without who did it. Untrusted."""
    match without_code(fact):
        case Message() | MessageEdited() as said:
            return hide_codes(said.text)
        case Command() as said:
            return hide_codes(f"{said.name} {said.args}".rstrip())
        case MembershipChanged() as said:
            return " ".join(filter(None, [said.change, said.subject, said.text]))
        case MessageDeleted() as said:
            return f"deleted {said.message}"
        case ReactionChanged() as said:
            return f"{'+' if said.added else '-'}{said.reaction}"
        case ConnectionChanged() as said:
            return f"{'up' if said.up else 'down'}{f': {said.reason}' if said.reason else ''}"
        case Alarm() as said:
            return said.text
        case TaskFinished() as said:
            return f"{said.what} {'is done' if said.ok else 'failed'}: {said.text}"
        case DeliveryReport() as said:
            return f"{said.state}{f': {said.reason}' if said.reason else ''}"
        case PostQueued() as said:
            return hide_codes(said.post.text)
        case said:
            return hide_codes(describe_fact(said))


def find_outcome(event: NotificationRow) -> EventOutcome:
    """What became of it: as `gateway.stream.trace` has it, which reads the whole log for that."""
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
"""Of a text, unless it is part of a prompt."""
MAX_PROMPT_CHARS: Final = 2_000_000
"""Of a prompt's block: larger than any window."""
ELLIPSIS: Final = "…"
_CONVERSATION_KEYS: Final = ("conversation", "to", "place")
"""Keys that name one."""


def serialize_answer(tree: object, redact: Redact, *, chars: int = MAX_TEXT_CHARS) -> bytes:
    """As JSON in UTF-8. `tree`: an answer, dumped."""
    told = redact_tree(tree, redact, chars)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def find_untitled(tree: object) -> Iterator[tuple[dict[str, object], str]]:
    """Every part of a dumped answer that names a conversation and has room for its title, with that conversation."""
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
    """Write what people call each conversation beside it."""
    for part, conversation in find_untitled(tree):
        part["title"] = title(conversation)


def redact_tree(told: object, redact: Redact, chars: int = MAX_TEXT_CHARS) -> object:
    """The same tree with its texts redacted and cut. Keys that stand for somebody's words are looked at, too."""
    if isinstance(told, str):
        return clip_text(redact(told), chars) if told else told
    if isinstance(told, dict):
        return {key: redact_tree(value, redact, chars) for key, value in told.items()}
    if isinstance(told, list):
        return [redact_tree(value, redact, chars) for value in told]
    return told


def clip_text(text: str, chars: int = MAX_TEXT_CHARS) -> str:
    """The text, cut if it is longer than that."""
    return text if len(text) <= chars else f"{text[: chars - len(ELLIPSIS)]}{ELLIPSIS}"
