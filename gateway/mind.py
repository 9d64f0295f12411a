"""One agent: what takes its turns, what it can do, and its outer loop."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing
from datetime import UTC

from agent.brief import Brief
from agent.cache.ask import Ask
from agent.models.base import Model, ModelError
from agent.signals import LeftOff, State
from agent.turn import beginning
from gateway import policies
from gateway.equipment import Equipment
from gateway.events import Address, ConversationId
from gateway.guidance import Guidance
from gateway.happened import asks
from gateway.hearing import Hearing
from gateway.lane import Lane
from gateway.loop import Loop
from gateway.mind_parts import doing, looking, own
from gateway.purse import Purse
from gateway.records import TurnEnded, is_inner
from gateway.settings import AgentConfig
from gateway.shared import Shared
from gateway.stopping import heard
from gateway.thinkers import Thinker
from gateway.thinking import Body, Me, Thinking
from gateway.tools.dispatch import Hands
from gateway.turns import Report

logger = logging.getLogger("reverie.minds")


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
        model: str = "",
    ) -> None:
        """`state`: of its DMN, from the last run. `owns`: whether the turns somewhere are this agent's.

        `model`: a key of `llm.models`. Empty: as the configuration says.
        """
        self.id = agent.id
        self._services = shared
        self._live = equipment.live
        policy = policies.dmn_policy(shared.live.settings, agent.id)
        self.loop = Loop(
            agent=agent.id,
            store=shared.store,
            clock=shared.clock,
            turns=self,
            policy=policy,
            state=state,
            spawn=shared.spawn,
            waits=shared.has_waiting,
        )
        self._budget = Purse(left_usd=self._budget_left_usd)
        hearing = Hearing(shared.store, shared.access_policy, shared.media, shared.redact)
        self._digest_builder = looking(shared, agent.id, hearing, owns, plain=lambda: self.model.family == "local")
        acting = doing(shared, agent.id, self._digest_builder, self.forget_view)
        self._parts = Body(
            agent=agent.id,
            services=shared,
            model_services=equipment,
            reader=hearing,
            digest_builder=self._digest_builder,
            platform_actions=acting,
            directives=Guidance(
                state=lambda: self.loop.state,
                acting=acting,
                returned=shared.background_services.render_away_note,
                titles=shared.background_services.places.titles,
            ),
            budget=self._budget,
            skills=shared.tool_registry.build_skill_tools(agent),
            own_tools=own(shared, agent.id, acting, self.loop.send),
            forget_view=self.forget_view,
        )
        thinker = equipment.agent_model(agent.id, model or agent.model)
        equipment.pool.hold(thinker)
        self._runtime = Thinking(thinker, self._parts)

    @property
    def agent_model(self) -> Thinker:
        """What the next turn is taken with."""
        return self._runtime.agent_model

    @property
    def model(self) -> Model:
        """The same."""
        return self._runtime.model

    @property
    def tools(self) -> Hands:
        """What it can do, as far as its model has room for that."""
        return self._runtime.tools

    @property
    def load_bundle(self) -> Me:
        """Who it is by now."""
        return self._runtime.load_bundle

    def use_model(self, thinker: Thinker) -> None:
        """From the next turn on. Those that have begun end with what they began with. Returns at once."""
        before, equipment = self.agent_model, self._parts.model_services
        equipment.pool.hold(thinker)
        self._runtime = Thinking(thinker, self._parts)
        equipment.keep_warm.replace_models(self.id, before.caching_models, thinker.caching_models)
        equipment.pool.release(before)

    @contextlib.contextmanager
    def _hold_runtime(self) -> Iterator[Thinking]:
        """What is begun now ends with what it began with."""
        thinking = self._runtime
        with self._parts.model_services.pool.holding(thinking.agent_model):
            yield thinking

    async def build_prompt_input(self, persona: str) -> Brief:
        """What every conversation of this agent begins with."""
        return await self._runtime.build_prompt_input(persona)

    def last_request(self, conversation: ConversationId) -> Ask | None:
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
            request = beginning(await self.build_prompt_input(me.identity), model, self.tools.specs, key=self.id)
            async with aclosing(model.stream(request)) as chunks:
                async for _ in chunks:
                    pass
        except (ModelError, OSError) as error:  # whoever speaks first will wait for it, or be told
            logger.debug("what %s begins with is not read in ahead of time: %s", self.id, error)

    async def take_turn(
        self, conversation: ConversationId, *, autonomous: bool, continuing: bool, lane: Lane
    ) -> Report:
        await self.refresh_tools()
        async with self._services.room_locks.lock_for(conversation):
            self._digest_builder.forget(conversation)  # what a digest told of it is dealt with here
            with self._hold_runtime() as thinking:
                turns = thinking.turn_runner
                return await turns.run(conversation, autonomous=autonomous, continuing=continuing, lane=lane)

    async def dream(self, lane: Lane) -> Report:
        async with self._services.room_locks.lock_for(self.loop.policy.inner):
            with self._hold_runtime() as thinking:
                return await thinking.dream_runner.run(Address.parse(self.loop.policy.inner), lane)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        return await self._runtime.turn_runner.give_up(conversation, reason, autonomous=autonomous)

    async def unread_urgency(self, conversation: ConversationId) -> int:
        return await (
            self._digest_builder.pending_urgency()
            if is_inner(conversation)
            else self._runtime.turn_runner.unread_urgency(conversation)
        )

    def turn_handle(self, conversation: ConversationId) -> Lane | None:
        """As `gateway.stopping.Mind`."""
        return self.loop.turn_handle(conversation)

    async def owes_answer(self, conversation: ConversationId) -> bool:
        """The same."""
        state = self.loop.state
        if conversation in (*state.pending, *state.continuing, *(one.conversation for one in state.waiting)):
            return True
        unread = await self._services.store.unread_entries(conversation, most=1)  # what asks is told of first
        return any(asks(one.fact) for one in unread.messages)

    async def prepare_stop(self, conversation: ConversationId, why: str) -> TurnEnded:
        """The same."""
        return await heard(self._runtime.context, conversation, why)

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
