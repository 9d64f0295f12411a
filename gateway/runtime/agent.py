"""One agent: its loop, its turns, and everything that depends on its model.

- `GatewayServices`: services that all agents share. `AgentParts`: parts of one agent that do not depend on its model.
- `AgentRuntime`: parts that do; replaced as a whole when the model changes, while running turns keep theirs.
- `Agent`: takes the turns that its `AgentLoop` starts.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC
from functools import partial

from agent.brief import PromptInput
from agent.cache.plan import PlannedRequest
from agent.models.base import Model, ModelError, ModelRequest
from agent.signals import DmnState, LeftOff
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
from gateway.core.redaction import Redactor
from gateway.runtime.dream_turn import DreamTurnRunner
from gateway.runtime.lane import TurnHandle
from gateway.runtime.loop import AgentLoop
from gateway.runtime.models import AgentModel, DailyBudget, ModelServices
from gateway.runtime.turn import TurnResult, TurnRunner, build_stop_record
from gateway.runtime.turn_input import AgentContext, TurnDirectives
from gateway.store import Store
from gateway.stream import policies
from gateway.stream.media import MediaStore
from gateway.stream.preview import TurnPreviews
from gateway.stream.routing import Bindings
from gateway.tools.agent import RestTools, SkillTools
from gateway.tools.dispatch import ToolDispatcher
from gateway.tools.platform import ConversationLocks, MessagingTools
from gateway.tools.registry import ToolRegistry

logger = logging.getLogger("reverie.minds")

LoadBundle = Callable[[PersonaScope], Awaitable[PersonaBundle]]
"""Load the agent's present persona."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServices:
    """Services that all agents of a gateway share, wired once."""

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
    skills: SkillTools
    """Called with every reply, after it is durable."""
    turn_tracker: TurnTracker
    on_answered: Callable[[str, RequestUsage], None]
    """Called with the agent and each answered model request."""
    on_compacted: Callable[[str, CompactionOutcome, float | None], None]
    """Called with the agent and the outcome of each summary, see `LlmStats.count_compaction`."""
    has_waiting: Callable[[ConversationId], bool]
    """Return whether entries of a conversation will be announced soon."""
    tasks: asyncio.TaskGroup
    """Start a task whose failure stops the gateway."""
    limits: UsageLimiter | None = None
    """Budgets of people. None: there are none."""
    redactor: Redactor
    """Applied to all that a model reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentParts:
    """Parts of an agent that do not depend on its model."""

    agent: str
    """Its id."""
    services: GatewayServices
    model_services: ModelServices
    reader: ConversationReader
    digest_builder: DigestBuilder
    platform_actions: MessagingTools
    directives: TurnDirectives
    budget: DailyBudget
    rest_tools: RestTools
    forget_view: Callable[[ConversationId], None]
    """Drop a cached view, because the log differs from it."""


class AgentRuntime:
    """Parts of an agent that depend on its model.

    Immutable: a turn that has begun ends with it, whatever comes next.
    """

    def __init__(self, agent_model: AgentModel, parts: AgentParts) -> None:
        self.agent_model = agent_model
        self.model = agent_model.model
        self._parts = parts
        services, agent = parts.services, parts.services.live.agent_config(parts.agent)
        self.surface = agent.surface
        self.tools = services.tool_registry.build_dispatcher(
            agent.id, self.model, parts.platform_actions, parts.rest_tools
        )
        self.load_bundle = self._build_bundle_loader()
        prompt_context = self._build_prompt_context()
        self.context = self._build_context(prompt_context)
        self.turn_runner = TurnRunner(
            self.context,
            previews=services.previews,
            digests=parts.digest_builder,
            on_answered=services.on_answered,
            tracker=services.turn_tracker,
        )
        self.dream_runner = self._build_dream_runner(prompt_context)

    def _build_bundle_loader(self) -> LoadBundle:
        agent, model_services, family = self._parts.agent, self._parts.model_services, self.model.family
        root, own = (
            model_services.live.agent_config(agent).workspace or default_workspace(),
            self._parts.services.background_services.agent_directory(agent),
        )

        async def load(scope: PersonaScope) -> PersonaBundle:
            cached = model_services.live.enabled_optimizations(agent).workspace_cache
            return await model_services.workspaces.get(root, scope=scope, family=family, own=own, cached=cached)

        return load

    def _build_prompt_context(self) -> PromptContextBuilder:
        parts, services = self._parts, self._parts.services
        return PromptContextBuilder(
            persona=self.load_bundle,
            peers=tuple(sorted(other.id for other in services.live.settings.agents if other.id != parts.agent)),
            bindings=services.bindings.snapshot(),
            access_policy=services.access_policy,
            cards=services.channel_cards,
            places=services.background_services.places,
            kept_warm_at=partial(parts.model_services.keep_warm.last_refresh, parts.agent),
            tools=lambda: self.tools.specs if self.model.takes_tools else (),
        )

    def _build_context(self, prompt_context: PromptContextBuilder) -> AgentContext:
        parts, services, live, model = self._parts, self._parts.services, self._parts.model_services.live, self.model
        agent_id, simple = parts.agent, not model.takes_tools or model.family == "local"
        history = HistoryStore(services.store, services.clock, services.media, simple=simple)
        return AgentContext(
            store=services.store,
            clock=services.clock,
            model=model,
            agent_id=agent_id,
            prompt_context=prompt_context,
            reader=parts.reader,
            media=services.media,
            history=history,
            compactor=self._build_compactor(history),
            evidence=services.background_services.evidence,
            ambient_recall=services.background_services.ambient_recall,
            optimization=lambda: live.optimization,
            recall_config=services.live.settings.recall,
            tools_for=self.tools.for_turn,
            directives=parts.directives,
            reachable_places=parts.directives.reachable_places,
            can_afford=lambda _agent, request: self._can_afford(request),
            on_truncated=lambda: services.on_compacted(agent_id, "tool_result_truncated", None),
            access_policy=services.access_policy,
            limits=services.limits,
            ceiling_usd=self.agent_model.ceiling_usd,
            redactor=services.redactor,
            surface=self.surface,
            has_late_tools=services.tool_registry.has_dynamic_tools,
            skill_catalogue=self._skill_catalogue,
            describe_tools=self._describe_tools,
            max_tool_rounds=services.live.settings.tools.max_rounds,
        )

    def _build_compactor(self, history: HistoryStore) -> Compactor:
        parts, services, live, model = self._parts, self._parts.services, self._parts.model_services.live, self.model
        summarizer = Summarizer(
            agent=parts.agent,
            store=services.store,
            clock=services.clock,
            random=random.random,
            model=lambda: self.agent_model.summarizer or model,
            settings=lambda: live.optimization.compaction,
            on_outcome=partial(services.on_compacted, parts.agent),
        )
        return Compactor(
            store=services.store,
            clock=services.clock,
            history=history,
            model=model,
            cache_forecast=self.agent_model.outlook,
            settings=lambda: live.optimization,
            is_enabled=lambda: live.enabled_optimizations(parts.agent).compaction,
            summarizer=summarizer,
        )

    def _build_dream_runner(self, prompt_context: PromptContextBuilder) -> DreamTurnRunner:
        parts, services = self._parts, self._parts.services
        return DreamTurnRunner(
            agent=parts.agent,
            store=services.store,
            clock=services.clock,
            model=self.model,
            dreamer=services.background_services.dreamer,
            prompt_context=prompt_context,
            tools_for=self.tools.for_turn,
            memory_chars=services.live.settings.dmn.memory_chars,
            afford=self._can_afford,
            on_answered=services.on_answered,
            on_finished=services.background_services.internal_intake.submit,
            forget_view=parts.forget_view,
        )

    def _can_afford(self, request: ModelRequest) -> bool:
        return self._parts.budget.reserve(request, self.agent_model.ceiling_usd(request))

    async def build_prompt_input(self, persona: str) -> PromptInput:
        """Return the beginning of every conversation of this agent."""
        parts = self._parts
        late, skills = parts.services.tool_registry.has_dynamic_tools, await self._skill_catalogue()
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
        """Return the catalogue of the agent's skills, if it can load one."""
        can_load = any(spec.name == "load_skill" for spec in self.tools.specs)
        return (
            await self._parts.services.skills.render_catalogue(self._parts.agent)
            if can_load and self.model.takes_tools
            else ""
        )

    async def _describe_tools(self, conversation: ConversationId, roles: Sequence[str]) -> str:
        if not self.model.takes_tools:
            return ""
        parts = self._parts
        return await parts.services.tool_registry.render_status(parts.agent, conversation, self.tools, roles)


