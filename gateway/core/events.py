"""The vocabulary: what happens on a platform, what is said back, and the names of places and people.

Imports nothing of ours. Every type is frozen and keyword-only. Times are aware and in UTC. Ids are
opaque: only the channel that made one looks inside. Text is Markdown, free of platform markup and of
lone surrogates (adapters replace them at the edge, because they cannot be written as UTF-8).
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, NewType, Self

from pydantic import AfterValidator, Field, TypeAdapter

PresenceLevel = Literal["focused", "present", "idle", "away", "sleeping"]
"""How near the people are whom the agent serves."""


ChannelName = NewType("ChannelName", str)
"""A platform account of ours, e.g. `irc.libera`. Letters, digits, `.`, `_` and `-` only."""
RoomId = NewType("RoomId", str)
"""A channel, group, guild channel or direct chat."""
ThreadId = NewType("ThreadId", str)
"""A forum topic or thread inside a room. A chain of replies is not a thread."""
SenderId = NewType("SenderId", str)
"""Stable for one person on one platform account. Never a display name or a bare nick."""
MessageId = NewType("MessageId", str)
EventId = NewType("EventId", str)
"""Names one platform event; the same event seen twice has the same id."""
PostKey = NewType("PostKey", str)
"""Names one post of ours for ever: the idempotency key of its delivery."""
ConversationId = NewType("ConversationId", str)
"""`Address` in one line, e.g. `irc.libera/#python`. Made only by `Address.conversation`."""


def _to_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs a time zone")
    return value.astimezone(UTC)


Time = Annotated[datetime, AfterValidator(_to_utc)]
"""Aware; UTC once read back from JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A place where something can be said. One address is one conversation."""

    channel: ChannelName
    room: RoomId
    thread: ThreadId | None = None
    """None: the room itself."""

    def __post_init__(self) -> None:
        if not self.channel or not self.room or self.thread == "":
            raise ValueError("an address has no empty parts")

    @property
    def conversation(self) -> ConversationId:
        """The same for equal addresses, different for different ones; `parse` reverses it."""
        parts = [self.channel, self.room] + ([self.thread] if self.thread is not None else [])
        return ConversationId("/".join(p.replace("%", "%25").replace("/", "%2F") for p in parts))

    @classmethod
    def parse(cls, conversation: str) -> Self:
        """Reverse `conversation`. Raises ValueError for anything that it could not have made."""
        channel, _, rest = conversation.partition("/")
        room, _, thread = rest.partition("/")
        plain = [part.replace("%2F", "/").replace("%25", "%") for part in (channel, room, thread)]
        if all(plain[:2]):
            made = cls(
                channel=ChannelName(plain[0]), room=RoomId(plain[1]), thread=ThreadId(plain[2]) if plain[2] else None
            )
            if made.conversation == conversation:
                return made
        raise ValueError(f"not a conversation: {conversation!r}; expected channel/room or channel/room/thread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who did it."""

    id: SenderId
    name: str
    """For display only; anybody can take it."""
    account: str | None = None
    """The platform's account name where it has one apart from `id` (IRC services)."""
    is_bot: bool = False
    verified: bool = False
    """True only if the platform vouches for `id`. A nick is never verified."""
    ranks: tuple[str, ...] = ()
    """What the platform says of this person in the place where they did it, as far as it tells: `role:<id>` (Discord),
    `creator` or `administrator` (Telegram), `op`, `voice`, ... (IRC). Nothing follows from it unless the operator
    wants that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Something beside the text. The bytes stay on the platform until somebody asks for them."""

    id: str
    form: Literal["image", "audio", "video", "file", "sticker", "location"]
    name: str | None = None
    """As the sender named it. Untrusted: never a path."""
    content_type: str | None = None
    """As the platform says, unchecked. None: not told."""
    size_bytes: int | None = None
    """None: not told."""
    duration_s: float | None = None
    """Of sound and film. None: not told, or neither."""
    recorded: bool = False
    """The platform says that the sender recorded it as a voice message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Somebody said something. `kind` is the platform's own knowledge of whom it was said to."""

    id: MessageId
    at: Address
    sender: Sender
    text: str
    sent: Time
    kind: Literal["direct", "mention", "reply", "room"]
    reply_to: MessageId | None = None
    attachments: tuple[Attachment, ...] = ()
    language: str | None = None
    """BCP 47, where the platform tells."""
    carried: str = ""
    """Of `text`, what the sender did not write but carries: a forwarded message, a quotation, an embed. Empty: it is
    all the sender's own, as far as the platform tells."""
    history: bool = False
    """It was said a while ago, and is only played back: context, never a command and never a reason for a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEdited:
    """A message now reads differently."""

    id: EventId
    at: Address
    sender: Sender
    message: MessageId
    text: str
    sent: Time
    direct: bool = False
    """It happened in a direct chat. The platform's own knowledge, as `Message.kind`."""
    carried: str = ""
    """As `Message.carried`."""
    kind: Literal["edited"] = "edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeleted:
    """A message is gone from the platform (not from our log)."""

    id: EventId
    at: Address
    message: MessageId
    sent: Time
    sender: Sender | None = None
    """Who deleted it; None where the platform does not tell."""
    direct: bool = False
    """As `MessageEdited.direct`."""
    kind: Literal["deleted"] = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionChanged:
    """A reaction was put on a message or taken off."""

    id: EventId
    at: Address
    sender: Sender
    message: MessageId
    reaction: str
    """An emoji, or the platform's name of a custom one."""
    added: bool
    sent: Time
    direct: bool = False
    """As `MessageEdited.direct`."""
    kind: Literal["reacted"] = "reacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChanged:
    """A room's people or its topic changed."""

    id: EventId
    at: Address
    sender: Sender
    change: Literal["join", "part", "kick", "nick", "topic", "title", "invite"]
    """`title`: `at` has another name. `invite`: the sender asks us into `at`."""
    sent: Time
    subject: str | None = None
    """The person kicked, or the new nick. None for the other changes."""
    text: str | None = None
    """The reason, the new topic or the new title. None: not given."""
    news: bool = True
    """False: nobody did it just now, we were told how things stand."""
    kind: Literal["membership"] = "membership"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceNames:
    """How people call a place, as its platform tells. All of it is untrusted text.

    None: the platform did not tell, so what was known before still holds. Empty: there is none.
    """

    room: str | None = None
    """Of a room: its title. On a platform whose room ids are names, that name."""
    person: str | None = None
    """Of a direct chat: the display name of the other person."""
    handle: str | None = None
    """Of a direct chat: the name by which the platform finds that person, e.g. `@ann`."""
    server: str | None = None
    """The guild or the network that the place belongs to."""
    thread: str | None = None
    """Title of the thread, if the address names one."""
    thread_created_as: str | None = None
    """What the thread was called at first: it counts only while no later name is known."""
    topic: str | None = None
    """None also where topics are told by `MembershipChanged`."""
    me: str | None = None
    """What the agent is called there, as people write it to speak to it: a nick, or `@name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRenamed:
    """From inside: a place is called so from now on. All that is known of it, cleaned and bounded."""

    id: EventId
    at: Address
    names: PlaceNames
    sent: Time
    changed: tuple[Literal["room", "server", "thread", "topic", "me"], ...] = ()
    """Which of the names were others before. Empty: nothing was known."""
    kind: Literal["named"] = "named"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """An administrative request: a native slash command, or text with the command prefix."""

    id: EventId
    """For text, the message's id. A `Post` that answers it has it as `reply_to`."""
    at: Address
    sender: Sender
    name: str
    """Lower case, without prefix."""
    args: str
    """All that follows the name, trimmed."""
    sent: Time
    origin: Literal["native", "text"]
    direct: bool = False
    """It was given in a direct chat. The platform's own knowledge, as `Message.kind`."""
    kind: Literal["command"] = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionChanged:
    """The connection of one of our accounts came up or went down."""

    id: EventId
    channel: ChannelName
    up: bool
    reason: str
    sent: Time
    says: bool = False
    """Not up, but only deaf: what is to be said may be tried all the same."""
    kind: Literal["link"] = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """From inside: a time that somebody asked to be told of has come."""

    id: EventId
    text: str
    """In the words of whoever asked for it: untrusted, unless nobody did."""
    sent: Time
    at: Address | None = None
    """Where it concerns; None: the agent itself."""
    agent: str = ""
    """Whose it is, by its id."""
    reminder: str = ""
    """Which reminder this is one time of; empty: none."""
    asked_by: str = ""
    """Display name of who asked for it. Untrusted. Empty: the agent itself."""
    due: Time | None = None
    """When it was to come; None: at `sent`."""
    missed: int = 0
    """Times before this one that passed while nobody could tell."""
    next: Time | None = None
    """When it comes again; None: never."""
    kind: Literal["alarm"] = "alarm"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished:
    """From inside: work that went on beside the turns has ended."""

    id: EventId
    what: str
    """One word, e.g. `dream`."""
    ok: bool
    text: str
    """What came of it, in one line."""
    sent: Time
    agent: str = ""
    """Whose it was, by its id."""
    at: Address | None = None
    """Where it concerns; None: the agent itself."""
    kind: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """From inside: how a post of ours ended. One per post, the last word on it."""

    id: EventId
    at: Address
    post: PostKey
    state: Literal["sent", "uncertain", "failed"]
    """`uncertain`: at least one part may or may not have been seen, and is not sent again."""
    reason: str
    """Empty if sent."""
    sent: Time
    kind: Literal["delivery"] = "delivery"


