"""Routing of conversations: which agent's binding applies to a place, and who can read what is
written there.

Of the bindings the operator's first matching pattern wins. `LiveBindings` and `LiveAccessPolicy`
read the settings in force at each use.

`PrivacyCache` knows who can read a place: from the platform or the operator, and private if neither
says. The platform's answer is asked of its channel at the moment of use; its last answer is in the
log (`AudienceReported`), for times in which the channel cannot be asked. A place that becomes
private is private for its earlier messages too; one that becomes public is public for later ones
only. Of whom a person is a member is asked when something of another room is about to be shown to
them, and for those rooms only (`PrivacyCache.with_memberships`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from agent.signals import ArrivalPolicy
from gateway.access.channels import Channels
from gateway.access.place_names import PlaceTitles
from gateway.access.roster import Roster
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.events import Address, ChannelName, ConversationId, Message, RoomId, Sender
from gateway.core.facts import (
    MESSAGE_KINDS,
    OPERATOR_CHANNEL,
    AudienceReported,
    NoteWritten,
    Seq,
    is_inner,
)
from gateway.core.identity import (
    AGENT_SCOPE_PREFIX,
    ROLE_ORDER,
    AccessPolicy,
    DmPolicy,
    PlatformRoleRule,
    Role,
    RoleGrant,
    RoomPolicy,
    RosterState,
    normalize_person_key,
)
from gateway.core.ratelimit import LruDict
from gateway.core.scopes import (
    OWNER_SCOPE,
    PUBLIC,
    PlatformUser,
    Visibility,
    group_scope,
    is_shared_scope,
    parse_space_scope,
    space_scope,
)
from gateway.store import LogEntry, StoreReader
from gateway.stream.attention import ListenMode, SpeaksUp

_MAX_CACHED_PLACES: Final = 10_000
MAX_ASKED_SCOPES: Final = 20
"""Scopes about which platforms are asked at most, for all that one tool call shows. More are not
shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationBinding:
    """Agent of a conversation, and its behaviour there."""

    listen: ListenMode
    speaks_up: SpeaksUp = "never"
    """Whether the agent may speak there without being asked."""
    agent: str = ""
    """Agent that owns the conversation."""
    addressing: Literal["anywhere", "start"] = "anywhere"
    """Place of our nick in a line that speaks to the agent."""
    prompt: str = ""
    language: str | None = None
    private: bool | None = None
    """True: its messages are not used elsewhere. False: everybody may read them. None: as the
    platform says."""
    group: str = ""
    """Group of rooms whose people may know what is said in each of them. Empty: none."""
    arrivals: ArrivalPolicy = "steer"
    """Effect of a message to the agent on a running turn."""
    skills: tuple[str, ...] | None = None
    """Skills available there. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingPattern:
    """Conversations to which a binding applies: globs over the parts of an address. `thread` None:
    any or none.
    """

    channel: str
    room: str
    thread: str | None
    binding: ConversationBinding


UNBOUND: Final = ConversationBinding(listen="off")
"""Where no pattern applies."""


class Bindings:
    """Bindings of all agents, in the operator's order."""

    def __init__(self, patterns: Sequence[BindingPattern]) -> None:
        self._patterns = tuple(patterns)
        self._found = LruDict[Address, ConversationBinding]()
        """Bindings of the places that were asked for last."""

    @property
    def patterns(self) -> Sequence[BindingPattern]:
        """Patterns in force."""
        return self._patterns

    def snapshot(self) -> "Bindings":
        """Return a copy that does not change."""
        return Bindings(self.patterns)

    def find(self, place: Address) -> ConversationBinding:
        """Return the first binding that matches; without one, the agent listens to nothing
        there.
        """
        if (found := self._found.get(place)) is None:
            matching = (
                pattern.binding
                for pattern in self._patterns
                if _matches(place.channel, pattern.channel)
                and _matches(place.room, pattern.room)
                and (pattern.thread is None or _matches(place.thread or "", pattern.thread))
            )
            found = next(matching, UNBOUND)
            self._found.put(place, found)
        return found

    def find_agent(self, channel: ChannelName) -> str:
        """Return the agent of the first pattern for that channel, whatever its rooms. "": none."""
        found = (
            pattern.binding.agent for pattern in self.patterns if _matches(channel, pattern.channel)
        )
        return next(found, "")


