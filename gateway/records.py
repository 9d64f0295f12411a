"""What the log holds: every notification, and what the gateway itself decided and did.

A `Fact` is the body of one log entry, tagged by `kind`. Facts are never changed; every table beside
the log is a fold of them (`gateway.store.projections`).
"""
# size: the log's vocabulary is read as one page, and most of it is what each field means

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NewType

from pydantic import Field, TypeAdapter

from gateway.events import (
    Account,
    Address,
    ChannelName,
    Command,
    ConversationId,
    Link,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    RoomId,
    SenderId,
    Step,
    Time,
    Usage,
)

Seq = NewType("Seq", int)
"""Position in the log: grows, unique, may have gaps. Never 0."""
TurnId = NewType("TurnId", str)

MESSAGES: Final = ("direct", "mention", "reply", "room")
"""The kinds under which a `Message` stands in the log."""

AMBIENT: Final = 0
LOW: Final = 1
NORMAL: Final = 2
URGENT: Final = 3
"""Urgencies: context only; told at the next turn; wakes the agent at its next tick; starts a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
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
class Weighed:
    """What a fold was decided by: `agent.folding.decide` says the same of the same."""

    situation: str
    """`agent.folding.Situation`, as canonical JSON. The sizes of the turns follow from the log."""
    written: Time | None = None
    """When the newest journal entry of the place was written, if that was looked up."""
    verdict: str
    """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarised:
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


Cause = Literal["addressed", "noticed", "alarm", "continued", "digest", "dream", "compact"]
"""Why a turn was taken: somebody spoke to the agent; something there was worth a look; a reminder came; it goes on with
what it was doing; it looks at what is pending everywhere; it consolidates what it wrote down; somebody wants
the view folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
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
    """Why it failed, or why the model was not asked, without secrets; empty otherwise."""
    model: str
    """What answered, as its provider names it; empty if nothing did."""
    usage: Usage
    requests: int
    """Model requests that were made."""
    autonomous: bool
    """Nobody asked for it."""
    media: tuple[MediaRef, ...] = ()
    """The images shown with the new lines, in their order: what a later prompt repeats, too."""
    accounts: tuple[Account, ...] = ()
    """Of each model request, what its cache was expected to do and what was billed."""
    agent: str = ""
    """Who took it, by its id. Empty: the version that wrote this did not tell."""
    senders: tuple[SenderId, ...] = ()
    """Who said each of `covers`, in that order ("": nobody): what the turn cost is theirs. Empty: not told."""
    steps: tuple[Step, ...] = ()
    """The tools that were used, answer by answer: what a later prompt repeats, byte for byte, until a fold."""
    cause: Cause = "addressed"
    looked: tuple[tuple[ConversationId, Seq], ...] = ()
    """Of the inner conversation: where it looked, and up to which entry. What was unread there wakes nobody again."""
    within: TurnId | None = None
    """It is what this turn of the inner conversation did here, and asked no model by itself."""
    prompt_tokens: int = 0
    """Of the last request, as the provider billed it. 0: it did not tell."""
    prompt_estimate: int = 0
    """What the same request was thought to have, by the view's own measure."""
    recalled: tuple[str, ...] = ()
    """What was recalled for it, by the names of `gateway.recalling`: that is not told again while this is in view."""
    nudged: bool = False
    """It was asked to write down what matters, because the window is nearly full."""
    view: str = ""
    """Hex digest of the view that its requests repeated, the last ones if it was folded in between
    (`gateway.past.View.digest`). Empty: not told."""
    weighed: Weighed | None = None
    """Why the view was not folded for it, though something could have gone. None: nothing could, or it was folded."""
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
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
    weighed: Weighed | None = None
    """What it was decided by. None: somebody asked for it, or the version that wrote this did not tell."""
    summary: Summarised | None = None
    """The model's summary that `head` holds. None: it holds none that is new."""
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
class Rewound:
    """The turns of this conversation that ended from `first` to `last` are out of view, as if they had not been."""

    first: Seq
    last: Seq
    by: str
    """Who wanted it, for people."""
    again: tuple[Seq, ...] = ()
    """These messages are unread again, and answered anew."""
    kind: Literal["rewound"] = "rewound"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carded:
    """From now on this card tells the model where the conversation is, until another one is pinned."""

    text: str
    reason: str
    kind: Literal["carded"] = "carded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A post is to be delivered."""

    post: Post
    kind: Literal["post"] = "post"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A part is handed to its platform in this moment."""

    post: PostKey
    part: int
    """Counted from 0."""
    bodies: tuple[str, ...] | None
    """All rendered parts, with the first of a post that goes; None afterwards: the cut stays as it was."""
    kind: Literal["sending"] = "sending"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEnded:
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
class Previewed:
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
class Handled:
    """In its inner conversation the agent decided that nothing is to be done about what was unread here."""

    turn: TurnId
    """Empty: all of it was deleted before anybody looked."""
    upto: Seq
    """Everything unread here up to this is dealt with."""
    kind: Literal["handled"] = "handled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reminded:
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
    """As `gateway.schedules` writes it."""
    due: Time
    """When it comes first."""
    turn: TurnId | None = None
    """Which set it. None: no turn did, or an earlier version."""
    kind: Literal["reminded"] = "reminded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderEnded:
    """A reminder does not come any more, though it would have."""

    reminder: str
    reason: str
    kind: Literal["reminder_ended"] = "reminder_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """The agent wrote something down."""

    agent: str
    scope: str
    """Who may be told of it: see `gateway.scopes`."""
    title: str
    """One line; may be empty."""
    text: str
    lasting: bool
    """True: to be remembered for good; False: a journal entry."""
    turn: TurnId | None = None
    kind: Literal["noted"] = "noted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dreamed:
    """The agent's memory file was written anew."""

    agent: str
    before: str
    after: str
    """All of the file, before and after."""
    upto: Seq
    """What was written down until here is in it."""
    reason: str
    kind: Literal["dreamed"] = "dreamed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directed:
    """Somebody told an agent's Default Mode Network what to do."""

    agent: str
    what: str
    by: str
    """Who, for people."""
    until: Time | None = None
    kind: Literal["directed"] = "directed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DmnSaved:
    """The state of an agent's Default Mode Network, as its own JSON."""

    state: str
    agent: str = ""
    """Empty: the first one's (there was one for all)."""
    signals: str = ""
    """What it was told since the save before, and by which policy: as `agent.stretch` writes it. Empty: nothing that
    changed anything, or this was written ahead of what it is told."""
    kind: Literal["dmn"] = "dmn"


