"""The agents of a gateway: which of them takes a conversation's turns, and what each is made of."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from agent.models.base import ModelError
from agent.turn import NoTools, beginning
from agent.workspace import default_workspace
from agent.workspace.bundle import Bundle, Scope
from gateway import access
from gateway.bindings import Bindings
from gateway.briefing import Briefing
from gateway.cards import Cards
from gateway.clock import Clock
from gateway.equipment import Equipment
from gateway.events import Account, Address, ConversationId
from gateway.hearing import Hearing
from gateway.media import Media
from gateway.preview import Signs
from gateway.settings import AgentConfig, Settings
from gateway.store import OutboxPost, Store
from gateway.turns import Report, Turns

logger = logging.getLogger("reverie.minds")

_TOOLS = NoTools()
Me = Callable[[Scope], Awaitable[Bundle]]
"""Who an agent is by now."""


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
    answered: Callable[[str, Account], None]
    """Called with the agent and each model request that was answered."""


class Minds:
    """All agents as one: a turn is taken by the agent whose binding the conversation matches."""

    def __init__(self, shared: Shared, equipment: Equipment) -> None:
        self._live = equipment.live
        self._bindings = shared.bindings
        agents = shared.settings.agents
        self._models = equipment.models
        self._me = {agent.id: _self(agent, equipment) for agent in agents}
        self._turns = {agent.id: _turns(agent.id, self._me[agent.id], shared, equipment) for agent in agents}
        self._first = self._turns[agents[0].id]

    def _of(self, conversation: ConversationId) -> Turns:
        # What no binding matches any more may still hold what was said while one did.
        return self._turns.get(self._bindings.of(Address.parse(conversation)).agent, self._first)

    async def warm_up(self) -> None:
        """Have local models read in what all conversations begin with, so that nobody's first message pays for it."""
        for agent, model in self._models.items():
            if model.family not in {"local", "llamacpp"}:  # elsewhere a prompt that nobody needs yet costs money
                continue
            try:
                me = await self._me[agent]("public")
                request = beginning(me.identity, "", model, _TOOLS, key=agent)
                async with aclosing(model.stream(request)) as chunks:
                    async for _ in chunks:
                        pass
            except (ModelError, OSError) as error:  # whoever speaks first will wait for it, or be told
                logger.debug("what %s begins with is not read in ahead of time: %s", agent, error)

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:
        """As `gateway.loop.Taker`. What the operator has changed meanwhile counts already."""
        await self._live.refresh()
        return await self._of(conversation).take(conversation, autonomous=autonomous)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """As `gateway.loop.Taker`."""
        return await self._of(conversation).give_up(conversation, reason, autonomous=autonomous)

    async def left(self, conversation: ConversationId) -> int:
        """As `gateway.loop.Taker`."""
        return await self._of(conversation).left(conversation)


def _turns(agent: str, me: Me, shared: Shared, equipment: Equipment) -> Turns:
    model = equipment.models[agent]
    peers = tuple(sorted(other.id for other in shared.settings.agents if other.id != agent))
    briefing = Briefing(
        me=me,
        peers=peers,
        bindings=shared.bindings,
        who=shared.who,
        cards=shared.cards,
        kept=partial(equipment.keep_warm.kept, agent),
    )
    return Turns(
        store=shared.store,
        clock=shared.clock,
        model=model,
        tools=_TOOLS,
        agent_id=agent,
        briefing=briefing,
        hearing=Hearing(shared.store, shared.who, shared.media),
        media=shared.media,
        signs=shared.signs,
        post=shared.post,
        answered=shared.answered,
    )


def _self(agent: AgentConfig, equipment: Equipment) -> Me:
    root, family = agent.workspace or default_workspace(), equipment.models[agent.id].family

    async def me(scope: Scope) -> Bundle:
        cached = equipment.live.switches(agent.id).workspace_cache
        return await equipment.workspaces.get(root, scope=scope, family=family, cached=cached)

    return me
