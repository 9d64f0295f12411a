"""Facts: the entries of the log, that is every notification, and what the gateway itself decided
and did.

A `Fact` is the body of one log entry, tagged by `kind`. Facts are never changed; every table beside
the log is computed from them (`gateway.store.projections`).
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Literal, NewType, Union, get_args

from pydantic import Field, TypeAdapter

from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
    DeliveryReport,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    RequestUsage,
    RoomId,
    SenderId,
    Time,
    TurnStep,
    Usage,
)
from gateway.core.frozen import frozen
from gateway.core.labels import OUTSIDE_LABEL, Label

Seq = NewType("Seq", int)
"""Position in the log: grows, unique, may have gaps. Never 0."""
TurnId = NewType("TurnId", str)

MESSAGE_KINDS: Final = ("direct", "mention", "reply", "room")
"""Values of `Message.kind`, under which messages are in the log."""

AMBIENT: Final = 0
LOW: Final = 1
NORMAL: Final = 2
URGENT: Final = 3
"""Urgencies: context only; shown in the next turn; wakes the agent at its next tick; starts a
turn."""


@frozen
class Judgement:
    """Decision of access and attention about the entry that caused this one."""

    type: str
    """Dotted, e.g. `irc.libera.mention.#python`."""
    urgency: Literal[0, 1, 2, 3]
    fate: Literal["due", "context", "refused", "noted"]
    """due: a turn will cover it; context: shown if a turn happens anyway; refused: by access, never
    shown; noted: needs no turn (connection changes, membership)."""
    rule: str
    role: str
    kind: Literal["judged"] = "judged"


@frozen
class MediaRef:
    """An image or a PDF that was shown to the model. Its bytes are kept beside the store for a
    while.
    """

    sha256: str
    """Digest of the bytes, in lower-case hex: the name of the file."""
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"]
    line: Seq
    about: str
    """Description, as in the line of that message."""
    size_bytes: int
    width: int
    height: int
    """Height in pixels; 0 if it is not known. The same for `width`."""
    pages: int = 0
    """Pages of the PDF. 0: an image."""


@frozen
class CompactionSummary:
    """A summary made by a model: one row of `compactions_v1`."""

    text: str
    turns: int
    """Number of turns summarised, besides those of the previous summary."""
    tokens_before: int
    """Estimated size of what it summarises."""
    tokens_after: int
    """Estimated size of the head that holds it."""
    tries: int
    took_s: float
    model: str
    usage: Usage
    cost_usd: float | None
    """Cost of its requests, failed ones too; charged to the turn it was made for. None: no price is
    known."""


TurnCause = Literal[
    "addressed", "noticed", "alarm", "attended", "continued", "digest", "dream", "compact"
]
"""Reason for a turn: a message addressed to the agent; something noticed in a conversation; a
reminder; a decision of the inner conversation (`RoomAttended`); continuation of its own work; a
look at all pending work; consolidation of notes into memory; a request to fold the view."""


REPEATED_TURN: Final = "the same turn three times in a row"
"""`TurnRecord.reason` of a turn after which the agent does not go on although it wanted to."""


@frozen
class TurnRecord:
    """Complete record of one turn in one conversation. Written in one transaction with its post, if
    it has one.
    """

    turn: TurnId
    covers: tuple[Seq, ...]
    """The messages shown to the model as new, oldest first."""
    omitted: int
    """Number of older unread messages that were only counted."""
    heard: str
    """The new lines exactly as the model read them: later prompts repeat them byte for byte."""
    upto: Seq
    """Every unread message up to here is dealt with, shown or not."""
    outcome: Literal["replied", "silent", "yielded", "failed", "interrupted"]
    """interrupted: ended from outside before it could answer; the messages shown to it are left for
    the next turn."""
    text: str
    """The answer; empty for silent, yielded and interrupted."""
    reason: str
    """Reason for a failure, for not asking the model, or for an interruption, without secrets;
    empty otherwise."""
    model: str
    """The model that answered, by its provider's name; empty if none did."""
    usage: Usage
    requests: int
    autonomous: bool
    instead_of: str = ""
    """Models that should have answered before a fallback did, each with why it did not. Empty: no
    fallback did."""
    failure: str = ""
    """Cause of a failed turn: a `FailureCause` (`agent.models.base`). `cut` also of a reply that is
    half an answer. Of an interrupted one: why no model answered, so that a later turn answers.
    Empty: models answered."""
    media: tuple[MediaRef, ...] = ()
    """Images shown with the new lines, in their order: later prompts repeat them, too."""
    accounts: tuple[RequestUsage, ...] = ()
    """Expected cache use and billed usage of each model request."""
    agent: str = ""
    """Id of the agent. Empty: not recorded."""
    senders: tuple[SenderId, ...] = ()
    """Sender of each of `covers`, in that order ("": nobody); the cost of the turn is shared among
    them. Empty: no message caused it. For an interrupted turn they are present without `covers`,
    which are in the record of the message that ended it."""
    steps: tuple[TurnStep, ...] = ()
    """Tool calls, response by response: later prompts repeat them byte for byte, until a fold."""
    cause: TurnCause = "addressed"
    continued: bool = False
    """True if it continued the work of the turn before it, also if a message to the agent caused
    it."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    """For a turn of the inner conversation: the conversations it looked at, and up to which entry.
    What was unread there no longer wakes the agent."""
    within: TurnId | None = None
    """Turn of another conversation whose post here this record describes; no model was asked for it
    alone."""
    prompt_tokens: int = 0
    """Size of the last request, as the provider billed it. 0: not reported."""
    prompt_estimate: int = 0
    """Size of the same request as estimated for the view."""
    recalled: tuple[str, ...] = ()
    """Names of the texts that plugins recalled for it (`gateway.plugin.Part.names`): not repeated
    while this turn is in view."""
    nudged: bool = False
    """True if it was asked to write down what matters, because the window is nearly full."""
    label: Label = OUTSIDE_LABEL
    """Label of all that its requests and `heard` held, and so of its answer and its `note`."""
    note: str = ""
    """Of an autonomous turn: what it did, where and why, on one line of at most 200 characters; in
    the agent's words, or made of its actions if it wrote none. Empty: nothing besides `text`."""
    kind: Literal["turn_ended"] = "turn_ended"

    @property
    def own_tokens(self) -> int:
        """Return the size of what only its conversation had in its last request. 0: not known."""
        own, last = ("binding", "channel", "history"), self.accounts[-1:]
        return sum([block.tokens for one in last for block in one.blocks if block.name in own])


