"""The contract between a platform adapter and the gateway.

An adapter turns platform events into `Notification`s and `Part`s into platform messages. It decides
nothing about people, attention or answers, keeps nothing on disk, and knows no other adapter.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MessageId,
    Notification,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
)
from gateway.core.fields import ConfigSection


class Emit(Protocol):
    """The only way in."""

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Return once the whole batch is durable, and `cursor` with it (one transaction).

        Only then may the platform be told that the events were received. A batch may be emitted
        again: events already known by id are dropped. May block for long (back-pressure): an adapter
        must stop reading from its platform meanwhile rather than let a queue grow. Raises only what
        the adapter cannot answer; it lets that pass out of `run`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the platform can do, as far as others must know."""

    platform: str
    """For people and for the channel card, e.g. `IRC`."""
    formatting: str
    """One sentence for the model: which Markdown survives."""
    replies: bool = False
    """True: `Part.reply_to` is honoured. False: it is dropped without a trace."""
    resend_window_s: float = 0.0
    """For so long after a part was handed over for the first time, sending it again with the same key
    cannot show it twice (Discord's enforced nonce). 0: never; what is not known stays uncertain."""
    max_file_bytes: int = 0
    """How large a `Part.file` may be. 0: it takes none."""
    defers_commands: bool = False
    """A native command is seen to be waited for until it is answered, so it is not left without a word."""
    max_in_flight: int = 1
    """How many parts of one post may be in flight at once.

    More than 1 only where a part that was surely not sent means that no later one was: else order breaks.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingFile:
    """A file that is sent along."""

    name: str
    """As people are to see it; no path."""
    content_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One platform message: a rendered piece of a post."""

    key: str
    """Idempotency key: the same for every attempt at this part, different for all others."""
    to: Address
    body: str
    """As `Channel.split` made it."""
    reply_to: MessageId | None = None
    style: Literal["message", "notice"] = "message"
    private: bool = False
    """As `Post.private`."""
    file: OutgoingFile | None = None
    """Sent with `body` as its caption, in one platform message; only where `Capabilities.file_bytes` allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandArg:
    """Something to write behind a command's name."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    summary: str
    """One line, at most 100 characters."""
    required: bool = False
    """Those that are not come last."""
    choices: tuple[str, ...] = ()
    """One of these, at most 25. Empty: anything."""
    rest: bool = False
    """All that follows; the last one only. The others are one word each."""
    suggests: bool = False
    """The gateway knows what may stand there (`CanCompleteCommands`)."""
    secret: bool = False
    """Whoever knows it may do something: it is told nobody, and stands in no record for people."""
    form: Literal["", "number", "id", "word", "room", "person", "command", "time"] = ""
    """What it looks like. Empty: like anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcommandSpec:
    """One of the things that a command can do. It stands in front of its arguments."""

    name: str
    summary: str
    args: tuple[CommandArg, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """One row of the command table, as platforms with native commands are told of it."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    summary: str
    """One line, at most 100 characters."""
    args: tuple[CommandArg, ...] = ()
    """Of a command without subs."""
    subs: tuple[SubcommandSpec, ...] = ()
    """The first one is meant where none is named."""
    private: bool = False
    """The answer concerns nobody but who asked."""
    role: Literal["owner", "admin", "member", "guest", "blocked"] = "guest"
    """The lowest that may use it; others need not be shown it."""
    direct_only: bool = False
    """Only in a direct chat."""
    own: bool = False
    """In a direct chat whoever it belongs to may use it, too."""


BeforeSend = Callable[[], Awaitable[None]]
"""Writes down that a part is handed over in this moment."""


async def no_before_send() -> None:
    """`BeforeSend` for callers that keep no record."""


class Channel(Protocol):
    """One account on one platform.

    Adapters are made with `(name, config, clock, *, cursor, commands)`: the last durable cursor (None: there
    is none), and the command table. A cursor is the adapter's own memory; nobody else looks inside.
    """

    @property
    def name(self) -> ChannelName:
        """The account, e.g. `irc.libera`."""

    @property
    def capabilities(self) -> Capabilities:
        """Constant for the life of the object."""

    async def run(self, emit: Emit) -> None:
        """Connect, receive, reconnect with jittered back-off; emit `Link` on every change.

        Ends only by cancellation (says goodbye to the platform within a second, leaves no task
        behind) or by raising `Denied`.
        """

    def split(self, post: Post) -> tuple[str, ...]:
        """Render and cut a post into bodies that each fit one platform message. Pure, no IO.

        At least one body; nothing but white space is lost; no body is blank.
        """

    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        """Return once the platform has certainly taken the part, else raise a `SendError`.

        `going` is awaited once, when nothing is left to wait for but the hand-over itself. What it raises
        comes out, and nothing was sent. Until then a part was surely not sent, whatever happens.
        Parts go out in the order of the calls, also when several are in flight. Waits for the
        platform's pace. After cancellation it is unknown whether the part was sent.
        """


