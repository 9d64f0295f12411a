"""An agent whose turns a test takes."""

import asyncio
from typing import Any, Protocol

from agent.signals import DmnPolicy, DmnState, TurnEnded
from gateway.config.models import AgentConfig
from gateway.config.reload import LiveSettings
from gateway.context.conversation import ConversationLocks, ConversationReader
from gateway.context.digest import DigestBuilder
from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.core.facts import inner_conversation
from gateway.hooks import Plugins
from gateway.runtime.agent import Agent
from gateway.runtime.models import AgentModel
from gateway.runtime.turn import TurnRunner
from gateway.runtime.turn_handle import TurnHandle
from gateway.store import Store
from gateway.stream.inbox import ConversationInbox
from gateway.stream.routing import PrivacyCache
from reverie.testing.gateway import settings
from tests.kits.commands import parts_of
from tests.kits.handle import handle_of
from tests.kits.settings import live_settings


def digests_of(
    agent: str,
    reader: ConversationReader,
    *,
    store: Store,
    clock: Clock,
    places: PrivacyCache,
    locks: ConversationLocks | None = None,
) -> DigestBuilder:
    """Return the digests of an agent to which all rooms belong that are not bound elsewhere."""
    live = live_settings(agents=[AgentConfig(id=agent)])
    return DigestBuilder(
        agent,
        handle_of(store, clock, live=live, places=places, people=reader.access_policy),
        reader=reader,
        locks=locks or ConversationLocks(),
        inbox=ConversationInbox(clock, live),
    )


class TakesTurns(Protocol):
    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnEnded: ...

    async def unread_urgency(self, conversation: ConversationId) -> int: ...


class DrivenAgent(Agent):
    """An agent around the turns of a test. Without any it begins none."""

    def __init__(
        self,
        turns: TakesTurns | None,
        store: Store,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        *,
        agent: str = "ana",
        policy: DmnPolicy | None = None,
        state: DmnState | None = None,
    ) -> None:
        live = LiveSettings(settings(store.path.parent, agents=[{"id": agent}]))
        nothing = parts_of()
        running = parts_of(tracker=None)
        services = parts_of(
            plugins=Plugins(),
            presence=parts_of(level="present"),
            limits=parts_of(spent_today_usd=lambda _: 0.0),
            media=None,
            registry=parts_of(running=running),
        )
        super().__init__(
            live.settings.agents[0],
            handle_of(store, clock, live=live, tasks=tasks),
            TurnRunner(services, nothing),
            models=parts_of(pool=parts_of(get=lambda *_: None, hold=lambda _: None)),
            inbox=ConversationInbox(clock, live),
            dreams=None,
            mute=nothing,
            state=state or DmnState(),
        )
        self.policy = policy or DmnPolicy(inner=inner_conversation(agent))
        self.turns = turns

    def _build_context(self, agent_model: AgentModel) -> Any:
        return parts_of(model=agent_model)

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnEnded:
        assert self.turns is not None
        return await self.turns.take_turn(
            conversation, autonomous=autonomous, continuing=continuing, handle=handle
        )

    async def unread_urgency(self, conversation: ConversationId) -> int:
        assert self.turns is not None
        return await self.turns.unread_urgency(conversation)
