"""Routing of conversations: which agent's binding applies to a place, and who can read what is
written there.

Of the bindings the operator's first matching pattern wins. A reload of the settings replaces the
contents of `LiveBindings` and `LiveAccessPolicy`.

`PrivacyCache` knows who can read a place: from the platform or the operator, and private if neither
says. The platform's answer is asked of its channel at the moment of use; its last answer is in the
log (`AudienceReported`), for times in which the channel cannot be asked. A place that becomes
private is private for its earlier messages too; one that becomes public is public for later ones
only. Of whom a person is a member is asked when something of another room is about to be shown to
them, and for those rooms only (`PrivacyCache.with_memberships`).
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from gateway.access.channels import Channels
from gateway.access.place_names import PlaceTitles
from gateway.access.policy import UNBOUND, ConversationBinding
from gateway.access.roster import Roster
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.events import (
    Address,
    ChannelName,
    ConversationId,
    MembershipChanged,
    Message,
    RoomId,
    SenderId,
)
from gateway.core.facts import (
    INNER_CHANNEL,
    MESSAGE_KINDS,
    OPERATOR_CHANNEL,
    AudienceReported,
    NoteWritten,
    RoomAssigned,
    Seq,
    is_inner,
)
from gateway.core.frozen import frozen
from gateway.core.identity import (
    AGENT_SCOPE_PREFIX,
    ROLE_ORDER,
    AccessPolicy,
    PlatformRoleRule,
    Role,
    RoleGrant,
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
from gateway.store import LogEntry, Store, StoreReader
from gateway.store.queries import COLUMNS, using
from gateway.store.reader import first_entry

LAST_COME_OR_GONE = (
    f"SELECT {COLUMNS} FROM log {using('log_conversation')} "  # noqa: S608 - constants only
    "WHERE conversation = $1 AND kind = 'membership' AND json_extract(body, '$.change') IN "
    "('join', 'part') AND json_extract(body, '$.sender.id') = $2 ORDER BY seq DESC LIMIT 1"
)
FIRST_MESSAGE_OF = (
    f"SELECT {COLUMNS} FROM log {using('log_conversation')} "  # noqa: S608 - constants only
    "WHERE conversation = $1 AND kind IN ('direct', 'mention', 'reply', 'room') "
    "AND json_extract(body, '$.sender.id') = $2 AND seq > $3 ORDER BY seq LIMIT 1"
)
_MAX_CACHED_PLACES: Final = 10_000
MAX_ASKED_SCOPES: Final = 20
"""Scopes about which platforms are asked at most, for all that one tool call shows. More are not
shown."""


@frozen
class BindingPattern:
    """Conversations to which a binding applies: globs over the parts of an address. `thread` None:
    any or none.
    """

    channel: str
    room: str
    thread: str | None
    binding: ConversationBinding


class Bindings:
    """Bindings of all agents, in the operator's order."""

    def __init__(self, patterns: Sequence[BindingPattern]) -> None:
        self.chosen = dict[ConversationId, RoomAssigned]()
        """What was chosen by command, by room."""
        self._use_patterns(patterns)

    def _use_patterns(self, patterns: Sequence[BindingPattern]) -> None:
        self._patterns = tuple(patterns)
        self._found = LruDict[Address, ConversationBinding]()
        """Bindings of the places that were asked for last."""

    def snapshot(self) -> "Bindings":
        """Return a copy that does not change."""
        return Bindings(self._patterns)

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
            pattern.binding.agent
            for pattern in self._patterns
            if _matches(channel, pattern.channel)
        )
        return next(found, "")


