"""Contract between a platform adapter and the gateway.

An adapter turns platform events into `Notification`s and `PostPart`s into platform messages. It
decides nothing about people, attention or answers, stores nothing on disk, and knows no other
adapter.
"""

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import ClassVar, Literal, Self

from pydantic import Field

# Their `isinstance` is thirty times as fast as that of Python 3.11's typing.
from typing_extensions import Protocol, runtime_checkable

from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MessageId,
    Notification,
    PlaceNames,
    Post,
    PostButton,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.fields import ConfigSection
from gateway.core.frozen import frozen


class ChannelConfig(ConfigSection):
    """Settings of a channel, as far as all platforms have them, and what the gateway asks of them.

    Those of a platform inherit it, with `platform: Literal[NAME]`.
    """

    account_keys: ClassVar[tuple[str, ...]] = ()
    """Fields that make the account by which the platform knows the bot: two channels of one account
    disturb each other. Problems are told of the first one. Empty: there is no account."""
    adapter_modules: ClassVar[tuple[str, ...]] = ()
    """Dotted names of modules that take long to import: they are imported in a thread before the
    adapter is made."""
    reads_history: ClassVar[bool] = False
    """True: the cursor is a position in a history, which is read from there. False: the platform
    delivers what was not acknowledged."""
    sender_ids: ClassVar[str] = ".+"
    """Regular expression of the ids of people, as a whole: whoever writes something else is
    corrected."""
    sender_id_example: ClassVar[str] = ""
    """Id of a person, for that correction."""
    unrunnable: ClassVar[str] = ""
    """Why `reverie run` has no such channel, and what to do. Empty: it has."""

    platform: str
    """Name of the platform."""
    rooms: tuple[str, ...] = Field(default=(), strict=False)
    """Rooms where the bot may act; `*` means any."""

    def account(self) -> tuple[Hashable, ...]:
        """Return the values of `account_keys` with the platform. Empty: there is no account."""
        values = tuple(getattr(self, key) for key in self.account_keys)
        return values and (self.platform, *values)

    def explain_unconnectable(self) -> str:
        """Return why these settings cannot connect, as far as this machine can tell. Empty: no
        reason known. May read files.
        """
        return ""

    def find_warnings(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the path of a key, from the channel on, and why its value is unwise."""
        yield from ()

    def explain_unsafe_room(self, room: str) -> str:
        """Return why words for owners should not be sent to this room. Empty: they may be."""
        del room
        return ""

    def listens(self) -> Iterator[tuple[str, str]]:
        """Yield the key, from the channel on, and the host of each address that it listens on."""
        yield from ()


class Emit(Protocol):
    """The only way for an adapter to hand events to the gateway."""

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Return once the whole batch and `cursor` are durable (one transaction).

        Only then may the platform get an acknowledgement. A batch may be emitted again: events
        whose id is already known are dropped. May block for long (back-pressure): meanwhile the
        adapter must stop reading from its platform instead of letting a queue grow. Raises only
        errors that the adapter cannot handle; the adapter lets them pass out of `run`.
        """


@frozen
class Capabilities:
    """Properties of a platform that the rest of the gateway needs."""

    platform: str
    """Display name, also on the channel card, e.g. `IRC`."""
    formatting: str
    """One sentence for the model: which Markdown survives."""
    replies: bool = False
    """True: `PostPart.reply_to` is honoured. False: it is dropped silently."""
    threads: bool = False
    """True: an answer may open a thread (`Message.opens_thread`)."""
    resend_window_s: float = 0.0
    """Seconds after the first hand-over of a part during which sending it again with the same key
    cannot show it twice (Discord's enforced nonce). 0: never; an uncertain part stays uncertain."""
    max_file_bytes: int = 0
    """Largest `PostPart.file` in bytes. 0: files are not accepted."""
    buttons: bool = False
    """True: `PostPart.buttons` are shown, and a tap is emitted as a `Command` with the origin
    `button`, which waits for a post that replies to it. `PostPart.replaces` is honoured, too."""
    defers_commands: bool = False
    """The platform shows a native command as pending until it is answered, so each one must get an
    answer."""
    native_commands: bool = False
    """People give commands by the platform's own means, which begin with a slash."""
    login_command: str = ""
    """What people write to log in to an account on the platform. Empty: not known, or not
    needed."""
    sender_ids: str = ".+"
    """Regular expression of the ids of people, as a whole: an admin who writes something else is
    corrected."""
    sender_id_example: str = ""
    """Id of a person, for that correction."""
    room_title: str = ""
    """A room whose name is not known, e.g. `a Discord channel`. Empty: a room on `platform`."""
    max_in_flight: int = 1
    """Number of parts of one post that may be in flight at once.

    More than 1 only where a part that was surely not sent implies that no later one was sent:
    otherwise order breaks.
    """


@frozen
class OutgoingFile:
    """File attached to a part."""

    name: str
    """Name shown to people; no path."""
    content_type: str
    data: bytes = field(repr=False)


@frozen
class PostPart:
    """One platform message: a rendered piece of a post."""

    key: str
    """Idempotency key: the same for every attempt at this part, unique otherwise."""
    to: Address
    body: str
    """One item of the result of `Channel.split`."""
    reply_to: MessageId | None = None
    style: Literal["message", "notice"] = "message"
    private: bool = False
    """See `Post.private`."""
    file: OutgoingFile | None = None
    """Sent with `body` as its caption, in one platform message; only within
    `Capabilities.max_file_bytes`."""
    buttons: tuple[PostButton, ...] = ()
    """See `Post.buttons`. Those of a part that answers a tap are not shown."""
    replaces: MessageId | None = None
    """Message of ours that gets this text and these buttons in place of its own; the same ones are
    no error. `reply_to`, `style` and `file` do not count then."""
    finishes: MessageId | None = None
    """Preview of ours that gets this text and these buttons, which may be repeated; `reply_to` does
    not count then. If it is not there, the part is sent like any other."""
    notify: tuple[Sender, ...] = ()
    """See `Post.notify`."""
    thread_title: str = ""
    """See `Post.thread_title`."""
    maybe_sent_after: str | None = None
    """Not None: an earlier attempt may have shown it, after this position of the channel
    (`FindsSent`; empty: not known). `send` looks for it first, and returns its receipt if it is
    there."""


@frozen
class CommandArg:
    """Argument of a command."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    summary: str
    """One line, at most 100 characters."""
    required: bool = False
    """Optional arguments come last."""
    choices: tuple[str, ...] = ()
    """Allowed values, at most 25. Empty: any value."""
    rest: bool = False
    """The argument takes the rest of the line; only the last one may. All others are one word
    each."""
    suggests: bool = False
    """The gateway can suggest values (`CanCompleteCommands`)."""
    secret: bool = False
    """The value grants access: it is never shown to others and appears in no record for people."""
    number: bool = False
    """The value is a whole number."""


@frozen
class SubcommandSpec:
    """Subcommand, written between the command's name and the arguments."""

    name: str
    summary: str
    args: tuple[CommandArg, ...] = ()
    private: bool = False
    """As `CommandSpec.private`."""


@frozen
class CommandSpec:
    """One row of the command table, as given to platforms with native commands."""

    name: str
    """1 to 32 of `a-z`, `0-9` and `_`."""
    summary: str
    """One line, at most 100 characters."""
    args: tuple[CommandArg, ...] = ()
    """Arguments of a command without subcommands."""
    subs: tuple[SubcommandSpec, ...] = ()
    """Subcommands; the first one is the default."""
    private: bool = False
    """The answer is for the sender alone. Of a command with subcommands, each has its own."""
    role: Literal["owner", "admin", "member", "guest", "blocked"] = "guest"
    """Lowest role that may use it; it need not be shown to lower ones."""
    direct_only: bool = False
    """Usable only in a direct chat."""
    own: bool = False
    """In a direct chat the person that the object belongs to may use it, too."""
    aliases: tuple[str, ...] = ()
    """Other names, which menus do not show."""


BeforeSend = Callable[[], Awaitable[None]]
"""Callback that records the hand-over of a part, immediately before it happens."""


async def no_before_send() -> None:
    """`BeforeSend` for callers that keep no record."""


class Channel(Protocol):
    """One account on one platform.

    Adapters are built by `gateway.plugin.PlatformFactory.make`, with the last durable cursor (None:
    there is none). A cursor belongs to the adapter; no other code looks inside.
    """

    @property
    def name(self) -> ChannelName:
        """Name of the account, e.g. `irc.libera`."""

    @property
    def capabilities(self) -> Capabilities:
        """Constant for the lifetime of the object."""

    async def run(self, emit: Emit) -> None:
        """Connect, receive, reconnect with jittered back-off; emit `ConnectionChanged` on every
        change.

        Ends only by cancellation (says goodbye to the platform within a second, while `emit` may
        take another for what was received; leaves no task behind) or by raising `Denied`.
        """

    def split(self, post: Post) -> tuple[str, ...]:
        """Render and cut a post into bodies that each fit one platform message. Pure, no IO.

        At least one body; nothing but white space is lost; no body is blank.
        """

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        """Return once the platform has certainly accepted the part, else raise a `SendError`.

        `before_send` is awaited once, when only the hand-over itself is left. If it raises, its
        error comes out and nothing was sent. Until then a part was surely not sent, whatever
        happens. Parts for one place go out in the order of the calls, also when several are in
        flight. Waits for the platform's rate limit. After cancellation it is unknown whether the
        part was sent.
        """


# Optional abilities, tested with `isinstance`; a channel without an ability lacks the methods.


@runtime_checkable
class CanType(Protocol):
    """Channel that can show a typing indicator."""

    typing_interval_s: float
    """Seconds after which the indicator must be renewed."""

    async def typing(self, at: Address, *, active: bool) -> None:
        """Show the typing indicator, or (False) end it. Best effort: returns soon, raises only
        cancellation.
        """


_PROVISIONAL = "?"


def provisional_id(hint: str) -> MessageId:
    """Return the id of a message that is about to be sent. `hint`: what its channel finds it by."""
    return MessageId(_PROVISIONAL + hint)


def is_provisional(message: MessageId) -> bool:
    """Return whether the id is one of `provisional_id`."""
    return message.startswith(_PROVISIONAL)


def provisional_hint(message: MessageId) -> str:
    """Reverse `provisional_id`."""
    return message.removeprefix(_PROVISIONAL)


Announce = Callable[[MessageId], Awaitable[None]]
"""Callback that records a provisional id: it stands for the message until its own is known, also in
a later process."""


async def no_announcement(_: MessageId) -> None:
    """`Announce` for callers that keep no record."""


@runtime_checkable
class CanPreview(Protocol):
    """Channel that shows an answer while it is generated: `send` honours `PostPart.finishes`."""

    preview_interval_s: float
    """Shortest time in seconds between two previews of one answer."""

    async def preview(
        self,
        at: Address,
        body: str,
        preview_id: MessageId | None,
        *,
        is_full: bool = False,
        reply_to: MessageId | None = None,
        announce: Announce = no_announcement,
    ) -> MessageId | None:
        """Show one message of the unfinished answer, as `split` cuts it. `preview_id`: the earlier
        result for it.

        `is_full`: the answer goes on in the next message, so this one stays visible. Without it,
        None may be returned: nothing remains visible. An id: a message that becomes the part
        (`PostPart.finishes`), or must be deleted with `delete_preview`. `reply_to`: what the
        message replies to. `announce` is awaited immediately before such a message is sent. Best
        effort: raises `SendError` if it was not shown, `Uncertain` if it may have been.
        """

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        """Delete a preview; one that is already gone is no error. Raises `SendError`: `Rejected`,
        if it must stay.

        A provisional id: looks for the message. `FindsSent.learn` comes before.
        """


@runtime_checkable
class CanDownload(Protocol):
    """Channel that fetches the content of an `Attachment`."""

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        """Return the content, at most `limit_bytes`; more raises `Rejected`. Raises `SendError`."""


@runtime_checkable
class CanPage(Protocol):
    """Channel that shows long texts in pages."""

    def page_count(self, post: Post) -> int:
        """Return the number of pages of `post.text`, at least 1. Pure."""


@runtime_checkable
class HasSpaces(Protocol):
    """Channel whose rooms belong to larger units that an operator may open as a whole (Discord's
    guilds).
    """

    def space(self, room: RoomId) -> RoomId | None:
        """Return the unit that the platform assigns the room to; None: none, or not known.

        Known once the room's events are emitted.
        """


MEMBERSHIP_TIMEOUT_S = 5.0
"""Longest wait for a platform that is asked about a member, in seconds."""
Audience = Literal["everybody", "space", "room", "thread"]
"""People who can read a place: everybody; all members of the room's space (`HasSpaces`); members of
the room; members of the thread."""


@runtime_checkable
class HasAudience(Protocol):
    """Channel that knows who can read its places."""

    def audience(self, at: Address) -> Audience | None:
        """Return the audience as last reported by the platform, never a smaller one than the true
        one; None: not known.

        Pure and cheap. An event's own data about its place is known when that event is emitted.
        """


Membership = Literal["reads_all", "reads_new"]
"""A member of a place can read all that was said there, or what is said from their joining on."""


@runtime_checkable
class KnowsMembers(Protocol):
    """Channel that knows who is a member of its places."""

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        """Return what the person with this verified id (`Sender.verified`) can read there now, as
        the platform says.

        None: nothing, or it is not known for sure; so also while the link is down. `at`: a room, a
        thread, or with the id of a space as its room (`HasSpaces`) what all members of the space
        can read. May ask the platform, and block for `MEMBERSHIP_TIMEOUT_S`. Raises only
        cancellation.
        """


@runtime_checkable
class KnowsLogins(Protocol):
    """Channel whose people are known by a login that may end, or pass to another name, while they
    are connected.
    """

    async def is_logged_in(self, person: Sender) -> bool:
        """Return whether the person with this verified id is logged in still, as the platform says
        now.

        True while the link is down: then nothing can have been learned. May ask the platform, and
        block for `MEMBERSHIP_TIMEOUT_S`; without an answer it is False. Raises only cancellation.
        """


@runtime_checkable
class HasPlaceNames(Protocol):
    """Channel that knows the display names of its places."""

    def place_names(self, at: Address) -> PlaceNames | None:
        """Return the names as last reported by the platform; None: not known. Pure and cheap.

        An event's own data about its place is known when that event is emitted.
        """


@runtime_checkable
class HasRooms(Protocol):
    """Channel that knows which rooms it is in."""

    def is_joined(self, room: RoomId) -> bool | None:
        """Return whether the bot is in the room, as last reported by the platform; None: not known
        now. Pure.
        """


@runtime_checkable
class ListsRooms(Protocol):
    """Channel that knows rooms before anybody has written there."""

    def rooms(self) -> Sequence[RoomId]:
        """Return the rooms that it can post in, as last reported by the platform. Pure."""


@runtime_checkable
class HasNick(Protocol):
    """Channel where people address the bot by a name at the start of a message."""

    def nicks(self, at: Address) -> Collection[str]:
        """Return the names by which people there address the bot, the current one first. Pure."""


@runtime_checkable
class KnowsRecipients(Protocol):
    """Channel that sends private text only while the recipient is known to be present.

    Otherwise `send` raises `RecipientAway`.
    """

    async def wait_for_recipient(self, at: Address) -> None:
        """Return once that person may be present again, or once presence is no longer tracked."""


@runtime_checkable
class SendsAtOnce(Protocol):
    """Channel that can tell whether a part would be on the wire before anything else happens."""

    def sends_at_once(self, at: Address) -> bool:
        """Return whether `send` would hand a part over at once: nothing is in front of it, and no
        limit makes it wait. Pure and cheap.
        """


@runtime_checkable
class KnowsPostingRights(Protocol):
    """Channel that hears of changes of what it may do in a place. Its `send` raises
    `MayNotPost`.
    """

    async def wait_for_rights(self, at: Address) -> None:
        """Return once the platform reports a change by which the bot may be able to post there
        again.
        """


@runtime_checkable
class CanOpenDirect(Protocol):
    """Channel that can write in private to somebody who has written in a room."""

    async def open_direct(self, person: Sender) -> RoomId:
        """Return the direct chat with them; posting there may be refused all the same. Raises
        `SendError`.
        """


@runtime_checkable
class CanDirectMessage(Protocol):
    """Channel that can write to people who share no room with the bot."""

    def direct_room(self, sender: Sender) -> RoomId | None:
        """Return the direct chat with the sender of an event. None: nothing can be said to them
        alone. Pure.
        """


@runtime_checkable
class FindsSent(Protocol):
    """Channel that can find out whether a message of its own is there. Its `send` honours
    `PostPart.maybe_sent_after`.

    Its `Uncertain` is final, and its `Unsettled` is not.
    """

    def position(self, at: Address) -> str:
        """Return the position behind which the next message there will be; empty: not known. Pure
        and cheap.
        """

    def learn(self, at: Address, message: MessageId | None, sent: datetime, *, own: bool) -> None:
        """Take in a message that is in the log. Called in its order, before anything is handed over
        to this object.

        `message`: None, for one of ours that may be there under an id that nobody knows.
        """


CommandCompleter = Callable[["CommandCompletion"], Awaitable[Sequence[str]]]
"""Suggestions for an argument that is being typed: the likeliest first, at most 25, each at most
100 characters."""


@frozen
class CommandCompletion:
    """Command that somebody is still typing."""

    at: Address
    sender: Sender
    direct: bool
    name: str
    sub: str
    """Subcommand; empty: none."""
    arg: str
    """Name of the argument that suggestions are wanted for."""
    prefix: str
    """Text of the argument so far."""
    given: Mapping[str, str] = field(default_factory=dict)
    """The other arguments so far, by name."""


@runtime_checkable
class CanCompleteCommands(Protocol):
    """Channel that suggests values for command arguments."""

    def set_completer(self, suggest: CommandCompleter) -> None:
        """Use this completer from now on. It may raise, and may be slow: then nothing is
        suggested.
        """


@runtime_checkable
class CanSetCommandMenus(Protocol):
    """Channel that shows each person the commands that they may use, in the chat where they may use
    them.
    """

    async def set_command_menus(
        self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]
    ) -> None:
        """Show these people, and nobody else, more commands than guests see. Best effort: raises
        only cancellation.
        """


