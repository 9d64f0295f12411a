"""Vocabulary of platform events and posts, and of the places and people they name.

Imports nothing of ours but `frozen`. Every type is frozen and keyword-only. Times are aware and in
UTC. Ids are opaque: only the channel that made one interprets it. Text is Markdown, free of
platform markup and of lone surrogates (adapters replace them, because they cannot be written as
UTF-8).
"""

from dataclasses import field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Literal, NewType

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from gateway.core.frozen import frozen

PresenceLevel = Literal["focused", "present", "idle", "away", "sleeping"]
"""How close at hand the people are whom the agent serves: presence by their last activity."""


ChannelName = NewType("ChannelName", str)
"""One platform account of ours, e.g. `irc.libera`. Letters, digits, `.`, `_` and `-` only."""
RoomId = NewType("RoomId", str)
"""A channel, group, guild channel or direct chat."""
ThreadId = NewType("ThreadId", str)
"""A forum topic or thread inside a room. A chain of replies is not a thread."""
SenderId = NewType("SenderId", str)
"""Stable for one person on one platform account. Never a display name or a bare nick."""
MessageId = NewType("MessageId", str)
"""Id of a message; only the adapter that made it looks inside."""
EventId = NewType("EventId", str)
"""Id of one platform event; a repeat of the event has the same id."""
PostKey = NewType("PostKey", str)
"""Permanent id of one of our posts: the idempotency key of its delivery."""
ConversationId = NewType("ConversationId", str)
"""`Address` in one line, e.g. `irc.libera/#python`. Made only by `Address.conversation`."""


def _to_utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a time needs a time zone")
    return value.astimezone(UTC)


Time = Annotated[datetime, AfterValidator(_to_utc)]
"""Aware; UTC once read back from JSON."""


@frozen
class Address:
    """A place that can be posted to. One address is one conversation."""

    channel: ChannelName
    room: RoomId
    thread: ThreadId | None = None
    """None: the room itself."""
    conversation: Annotated[ConversationId, Field(exclude=True)] = field(
        init=False, repr=False, compare=False
    )
    """This address on one line: equal for equal addresses, different for different ones; `parse`
    reverses it."""

    def __post_init__(self) -> None:
        if not self.channel or not self.room or self.thread == "":
            raise ValueError("an address has no empty parts")
        line = _format_conversation(self.channel, self.room, self.thread)
        object.__setattr__(self, "conversation", line)

    @classmethod
    def parse(cls, conversation: str) -> "Address":
        """Reverse `conversation`. Raises ValueError for any text that `conversation` could not have
        returned.
        """
        return _parse_conversation(conversation)


@lru_cache(maxsize=4096)
def _parse_conversation(conversation: str) -> Address:
    channel, _, rest = conversation.partition("/")
    room, _, thread = rest.partition("/")
    plain = [part.replace("%2F", "/").replace("%25", "%") for part in (channel, room, thread)]
    if all(plain[:2]):
        address = Address(
            channel=ChannelName(plain[0]),
            room=RoomId(plain[1]),
            thread=ThreadId(plain[2]) if plain[2] else None,
        )
        if address.conversation == conversation:
            return address
    raise ValueError(
        f"not a conversation: {conversation!r}; expected channel/room or channel/room/thread"
    )


@lru_cache(maxsize=4096)
def _format_conversation(*parts: str | None) -> ConversationId:
    escaped = (part.replace("%", "%25").replace("/", "%2F") for part in parts if part is not None)
    return ConversationId("/".join(escaped))


def room_of(conversation: ConversationId) -> str:
    """Return what names the room of a conversation: the same for all its threads. Never raises."""
    return "/".join(conversation.split("/")[:2])


@frozen
class Sender:
    """The person or bot that caused an event."""

    id: SenderId
    name: str
    """Display name. Anybody can take it."""
    account: str | None = None
    """The platform's account name, where it differs from `id` (IRC services)."""
    is_bot: bool = False
    verified: bool = False
    """True only if the platform vouches for `id`. Never true for a nick."""
    ranks: tuple[str, ...] = ()
    """Ranks of the sender in the place of the event, as far as the platform reports them:
    `role:<id>` (Discord), `creator` or `administrator` (Telegram), `op`, `voice`, ... (IRC). They
    grant nothing unless the operator configures that."""


