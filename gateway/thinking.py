"""One agent with one model: all of it that depends on which model that is."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from agent.brief import Brief
from agent.models.base import Request
from agent.tools.skills import LOAD_SKILL
from agent.workspace import default_workspace
from agent.workspace.bundle import Bundle, Scope
from gateway.acting import Acting
from gateway.briefing import Briefing
from gateway.compacting import Compacting
from gateway.digest import Digests
from gateway.dreams import Dreams
from gateway.equipment import Equipment
from gateway.events import ConversationId
from gateway.folds import Folds
from gateway.guidance import Guidance
from gateway.hands import Hand
from gateway.hearing import Hearing
from gateway.means import Means
from gateway.purse import Purse
from gateway.settings import Settings
from gateway.shared import Shared
from gateway.thinkers import Thinker
from gateway.tools.skills import SkillHands
from gateway.turns import Turns
from gateway.views import Views

Me = Callable[[Scope], Awaitable[Bundle]]
"""Who an agent is by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """Of an agent, whatever it thinks with."""

    agent: str
    """By its id."""
    shared: Shared
    equipment: Equipment
    hearing: Hearing
    digests: Digests
    acting: Acting
    guidance: Guidance
    purse: Purse
    skills: SkillHands
    own: Sequence[Hand]
    """What it does with itself."""
    forget: Callable[[ConversationId], None]
    """What is kept of a view is not what the log has."""


class Thinking:
    """What one agent thinks with. Nothing of it changes: a turn that has begun ends with it, whatever comes next."""

    def __init__(self, thinker: Thinker, body: Body) -> None:
        self.thinker = thinker
        self.model = thinker.model
        self._body = body
        shared, agent = body.shared, body.shared.live.agent(body.agent)
        self.surface = agent.surface
        self.hands = shared.tooling.hands(agent, self.model, body.own, body.acting.reachable, body.skills)
        self.me = self._self()
        briefing = self._briefing()
        self.means = self._means(briefing)
        self.turns = Turns(
            self.means,
            signs=shared.signs,
            digests=body.digests,
            post=shared.post,
            answered=shared.answered,
            onlookers=shared.onlookers,
        )
        self.dreams = self._dreams(briefing)

    def _self(self) -> Me:
        agent, equipment, family = self._body.agent, self._body.equipment, self.model.family
        root, own = (
            equipment.live.agent(agent).workspace or default_workspace(),
            self._body.shared.life.directory(agent),
        )

        async def me(scope: Scope) -> Bundle:
            cached = equipment.live.switches(agent).workspace_cache
            return await equipment.workspaces.get(root, scope=scope, family=family, own=own, cached=cached)

        return me

    def _briefing(self) -> Briefing:
        body, shared = self._body, self._body.shared
        return Briefing(
            me=self.me,
            peers=tuple(sorted(other.id for other in shared.live.settings.agents if other.id != body.agent)),
            bindings=shared.bindings.now(),
            who=shared.who,
            cards=shared.cards,
            places=shared.life.places,
            kept=partial(body.equipment.keep_warm.kept, body.agent),
            tools=lambda: self.hands.specs if self.model.takes_tools else (),
        )

    def _means(self, briefing: Briefing) -> Means:
        body, shared, live, model = self._body, self._body.shared, self._body.equipment.live, self.model
        agent_id, simple = body.agent, not model.takes_tools or model.family == "local"
        views = Views(shared.store, shared.clock, shared.media, simple=simple)
        return Means(
            store=shared.store,
            clock=shared.clock,
            model=model,
            agent_id=agent_id,
            briefing=briefing,
            hearing=body.hearing,
            media=shared.media,
            views=views,
            folds=self._folds(views),
            evidence=shared.life.evidences,
            recalling=shared.life.recalling,
            context=lambda: live.optimization,
            recall=shared.live.settings.recall,
            hands=self.hands.at,
            guidance=body.guidance,
            reach=body.guidance.reach,
            afford=lambda _agent, request: self._affords(request),
            truncated=lambda: shared.compacted(agent_id, "tool_result_truncated", None),
            who=shared.who,
            limits=shared.limits,
            ceiling_usd=self.thinker.ceiling_usd,
            redact=shared.redact,
            surface=self.surface,
            late=shared.tooling.late,
            skills=self._catalogue,
            tools=self._tools_now,
            max_rounds=shared.live.settings.tools.max_rounds,
        )

    def _folds(self, views: Views) -> Folds:
        body, shared, live, model = self._body, self._body.shared, self._body.equipment.live, self.model
        compacting = Compacting(
            agent=body.agent,
            store=shared.store,
            clock=shared.clock,
            random=random.random,
            model=lambda: self.thinker.summarizer or model,
            said=lambda: live.optimization.compaction,
            compacted=partial(shared.compacted, body.agent),
        )
        return Folds(
            store=shared.store,
            clock=shared.clock,
            views=views,
            model=model,
            outlook=self.thinker.outlook,
            said=lambda: live.optimization,
            compacts=lambda: live.switches(body.agent).compaction,
            compacting=compacting,
        )

    def _dreams(self, briefing: Briefing) -> Dreams:
        body, shared = self._body, self._body.shared
        return Dreams(
            agent=body.agent,
            store=shared.store,
            clock=shared.clock,
            model=self.model,
            dreaming=shared.life.dreaming,
            briefing=briefing,
            hands=self.hands.at,
            memory_chars=shared.live.settings.dmn.memory_chars,
            afford=self._affords,
            answered=shared.answered,
            finished=shared.life.inward.tell,
            forget=body.forget,
        )

    def _affords(self, request: Request) -> bool:
        return self._body.purse.afford(request, self.thinker.ceiling_usd(request))

    async def brief(self, persona: str) -> Brief:
        """What every conversation of this agent begins with."""
        body = self._body
        late, skills = body.shared.tooling.late, await self._catalogue()
        return Brief(persona=persona, skills=skills, card="", history=(), heard="", surface=self.surface, late=late)

    async def _catalogue(self) -> str:
        """Of its skills, if it can read one."""
        told = any(spec.name == LOAD_SKILL.name for spec in self.hands.specs)
        return await self._body.skills.catalogue() if told and self.model.takes_tools else ""

    async def _tools_now(self, conversation: ConversationId, roles: Sequence[str]) -> str:
        if not self.model.takes_tools:
            return ""
        body = self._body
        return await body.shared.tooling.told(body.agent, conversation, self.hands, roles)


def made_with(settings: Settings) -> object:
    """What of the settings turns are made with, beside their model: equal while that is the same."""
    agents = {one.id: (one.surface, one.bindings) for one in settings.agents}
    return settings.tools, settings.recall, settings.dmn.memory_chars, agents