# What only some channels can do. Each is asked for by `isinstance`; a channel that cannot, lacks the methods.


@runtime_checkable
class CanType(Protocol):
    """Shows that an answer is being written."""

    typing_interval_s: float
    """How often it must be shown again while it lasts."""

    async def typing(self, at: Address, *, active: bool) -> None:
        """Show it, or (False) that it has ended. Best effort: returns soon, raises nothing but cancellation."""


@runtime_checkable
class CanPreview(Protocol):
    """Shows an answer while it grows. The final message is another one, sent by `send`."""

    preview_interval_s: float
    """Shortest time between two looks at one answer."""

    async def preview(self, at: Address, text: str, shown: MessageId | None) -> MessageId | None:
        """Show `text` (Markdown, unfinished); `shown` is what the last call for this answer returned.

        None: it left nothing that stays. An id: a message that must be taken away with `unpreview`.
        Best effort: raises `SendError` if it was not shown.
        """

    async def delete_preview(self, at: Address, shown: MessageId) -> None:
        """Take it away; gone already is as good. Raises `SendError`."""


@runtime_checkable
class CanDownload(Protocol):
    """Fetches what an `Attachment` stands for."""

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        """The bytes, at most `limit_bytes`; more is `Rejected`. Raises `SendError`."""


@runtime_checkable
class CanPage(Protocol):
    """Shows long texts in pages."""

    def page_count(self, post: Post) -> int:
        """How many pages `post.text` has there, at least 1. Pure."""


@runtime_checkable
class HasSpaces(Protocol):
    """Has rooms that are part of something larger, which an operator may open as a whole (Discord's guilds)."""

    def space(self, room: RoomId) -> RoomId | None:
        """What the room is part of, by the platform's word; None: nothing, or not known. Known when it emits."""


Audience = Literal["everybody", "space", "room", "thread"]
"""Who can read what is said in a place: anybody; everybody in the space of its room (`HasSpaces`); who is in its room;
who is in its thread."""


@runtime_checkable
class HasAudience(Protocol):
    """Knows who can read what is said in its places."""

    def audience(self, at: Address) -> Audience | None:
        """Who can, as the platform has told by now, and never more people than that; None: it is not known.

        Pure and cheap. What an event itself tells of its place is known when that event is emitted.
        """


@runtime_checkable
class HasPlaceNames(Protocol):
    """Knows how people call its places."""

    def place_names(self, at: Address) -> PlaceNames | None:
        """As the platform has told by now, in its own words; None: nothing is known. Pure, and cheap.

        What an event itself tells of its place is known when that event is emitted.
        """


@runtime_checkable
class HasRooms(Protocol):
    """Knows in which rooms it is."""

    def is_joined(self, room: RoomId) -> bool | None:
        """Whether we are there, as far as the platform has told; None: that is not known now. Pure."""


@runtime_checkable
class HasNick(Protocol):
    """Is spoken to by a name in front of what is said."""

    @property
    def nick(self) -> str:
        """What we are called there now."""


@runtime_checkable
class KnowsRecipients(Protocol):
    """Sends what is for one person only while they are known to be there: else `send` raises `RecipientAway`."""

    async def wait_for_recipient(self, at: Address) -> None:
        """Return once that person may be there again, or once it is not known any more who comes."""


@runtime_checkable
class CanDirectMessage(Protocol):
    """Writes to people who share no room with it."""

    def direct_room(self, sender: Sender) -> RoomId:
        """The direct chat with somebody who has just done something. Pure."""


