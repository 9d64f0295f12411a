"""Command registry: all handlers of the command table, and the sources of argument suggestions, with their services."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
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
from gateway.core.redaction import Redactor
from gateway.runtime.agents import Agents
from gateway.runtime.model_choice import ModelSelector
from gateway.store import Store
from gateway.stream import attention
from gateway.stream.access_service import AccessService
from gateway.stream.attention import AttentionOverrideStore
from gateway.stream.rooms import RoomMembership
from gateway.stream.routing import Bindings
from gateway.stream.supervisor import ChannelSupervisor
from gateway.tools.approvals import Approvals
from gateway.tools.platform import ConversationLocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandServices:
    """Services that command handlers use."""

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
    model_selector: ModelSelector
    room_access: ConversationLocks
    travels: RoomMembership
    runner: ChannelSupervisor
    stats: GatewayStats
    redactor: Redactor
    approvals: Approvals
    tasks: asyncio.TaskGroup


class CommandRegistry:
    """All handlers and suggestion sources."""

    def __init__(self, services: CommandServices) -> None:
        self._services = services
        people, follow_up = (
            services.people,
            CommandFollowUp(services.store, services.clock, services.services.places.titles.add_titles),
        )
        self._rooms = RoomCommands(
            reader=services.store,
            clock=services.clock,
            policy=people.policy,
            bindings=services.bindings,
            channels=services.channels.keys(),
            membership=services.travels,
            follow_up=follow_up,
            titles=services.services.places.titles,
        )
        self._say = SayCommand(
            policy=people.policy,
            bindings=services.bindings,
            places=services.services.places,
            channels=services.channels.keys(),
            locks=services.room_access,
            forget=services.agents.forget_view,
            rooms=self._rooms.known_rooms,
            inside=services.travels.is_inside,
        )
        self._operations = OperationsCommands(
            supervisor=services.runner, stats=services.stats, live=services.live, follow_up=follow_up
        )
        self._remind = ReminderCommands(services.services.reminders, services.store, services.services.places)
        self._notify = NotificationCommands(services.overrides, services.store, services.attention_policy)
        self._journal = _build_journal_commands(services, follow_up)
        self._dmn = DmnCommands(
            services.agents.agents,
            services.services.places,
            services.clock,
            agent_of=_build_agent_lookup(services),
            timezone=lambda: services.live.settings.dmn.timezone,
        )

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """Handlers by `name` or `name sub`, for the whole table."""
        services, people, store, places = (
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
            clock=services.clock,
        )
        return {
            **BASE_HANDLERS,
            **PeopleCommands(persons).handlers,
            **LimitedModelCommands(people.limits.take_or_explain, _build_agent_lookup(services)).handlers,
            **self._dmn.handlers,
            **PendingCommands(store, places).handlers,
            **ModelCommands(services.agents, services.model_selector).handlers,
            **CrossRoomCommands(places).handlers,
            **LogCommands(store, services.redactor, places).handlers,
            **self._remind.handlers,
            **self._notify.handlers,
            **self._journal.handlers,
            **self._rooms.handlers,
            **self._say.handlers,
            **self._operations.handlers,
        }

    @property
    def suggestion_sources(self) -> Mapping[str, SuggestionSource]:
        """Suggestion sources by argument, for `gateway.commands.help`."""
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
        """Suggest names and ids of recent senders there; then, to admins everywhere, people with a role."""
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
        return [one.name for one in self._services.model_selector.list_models()]

    async def _suggest_waiting_approvals(self, typed: CommandCompletion) -> list[str]:
        return [one.approval for one, _ in self._services.approvals.list_waiting(self._build_approver(typed))]

    async def _suggest_granted_tools(self, typed: CommandCompletion) -> list[str]:
        return [one.tool for one in await self._services.approvals.list_grants(self._build_approver(typed))]

    def _build_approver(self, typed: CommandCompletion) -> Approver:
        who = identify(self._services.people.policy, typed.at, typed.sender)
        return Approver(
            at=typed.at, sender=typed.sender.id, role=who.role, is_direct=typed.direct, global_role=who.global_role
        )


def _build_journal_commands(services: CommandServices, follow_up: CommandFollowUp) -> JournalCommands:
    background = services.services

    async def send_follow_up(command: Command, cause: Seq, words: str) -> None:
        await follow_up.send(command, cause, words, private=True)

    return JournalCommands(
        services.store,
        background.places,
        background.forgetter,
        read_memory=background.memory.read,
        read_handwritten=background.journal_store.read_handwritten,
        agent_of=_build_agent_lookup(services),
        tasks=services.tasks,
        send_follow_up=send_follow_up,
        approve_note=background.memory.approve,
        redactor=services.redactor,
    )


def _build_agent_lookup(services: CommandServices) -> Callable[[Address], str]:
    return lambda at: services.agents.agent_for(at.conversation).id