@frozen
class Attachment:
    """A file or location beside the text. Its bytes stay on the platform until they are fetched."""

    id: str
    form: Literal["image", "audio", "video", "file", "sticker", "location"]
    name: str | None = None
    """File name chosen by the sender. Untrusted: never a path."""
    content_type: str | None = None
    """Content type claimed by the platform, unchecked. None: not given."""
    size_bytes: int | None = None
    """None: not given."""
    duration_s: float | None = None
    """Length of audio or video. None: not given, or neither."""
    recorded: bool = False


@frozen
class QuotedMessage:
    """What a message replies to, as the platform reports it: the log may not have it."""

    sender: Sender
    text: str = ""
    """At most `MAX_QUOTED_CHARS` of its text. Empty if the agent or the replier wrote it, and if it
    has none."""
    attachments: tuple[Attachment, ...] = ()


MAX_QUOTED_CHARS = 3_000
"""Longest text that a `QuotedMessage` keeps, in characters."""


@frozen
class Message:
    """A message in a conversation. `kind` is the platform's own information on whom it was
    addressed to.
    """

    id: MessageId
    at: Address
    sender: Sender
    text: str
    sent: Time
    kind: Literal["direct", "mention", "reply", "room"]
    reply_to: MessageId | None = None
    attachments: tuple[Attachment, ...] = ()
    language: str | None = None
    """BCP 47, where the platform reports it."""
    carried: str = ""
    """The part of `text` that the sender did not write but passed on: a forwarded message, a
    quotation, an embed. Empty: all of it is the sender's own, as far as the platform reports."""
    history: bool = False
    """True for an old message that is only played back, and for a line in which the platform
    reports what `sender` did: context, never a command and never a reason for a turn."""
    quoted: QuotedMessage | None = None
    """The message that it replies to. None: it does not, it is not addressed to the agent, or
    nothing is reported."""
    opens_thread: bool = False
    """True if its answer opens the thread that `at` names. The message itself stands in the
    room."""
    as_guest: bool = False
    """True if it was written before its sender was let in: its text counts as a guest's, whatever
    they are by now."""

    @property
    def shown_attachments(self) -> tuple[Attachment, ...]:
        """Its own attachments, then those of the message that it replies to."""
        return (
            self.attachments
            if self.quoted is None
            else (*self.attachments, *self.quoted.attachments)
        )


EDITED: Final = ".edited"
"""Behind the id of a message that became one to us by an edit."""


@frozen
class MessageEdited:
    """New text of a message."""

    id: EventId
    at: Address
    sender: Sender
    message: MessageId
    text: str
    sent: Time
    direct: bool = False
    """True in a direct chat. The platform's own information, like `Message.kind`."""
    mention: bool = False
    """The new text mentions us. If the message was not to us before, the edit is a new message to
    us, whose id is that of the message with `.edited` behind it."""
    carried: str = ""
    """Like `Message.carried`."""
    kind: Literal["edited"] = "edited"


@frozen
class MessageDeleted:
    """Deletion of a message on the platform (not in our log)."""

    id: EventId
    at: Address
    message: MessageId
    sent: Time
    sender: Sender | None = None
    """The person who deleted it; None where the platform does not report that."""
    direct: bool = False
    """Like `MessageEdited.direct`."""
    kind: Literal["deleted"] = "deleted"


@frozen
class ReactionChanged:
    """A reaction added to a message or removed from it."""

    id: EventId
    at: Address
    sender: Sender
    message: MessageId
    reaction: str
    """An emoji, or the platform's name of a custom one."""
    added: bool
    sent: Time
    direct: bool = False
    """Like `MessageEdited.direct`."""
    kind: Literal["reacted"] = "reacted"


@frozen
class MembershipChanged:
    """A change of a room's members, topic or title."""

    id: EventId
    at: Address
    sender: Sender
    change: Literal["join", "part", "kick", "nick", "topic", "title", "invite"]
    """`title`: the room at `at` has a new name. `invite`: the sender invites us to `at`."""
    sent: Time
    subject: str | None = None
    """The person kicked, or the new nick. None for the other changes."""
    text: str | None = None
    """The reason, the new topic or the new title. None: not given."""
    news: bool = True
    """False: no change just now, but a report of the present state."""
    kind: Literal["membership"] = "membership"