class LiveBindings(Bindings):
    """Bindings of the settings in force, with what was chosen for single rooms by command.

    A choice whose agent or model is not configured any more does not count.
    """

    def __init__(self, live: LiveSettings) -> None:
        super().__init__(())
        self._live = live
        live.follow(self._use)

    def _use(self, settings: Settings) -> None:
        self._use_patterns(build_patterns(settings))

    async def load(self, store: Store) -> None:
        """Load the choices, and follow them from now on. Raises StoreError."""
        store.subscribe(self._on_assigned, RoomAssigned)
        self._on_assigned(await store.current_facts("room_assigned"))

    def _on_assigned(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(chosen := entry.fact, RoomAssigned):
                self.chosen[chosen.room.conversation] = chosen

    def find(self, place: Address) -> ConversationBinding:
        """Return the binding there, with the agent and the model that were chosen for the room."""
        found = super().find(place)
        room = place if place.thread is None else replace(place, thread=None)
        if (chosen := self.chosen.get(room.conversation)) is None:
            return found
        llm, agents = self._live.settings.llm, self._live.agents
        return replace(
            found,
            agent=chosen.agent if chosen.agent in agents else found.agent,
            model=chosen.model if chosen.model in llm.models else "",
        )


def build_patterns(settings: Settings) -> Sequence[BindingPattern]:
    """Return the bindings of all agents, in their order.

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
    return patterns


class LiveAccessPolicy(AccessPolicy):
    """Access policy of the settings in force, of decisions in the log, and of what platforms say
    about places.
    """

    def __init__(
        self, live: LiveSettings, roster: Roster, channels: Channels, bindings: Bindings
    ) -> None:
        self._roster, self._channels, self._bindings = roster, channels, bindings
        live.follow(self._use)

    def _use(self, settings: Settings) -> None:
        access = settings.access
        super().__init__(
            dm_policy=access.dm,
            roles=build_roles(settings),
            open_rooms={
                ChannelName(name): frozenset(map(RoomId, one.rooms))
                for name, one in settings.channels.items()
            },
            grants=build_grants(settings),
            platform_roles=[
                PlatformRoleRule(
                    one.channel, one.room, one.has, one.role, f"access.platform_roles[{number}]"
                )
                for number, one in enumerate(access.platform_roles)
            ],
            room_policy=access.rooms,
            allow_masks=access.masks,
            operator_channel=OPERATOR_CHANNEL if settings.ops.token is not None else None,
        )

    def space_of(self, at: Address) -> RoomId | None:
        return self._channels.space_of(at)

    def listed_rooms(self) -> Sequence[Address]:
        return self._channels.list_rooms()

    def agent_of(self, at: Address) -> str:
        return self._bindings.find(at).agent

    def roster_state(self) -> RosterState:
        return self._roster.state or self._roster.known


def find_agent(bindings: Bindings, at: Address, agents: Collection[str]) -> str:
    """Return which of the agents a place belongs to: the first where none of them is bound, because
    a place that no binding matches any more may still hold older messages.
    """
    name = at.room if at.channel == INNER_CHANNEL else bindings.find(at).agent
    return name if name in agents else next(iter(agents))


def build_roles(settings: Settings) -> Mapping[str, Role]:
    """Return the configured roles. A person listed twice has the strongest role; being blocked wins
    over all.
    """
    roles: dict[str, Role] = {}
    for role in (*ROLE_ORDER[1:], ROLE_ORDER[0]):
        for one in getattr(settings.access.roles, role):
            roles[normalize_person_key(one)] = role
    return roles


def build_grants(settings: Settings) -> Mapping[str, Sequence[RoleGrant]]:
    """Return the roles that hold in some places only, by person."""
    grants: dict[str, list[RoleGrant]] = {}
    for number, given in enumerate(settings.access.grants):
        scope = given.room or f"{AGENT_SCOPE_PREFIX}{given.agent}"
        grant = RoleGrant(given.role, scope, f"access.grants[{number}]")
        grants.setdefault(normalize_person_key(given.who), []).append(grant)
    return grants


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
        self.bindings = bindings
        self.channels = channels
        self.direct = LruDict[ConversationId, bool](_MAX_CACHED_PLACES)
        """Places of which is known whether they are direct chats, as their platforms say."""
        self._known_scopes: dict[ConversationId, _KnownScope] = {}

    async def load(self) -> None:
        """Read from the log what platforms reported last. Raises StoreError."""
        self.on_appended(await self._reader.current_facts("audience"))

    def on_appended(self, entries: Sequence[LogEntry]) -> None:
        """Update the scopes. Subscribes to `AudienceReported`."""
        for entry in entries:
            fact = entry.fact
            if isinstance(fact, AudienceReported):
                since, place = fact.since or entry.cause or entry.seq, fact.at.conversation
                before = self._known_scopes.get(place)
                if before is not None and before.scope == fact.scope:
                    since = before.since  # two messages at once may both bring it
                self._known_scopes[place] = _KnownScope(fact.scope, since, fact.space)
                if fact.space is not None:
                    self.channels.record_space(fact.at, fact.space)

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

    async def is_direct(self, conversation: ConversationId) -> bool | None:
        """Return whether it is a direct chat. None: no message was ever recorded there."""
        known = self.direct.get(conversation)
        if known is None and (newest := await self.newest_message(conversation)) is not None:
            known = newest.kind == "direct"
            self.direct.put(conversation, known)
        return known

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
        if self.bindings.find(Address.parse(conversation)).private:
            return True
        return await self.is_direct(conversation) is not False

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Return the scope of messages there: who may read them (`gateway.core.scopes`).

        `seq`: of an entry there; None: of messages written now. An agent's inner conversation is
        its own scope.
        """
        if is_inner(conversation) or await self.is_private(conversation):
            return conversation
        return self._scope(Address.parse(conversation), seq)

    def _scope(self, place: Address, seq: Seq | None = None) -> str:
        """Return the scope of messages in a room that is not private."""
        conversation = place.conversation
        known, reported = self._known_scopes.get(conversation), self.channels.scope_of(place)
        current = reported if reported is not None or known is None else known.scope
        is_closed_thread = (
            place.thread is not None and current == conversation
        )  # a room's binding does not open it
        bound = self.bindings.find(place)
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
            if self.bindings.find(at).private or await self.is_direct(at.conversation):
                continue
            match await self.channels.membership(at, person.id):
                case "reads_all":
                    return 0
                case "reads_new":
                    room = Address(channel=at.channel, room=at.room).conversation
                    return await _find_presence(self._reader, room, person.id)
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
                if group_scope(self.bindings.find(at).group) == scope and at.thread is None
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
        place, direct = Address.parse(conversation), await self.is_direct(conversation)
        is_private = bool(self.bindings.find(place).private) or direct is not False
        scope = str(conversation) if is_private else self._scope(place)
        other_scopes, is_shared, alone_with = {str(conversation)}, direct is False, None
        if direct and not everything:
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


async def _find_presence(reader: StoreReader, room: ConversationId, person: SenderId) -> Seq | None:
    """Return where the log first shows that person in a room: their newest joining, else their
    first message.

    That is after the last time they left by themselves. None: it does not show them there.
    """
    changed = first_entry(await reader.rows(LAST_COME_OR_GONE, room, person))
    fact = changed.fact if changed is not None else None
    if changed is not None and isinstance(fact, MembershipChanged) and fact.change == "join":
        return changed.seq
    gone = changed.seq if changed is not None else 0
    spoke = first_entry(await reader.rows(FIRST_MESSAGE_OF, room, person, gone))
    return spoke.seq if spoke is not None else None
