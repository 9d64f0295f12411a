"""Types of command handlers: call, context and reply; rooms by name, follow-up posts, and what may be shown where."""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from channels.base import CanPage, Channel
from gateway.access.approval_texts import PLACE_CHARS, inline_code
from gateway.access.channel_lookup import ChannelLookup
from gateway.commands.table import COMMANDS, CommandDefinition
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, Command, ConversationId, MessageId, Post, PostKey, RoomId
from gateway.core.facts import PostQueued, Seq, dedup_key, is_inner
from gateway.core.identity import Role, person_key
from gateway.core.metrics import GatewayStats
from gateway.core.scopes import Visibility
from gateway.runtime.rewind import Rewinder
from gateway.store import NewEntry, Store, StoreReader
from gateway.store.effects import CommandEffect
from gateway.stream.place_names import PlaceTitles
from gateway.tools.approvals import Approvals
from gateway.tools.dispatch import ToolList


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """Services that command handlers may read."""

    reader: StoreReader
    clock: Clock
    stats: GatewayStats
    version: str
    model_name: Callable[[], str]
    """Returns the name of the model that answers people."""
    agent_mode: Callable[[], str]
    """Returns the agent's mode, in a word."""
    prefixes: Mapping[ChannelName, str]
    """Command prefix of each channel. Empty: commands cannot be given there."""
    rewinds: Rewinder
    """Changes to the view of a conversation."""
    count_pages: Callable[[Post], int]
    """Returns the number of pages of a post on its channel; 1 where there are no pages."""
    operator_contact: Callable[[ChannelName], str | None] = lambda _: None
    """Returns the operator's contact for that channel."""
    approvals: Approvals | None = None
    """Tool calls that wait for approval. None: no tool does."""
    tools_at: Callable[[Address], ToolList] = lambda _: ToolList()
    """Returns the tools of the agent in that place."""
    awaiting_channels: Collection[ChannelName] = ()
    """Channels with `Capabilities.defers_commands`, where a refused sender gets an answer."""
    private_address: Callable[[Command], Address] = lambda command: command.at
    """Returns the place for an answer that a room must not see: there, where the platform can show it to one person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """One command to answer."""

    command: Command
    role: Role
    rule: str
    """Access rule by which this person is accepted here."""
    global_role: Role = "guest"
    """Role of this person in all places."""
    sub: str = ""
    """Name of the subcommand. Empty: the command has none."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Given arguments by name; they fit the table."""

    @property
    def person(self) -> str:
        """The sender, as `gateway.core.identity.person_key`."""
        return person_key(self.command.at.channel, self.command.sender.id)

    def available_commands(self) -> list[CommandDefinition]:
        """Return the commands that this person may use here."""
        direct = self.command.direct
        return [
            row
            for row in COMMANDS
            if row.is_allowed_for(self.role, direct=direct, everywhere=self.global_role)
            and (direct or not row.direct_only)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """Answer of a command handler."""

    text: str
    page: int = 1
    effect: CommandEffect | None = None
    """Facts to append with it. None: the command changes nothing."""
    private: bool | None = None
    """True: only the sender may see it. None: as the table says."""
    ok: bool = True
    """False: the request was not carried out. For the audit."""


CommandHandler = Callable[[CommandCall, CommandContext], Awaitable[str | CommandReply]]

MAX_SUGGESTIONS: Final = 25
MAX_SUGGESTION_CHARS: Final = 100
"""As in `channels.base.CommandCompleter`."""


class ConversationPrivacy(Protocol):
    """Part of `gateway.stream.routing.PrivacyCache` that commands use."""

    @property
    def titles(self) -> PlaceTitles:
        """Titles of places."""

    async def scope(self, conversation: ConversationId) -> str:
        """Return who may read messages there."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Visibility:
        """Return what a turn there may see."""


def sees_everything(call: CommandCall) -> bool:
    """Return whether an owner asks in a direct chat."""
    return call.command.direct and call.global_role == "owner"


async def find_visibility(call: CommandCall, places: ConversationPrivacy) -> Visibility:
    """Return what may be shown where the command was given. A direct chat is private, whatever its history."""
    here, everything = call.command.at.conversation, sees_everything(call)
    if call.command.direct:
        return Visibility(scope=here, is_private=True, sees_everything=everything)
    return await places.visibility(here, everything=everything)


async def find_hidden(
    call: CommandCall, places: ConversationPrivacy, named: Iterable[ConversationId]
) -> frozenset[ConversationId]:
    """Return those of these conversations that must not be named there, because others could read it."""
    if sees_everything(call):
        return frozenset()
    sight = await find_visibility(call, places)
    others = [place for place in dict.fromkeys(named) if not is_inner(place)]
    return frozenset([place for place in others if not sight.can_see(await places.scope(place))])


def format_place(conversation: ConversationId) -> str:
    """Return a place as text for people."""
    if is_inner(conversation):
        return f"{inline_code(Address.parse(conversation).room)} by itself"
    return inline_code(conversation, PLACE_CHARS)


def match_suggestions(found: Iterable[str], prefix: str) -> list[str]:
    """Return the suggestions that contain what somebody has begun to write."""
    meant = prefix.strip(" `").casefold()
    return list(
        islice((one for one in found if meant in one.casefold() and len(one) <= MAX_SUGGESTION_CHARS), MAX_SUGGESTIONS)
    )


class RoomNotFound(Exception):
    """Nothing has that name; the text is for people."""


def resolve_room(
    written: str,
    here: ChannelName,
    channels: Collection[ChannelName],
    known: Sequence[Address],
    titles: PlaceTitles | None = None,
) -> Address:
    """Return the place written as `channel/room`, as `channel/room/thread`, or as a room of the channel `here`.

    A `known` room is also found in any case of its letters, or by its title, if only one fits.

    Raises `RoomNotFound`.
    """
    wanted = written.strip().strip("`")
    called = [] if titles is None else [at for at in titles.find_places(wanted, known) if at in known]
    if len(called) > 1:
        found = ", ".join(inline_code(at.conversation, PLACE_CHARS) for at in called)
        raise RoomNotFound(f"Several rooms are called {inline_code(written, PLACE_CHARS)}: {found}. Write which.")
    if called:
        return called[0]
    try:
        at = _parse_room(wanted, here, channels)
    except ValueError:
        raise RoomNotFound(f"{inline_code(written, PLACE_CHARS)} is no room: write it as `rooms` lists them.") from None
    if at.channel not in channels:
        raise RoomNotFound(f"I have no channel {inline_code(at.channel)}.")
    if at in known:
        return at
    alike = [one for one in known if _fold_address(one) == _fold_address(at)]
    return alike[0] if len(alike) == 1 else at


def _parse_room(wanted: str, here: ChannelName, channels: Collection[ChannelName]) -> Address:
    channel = wanted.partition("/")[0]
    if channel in channels:
        return Address.parse(wanted)
    if wanted.count("/") in (1, 2) and not wanted.startswith(("#", "&", "+", "!")):
        return Address.parse(wanted)  # of an unknown channel, which the caller reports
    return Address(channel=here, room=RoomId(wanted))


def _fold_address(at: Address) -> str:
    return at.conversation.casefold()


class CommandFollowUp:
    """Posts a later result where the command was given."""

    def __init__(self, store: Store, clock: Clock, with_titles: Callable[[str], str] = str) -> None:
        """`with_titles` inserts the titles of places into a text."""
        self._with_titles = with_titles
        self._store, self._clock = store, clock

    async def send(self, command: Command, cause: Seq, words: str, *, private: bool) -> None:
        """Post a text as a reply, once. `cause`: the command's entry. Raises `StoreError`."""
        post = Post(
            key=follow_up_key(command, "later"),
            to=command.at,
            text=self._with_titles(words),
            reply_to=MessageId(command.id),
            private=private,
        )
        now, place = self._clock.now(), command.at.conversation
        entry = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{post.key}", cause=cause)
        await self._store.append([entry])


def follow_up_key(command: Command, what: str) -> PostKey:
    """Return the key of a post that a command makes besides its answer: always the same, as long as a ULID."""
    return PostKey(hashlib.sha256(f"{what}:{dedup_key(command)}".encode()).hexdigest()[:26])


def make_page_counter(channels: Mapping[ChannelName, Channel]) -> Callable[[Post], int]:
    """Return a function that counts the pages of a post on its channel."""
    paged = ChannelLookup[CanPage](channels, lambda one: one if isinstance(one, CanPage) else None)

    def count_pages(post: Post) -> int:
        channel = paged.get(post.to.channel)
        return 1 if channel is None else channel.page_count(post)

    return count_pages
