"""The way in of every channel, wired: who is heard, what is a command, where an event goes from there."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from agent.signals import PresenceLevel
from channels.base import CanDirectMessage, CanPage, Channel, HasAudience, HasNick, HasPlaceNames, HasSpaces
from gateway import attention, policies
from gateway.bindings import Bindings
from gateway.channels_now import ChannelLookup
from gateway.clock import Clock
from gateway.commands.desk import CommandDispatcher
from gateway.commands.handlers import BASE_HANDLERS
from gateway.commands.world import CommandContext, CommandHandler
from gateway.events import Address, ChannelName, PlaceNames, Post, RoomId, Sender
from gateway.exchanges import BotLoopGuard
from gateway.intake import Intake, IntakeCallbacks
from gateway.judging import GreetStranger, IntakePolicy, IntakeRules, LimitCheck
from gateway.limits.limits import LimitDecision
from gateway.live import LiveSettings
from gateway.ops.operator import OperatorChannel
from gateway.ops.stats import GatewayStats
from gateway.records import PartSendStarted, PostQueued
from gateway.redaction import Redact
from gateway.rewinds import Rewinder
from gateway.scopes import PUBLIC, space_scope
from gateway.standing import AccessPolicy
from gateway.store import AppendResult, NewEntry, Store
from gateway.titles import PlaceTitles
from gateway.tools.deciding import ApprovalDecisions
from gateway.tools.toolbox import ToolList

NATIVE_COMMAND_PLATFORMS = frozenset({"telegram", "discord"})
"""Platforms with commands of their own, which begin with a slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeServices:
    """What the intakes of all channels share."""

    live: LiveSettings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    access_policy: AccessPolicy
    bindings: Bindings
    stats: GatewayStats
    model: Callable[[], str]
    mode: Callable[[], str]
    rewinds: Rewinder
    titles: PlaceTitles | None = None
    """What places are called. None: what the channels tell."""
    greet: GreetStranger = lambda _event, _decision: None
    notify_owners: Callable[[str, str], None] = lambda _key, _text: None
    limit: LimitCheck = lambda _message, judged, _agent: LimitDecision(judged)
    level: Callable[[], PresenceLevel] = lambda: "present"
    """How near people are."""
    attention_policy: attention.AttentionPolicy | None = None
    """What attention goes by. None: what is configured."""
    handlers: Mapping[str, CommandHandler] = field(default_factory=lambda: BASE_HANDLERS)
    """What answers commands, by `name` or `name sub`."""
    redact: Redact = str
    """Given what commands answer, and what is written down of administration."""
    approvals: ApprovalDecisions | None = None
    """As `CommandContext.deciding`."""
    tools: Callable[[Address], ToolList] = lambda _: ToolList()
    """As `CommandContext.tools`."""


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


class ChannelIntakes(Mapping[ChannelName, Intake]):
    """One for each channel, made when it is asked for first."""

    def __init__(self, parts: IntakeServices, doors: IntakeCallbacks) -> None:
        self._parts, self._doors, self._rules = parts, doors, _build_rules(parts)
        self._titles = parts.titles or PlaceTitles(parts.store, names=make_names_lookup(parts.channels))
        self._intakes: dict[ChannelName, Intake] = {}

    def __getitem__(self, name: ChannelName) -> Intake:
        parts = self._parts
        if name not in parts.channels:
            raise KeyError(name)
        if name not in self._intakes:
            judging = IntakePolicy(self._rules, parts.store, parts.clock)
            self._intakes[name] = Intake(
                name,
                store=parts.store,
                clock=parts.clock,
                judging=judging,
                stats=parts.stats,
                doors=self._doors,
                titles=self._titles,
            )
        return self._intakes[name]

    def __iter__(self) -> Iterator[ChannelName]:
        return iter(self._parts.channels)

    def __len__(self) -> int:
        return len(self._parts.channels)

    def drop(self, name: ChannelName) -> None:
        """Forget a channel that has gone."""
        self._intakes.pop(name, None)


def _build_rules(parts: IntakeServices) -> IntakeRules:
    """What all of them judge by."""
    live = parts.live
    desk = CommandDispatcher(
        _build_command_context(parts),
        parts.access_policy,
        lambda: live.settings.commands,
        answers=parts.handlers,
        ours=_make_nick_lookup(parts.channels),
        redact=parts.redact,
        named=parts.titles.add_titles if parts.titles is not None else str,
    )
    loops = BotLoopGuard()

    def spoke(entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        for entry, one in zip(entries, written, strict=True):
            if not one.is_new or entry.conversation is None:
                continue
            if isinstance(entry.fact, PostQueued):
                loops.record_post(entry.conversation, entry.fact.post.text)
            elif isinstance(entry.fact, PartSendStarted) and not entry.fact.part:
                loops.record_sending(entry.conversation, parts.clock.monotonic())

    parts.store.add_listener(spoke)
    return IntakeRules(
        access=parts.access_policy,
        attention=parts.attention_policy or policies.build_attention_policy(live.settings),
        bindings=parts.bindings,
        dispatcher=desk,
        max_bot_exchanges=lambda: live.settings.access.max_bot_exchanges,
        greet=parts.greet,
        limit=parts.limit,
        level=parts.level,
        loop_guard=loops,
        notify_owners=parts.notify_owners,
    )


def _make_nick_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[ChannelName], Collection[str] | None]:
    """What we are called where commands may be given by saying our name."""
    named = ChannelLookup[HasNick](channels, lambda one: one if isinstance(one, HasNick) else None)

    def called(name: ChannelName) -> Collection[str] | None:
        channel = named.get(name)
        return None if channel is None else {channel.nick.casefold()}

    return called


def _build_command_context(parts: IntakeServices) -> CommandContext:
    paged = ChannelLookup[CanPage](parts.channels, lambda one: one if isinstance(one, CanPage) else None)
    reach = make_private_address_lookup(parts.channels)

    def contact(name: ChannelName) -> str | None:
        said = parts.live.settings
        return getattr(said.channels.get(name), "contact", None) or said.commands.contact

    def pages(post: Post) -> int:
        channel = paged.get(post.to.channel)
        return 1 if channel is None else channel.page_count(post)

    return CommandContext(
        reader=parts.store,
        clock=parts.clock,
        stats=parts.stats,
        version=version("reverie-gateway"),
        model_name=parts.model,
        agent_mode=parts.mode,
        operator_contact=contact,
        prefixes=CommandPrefixes(parts.live, parts.channels),
        rewinds=parts.rewinds,
        count_pages=pages,
        approvals=parts.approvals,
        tools_at=parts.tools,
        awaiting_channels=ChannelLookup(parts.channels, lambda channel: channel.capabilities.defers_commands or None),
        private_address=lambda command: reach(command.at, command.sender),
    )


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


def make_names_lookup(channels: Mapping[ChannelName, Channel]) -> Callable[[Address], PlaceNames | None]:
    """What people call a place, asked of its channel."""
    able = ChannelLookup[HasPlaceNames](channels, lambda one: one if isinstance(one, HasPlaceNames) else None)

    def names(at: Address) -> PlaceNames | None:
        channel = able.get(at.channel)
        return None if channel is None else channel.place_names(at)

    return names


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