class LiveBindings(Bindings):
    """Bindings of the settings in force."""

    def __init__(self, live: LiveSettings) -> None:
        super().__init__(())
        self._live = live

    @property
    def patterns(self) -> Sequence[BindingPattern]:
        return self._live.derive(build_bindings).patterns

    def find(self, place: Address) -> ConversationBinding:
        return self._live.derive(build_bindings).find(place)


def build_bindings(settings: Settings) -> Bindings:
    """Build the bindings of all agents.

    The first agent gets what matches nothing else in the operator's own channel.
    """
    patterns = [
        BindingPattern(
            channel=binding.match.channel,
            room=binding.match.room,
            thread=binding.match.thread,
            binding=ConversationBinding(
                listen="ambient"
                if binding.listen == "mention" and binding.speaks_up != "never"
                else binding.listen,
                speaks_up=binding.speaks_up,
                agent=agent.id,
                prompt=binding.prompt,
                language=binding.language,
                private=binding.private,
                group=binding.group,
                addressing=binding.addressing,
                arrivals=binding.arrivals,
                skills=binding.skills,
            ),
        )
        for agent in settings.agents
        for binding in agent.bindings
    ]
    if settings.ops.token is not None:
        own = ConversationBinding(listen="all", agent=settings.agents[0].id, private=True)
        patterns.append(
            BindingPattern(channel=OPERATOR_CHANNEL, room="*", thread=None, binding=own)
        )
    return Bindings(patterns)


class LiveAccessPolicy(AccessPolicy):
    """Access policy of the settings in force, of decisions in the log, and of what platforms say
    about places.
    """

    def __init__(
        self, live: LiveSettings, roster: Roster, channels: Channels, bindings: Bindings
    ) -> None:
        self._live, self._roster, self._channels, self._bindings = live, roster, channels, bindings

    @property
    def dm_policy(self) -> DmPolicy:
        return self._live.settings.access.dm

    @property
    def roles(self) -> Mapping[str, Role]:
        return self._live.derive(build_roles)

    @property
    def open_rooms(self) -> Mapping[ChannelName, frozenset[RoomId]]:
        return self._live.derive(build_open_rooms)

    @property
    def grants(self) -> Mapping[str, Sequence[RoleGrant]]:
        return self._live.derive(build_grants)

    @property
    def platform_roles(self) -> Sequence[PlatformRoleRule]:
        return self._live.derive(build_platform_roles)

    @property
    def room_policy(self) -> RoomPolicy:
        return self._live.settings.access.rooms

    @property
    def allow_masks(self) -> bool:
        return self._live.settings.access.masks

    @property
    def operator_channel(self) -> ChannelName | None:
        return OPERATOR_CHANNEL if self._live.settings.ops.token is not None else None

    def space_of(self, at: Address) -> RoomId | None:
        return self._channels.space_of(at)

    def agent_of(self, at: Address) -> str:
        return self._bindings.find(at).agent

    def roster_state(self) -> RosterState:
        return self._roster.known


def build_roles(settings: Settings) -> Mapping[str, Role]:
    """Return the configured roles. A person listed twice has the strongest role; being blocked wins
    over all.
    """
    roles: dict[str, Role] = {}
    for role in (*ROLE_ORDER[1:], ROLE_ORDER[0]):
        for one in getattr(settings.access.roles, role):
            roles[normalize_person_key(one)] = role
    return roles


def build_open_rooms(settings: Settings) -> Mapping[ChannelName, frozenset[RoomId]]:
    """Return the configured rooms of each channel."""
    return {
        ChannelName(name): frozenset(map(RoomId, one.rooms))
        for name, one in settings.channels.items()
    }


def build_grants(settings: Settings) -> Mapping[str, Sequence[RoleGrant]]:
    """Return the roles that hold in some places only, by person."""
    grants: dict[str, list[RoleGrant]] = {}
    for number, given in enumerate(settings.access.grants):
        scope = given.room or f"{AGENT_SCOPE_PREFIX}{given.agent}"
        grant = RoleGrant(given.role, scope, f"access.grants[{number}]")
        grants.setdefault(normalize_person_key(given.who), []).append(grant)
    return grants


def build_platform_roles(settings: Settings) -> Sequence[PlatformRoleRule]:
    """Return the roles of people with a rank on their platform."""
    return [
        PlatformRoleRule(
            one.channel, one.room, one.has, one.role, f"access.platform_roles[{number}]"
        )
        for number, one in enumerate(settings.access.platform_roles)
    ]


def _matches(name: str, pattern: str) -> bool:
    # A name may contain characters of globs: `#[foo]` is a room.
    return name == pattern or fnmatchcase(name, pattern)


