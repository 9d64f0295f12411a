"""What the log holds: every notification, and what the gateway itself decided and did.

A `Fact` is the body of one log entry, tagged by `kind`. Facts are never changed; every table beside
the log is a fold of them (`gateway.store.projections`).
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NewType

from pydantic import Field, TypeAdapter

from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    ConnectionChanged,
    ConversationId,
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

Seq = NewType("Seq", int)
"""Position in the log: grows, unique, may have gaps. Never 0."""
TurnId = NewType("TurnId", str)

MESSAGE_KINDS: Final = ("direct", "mention", "reply", "room")
"""The kinds under which a `Message` stands in the log."""

AMBIENT: Final = 0
LOW: Final = 1
NORMAL: Final = 2
URGENT: Final = 3
"""Urgencies: context only; told at the next turn; wakes the agent at its next tick; starts a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What access and attention said of the entry that caused this one."""

    type: str
    """Dotted, e.g. `irc.libera.mention.#python`."""
    urgency: Literal[0, 1, 2, 3]
    fate: Literal["due", "context", "refused", "noted"]
    """due: a turn will cover it; context: told if a turn happens anyway; refused: by access, never told;
    noted: needs no turn (link changes, membership)."""
    rule: str
    """Which rule decided, for people."""
    role: str
    kind: Literal["judged"] = "judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """An image that the model was shown. Its bytes are kept beside the store for a while."""

    sha256: str
    """Of the bytes, in lower-case hex: the file's name."""
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    line: Seq
    """The message that it came with."""
    about: str
    """As its line describes it."""
    size_bytes: int
    width: int
    height: int
    """Pixels; 0 if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldDecision:
    """What a fold was decided by: `agent.compaction.plan_compaction` says the same of the same."""

    situation: str
    """`agent.compaction.CompactionParams`, as canonical JSON. The sizes of the turns follow from the log."""
    written: Time | None = None
    """When the newest journal entry of the place was written, if that was looked up."""
    verdict: str
    """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSummary:
    """A summary that a model made: one row of `compactions_v1`."""

    text: str
    """As the model wrote it."""
    turns: int
    """That it stands for, besides what the summary before it stood for."""
    tokens_before: int
    """Of what it stands for, estimated."""
    tokens_after: int
    """Of the head that holds it, estimated."""
    tries: int
    took_s: float
    model: str
    """What made it, as its provider names it."""
    usage: Usage
    cost_usd: float | None
    """Of the requests for it, failed ones too; the turn that it was made for bears it. None: no price is known."""


