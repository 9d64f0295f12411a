"""Every handler of the command table, and what may stand in its arguments, made with what they need."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass

from channels.base import Channel, CommandCompletion
from gateway.access.approval_texts import Approver
from gateway.access.roster import read_recent_senders
from gateway.commands.agent import (
    DmnCommands,
    LimitedModelCommands,
    ModelCommands,
    OperationsCommands,
    PendingCommands,
    ReminderCommands,
)
from gateway.commands.context import CommandFollowUp, CommandHandler
from gateway.commands.help import SuggestionSource
from gateway.commands.info import BASE_HANDLERS, CrossRoomCommands, LogCommands
from gateway.commands.journal import JournalCommands
from gateway.commands.notifications import NotificationCommands
from gateway.commands.people import PeopleCommands, PeopleContext
from gateway.commands.rooms import RoomCommands, SayCommand
from gateway.config.reload import LiveSettings
from gateway.context.services import BackgroundServices
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, Command
from gateway.core.facts import Seq
from gateway.core.identity import ADMIN_ROLES, identify, person_key
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redact
from gateway.runtime.agents import Agents
from gateway.store import OutboxPost, Store
from gateway.stream import attention
from gateway.stream.access_service import AccessService
from gateway.stream.attention import AttentionOverrideStore
from gateway.stream.rooms import RoomMembership
from gateway.stream.routing import Bindings
from gateway.stream.supervisor import ChannelSupervisor
from gateway.tools.approvals import ApprovalDecisions
from gateway.tools.platform import ConversationLocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandServices:
    """All that commands may act on."""

    live: LiveSettings
    store: Store
    clock: Clock
    channels: Mapping[ChannelName, Channel]
    people: AccessService
    bindings: Bindings
    attention_policy: attention.AttentionPolicy
    overrides: AttentionOverrideStore
    services: BackgroundServices
    agents: Agents
    room_access: ConversationLocks
    travels: RoomMembership
    runner: ChannelSupervisor
    stats: GatewayStats
    redact: Redact
    approvals: ApprovalDecisions
    post: Callable[[OutboxPost], None]
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]


class CommandRegistry:
    """All of them."""

    def __init__(self, house: CommandServices) -> None:
        self._services = house
        people, later = (
            house.people,
            CommandFollowUp(house.store, house.clock, house.post, house.services.places.titles.add_titles),
        )
        self._rooms = RoomCommands(
            reader=house.store,
            clock=house.clock,
            who=people.policy,
            bindings=house.bindings,
            channels=house.channels.keys(),
            travels=house.travels,
            later=later,
            titles=house.services.places.titles,
        )
        self._say = SayCommand(
            reader=house.store,
            who=people.policy,
            bindings=house.bindings,
            places=house.services.places,
            channels=house.channels.keys(),
            doors=house.room_access,
            forget=house.agents.forget_view,
            post=house.post,
            spawn=house.spawn,
            rooms=self._rooms.known_rooms,
            inside=house.travels.is_inside,
        )
        self._operations = OperationsCommands(runner=house.runner, stats=house.stats, live=house.live, later=later)
        self._remind = ReminderCommands(house.services.reminders, house.store, house.services.places)
        self._notify = NotificationCommands(house.overrides, house.store, house.attention_policy)
        self._journal = _build_journal_commands(house, later)
        self._dmn = DmnCommands(
            house.agents.loops,
            house.services.places,
            house.clock,
            agent_of=_build_agent_lookup(house),
            timezone=lambda: house.live.settings.dmn.timezone,
        )

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """What answers: by `name` or `name sub`, all of the table."""
        house, people, store, places = (
            self._services,
            self._services.people,
            self._services.store,
            self._services.services.places,
        )
        persons = PeopleContext(
            roster=people.roster,
            policy=people.policy,
            linking=people.account_linker,
            channel_names=people.channel_style,
            clock=house.clock,
        )
        return {
            **BASE_HANDLERS,
            **PeopleCommands(persons).handlers,
            **LimitedModelCommands(people.limits.take_or_explain, _build_agent_lookup(house)).handlers,
            **self._dmn.handlers,
            **PendingCommands(store, places).handlers,
            **ModelCommands(house.agents.turn_stopper, house.agents.model_selector).handlers,
            **CrossRoomCommands(places).handlers,
            **LogCommands(store, house.redact, places).handlers,
            **self._remind.handlers,
            **self._notify.handlers,
            **self._journal.handlers,
            **self._rooms.handlers,
            **self._say.handlers,
            **self._operations.handlers,
        }

    @property
    def suggestion_sources(self) -> Mapping[str, SuggestionSource]:
        """What may stand in arguments, as `gateway.commands.help` has it."""
        return {
            "who": self._suggest_people,
            "account": self._suggest_accounts,
            "room": self._suggest_rooms,
            "channel": self._suggest_channels,
            "model switch name": self._suggest_models,
            "approve id": self._suggest_waiting_approvals,
            "deny id": self._suggest_waiting_approvals,
            "revoke tool": self._suggest_granted_tools,
            "remind cancel id": self._remind.suggest_ids,
            "notify unrule id": self._notify.suggest,
            "type": self._notify.suggest,
            "note": self._journal.suggest_numbers,
        }

    async def _suggest_people(self, typed: CommandCompletion) -> list[str]:
        """Who spoke there lately: names that mean one of them, then ids; then, to admins of all, who has a role."""
        recent = await read_recent_senders(self._services.store, typed.at.conversation)
        names = Counter(sender.name for sender in recent.values())
        named = [name for name, times in names.items() if times == 1]
        wide = identify(self._services.people.policy, typed.at, typed.sender).global_role in ADMIN_ROLES
        known = [one.person for one in self._services.people.roster.roles] if wide else []
        return [*named, *recent, *known]

    async def _suggest_accounts(self, typed: CommandCompletion) -> list[str]:
        own = person_key(typed.at.channel, typed.sender.id)
        return sorted(self._services.people.policy.roster_state().links.get(own, ()))

    async def _suggest_rooms(self, _typed: CommandCompletion) -> list[str]:
        titles = self._services.services.places.titles
        return [titles.label(place.conversation) for place in await self._rooms.known_rooms()]

    async def _suggest_channels(self, _typed: CommandCompletion) -> list[str]:
        return list(self._services.channels)

    async def _suggest_models(self, _typed: CommandCompletion) -> list[str]:
        return [one.name for one in self._services.agents.model_selector.list_models()]

    async def _suggest_waiting_approvals(self, typed: CommandCompletion) -> list[str]:
        return [one.request.approval for one in self._services.approvals.list_waiting(self._build_approver(typed))]

    async def _suggest_granted_tools(self, typed: CommandCompletion) -> list[str]:
        return [one.tool for one in await self._services.approvals.list_grants(self._build_approver(typed))]

    def _build_approver(self, typed: CommandCompletion) -> Approver:
        who = identify(self._services.people.policy, typed.at, typed.sender)
        return Approver(
            at=typed.at, sender=typed.sender.id, role=who.role, is_direct=typed.direct, global_role=who.global_role
        )


def _build_journal_commands(house: CommandServices, later: CommandFollowUp) -> JournalCommands:
    life = house.services

    async def tell(command: Command, cause: Seq, words: str) -> None:
        await later.send(command, cause, words, private=True)

    return JournalCommands(
        house.store,
        life.places,
        life.forgetter,
        memory=life.memory.read,
        by_hand=life.journal_store.read_handwritten,
        agent_of=_build_agent_lookup(house),
        spawn=house.spawn,
        tell=tell,
        let_in=life.memory.approve,
        redact=house.redact,
    )


def _build_agent_lookup(house: CommandServices) -> Callable[[Address], str]:
    return lambda at: house.agents.agent_for(at.conversation).id
