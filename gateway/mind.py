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
        self._shared = shared
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
            waits=shared.waits,
        )
        self._purse = Purse(left_usd=self._left_usd)
        hearing = Hearing(shared.store, shared.who, shared.media, shared.redact)
        self._digests = looking(shared, agent.id, hearing, owns, plain=lambda: self.model.family == "local")
        acting = doing(shared, agent.id, self._digests, self.forget)
        self._body = Body(
            agent=agent.id,
            shared=shared,
            equipment=equipment,
            hearing=hearing,
            digests=self._digests,
            acting=acting,
            guidance=Guidance(
                state=lambda: self.loop.state,
                acting=acting,
                returned=shared.life.returned,
                titles=shared.life.places.titles,
            ),
            purse=self._purse,
            skills=shared.tooling.skills(agent),
            own=own(shared, agent.id, acting, self.loop.send),
            forget=self.forget,
        )
        thinker = equipment.thinker(agent.id, model or agent.model)
        equipment.thinkers.hold(thinker)
        self._thinking = Thinking(thinker, self._body)

    @property
    def thinker(self) -> Thinker:
        """What the next turn is taken with."""
        return self._thinking.thinker

    @property
    def model(self) -> Model:
        """The same."""
        return self._thinking.model

    @property
    def hands(self) -> Hands:
        """What it can do, as far as its model has room for that."""
        return self._thinking.hands

    @property
    def me(self) -> Me:
        """Who it is by now."""
        return self._thinking.me

    def think_with(self, thinker: Thinker) -> None:
        """From the next turn on. Those that have begun end with what they began with. Returns at once."""
        before, equipment = self.thinker, self._body.equipment
        equipment.thinkers.hold(thinker)
        self._thinking = Thinking(thinker, self._body)
        equipment.keep_warm.change(self.id, before.keepers, thinker.keepers)
        equipment.thinkers.let_go(before)

    @contextlib.contextmanager
    def _begun(self) -> Iterator[Thinking]:
        """What is begun now ends with what it began with."""
        thinking = self._thinking
        with self._body.equipment.thinkers.held(thinking.thinker):
            yield thinking

    async def brief(self, persona: str) -> Brief:
        """What every conversation of this agent begins with."""
        return await self._thinking.brief(persona)

    def asked(self, conversation: ConversationId) -> Ask | None:
        """The last request there that was answered. None: there was none since the start, or it is not kept."""
        found = (keeper.newest.get(self.id, conversation) for keeper in self.thinker.keepers)
        return max((one for one in found if one is not None), key=lambda one: one.at_s, default=None)

    def forget(self, conversation: ConversationId) -> None:
        """What is kept of the view there is not what the log has."""
        self._thinking.turns.forget(conversation)
        self._digests.forget(conversation)

    async def compact(self, conversation: ConversationId) -> str:
        async with self._shared.doors.of(conversation):
            with self._begun() as thinking:
                return await thinking.turns.compact(conversation)

    def _left_usd(self) -> float:
        state, policy = self.loop.state, self.loop.policy
        today = self._shared.clock.now().astimezone(UTC).date().isoformat()
        return policy.daily_cost_usd - (state.spent_today_usd if state.day == today else 0.0)

    async def ready(self) -> None:
        """Its model is about to be asked: what it is told of its tools is what there is by now, where that is free."""
        await self._shared.tooling.ready(self.hands, self._live.optimization.prompt_cache.long_ttl)

    async def warm_up(self) -> None:
        """Have a local model read in what all conversations begin with, so that nobody's first message pays for it."""
        with self._begun() as thinking:
            await self._warm_up(thinking.model)

    async def _warm_up(self, model: Model) -> None:
        if model.family not in {"local", "llamacpp"}:  # elsewhere a prompt that nobody needs yet costs money
            return
        try:
            await self.ready()  # servers of tools are coming up at the same time
            me = await self.me("public")
            request = beginning(await self.brief(me.identity), model, self.hands.specs, key=self.id)
            async with aclosing(model.stream(request)) as chunks:
                async for _ in chunks:
                    pass
        except (ModelError, OSError) as error:  # whoever speaks first will wait for it, or be told
            logger.debug("what %s begins with is not read in ahead of time: %s", self.id, error)

    async def take(self, conversation: ConversationId, *, autonomous: bool, continuing: bool, lane: Lane) -> Report:
        await self.ready()
        async with self._shared.doors.of(conversation):
            self._digests.forget(conversation)  # what a digest told of it is dealt with here
            with self._begun() as thinking:
                turns = thinking.turns
                return await turns.take(conversation, autonomous=autonomous, continuing=continuing, lane=lane)

    async def dream(self, lane: Lane) -> Report:
        async with self._shared.doors.of(self.loop.policy.inner):
            with self._begun() as thinking:
                return await thinking.dreams.take(Address.parse(self.loop.policy.inner), lane)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        return await self._thinking.turns.give_up(conversation, reason, autonomous=autonomous)

    async def left(self, conversation: ConversationId) -> int:
        return await (self._digests.left() if is_inner(conversation) else self._thinking.turns.left(conversation))

    def lane(self, conversation: ConversationId) -> Lane | None:
        """As `gateway.stopping.Mind`."""
        return self.loop.lane(conversation)

    async def owes(self, conversation: ConversationId) -> bool:
        """The same."""
        state = self.loop.state
        if conversation in (*state.pending, *state.continuing, *(one.conversation for one in state.waiting)):
            return True
        unread = await self._shared.store.unread(conversation, most=1)  # what asks is told of first
        return any(asks(one.fact) for one in unread.messages)

    async def left_off(self, conversation: ConversationId, why: str) -> TurnEnded:
        """The same."""
        return await heard(self._thinking.means, conversation, why)

    def leave_off(self, conversation: ConversationId, why: str) -> None:
        """The same."""
        lane = self.loop.lane(conversation)
        if lane is not None:
            lane.leave_off(why)
        self.loop.send(LeftOff(at=self._shared.clock.now(), conversation=conversation))
        self.forget(conversation)

    def direct(self, conversation: ConversationId) -> bool:
        return self._shared.life.places.known_direct(conversation)

    def settled(self, conversation: ConversationId) -> None:
        self._purse.settle(conversation)
        if self._shared.limits is not None:
            self._shared.limits.settle(conversation)

    def material_tokens(self) -> int:
        return self._shared.life.notes.material_tokens(self.id)