@runtime_checkable
class CanLeave(Protocol):
    """Channel that can leave rooms."""

    async def leave(self, at: Address) -> None:
        """Leave; not being there is no error. Raises `SendError`: `Rejected` with the platform's
        reason.
        """


@runtime_checkable
class CanJoin(Protocol):
    """Channel that can join rooms."""

    async def join(self, at: Address) -> None:
        """Join; being there already is no error. Raises `SendError`: `Rejected` with the platform's
        reason.
        """


@runtime_checkable
class CanApplyConfig(Protocol):
    """Channel that can apply some configuration changes while it is connected."""

    def apply_config(self, config: ChannelConfig) -> bool:
        """Apply `config` at once, including joins and leaves. False: it cannot, and the channel
        must be built anew.
        """


@runtime_checkable
class TakesOver(Protocol):
    """Channel that keeps state, such as a session, when it is built anew with other settings."""

    def take_over(self, before: Self) -> None:
        """Continue where `before` ended, as far as the settings of both allow. Called before `run`.

        `before`: the stopped channel of that name, of the same class.
        """


@runtime_checkable
class CanReact(Protocol):
    """Channel that can add reactions to messages."""

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        """Add the bot's `reaction` (an emoji) or remove it; already done is no error. Raises
        `SendError`.
        """