@frozen
class PlaceNames:
    """Names of a place, as its platform reports them. All of it is untrusted text.

    None: the platform did not report it, so the earlier value still holds. Empty: there is none.
    """

    room: str | None = None
    """Title of a room. On a platform whose room ids are names, that name."""
    person: str | None = None
    """Display name of the other person in a direct chat."""
    handle: str | None = None
    """Handle by which the platform finds the other person of a direct chat, e.g. `@ann`."""
    server: str | None = None
    thread: str | None = None
    """Title of the thread, if the address names one."""
    thread_created_as: str | None = None
    """First title of the thread: it counts only while no later one is known."""
    topic: str | None = None
    """Topic of the room. None also where topics are reported by `MembershipChanged`."""
    me: str | None = None
    """The agent's own name there, as people write it to address it: a nick, or `@name`."""


@frozen
class PlaceRenamed:
    """Internal event: the known names of a place have changed. Holds all of them, cleaned and
    bounded.
    """

    id: EventId
    at: Address
    names: PlaceNames
    sent: Time
    changed: tuple[Literal["room", "server", "thread", "topic", "me"], ...] = ()
    """Names that had another value before. Empty: nothing was known."""
    role: str
    """Lowest role among those who may have chosen the names of room, server and person. Empty:
    those with which the operator or an admin let the agent act there."""
    kind: Literal["named"] = "named"


@frozen
class Command:
    """An administrative request: a native slash command, text with the command prefix, or a tap on
    a button.
    """

    id: EventId
    """For text, the id of the message. A `Post` that answers it has this id as `reply_to`."""
    at: Address
    sender: Sender
    name: str
    """Lower case, without prefix."""
    args: str
    """The text behind the name, trimmed."""
    sent: Time
    origin: Literal["native", "text", "button"]
    """`button`: a tap on a button of ours. It proves only who tapped and where: a client may send
    any command with it, and gains nothing by that, because the sender might write the same command
    there."""
    direct: bool = False
    """True in a direct chat. The platform's own information, like `Message.kind`."""
    language: str | None = None
    """Like `Message.language`."""
    kind: Literal["command"] = "command"


@frozen
class ConnectionChanged:
    """The connection of one of our accounts came up or went down."""

    id: EventId
    channel: ChannelName
    up: bool
    reason: str
    sent: Time
    says: bool = False
    """True if the account is not up, but only cannot receive: posts may be tried all the same."""
    at: ClassVar[None] = None
    """It belongs to no place."""
    kind: Literal["link"] = "link"


@frozen
class Alarm:
    """Internal event: the time of a reminder or intention has come, or the line that it waits for;
    or the agent means to look at a room now.
    """

    id: EventId
    text: str
    """Text of the reminder, written by the person who asked for it: untrusted, unless the agent
    itself did. If `attended`, why; empty: not said."""
    sent: Time
    at: Address | None = None
    """The conversation it belongs to; None: the agent itself."""
    agent: str = ""
    """Id of the agent that set it."""
    reminder: str = ""
    """Id of the reminder that this is one occurrence of; empty: none."""
    by: SenderId = SenderId("")
    """Person who asked for it, who bears its costs. Empty: the agent itself."""
    role: str | None = None
    """Lowest role of the people who may have caused it, when it was set. Empty: only the agent
    itself. None: it is not recorded."""
    asked_by: str = ""
    """Display name of the person who asked for it. Untrusted. Empty: the agent itself."""
    due: Time | None = None
    """Scheduled time; None: at `sent`."""
    missed: int = 0
    """Earlier occurrences that passed while the gateway could not report them."""
    next: Time | None = None
    """Next occurrence; None: never."""
    attended: bool = False
    """True: the agent's inner conversation had this room attended
    (`gateway.core.facts.RoomAttended`). False: it is a reminder."""
    intended: bool = False
    """True: the agent means to do it. False: it is to be told."""
    source: str = ""
    """Title of the room with the line that it waited for, which is the cause of its entry. Empty:
    its time has come."""
    readers: tuple[str, ...] = ()
    """`Label.readers` of that line; of an alarm to the agent itself, those of the request that set
    it."""
    kind: Literal["alarm"] = "alarm"