TurnCause = Literal["addressed", "noticed", "alarm", "continued", "digest", "dream", "compact"]
"""Why a turn was taken: somebody spoke to the agent; something there was worth a look; a reminder came; it goes on with
what it was doing; it looks at what is pending everywhere; it consolidates what it wrote down; somebody wants
the view folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn in one conversation, whole. Written in one transaction with its post, if it has one."""

    turn: TurnId
    covers: tuple[Seq, ...]
    """The messages shown to the model as new, oldest first."""
    omitted: int
    """Older unread ones that were only counted."""
    heard: str
    """The new lines exactly as the model read them: what a later prompt repeats, byte for byte."""
    upto: Seq
    """Everything unread up to here is dealt with, shown or not."""
    outcome: Literal["replied", "silent", "yielded", "failed", "interrupted"]
    """interrupted: it was ended from outside before it could answer; what it heard is for the next turn there."""
    text: str
    """What was said; empty for silent, yielded and interrupted."""
    reason: str
    """Why it failed, why the model was not asked, or who had it left off, without secrets; empty otherwise."""
    model: str
    """What answered, as its provider names it; empty if nothing did."""
    usage: Usage
    requests: int
    """Model requests that were made."""
    autonomous: bool
    """Nobody asked for it."""
    failure: str = ""
    """Of a failed turn: the `TurnCause` (`agent.models.base`). Empty: it did not fail, or an older version wrote
    this."""
    media: tuple[MediaRef, ...] = ()
    """The images shown with the new lines, in their order: what a later prompt repeats, too."""
    accounts: tuple[RequestUsage, ...] = ()
    """Of each model request, what its cache was expected to do and what was billed."""
    agent: str = ""
    """Who took it, by its id. Empty: the version that wrote this did not tell."""
    senders: tuple[SenderId, ...] = ()
    """Who said each of `covers`, in that order ("": nobody): what the turn cost is theirs. Empty: not told. Of a turn
    that was left off they stand without `covers`: these are in the record of the word that ended it."""
    steps: tuple[TurnStep, ...] = ()
    """The tools that were used, answer by answer: what a later prompt repeats, byte for byte, until a fold."""
    cause: TurnCause = "addressed"
    continued: bool = False
    """It went on with what the turn before it had begun, also if somebody spoke to the agent then."""
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    """Of the inner conversation: where it looked, and up to which entry. What was unread there wakes nobody again."""
    within: TurnId | None = None
    """It is what this turn of the inner conversation did here, and asked no model by itself."""
    prompt_tokens: int = 0
    """Of the last request, as the provider billed it. 0: it did not tell."""
    prompt_estimate: int = 0
    """What the same request was thought to have, by the view's own measure."""
    recalled: tuple[str, ...] = ()
    """What was recalled for it, by the names of `gateway.context.recall`: that is not told again while this is in
    view."""
    nudged: bool = False
    """It was asked to write down what matters, because the window is nearly full."""
    view: str = ""
    """Hex digest of the view that its requests repeated, the last ones if it was folded in between
    (`gateway.context.history.HistoryView.digest`). Empty: not told."""
    weighed: FoldDecision | None = None
    """Why the view was not folded for it, though something could have gone. None: nothing could, or it was folded."""
    foreign: str = ""
    """What brought text from outside into its requests first: a tool of this turn, or something that was in view.
    Empty: nothing did, or an earlier version did not tell; those told the tools of the turn only."""
    least_role: str = ""
    """The lowest role of whoever wrote what its requests held; `owner`: nobody else did. Empty: an earlier version did
    not tell, and it follows from `covers`."""
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFolded:
    """From now on the view of this conversation is this: `head`, then the turns from `start` on, in these forms."""

    start: Seq
    """The first turn in view is the first that ended at this position or behind it."""
    reason: str
    """In words: which trigger, what it saves, what it costs."""
    head: str = ""
    """What stands in front of the first turn, word for word. Empty: nothing."""
    carried: str = ""
    """The summary that `head` holds, of this fold or an earlier one. Empty: none."""
    summed: Seq = Seq(0)
    """The tool loops of turns in front of this position are told as summaries."""
    trimmed: Seq = Seq(0)
    """Of turns in front of this position old results are stubs, and ephemeral calls are gone. At least `summed`."""
    spared: int = 0
    """So many of the newest results in front of `trimmed` are whole all the same."""
    excerpts_tokens: int = 0
    """So much of the results of summarised loops is still told, the newest first."""
    kinds: tuple[str, ...] = ()
    """What it did, gentlest first: `trim`, `sum`, `bridge`, `summary`, `drop`, `new`."""
    weighed: FoldDecision | None = None
    """What it was decided by. None: somebody asked for it, or the version that wrote this did not tell."""
    summary: CompactionSummary | None = None
    """The model's summary that `head` holds. None: it holds none that is new."""
    least_role: str = ""
    """The lowest role of whoever wrote what `head` was made of. Empty: an earlier version did not tell, so it may be
    anybody's."""
    foreign: str = ""
    """What brought text from outside into what `head` was made of. Empty: nothing did."""
    kind: Literal["folded"] = "folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLocked:
    """A summary of this conversation is being made; nobody else begins one before `until`."""

    holder: str
    until: Time
    """At its beginning: when it counts as broken off. At its end: that moment."""
    kind: Literal["compaction_lock"] = "compaction_lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Something that a tool brought, whole, of which the model was told a part."""

    turn: TurnId
    call: str
    """The model's own name of the call."""
    tool: str
    what: str
    """As `Source.kind`."""
    origin: str
    """As `Source.origin`. Untrusted."""
    text: str
    """Untrusted."""
    kind: Literal["evidence"] = "evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRewound:
    """The turns of this conversation that ended from `first` to `last` are out of view, as if they had not been."""

    first: Seq
    last: Seq
    by: str
    """Who wanted it, for people."""
    again: tuple[Seq, ...] = ()
    """These messages are unread again, and answered anew."""
    kind: Literal["rewound"] = "rewound"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCardPinned:
    """From now on this card tells the model where the conversation is, until another one is pinned."""

    text: str
    reason: str
    least_role: str = ""
    """The lowest role of whoever wrote words in it: the topic. Empty: an earlier version did not tell, so a topic in it
    is anybody's."""
    kind: Literal["carded"] = "carded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostQueued:
    """A post is to be delivered."""

    post: Post
    kind: Literal["post"] = "post"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSendStarted:
    """A part is handed to its platform in this moment."""

    post: PostKey
    part: int
    """Counted from 0."""
    bodies: tuple[str, ...] | None
    """All rendered parts, with the first of a post that goes; None afterwards: the cut stays as it was."""
    kind: Literal["sending"] = "sending"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSendEnded:
    """How one attempt at one part ended."""

    post: PostKey
    part: int
    state: Literal["sent", "uncertain", "failed", "waiting"]
    """`waiting`: not sent by this attempt; it will be tried again."""
    reason: str
    ids: tuple[MessageId, ...] = ()
    maybe_seen: bool = False
    """With `waiting`: an attempt before, or this one, may have shown it all the same. It is tried again
    only where the platform drops repeats (`Capabilities.resend_s`)."""
    kind: Literal["part"] = "part"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewShown:
    """A message shows an answer while it grows. It must be taken away again."""

    at: Address
    message: MessageId
    kind: Literal["previewed"] = "previewed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewEnded:
    """That message is gone, or cannot be taken away."""

    at: Address
    message: MessageId
    reason: str
    """Why it cannot; empty: it is gone."""
    kind: Literal["preview_ended"] = "preview_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMoved:
    """How far a platform's own event queue has been taken in."""

    channel: ChannelName
    value: str
    kind: Literal["cursor"] = "cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadDismissed:
    """In its inner conversation the agent decided that nothing is to be done about what was unread here."""

    turn: TurnId
    """Empty: all of it was deleted before anybody looked."""
    upto: Seq
    """Everything unread here up to this is dealt with."""
    kind: Literal["handled"] = "handled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderSet:
    """A reminder was set. Each time that it comes is an `Alarm`, whose `next` says when the next one is due."""

    reminder: str
    """Its id."""
    agent: str
    at: Address | None
    """Where it is told; None: to the agent itself."""
    text: str
    by: SenderId
    """Who asked for it; empty: the agent itself."""
    asked_by: str
    """Their display name. Untrusted."""
    schedule: str
    """As `gateway.context.schedule` writes it."""
    due: Time
    """When it comes first."""
    turn: TurnId | None = None
    """Which set it. None: no turn did, or an earlier version."""
    role: str = ""
    """The least role of those whose idea it may be: what comes of it has their rights at most. Empty: nobody's but the
    agent's own; with `by`, an earlier version did not tell."""
    kind: Literal["reminded"] = "reminded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderEnded:
    """A reminder does not come any more, though it would have."""

    reminder: str
    reason: str
    kind: Literal["reminder_ended"] = "reminder_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteWritten:
    """The agent wrote something down."""

    agent: str
    scope: str
    """Who may be told of it: see `gateway.core.scopes`."""
    title: str
    """One line; may be empty."""
    text: str
    lasting: bool
    """True: to be remembered for good; False: a journal entry."""
    turn: TurnId | None = None
    role: str = ""
    """The lowest role of everybody whose words the request of its turn held. Empty: an earlier version did not tell,
    so it counts as a guest's."""
    foreign: bool = True
    """That request held text from outside, too. An earlier version did not tell."""
    kind: Literal["noted"] = "noted"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConsolidated:
    """The agent's memory file was written anew."""

    agent: str
    before: str
    after: str
    """All of the file, before and after."""
    upto: Seq
    """What was written down until here is in it."""
    reason: str
    notes: tuple[Seq, ...] = ()
    """The notes that an owner let into it by this, word for word."""
    kind: Literal["dreamed"] = "dreamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DmnDirective:
    """Somebody told an agent's Default Mode Network what to do."""

    agent: str
    what: str
    by: str
    """Who, for people."""
    until: Time | None = None
    kind: Literal["directed"] = "directed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DmnStateSaved:
    """The state of an agent's Default Mode Network, as its own JSON."""

    state: str
    agent: str = ""
    """Empty: the first one's (there was one for all)."""
    signals: str = ""
    """What it was told since the save before, and by which policy: as `agent.dmn_trace` writes it. Empty: nothing that
    changed anything, or this was written ahead of what it is told."""
    kind: Literal["dmn"] = "dmn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    """A tool waits for an admin's word."""

    approval: str
    """Its id, as people write it."""
    agent: str
    tool: str
    arguments: str
    """As people were shown them: whole, on one line. Earlier versions left out the middle of long ones."""
    turn: TurnId
    asked_by: tuple[SenderId, ...]
    """Who asked for it; empty: the agent itself."""
    room: ConversationId
    """Where the approval is asked for; the entry stands in the conversation of the turn."""
    until: Time
    """Then the answer is no."""
    kind: Literal["approval_asked"] = "approval_asked"


