"""One agent with one model: all of it that depends on which model that is."""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from agent.brief import PromptInput
from agent.models.base import ModelRequest
from agent.tools.skills import LOAD_SKILL
from agent.workspace import default_workspace
from agent.workspace.bundle import PersonaBundle, PersonaScope
from gateway.acting import MessagingTools
from gateway.briefing import PromptContextBuilder
from gateway.compacting import Summarizer
from gateway.digest import DigestBuilder
from gateway.dreams import DreamTurnRunner
from gateway.equipment import ModelServices
from gateway.events import ConversationId
from gateway.folds import Compactor
from gateway.guidance import TurnDirectives
from gateway.hands import Tool
from gateway.hearing import ConversationReader
from gateway.means import AgentContext
from gateway.purse import DailyBudget
from gateway.settings import Settings
from gateway.shared import GatewayServices
from gateway.thinkers import AgentModel
from gateway.tools.skills import SkillTools
from gateway.turns import TurnRunner
from gateway.views import HistoryStore

LoadBundle = Callable[[PersonaScope], Awaitable[PersonaBundle]]
"""Who an agent is by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """Of an agent, whatever it thinks with."""

    agent: str
    """By its id."""
    services: GatewayServices
    model_services: ModelServices
    reader: ConversationReader
    digest_builder: DigestBuilder
    platform_actions: MessagingTools
    directives: TurnDirectives
    budget: DailyBudget
    skills: SkillTools
    own_tools: Sequence[Tool]
    """What it does with itself."""
    forget_view: Callable[[ConversationId], None]
    """What is kept of a view is not what the log has."""


class AgentRuntime:
    """What one agent thinks with. Nothing of it changes: a turn that has begun ends with it, whatever comes next."""

    def __init__(self, thinker: AgentModel, body: AgentParts) -> None:
        self.agent_model = thinker
        self.model = thinker.model
        self._parts = body
        shared, agent = body.services, body.services.live.agent_config(body.agent)
        self.surface = agent.surface
        self.tools = shared.tool_registry.build_dispatcher(
            agent, self.model, body.own_tools, body.platform_actions.resolve_reachable, body.skills
        )
        self.load_bundle = self._build_bundle_loader()
        briefing = self._build_prompt_context()
        self.context = self._build_context(briefing)
        self.turn_runner = TurnRunner(
            self.context,
            signs=shared.previews,
            digests=body.digest_builder,
            post=shared.post,
            answered=shared.on_answered,
            onlookers=shared.turn_tracker,
        )
        self.dream_runner = self._build_dream_runner(briefing)

    def _build_bundle_loader(self) -> LoadBundle:
        agent, equipment, family = self._parts.agent, self._parts.model_services, self.model.family
        root, own = (
            equipment.live.agent_config(agent).workspace or default_workspace(),
            self._parts.services.background_services.agent_directory(agent),
        )

        async def me(scope: PersonaScope) -> PersonaBundle:
            cached = equipment.live.enabled_optimizations(agent).workspace_cache
            return await equipment.workspaces.get(root, scope=scope, family=family, own=own, cached=cached)

        return me

    def _build_prompt_context(self) -> PromptContextBuilder:
        body, shared = self._parts, self._parts.services
        return PromptContextBuilder(
            me=self.load_bundle,
            peers=tuple(sorted(other.id for other in shared.live.settings.agents if other.id != body.agent)),
            bindings=shared.bindings.snapshot(),
            who=shared.access_policy,
            cards=shared.channel_cards,
            places=shared.background_services.places,
            kept=partial(body.model_services.keep_warm.last_refresh, body.agent),
            tools=lambda: self.tools.specs if self.model.takes_tools else (),
        )

    def _build_context(self, briefing: PromptContextBuilder) -> AgentContext:
        body, shared, live, model = self._parts, self._parts.services, self._parts.model_services.live, self.model
        agent_id, simple = body.agent, not model.takes_tools or model.family == "local"
        views = HistoryStore(shared.store, shared.clock, shared.media, simple=simple)
        return AgentContext(
            store=shared.store,
            clock=shared.clock,
            model=model,
            agent_id=agent_id,
            prompt_context=briefing,
            reader=body.reader,
            media=shared.media,
            history=views,
            compactor=self._build_compactor(views),
            evidence=shared.background_services.evidence,
            ambient_recall=shared.background_services.ambient_recall,
            optimization=lambda: live.optimization,
            recall_config=shared.live.settings.recall,
            tools_for=self.tools.for_turn,
            directives=body.directives,
            reachable_places=body.directives.reachable_places,
            can_afford=lambda _agent, request: self._can_afford(request),
            on_truncated=lambda: shared.on_compacted(agent_id, "tool_result_truncated", None),
            access_policy=shared.access_policy,
            limits=shared.limits,
            ceiling_usd=self.agent_model.ceiling_usd,
            redact=shared.redact,
            surface=self.surface,
            has_late_tools=shared.tool_registry.has_dynamic_tools,
            skill_catalogue=self._skill_catalogue,
            describe_tools=self._describe_tools,
            max_tool_rounds=shared.live.settings.tools.max_rounds,
        )

    def _build_compactor(self, views: HistoryStore) -> Compactor:
        body, shared, live, model = self._parts, self._parts.services, self._parts.model_services.live, self.model
        compacting = Summarizer(
            agent=body.agent,
            store=shared.store,
            clock=shared.clock,
            random=random.random,
            model=lambda: self.agent_model.summarizer or model,
            said=lambda: live.optimization.compaction,
            compacted=partial(shared.on_compacted, body.agent),
        )
        return Compactor(
            store=shared.store,
            clock=shared.clock,
            views=views,
            model=model,
            outlook=self.agent_model.outlook,
            said=lambda: live.optimization,
            compacts=lambda: live.enabled_optimizations(body.agent).compaction,
            compacting=compacting,
        )

    def _build_dream_runner(self, briefing: PromptContextBuilder) -> DreamTurnRunner:
        body, shared = self._parts, self._parts.services
        return DreamTurnRunner(
            agent=body.agent,
            store=shared.store,
            clock=shared.clock,
            model=self.model,
            dreaming=shared.background_services.dreamer,
            briefing=briefing,
            hands=self.tools.for_turn,
            memory_chars=shared.live.settings.dmn.memory_chars,
            afford=self._can_afford,
            answered=shared.on_answered,
            finished=shared.background_services.internal_intake.submit,
            forget=body.forget_view,
        )

    def _can_afford(self, request: ModelRequest) -> bool:
        return self._parts.budget.reserve(request, self.agent_model.ceiling_usd(request))

    async def build_prompt_input(self, persona: str) -> PromptInput:
        """What every conversation of this agent begins with."""
        body = self._parts
        late, skills = body.services.tool_registry.has_dynamic_tools, await self._skill_catalogue()
        return PromptInput(
            persona=persona,
            skills=skills,
            card="",
            history=(),
            input_text="",
            tool_surface=self.surface,
            has_late_tools=late,
        )

    async def _skill_catalogue(self) -> str:
        """Of its skills, if it can read one."""
        told = any(spec.name == LOAD_SKILL.name for spec in self.tools.specs)
        return await self._parts.skills.render_catalogue() if told and self.model.takes_tools else ""

    async def _describe_tools(self, conversation: ConversationId, roles: Sequence[str]) -> str:
        if not self.model.takes_tools:
            return ""
        body = self._parts
        return await body.services.tool_registry.render_status(body.agent, conversation, self.tools, roles)


def turn_settings_key(settings: Settings) -> object:
    """What of the settings turns are made with, beside their model: equal while that is the same."""
    agents = {one.id: (one.surface, one.bindings) for one in settings.agents}
    return settings.tools, settings.recall, settings.dmn.memory_chars, agents