@frozen
class TaskFinished:
    """Internal event: background work has ended."""

    id: EventId
    what: str
    """Name of the work in one word, e.g. `dream`."""
    ok: bool
    text: str
    sent: Time
    agent: str = ""
    """Id of the agent that the work was for."""
    at: Address | None = None
    """The conversation it belongs to; None: the agent itself."""
    integrity: str = "owner"
    """As of a `gateway.core.labels.Label`, of what the work has read. The same for `readers`."""
    readers: tuple[str, ...] = ()
    promised: bool = False
    """True: somebody waits for it, also while the agent sleeps."""
    kind: Literal["finished"] = "finished"


@frozen
class DeliveryReport:
    """Internal event: final result of the delivery of one of our posts. There is one per post."""

    id: EventId
    at: Address
    post: PostKey
    state: Literal["sent", "uncertain", "failed"]
    """`uncertain`: at least one part may or may not have been shown, and is not sent again."""
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
"""Every event that a gateway can receive, tagged by `kind` (a `Message` by any of its four
kinds)."""

NOTIFICATION: TypeAdapter[Notification] = TypeAdapter(
    Annotated[Notification, Field(discriminator="kind")],
    config=ConfigDict(defer_build=True),
)
"""`dump_json` and `validate_json` are each other's inverse on every `Notification`."""


@frozen
class PostFile:
    """A file sent with a post. Its bytes are kept beside the store until it is delivered."""

    name: str
    """File name shown to people; no path."""
    content_type: str
    sha256: str
    """Digest of the bytes, in lower-case hex."""
    size_bytes: int


MAX_BUTTON_COMMAND_BYTES: Final = 64
"""Limit of Telegram (core.telegram.org/bots/api#inlinekeyboardbutton); Discord takes 100
characters."""
MAX_BUTTON_LABEL_CHARS: Final = 80
"""Limit of Discord (https://discord.com/developers/docs/components/reference#button)."""
MAX_BUTTONS: Final = 5
"""Buttons of one post: a row on Discord."""


@frozen
class PostButton:
    """A button under a post: a label, and the command that a tap on it gives."""

    label: str
    command: str
    """Name and arguments of the command without prefix, e.g. `approve 7kq2 session`."""

    def __post_init__(self) -> None:
        if not 0 < len(self.label) <= MAX_BUTTON_LABEL_CHARS:
            raise ValueError(f"a button's label has 1 to {MAX_BUTTON_LABEL_CHARS} characters")
        if not 0 < len(self.command.encode()) <= MAX_BUTTON_COMMAND_BYTES:
            raise ValueError(f"a button's command has 1 to {MAX_BUTTON_COMMAND_BYTES} bytes")


@frozen
class Post:
    """A message to send. `text` is Markdown and not blank."""

    key: PostKey
    to: Address
    text: str
    reply_to: MessageId | None = None
    style: Literal["message", "notice"] = "message"
    """`notice`: sent by the gateway itself (IRC NOTICE, silent elsewhere); bots must not answer it.
    As the answer to a tap: shown for a moment (`notice`), or until it is closed (`message`), where
    the platform can do both."""
    private: bool = False
    """Visible only to the sender of the `Command` that `reply_to` names. On a platform that cannot
    do that, the post is public; on one that could but no longer can (the request is too old), it is
    rejected."""
    file: PostFile | None = None
    """File sent along, with `text` as its caption, where the channel supports it
    (`Capabilities.max_file_bytes`)."""
    page: int = 1
    """Page of the text to show, from 1, on a channel that shows long texts in pages; else without
    effect."""
    buttons: tuple[PostButton, ...] = ()
    """Shown under the text where the channel can (`Capabilities.buttons`); else without effect."""
    replaces: PostKey | None = None
    """Earlier post to the same place whose messages this one replaces where they stand, with their
    buttons. Only on a channel with buttons. None: a new message."""
    previews: tuple[MessageId, ...] = ()
    """Messages of ours that show the growing answer, and become the first ones of this post, in
    their order."""
    notify: tuple[Sender, ...] = ()
    """People whom it answers or reminds. Where mentions are possible they notify nobody else."""
    thread_title: str = ""
    """Title of the thread, if this post opens it (`Message.opens_thread`). Untrusted. Empty: the
    channel finds one."""
    language: str = ""
    """Language of what is added to the text, e.g. where it has pages (`gateway.core.i18n`). Empty:
    English."""

    def __post_init__(self) -> None:
        if not self.text.strip() or self.page < 1 or len(self.buttons) > MAX_BUTTONS:
            raise ValueError(f"a post needs text, a page from 1, and at most {MAX_BUTTONS} buttons")