@runtime_checkable
class CanEdit(Protocol):
    """Channel that can edit the bot's messages."""

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        """Replace the text (Markdown) of one message of the bot; the same text is no error.

        Raises `SendError`: `Rejected` also if it does not fit one message, is gone, or is not the
        bot's.
        """


@runtime_checkable
class KnowsJoinRefusals(Protocol):
    """Channel that knows why the bot is not in a configured room."""

    def join_refusal(self, room: RoomId) -> str:
        """Return the reason in one line, untrusted; empty: the bot is there, or it is not known.
        Pure and cheap.
        """


@runtime_checkable
class KnowsAccountProblem(Protocol):
    """Channel that knows what is wrong with its account while it is connected."""

    def account_problem(self) -> str:
        """Return it in one line, untrusted; empty: nothing, or it is not known. Pure and cheap."""


@runtime_checkable
class CountsDropped(Protocol):
    """Channel that drops received events if nobody accepts them for long, because its platform
    sends nothing twice.
    """

    @property
    def dropped_count(self) -> int:
        """Number of messages dropped so far."""


@runtime_checkable
class CanDelete(Protocol):
    """Channel that can delete the bot's messages."""

    async def delete(self, at: Address, message: MessageId) -> None:
        """Delete one message of the bot; one that is already gone is no error. Raises
        `SendError`.
        """