@frozen
class ViewFolded:
    """New form of the view of this conversation: `head`, then the turns from `start` on, in these
    forms.
    """

    start: Seq
    """The first turn in view is the first that ended at or after this position."""
    reason: str
    """Trigger, saving and cost, in words."""
    head: str = ""
    """Text in front of the first turn, verbatim. Empty: none."""
    carried: str = ""
    """The summary that `head` holds, of this fold or an earlier one. Empty: none."""
    summed: Seq = Seq(0)
    """Tool loops of turns before this position are shown as summaries."""
    trimmed: Seq = Seq(0)
    """In turns before this position old results are stubs, and ephemeral calls are removed. At
    least `summed`."""
    spared: int = 0
    """Number of the newest results before `trimmed` that are shown in full all the same."""
    kinds: tuple[str, ...] = ()
    """Steps of the fold, gentlest first: `trim`, `sum`, `bridge`, `summary`, `drop`, `new`."""
    summary: CompactionSummary | None = None
    """The model's summary that `head` holds. None: no new one."""
    label: Label = OUTSIDE_LABEL
    """Label of what `head` was made of."""
    kind: Literal["folded"] = "folded"


@frozen
class CompactionLocked:
    """Lock on the summary of this conversation; no other holder starts one before `until`."""

    holder: str
    until: Time
    """At the start: when the summary counts as aborted. At the end: the time of the end."""
    kind: Literal["compaction_lock"] = "compaction_lock"