CommandCompleter = Callable[["CommandCompletion"], Awaitable[Sequence[str]]]
"""What may be meant by what somebody types: the likeliest first, at most 25, each at most 100 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCompletion:
    """A command that somebody is still writing."""

    at: Address
    sender: Sender
    direct: bool
    name: str
    sub: str
    """Empty: it has none."""
    arg: str
    """Of which argument suggestions are wanted."""
    prefix: str
    """What stands there until now."""


@runtime_checkable
class CanCompleteCommands(Protocol):
    """Shows what may stand in a command's arguments."""

    def set_completer(self, suggest: CommandCompleter) -> None:
        """From now on ask this. It may raise, and may take too long: then nothing is suggested."""


@runtime_checkable
class CanSetCommandMenus(Protocol):
    """Shows each person the commands that they may use, in the chat where they may use them."""

    async def set_command_menus(self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]) -> None:
        """These, and nobody else, see more than guests do. Best effort: raises nothing but cancellation."""


@runtime_checkable
class CanLeave(Protocol):
    """Leaves rooms when told to."""

    async def leave(self, at: Address) -> None:
        """Leave; not there is as good. Raises `SendError`: `Rejected` with the platform's reason."""


@runtime_checkable
class CanJoin(Protocol):
    """Enters rooms when told to."""

    async def join(self, at: Address) -> None:
        """Enter; already there is as good. Raises `SendError`: `Rejected` with the platform's reason."""


@runtime_checkable
class CanApplyConfig(Protocol):
    """Takes some changes of its configuration while it is connected."""

    def apply_config(self, config: ConfigSection) -> bool:
        """Go by it from now on, into rooms and out of them. False: it can not, and has to be made anew. At once."""


@runtime_checkable
class CanReact(Protocol):
    """Puts reactions on messages."""

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        """Put our `reaction` (an emoji) on it, or take it off; done already is as good. Raises `SendError`."""


@runtime_checkable
class CanEdit(Protocol):
    """Changes what it sent."""

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        """Let one message of ours read `text` (Markdown); the same text is as good.

        Raises `SendError`: `Rejected` also if it does not fit one message, is gone, or is not ours.
        """


@runtime_checkable
class KnowsJoinRefusals(Protocol):
    """Knows why it is not in a room that it was configured for."""

    def join_refusal(self, room: RoomId) -> str:
        """Why, in one line, untrusted; empty: we are there, or it is not known. Pure and cheap."""


@runtime_checkable
class CountsDropped(Protocol):
    """Lets go of what it hears if nobody takes it for long, because its platform tells nothing twice."""

    @property
    def dropped_count(self) -> int:
        """So many lines so far."""


@runtime_checkable
class CanDelete(Protocol):
    """Takes back what it sent."""

    async def delete(self, at: Address, message: MessageId) -> None:
        """Take one message of ours away; gone already is as good. Raises `SendError`."""


@runtime_checkable
class CanSetTopic(Protocol):
    """Changes what a room is about."""

    async def set_topic(self, at: Address, topic: str) -> None:
        """Set it, one line. Raises `SendError`: `Rejected` with the platform's reason where we may not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMembers:
    """Who is in a room."""

    members: tuple[Sender, ...]
    """Some of them, at most as many as were asked for."""
    total: int | None = None
    """How many there are. None: the platform does not tell."""
    note: str = ""
    """What is to be known of the list in one sentence, e.g. that only administrators are told. Empty: nothing."""


@runtime_checkable
class CanListMembers(Protocol):
    """Tells who is in a room."""

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        """Some of them. Raises `SendError`."""


# SendError
# +-- Denied        stop, tell the operator
# +-- Unreachable   surely not sent; try again when the link is up
# +-- RateLimited   surely not sent; wait
# +-- Away          surely not sent; wait until the person is seen
# +-- Rejected      surely not sent; tell the agent
# +-- Uncertain     not known; record, resend only where repeats are dropped


class SendError(Exception):
    """A part was not (or perhaps not) delivered. The subclass says what to do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Denied(SendError):
    """Credentials or configuration are refused: stop this channel and tell the operator."""


class Unreachable(SendError):
    """Surely not sent, no connection: try again when the link is up."""


class RateLimited(SendError):
    """Surely not sent: wait `retry_after_s` seconds, then try again."""

    def __init__(self, reason: str, *, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RecipientAway(SendError):
    """Surely not sent: it is for one person, who is not known to be there. Try again once seen (`KnowsRecipients`)."""


class Rejected(SendError):
    """Surely not sent, and trying again will not help: tell the agent why."""


class Uncertain(SendError):
    """Nobody knows whether it was sent: record it, and send it again only within `Capabilities.resend_s`."""
