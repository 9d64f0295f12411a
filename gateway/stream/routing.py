"""Who can read what is said in each place: told by the platform or the operator, and closed unless one of them says so.

What the platform says is asked of its channel at the moment of use. What it said last is in the log
(`AudienceReported`), for a time in which it cannot be asked. A place that closes is closed for what was said there
before, too; one that opens is open for what is said from then on.

Which of the operator's bindings is for which conversation. Pure: the first match wins.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from agent.signals import ArrivalPolicy
from channels.base import CanDirectMessage, Channel, HasAudience, HasPlaceNames, HasSpaces
from gateway.access.channel_lookup import ChannelLookup
from gateway.config.reload import LiveSettings
from gateway.core.events import Address, ChannelName, ConversationId, Message, PlaceNames, RoomId, Sender
from gateway.core.facts import MESSAGE_KINDS, AudienceReported, NoteWritten, Seq, is_inner
from gateway.core.scopes import PUBLIC, Visibility, is_shared_scope, is_trusted, space_scope
from gateway.store import AppendResult, NewEntry, StoreReader
from gateway.stream.attention import ListenMode
from gateway.stream.operator import OperatorChannel
from gateway.stream.place_names import PlaceTitles


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationBinding:
    """Which agent lives in a conversation, and how it behaves there."""

    listen: ListenMode
    agent: str = ""
    """Whose conversation it is."""
    prompt: str = ""
    language: str | None = None
    private: bool | None = None
    """True: what is said there is told nowhere else. False: everybody may be told. None: as the platform says."""
    arrivals: ArrivalPolicy = "steer"
    """What becomes of a running turn when somebody speaks to the agent there."""
    skills: tuple[str, ...] | None = None
    """Those that are for there. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingPattern:
    """Which conversations: globs over the parts of an address. None for `thread`: any and none."""

    channel: str
    room: str
    thread: str | None
    binding: ConversationBinding


UNBOUND = ConversationBinding(listen="off")


class Bindings:
    """All bindings of all agents, in the operator's order."""

    def __init__(self, patterns: Sequence[BindingPattern]) -> None:
        self._patterns = tuple(patterns)

    def update(self, other: "Bindings") -> None:
        """Be those from now on. Returns at once."""
        self._patterns = other._patterns  # noqa: SLF001 - its own kind

    def snapshot(self) -> "Bindings":
        """As they are, and stay."""
        return Bindings(self._patterns)

    def find(self, place: Address) -> ConversationBinding:
        """The first that matches; nothing is listened to where none does."""
        for pattern in self._patterns:
            if (
                _matches(place.channel, pattern.channel)
                and _matches(place.room, pattern.room)
                and (pattern.thread is None or _matches(place.thread or "", pattern.thread))
            ):
                return pattern.binding
        return UNBOUND

    def find_agent(self, channel: ChannelName) -> str:
        """Whose account that is: the agent of the first pattern for that channel, whatever its rooms. "": nobody's."""
        found = (pattern.binding.agent for pattern in self._patterns if _matches(channel, pattern.channel))
        return next(found, "")


def _matches(name: str, pattern: str) -> bool:
    # A name may hold what a glob gives a meaning: `#[foo]` is a room.
    return name == pattern or fnmatchcase(name, pattern)


_MAX_CACHED_PLACES: Final = 10_000


class _KnownScope(NamedTuple):
    scope: str
    since: Seq
    """What stands there or behind it was said when this held."""