class Agent:
    """Agent with its loop. As `gateway.runtime.loop.TurnTaker` it takes the turns that the loop starts."""

    def __init__(
        self,
        agent: AgentConfig,
        services: GatewayServices,
        model_services: ModelServices,
        state: DmnState,
        *,
        owns: Callable[[ConversationId], bool],
        model: str = "",
    ) -> None:
        """`state`: state of its DMN from the last run. `owns`: return whether a conversation belongs to this agent.

        `model`: a key of `llm.models`. Empty: the configured one.
        """
        self.id = agent.id
        self._services = services
        self._live = model_services.live
        policy = policies.build_dmn_policy(services.live.settings, agent.id)
        self.loop = AgentLoop(
            agent=agent.id,
            store=services.store,
            clock=services.clock,
            turns=self,
            policy=policy,
            state=state,
            tasks=services.tasks,
            has_waiting=services.has_waiting,
        )
        self._budget = DailyBudget(left_usd=self._budget_left_usd)
        reader = ConversationReader(services.store, services.access_policy, services.media, services.redactor)
        self._digest_builder = build_digest_builder(
            services, agent.id, reader, owns, is_small_model=lambda: self.model.family == "local"
        )
        platform_actions = build_platform_actions(services, agent.id, self._digest_builder, self.forget_view)
        self._parts = AgentParts(
            agent=agent.id,
            services=services,
            model_services=model_services,
            reader=reader,
            digest_builder=self._digest_builder,
            platform_actions=platform_actions,
            directives=TurnDirectives(
                state=lambda: self.loop.state,
                platform_actions=platform_actions,
                away_note=services.background_services.render_away_note,
                titles=services.background_services.places.titles,
            ),
            budget=self._budget,
            rest_tools=RestTools(agent.id, services.store, services.clock, services.live, self.loop.send),
            forget_view=self.forget_view,
        )
        agent_model = model_services.agent_model(agent.id, model or agent.model)
        model_services.pool.hold(agent_model)
        self._runtime = AgentRuntime(agent_model, self._parts)

    @property
    def agent_model(self) -> AgentModel:
        """Model, with its costs and caches, of the next turn."""
        return self._runtime.agent_model

    @property
    def model(self) -> Model:
        """Model of the next turn."""
        return self._runtime.model

    @property
    def tools(self) -> ToolDispatcher:
        """Tools of the agent, as far as its model has room for them."""
        return self._runtime.tools

    @property
    def load_bundle(self) -> LoadBundle:
        """Function that loads its present persona."""
        return self._runtime.load_bundle

    def use_model(self, agent_model: AgentModel) -> None:
        """Use this model from the next turn on. Running turns keep theirs. Returns at once."""
        before, model_services = self.agent_model, self._parts.model_services
        model_services.pool.hold(agent_model)
        self._runtime = AgentRuntime(agent_model, self._parts)
        model_services.keep_warm.replace_models(self.id, before.caching_models, agent_model.caching_models)
        model_services.pool.release(before)

    @contextlib.contextmanager
    def _hold_runtime(self) -> Iterator[AgentRuntime]:
        """Keep the present runtime for work that begins now."""
        runtime = self._runtime
        with self._parts.model_services.pool.holding(runtime.agent_model):
            yield runtime

    async def build_prompt_input(self, persona: str) -> PromptInput:
        """Return the beginning of every conversation of this agent."""
        return await self._runtime.build_prompt_input(persona)

    def last_request(self, conversation: ConversationId) -> PlannedRequest | None:
        """Return the last answered request there. None: there was none since the start, or it is not kept."""
        found = (model.last_requests.get(self.id, conversation) for model in self.agent_model.caching_models)
        return max((one for one in found if one is not None), key=lambda one: one.sent_at_s, default=None)

    def forget_view(self, conversation: ConversationId) -> None:
        """Drop the cached view of a place, because the log differs from it."""
        self._runtime.turn_runner.forget_view(conversation)
        self._digest_builder.forget(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        async with self._services.room_locks.lock_for(conversation):
            with self._hold_runtime() as runtime:
                return await runtime.turn_runner.compact(conversation)

    def _budget_left_usd(self) -> float:
        state, policy = self.loop.state, self.loop.policy
        today = self._services.clock.now().astimezone(UTC).date().isoformat()
        return policy.daily_cost_usd - (state.spent_today_usd if state.day == today else 0.0)

    async def refresh_tools(self) -> None:
        """Update the description of the tools before a request, where that costs no cached prefix."""
        now_s, lasts_s = self._services.clock.monotonic(), self._live.optimization.prompt_cache.long_ttl
        await self._services.tool_registry.prepare_turn(self.tools, now_s, lasts_s)

    async def warm_up(self) -> None:
        """Have a local model read the common beginning of all conversations.

        Otherwise the first message would wait for that.
        """
        with self._hold_runtime() as runtime:
            await self._warm_up(runtime.model)

    async def _warm_up(self, model: Model) -> None:
        if model.family not in {"local", "llamacpp"}:  # elsewhere an unneeded prompt costs money
            return
        try:
            await self.refresh_tools()  # tool servers start at the same time
            persona = await self.load_bundle("public")
            request = build_prefix_request(
                await self.build_prompt_input(persona.identity), model, self.tools.specs, key=self.id
            )
            async with aclosing(model.stream(request)) as chunks:
                async for _ in chunks:
                    pass
        except (ModelError, OSError) as error:  # the first turn will wait for it, or report the error
            logger.debug("what %s begins with is not read in ahead of time: %s", self.id, error)

    async def take_turn(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool, handle: TurnHandle
    ) -> TurnResult:
        await self.refresh_tools()
        async with self._services.room_locks.lock_for(conversation):
            self._digest_builder.forget(conversation)  # the digest's part on this place is consumed here
            with self._hold_runtime() as runtime:
                turns = runtime.turn_runner
                return await turns.run(conversation, autonomous=autonomous, continuing=continuing, handle=handle)

    async def dream(self, handle: TurnHandle) -> TurnResult:
        async with self._services.room_locks.lock_for(self.loop.policy.inner):
            with self._hold_runtime() as runtime:
                return await runtime.dream_runner.run(Address.parse(self.loop.policy.inner), handle)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> TurnResult:
        return await self._runtime.turn_runner.give_up(conversation, reason, autonomous=autonomous)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        return await (
            self._digest_builder.pending_urgency()
            if is_inner(conversation)
            else self._services.store.unread_urgency(conversation)
        )

    def turn_handle(self, conversation: ConversationId) -> TurnHandle | None:
        """See `gateway.runtime.turn.StoppableAgent`."""
        return self.loop.turn_handle(conversation)

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """See `gateway.runtime.turn.StoppableAgent`."""
        state = self.loop.state
        if conversation in (*state.pending, *state.continuing, *(one.conversation for one in state.waiting)):
            return True
        # Entries that ask for an answer come first.
        unread = await self._services.store.unread_entries(conversation, most=1)
        return any(wants_answer(one.fact) for one in unread.messages)

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnRecord:
        """See `gateway.runtime.turn.StoppableAgent`."""
        return await build_stop_record(self._runtime.context, conversation, why)

    def stop_turn(self, conversation: ConversationId, why: str) -> None:
        """See `gateway.runtime.turn.StoppableAgent`."""
        handle = self.loop.turn_handle(conversation)
        if handle is not None:
            handle.stop(why)
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


def build_digest_builder(
    services: GatewayServices,
    agent: str,
    reader: ConversationReader,
    owns: Callable[[ConversationId], bool],
    *,
    is_small_model: Callable[[], bool],
) -> DigestBuilder:
    """Build the digests of an agent. `is_small_model`: its model needs plain prompts."""
    return DigestBuilder(
        agent=agent,
        store=services.store,
        clock=services.clock,
        places=services.background_services.places,
        reader=reader,
        is_small_model=is_small_model,
        is_own=owns,
        is_busy=services.room_locks.is_busy,
    )


def build_platform_actions(
    services: GatewayServices, agent: str, digests: DigestBuilder, forget: Callable[[ConversationId], None]
) -> MessagingTools:
    """Build the tools that act in other places."""
    return MessagingTools(
        agent=agent,
        store=services.store,
        clock=services.clock,
        bindings=services.bindings,
        places=services.background_services.places,
        who=services.access_policy,
        channels=services.channels,
        doors=services.room_locks,
        digests=digests,
        forget=forget,
    )


def turn_settings_key(settings: Settings) -> object:
    """Return the settings that turns are built from, beside their model: equal while these are unchanged."""
    agents = {one.id: (one.surface, one.bindings) for one in settings.agents}
    return settings.tools, settings.recall, settings.dmn.memory_chars, agents