ApprovalVerdict = Literal["once", "session", "always", "denied", "expired", "dropped"]
"""Approved for this call, for the conversation until it begins afresh or the gateway ends, for good; not approved;
nobody said anything in time; the turn ended before anybody did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalEnded:
    """What became of it."""

    approval: str
    agent: str
    tool: str
    verdict: ApprovalVerdict
    by: str
    """Who decided, for people. Empty: nobody."""
    least: str = ""
    """The least role of those whose words were behind the call. Empty: not told; then nobody's below an owner's."""
    foreign: bool = False
    """Text from outside was behind it, too."""
    arguments: str = ""
    """SHA-256 of the call's arguments, in lower-case hex. Empty: not told."""
    kind: Literal["approval_ended"] = "approval_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRevoked:
    """What was approved for good is not any more, in the entry's conversation."""

    agent: str
    tool: str
    by: str
    kind: Literal["approval_revoked"] = "approval_revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolApproved:
    """Models may be told of a tool of an MCP server as it is described here, and in no other way."""

    server: str
    tool: str
    """By the name that models are told."""
    definition: str
    """Its description and the schema of its arguments: untrusted."""
    by: str
    """Who approved it. Empty: it was in the first list of a server that the operator configured."""
    kind: Literal["mcp_tool_approved"] = "mcp_tool_approved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRefused:
    """The agent wanted to use a tool that it may not use there, or not for whoever asked."""

    turn: TurnId
    agent: str
    tool: str
    role: str
    """Whose rights counted."""
    rule: str
    """Which rule decided, for people."""
    kind: Literal["tool_refused"] = "tool_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    """A tool begins that may change something outside. What came of it stands in its turn's record, if that ends."""

    turn: TurnId
    agent: str
    tool: str
    arguments: str
    """Hex digest of what it was asked for, as `agent.turn_context.call_key` writes it."""
    kind: Literal["tool_begun"] = "tool_begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    """The agent wrote a file while its request held the words of owners and admins only.

    So a file of these bytes is no text from outside, whatever it is called. There is one for each digest.
    """

    turn: TurnId
    agent: str
    sha256: str
    """Of all bytes of the file, in lower-case hex."""
    kind: Literal["file_written"] = "file_written"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformAction:
    """What the agent did on a platform besides posting."""

    turn: TurnId
    agent: str
    what: Literal["react", "unreact", "edit", "delete", "topic", "file"]
    """`file`: one is posted, by the `PostQueued` that this caused; it is done with that."""
    at: Address
    message: MessageId | None
    """What it was done to; None: to the room."""
    text: str
    """The reaction, the new text or topic, the file's name."""
    state: Literal["begun", "done", "failed"]
    """A fact of its own each: what has begun and not ended may have been done."""
    reason: str = ""
    kind: Literal["acted"] = "acted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteForgotten:
    """The agent was to forget something that it wrote down."""

    agent: str
    note: Seq
    """Of the `NoteWritten`."""
    by: str
    """Who wanted it, for people."""
    turn: TurnId | None = None
    kind: Literal["forgotten"] = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeIssued:
    """Somebody was shown a one-time code, which proves who they are to whoever they hand it to."""

    request: str
    """Its name: not the code."""
    what: Literal["pair", "room", "link", "confirm"]
    """To be heard in direct chats; to have `room` approved; to show a second account; to show that the first one wants
    that, too."""
    person: str
    """Who was shown it, as `gateway.core.identity.person_key` writes them."""
    name: str
    """Of that person, for display. Untrusted."""
    at: Address
    """Where it was shown."""
    room: Address | None = None
    """Of `room`."""
    about: str = ""
    """What the room calls itself. Untrusted."""
    other: str = ""
    """Of `confirm`: the other person."""
    salt: str
    digest: str
    """SHA-256 of salt and code, in lower-case hex."""
    until: Time
    kind: Literal["code_given"] = "code_given"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeEnded:
    """A code is good for nothing any more."""

    request: str
    state: Literal["used", "revoked", "expired"]
    by: str
    kind: Literal["code_over"] = "code_over"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAssigned:
    """Somebody has this role from now on, in this scope."""

    person: str
    """As `gateway.core.identity.person_key` writes them; of a mask perhaps a pattern."""
    role: Literal["owner", "admin", "member", "guest", "blocked", ""]
    """Empty: it is taken back."""
    scope: str = ""
    """As `gateway.core.identity.RoleGrant.scope`."""
    name: str = ""
    """Of that person, for display. Untrusted."""
    by: str
    """Who gave it, as `person`; `operator`: whoever runs the command line."""
    why: Literal["pairing", "role", "block", "seed"]
    kind: Literal["role_given"] = "role_given"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomAccessChanged:
    """The agent may act in this room, or in all rooms of this space, from now on; or no more."""

    room: Address
    open: bool
    by: str
    about: str = ""
    """What it calls itself. Untrusted."""
    kind: Literal["room_opened"] = "room_opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class AudienceReported:
    """The platform says who can read what is said in a place, from what caused this entry on."""

    at: Address
    scope: str
    """Those who can: as `gateway.core.scopes` writes it."""
    kind: Literal["audience"] = "audience"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityLinked:
    """Two accounts are one person from now on; or no more."""

    one: str
    other: str
    """Both as `gateway.core.identity.person_key` writes them; in alphabetical order."""
    joined: bool
    by: str
    kind: Literal["identity_linked"] = "identity_linked"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionThresholdSet:
    """Notifications of this type are cut off below this urgency from now on."""

    type: str
    value: int | None
    """None: as the configuration says."""
    by: str
    kind: Literal["threshold_set"] = "threshold_set"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRuleSet:
    """A rule of attention that was made while the gateway ran. These stand in front of the configuration's."""

    rule: str
    """Its name."""
    type: str
    urgency: Literal[0, 1, 2, 3]
    keyword: str = ""
    """Empty: whatever the text is."""
    gone: bool = False
    by: str
    kind: Literal["rule_set"] = "rule_set"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSelected:
    """An agent thinks with this model from now on."""

    agent: str
    model: str
    """A key of `llm.models`. Empty: as the configuration says."""
    by: str
    kind: Literal["model_chosen"] = "model_chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached:
    """Somebody asked for more than they may, and is told so once."""

    limit: Literal["rate", "cost"]
    whose: Literal["sender", "room", "agent"]
    subject: str
    """The person, the conversation or the agent."""
    rule: str
    kind: Literal["limited"] = "limited"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """An act of administration, allowed or refused."""

    what: str
    """The command, or what the operator did."""
    by: str
    """Who, as `gateway.core.identity.person_key` writes them; `operator`: whoever runs the command line."""
    name: str
    """Of them, for display. Untrusted."""
    evidence: str
    """Why that is who it was: what the platform vouches for, and what it does not."""
    role: str
    rule: str
    """Why they have that role."""
    at: Address | None
    """Where. None: on the command line."""
    args: str
    """Without secrets."""
    ok: bool
    """False: it was refused or did not work."""
    result: str
    """What was answered, in a line; without secrets."""
    kind: Literal["audited"] = "audited"


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
    | ReminderSet
    | ReminderEnded
    | NoteWritten
    | MemoryConsolidated
    | DmnDirective
    | DmnStateSaved
    | ApprovalRequested
    | ApprovalEnded
    | ApprovalRevoked
    | ToolRefused
    | ToolStarted
    | FileWritten
    | PlatformAction
    | NoteForgotten
    | CodeIssued
    | CodeEnded
    | RoleAssigned
    | RoomAccessChanged
    | AudienceReported
    | IdentityLinked
    | AttentionThresholdSet
    | AttentionRuleSet
    | ModelSelected
    | McpToolApproved
    | LimitReached
    | AuditRecord
)