class PrivacyCache:
    """Every place that the agents know. `begin` before the first use; `wrote` is to be told of all that is written."""

    def __init__(
        self,
        reader: StoreReader,
        bindings: Bindings,
        *,
        told: Callable[[Address], str | None] = lambda _: None,
        space: Callable[[Address], RoomId | None] = lambda _: None,
        titles: PlaceTitles | None = None,
    ) -> None:
        """`told`: the scope of a place as its platform says just now; None: it does not.

        `space`: what its room is part of; None: nothing, or that is not known. `titles`: what places are called;
        None: as the log has it.
        """
        self.titles = titles or PlaceTitles(reader)
        self._reader = reader
        self._bindings = bindings
        self._platform_scope = told
        self._space = space
        self._direct: OrderedDict[ConversationId, bool] = OrderedDict()
        self._known_scopes: dict[ConversationId, _KnownScope] = {}

    async def load(self) -> None:
        """Learn from the log what platforms said last. Raises StoreError."""
        for stored in await self._reader.current_facts("audience"):
            if isinstance(stored.fact, AudienceReported):
                self._known_scopes[stored.fact.at.conversation] = _KnownScope(
                    stored.fact.scope, Seq(stored.cause or stored.seq)
                )

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """These were appended to the log."""
        seqs = {id(entry): done.seq for entry, done in zip(entries, written, strict=True)}
        for entry, done in zip(entries, written, strict=True):
            if isinstance(entry.fact, AudienceReported) and done.is_new:
                since, place = seqs.get(id(entry.cause), done.seq), entry.fact.at.conversation
                before = self._known_scopes.get(place)
                if before is None or before.scope != entry.fact.scope:  # two messages at once may both bring it
                    self._known_scopes[place] = _KnownScope(entry.fact.scope, since)

    def find_new_audience(self, message: Message) -> AudienceReported | None:
        """What is to be written down with this message, because its platform now says something else of the place."""
        if message.kind == "direct" or (scope := self._platform_scope(message.at)) is None:
            return None
        known = self._known_scopes.get(message.at.conversation)
        return AudienceReported(at=message.at, scope=scope) if known is None or known.scope != scope else None

    def record_direct(self, conversation: ConversationId, *, direct: bool) -> None:
        """The platform says what kind of place it is."""
        self._direct[conversation] = direct
        self._direct.move_to_end(conversation)
        if len(self._direct) > _MAX_CACHED_PLACES:
            self._direct.popitem(last=False)

    async def is_direct(self, conversation: ConversationId) -> bool | None:
        """Whether it is a direct chat. None: nothing was ever said there."""
        known = self._direct.get(conversation)
        if known is None:
            said = await self.newest_message(conversation)
            if said is None:
                return None
            known = said.kind == "direct"
            self.record_direct(conversation, direct=known)
        return known

    def is_known_direct(self, conversation: ConversationId) -> bool:
        """The same, of what was heard lately: False for a place that nobody has asked about."""
        return self._direct.get(conversation, False)

    async def newest_message(self, conversation: ConversationId) -> Message | None:
        """What was said there last; None: nothing ever was."""
        said = await self._reader.newest_entries(1, kinds=MESSAGE_KINDS, conversation=conversation)
        return said[0].fact if said and isinstance(said[0].fact, Message) else None

    async def private(self, conversation: ConversationId) -> bool:
        """Whether it is a direct chat, or the operator calls it private. So is a place that nobody knows."""
        if is_inner(conversation):
            return False
        if self._bindings.find(Address.parse(conversation)).private:
            return True
        return await self.is_direct(conversation) is not False

    async def is_public(self, conversation: ConversationId) -> bool:
        """Whether everybody may read what is said there now."""
        return await self.scope(conversation) == PUBLIC

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Who may be told what is said there (`gateway.core.scopes`).

        `seq`: of what stands there in the log; None: of what is said now. What an agent thinks by itself is its own.
        """
        if is_inner(conversation) or await self.private(conversation):
            return conversation
        place = Address.parse(conversation)
        known, told = self._known_scopes.get(conversation), self._platform_scope(place)
        closed = place.thread is not None and told == conversation  # what holds for a room does not open these
        if self._bindings.find(place).private is False and not closed:
            return PUBLIC
        now = told if told is not None or known is None else known.scope
        if now is None:
            return conversation
        if seq is not None and (known is None or known.scope != now or seq < known.since):
            return conversation  # others could read there then, or nobody knows who
        return now

    async def note_scope(self, conversation: ConversationId, seq: Seq, noted: NoteWritten) -> str:
        """Who may be told of a note that was written down there, as things stand now."""
        if not is_shared_scope(noted.scope):
            return noted.scope
        if not is_trusted(noted.role, foreign=noted.foreign):
            return conversation
        return noted.scope if is_inner(conversation) else await self.scope(conversation, seq)

    async def visibility(self, conversation: ConversationId, *, everything: bool = False) -> Visibility:
        """What a turn there may see. `everything`: it is alone with a verified owner."""
        if is_inner(conversation):
            return Visibility(scope=PUBLIC, other_scopes=frozenset([conversation]))
        scope, private = await self.scope(conversation), await self.private(conversation)
        also, place = {str(conversation)}, Address.parse(conversation)
        shared = await self.is_direct(conversation) is False
        if shared and scope != PUBLIC and (space := self._space(place)) is not None:
            also.add(space_scope(place.channel, space))
        if scope != PUBLIC and not private and place.thread is not None and self._platform_scope(place) is not None:
            also.add(await self.scope(Address(channel=place.channel, room=place.room).conversation))
        return Visibility(scope=scope, other_scopes=frozenset(also), is_private=private, sees_everything=everything)


NATIVE_COMMAND_PLATFORMS = frozenset({"telegram", "discord"})
"""Platforms with commands of their own, which begin with a slash."""


class CommandPrefixes(Mapping[ChannelName, str]):
    """What stands in front of a command's name on each channel, by now. Empty: none can be given there."""

    def __init__(self, live: LiveSettings, channels: Mapping[ChannelName, Channel]) -> None:
        self._live, self._channels = live, channels

    def __getitem__(self, name: ChannelName) -> str:
        channel = self._channels.get(name)  # None: it has gone, and somebody still speaks of it
        native = channel is not None and channel.capabilities.platform.lower() in NATIVE_COMMAND_PLATFORMS
        return "/" if native or isinstance(channel, OperatorChannel) else self._live.settings.commands.prefix

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._channels)

    def __len__(self) -> int:
        return len(self._channels)


