"""What the log holds: every notification, and what the gateway itself decided and did.

A `Fact` is the body of one log entry, tagged by `kind`. Facts are never changed; every table beside
the log is a fold of them (`gateway.store.projections`).
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NewType

from pydantic import Field, TypeAdapter

from gateway.events import (
    Account,
    Address,
    ChannelName,
    Command,
    ConversationId,
    Deleted,
    Delivery,
    Edited,
    Link,
    Membership,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    Reacted,
    SenderId,
    Usage,
)

Seq = NewType("Seq", int)
"""Position in the log: grows, unique, may have gaps. Never 0."""
TurnId = NewType("TurnId", str)

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
    outcome: Literal["replied", "silent", "yielded", "failed"]
    text: str
    """What was said; empty for silent and yielded."""
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
    kind: Literal["turn_ended"] = "turn_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """From now on the view of this conversation begins at the turn that ended at `start`."""

    start: Seq
    reason: str
    kind: Literal["folded"] = "folded"


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
class DmnSaved:
    """The state of the Default Mode Network, as its own JSON."""

    state: str
    kind: Literal["dmn"] = "dmn"


Fact = (
    Notification
    | Judged
    | TurnEnded
    | Folded
    | Carded
    | Queued
    | Sending
    | PartEnded
    | Previewed
    | PreviewEnded
    | CursorMoved
    | DmnSaved
)

FACT: TypeAdapter[Fact] = TypeAdapter(Annotated[Fact, Field(discriminator="kind")])
"""`dump_json` and `validate_json` are each other's inverse on every `Fact`."""


def address_of(event: Notification) -> Address | None:
    """Where it happened; None if it concerns no place."""
    return None if isinstance(event, Link) else event.at


def key_of(event: Notification) -> str:
    """The deduplication key of a notification: equal exactly for the same event seen twice."""
    place = address_of(event)
    where = place.conversation if place else event.channel if isinstance(event, Link) else ConversationId("")
    match event:
        case Message() | Command(origin="text"):
            family = "message"  # one line is one entry, however a later version or another moment reads it
        case Edited() | Deleted() | Reacted() | Membership() | Command() | Link() | Delivery():
            family = event.kind
        case _:
            family = "alarm"
    return f"{family}:{where}:{event.id}"