FACT: TypeAdapter[Fact] = TypeAdapter(Annotated[Fact, Field(discriminator="kind")])
"""`dump_json` and `validate_json` are each other's inverse on every `Fact`."""


INNER_CHANNEL: Final = ChannelName("agent")
"""The channel of inner conversations: no platform has that name, and nothing is sent there."""
OPERATOR_CHANNEL: Final = ChannelName("console")
"""The operator's own channel, where there is one (`gateway.stream.operator`)."""


def inner_conversation(agent: str) -> ConversationId:
    """Where an agent is by itself: its autonomous turns, and what is told to nobody else."""
    return Address(channel=INNER_CHANNEL, room=RoomId(agent)).conversation


def is_inner(conversation: ConversationId) -> bool:
    """Whether it is some agent's inner conversation."""
    return conversation.startswith(f"{INNER_CHANNEL}/")


def address_of(event: Notification) -> Address | None:
    """Where it happened; None if it concerns no place."""
    return None if isinstance(event, ConnectionChanged) else event.at


def dedup_key(event: Notification) -> str:
    """The deduplication key of a notification: equal exactly for the same event seen twice."""
    place = address_of(event)
    where = (
        place.conversation if place else event.channel if isinstance(event, ConnectionChanged) else ConversationId("")
    )
    # One line is one entry, however a later version or another moment reads it.
    line = isinstance(event, Message) or (isinstance(event, Command) and event.origin == "text")
    family = "message" if line else event.kind
    return f"{family}:{where}:{event.id}"