@frozen
class Receipt:
    """Confirmation that the platform accepted a post."""

    ids: tuple[MessageId, ...] = ()
    """Message ids given by the platform; empty where it gives none."""


@frozen
class Usage:
    """Tokens billed for one or more model requests. The three inputs do not overlap."""

    input_tokens: int = 0
    """Neither read from nor written to a cache."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    """Part of `cache_write_tokens` written for an hour, which costs more. 0 where a provider has no
    such cache."""
    output_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Size of the prompts, however they were billed."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def read_share(self) -> float | None:
        """Share of the prompts that was read from the cache, 0 to 1. None: there were none."""
        whole = self.prompt_tokens
        return self.cache_read_tokens / whole if whole > 0 else None

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cache_write_1h_tokens=self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


@frozen
class EvidenceRef:
    """Reference to the full version of a text of which the model was shown a part."""

    handle: str
    """Argument of `fetch_evidence`: see `gateway.plugins.evidence`."""
    kind: str
    """Kind of text: `text`, `file`, `command`, `page`, `messages`, ..."""
    origin: str
    """Source of the text, on one line: a path and range, a command, a URL, message ids.
    Untrusted."""
    chars: int
    sha256: str
    """Digest of the full text in UTF-8, in lower-case hex."""


@frozen
class ToolImage:
    """An image returned by a tool. Its bytes are kept beside the store for a while."""

    sha256: str
    """Digest of the bytes, in lower-case hex."""
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    about: str
    """Description on one line, not blank."""
    size_bytes: int


@frozen
class ToolCallRecord:
    """A tool call made by the model, and the result that the model was shown."""

    id: str
    """The model's own id of the call."""
    name: str
    arguments: str
    """JSON text as the model wrote it: untrusted and perhaps malformed."""
    result: str
    error: bool = False
    ended: bool = False
    """True if the call ended the turn, so that the model has not read the result."""
    source: EvidenceRef | None = None
    """Full text of which `result` shows a part. None: `result` is complete."""
    origin: str = ""
    """Source of the result, if its tool reports one. Empty: known from the call alone."""
    ephemeral: bool = False
    """True if the effect of the call is kept elsewhere, so that the call leaves the view at the
    next fold."""
    images: tuple[ToolImage, ...] = ()
    """Images shown after the results of the same step."""
    untrusted: bool = False
    """True if `result` is text by other people, which the model is shown inside a fence."""
    extra: str = ""
    """As `ToolCall.extra`."""


@frozen
class TurnStep:
    """One response of the model within a turn, and the results it was shown next."""

    text: str
    """Text beside the calls: progress, never posted."""
    calls: tuple[ToolCallRecord, ...]
    """Calls in the model's order; not empty."""
    heard: str = ""
    """Messages that arrived meanwhile and were shown after the results, as
    `agent.prompt.render_line` writes them."""
    thinking: str = ""
    """Thinking in front of the calls, in the form of the client of its model, which sends it back.
    Empty: not known."""


CacheTtl = Literal["5m", "1h"]
"""How long a provider keeps a cached prefix after its last use."""


@frozen
class BlockUsage:
    """One block of a request, with the expected use of the cache."""

    name: str
    """tools, identity, skills, binding, channel, history or now."""
    tokens: int
    """Size as counted or estimated before the request."""
    read: int
    """Part of `tokens` expected to be read from the cache."""
    written: int
    """Part of `tokens` expected to be written to the cache."""
    lifetime: CacheTtl | None
    """Lifetime of the written part; None: nothing is written."""


@frozen
class RequestUsage:
    """One model request: expected use of the cache, billed usage, and the reason for the
    difference.
    """

    provider: str
    """Kind of provider: anthropic, openai, llamacpp, ..."""
    model: str
    blocks: tuple[BlockUsage, ...]
    usage: Usage
    cost_usd: float | None
    """Cost of the usage; None: the price is not known."""
    exact: bool
    """True if the tokens were counted by the model's own counter; else they were estimated."""
    missed: str = ""
    """Expected cache read that did not happen, and which bytes in which block caused that; empty:
    none."""