class _KnownScope(NamedTuple):
    scope: str
    since: Seq
    """It holds for entries from this position on."""
    space: RoomId | None
    """Space of the room. None: none, or unknown."""


class PrivacyCache:
    """Knows who can read a place, and which places are direct chats.

    Call `load` before the first use; its `on_appended` subscribes to `AudienceReported`.
    """

    def __init__(
        self,
        reader: StoreReader,
        bindings: Bindings,
        channels: Channels,
        titles: PlaceTitles,
    ) -> None:
        self.titles = titles
        self._reader = reader
        self._bindings = bindings
        self.channels = channels
        self._direct: OrderedDict[ConversationId, bool] = OrderedDict()
        self._known_scopes: dict[ConversationId, _KnownScope] = {}

    async def load(self) -> None:
        """Read from the log what platforms reported last. Raises StoreError."""
        for stored in await self._reader.current_facts("audience"):
            if isinstance(stored.fact, AudienceReported):
                self._learn(stored.fact, Seq(stored.cause or stored.seq))

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Update the scopes. Subscribes to `AudienceReported`."""
        for entry in entries:
            if isinstance(entry.fact, AudienceReported):
                self._learn(entry.fact, entry.cause or entry.seq)

    def _learn(self, reported: AudienceReported, seq: Seq) -> None:
        since, before = reported.since or seq, self._known_scopes.get(reported.at.conversation)
        if (
            before is not None and before.scope == reported.scope
        ):  # two messages at once may both bring it
            since = before.since
        self._known_scopes[reported.at.conversation] = _KnownScope(
            reported.scope, since, reported.space
        )
        if reported.space is not None:
            self.channels.record_space(reported.at, reported.space)

    def find_new_audience(self, message: Message) -> AudienceReported | None:
        """Return the fact to append with this message, if its platform now reports another scope or
        space.
        """
        if message.kind == "direct" or (scope := self.channels.scope_of(message.at)) is None:
            return None
        known, space = (
            self._known_scopes.get(message.at.conversation),
            self.channels.space_of(message.at),
        )
        if known is None or known.scope != scope:
            return AudienceReported(at=message.at, scope=scope, space=space)
        if space in (None, known.space):
            return None
        return AudienceReported(at=message.at, scope=scope, space=space, since=known.since)

    def record_direct(self, conversation: ConversationId, *, direct: bool) -> None:
        """Record whether a place is a direct chat, as its platform says."""
        self._direct[conversation] = direct
        self._direct.move_to_end(conversation)
        if len(self._direct) > _MAX_CACHED_PLACES:
            self._direct.popitem(last=False)

    async def is_direct(self, conversation: ConversationId) -> bool | None:
        """Return whether it is a direct chat. None: no message was ever recorded there."""
        known = self._direct.get(conversation)
        if known is None:
            newest = await self.newest_message(conversation)
            if newest is None:
                return None
            known = newest.kind == "direct"
            self.record_direct(conversation, direct=known)
        return known

    def is_known_direct(self, conversation: ConversationId) -> bool:
        """Return whether a place is known as a direct chat, without reading the log: False if
        nobody asked lately.
        """
        return self._direct.get(conversation, False)

    async def newest_message(self, conversation: ConversationId) -> Message | None:
        """Return the newest message there; None: there is none."""
        newest = await self._reader.newest_entries(
            1, kinds=MESSAGE_KINDS, conversation=conversation
        )
        return newest[0].fact if newest and isinstance(newest[0].fact, Message) else None

    async def is_private(self, conversation: ConversationId) -> bool:
        """Return whether it is a direct chat, private by the operator's word, or an unknown
        place.
        """
        if is_inner(conversation):
            return False
        if self._bindings.find(Address.parse(conversation)).private:
            return True
        return await self.is_direct(conversation) is not False

    async def is_public(self, conversation: ConversationId) -> bool:
        """Return whether everybody can read messages that are written there now."""
        return await self.scope(conversation) == PUBLIC

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Return the scope of messages there: who may read them (`gateway.core.scopes`).

        `seq`: of an entry there; None: of messages written now. An agent's inner conversation is
        its own scope.
        """
        if is_inner(conversation) or await self.is_private(conversation):
            return conversation
        place = Address.parse(conversation)
        known, reported = self._known_scopes.get(conversation), self.channels.scope_of(place)
        current = reported if reported is not None or known is None else known.scope
        is_closed_thread = (
            place.thread is not None and current == conversation
        )  # a room's binding does not open it
        bound = self._bindings.find(place)
        if bound.private is False and not is_closed_thread:
            return PUBLIC
        if current in (None, conversation) and bound.group and not is_closed_thread:
            return group_scope(bound.group)
        if current is None:
            return conversation
        if seq is not None and (known is None or known.scope != current or seq < known.since):
            return conversation  # others could read there then, or nobody knows who
        return current

    async def note_scope(self, conversation: ConversationId, seq: Seq, noted: NoteWritten) -> str:
        """Return the scope of a note that was written there, as things stand now."""
        if not is_shared_scope(noted.scope):
            return noted.scope
        if not noted.label.is_trusted:
            return conversation
        return noted.scope if is_inner(conversation) else await self.scope(conversation, seq)

    async def is_logged_in(self, at: Address, person: Sender) -> bool:
        """Return whether the login that proves who a person is holds still, as their platform
        says.
        """
        return await self.channels.is_logged_in(at, person)

    async def with_memberships(self, here: Visibility, scopes: Iterable[str]) -> Visibility:
        """Return `here` with those of the scopes that `here.alone_with` can read as a member, as
        their platform says.

        Asks about scopes that are not visible yet and were not asked about, `MAX_ASKED_SCOPES` in
        all; only of the person's own platform, and never of rooms that the operator declares
        private. Raises StoreError.
        """
        new = [
            one for one in dict.fromkeys(scopes) if one not in here.asked and not here.can_see(one)
        ]
        if here.alone_with is None or not (new := new[: MAX_ASKED_SCOPES - len(here.asked)]):
            return here
        found = await asyncio.gather(
            *(self._readable_since(scope, here.alone_with) for scope in new)
        )
        since = {scope: first for scope, first in zip(new, found, strict=True) if first is not None}
        return replace(
            here,
            asked=here.asked | set(new),
            other_scopes=here.other_scopes | since.keys(),
            since={**here.since, **{scope: first for scope, first in since.items() if first}},
        )

    async def _readable_since(self, scope: str, person: PlatformUser) -> int | None:
        """Return from which log position on a member can read texts of that scope; 0: all. None:
        they cannot.
        """
        for at in self._places_of_scope(scope, person.channel):
            if self._bindings.find(at).private or await self.is_direct(at.conversation):
                continue
            match await self.channels.membership(at, person.id):
                case "reads_all":
                    return 0
                case "reads_new":
                    room = Address(channel=at.channel, room=at.room).conversation
                    return await self._reader.present_since(room, person.id)
        return None

    def _places_of_scope(self, scope: str, channel: ChannelName) -> Sequence[Address]:
        """Return the places of a channel whose members can read texts of that scope: any of
        them.
        """
        if scope in (PUBLIC, OWNER_SCOPE) or is_inner(ConversationId(scope)):
            return ()
        if (space := parse_space_scope(scope)) is not None:
            places = [space]
        elif is_shared_scope(scope):
            known = map(Address.parse, self._known_scopes)
            places = [
                at
                for at in known
                if group_scope(self._bindings.find(at).group) == scope and at.thread is None
            ]
        else:
            places = [Address.parse(scope)]
        return [at for at in places if at.channel == channel][:MAX_ASKED_SCOPES]

    async def visibility(
        self, conversation: ConversationId, *, everything: bool = False
    ) -> Visibility:
        """Return what a turn there may see, before anybody's platform is asked what they are a
        member of.

        `everything`: it is alone with a verified owner.
        """
        if is_inner(conversation):
            return Visibility(scope=PUBLIC, other_scopes=frozenset([conversation]))
        scope, is_private = await self.scope(conversation), await self.is_private(conversation)
        other_scopes, place = {str(conversation)}, Address.parse(conversation)
        is_shared, alone_with = await self.is_direct(conversation) is False, None
        if await self.is_direct(conversation) and not everything:
            newest = await self.newest_message(conversation)
            if newest is not None and newest.sender.verified:
                alone_with = PlatformUser(newest.at.channel, newest.sender.id)
        if is_shared and scope != PUBLIC and (space := self.channels.space_of(place)) is not None:
            other_scopes.add(space_scope(place.channel, space))
        if (
            scope != PUBLIC
            and not is_private
            and place.thread is not None
            and self.channels.scope_of(place) is not None
        ):
            other_scopes.add(
                await self.scope(Address(channel=place.channel, room=place.room).conversation)
            )
        return Visibility(
            scope=scope,
            other_scopes=frozenset(other_scopes),
            is_private=is_private,
            sees_everything=everything,
            alone_with=alone_with,
        )