@frozen
class Evidence:
    """Full result of a tool of which the model was shown a part."""

    turn: TurnId
    call: str
    tool: str
    what: str
    """Like `EvidenceRef.kind`."""
    origin: str
    """Like `EvidenceRef.origin`. Untrusted."""
    text: str
    """Untrusted."""
    kind: Literal["evidence"] = "evidence"


@frozen
class ConversationRewound:
    """Removal of turns from the view: those of this conversation that ended from `first` to
    `last`.
    """

    first: Seq
    last: Seq
    by: str
    again: tuple[Seq, ...] = ()
    """Messages that are unread again, and answered anew."""
    kind: Literal["rewound"] = "rewound"


@frozen
class ChannelCardPinned:
    """A new channel card, which describes the conversation to the model until another one is
    pinned.
    """

    text: str
    reason: str
    least_role: str
    """Lowest role among those who chose the topic and the names in it."""
    kind: Literal["carded"] = "carded"


@frozen
class PostQueued:
    """A post to be delivered."""

    post: Post
    kind: Literal["post"] = "post"


@frozen
class PartSendStarted:
    """A part of a post is being handed to its platform."""

    post: PostKey
    part: int
    """Index from 0."""
    bodies: tuple[str, ...] | None
    """All rendered parts, with the first part that is sent; None afterwards: the split stays the
    same."""
    after: str = ""
    """Position of the channel at this time (`channels.base.FindsSent`); empty: none, or not
    known."""
    kind: Literal["sending"] = "sending"


@frozen
class PartSendEnded:
    """Result of one attempt to send one part."""

    post: PostKey
    part: int
    state: Literal["sent", "uncertain", "failed", "waiting"]
    """`waiting`: not sent by this attempt; it will be tried again."""
    reason: str
    ids: tuple[MessageId, ...] = ()
    maybe_seen: bool = False
    """With `waiting`: this attempt or an earlier one may have shown it all the same. It is tried
    again only where the platform drops repeats (`Capabilities.resend_window_s`)."""
    may_not_post: bool = False
    """With `waiting`: the platform takes nothing from the bot there until people change that."""
    kind: Literal["part"] = "part"


@frozen
class PreviewShown:
    """A preview message that shows an answer while it grows. It becomes the answer, or has to be
    deleted later.
    """

    at: Address
    message: MessageId
    kind: Literal["previewed"] = "previewed"


@frozen
class PreviewEnded:
    """The preview message is deleted, or cannot be deleted; or `Post.previews` names it."""

    at: Address
    message: MessageId
    reason: str
    """Reason why it cannot be deleted; empty: it is deleted, or the post's."""
    kind: Literal["preview_ended"] = "preview_ended"


@frozen
class CursorMoved:
    """Position up to which a platform's own event queue has been processed."""

    channel: ChannelName
    value: str
    kind: Literal["cursor"] = "cursor"


@frozen
class UnreadDismissed:
    """Unread messages here need no turn: all of them were deleted, or a person had the view begun
    afresh.
    """

    upto: Seq
    """Everything unread here up to this is dealt with."""
    kind: Literal["handled"] = "handled"


@frozen
class RoomAttended:
    """Decision, made in the agent's inner conversation, to take a room's own turn now. It causes an
    `Alarm` there.
    """

    turn: TurnId
    at: Address
    reason: str
    """Reason in the model's words, which may be made of any room's text. It is also the text of the
    alarm if all who can read in the room may read what `label` says. May be empty.
    """
    label: Label
    kind: Literal["attended"] = "attended"


@frozen
class OwnerTold:
    """Something that an agent tells an owner unasked, in their own chat with it. It stands in the
    agent's inner conversation, first as held, then as posted.
    """

    tell: str
    """Its id, the same in both states."""
    agent: str
    to: Address
    """The owner's direct chat."""
    who: str
    """Display name of the owner. Untrusted."""
    text: str
    """In the model's words, on one line."""
    about: Address | None
    """The room or chat that it comes from. None: the agent noticed it by itself."""
    people: tuple[str, ...]
    """People there whose words caused it, in the form of `gateway.core.identity.person_key`."""
    names: tuple[str, ...]
    """Their display names with their roles, in Markdown, for people."""
    others: bool
    """True if it may rest on words of more people than these."""
    urgency: Literal["now", "digest"]
    turn: TurnId
    label: Label
    state: Literal["held", "posted"]
    """Each state is a fact of its own: held until it is posted."""
    post: PostKey | None = None
    """Key of the post that tells it, and id of its turn in the owner's chat. None: held."""
    kind: Literal["told"] = "told"