@runtime_checkable
class CanSetTopic(Protocol):
    """Channel that can change the topic of a room."""

    async def set_topic(self, at: Address, topic: str) -> None:
        """Set the topic, one line. Raises `SendError`: `Rejected` with the platform's reason if the
        bot may not.
        """


@frozen
class RoomMembers:
    """Members of a room."""

    members: tuple[Sender, ...]
    """Some of them, at most as many as requested."""
    total: int | None = None
    """Number of members. None: the platform does not report it."""
    note: str = ""
    """One sentence about the list, e.g. that it holds administrators only. Empty: nothing to
    note."""


@runtime_checkable
class CanListMembers(Protocol):
    """Channel that can list the members of a room."""

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        """Return at most `most` members. Raises `SendError`."""


# SendError
# +-- Denied        stop, tell the operator
# +-- Unreachable   surely not sent; try again when the link is up
# +-- RateLimited   surely not sent; wait
# +-- RecipientAway surely not sent; wait until the person is seen
# +-- Rejected      surely not sent; tell the agent
# |   +-- MayNotPost surely not sent, like anything else there; wait until people change that
# +-- Uncertain     unknown; record, resend only where repeats are dropped
#     +-- Unsettled unknown so far; hand it over again, and the channel looks for it


class SendError(Exception):
    """A part was not (or perhaps not) delivered. The subclass says what the caller must do."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Denied(SendError):
    """The platform refuses us, e.g. the credentials: stop this channel and inform the operator."""


class Unreachable(SendError):
    """Surely not sent, no connection: try again when the link is up."""


class RateLimited(SendError):
    """Surely not sent: wait `retry_after_s` seconds, then try again."""

    def __init__(self, reason: str, *, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class RecipientAway(SendError):
    """Surely not sent: the recipient is not known to be present. Try again once they are
    (`KnowsRecipients`).
    """


class Rejected(SendError):
    """Surely not sent, and trying again will not help: report the reason to the agent."""


class MayNotPost(Rejected):
    """Surely not sent: the platform takes nothing from the bot in that place until people change
    that.

    E.g. a missing right, a mute, a ban, a block. `reason` names it. Try again when that may have
    happened (`KnowsPostingRights`).
    """


class Uncertain(SendError):
    """Perhaps sent: record it, and send it again only within `Capabilities.resend_window_s`."""


class Unsettled(Uncertain):
    """Perhaps sent, and not looked for yet: hand the part over again with
    `PostPart.maybe_sent_after`.
    """
