"""The loop of an agent whose turns a test takes."""

import asyncio
from typing import Protocol

from agent.signals import DmnPolicy, DmnState
from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.core.facts import inner_conversation
from gateway.runtime.loop import AgentLoop, TurnHandle, TurnResult
from gateway.store import Store


class TakesTurns(Protocol):
    """As `AgentLoop`."""

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnResult: ...

    async def dream(self, handle: TurnHandle) -> TurnResult: ...

    async def give_up(
        self, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnResult: ...

    async def unread_urgency(self, conversation: ConversationId) -> int: ...


class DrivenLoop(AgentLoop):
    """A loop around the turns of a test."""

    def __init__(
        self,
        turns: TakesTurns,
        store: Store,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        *,
        agent: str = "ana",
        policy: DmnPolicy | None = None,
        state: DmnState | None = None,
    ) -> None:
        policy = policy or DmnPolicy(inner=inner_conversation(agent))
        super().__init__(agent, store, clock, policy=policy, state=state or DmnState(), tasks=tasks)
        self.turns = turns
        self.queued: list[ConversationId] = []

    async def take_turn(
        self,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool,
        handle: TurnHandle,
    ) -> TurnResult:
        return await self.turns.take_turn(
            conversation, autonomous=autonomous, continuing=continuing, handle=handle
        )

    async def dream(self, handle: TurnHandle) -> TurnResult:
        return await self.turns.dream(handle)

    async def give_up(
        self, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnResult:
        return await self.turns.give_up(conversation, reason, autonomous=autonomous)

    def show_queued(self, conversation: ConversationId, *, waits: bool) -> None:
        pass

    async def tell_queued(self, conversation: ConversationId) -> None:
        self.queued.append(conversation)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        return await self.turns.unread_urgency(conversation)

    def is_arriving(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - as the product's
        return False

    def is_direct(self, conversation: ConversationId) -> bool:  # noqa: ARG002 - as the product's
        return False

    def material_tokens(self) -> int:
        return 0