@frozen
class NoteWritten:
    """A note written by the agent."""

    agent: str
    scope: str
    """Scope of its readers: see `gateway.core.scopes`."""
    title: str
    """One line; may be empty."""
    text: str
    lasting: bool
    """True: to be remembered permanently; False: a journal entry."""
    by: str = ""
    """Names and roles of the people who asked in that turn. Untrusted. Empty: nobody."""
    turn: TurnId | None = None
    label: Label = OUTSIDE_LABEL
    kind: Literal["noted"] = "noted"


@frozen
class MemoryConsolidated:
    """A new version of the agent's memory file."""

    agent: str
    before: str
    after: str
    """The whole file, before and after."""
    upto: Seq
    """Notes up to here are included."""
    reason: str
    notes: tuple[Seq, ...] = ()
    """Notes that an owner admitted into it verbatim."""
    kind: Literal["dreamed"] = "dreamed"


@frozen
class DmnDirective:
    """An instruction of a person to an agent's Default Mode Network."""

    agent: str
    what: str
    by: str
    """The person, for people."""
    until: Time | None = None
    on: tuple[str, ...] = ()
    """Types of notifications that wake the agent from `sleep` or `store`."""
    kind: Literal["directed"] = "directed"


@frozen
class DmnStateSaved:
    """State of an agent's Default Mode Network, as its own JSON."""

    state: str
    agent: str
    kind: Literal["dmn"] = "dmn"


@frozen
class ToolRefused:
    """A tool call that was refused in that place, or for the people who asked."""

    turn: TurnId
    agent: str
    tool: str
    role: str
    rule: str
    label: Label | None = None
    """Label of the request that led to the call. None: not recorded."""
    kind: Literal["tool_refused"] = "tool_refused"


@frozen
class ToolStarted:
    """Start of a tool that may change something outside. Its result is in the record of its turn,
    if the turn ends.
    """

    turn: TurnId
    agent: str
    tool: str
    arguments: str
    """Hex digest of the arguments, as `agent.turn_context.call_key` writes it."""
    kind: Literal["tool_begun"] = "tool_begun"


@frozen
class PlatformAction:
    """An action of the agent on a platform besides posting."""

    turn: TurnId
    agent: str
    what: Literal["react", "unreact", "edit", "delete", "topic", "file"]
    """`file`: a file is posted, by the `PostQueued` that this caused; the action is done with
    that."""
    at: Address
    message: MessageId | None
    """The message that it is applied to; None: the room."""
    text: str
    """The reaction, the new text or topic, the file's name."""
    state: Literal["begun", "done", "failed"]
    """Each state is a fact of its own: an action that has begun and not ended may have been
    done."""
    reason: str = ""
    kind: Literal["acted"] = "acted"


@frozen
class NoteForgotten:
    """A note that is to be forgotten."""

    agent: str
    note: Seq
    by: str
    turn: TurnId | None = None
    kind: Literal["forgotten"] = "forgotten"


@frozen
class CodeIssued:
    """A one-time code that was shown to a person and proves their identity to the person they hand
    it to.
    """

    request: str
    """Name of the request: not the code."""
    what: Literal["pair", "room", "link", "confirm"]
    """Purpose: direct chats with the agent; approval of `room`; proof of a second account;
    confirmation by the first account."""
    person: str
    """The person who was shown it, in the form of `gateway.core.identity.person_key`."""
    name: str
    """Display name of that person. Untrusted."""
    at: Address
    room: Address | None = None
    """With purpose `room`: the room to approve."""
    about: str = ""
    """The room's own title. Untrusted."""
    other: str = ""
    """With purpose `confirm`: the other person."""
    salt: str
    digest: str
    """SHA-256 of salt and code, in lower-case hex."""
    until: Time
    language: str = ""
    """Language in which the person is told the result, as `gateway.core.i18n.current_language`.
    Empty: English."""
    kind: Literal["code_given"] = "code_given"


