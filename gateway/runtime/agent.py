"""One agent: what takes its turns, what it can do, and its outer loop.

One agent with one model: all of it that depends on which model that is.

What an agent looks with and acts with, wired.

What all agents of a gateway have in common.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial

from agent.brief import PromptInput
from agent.cache.plan import PlannedRequest
from agent.models.base import Model, ModelError, ModelRequest
from agent.signals import Directive, DmnState, LeftOff
from agent.tools.specs import (
    GO_QUIET,
    LOAD_SKILL,
    MARK_HANDLED,
    REST_UNTIL,
    SEND_MESSAGE,
    GoQuietArgs,
    MarkHandledArgs,
    RestUntilArgs,
    SendMessageArgs,
)
from agent.turn import build_prefix_request
from agent.workspace import default_workspace
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.access.limits import UsageLimiter
from gateway.config.models import AgentConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.context.compaction import CompactionOutcome, Compactor, Summarizer
from gateway.context.conversation import ConversationReader, wants_answer
from gateway.context.digest import DigestBuilder
from gateway.context.history import HistoryStore
from gateway.context.observer import TurnTracker
from gateway.context.prompt_context import ChannelCards, PromptContextBuilder
from gateway.context.services import BackgroundServices
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, ConversationId, RequestUsage
from gateway.core.facts import TurnRecord, is_inner
from gateway.core.identity import AccessPolicy
from gateway.core.redaction import Redact, Redactor
from gateway.core.tool import Tool
from gateway.runtime.dream_turn import DreamTurnRunner
from gateway.runtime.lane import TurnHandle
from gateway.runtime.loop import AgentLoop
from gateway.runtime.models import AgentModel, DailyBudget, ModelServices
from gateway.runtime.turn import TurnResult, TurnRunner, build_stop_record
from gateway.runtime.turn_input import AgentContext, TurnDirectives
from gateway.store import OutboxPost, Store
from gateway.stream import policies
from gateway.stream.media import MediaStore
from gateway.stream.preview import TurnPreviews
from gateway.stream.routing import Bindings
from gateway.tools.agent import RestTools, SkillTools
from gateway.tools.dispatch import ToolDispatcher
from gateway.tools.platform import ConversationLocks, MessagingTools
from gateway.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServices:
    """Wired once."""

    live: LiveSettings
    store: Store
    clock: Clock
    bindings: Bindings
    access_policy: AccessPolicy
    channel_cards: ChannelCards
    media: MediaStore
    previews: TurnPreviews
    room_locks: ConversationLocks
    channels: Collection[ChannelName]
    background_services: BackgroundServices
    tool_registry: ToolRegistry
    post: Callable[[OutboxPost], None]
    """Called with every reply, after it is durable."""
    turn_tracker: TurnTracker
    on_answered: Callable[[str, RequestUsage], None]
    """Called with the agent and each model request that was answered."""
    on_compacted: Callable[[str, CompactionOutcome, float | None], None]
    """Called with the agent and what became of each summary that was to be made: `LlmStats.compacted`."""
    has_waiting: Callable[[ConversationId], bool]
    """Whether something there is noticed soon."""
    spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]]
    """Starts a task whose failure stops the gateway."""
    limits: UsageLimiter | None = None
    """What people may cause. None: there are no budgets."""
    redact: Redact = field(default_factory=Redactor)
    """Given all that a model reads and says."""


def build_digest_builder(
    shared: GatewayServices,
    agent: str,
    hearing: ConversationReader,
    owns: Callable[[ConversationId], bool],
    *,
    plain: Callable[[], bool],
) -> DigestBuilder:
    """What its inner conversation is told. `plain`: its model is a very small one."""
    return DigestBuilder(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        places=shared.background_services.places,
        hearing=hearing,
        plain=plain,
        mine=owns,
        busy=shared.room_locks.is_busy,
    )


def build_platform_actions(
    shared: GatewayServices, agent: str, digests: DigestBuilder, forget: Callable[[ConversationId], None]
) -> MessagingTools:
    """What it does in other places."""
    return MessagingTools(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        bindings=shared.bindings,
        places=shared.background_services.places,
        who=shared.access_policy,
        channels=shared.channels,
        doors=shared.room_locks,
        digests=digests,
        post=shared.post,
        forget=forget,
    )


def build_own_tools(
    shared: GatewayServices, agent: str, acting: MessagingTools, send: Callable[[Directive], None]
) -> tuple[Tool, ...]:
    """What it does with itself. `send`: to its DMN."""
    repose = RestTools(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        timezone=lambda: shared.live.settings.dmn.timezone,
        send=send,
    )
    return (
        Tool.create(SEND_MESSAGE, SendMessageArgs, acting.send_message, risks=acting.risk),
        Tool.create(MARK_HANDLED, MarkHandledArgs, acting.mark_handled),
        Tool.create(REST_UNTIL, RestUntilArgs, repose.rest_until),
        Tool.create(GO_QUIET, GoQuietArgs, repose.go_quiet),
    )


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


logger = logging.getLogger("reverie.minds")


class Agent:
    """One agent. As `gateway.runtime.loop.TurnTaker` it takes the turns that its loop starts."""

    def __init__(
        self,
        agent: AgentConfig,
        shared: GatewayServices,
        equipment: ModelServices,
        state: DmnState,
        *,
        owns: Callable[[ConversationId], bool],
        model: str = "",
    ) -> None:
        """`state`: of its DMN, from the last run. `owns`: whether the turns somewhere are this agent's.

        `model`: a key of `llm.models`. Empty: as the configuration says.
        """
        self.id = agent.id
        self._services = shared
        self._live = equipment.live
        policy = policies.build_dmn_policy(shared.live.settings, agent.id)
        self.loop = AgentLoop(
            agent=agent.id,
            store=shared.store,
            clock=shared.clock,
            turns=self,
            policy=policy,
            state=state,
            spawn=shared.spawn,
            waits=shared.has_waiting,
        )
        self._budget = DailyBudget(left_usd=self._budget_left_usd)
        hearing = ConversationReader(shared.store, shared.access_policy, shared.media, shared.redact)
        self._digest_builder = build_digest_builder(
            shared, agent.id, hearing, owns, plain=lambda: self.model.family == "local"
        )
        acting = build_platform_actions(shared, agent.id, self._digest_builder, self.forget_view)
        self._parts = AgentParts(
            agent=agent.id,
            services=shared,
            model_services=equipment,
            reader=hearing,
            digest_builder=self._digest_builder,
            platform_actions=acting,
            directives=TurnDirectives(
                state=lambda: self.loop.state,
                acting=acting,
                returned=shared.background_services.render_away_note,
                titles=shared.background_services.places.titles,
            ),
            budget=self._budget,
            skills=shared.tool_registry.build_skill_tools(agent),
            own_tools=build_own_tools(shared, agent.id, acting, self.loop.send),
            forget_view=self.forget_view,
        )
        thinker = equipment.agent_model(agent.id, model or agent.model)
        equipment.pool.hold(thinker)
        self._runtime = AgentRuntime(thinker, self._parts)

    @property
    def agent_model(self) -> AgentModel:
        """What the next turn is taken with."""
        return self._runtime.agent_model

    @property
    def model(self) -> Model:
        """The same."""
        return self._runtime.model

    @property
    def tools(self) -> ToolDispatcher:
        """What it can do, as far as its model has room for that."""
        return self._runtime.tools

    @property
    def load_bundle(self) -> LoadBundle:
        """Who it is by now."""
        return self._runtime.load_bundle

    def use_model(self, thinker: AgentModel) -> None:
        """From the next turn on. Those that have begun end with what they began with. Returns at once."""
        before, equipment = self.agent_model, self._parts.model_services
        equipment.pool.hold(thinker)
        self._runtime = AgentRuntime(thinker, self._parts)
        equipment.keep_warm.replace_models(self.id, before.caching_models, thinker.caching_models)
        equipment.pool.release(before)

    @contextlib.contextmanager
    def _hold_runtime(self) -> Iterator[AgentRuntime]:
        """What is begun now ends with what it began with."""
        thinking = self._runtime
        with self._parts.model_services.pool.holding(thinking.agent_model):
            yield thinking

    async def build_prompt_input(self, persona: str) -> PromptInput:
        """What every conversation of this agent begins with."""
        return await self._runtime.build_prompt_input(persona)

    def last_request(self, conversation: ConversationId) -> PlannedRequest | None:
        """The last request there that was answered. None: there was none since the start, or it is not kept."""
        found = (keeper.last_requests.get(self.id, conversation) for keeper in self.agent_model.caching_models)
        return max((one for one in found if one is not None), key=lambda one: one.sent_at_s, default=None)

    def forget_view(self, conversation: ConversationId) -> None:
        """What is kept of the view there is not what the log has."""
        self._runtime.turn_runner.forget_view(conversation)
        self._digest_builder.forget(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        async with self._services.room_locks.lock_for(conversation):
            with self._hold_runtime() as thinking:
                return await thinking.turn_runner.compact(conversation)

    def _budget_left_usd(self) -> float:
        state, policy = self.loop.state, self.loop.policy
        today = self._services.clock.now().astimezone(UTC).date().isoformat()
        return policy.daily_cost_usd - (state.spent_today_usd if state.day == today else 0.0)

    async def refresh_tools(self) -> None:
        """Its model is about to be asked: what it is told of its tools is what there is by now, where that is free."""
        await self._services.tool_registry.prepare_turn(self.tools, self._live.optimization.prompt_cache.long_ttl)

    async def warm_up(self) -> None:
        """Have a local model read in what all conversations begin with, so that nobody's first message pays for it."""
        with self._hold_runtime() as thinking:
            await self._warm_up(thinking.model)

    async def _warm_up(self, model: Model) -> None:
        if model.family not in {"local", "llamacpp"}:  # elsewhere a prompt that nobody needs yet costs money
            return
        try:
            await self.refresh_tools()  # servers of tools are coming up at the same time
            me = await self.load_bundle("public")
            request = build_prefix_request(
                await self.build_prompt_input(me.identity), model, self.tools.specs, key=self.id
            )
            async with aclosing(model.stream(request)) as chunks:
                async for _ in chunks:
                    pass
        except (ModelError, OSError) as error:  # whoever speaks first will wait for it, or be told
            logger.debug("what %s begins with is not read in ahead of time: %s", self.id, error)

    async def take_turn(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool, lane: TurnHandle
    ) -> TurnResult:
        await self.refresh_tools()
        async with self._services.room_locks.lock_for(conversation):
            self._digest_builder.forget(conversation)  # what a digest told of it is dealt with here
            with self._hold_runtime() as thinking:
                turns = thinking.turn_runner
                return await turns.run(conversation, autonomous=autonomous, continuing=continuing, lane=lane)

    async def dream(self, lane: TurnHandle) -> TurnResult:
        async with self._services.room_locks.lock_for(self.loop.policy.inner):
            with self._hold_runtime() as thinking:
                return await thinking.dream_runner.run(Address.parse(self.loop.policy.inner), lane)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> TurnResult:
        return await self._runtime.turn_runner.give_up(conversation, reason, autonomous=autonomous)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        return await (
            self._digest_builder.pending_urgency()
            if is_inner(conversation)
            else self._runtime.turn_runner.unread_urgency(conversation)
        )

    def turn_handle(self, conversation: ConversationId) -> TurnHandle | None:
        """As `gateway.runtime.turn.StoppableAgent`."""
        return self.loop.turn_handle(conversation)

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """The same."""
        state = self.loop.state
        if conversation in (*state.pending, *state.continuing, *(one.conversation for one in state.waiting)):
            return True
        unread = await self._services.store.unread_entries(conversation, most=1)  # what asks is told of first
        return any(wants_answer(one.fact) for one in unread.messages)

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnRecord:
        """The same."""
        return await build_stop_record(self._runtime.context, conversation, why)

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """The same."""
        lane = self.loop.turn_handle(conversation)
        if lane is not None:
            lane.stop(why)
        self.loop.send(LeftOff(at=self._services.clock.now(), conversation=conversation))
        self.forget_view(conversation)

    def is_direct(self, conversation: ConversationId) -> bool:
        return self._services.background_services.places.is_known_direct(conversation)

    def settle_turn(self, conversation: ConversationId) -> None:
        self._budget.settle(conversation)
        if self._services.limits is not None:
            self._services.limits.release(conversation)

    def material_tokens(self) -> int:
        return self._services.background_services.journal_store.material_tokens(self.id)
