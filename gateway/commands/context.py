"""What commands are asked with, what they may look at, and what they answer.

Which places a command's answer may name to whoever asks.

Which room somebody means. Pure.

What is told of a command after its answer, because it took long or went wrong.
"""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from gateway.access.approval_texts import PLACE_CHARS, inline_code
from gateway.commands.table import COMMANDS, CommandDefinition
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, Command, ConversationId, MessageId, Post, PostKey, RoomId
from gateway.core.facts import PostQueued, Seq, dedup_key, is_inner
from gateway.core.identity import Role, person_key
from gateway.core.metrics import GatewayStats
from gateway.core.scopes import Visibility
from gateway.runtime.rewind import Rewinder
from gateway.store import NewEntry, OutboxPost, Store, StoreReader
from gateway.store.effects import CommandEffect
from gateway.stream.place_names import PlaceTitles
from gateway.tools.approvals import ApprovalDecisions
from gateway.tools.dispatch import ToolList


class RoomNotFound(Exception):
    """Nothing is called so; in words, for people."""


def resolve_room(
    written: str,
    here: ChannelName,
    channels: Collection[ChannelName],
    known: Sequence[Address],
    titles: PlaceTitles | None = None,
) -> Address:
    """The place that is written as `channel/room`, as `channel/room/thread`, or as a room of `here`.

    Raises `RoomNotFound`.

    A room that is `known` is meant in any case of its letters, or by its title, if that leaves one.
    """
    wanted = written.strip().strip("`")
    called = [] if titles is None else [at for at in titles.find_places(wanted, known) if at in known]
    if len(called) > 1:
        told = ", ".join(inline_code(at.conversation, PLACE_CHARS) for at in called)
        raise RoomNotFound(f"Several rooms are called {inline_code(written, PLACE_CHARS)}: {told}. Write which.")
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
        return Address.parse(wanted)  # of a channel that there is not, which is told
    return Address(channel=here, room=RoomId(wanted))


def _fold_address(at: Address) -> str:
    return at.conversation.casefold()


class CommandFollowUp:
    """Says it where the command was given."""

    def __init__(
        self, store: Store, clock: Clock, post: Callable[[OutboxPost], None], named: Callable[[str], str] = str
    ) -> None:
        """`post` is called with what is said, after it is durable. `named` puts the titles of places into it."""
        self._with_titles = named
        self._store, self._clock, self._post = store, clock, post

    async def send(self, command: Command, cause: Seq, words: str, *, private: bool) -> None:
        """Say it as a reply, once. `cause`: the command's entry. Raises `StoreError`."""
        post = Post(
            key=follow_up_key(command, "later"),
            to=command.at,
            text=self._with_titles(words),
            reply_to=MessageId(command.id),
            private=private,
        )
        now, place = self._clock.now(), command.at.conversation
        entry = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{post.key}", cause=cause)
        (queued,) = await self._store.append([entry])
        if queued.is_new:
            self._post(OutboxPost(seq=queued.seq, at=now, post=post, parts=()))


