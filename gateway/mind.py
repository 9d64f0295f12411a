"""One agent: what takes its turns, what it can do, and its outer loop."""

import random
from collections.abc import Awaitable, Callable
from datetime import UTC
from functools import partial
from pathlib import Path

from agent.signals import State
from agent.tools import mind as tools
from agent.workspace import default_workspace
from agent.workspace.bundle import Bundle, Scope
from gateway import policies
from gateway.acting import Acting
from gateway.briefing import Briefing
from gateway.compacting import Compacting
from gateway.digest import Digests
from gateway.dreams import Dreams
from gateway.equipment import Equipment
from gateway.events import Address, ConversationId
from gateway.folds import Folds
from gateway.guidance import Guidance
from gateway.hands import Hand, Hands
from gateway.hearing import Hearing
from gateway.lane import Lane
from gateway.loop import Loop
from gateway.means import Means
from gateway.purse import Purse
from gateway.records import is_inner
from gateway.repose import Repose
from gateway.settings import AgentConfig
from gateway.shared import Shared
from gateway.turns import Report, Turns
from gateway.views import Views

Me = Callable[[Scope], Awaitable[Bundle]]
"""Who an agent is by now."""


class Mind:
    """One agent. As `gateway.taker.Taker` it takes the turns that its loop starts."""

    def __init__(
        self,
        agent: AgentConfig,
        shared: Shared,
        equipment: Equipment,
        state: State,
        *,
        owns: Callable[[ConversationId], bool],
    ) -> None:
        """`state`: of its DMN, from the last run. `owns`: whether the turns somewhere are this agent's."""
        self.id = agent.id
        self._shared = shared
        self._live = equipment.live
        self.model = equipment.models[agent.id]
        self.me = _self(agent, equipment, shared.life.directory(agent.id))
        policy = policies.dmn_policy(shared.settings, agent.id)
        self.loop = Loop(
            agent=agent.id,
            store=shared.store,
            clock=shared.clock,
            turns=self,
            policy=policy,
            state=state,
            spawn=shared.spawn,
            waits=shared.waits,
        )
        self._purse = Purse(ceiling_usd=equipment.ceilings[agent.id], left_usd=self._left_usd)
        self._hearing = Hearing(shared.store, shared.who, shared.media)
        self._digests = self._looking(owns)
        acting = self._acting()
        self.hands = self._hands(acting)
        briefing = self._briefing(equipment)
        self._dreams = self._dreaming(briefing)
        guidance = Guidance(state=lambda: self.loop.state, acting=acting, returned=shared.life.returned)
        self._turns = Turns(
            self._means(equipment, briefing, guidance),
            signs=shared.signs,
            digests=self._digests,
            post=shared.post,
            answered=shared.answered,
        )

    def _means(self, equipment: Equipment, briefing: Briefing, guidance: Guidance) -> Means:
        shared, live, model = self._shared, equipment.live, self.model
        views = Views(shared.store, shared.clock, shared.media, simple=not model.takes_tools or model.family == "local")
        compacting = Compacting(
            agent=self.id,
            store=shared.store,
            clock=shared.clock,
            random=random.random,
            model=lambda: equipment.summarizer or model,
            said=lambda: live.optimization.compaction,
            compacted=partial(shared.compacted, self.id),
        )
        folds = Folds(
            store=shared.store,
            clock=shared.clock,
            views=views,
            model=model,
            outlook=equipment.outlooks[self.id],
            said=lambda: live.optimization,
            compacts=lambda: live.switches(self.id).compaction,
            compacting=compacting,
        )
        return Means(
            store=shared.store,
            clock=shared.clock,
            model=model,
            agent_id=self.id,
            briefing=briefing,
            hearing=self._hearing,
            media=shared.media,
            views=views,
            folds=folds,
            evidence=shared.life.evidences,
            recalling=shared.life.recalling,
            context=lambda: live.optimization,
            recall=shared.settings.recall,
            hands=self.hands.at,
            guidance=guidance,
            afford=lambda _agent, request: self._purse.afford(request),
            truncated=lambda: shared.compacted(self.id, "tool_result_truncated", None),
        )

    def _looking(self, owns: Callable[[ConversationId], bool]) -> Digests:
        shared = self._shared
        return Digests(
            agent=self.id,
            store=shared.store,
            clock=shared.clock,
            places=shared.life.places,
            hearing=self._hearing,
            plain=self.model.family == "local",
            mine=owns,
            busy=shared.doors.busy,
        )

    def _acting(self) -> Acting:
        shared = self._shared
        return Acting(
            agent=self.id,
            store=shared.store,
            clock=shared.clock,
            bindings=shared.bindings,
            places=shared.life.places,
            who=shared.who,
            channels=shared.channels,
            doors=shared.doors,
            digests=self._digests,
            post=shared.post,
            forget=self.forget,
        )

    def _dreaming(self, briefing: Briefing) -> Dreams:
        shared = self._shared
        return Dreams(
            agent=self.id,
            store=shared.store,
            clock=shared.clock,
            model=self.model,
            dreaming=shared.life.dreaming,
            briefing=briefing,
            hands=self.hands.at,
            memory_chars=shared.settings.dmn.memory_chars,
            afford=self._purse.afford,
            answered=shared.answered,
            finished=shared.life.inward.tell,
            forget=self.forget,
        )

    def _hands(self, acting: Acting) -> Hands:
        shared = self._shared
        repose = Repose(
            agent=self.id,
            store=shared.store,
            clock=shared.clock,
            timezone=shared.settings.dmn.timezone,
            send=self.loop.send,
        )
        own = (
            Hand.of(tools.SEND_MESSAGE, tools.SendMessage, acting.send_message),
            Hand.of(tools.MARK_HANDLED, tools.MarkHandled, acting.mark_handled),
            Hand.of(tools.REST_UNTIL, tools.RestUntil, repose.rest_until),
            Hand.of(tools.GO_QUIET, tools.GoQuiet, repose.go_quiet),
        )
        return Hands((*own, *shared.life.hands))

    def _briefing(self, equipment: Equipment) -> Briefing:
        shared = self._shared
        return Briefing(
            me=self.me,
            peers=tuple(sorted(other.id for other in shared.settings.agents if other.id != self.id)),
            bindings=shared.bindings,
            who=shared.who,
            cards=shared.cards,
            places=shared.life.places,
            kept=partial(equipment.keep_warm.kept, self.id),
            tools=self.hands.specs if self.model.takes_tools else (),
        )

    def forget(self, conversation: ConversationId) -> None:
        """What is kept of the view there is not what the log has."""
        self._turns.forget(conversation)
        self._digests.forget(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        async with self._shared.doors.of(conversation):
            return await self._turns.compact(conversation)

    def _left_usd(self) -> float:
        state, policy = self.loop.state, self.loop.policy
        today = self._shared.clock.now().astimezone(UTC).date().isoformat()
        return policy.daily_cost_usd - (state.spent_today_usd if state.day == today else 0.0)

    async def take(self, conversation: ConversationId, *, autonomous: bool, continuing: bool, lane: Lane) -> Report:
        await self._live.refresh()  # what the operator has changed meanwhile counts already
        async with self._shared.doors.of(conversation):
            self._digests.forget(conversation)  # what a digest told of it is dealt with here
            return await self._turns.take(conversation, autonomous=autonomous, continuing=continuing, lane=lane)

    async def dream(self, lane: Lane) -> Report:
        async with self._shared.doors.of(self.loop.policy.inner):
            return await self._dreams.take(Address.parse(self.loop.policy.inner), lane)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        return await self._turns.give_up(conversation, reason, autonomous=autonomous)

    async def left(self, conversation: ConversationId) -> int:
        return await (self._digests.left() if is_inner(conversation) else self._turns.left(conversation))

    def direct(self, conversation: ConversationId) -> bool:
        return self._shared.life.places.known_direct(conversation)

    def settled(self, conversation: ConversationId) -> None:
        self._purse.settle(conversation)

    def material_tokens(self) -> int:
        return self._shared.life.notes.material_tokens(self.id)


def _self(agent: AgentConfig, equipment: Equipment, own: Path) -> Me:
    root, family = agent.workspace or default_workspace(), equipment.models[agent.id].family

    async def me(scope: Scope) -> Bundle:
        cached = equipment.live.switches(agent.id).workspace_cache
        return await equipment.workspaces.get(root, scope=scope, family=family, own=own, cached=cached)

    return me
