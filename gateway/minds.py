"""The agents of a gateway: which of them takes a conversation's turns, and what each is made of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.models.base import Model
from agent.models.build import build_model
from agent.turn import NoTools
from agent.workspace import default_workspace, persona
from gateway import access
from gateway.bindings import Bindings
from gateway.briefing import Briefing, Self
from gateway.cards import Cards
from gateway.clock import Clock
from gateway.events import Address, ConversationId
from gateway.hearing import Hearing
from gateway.media import Media
from gateway.preview import Signs
from gateway.settings import AgentConfig, Settings
from gateway.store import OutboxPost, Store
from gateway.turns import Report, Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all agents have in common."""

    settings: Settings
    store: Store
    clock: Clock
    bindings: Bindings
    who: access.Policy
    cards: Cards
    media: Media
    signs: Signs
    post: Callable[[OutboxPost], None]
    """Called with every reply, after it is durable."""


@contextlib.asynccontextmanager
async def models_of(settings: Settings, clock: Clock, model: Model | None) -> AsyncIterator[dict[str, Model]]:
    """What each agent thinks with, by its id; `model` for all of them, if it is given. Closed at the end."""
    made: dict[str, Model] = {}
    llm = settings.llm
    models = {
        agent.id: model or build_model(agent.model, llm.models, llm.providers, clock, made=made)
        for agent in settings.agents
    }
    try:
        yield models
    finally:
        for one in {id(one): one for one in models.values()}.values():
            await one.aclose()


class Minds:
    """All agents as one: a turn is taken by the agent whose binding the conversation matches."""

    def __init__(self, shared: Shared, models: Mapping[str, Model]) -> None:
        """`models`: by the id of the agent that thinks with it."""
        self._bindings = shared.bindings
        agents = shared.settings.agents
        self._turns = {agent.id: _turns(agent, shared, models[agent.id]) for agent in agents}
        self._first = self._turns[agents[0].id]

    def _of(self, conversation: ConversationId) -> Turns:
        # What no binding matches any more may still hold what was said while one did.
        return self._turns.get(self._bindings.of(Address.parse(conversation)).agent, self._first)

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:
        """As `gateway.loop.Taker`."""
        return await self._of(conversation).take(conversation, autonomous=autonomous)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """As `gateway.loop.Taker`."""
        return await self._of(conversation).give_up(conversation, reason, autonomous=autonomous)

    async def left(self, conversation: ConversationId) -> int:
        """As `gateway.loop.Taker`."""
        return await self._of(conversation).left(conversation)


def _turns(agent: AgentConfig, shared: Shared, model: Model) -> Turns:
    peers = tuple(sorted(other.id for other in shared.settings.agents if other.id != agent.id))
    briefing = Briefing(
        me=_self(agent.workspace or default_workspace(), model.family),
        peers=peers,
        bindings=shared.bindings,
        who=shared.who,
        cards=shared.cards,
    )
    return Turns(
        store=shared.store,
        clock=shared.clock,
        model=model,
        tools=NoTools(),
        agent_id=agent.id,
        briefing=briefing,
        hearing=Hearing(shared.store, shared.who, shared.media),
        media=shared.media,
        signs=shared.signs,
        post=shared.post,
    )


def _self(workspace: Path, family: str) -> Callable[[], Awaitable[Self]]:
    async def me() -> Self:
        return Self(persona=await asyncio.to_thread(persona, workspace, family))

    return me