@frozen
class CodeEnded:
    """End of validity of a code."""

    request: str
    state: Literal["used", "revoked", "expired"]
    by: str
    """Id of the person who ended it. Empty: nobody."""
    name: str = ""
    """Display name of that person. Untrusted."""
    kind: Literal["code_over"] = "code_over"


@frozen
class RoleAssigned:
    """A role of a person in a scope, valid from now on."""

    person: str
    """In the form of `gateway.core.identity.person_key`; a mask may be a pattern."""
    role: Literal["owner", "admin", "member", "guest", "blocked", ""]
    """Empty: the role is withdrawn."""
    scope: str = ""
    """Like `gateway.core.identity.RoleGrant.scope`."""
    name: str = ""
    """Display name of that person. Untrusted."""
    by: str
    """The person who gave it, in the form of `person`; `operator`: the user of the command line."""
    why: Literal["pairing", "role", "block", "seed"]
    kind: Literal["role_given"] = "role_given"


@frozen
class RoomAccessChanged:
    """Permission of the agent to act in this room, or in all rooms of this space, given or
    withdrawn.
    """

    room: Address
    open: bool
    by: str
    about: str = ""
    """The room's own title. Untrusted."""
    kind: Literal["room_opened"] = "room_opened"


@frozen
class AudienceReported:
    """The platform's report on who can read messages in a place, valid from the entry that caused
    this one.
    """

    at: Address
    scope: str
    """The readers, as a scope of `gateway.core.scopes`."""
    space: RoomId | None = None
    """Space of the room (`channels.base.HasSpaces`). None: none, or unknown."""
    since: Seq | None = None
    """Position from which on it is valid, if an earlier entry reported the same scope. None: as
    above."""
    kind: Literal["audience"] = "audience"


@frozen
class IdentityLinked:
    """Link of two accounts of one person, or its removal."""

    one: str
    other: str
    """Both in the form of `gateway.core.identity.person_key`; in alphabetical order."""
    joined: bool
    by: str
    kind: Literal["identity_linked"] = "identity_linked"


@frozen
class AttentionThresholdSet:
    """A threshold: the lowest urgency at which notifications of this type pass from now on."""

    type: str
    value: int | None
    """None: the configured threshold."""
    by: str
    kind: Literal["threshold_set"] = "threshold_set"


@frozen
class ModelSelected:
    """Selection of the model that an agent uses from now on."""

    agent: str
    model: str
    """A key of `llm.models`. Empty: the configured model."""
    by: str
    kind: Literal["model_chosen"] = "model_chosen"


@frozen
class RoomAssigned:
    """Choice of the agent and the model that answer in a room and its threads. It replaces the
    earlier one for that room.
    """

    room: Address
    """Without a thread."""
    agent: str
    """Id of an agent. Empty: as the bindings say."""
    model: str
    """A key of `llm.models`. Empty: that of the agent."""
    by: str
    kind: Literal["room_assigned"] = "room_assigned"


@frozen
class LimitReached:
    """A limit that was reached, and about which its subject is notified once."""

    limit: Literal["rate", "cost", "hour_cost"]
    """Messages a minute, or money of a day; `hour_cost`, of an hour, is in older logs alone."""
    whose: Literal["sender", "room", "agent"]
    subject: str
    """The person, the conversation or the agent."""
    rule: str
    name: str = ""
    """What the person calls themselves. Untrusted."""
    kind: Literal["limited"] = "limited"


@frozen
class MonthArchived:
    """Entries of a month leave the log for a file beside it, which holds them."""

    month: str
    """UTC, as 2026-03."""
    upto: Seq
    """The last of them."""
    kind: Literal["archived"] = "archived"


