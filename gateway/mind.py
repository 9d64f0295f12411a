"""One agent: what takes its turns, what it can do, and its outer loop."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC

from agent.brief import PromptInput
from agent.cache.ask import PlannedRequest
from agent.models.base import Model, ModelError
from agent.signals import DmnState, LeftOff
from agent.turn import build_prefix_request
from gateway import policies
from gateway.equipment import ModelServices
from gateway.events import Address, ConversationId
from gateway.guidance import TurnDirectives
from gateway.happened import wants_answer
from gateway.hearing import ConversationReader
from gateway.lane import TurnHandle
from gateway.loop import AgentLoop
from gateway.mind_parts import build_digest_builder, build_own_tools, build_platform_actions
from gateway.purse import DailyBudget
from gateway.records import TurnRecord, is_inner
from gateway.settings import AgentConfig
from gateway.shared import GatewayServices
from gateway.stopping import build_stop_record
from gateway.thinkers import AgentModel
from gateway.thinking import AgentParts, AgentRuntime, LoadBundle
from gateway.tools.dispatch import ToolDispatcher
from gateway.turns import TurnResult

logger = logging.getLogger("reverie.minds")


class Agent:
    """One agent. As `gateway.taker.TurnTaker` it takes the turns that its loop starts."""

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
        """As `gateway.stopping.StoppableAgent`."""
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