Fact = (
    Notification
    | Judged
    | TurnEnded
    | Folded
    | CompactionLocked
    | Evidence
    | Rewound
    | Carded
    | Queued
    | Sending
    | PartEnded
    | Previewed
    | PreviewEnded
    | CursorMoved
    | Handled
    | Reminded
    | ReminderEnded
    | Noted
    | Dreamed
    | Directed
    | DmnSaved
)

FACT: TypeAdapter[Fact] = TypeAdapter(Annotated[Fact, Field(discriminator="kind")])
"""`dump_json` and `validate_json` are each other's inverse on every `Fact`."""


INNER: Final = ChannelName("agent")
"""The channel of inner conversations: no platform has that name, and nothing is sent there."""


def inner(agent: str) -> ConversationId:
    """Where an agent is by itself: its autonomous turns, and what is told to nobody else."""
    return Address(channel=INNER, room=RoomId(agent)).conversation


def is_inner(conversation: ConversationId) -> bool:
    """Whether it is some agent's inner conversation."""
    return conversation.startswith(f"{INNER}/")


def address_of(event: Notification) -> Address | None:
    """Where it happened; None if it concerns no place."""
    return None if isinstance(event, Link) else event.at


def key_of(event: Notification) -> str:
    """The deduplication key of a notification: equal exactly for the same event seen twice."""
    place = address_of(event)
    where = place.conversation if place else event.channel if isinstance(event, Link) else ConversationId("")
    # One line is one entry, however a later version or another moment reads it.
    line = isinstance(event, Message) or (isinstance(event, Command) and event.origin == "text")
    family = "message" if line else event.kind
    return f"{family}:{where}:{event.id}"