@frozen
class AuditRecord:
    """An administrative action, allowed or refused."""

    what: str
    """The command, or the action of the operator."""
    by: str
    """The person, in the form of `gateway.core.identity.person_key`; `operator`: the user of the
    command line."""
    name: str
    """Their display name. Untrusted."""
    evidence: str
    """Evidence of their identity: what the platform vouches for, and what it does not."""
    role: str
    rule: str
    at: Address | None
    """Place where it was done. None: on the command line."""
    args: str
    """Arguments, without secrets."""
    ok: bool
    result: str
    """The answer on one line, without secrets."""
    kind: Literal["audited"] = "audited"


class PluginFact:
    """Base of the kinds of entries that plugins add to the log.

    A subclass is a frozen dataclass with `kind: Literal["NAME.what"] = "NAME.what"`, where NAME is
    the plugin's. Pydantic reads and writes it, as all facts; a field once released keeps its
    meaning and its default value.
    """

    __slots__ = ()
    kind: str
    is_kept: ClassVar[bool] = False
    """True: entries of the kind stay in the log, however old they are."""

    def describe(self) -> str:
        """Return one line about the entry for people, in English."""
        return ""

    def current_key(self) -> tuple[str, bool] | None:
        """Return what the entry is about, where only the newest entry of its kind about that counts
        (`StoreReader.current_facts`), and whether it does: False if it only ends the one before.
        None: each entry counts.
        """
        return None


Fact = (
    Notification
    | Judgement
    | TurnRecord
    | ViewFolded
    | CompactionLocked
    | Evidence
    | ConversationRewound
    | ChannelCardPinned
    | PostQueued
    | PartSendStarted
    | PartSendEnded
    | PreviewShown
    | PreviewEnded
    | CursorMoved
    | UnreadDismissed
    | RoomAttended
    | OwnerTold
    | NoteWritten
    | MemoryConsolidated
    | DmnDirective
    | DmnStateSaved
    | ToolRefused
    | ToolStarted
    | PlatformAction
    | NoteForgotten
    | CodeIssued
    | CodeEnded
    | RoleAssigned
    | RoomAccessChanged
    | AudienceReported
    | IdentityLinked
    | AttentionThresholdSet
    | ModelSelected
    | RoomAssigned
    | LimitReached
    | MonthArchived
    | AuditRecord
    | PluginFact
)
"""Every kind of entry that the log can have, tagged by `kind`."""

NOTIFICATION_CLASSES: Final[tuple[type[Notification], ...]] = get_args(Notification)
"""All types of notifications, to subscribe to them."""

_PRUNABLE_KINDS: Final = frozenset({
    "direct", "mention", "reply", "room", "edited", "deleted", "reacted", "membership", "command",
    "link", "alarm", "finished", "delivery", "judged", "turn_ended", "folded", "compaction_lock",
    "evidence", "carded", "post", "sending", "part", "previewed", "preview_ended", "cursor",
    "handled", "dmn", "tool_begun", "acted", "limited",
})  # fmt: skip

_OWN_FACTS: Final[tuple[type[Any], ...]] = tuple(set(get_args(Fact)) - {PluginFact})
_PLUGIN_FACTS: Final[dict[str, type[PluginFact]]] = {}


def register_facts(facts: Iterable[type[PluginFact]]) -> None:
    """Let the log have entries of these types, and of no other ones of plugins."""
    _PLUGIN_FACTS.clear()
    _PLUGIN_FACTS.update({fact_kind(fact): fact for fact in facts})
    fact_adapter.cache_clear()
    _facts_by_kind.cache_clear()
    fact_kinds.cache_clear()


@cache
def _facts_by_kind() -> dict[str, Any]:
    # Plugins stand above the log; it has to know their facts before it is read.
    import_module("gateway.plugins").find_plugins()
    facts = (*_OWN_FACTS, *_PLUGIN_FACTS.values())
    return {kind: fact for fact in facts for kind in _kinds_of(fact)}


@cache
def fact_adapter() -> TypeAdapter[Fact]:
    """Return what reads facts whose kind is not known; those of plugins too."""
    kinds: Any = Union[tuple(set(_facts_by_kind().values()))]  # noqa: UP007 - of a tuple
    adapter: TypeAdapter[Fact] = TypeAdapter(Annotated[kinds, Field(discriminator="kind")])
    return adapter