def make_names_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[Address], PlaceNames | None]:
    """What people call a place, asked of its channel."""
    able = ChannelLookup[HasPlaceNames](channels, lambda one: one if isinstance(one, HasPlaceNames) else None)

    def names(at: Address) -> PlaceNames | None:
        channel = able.get(at.channel)
        return None if channel is None else channel.place_names(at)

    return names


def make_private_address_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[Address, Sender], Address]:
    """Where to write to somebody who did something in a room, if not to the room: where the platform knows of such."""
    able = ChannelLookup[CanDirectMessage](channels, lambda one: one if isinstance(one, CanDirectMessage) else None)

    def reach(at: Address, sender: Sender) -> Address:
        channel = able.get(at.channel)
        return at if channel is None else Address(channel=at.channel, room=channel.direct_room(sender))

    return reach


def make_space_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[Address], RoomId | None]:
    """What a room is part of, asked of its channel."""
    grouped = ChannelLookup[HasSpaces](channels, lambda one: one if isinstance(one, HasSpaces) else None)

    def space(place: Address) -> RoomId | None:
        channel = grouped.get(place.channel)
        return None if channel is None else channel.space(place.room)

    return space


def make_scope_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[Address], str | None]:
    """Who can read what is said in a place, as its channel says just now, as a scope. None: that is not known."""
    able = ChannelLookup[HasAudience](channels, lambda one: one if isinstance(one, HasAudience) else None)
    spaces = make_space_lookup(channels)

    def told(at: Address) -> str | None:
        channel = able.get(at.channel)
        audience = None if channel is None else channel.audience(at)
        if audience == "everybody":
            return PUBLIC
        if audience == "space":
            space = spaces(at)
            return None if space is None else space_scope(at.channel, space)
        if audience == "room":
            return Address(channel=at.channel, room=at.room).conversation
        return None if audience is None else at.conversation

    return told