Notification = (
    Message
    | MessageEdited
    | MessageDeleted
    | ReactionChanged
    | MembershipChanged
    | PlaceRenamed
    | Command
    | ConnectionChanged
    | Alarm
    | TaskFinished
    | DeliveryReport
)
"""Everything that can be noticed, tagged by `kind` (a `Message` by any of its four kinds)."""

NOTIFICATION: TypeAdapter[Notification] = TypeAdapter(Annotated[Notification, Field(discriminator="kind")])
"""`dump_json` and `validate_json` are each other's inverse on every `Notification`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostFile:
    """A file that goes with a post. Its bytes are kept beside the store until it is delivered."""

    name: str
    """As people are to see it; no path."""
    content_type: str
    sha256: str
    """Of the bytes, in lower-case hex."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Something to say. `text` is Markdown and not blank."""

    key: PostKey
    to: Address
    text: str
    reply_to: MessageId | None = None
    style: Literal["message", "notice"] = "message"
    """`notice`: said by the machine itself (IRC NOTICE, silent elsewhere); bots must not answer it."""
    private: bool = False
    """Only for whoever sent the `Command` that `reply_to` names. Where the platform cannot do that, it is said
    in the open; where it could and no longer can (the request is too old), it is rejected."""
    file: PostFile | None = None
    """Sent along, with `text` as its caption, where the channel can (`Capabilities.file_bytes`)."""
    page: int = 1
    """Which page of the text to show, from 1, on a channel that shows long texts in pages; else without meaning."""

    def __post_init__(self) -> None:
        if not self.text.strip() or self.page < 1:
            raise ValueError("a post needs text, and a page from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The platform took it."""

    ids: tuple[MessageId, ...] = ()
    """As the platform names them; empty where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens billed for one or more model requests. The three inputs do not overlap."""

    input_tokens: int = 0
    """Neither read from nor written to a cache."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """Of these, written to be kept for an hour, which costs more. Where a provider has no such thing: 0."""
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRef:
    """Where something stands whole, of which the model was told a part."""

    handle: str
    """What `fetch_evidence` takes: see `gateway.context.evidence`."""
    kind: str
    """What it is: `text`, `file`, `command`, `page`, `messages`, ..."""
    origin: str
    """Where it is from, on one line: a path and range, a command, a URL, message ids. Untrusted."""
    chars: int
    """Of the whole."""
    sha256: str
    """Of the whole in UTF-8, in lower-case hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolImage:
    """An image that a tool brought. Its bytes are kept beside the store for a while."""

    sha256: str
    """Of the bytes, in lower-case hex."""
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    about: str
    """One line, not blank."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallRecord:
    """A tool that the model called, and what it was told."""

    id: str
    """The model's own name of the call."""
    name: str
    arguments: str
    """JSON text as the model wrote it: untrusted and perhaps malformed."""
    result: str
    error: bool = False
    ended: bool = False
    """It ended the turn, so the model has not read the result."""
    source: EvidenceRef | None = None
    """Of what `result` shows a part of. None: `result` is all of it."""
    origin: str = ""
    """Where the result is from, if its tool tells. Empty: from the call alone."""
    ephemeral: bool = False
    """What it did is kept elsewhere, so the call leaves the view at the next fold."""
    images: tuple[ToolImage, ...] = ()
    """Shown behind the results of the same step."""
    untrusted: bool = False
    """`result` is somebody else's words, and is told behind a fence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStep:
    """One answer of the model in the middle of a turn, and what it was told then."""

    text: str
    """What it said beside its calls: progress, never posted."""
    calls: tuple[ToolCallRecord, ...]
    """In its order; not empty."""
    heard: str = ""
    """What arrived meanwhile and was told behind the results, as `agent.prompt.render_prompt_lines` writes it."""


CacheTtl = Literal["5m", "1h"]
"""How long a provider keeps a cached prefix after its last use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUsage:
    """One block of a request, as the cache was expected to treat it."""

    name: str
    """tools, identity, skills, binding, channel, history or now."""
    tokens: int
    """As counted or estimated before the request."""
    read: int
    """Of these, expected to come from the cache."""
    written: int
    """Expected to be written to it."""
    lifetime: CacheTtl | None
    """Of what is written; None: nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestUsage:
    """One model request: what its cache was expected to do, what was billed, and why they differ."""

    provider: str
    """Which kind of provider: anthropic, openai, llamacpp, ..."""
    model: str
    """As the provider names it."""
    blocks: tuple[BlockUsage, ...]
    """In the order of the request, without empty ones."""
    usage: Usage
    """As billed."""
    cost_usd: float | None
    """Of the usage; None: the price is not known."""
    exact: bool
    """The tokens were counted by the model's own counter; else estimated."""
    missed: str = ""
    """What was expected to be read and was not, and which bytes in which block did it; empty: nothing."""
    cleared: int = 0
    """Tokens of the prompt that the provider left out by itself, as it was asked to. They are not billed."""