@cache
def _adapter_of(fact: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(fact)  # of all kinds together it takes 25 ms, and few are met in a start


def load_fact(kind: str, body: str) -> Fact:
    """Reverse `dump_fact`. Raises ValueError for a kind or a text that is not known."""
    if (known := _facts_by_kind().get(kind)) is None:
        raise ValueError(f"there is no kind of entries {kind!r}")
    fact: Fact = _adapter_of(known).validate_json(body)
    return fact


def fact_kind(fact: type[PluginFact]) -> str:
    """Return the kind of a type of facts."""
    [kind] = _kinds_of(fact)
    return kind


def prunable_kinds() -> frozenset[str]:
    """Return the kinds whose entries leave the log when they are old, see
    `gateway.plugins.retention`.
    """
    _facts_by_kind()
    return _PRUNABLE_KINDS.union(kind for kind, fact in _PLUGIN_FACTS.items() if not fact.is_kept)


def event_kinds() -> frozenset[str]:
    """Return the kinds of notifications."""
    return frozenset(kind for one in NOTIFICATION_CLASSES for kind in _kinds_of(one))


def _kinds_of(fact: type[Any]) -> tuple[str, ...]:
    kinds: tuple[str, ...] = get_args(fact.__annotations__["kind"])
    return kinds


def has_trouble(turn: Fact) -> bool:
    """Return whether it is a turn that failed, if only in part, or did the same again and again."""
    return isinstance(turn, TurnRecord) and bool(turn.failure or turn.reason == REPEATED_TURN)


def has_failed(report: Fact) -> bool:
    """Return whether it is the report of a post that could not be delivered."""
    return isinstance(report, DeliveryReport) and report.state == "failed"


def dump_fact(fact: Fact) -> str:
    """Return a fact as JSON, as the log holds it.

    Notifications, which are most of a log, are written without the fields that have their default
    value: so a default of theirs, once released, never changes. Queries of the log may rely on
    fields without a default only. Raises ValueError for a fact that no plugin declares.
    """
    of_kind: Any = type(fact)
    if isinstance(fact, PluginFact) and fact.kind not in fact_kinds():
        raise ValueError(f"{of_kind.__name__} is not in the `facts` of a plugin")
    if not isinstance(fact, NOTIFICATION_CLASSES):
        return _adapter_of(of_kind).serializer.to_json(fact).decode()
    body = _adapter_of(of_kind).serializer.to_json(fact, exclude_defaults=True).decode()
    return body if isinstance(fact, Message) else f'{body[:-1]},"kind":"{fact.kind}"}}'


INNER_CHANNEL: Final = ChannelName("agent")
"""The channel of inner conversations: no platform has that name, and nothing is sent there."""
OPERATOR_CHANNEL: Final = ChannelName("console")
"""The operator's own channel, where there is one (`gateway.stream.operator`)."""


def inner_conversation(agent: str) -> ConversationId:
    """Return an agent's own conversation: for autonomous turns, and texts that nobody else is
    shown.
    """
    return Address(channel=INNER_CHANNEL, room=RoomId(agent)).conversation


def is_inner(conversation: ConversationId) -> bool:
    """Return whether this is the inner conversation of some agent."""
    return conversation.startswith(f"{INNER_CHANNEL}/")


def is_direct_line(fact: Fact) -> bool:
    """Return whether somebody wrote this in a direct chat."""
    if isinstance(fact, Message):
        return fact.kind == "direct"
    return isinstance(fact, Command) and fact.direct


@cache
def fact_kinds() -> frozenset[str]:
    """Return all kinds of entries."""
    return frozenset(_facts_by_kind())


def dedup_key(event: Notification) -> str:
    """Return the deduplication key of a notification: equal exactly for repeats of one event."""
    place = event.at
    scope = (
        place.conversation
        if place
        else event.channel
        if isinstance(event, ConnectionChanged)
        else ConversationId("")
    )
    # A line has one key, whether this or a later version parses it as a message or as a command.
    is_message = isinstance(event, Message) or (
        isinstance(event, Command) and event.origin == "text"
    )
    family = "message" if is_message else event.kind
    return f"{family}:{scope}:{event.id}"