def follow_up_key(command: Command, what: str) -> PostKey:
    """Of a post that a command makes besides its answer: always the same, as long as a ULID."""
    return PostKey(hashlib.sha256(f"{what}:{dedup_key(command)}".encode()).hexdigest()[:26])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandContext:
    """All that commands may look at."""

    reader: StoreReader
    clock: Clock
    stats: GatewayStats
    version: str
    model_name: Callable[[], str]
    """What answers people, by name."""
    agent_mode: Callable[[], str]
    """What the agent is doing, in a word."""
    prefixes: Mapping[ChannelName, str]
    """What stands in front of a command's name there. Empty: none can be given there."""
    rewinds: Rewinder
    """What changes the view of a conversation."""
    count_pages: Callable[[Post], int]
    """How many pages a post has where it goes; 1 where there are no pages."""
    operator_contact: Callable[[ChannelName], str | None] = lambda _: None
    """Who runs this bot, as that channel says it."""
    approvals: ApprovalDecisions | None = None
    """What calls of tools wait for an admin's word. None: no tool does."""
    tools_at: Callable[[Address], ToolList] = lambda _: ToolList()
    """What tools whoever answers there has."""
    awaiting_channels: Collection[ChannelName] = ()
    """As `Capabilities.awaits`: there who may not use a command is told so."""
    private_address: Callable[[Command], Address] = lambda command: command.at
    """Where somebody is told what is not for the room's eyes: there, where the platform can tell them alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCall:
    """One command that is to be answered."""

    command: Command
    role: Role
    rule: str
    """Why this person is heard here."""
    global_role: Role = "guest"
    """The role that this person has in all places."""
    sub: str = ""
    """Which of the things that the command can do is meant. Empty: it has none."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Its arguments by name, those that were given; they fit the table."""

    @property
    def person(self) -> str:
        """Who asks, as `gateway.core.identity.person_key` writes them."""
        return person_key(self.command.at.channel, self.command.sender.id)

    def available_commands(self) -> list[CommandDefinition]:
        """The commands that this person may use here."""
        direct = self.command.direct
        return [
            row
            for row in COMMANDS
            if row.is_allowed_for(self.role, direct=direct, everywhere=self.global_role)
            and (direct or not row.direct_only)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReply:
    """What to say."""

    text: str
    page: int = 1
    effect: CommandEffect | None = None
    """What becomes durable with it. None: it only tells."""
    private: bool | None = None
    """Whether it concerns nobody but who asked. None: as the table says."""
    ok: bool = True
    """False: what was wanted is not done. For the audit."""


CommandHandler = Callable[[CommandCall, CommandContext], Awaitable[str | CommandReply]]


MAX_SUGGESTIONS: Final = 25
MAX_SUGGESTION_CHARS: Final = 100
"""As `channels.base.CommandCompleter` has it."""


class ConversationPrivacy(Protocol):
    """Who knows places: `gateway.stream.routing.PrivacyCache`."""

    @property
    def titles(self) -> PlaceTitles:
        """What places are called."""

    async def scope(self, conversation: ConversationId) -> str:
        """Who may be told what is said there."""

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Visibility:
        """What a turn there may see."""


def sees_everything(ask: CommandCall) -> bool:
    """Whether it is an owner, alone with the agent."""
    return ask.command.direct and ask.global_role == "owner"


async def find_visibility(ask: CommandCall, places: ConversationPrivacy) -> Visibility:
    """What may be told where it is asked. A direct chat is private whatever was heard there before."""
    here, everything = ask.command.at.conversation, sees_everything(ask)
    if ask.command.direct:
        return Visibility(scope=here, is_private=True, sees_everything=everything)
    return await places.visibility(here, everything=everything)


async def find_hidden(
    ask: CommandCall, places: ConversationPrivacy, named: Iterable[ConversationId]
) -> frozenset[ConversationId]:
    """Which of these conversations may not be named where it is asked, because others could read it there."""
    if sees_everything(ask):
        return frozenset()
    sight = await find_visibility(ask, places)
    others = [place for place in dict.fromkeys(named) if not is_inner(place)]
    return frozenset([place for place in others if not sight.can_see(await places.scope(place))])


def format_place(conversation: ConversationId) -> str:
    """For people."""
    if is_inner(conversation):
        return f"{inline_code(Address.parse(conversation).room)} by itself"
    return inline_code(conversation, PLACE_CHARS)


def match_suggestions(found: Iterable[str], begun: str) -> list[str]:
    """What may be meant by what somebody has begun to write, as suggestions."""
    meant = begun.strip(" `").casefold()
    return list(
        islice((one for one in found if meant in one.casefold() and len(one) <= MAX_SUGGESTION_CHARS), MAX_SUGGESTIONS)
    )
